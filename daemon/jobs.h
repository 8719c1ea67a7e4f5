// SPDX-License-Identifier: Apache-2.0
//
// The jobs that a cluster's scheduler has put on this node: who may use how much of which GPU. Said
// by the scheduler's plugin, which is root, before a task starts, and taken back when the step or
// the job has ended. Clients name their job; they are believed when its user is theirs.
//
// Text, because that is what travels in a Control (protocol/handshake.h), its words separated by
// one space: "job-begin STEP USER SHARE CLASS DEVICES" and "job-end STEP", where
//   STEP      of a job: "123.0"; to end all of them: "123"
//   USER      number
//   SHARE     percent of each device that one process may have at most: 1 to 100
//   CLASS     of vitamin.toml, or "-"
//   DEVICES   as the scheduler names them: "0,1", or "-" when it does not say
//
// Threads: the server's only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hal/result.h"

namespace vitamin::daemon {

struct Job {
  uid_t user = 0;
  std::uint32_t share = 100;
  std::string workload_class;  // empty: none
  std::vector<std::string> devices;
};

class Jobs {
 public:
  // Steps that are known at once; a scheduler that never ends one must not fill the memory.
  static constexpr std::size_t kMost = 4096;

  // `words`: what stands behind "job-begin ". A step that is known is replaced: every task of it
  // begins it. Refused, with a sentence, when the shares of a device would exceed 100 percent and
  // this one is not the whole device: who asks for all of it asks for no bound.
  hal::Status begin(std::string_view words);
  // How many steps that ended; none is no error.
  std::size_t end(std::string_view step);

  // Null: unknown, or another user's.
  const Job* find(std::string_view step, uid_t user) const;
  nlohmann::json status() const;

 private:
  std::map<std::string, Job, std::less<>> steps_;
};

}  // namespace vitamin::daemon
