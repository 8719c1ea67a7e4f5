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
//   trial   what is known of one set of clients: the gain of parts over the whole device, of pairs
//           of slices that followed each other
//
// The whole device holds until parts are seen to gain. At first both kinds are tried in turn, until
// the difference is clear or a few pairs have shown that there is none. Then the other kind gets a
// slice every now and then: more and more rarely while it only confirms what is known, and never so
// often that it costs more than a hundredth of what is being got done. What is known of a set stays
// known when the set comes back, and is forgotten when its rate or its gain becomes another one.
//
// Where somebody must not share the whole device (a bound, a reservation) there are parts only;
// where nobody tells progress, too: what nobody measures is not changed. A client alone is on the
// whole device: its own streams.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/policy.h"

namespace vitamin::policies {

class WholeOrParts {
 public:
  enum class Mode : std::uint8_t { kMeasured, kNever, kAlways };
  struct Options {
    Mode mode = Mode::kMeasured;
    std::uint64_t look_ns = 100'000'000;
  };
  explicit WholeOrParts(const Options& options) : options_(options) {}

  // Whether everybody is to be on the whole device. To be asked in every epoch.
  bool whole(const runtime::PoolView& pool);
  // In the epoch of the last question: it holds something and has not got on for a while. Others
  // may have what it holds; it asks when it comes back.
  bool asleep(runtime::ClientId client) const;
  // When to ask again, though nothing may have changed.
  std::uint64_t look_at() const { return look_at_; }
  void forget(runtime::ClientId client);

 private:
  using Clients = std::vector<runtime::ClientId>;  // sorted, where nothing else is said
  enum class Kind : std::uint8_t { kWhole, kParts };
  struct Known {
    std::uint64_t operations = 0;
    std::uint64_t moved_ns = 0;  // the look at which it had got on, last
    std::uint64_t at_begin = 0;  // operations when the slice began to count
    std::uint64_t awake = 0;     // the last question at which it was
    std::uint64_t slice = 0;     // the last set that it was of
  };
  struct Trial {
    Clients clients;
    Kind kind = Kind::kWhole;
    unsigned pairs = 0;
    double gain = 0, squares = 0;  // of parts over the whole device: mean, squared differences
    std::optional<double> score;   // of the last slice of `kind`
    std::uint64_t pause_ns = 0, try_at_ns = 0;
    double spread() const;
    bool undecided() const;
    void add(double gain);
  };

  void look(const runtime::PoolView& pool);
  void find_awake(const runtime::PoolView& pool);
  bool silent(const runtime::PoolView& pool) const;
  void advance(std::uint64_t now_ns);
  void begin_slice(Kind kind);
  void end_slice(std::uint64_t now_ns);
  void judge(Trial& trial, double gain, std::uint64_t now_ns);
  Trial& trial_of(const Clients& clients);
  void wakes(runtime::ClientId client, Known& known);
  void take_set();

  Options options_;
  std::uint64_t look_at_ = 0;
  std::uint64_t between_looks_ns_ = 0;
  bool looked_ = false;  // in this epoch
  bool knows_ = false;   // of everybody whether he gets on
  std::unordered_map<runtime::ClientId, Known> known_;
  std::uint64_t questions_ = 0, sets_ = 0;
  Clients awake_, set_;        // of this epoch, in any order; whose slice it is
  bool same_ = false;          // both are of the same clients
  std::vector<Trial> trials_;  // the newest last
  Kind kind_ = Kind::kWhole;
  unsigned looks_ = 0;  // of the slice
  std::uint64_t begin_ns_ = 0;
};

}  // namespace vitamin::policies
