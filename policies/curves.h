// SPDX-License-Identifier: Apache-2.0
//
// What a policy reads from the profiles: the time of an operation on every entry of the pool.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/policy.h"
#include "runtime/profile.h"

namespace vitamin::policies {

// Of a kernel or a step of which nothing is known: nine tenths of it are shared work. Times what it
// takes on all `whole` processors.
inline float mostly_shared(float whole, float processors) {
  return 0.1F + 0.9F * whole / processors;
}

class Curves {
 public:
  // Nanoseconds of `kernel` by EntryId. A kernel of which nothing is known is taken to be nine
  // tenths shared work: only the ratios mean anything then (known() is false). Valid until the
  // profile or the pool changes.
  std::span<const float> of(std::uint64_t kernel, const runtime::PoolView& pool);
  bool known(std::uint64_t kernel, const runtime::PoolView& pool) const;
  // The same of any curve by EntryId.
  static std::uint64_t scaled(std::span<const float> curve, std::uint64_t whole_ns,
                              runtime::EntryId entry);
  // Predicted nanoseconds of work that takes `whole_ns` on the whole device, on `entry`.
  std::uint64_t scaled(std::uint64_t kernel, std::uint64_t whole_ns, runtime::EntryId entry,
                       const runtime::PoolView& pool);

 private:
  std::unordered_map<std::uint64_t, std::vector<float>> curves_;
  const std::pair<const std::uint64_t, std::vector<float>>* last_ = nullptr;  // of them
  const runtime::Profile* profile_ = nullptr;
  std::uint64_t version_ = 0;
  std::size_t entries_ = 0;
};

}  // namespace vitamin::policies
