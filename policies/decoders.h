// SPDX-License-Identifier: Apache-2.0
//
// Those who decode against a target (tpot_first.cpp): how long their steps take, when each is due,
// and what each of them keeps for itself.
//
//   step         what a client says itself of what it does next: how long it takes, when it is due
//   target       what a step may take: as the client's class says (`tpot`), else no more than the
//                client has lately given its steps, and than the policy's parameter
//   reservation  one entry for all lanes of a client: the narrowest on which its steps, as they
//                have been lately (step_curve.h), stay below a part of the target. It changes
//                slowly, for that drains somebody: sooner to more than to less
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policies/planner.h"
#include "policies/step_curve.h"
#include "runtime/policy.h"

namespace vitamin::policies {

// A step, its client's own words: what it takes and when it is due.
inline bool is_step(const runtime::ReadyOperation& operation) {
  return operation.queued_ns > 0 && operation.deadline_ns > 0;
}

struct Decoder {
  runtime::ClientId client = 0;
  runtime::LaneId lane = 0;              // that steps, and has the reservation
  const Planner::Lane* leads = nullptr;  // that lane, in the epoch `seen`; of all that decode
  std::uint64_t seen = 0;
  std::uint64_t target_ns = 0;                    // of its steps
  runtime::EntryId standing = runtime::kNoEntry;  // its reservation

 private:
  friend class Decoders;
  double usual_ns = 0;        // of a step, on the whole device, smoothed
  std::uint64_t last_id = 0;  // of the step that was learnt from
  std::uint64_t steps = 0;
  std::uint64_t sized_as_of = 0;  // changes_, when its size was looked at; 0: its step is new
  std::uint64_t right_at = 0;     // the last step at which its size was right
  bool told = false;              // that no width meets the target
  unsigned tries = 0;             // steps since `standing` is what it is
  // Of the steps: how long each was, from one to the next, where it was on one entry throughout.
  StepCurve curve;
  std::uint64_t began_ns = 0, due_ns = 0, said_ns = 0;
  runtime::EntryId throughout = runtime::kNoEntry;
  // Of the step that runs: how much was left of it when, and where it has run since.
  std::uint64_t step = 0;  // its id
  double left = 1;
  std::uint64_t as_of_ns = 0;
  runtime::EntryId on = runtime::kNoEntry;
};

class Decoders {
 public:
  struct Options {
    std::uint32_t target_ms = 30;
    std::uint32_t margin = 65;  // percent of the target that a step may take
    std::uint32_t reserve = 0;  // processors; 0: sized by what steps take
    std::uint32_t reservation = 1;
    std::uint32_t most = 75;  // percent of the device that reservations may hold
  };
  // `curves`: of kernels, for what says nothing of steps.
  Decoders(const Options& options, Curves& curves)
      : options_(options),
        target_ns_(std::uint64_t{options.target_ms} * 1'000'000),
        curves_(curves) {}

  // In every epoch, with every lane that decodes: one of each client leads, where its steps are or
  // the longest of what there is. Its others, of copies perhaps, are with it.
  void look(const runtime::PoolView& pool, std::span<Planner::Lane* const> lanes);
  // Then, of a lane that leads: learns from its steps, and sees to its reservation.
  void follow(const Planner::Lane& lane, const runtime::PoolView& pool);
  void forget(runtime::ClientId client);

  const Decoder* find(runtime::ClientId client) const;
  std::span<const Decoder> all() const { return decoders_; }  // by client
  // Its steps have been seen to take some time somewhere.
  bool known(runtime::ClientId client) const;
  // A few steps of it are to run there, however long they take: else that is never known.
  bool is_tried(const runtime::ReadyOperation& operation, runtime::EntryId standing,
                const runtime::PoolView& pool) const;

  std::uint64_t deadline(const runtime::ReadyOperation& operation) const;
  std::uint64_t target_ns(runtime::ClientId client) const;
  // Nanoseconds by EntryId, of which only ratios mean anything: of a step where it is one, else of
  // the kernel that comes next.
  std::span<const float> curve_of(const runtime::ReadyOperation& operation,
                                  const runtime::PoolView& pool);
  std::uint64_t takes(const runtime::ReadyOperation& operation, runtime::EntryId entry,
                      const runtime::PoolView& pool);
  // What an operation takes on the whole device.
  static std::uint64_t work(const runtime::ReadyOperation& operation) {
    return operation.queued_ns > 0 ? operation.queued_ns : operation.predicted_ns;
  }
  // Of a step that runs already, only what is left of it, wherever it has run.
  runtime::ReadyOperation what_is_left(const Planner::Lane& lane, const runtime::PoolView& pool);

  // Reservations of all but one; of those who had nothing to run when look() was called.
  hal::ComputeSet others_standing(runtime::ClientId client) const;
  hal::ComputeSet idle_standing(const runtime::PoolView& pool) const;

  std::string take_message() { return std::exchange(message_, {}); }

 private:
  static bool before(const Decoder& decoder, runtime::ClientId client) {
    return decoder.client < client;
  }
  Decoder& of(runtime::ClientId client);
  void set_target(Decoder& decoder, const runtime::ReadyOperation& operation,
                  const runtime::PoolView& pool) const;
  void time(Decoder& decoder, const Planner::Lane& lane, const runtime::PoolView& pool);
  static void learn(Decoder& decoder, const runtime::ReadyOperation& operation);
  void size(Decoder& decoder, const runtime::ReadyOperation& operation,
            const runtime::PoolView& pool);
  runtime::EntryId right_size(Decoder& decoder, const runtime::ReadyOperation& operation,
                              const runtime::PoolView& pool);
  void changed();
  void say_once(Decoder& decoder, const runtime::PoolView& pool);

  Options options_;
  std::uint64_t target_ns_;
  Curves& curves_;
  std::vector<Decoder> decoders_;                                        // by client
  std::vector<std::pair<runtime::ClientId, hal::ComputeSet>> standing_;  // of all of them
  std::uint64_t changes_ = 1;  // of any of those, or of the profile
  std::uint64_t profile_ = 0;  // its version
  std::span<const runtime::PoolEntry> entries_;
  std::string message_;
};

}  // namespace vitamin::policies
