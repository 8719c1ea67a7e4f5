// SPDX-License-Identifier: Apache-2.0
//
// A whole node in one thread: the production arbiter, scheduler, policies, clients and rings over a
// simulated clock, device and set of faults. One seed decides everything; the same seed gives the
// same run, to the byte of its trace.
//
// Every step is one thing that can happen next: a client tries to submit, serves its ring or has an
// operation end; the daemon reads some records, decides, learns of a death; a fault strikes. After
// every step the invariants hold:
//
//   * no two clients hold leases that overlap (the daemon's view), without exception;
//   * no two clients have work on the same units (the device's view), unless one of them was
//     stopped beyond the bound, died, or submitted before the daemon was restarted and could not
//     tell the new one before others were granted the units;
//   * an operation is submitted under a grant that the daemon knows, whose gate is open, or in
//     the fallback partition;
//   * a lane's operations end once each, in order.
//
// In the end faults stop, and then: every operation of every living client ends, everything is
// returned, and the daemon's and the clients' views agree that nothing is held.
#pragma once

#include <cstdint>
#include <string>

namespace vitamin::tests {

struct SimulationOptions {
  std::uint64_t seed = 1;
  bool faults = true;
  bool restarts_only = false;  // the only faults: the daemon ends and starts, or is taken for lost
  bool trace = false;          // keep the text of the trace, not only its hash
};

struct SimulationResult {
  std::string violation;  // empty: none
  std::uint64_t events = 0;
  std::uint64_t hash = 0;
  std::uint64_t submitted = 0, in_fallback = 0, kills = 0, stops = 0, restarts = 0, lies = 0;
  std::uint64_t losses = 0;  // times that a client lost a daemon that was running
  std::uint64_t overdue = 0;
  std::uint64_t full = 0;       // times that a lane had the most grants
  std::uint64_t adopted = 0;    // times that earlier work was adopted
  std::uint64_t ring_full = 0;  // of clients and of the daemon
  std::string trace;
};

SimulationResult simulate(const SimulationOptions& options);

}  // namespace vitamin::tests
