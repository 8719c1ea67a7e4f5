// SPDX-License-Identifier: Apache-2.0
//
// A client's half of the lease protocol: what its lanes hold, what it asks for, what it gives back.
//
// Pure: no thread, socket or clock; rings and words are objects that somebody else mapped. The
// preloaded library runs it over shared memory, the simulator over its own.
//
// A lane (one logical stream) holds at most one open grant: an entry on which it may submit while
// its lease word says so. Grants that were closed stay, as *drains*, until nothing that counts
// under them is outstanding (runtime/arbiter.h says what counts); then they are returned.
//
//     ask()            Ready -->                 the lane has something to submit
//     admits()         one load                  may it be submitted now?
//     submitted(), retired()                     what is outstanding under the grant, where
//                                                its Choice says that it counts
//     service()        <-- grants, closed gates; Returned, Draining, Idle -->
//
// Without a daemon (before the first connection, or after it was lost) every word reads as closed,
// and the lanes are at home: a small entry that was agreed upon at the connection, or the whole
// device for what home cannot hold. Going home takes one store by any thread (lose()), and takes
// effect at the next submission.
//
// Threads: all but lose() want the device lock.
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

using protocol::LeaseWord;
using runtime::Choice;
using runtime::EntryId;
using runtime::LaneId;

// The shared objects of one connection, and what was agreed. They outlive the connection: until
// connect() with another link, or the destructor.
struct Link {
  Link() = default;
  // What was agreed is still to be said.
  Link(protocol::ClientSegment& mine, const protocol::DaemonSegment& theirs);
  protocol::RequestProducer requests;
  protocol::GrantConsumer grants;
  const protocol::LeaseWords* words = nullptr;
  protocol::ParkFlag<protocol::Native>* own_park = nullptr;
  const protocol::ParkFlag<protocol::Native>* daemon_park = nullptr;
  const protocol::Shared<std::uint32_t>* gate_changes = nullptr;
  protocol::Shared<std::uint64_t>* progress = nullptr;
  protocol::ClientSegment* reports = nullptr;  // null: nothing is reported
  const protocol::Shared<std::uint32_t>* reporting = nullptr;
  EntryId home = runtime::kWholeDevice;
  std::uint64_t answer_within_ns = 0;
  std::uint16_t daemon_minor = protocol::kMinor;
};

struct ClientCounters {
  std::uint64_t asked = 0;
  std::uint64_t granted = 0;
  std::uint64_t moves = 0;    // grants of another entry than the lane's one before
  std::uint64_t closed = 0;   // gates that were closed under us
  std::uint64_t at_home = 0;  // launches that went home for want of a daemon
  std::uint64_t ring_full = 0;
  std::uint64_t malformed = 0;  // the daemon sent what cannot be: it is not listened to any more
};

class LeaseClient {
 public:
  // `ring`: wakes the daemon; called when it is parked.
  LeaseClient(const runtime::PoolLayout& layout, std::function<void()> ring);
  ~LeaseClient();
  LeaseClient(const LeaseClient&) = delete;
  LeaseClient& operator=(const LeaseClient&) = delete;

  // A new epoch. Work of the one before stays outstanding, and the daemon is told where.
  void connect(const Link& link, std::uint64_t now_ns);
  // From now on nothing is admitted but at home. Any thread.
  void lose();
  bool at_home() const { return at_home_; }

  // The launch path: may the lane submit on the entry now?
  bool admits(EntryId entry, LaneId lane) const {
    const Lane& mine = lanes_[lane % protocol::kLanes];
    const protocol::LeaseWords* words = page_->words.load(std::memory_order_acquire);
    return words != nullptr && mine.entry == entry &&
           (*words)[lane % protocol::kLanes].load(std::memory_order_acquire) == mine.admitted;
  }
  // One more operation was submitted, on whichever entry, the whole device included.
  void progressed() {
    if (protocol::Shared<std::uint64_t>* told = page_->progress) [[likely]]
      told->store(++operations_, std::memory_order_relaxed);
  }
  // The daemon wants completions, as of the last service().
  bool reports() const { return reporting_; }
  // So many launches of the lane, which weigh `work`, were observed complete on the entry.
  void completed(EntryId entry, LaneId lane, std::uint32_t launches, std::uint64_t work);
  // Operations were outstanding for so long since the call before.
  void busy(std::uint64_t ns);
  // While it reports: whether operations are outstanding, on whichever entry. A client of which
  // none were for a millisecond gives its grants back.
  void outstanding(bool any) {
    outstanding_ = any;
    parked_ = parked_ && (any || !reporting_);
  }
  // What the lane may submit on, at once or not at all (kNoEntry: asked for, retry). An element of
  // `eligible`.
  Choice grant(LaneId lane, const runtime::ReadyOperation& operation,
               std::span<const EntryId> eligible, std::uint64_t now_ns);
  // Something is expected of the lane, or not any more.
  void hint(const runtime::Hint& hint, std::uint64_t now_ns);
  // Launches were timed. Lost while the ring has little room: requests come first.
  void timed(const runtime::TimedLaunches& launches);
  void submitted(EntryId entry, LaneId lane);
  void retired(EntryId entry, LaneId lane, std::uint32_t operations);

