// SPDX-License-Identifier: Apache-2.0
//
// Whether those that yield may go on beside clients that have the right of way (right_of_way.h), on
// the whole device, where the hardware sees to who comes first (clients of kind `batch` are MPS
// clients of a lower priority): they may where it is measured that nobody is slowed down by it.
//
//   slice   those with the right of way have been busy for so long, while the others made way or
//           while they went on; from one time at which nobody was busy to another, unless there is
//           none for long
//   busy    asks, or launches; a pause is part of that when it ends with a launch, or when work
//           still ran at its end: its host waited for the device
//   score   launches of theirs by the time that they were busy, as a logarithm: how slow the device
//           was, however many requests came
//
// At first, and whenever other clients are there, slices of either kind follow each other; they go
// on together when those with the right of way are slower by no more than allowed, for sure
// (trials.h). The other kind is tried again so rarely that at most a few requests in a thousand see
// it. Where those with the right of way do not tell how they get on, they are left alone.
//
// Those who would be slowed down by more have others beside them all the same when a stretch of
// work begins, and are left alone when it turns out to be a long one:
//
//   stretch   from the first operation of a client with the right of way to when it has nothing to
//             run: one request, or several that queued. Late answers are those of long stretches
//   patience  how long others stay: so long that a long stretch, of which one in eight is longer,
//             is lengthened by `slowdown` of itself, by as much as others have been seen to slow it
//             down; not at all where that is more than may be asked of anybody. Each client has its
//             own. Nobody is patient in slices that measure
//
// So the slowest answers take hardly longer, the others somewhat, and who yields runs in most
// stretches.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "policies/right_of_way.h"
#include "policies/trials.h"
#include "runtime/policy.h"

namespace vitamin::policies {

class Beside {
 public:
  enum class Mode : std::uint8_t { kMeasured, kNever, kAlways };
  struct Options {
    Mode mode = Mode::kMeasured;
    std::uint32_t slowdown = 10;           // percent
    std::uint32_t patience = 35;           // percent; 0: others never stay in short stretches
    std::uint64_t slice_ns = 100'000'000;  // busy
  };
  explicit Beside(const Options& options);

  // In every epoch, after `first` has looked. `others`: somebody is there who neither has the right
  // of way nor yields, or may not share the device; nothing is measured then.
  void look(const runtime::PoolView& pool, const RightOfWay& first, bool others);
  // While only those are there who have the right of way and who yield: they share the device.
  bool together() const {
    return options_.mode == Mode::kAlways ||
           (!set_.empty() && (kind_ == kTogether || patience_ends_ns_ > looked_ns_));
  }
  // When that may change by itself.
  std::uint64_t look_at() const {
    return patience_ends_ns_ > looked_ns_ ? patience_ends_ns_ : runtime::kNever;
  }
  void forget(runtime::ClientId client);

 private:
  using Clients = Trials::Clients;
  using Kind = Trials::Kind;
  static constexpr Kind kApart = Kind::kBasic, kTogether = Kind::kOther;
  enum class State : std::uint8_t { kRests, kAsks, kHolds, kLeaves };
  // The last ones of a client.
  class Stretches {
   public:
    void add(std::uint64_t lasted_ns);
    // One in eight is longer; 0: too few are known.
    std::uint64_t long_ns() const;

   private:
    std::deque<std::uint64_t> lately_;
    std::vector<std::uint64_t> sorted_;
  };
  struct Known {
    explicit Known(runtime::ClientId id) : client(id) {}
    runtime::ClientId client;
    bool first = false;  // it has the right of way
    std::uint64_t seen_ns = 0;
    std::uint64_t operations = 0;
    State state = State::kRests;
    std::uint64_t quiet_ns = 0, leaving_ns = 0;  // of the pause that it is in
    // In the slice.
    std::uint64_t busy_ns = 0, launches = 0;
    std::uint64_t began_ns = 0, rests_ns = 0;  // its stretch, its rest since; 0: none
    Stretches stretches;
  };
  static State state_of(const RightOfWay::Client& client);
  Known& of(runtime::ClientId client);
  bool find_set(const runtime::PoolView& pool, const RightOfWay& first);
  void count(const runtime::PoolView& pool, const RightOfWay& first, std::uint64_t passed_ns);
  bool is_busy() const;
  void follow_stretches(std::uint64_t now_ns);
  std::uint64_t patience_ends(double gain) const;
  static void follow(Known& known, State state, bool launched, std::uint64_t passed_ns);
  void clear_set();
  void begin_slice(Kind kind);
  void end_slice(std::uint64_t busy_ns);

  Options options_;
  Trials trials_;
  std::vector<Known> known_;  // by client
  Clients set_, now_;         // whose slice it is; who is there
  Kind kind_ = kApart;
  std::uint64_t looked_ns_ = 0;
  std::uint64_t settling_ns_ = 0;       // busy time of the slice that does not count
  std::uint64_t busy_ns_ = 0;           // before the slice: the clock of the trials
  bool measures_ = true;                // this slice, which else only passes
  std::uint64_t patience_ends_ns_ = 0;  // others stay until then
};

}  // namespace vitamin::policies
