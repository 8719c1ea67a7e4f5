// SPDX-License-Identifier: Apache-2.0
//
// One plan for everybody who wants to run: which lanes, on which entries, in which order. What
// `throughput` is, and what `tpot-first` does with the units that it does not set aside.
//
// Threads: one at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "policies/assignment.h"
#include "policies/curves.h"
#include "runtime/policy.h"

namespace vitamin::policies {

class Planner {
 public:
  explicit Planner(Objective objective = Objective::kAlone) : assignment_(objective) {}
  // Plans, once for each epoch, for all lanes of the view but those that `except` names (by index
  // into lanes()), on `available`. The order is age-aware round-robin over clients: those that hold
  // a grant keep their turn, then each client's oldest operation, then each client's second.
  void begin(const runtime::PoolView& pool);
  struct Lane {
    runtime::ReadyOperation operation;
    runtime::EntryId held = runtime::kNoEntry;
    runtime::EntryId target = runtime::kNoEntry;  // the plan's
    bool left_out = false;                        // not planned for
  };
  std::span<Lane> lanes() { return lanes_; }
  // Lanes whose target is set already, and who is left out, are left alone.
  void assign(const runtime::PoolView& pool, hal::ComputeSet available);

  const Lane* find(runtime::ClientId client, runtime::LaneId lane) const;
  // The first of `ready` in the plan's order that has a target; nothing when none has.
  std::optional<std::size_t> next(std::span<const runtime::ReadyOperation> ready) const;
  Curves& curves() { return curves_; }

 private:
  void index();
  std::size_t place_of(runtime::ClientId client, runtime::LaneId lane) const {
    const std::uint64_t key = std::uint64_t{client} << 32 | lane;
    return (key * 0x9e3779b97f4a7c15ULL >> 32) & (index_.size() - 1);
  }
  static constexpr std::uint32_t kNowhere = ~0U;
  void keep_if_good(const runtime::PoolView& pool, hal::ComputeSet available);

  struct Remembered {
    runtime::ClientId client;
    runtime::LaneId lane;
    runtime::EntryId entry;
  };
  Curves curves_;
  Assignment assignment_;
  std::vector<Lane> lanes_;
  std::vector<std::uint32_t> index_;  // into lanes_, by hashed client and lane; kNowhere
  struct Turn {
    std::uint32_t nth;  // of its client
    bool waits;
    std::uint64_t since_ns;
    std::uint32_t number;
    auto operator<=>(const Turn&) const = default;
  };
  std::vector<Turn> turns_;
  std::vector<Candidate> candidates_;
  std::vector<std::size_t> planned_;  // index into lanes_ of each candidate
  std::unordered_map<runtime::ClientId, std::uint32_t> lanes_of_;  // scratch of begin()
  std::vector<Remembered> before_;  // the last plan: positions to keep
  std::vector<runtime::EntryId> kept_, fresh_;
};

// The answer of Select for a planned lane: its target when that is eligible, else the widest
// eligible entry inside the target (the rest of it still drains), else nothing.
runtime::EntryId within_target(runtime::EntryId target, std::span<const runtime::EntryId> eligible,
                               const runtime::PoolView& pool);

}  // namespace vitamin::policies
