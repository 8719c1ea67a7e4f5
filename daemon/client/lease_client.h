// SPDX-License-Identifier: Apache-2.0
//
// A client's half of the lease protocol: requests grants for its lanes, admits launches under them
// and returns them.
//
// Pure: no thread, socket or clock; the caller maps the rings and lease words. The preloaded
// library runs it over shared memory, the simulator over its own.
//
// A lane (one stream; streams beyond protocol::kLanes share lanes) holds at most one open grant: a
// partition on which it may submit while its lease word is the grant's. A closed grant becomes a
// *drain* until nothing that counts under it is outstanding (runtime/arbiter.h says what counts);
// then it is returned.
//
//     grant()          Ready -->                 requests a grant when the lane has none
//     admits()         one load                  may the lane submit there now?
//     submitted(), ended()                       what is outstanding under the grant, if its
//                                                GrantTerms say that it counts
//     service()        <-- grants, closed gates; Returned, Draining, Idle -->
//
// Without a daemon (before the first connection, or after it was lost) every grant of a daemon
// reads as closed, and the lanes submit to the fallback partition, which the Welcome named, or to
// the whole device where a launch does not fit. lose() switches to that by one store from any
// thread; it takes effect at the next submission.
//
// Threads: all but lose() require the device lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "daemon/protocol/segment.h"
#include "daemon/protocol/version.h"
#include "runtime/demand.h"
#include "runtime/pool/layout.h"
#include "runtime/profile/profile.h"

namespace vitamin::client {

using protocol::LaneId;
using protocol::LeaseWord;
using runtime::GrantTerms;
using runtime::PartitionId;
using runtime::StreamId;

// The shared objects of one connection, and values of its Welcome. The objects must stay mapped
// until LeaseClient::connect() with another link, or its destructor.
struct Link {
  Link() = default;
  // Refers to the segments; the caller sets the last three members.
  Link(protocol::ClientSegment& mine, const protocol::DaemonSegment& theirs);
  protocol::RequestProducer requests;
  protocol::GrantConsumer grants;
  const protocol::LeaseWords* words = nullptr;
  protocol::SleepFlag<protocol::Native>* own_sleep = nullptr;
  const protocol::SleepFlag<protocol::Native>* daemon_sleep = nullptr;
  const protocol::Shared<std::uint32_t>* gate_changes = nullptr;
  protocol::Shared<std::uint64_t>* operations = nullptr;
  protocol::ClientSegment* reports = nullptr;  // null: nothing is reported
  const protocol::Shared<std::uint32_t>* reporting = nullptr;
  PartitionId fallback = runtime::kWholeDevice;
  std::uint64_t answer_within_ns = 0;
  std::uint16_t daemon_minor = protocol::kMinor;
};

struct ClientCounters {
  std::uint64_t asked = 0;
  std::uint64_t granted = 0;
  std::uint64_t moves = 0;        // grants of another partition than the lane's one before
  std::uint64_t closed = 0;       // gates that the daemon closed
  std::uint64_t in_fallback = 0;  // answers of grant() without a daemon
  std::uint64_t ring_full = 0;
  std::uint64_t malformed = 0;  // invalid records or indices of the daemon; each loses it
};

class LeaseClient {
 public:
  // `ring`: wakes the daemon; called when it sleeps.
  LeaseClient(const runtime::PoolLayout& layout, std::function<void()> ring);
  ~LeaseClient();
  LeaseClient(const LeaseClient&) = delete;
  LeaseClient& operator=(const LeaseClient&) = delete;

  // Switches to a new connection. Outstanding work of earlier connections is reported to its
  // daemon.
  void connect(const Link& link, std::uint64_t now_ns);
  // The daemon is lost: only the fallback partition and the whole device are admitted. Any thread.
  void lose();
  bool in_fallback() const { return in_fallback_; }

