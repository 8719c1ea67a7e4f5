// SPDX-License-Identifier: Apache-2.0
//
// The scheduler of one device for many clients: bindable operations come in, a policy is asked,
// its answers are validated against the lease table, grants and closed gates go out.
//
// Pure: no thread, socket, clock or allocation to speak of; time is an argument and never goes
// back. The daemon and the simulator run this object.
//
//     client                         scheduler                                policy
//       | wants(operation) ------------> |                                      |
//       |                                | decide(now): Prepare, Pick, Select --> |
//       | <----------------------- grant |                                      |
//       |  (submits on its entry, no further word, until the gate closes or     |
//       |   the grant's launches are used up)                                   |
//       | <------------------ close gate |   (somebody else is to have the units)
//       | (outstanding work drains)      |
//       | returned(entry) -------------> |   units are free
//
// Grants. One lane holds at most one open grant; a grant of another entry moves the lane: it
// submits there from now on, and returns the old entry when its work there has ended. A grant
// stands until one of: its launches are used up, its gate is closed, the lane has nothing more to
// submit. In each case the lane says returned() once nothing of it is outstanding on the entry, and
// is not granted that entry again before (so that no answer can be mistaken for a later one's).
//
// A lane has no more than `lane_grants` of them. While it has so many, or its work has still to end
// on all that is wide enough for what comes next, it waits for its own work and for nobody else:
// nothing is reserved for it, and nothing is taken back from others. What a policy wants elsewhere
// is closed, and waits too. So what a decision looks at is bounded, whatever a client does.
//
// No starvation, whatever the policy answers: while somebody waits whom the policy could not serve,
// a grant older than `quantum_ns` is recalled; and a lane that has waited for `overdue_ns` is
// served by age, before the policy is asked, on the narrowest entry that can run it, whose gates
// are closed for it. What was granted by age is the lane's for a quantum at least, also when the
// policy stops it (Plan::stop).
//
// Errors: a message about an unknown lane or a grant that does not exist is ignored (clients die
// and answer late); nothing here fails.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "runtime/lease_table.h"
#include "runtime/policy.h"

namespace vitamin::runtime {

struct SchedulerOptions {
  // What holds unless the policy's own terms() say otherwise; kNever: never.
  std::uint64_t quantum_ns = 4'000'000;      // grants are recalled at this age
  std::uint64_t overdue_ns = 1'000'000'000;  // who waited for so long is served by age
  // How long a reservation lasts whose plan does not say it.
  std::uint64_t reservation_ns = 20'000'000;
  // Grants of a lane at a time, two at least. A stream moves only while fewer than ten operations
  // of it are unfinished (DispatchOptions::ahead_of_move).
  std::uint32_t lane_grants = 12;
};

// What a client has to be told.
struct Decision {
  enum class Kind : std::uint8_t {
    kGrant,      // submit on `entry`, `launches` times or until told otherwise
    kCloseGate,  // submit nothing more on `entry`; say returned() when its work has ended
  };
  Kind kind = Kind::kGrant;
  ClientId client = kNobody;
  LaneId lane = 0;
  EntryId entry = kNoEntry;
  std::uint32_t launches = 0;
  std::uint64_t ahead_ns = kNever;  // Choice::ahead_ns
};

struct SchedulerCounters {
  std::uint64_t grants = 0;
  std::uint64_t moves = 0;  // grants to a lane that held another entry
  std::uint64_t gates_closed = 0;
  std::uint64_t recalled = 0;      // grants ended by the quantum
  std::uint64_t overdue = 0;       // grants by age
  std::uint64_t refused = 0;       // answers of the policy that validation refused
  std::uint64_t whole_device = 0;  // grants of the whole device: shared, not leased
};

class Scheduler {
 public:
  // `layout` outlives the scheduler; `profile`, which policies see, too (null: none).
  Scheduler(const PoolLayout& layout, std::unique_ptr<Policy> policy,
            const SchedulerOptions& options = {}, const Profile* profile = nullptr);

