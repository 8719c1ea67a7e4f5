// SPDX-License-Identifier: Apache-2.0
//
// Pick, Select, Prepare: the paper's policy interface (section "Policy Interface"), over values.
//
// A policy never sees a descriptor's contents, a queue or a lock. Whatever it answers is validated
// against descriptor compatibility, dependencies and leases before anything changes, so a policy
// can waste the device but not break a program.
//
// Threads: called by one thread at a time, with the device lock held: no blocking, no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "runtime/pool_layout.h"

namespace vitamin::runtime {

using LaneId = std::uint32_t;  // one logical stream of one virtual context

// A bindable operation: every predecessor is complete or already submitted.
struct ReadyOperation {
  std::uint64_t id = 0;
  LaneId lane = 0;
  std::uint64_t kernel = 0;          // equal for equal (kernel, grid, block, shared memory)
  std::uint32_t processors = 1;      // narrowest width that runs it unchanged
  std::uint64_t predicted_ns = 0;    // on the whole device; 0: unknown
  std::uint64_t ready_at_ns = 0;     // predicted time at which its predecessors end; 0: now
  EntryId last_entry = kNoEntry;     // where the lane's previous operation went
};

struct PoolView {
  std::span<const PoolEntry> entries;  // [0] is the whole device
  hal::ComputeSet barred;              // held by or reserved for others
};

// The answer of Select. `launches`: for how many launches of this lane the answer stands while the
// entry stays eligible; kUntilChanged: until leases or the policy change, so that the launch path
// asks nobody.
inline constexpr std::uint32_t kUntilChanged = 0xffffffff;
struct Choice {
  EntryId entry = kWholeDevice;
  std::uint32_t launches = 1;
};

// A lookahead hint: an operation that is expected and is not yet bindable.
struct Hint {
  LaneId lane = 0;
  std::uint32_t processors = 0;
  std::uint64_t ready_at_ns = 0;
  std::uint64_t deadline_ns = 0;
  bool cancelled = false;
};

struct Plan {
  EntryId target = kNoEntry;   // reserve this entry for the hinted lane
  bool close_gates = false;    // and close the gates of the leases that overlap it
  std::uint64_t expires_ns = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // Index into `ready`, or nothing to defer all of them. `ready` is never empty.
  virtual std::optional<std::size_t> pick(std::span<const ReadyOperation> ready,
                                          const PoolView& pool) {
    (void)ready, (void)pool;
    return 0;
  }
  // An element of `eligible`, which is never empty and may hold the whole device.
  virtual Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                        const PoolView& pool) = 0;
  virtual Plan prepare(const Hint& hint, const PoolView& pool) {
    (void)hint, (void)pool;
    return {};
  }
  // Whether operations of different lanes of one client may share units. When not, each lane is a
  // lessee of its own and an entry that overlaps another lane's work is not eligible.
  virtual bool lanes_share() const { return true; }
};

}  // namespace vitamin::runtime