  // Takes what has come, returns what has drained.
  void service(std::uint64_t now_ns);
  // The daemon has taken all that it was told of.
  bool heard() const { return !telling_ && link_.requests.room() == protocol::kRequests; }
  // Somebody must watch for the end of outstanding work, so that grants can be returned.
  bool draining() const { return drains_ > 0; }
  // Some lane waits for a grant.
  bool waiting() const { return waiting_ > 0; }
  // After service(): there is nothing to do until the daemon rings.
  bool parked() const { return parked_; }

  const ClientCounters& counters() const { return counters_; }
  // Outstanding operations of the lane on the entry, for tests.
  std::uint32_t outstanding(LaneId lane, EntryId entry) const;

 private:
  // Does the daemon know that there is such work?
  enum class Known : std::uint8_t { kYes, kNot, kToBeTold };
  // A grant that was closed, with work outstanding or not yet returned.
  struct Drain {
    EntryId entry = runtime::kNoEntry;
    LeaseWord word = 0;
    std::uint32_t outstanding = 0;
    std::uint64_t told_ns = 0;
    Known known = Known::kYes;
  };
  struct Lane {
    EntryId entry = runtime::kNoEntry;  // of the open grant; kNoEntry: there is none
    LeaseWord word = 0;
    // The word as of the last Choice: terms that the pipeline was not told of admit nothing.
    LeaseWord admitted = 0;
    std::uint32_t launches = 0;
    std::uint32_t left = 0;  // launches not yet submitted
    std::uint64_t ahead_ns = runtime::kNever;
    std::uint32_t outstanding = 0;
    bool leased = false;   // what is submitted under it counts (runtime::Arbiter::submitted)
    bool told = false;     // the pipeline was told of it
    bool wanting = false;  // the daemon believes that the lane has something to submit
    bool waiting = false;  // an operation of it waits for a grant
    std::uint32_t asked_width = 0;
    std::uint64_t unused_ns = 0;     // when its grant was seen to be of use last
    std::uint64_t unclaimed_ns = 0;  // since when a grant lies here that nobody used; 0: none
    std::uint64_t asked_ns = 0;      // when the daemon was asked last
    std::uint64_t waited_ns = 0;     // when an operation was seen to wait last
    std::uint64_t seen_try_ns = 0, seen_ns = 0;  // waited_ns, as service() saw it, and since when
    EntryId last_entry = runtime::kNoEntry;
    std::vector<Drain> drains;
  };
  // The gate of the lane's grant.
  bool is_open(LaneId id) const {
    const protocol::LeaseWords* words = page_->words.load(std::memory_order_acquire);
    return words != nullptr && (*words)[id].load(std::memory_order_acquire) == lanes_[id].word;
  }

  Choice go_home(Lane& lane, const runtime::ReadyOperation& operation,
                 std::span<const EntryId> eligible);
  void ask(LaneId id, Lane& lane, const runtime::ReadyOperation& operation, bool moves_on,
           std::uint64_t now_ns);
  void take_grants(std::uint64_t now_ns);
  bool take_up(Lane& lane, LeaseWord word);
  void put_down(Lane& lane);
  bool give_up_unused(Lane& lane, std::uint64_t now_ns);
  bool give_up_unclaimed(Lane& lane, std::uint64_t now_ns);
  void notice_closed();
  void give_back(LaneId id, Lane& lane, std::uint64_t now_ns);
  void tell_of_old_work(LaneId id, Drain& drain, std::uint64_t now_ns);
  bool away() const;
  void leave_for_home();
  void stop_waiting(Lane& lane, std::uint64_t now_ns);
  void set_waiting(Lane& lane, bool waiting);
  bool send(const protocol::Record& record);
  void flush();
  void distrust();

  const runtime::PoolLayout& layout_;
  std::function<void()> ring_;
  // What the launch path goes through, in a page that a forked child finds empty: a child is not
  // this client.
  struct Page {
    std::atomic<const protocol::LeaseWords*> words;
    protocol::Shared<std::uint64_t>* progress = nullptr;
    protocol::ClientSegment* reports = nullptr;
  };
  Page* page_;
  std::uint64_t operations_ = 0;  // submitted since the connection
  // Reported since the connection.
  std::uint64_t launches_ = 0, work_ = 0, misplaced_ = 0, busy_ns_ = 0;
  bool reporting_ = false;
  bool outstanding_ = false;  // operations are, as far as the runtime has seen
  // At the last service().
  bool seen_outstanding_ = false;
  std::uint64_t seen_operations_ = 0;
  Link link_;
  std::vector<Lane> lanes_;
  std::size_t lanes_used_ = 0;  // none at or beyond this index ever asked or was granted anything
  std::uint32_t gates_seen_ = 0;
  std::uint32_t drains_ = 0;
  std::uint32_t waiting_ = 0;
  bool at_home_ = true;
  bool unsent_ = false;
  bool telling_ = false;  // the daemon is not told yet of all that ran when it came
  bool parked_ = true;
  ClientCounters counters_;
};

}  // namespace vitamin::client