  // The lane has bindable operations. Said again, it replaces what was said before (another next
  // kernel, another deadline), grant or not; a grant that is too narrow for it is closed.
  // `operation.client` and `.lane` name the lane.
  void wants(const ReadyOperation& operation, std::uint64_t now_ns);
  // The lane has nothing more to submit: its grant ends when it is returned.
  void idle(ClientId client, LaneId lane, std::uint64_t now_ns);
  // Nothing of the lane is outstanding on the entry, and it submits nothing more there under the
  // grant that it had.
  void returned(ClientId client, LaneId lane, EntryId entry, std::uint64_t now_ns);
  // How far the client has got, cumulative. Worth telling when look_at() has come.
  void progressed(ClientId client, std::uint64_t operations);
  std::uint64_t look_at() const { return policy_->look_at(); }
  // Something is expected (or, with `cancelled`, not any more) of the lane.
  void hint(const Hint& hint, std::uint64_t now_ns);
  // Work that was submitted under an earlier scheduler is outstanding on the entry: a grant of the
  // lane that drains. False, and nothing changed, when others hold units of it by now, or the lane
  // has more than any lane can have of before.
  bool adopt(ClientId client, LaneId lane, EntryId entry, std::uint64_t now_ns);
  // The client is gone: everything it held or waited for is free.
  void forget(ClientId client, std::uint64_t now_ns);

  // What follows from all that. The answer is valid until the next call of anything here.
  std::span<const Decision> decide(std::uint64_t now_ns);
  // decide() has something to do at this time even if nobody says anything; kNever: not.
  std::uint64_t wake_at() const { return wake_at_; }

  const LeaseTable& leases() const { return leases_; }
  const PoolLayout& layout() const { return layout_; }
  const SchedulerCounters& counters() const { return counters_; }
  Policy& policy() { return *policy_; }
  // Other times from now on.
  void set(const SchedulerOptions& options);
  // Another policy from now on: what the old one reserved is cancelled, what it granted recalled.
  void replace_policy(std::unique_ptr<Policy> policy, std::uint64_t now_ns);
  // The profile says other things than before: what was planned may be worth another plan.
  void profile_changed() { demand_changed(); }
  // The policy object says other things from now on than before; the same.
  void policy_changed();
  std::size_t waiting() const;
  // Somebody does, and for others: an answer of theirs is next.
  bool waits_for_answer() const;

 private:
  static constexpr std::uint64_t kLongestReservation = 50;  // times the usual one
  // Of a lane, with what it has of before: its grants then, and one home after the other.
  static constexpr std::size_t kMostOfLane = 24;
  static constexpr std::uint64_t kComesBack = 1'000'000'000;
  static constexpr std::uint64_t kLongAgo = 0 - 2 * kComesBack;  // the clock wraps to it
  struct Grant {
    EntryId entry = kNoEntry;
    bool open = false;
    std::uint64_t since_ns = 0;
    std::uint64_t ahead_ns = kNever;
    bool by_age = false;
    bool recalled = false;  // for the sake of whoever waited
  };
  struct Reservation {
    EntryId entry = kNoEntry;
    std::uint64_t expires_ns = 0;  // kNever: standing
    bool overdue = false;          // made for age, not by the policy
  };
  struct Lane {
    ReadyOperation next;
    bool wants = false;
    // It went idle then without having been served. A client that gets no processor time looks
    // like that; when it comes back soon, it has waited all the while.
    std::uint64_t gave_up_ns = kLongAgo;
    std::vector<Grant> grants;    // at most one of them open
    Reservation reservation;      // for the next grant
    EntryId standing = kNoEntry;  // for all of them
    bool stopped = false;         // by the last plan for it
    std::uint64_t ahead_ns = kNever;
    bool listed = false;       // in active_
    std::uint64_t number = 0;  // in the order of active_
    bool stirring = false;     // in stirring_
    const Grant* open() const;
    Grant* open();
    bool waits() const { return wants && open() == nullptr; }
    bool drains(EntryId entry) const;
    // Wants, holds or has reserved something; all others need not be looked at.
    bool active() const {
      return wants || !grants.empty() || reservation.entry != kNoEntry || standing != kNoEntry;
    }
    // Wants nothing but what it has, which is nobody's lease.
    bool rests_on_whole() const {
      return wants && grants.size() == 1 && grants.front().open &&
             grants.front().entry == kWholeDevice && !grants.front().by_age && !stopped &&
             reservation.entry == kNoEntry && standing == kNoEntry;
    }
  };
  struct Planned {
    Lane* lane;
    Plan plan;
  };

