// SPDX-License-Identifier: Apache-2.0
//
// Which of two ways to run the same clients is better, found out by running them in either by
// turns.
//
//   slice   some time in one way, and a score of how they got on in it: a logarithm of rates, so
//           that the difference of two scores is a gain
//   pair    two slices that followed each other, one of either kind; its gain is that of the other
//           kind over the basic one
//   trial   what is known of one set of clients: the gain of the last few pairs, and how much it
//           varies
//
// The basic kind holds until the other one has been seen to be worth having: by its mean gain less
// twice the error of that mean, over a few pairs at least. Until that is clear, or clearly not so,
// or so many pairs have not made it clear, both are tried in turn. Then the kind that is not chosen
// gets a slice every now and then: more and more rarely while it only confirms what is known, and
// never so often that it costs more than a given share of what is being got done. What is known of
// a set stays known when the set comes back, and is forgotten when its rate or its gain becomes
// another one; how much either varies anyway is measured, too.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/policy.h"

namespace vitamin::policies {

class Trials {
 public:
  enum class Kind : std::uint8_t { kBasic, kOther };
  struct Rules {
    double worth = 0;    // the other kind has to gain more than that
    double cost = 0.01;  // of what is being got done, for slices of the kind that is not chosen
    unsigned pairs = 8;  // that have not made a gain clear: there is none; and remembered
    // One pair that says so is enough; nearer `worth` it takes a few.
    double lost = std::numeric_limits<double>::infinity();
  };
  using Clients = std::vector<runtime::ClientId>;  // sorted

  explicit Trials(const Rules& rules) : rules_(rules) {}
  // The kind to begin with.
  Kind kind_of(const Clients& clients) { return trial_of(clients).kind; }
  // What the other kind gains over the basic one, by a cautious guess: the mean less its standard
  // error. As long as the basic kind is the better one, and not to be compared again by now.
  std::optional<double> known_gain(const Clients& clients, std::uint64_t now_ns) const;
  // A slice of them has ended that lasted for so long: the kind of the next one.
  Kind ended(const Clients& clients, Kind kind, double score, std::uint64_t now_ns,
             std::uint64_t slice_ns);
  void forget(runtime::ClientId client);

 private:
  // Of the last few values.
  struct Estimate {
    unsigned count = 0;
    double mean = 0, squares = 0;  // squared differences from the mean
    void add(double value, unsigned most);
  };
  struct Trial {
    Clients clients;
    Kind kind = Kind::kBasic;
    Estimate gain;
    Estimate steps;               // of the score, from one slice of `kind` to the next
    std::optional<double> score;  // of the last slice of `kind`
    std::uint64_t pause_ns = 0, try_at_ns = 0;
    bool decided() const { return pause_ns > 0; }
    double spread() const;  // of what differs between one slice and the next
    double error() const;   // twice that of the mean gain
  };

  Trial& trial_of(const Clients& clients);
  bool gains(const Trial& trial) const;
  bool clear(const Trial& trial) const;
  void judge(Trial& trial, double gain, std::uint64_t now_ns, std::uint64_t slice_ns);

  Rules rules_;
  std::vector<Trial> trials_;  // the newest last
};

}  // namespace vitamin::policies