  // The launch path: may the lane submit on the partition now?
  bool admits(PartitionId partition, StreamId stream) const {
    const Lane& mine = lanes_[stream % protocol::kLanes];
    const protocol::LeaseWords* words = page_->words.load(std::memory_order_acquire);
    return words != nullptr && mine.partition == partition &&
           (*words)[stream % protocol::kLanes].load(std::memory_order_acquire) == mine.admitted;
  }
  // One more operation was submitted, to any partition or to the whole device.
  void progressed() {
    if (protocol::Shared<std::uint64_t>* told = page_->operations) [[likely]]
      told->store(++operations_, std::memory_order_relaxed);
  }
  // It was a launch that waits for kernels of other processes.
  void collective() {
    if (protocol::ClientSegment* page = page_->reports)
      page->collectives.store(++collectives_, std::memory_order_relaxed);
  }
  // The daemon wants completions, as of the last service().
  bool reports() const { return reporting_; }
  // So many launches of the lane, with the total weight `work`, were observed complete there.
  void completed(PartitionId partition, StreamId stream, std::uint32_t launches,
                 std::uint64_t work);
  // As runtime::Arbiter.
  void busy(std::uint64_t ns);
  // As runtime::Arbiter. A client that was not busy for a millisecond returns its grants.
  void set_busy(bool busy) {
    busy_ = busy;
    sleeps_ = sleeps_ && (busy || !reporting_);
  }
  // The partition on which the lane may submit, an element of `eligible`. kNoPartition: a grant was
  // requested, retry later. GrantTerms::heard: a Ready was sent.
  GrantTerms grant(StreamId stream, const runtime::ReadyOperation& operation,
                   std::span<const PartitionId> eligible, std::uint64_t now_ns);
  // An operation of the lane is expected, or its announcement is cancelled.
  void expect(const runtime::ExpectedOperation& expected, std::uint64_t now_ns);
  // Launches were timed. Dropped while the ring is more than half full, to leave room for requests.
  void timed(const runtime::TimedLaunches& launches);
  void submitted(PartitionId partition, StreamId stream);
  void ended(PartitionId partition, StreamId stream, std::uint32_t operations);

  // Takes the daemon's grants and closed gates; returns grants that have drained.
  void service(std::uint64_t now_ns);
  // The daemon has read the reports of all earlier work, and all other records.
  bool has_reported_earlier_work() const {
    return !earlier_work_unsent_ && link_.requests.room() == protocol::kRequests;
  }
  // Closed grants have outstanding work: the caller must watch for its end.
  bool draining() const { return drains_ > 0; }
  // Some lane waits for a grant.
  bool waiting() const { return waiting_ > 0; }
  // After service(): nothing is to be done until the daemon rings.
  bool sleeps() const { return sleeps_; }

  const ClientCounters& counters() const { return counters_; }
  // Outstanding operations of the lane on the partition, for tests.
  std::uint32_t outstanding(StreamId stream, PartitionId partition) const;

