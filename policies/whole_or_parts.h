// SPDX-License-Identifier: Apache-2.0
//
// Everybody on the whole device, or each client on a part of its own: whichever lets the clients
// get on faster. Neither always does. On the whole device each takes what the others leave idle at
// that moment, as under MPS; on parts nobody waits for the blocks of others. So it is measured:
//
//   look    every so often: who has got on since the last one (PoolView::progress)? Who has, at one
//           of the last few, is awake
//   slice   a few looks under one kind of plan. The first does not count: work drains, queues fill.
//           The last is one at which everybody has got on
//   score   of a slice: the mean, over clients, of the logarithm of their rate. Needs nothing but
//           differences: what anybody would reach alone is not known
//
// The whole device holds until parts are seen to gain (policies/trials.h). A slice of the other
// kind never costs more than a hundredth of what is being got done.
//
// Where somebody must not share the whole device (a bound, a reservation) there are parts only;
// where nobody tells progress, too: what nobody measures is not changed. A client alone is on the
// whole device: its own streams.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policies/trials.h"
#include "runtime/policy.h"

namespace vitamin::policies {

class WholeOrParts {
 public:
  enum class Mode : std::uint8_t { kMeasured, kNever, kAlways };
  struct Options {
    Mode mode = Mode::kMeasured;
    std::uint64_t look_ns = 100'000'000;
  };
  explicit WholeOrParts(const Options& options);

  // Whether everybody is to be on the whole device. To be asked in every epoch.
  bool whole(const runtime::PoolView& pool);
  // It is not measured: everybody is, unless somebody is kept to a part.
  bool always() const { return options_.mode == Mode::kAlways; }
  // In the epoch of the last question: it holds something and has not got on for a while. Others
  // may have what it holds; it asks when it comes back.
  bool asleep(runtime::ClientId client) const;
  // When to ask again, though nothing may have changed.
  std::uint64_t look_at() const { return look_at_; }
  void forget(runtime::ClientId client);

 private:
  using Clients = Trials::Clients;  // sorted, where nothing else is said
  using Kind = Trials::Kind;
  static constexpr Kind kWhole = Kind::kBasic, kParts = Kind::kOther;
  struct Known {
    std::uint64_t operations = 0;
    std::uint64_t moved_ns = 0;  // the look at which it had got on, last
    std::uint64_t at_begin = 0;  // operations when the slice began to count
    std::uint64_t awake = 0;     // the last question at which it was
    std::uint64_t slice = 0;     // the last set that it was of
  };
  void look(const runtime::PoolView& pool);
  void find_awake(const runtime::PoolView& pool);
  bool silent(const runtime::PoolView& pool) const;
  void advance(std::uint64_t now_ns);
  void begin_slice(Kind kind);
  void end_slice(std::uint64_t now_ns);
  void wakes(runtime::ClientId client, Known& known);
  void take_set();

  Options options_;
  std::uint64_t look_at_ = 0;
  std::uint64_t between_looks_ns_ = 0;
  bool looked_ = false;  // in this epoch
  bool knows_ = false;   // of everybody whether he gets on
  std::unordered_map<runtime::ClientId, Known> known_;
  std::uint64_t questions_ = 0, sets_ = 0;
  Clients awake_, set_;  // of this epoch, in any order; whose slice it is
  bool same_ = false;    // both are of the same clients
  Trials trials_;
  Kind kind_ = kWhole;
  unsigned looks_ = 0;  // of the slice
  std::uint64_t begin_ns_ = 0;
};

}  // namespace vitamin::policies