  Lane* find(ClientId client, LaneId lane);
  Lane& find_or_add(ClientId client, LaneId lane);
  void prepare_one(const Hint& hint, Lane& lane, PoolView& view);
  void settle();
  void stir(Lane& lane);
  std::span<Lane* const> stirring();
  PoolView view_for(ClientId client, std::uint64_t now_ns) const;
  hal::ComputeSet barred(ClientId client) const;
  hal::ComputeSet set_aside() const;
  bool full(const Lane& lane) const { return lane.grants.size() >= options_.lane_grants; }
  bool at_rest(const Lane& lane) const;
  bool waits_for_itself(const Lane& lane) const;
  bool waits_for_others(const Lane& lane) const { return lane.waits() && !waits_for_itself(lane); }
  bool can_grant(const Lane& lane, EntryId entry, hal::ComputeSet barred) const;
  std::span<const EntryId> eligible_for(const Lane& lane, hal::ComputeSet barred);
  void collect();

  void drop_what_is_too_narrow();
  void expire(std::uint64_t now_ns);
  void recall_all(std::uint64_t now_ns);
  void recall_for_waiting(std::uint64_t now_ns);
  bool somebody_waits() const;
  void recall(Lane& lane, Grant& grant, std::uint64_t now_ns);
  void stop(Lane& lane, std::uint64_t now_ns);
  void prepare_all(std::uint64_t now_ns);
  void apply(Lane& lane, const Plan& plan, std::uint64_t now_ns);
  void fulfil(std::uint64_t now_ns);
  void serve_overdue(std::uint64_t now_ns);
  void bind(std::uint64_t now_ns);
  void schedule_wake(std::uint64_t now_ns);

  bool grant(Lane& lane, Choice choice, std::uint64_t now_ns);
  void close(Lane& lane, Grant& grant);
  void close_overlapping(hal::ComputeSet compute, ClientId but, std::uint64_t now_ns);
  void reserve(Lane& lane, const Reservation& reservation);
  void cancel(Lane& lane);
  void set_standing(Lane& lane, EntryId entry);
  void unreserve(EntryId entry);
  void adopt_terms();
  void demand_changed() { changed_ = true, ++epoch_; }

  const PoolLayout& layout_;
  std::unique_ptr<Policy> policy_;
  SchedulerOptions options_;
  std::uint64_t quantum_ns_ = kNever;
  std::uint64_t overdue_ns_ = kNever;
  const Profile* profile_;
  LeaseTable leases_;
  std::vector<EntryId> by_width_;                  // narrowest first, the whole device last
  std::unordered_map<std::uint64_t, Lane> lanes_;  // by client and lane
  Lane* found_ = nullptr;                          // by find(), the last time
  std::vector<Lane*> active_;                      // in the order in which they became so
  // Of those, in their order, all that are not at rest, and perhaps some that are: a decision that
  // asks the policy for no plan looks at no other. So whoever has a lot that has still to end, and
  // can have no more, costs others nothing.
  std::vector<Lane*> stirring_;
  bool in_order_ = true;  // stirring_
  std::uint64_t numbers_ = 0;
  std::vector<Hint> hints_;         // not yet answered
  std::vector<Progress> progress_;  // by client
  std::vector<Decision> decisions_;
  // Scratch of decide(), kept for its storage.
  std::vector<ReadyOperation> waiting_;
  std::vector<Holding> holdings_;
  std::vector<Holding> draining_;
  std::vector<ReadyOperation> ready_;
  std::vector<EntryId> eligible_;
  std::vector<Planned> planned_;
  std::vector<Lane*> overdue_;
  std::vector<std::pair<ClientId, EntryId>> recalled_;  // and not yet returned
  mutable hal::ComputeSet set_aside_;                   // as of `set_aside_known_`
  mutable bool set_aside_known_ = false;
  SchedulerCounters counters_;
  std::uint64_t epoch_ = 1;
  std::uint64_t wake_at_ = kNever;
  bool changed_ = false;
  bool uncollected_ = true;  // waiting_, holdings_, draining_ are of an earlier state
  bool recall_all_ = false;
  bool plans_ = true;  // the policy did, when it was last asked
};

}  // namespace vitamin::runtime
