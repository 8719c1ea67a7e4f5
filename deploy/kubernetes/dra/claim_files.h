// SPDX-License-Identifier: Apache-2.0
//
// What the DRA driver keeps of the claims that it prepared: a file for each, so that another life
// of the driver knows them. Thread-safe: const after construction; two calls for one claim at the
// same time are not.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "deploy/kubernetes/dra/claim.h"
#include "hal/result.h"

namespace vitamin::kubernetes {

// Whether the text may be a UID, and so a part of a file's name.
bool is_uid(const std::string& text);

class ClaimFiles {
 public:
  struct Kept {
    std::vector<AllocatedClaim> claims;
    std::set<std::string> damaged;  // UIDs of claims whose file cannot be read
  };

  explicit ClaimFiles(std::string directory) : directory_(std::move(directory)) {}

  // Those of an earlier life. `say` gets a line for each damaged file.
  Kept read(const std::function<void(const std::string&)>& say) const;

  // Replaces the claim's file whole. Error: why not.
  hal::Status keep(const AllocatedClaim& claim) const;

  std::string file_of(const std::string& uid) const;

 private:
  const std::string directory_;
};

}  // namespace vitamin::kubernetes
