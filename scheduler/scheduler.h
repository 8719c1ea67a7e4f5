// SPDX-License-Identifier: Apache-2.0
//
// The scheduler of one device: clients say what they want, a policy allocates for all of them at
// once, and the scheduler issues the difference to what is in force. Pure: no thread, socket or
// clock; time is an argument. The daemon, the simulator and a process alone on a device run it.
//
//     client                      scheduler                              policy
//       | wants(stream) -----------> |                                     |
//       |                            | no row covers the stream:           |
//       |                            |   allocate(snapshot) -------------> |
//       |                            | <---------------------------- rows  |
//       |                            |   clip, difference to the rows before
//       | <------------------ grant  |                                     |
//       |  (submits on the partition until revoked, or launches used up)   |
//       | <----------------- revoke  |   (the row changed)                 |
//       |  (outstanding work drains) |                                     |
//       | returned(grant) ---------> |   pending grants of these units open
//
// Rows are per client: a stream of a client that has a row is granted without a call of the policy.
// The policy is asked again, twice per decide() at most, when the set of active clients changes, a
// stream needs more than its row has, limits change, the launches of a grant are used up or a row's
// time ends, the policy's wake_ns comes, a stream is starving, and, where the policy says so
// (PolicyDescription), when steps, returned grants or waiting streams change, or a client with a
// bound rests (has nothing to submit) or resumes. Launches that are used up: where another plan was
// made while the grant was open, the next grant opens under that one. A rest is planned for when
// the plan in force is replan_least_ns old, and not at all where it has ended by then. Not when
// another stream of a client comes or goes, work drains or counters grow.
//
// A client is active while a stream of it waits or runs, and for `idle_after_ns` after that.
//
// Grants. A stream has at most one open grant. A grant to a stream that has one moves the stream:
// it submits under the new one from now on, and returns the old one when its work has ended. A
// grant ends when it is returned. A stream whose units are busy has a pending grant, which opens
// when they are free; until then it may get what is free inside its partition (kMeanwhile). A
// stream with `grants_per_stream` grants that it has not returned waits for its own work.
//
// Starvation bound, whatever the policy returns: a stream that has waited for `starving_after_ns`
// is starving. It is given a row of its own for `quantum_ns` from when its grant opens, oldest
// first; so it is granted after that time, the revoke latency of those in its way, and the quanta
// of those that have waited for longer. Not under policies that declare that they starve.
//
// A policy that throws or returns invalid rows is replaced by fifo: fault() says why.
//
// Cost: a message and its grant are O(units of the partition) where a row covers the stream; no
// allocation after warm-up; idle streams cost nothing.
// Errors: a message about an unknown stream, grant or step is ignored (clients die and answer
// late); nothing here fails. Time that goes back is taken for the time before.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler/constraints.h"
#include "scheduler/ledger.h"
#include "scheduler/partitions_by_unit.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

struct SchedulerOptions {
  std::uint64_t starving_after_ns = 1'000'000'000;  // kNever: streams may starve
  std::uint64_t quantum_ns = 4'000'000;             // of a grant to a starving stream
  std::uint64_t idle_after_ns = 5'000'000;          // an idle client counts as active for so long
  // A stream that gave up waiting and waits again within this time has waited all the while: a
  // client that gets no processor time looks like that.
  std::uint64_t comes_back_ns = 1'000'000'000;
  // Between a plan and the next that a policy asked for, or that a client's rest asks for.
  std::uint64_t replan_least_ns = 50'000;
  std::uint32_t grants_per_stream = 12;  // [2, Ledger::kGrantsMost]
  std::uint32_t steps_per_client = 64;   // unfinished; more are refused and counted
};

struct ClientTerms {
  float weight = 1;
  Limits limits;
  Slo slo;
  friend bool operator==(const ClientTerms&, const ClientTerms&) = default;
};

// What a client is to be told.
struct Decision {
  enum class Kind : std::uint8_t {
    kGrant,   // submit under this grant from now on
    kAmend,   // the open grant has other `launches` and `run_ahead_ns`
    kRevoke,  // submit nothing more under this grant; say returned() when its work has ended
  };
  Kind kind = Kind::kGrant;
  ClientId client = kNoClient;
  StreamId stream = 0;
  GrantId grant = kNoGrant;
  PartitionId partition = kNoPartition;
  Mode mode = Mode::kShared;
  Reason reason = Reason::kNone;
  std::uint32_t launches = kNoLaunchBound;
  std::uint64_t run_ahead_ns = kNever;
};

