// SPDX-License-Identifier: Apache-2.0
//
// The two pieces of memory of a session, split by who may write them.
//
//   ClientSegment   the client writes, the daemon has it mapped read-only
//   DaemonSegment   the daemon writes; sealed with F_SEAL_FUTURE_WRITE after the daemon mapped it,
//                   so a client can neither map it writable nor make its mapping so: a lease cannot
//                   be forged
//
// Both are memfds made by the daemon, so that they are accounted to it, and cannot change size
// (F_SEAL_SHRINK, F_SEAL_GROW): touching them never raises SIGBUS.
//
// The lease words. One for each lane of the client:
//
//      63            32 31             8 7      0
//     +----------------+----------------+--------+
//     | epoch          | generation     | gate   |
//     +----------------+----------------+--------+
//
// A grant holds the value that the lane's word has while its gate is open. The lane may submit to
// the grant's partition while the word equals it: one load and one comparison on the launch path.
// Any other value: the gate of that grant is closed. `generation` counts the grants of the lane and
// their amendments, and `epoch` differs for each start of a daemon: a value comes back after 2^24
// of them. A lane has at most 24 grants that were not returned (scheduler::Ledger::kGrantsMost),
// and the drain time bounds each of them.
//
// After closing gates the daemon increments gate_changes, and rings when the client sleeps.
#pragma once

#include <array>
#include <cstdint>

#include "daemon/protocol/ring.h"
#include "daemon/protocol/shared.h"
#include "daemon/protocol/sleep_flag.h"

namespace vitamin::protocol {

#ifndef VITAMIN_TINY_RINGS
inline constexpr std::size_t kRequests = 256;  // records in flight to the daemon
inline constexpr std::size_t kGrants = 256;    // and to a client
#else                                          // for tests: full again and again
inline constexpr std::size_t kRequests = 4;
inline constexpr std::size_t kGrants = 2;
#endif

enum class GateState : std::uint8_t { kNone = 0, kOpen = 1, kClosed = 2 };

constexpr LeaseWord lease_word(std::uint32_t epoch, std::uint32_t generation, GateState gate) {
  return std::uint64_t{epoch} << 32 | std::uint64_t{generation & 0xff'ffff} << 8 |
         static_cast<std::uint8_t>(gate);
}
constexpr GateState gate_of(LeaseWord word) { return static_cast<GateState>(word & 0xff); }
constexpr std::uint32_t generation_of(LeaseWord word) {
  return static_cast<std::uint32_t>(word >> 8 & 0xff'ffff);
}
constexpr std::uint32_t epoch_of(LeaseWord word) { return static_cast<std::uint32_t>(word >> 32); }

using LeaseWords = std::array<Shared<LeaseWord>, kLanes>;
using RequestProducer = RingProducer<Native, kRequests>;
using RequestConsumer = RingConsumer<Native, kRequests>;
using GrantProducer = RingProducer<Native, kGrants>;
using GrantConsumer = RingConsumer<Native, kGrants>;

struct ClientSegment {
  // The kernel writes FUTEX_OWNER_DIED here when the thread that holds it ends (liveness.h).
  alignas(64) Shared<std::uint32_t> liveness;
  // Since 1.4: operations that the client has submitted (not: completed) to any partition. In
  // padding of 1.3: an older client leaves it zero, an older daemon does not read it. On the cache
  // line of `liveness`, which is not read in normal operation.
  Shared<std::uint64_t> operations;
  // Since 1.6: completed work, the progress that policies compare. Written while
  // DaemonSegment::reporting is not 0, at most a millisecond late. Each word only grows. Values may
  // be false: the daemon bounds their effect.
  Shared<std::uint64_t> launches;  // kernel and graph launches that were observed complete
  Shared<std::uint64_t> work;      // sum of the weights of these launches
  Shared<std::uint64_t>
      misplaced;                  // part of `work` that did not run on the lane's granted partition
  Shared<std::uint64_t> busy_ns;  // time during which operations were outstanding
  // Since 1.9: launches of kernels that wait for kernels of other processes.
  Shared<std::uint64_t> collectives;
  alignas(64) RingIndex<Native> request_tail;
  alignas(64) RingIndex<Native> grant_head;
  alignas(64) SleepFlag<Native> sleep_flag;  // the client's
  alignas(64) RequestConsumer::Cells requests;
};

struct DaemonSegment {
  alignas(64) RingIndex<Native> grant_tail;
  alignas(64) RingIndex<Native> request_head;
  alignas(64) SleepFlag<Native> sleep_flag;  // the daemon's
  // Changes while the daemon's loop runs, so that a client that waits for a grant notices a stopped
  // daemon. Not a fault point, because the number of changes depends on time.
  alignas(64) std::atomic<std::uint64_t> turns{};
  alignas(64) Shared<std::uint32_t> gate_changes;
  // Since 1.6: not 0 while the client is to report its progress (ClientSegment::work). A change is
  // rung like a closed gate.
  Shared<std::uint32_t> reporting;
  alignas(64) LeaseWords leases;
  alignas(64) GrantConsumer::Cells grants;
};

// What the daemon reads and writes of a session's rings. The client's: client::Link.
struct DaemonEnds {
  DaemonEnds() = default;
  DaemonEnds(DaemonSegment& mine, const ClientSegment& theirs)
      : requests(theirs.requests, theirs.request_tail, mine.request_head),
        grants(mine.grants, mine.grant_tail, theirs.grant_head) {}
  RequestConsumer requests;
  GrantProducer grants;
};

}  // namespace vitamin::protocol