 private:
  // Whether the daemon knows of the work of a drain.
  enum class Known : std::uint8_t { kYes, kNo, kReportPending };
  // A closed grant that has outstanding work or was not returned yet.
  struct Drain {
    PartitionId partition = runtime::kNoPartition;
    LeaseWord word = 0;
    std::uint32_t outstanding = 0;
    std::uint64_t reported_ns = 0;  // when the daemon was last told of its work
    Known known = Known::kYes;
    bool shared = false;  // under a shared grant
  };
  struct Lane {
    PartitionId partition =
        runtime::kNoPartition;  // of the open grant; kNoPartition: there is none
    LeaseWord word = 0;
    // The word of the terms that grant() returned last. Others admit nothing.
    LeaseWord admitted = 0;
    std::uint32_t launches = 0;
    std::uint32_t left = 0;  // launches not yet submitted
    std::uint64_t ahead_ns = runtime::kNever;
    std::uint32_t outstanding = 0;
    bool counts_outstanding =
        false;                   // what is submitted under it counts (runtime::Arbiter::submitted)
    bool shared = false;         // it promises nothing about other clients
    bool claimed = false;        // grant() has returned it
    bool requested = false;      // the daemon takes the lane to have something to submit
    bool waiting = false;        // an operation of the lane waits for a grant
    std::uint64_t asked_id = 0;  // ReadyOperation::id of the last request
    std::uint32_t asked_width = 0;       // SM count of the last request
    std::uint64_t used_ns = 0;           // when the grant was last in use
    std::uint64_t unclaimed_ns = 0;      // since when there is a grant that no launch used; 0: none
    std::uint64_t asked_ns = 0;          // when the last request was sent
    std::uint64_t told_deadline_ns = 0;  // of the step that the daemon knows as begun; 0: none
    std::uint64_t tried_ns = 0;          // when grant() last returned nothing
    // The last value of tried_ns that service() saw, and when it saw it first.
    std::uint64_t seen_try_ns = 0, seen_ns = 0;
    PartitionId last_partition = runtime::kNoPartition;
    std::vector<Drain> drains;
  };
  // Whether the gate of the lane's grant is open.
  bool is_open(LaneId id) const {
    const protocol::LeaseWords* words = page_->words.load(std::memory_order_acquire);
    return words != nullptr && (*words)[id].load(std::memory_order_acquire) == lanes_[id].word;
  }

  GrantTerms place_in_fallback(Lane& lane, const runtime::ReadyOperation& operation,
                               std::span<const PartitionId> eligible);
  bool ask(LaneId id, Lane& lane, const runtime::ReadyOperation& operation, bool moves_on,
           std::uint64_t now_ns);
  void take_grants(std::uint64_t now_ns);
  bool reopen_grant(Lane& lane, LeaseWord word);
  void close_grant(Lane& lane);
  bool close_unused(Lane& lane, std::uint64_t now_ns);
  bool close_unclaimed(Lane& lane, std::uint64_t now_ns);
  void notice_closed();
  void return_drained(LaneId id, Lane& lane, std::uint64_t now_ns);
  void report_earlier_work(LaneId id, Drain& drain, std::uint64_t now_ns);
  void end_earlier_work_reports();
  bool daemon_is_lost() const;
  void enter_fallback();
  void stop_waiting(Lane& lane, std::uint64_t now_ns);
  void set_waiting(Lane& lane, bool waiting);
  bool send(const protocol::Record& record);
  void flush();
  void protocol_error();

  const runtime::PoolLayout& layout_;
  std::function<void()> ring_;
  // What the launch path reads, in a page that is empty in a forked child: a child is not this
  // client.
  struct Page {
    std::atomic<const protocol::LeaseWords*> words;
    protocol::Shared<std::uint64_t>* operations = nullptr;
    protocol::ClientSegment* reports = nullptr;
  };
  Page* page_;
  std::uint64_t operations_ = 0;  // submitted in this connection
  // Reported in this connection.
  std::uint64_t launches_ = 0, work_ = 0, misplaced_ = 0, busy_ns_ = 0, collectives_ = 0;
  bool reporting_ = false;
  bool busy_ = false;  // set_busy()
  // As of the last service().
  bool seen_busy_ = false;
  std::uint64_t seen_operations_ = 0;
  Link link_;
  std::vector<Lane> lanes_;
  std::size_t lanes_used_ = 0;  // lanes from this index on never requested or got a grant
  std::uint32_t gates_seen_ = 0;
  std::uint32_t drains_ = 0;
  std::uint32_t waiting_ = 0;
  bool in_fallback_ = true;
  bool unsent_ = false;
  // A report of earlier work, or the Idle that ends these reports, was not sent yet: the ring was
  // full.
  bool earlier_work_unsent_ = false;
  bool sleeps_ = true;
  ClientCounters counters_;
};

}  // namespace vitamin::client