struct SchedulerCounters {
  std::uint64_t plans = 0;       // calls of allocate()
  std::uint64_t placements = 0;  // calls of place()
  std::uint64_t grants = 0;      // opened, moves included
  std::uint64_t amended = 0;     // decisions of that kind
  std::uint64_t revoked = 0;     // decisions of that kind
  std::uint64_t pending = 0;     // grants that waited for units
  std::uint64_t starving = 0;    // times that a stream became starving
  std::uint64_t exceptions = 0;  // grants for launches that only the whole device could run
  std::uint64_t faults = 0;      // policies that were replaced by fifo
  std::uint64_t refused_steps = 0;
};

// What one client has, and why.
struct Explanation {
  ClientId client = kNoClient;
  bool active = false;
  std::uint64_t busy_ns = 0;                          // it had something to do until then; 0: never
  Planned planned;                                    // its row; reason kNone: it has none
  std::uint64_t since_ns = 0;                         // the row is in force since then
  std::uint32_t open = 0, pending = 0, draining = 0;  // grants
  std::uint32_t waiting = 0;                          // streams without a grant
  std::uint64_t longest_wait_ns = 0;
  std::vector<Planned> streams;  // rows of single streams, which override the client's
};

class Scheduler {
 public:
  // `pool` ([0] the whole device, then narrowest first) and `estimates` outlive the scheduler.
  Scheduler(std::span<const Partition> pool, Policy policy, const SchedulerOptions& options = {},
            const Estimates* estimates = nullptr);

  // --- messages. They take effect in the next decide(). ---

  // A client, or other terms for one. A stream of a client that was not attached has ClientTerms().
  void attach(ClientId client, const ClientTerms& terms, std::uint64_t now_ns);
  // The stream has something to submit. Said again, it replaces what was said before; a grant that
  // is too narrow for `demand.min_sms` is revoked. Only id, min_sms, profile_key and predicted_ns
  // are read.
  void wants(ClientId client, const StreamDemand& demand, std::uint64_t now_ns);
  // It has nothing more to submit: its open grant is revoked, without a kRevoke decision, and ends
  // when it is returned.
  void idle(ClientId client, StreamId stream, std::uint64_t now_ns);
  // Nothing of the stream is outstanding under the grant, and nothing more is submitted under it.
  void returned(ClientId client, StreamId stream, GrantId grant, std::uint64_t now_ns);
  // A step is expected, or begins: with the id of an unfinished one it replaces that. `step.client`
  // names the client.
  void step_expected(const Step& step, std::uint64_t now_ns);
  void step_begin(const Step& step, std::uint64_t now_ns);
  void step_end(ClientId client, std::uint64_t step, std::uint64_t now_ns);
  void step_cancel(ClientId client, std::uint64_t step, std::uint64_t now_ns);
  // Cumulative; words that are lower than before are ignored.
  void progress(ClientId client, const Progress& progress);
  // Earlier work (docs/glossary.md) of the stream runs there; returned() ends it. kNoGrant: the
  // partition does not exist, or the stream has as much as it may have.
  GrantId adopt(ClientId client, StreamId stream, PartitionId partition, Mode mode,
                std::uint64_t now_ns);
  // The client is gone, and everything it had is free.
  void forget(ClientId client, std::uint64_t now_ns);

  // --- decisions ---

  // What follows from all that. Valid until the next call of anything here.
  std::span<const Decision> decide(std::uint64_t now_ns);
  // Whether the policy may be asked in the next decide(), as far as is known before it. Plans that
  // decide() itself finds necessary use the progress that was told last.
  bool may_plan(std::uint64_t now_ns) const { return replan_ || now_ns >= wake_at_; }
  // Some stream waits for units that drain, or for what place() did not find: an answer is next.
  bool waits_for_answer() const { return !blocked_.empty() || !unplaced_.empty(); }
  // decide() has something to do at this time even without a message; kNever: it has not.
  std::uint64_t wake_at() const { return wake_at_; }

  // Another policy from now on. Grants that its rows agree with stay.
  void replace_policy(Policy policy, std::uint64_t now_ns);
  void set(const SchedulerOptions& options, std::uint64_t now_ns);
  // The policy is asked in the next decide(): for tests and benchmarks.
  void replan() { replan_ = true; }

  const PolicyDescription& policy() const { return policy_.description; }
  // For what only the policy can say; null: a PlacementPolicy decides.
  const AllocationPolicy* allocation_policy() const { return policy_.allocation.get(); }
  // Why the policy was replaced; empty: it was not.
  const std::string& fault() const { return fault_; }
  const Ledger& ledger() const { return ledger_; }
  const SchedulerCounters& counters() const { return counters_; }
  const Corrections& corrections() const { return constraints_.corrections(); }
  std::span<const Planned> plan() const { return plan_; }  // in force; for tests and explain()
  std::size_t waiting() const { return waiting_; }         // streams
  // Of every client that is attached, by id.
  void explain(std::vector<Explanation>& out, std::uint64_t now_ns) const;

 private:
  using StreamIndex = Ledger::StreamIndex;
  using ClientIndex = std::uint32_t;
  static constexpr std::uint32_t kNone = 0xffffffff;

  struct StreamState {
    ClientIndex client = kNone;
    StreamId id = 0;
    std::uint32_t demand = kNone;   // in the client's demands: it waits or runs
    std::uint32_t row = kNone;      // in plan_, its own
    std::uint32_t blocked = kNone;  // in blocked_: its pending grant waits for units
    bool dirty = false;             // in dirty_
    bool starving = false;          // in starving_
    bool timer = false;             // in timers_
    bool drain_timer = false;       // in timers_, of beside_own_drains()
    bool asked = false;             // the policy was, since it began to wait
    std::uint32_t generation = 0;   // of the index
    PartitionId last = kNoPartition;
    // The plan for which its row's launches were granted; for which its row was too narrow.
    std::uint64_t used_revision = 0, narrow_revision = 0;
    std::uint32_t narrow_sms = 0;
    std::uint64_t gave_up_ns = 0, gave_up_since_ns = 0;  // 0: it did not
    std::uint64_t unplaced_ns = kNever;  // it is in unplaced_ with that time; kNever: it is not
  };
  // For so long behind its newest collective a client is distributed.
  static constexpr std::uint64_t kDistributedNs = 60'000'000'000;

  struct ClientState {
    Client value;                        // `streams` and `steps` are set for a snapshot
    std::vector<StreamDemand> demands;   // of streams that wait or run
    std::vector<StreamIndex> demanding;  // of the same index
    std::vector<Step> steps;             // by due time, those without one last
    std::vector<StreamIndex> streams;    // all
    Ledger::HolderIndex holder = kNone;
    std::uint32_t row = kNone, next_row = kNone;  // in plan_, next_plan_
    std::uint64_t row_since_ns = 0;
    std::uint64_t busy_ns = 0;        // it had something to do until then
    std::uint64_t collective_ns = 0;  // its newest collective, where it launched any
    std::uint32_t generation = 0;
    bool used = false, timer = false, changed = false;
    bool held = false;       // a row of the plan in force has `hold`: take_snapshot()
    bool resting = false;    // the plan in force does not know of it
    hal::ComputeSet barred;  // placement: reserved for others, or for starving streams
  };
  struct Timer {
    enum class Kind : std::uint8_t { kStarving, kDrain, kIdle };
    std::uint64_t at_ns;
    Kind kind;
    std::uint32_t index, generation;
    friend bool operator>(const Timer& a, const Timer& b) { return a.at_ns > b.at_ns; }
  };
  // A stream without a row for which place() found nothing.
  struct Unplaced {
    std::uint64_t since_ns;  // it waits since then
    StreamIndex stream;
    Ledger::HolderIndex holder;
    std::uint32_t min_sms;
    friend bool operator<(const Unplaced& a, const Unplaced& b) {
      return a.since_ns != b.since_ns ? a.since_ns < b.since_ns : a.stream < b.stream;
    }
  };
  struct StarvingStream {
    StreamIndex stream;
    std::uint64_t since_ns;  // it waited since then
    std::uint64_t until_ns;  // kNever: not yet granted
  };

  // scheduler.cpp
  std::uint64_t advance(std::uint64_t now_ns) { return now_ = std::max(now_, now_ns); }
  ClientState* find_client(ClientId id);
  ClientIndex find_or_add_client(ClientId id);
  StreamIndex find(ClientId client, StreamId stream);
  StreamIndex find_or_add(ClientId client, StreamId stream);
  void mark(StreamIndex stream);
  void demand_ends(StreamIndex stream);
  void sets_state(StreamDemand& demand, StreamDemand::State state);
  void step_changed(ClientState& client);
  Step* put_step(const Step& step);
  void set_phase(ClientState& client);
  void set_quotas(const ClientState& client, StreamIndex stream);
  void add_changed(ClientState& client);
  void note_change(ClientState& client);
  void note_rest(ClientState& client);
  void note_resume(ClientState& client);
  void assign_holders();

  // scheduler_decide.cpp
  void pop_timers();
  void add_timer(Timer timer);
  void end_quanta();
  bool begin_starving_if_due(StreamIndex stream);
  void end_starving(StreamIndex stream);
  void serve_freed();
  void serve_unplaced();
  void serve_dirty();
  void serve(StreamIndex stream);
  void serve_row(StreamIndex stream, std::uint32_t row);
  void arm_starvation_timer(StreamIndex stream);
  void block(StreamIndex stream, const Ledger::Terms& terms);
  void unblock(StreamIndex stream);
  void open_inside_meanwhile(StreamIndex stream, const Ledger::Terms& wanted);
  void beside_own_drains(StreamIndex stream, const Ledger::Terms& wanted);
  void end_beside_own_drains(StreamIndex stream);
  Mode mode_beside_own_drains(StreamIndex stream, hal::ComputeSet units) const;
  void publish_opened(StreamIndex stream, GrantId grant);
  void revoke(StreamIndex stream, Reason reason);
  void decide_on(Decision::Kind kind, const Grant& grant, Reason reason);
  void place(StreamIndex stream);
  bool eligible_for(StreamIndex stream);
  void add_unplaced(StreamIndex stream);
  void unplace(StreamIndex stream);
  void schedule_wake();

  // scheduler_plan.cpp
  void make_plan();
  void take_snapshot(Snapshot& snapshot);
  void ask_policy(const Snapshot& snapshot);
  void fail(std::string_view what);
  void bar_units(const Snapshot& snapshot);
  void apply_difference();
  void reconcile(StreamIndex stream);
  void reconcile_client(ClientState& client);
  std::uint32_t row_of(const StreamState& stream) const {
    return stream.row != kNone ? stream.row : clients_[stream.client].row;
  }
  Ledger::Terms terms_of(const Planned& planned) const;

  std::span<const Partition> pool_;
  PartitionsByUnit by_unit_;
  Policy policy_;
  SchedulerOptions options_;
  const Estimates* estimates_;
  Constraints constraints_;
  Ledger ledger_;
  std::string fault_;
  std::uint64_t now_ = 0;
  std::uint64_t starving_after_ns_ = kNever;

  std::vector<ClientState> clients_;
  std::vector<ClientIndex> free_clients_;
  std::vector<ClientIndex> order_;  // by id
  std::unordered_map<ClientId, ClientIndex> client_index_;
  std::vector<StreamState> streams_;                             // by the ledger's index
  std::unordered_map<std::uint64_t, StreamIndex> stream_index_;  // by client and stream
  std::uint64_t found_key_ = ~std::uint64_t{0};                  // of find(), the last time
  StreamIndex found_ = kNone;

  std::vector<StreamIndex> dirty_;        // something is to be decided for them
  std::vector<StreamIndex> blocked_;      // their pending grants wait for units
  std::vector<Unplaced> unplaced_;        // sorted; asked again when something is returned
  std::vector<StarvingStream> starving_;  // longest wait first
  std::vector<Timer> timers_;             // a heap, earliest first
  std::size_t waiting_ = 0;

  std::uint64_t revision_ = 0;
  std::vector<Planned> plan_, next_plan_;
  Allocation current_, next_;  // rows of plan_; the policy's answer
  std::vector<Client> snapshot_clients_;
  std::vector<ClientId> changed_;
  std::vector<Starving> snapshot_starving_;
  std::vector<PartitionId> eligible_;
  std::vector<StreamIndex> scratch_;
  std::uint64_t planned_ns_ = 0;        // the plan in force was made then
  std::uint64_t plan_wake_ = kNever;    // a row or the policy ends then
  std::uint32_t resting_ = 0;           // clients
  std::uint64_t quantum_due_ = kNever;  // a quantum ends then
  std::uint64_t wake_at_ = kNever;
  bool replan_ = false;
  bool returned_ = false;  // something was, or a limit changed, since the last decision
  std::vector<Decision> decisions_;
  SchedulerCounters counters_;
};

}  // namespace vitamin::scheduler
