// SPDX-License-Identifier: Apache-2.0
//
// Grants SMs of one device to clients: passes clients' records to the scheduler, and turns the
// scheduler's decisions into lease words and grant records.
//
// Pure: no thread, socket or clock; time is an argument. vitamind runs one for each device, the
// simulator runs the same object over rings in its own memory.
//
// A grant of a lane is open, then closed (by the scheduler, or because the client reports that it
// moves on), then returned by the client. The client must answer a closed gate: either it returns
// the grant, or it reports repeatedly that the grant drains. A grant becomes overdue, and counts as
// returned, when its client
//   * does neither for `answer_within_ns` (it is stopped or starved);
//   * drains for longer than `drain_within_ns`, whatever it reports;
//   * has used up its drain credit. Beside other clients, draining for longer than
//     `answer_within_ns` spends credit; all other time earns it, up to `drain_within_ns`.
// Work that the client still submits under an overdue grant changes placement only.
//
// Earlier work. Before its first Ready a new session reports work that is still outstanding: from
// a former daemon, from the fallback partition, and from older sessions of the same process, which
// took this daemon for lost. Its first report transfers all grants of those older sessions to it in
// one step; it keeps the grants that it then confirms. Any other report is accepted only if there
// is independent evidence: the partition was the fallback partition of an older session, or the
// process held it under a former daemon (accept_earlier_work()). So no client can take or keep
// units by reporting work.
//
// Until a process of a former daemon has reported its work, no other client is granted what that
// process may still use (reserve_for_absent()): an absent client holds it in its place.
//
// Profiles. Clients report how long their launches took on how many SMs, and the predicted time of
// the same launches on the whole device. A grant covers whatever its lane launches next, so a
// policy sees one curve for all launches of a client: their recent times at each SM count, relative
// to each other. Reports of one client do not affect the curve of another.
//
// Steps. Programs announce steps of a lane (advice): scheduler/announced_steps.h.
//
// Progress. Where the policy compares clients' progress and there are several clients, they report
// what they completed and return grants that they do not use (GrantSink::set_reporting()).
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/arbiter/usage.h"
#include "daemon/metrics/prometheus_text.h"
#include "daemon/protocol/record.h"
#include "daemon/protocol/segment.h"
#include "daemon/protocol/version.h"
#include "runtime/profile/profile.h"
#include "runtime/trace/trace.h"
#include "scheduler/announced_steps.h"
#include "scheduler/estimator/estimator.h"
#include "scheduler/policies/registry.h"
#include "scheduler/scheduler.h"

namespace vitamin::daemon {

using protocol::LaneId;  // to the scheduler a stream of the client
using runtime::kNever;
using runtime::PartitionId;
using scheduler::ClientId;

struct ArbiterSettings {
  scheduler::SchedulerOptions scheduler;
  std::uint64_t answer_within_ns = 1'000'000'000;
  std::uint64_t drain_within_ns = 60'000'000'000;
};

// What the server knows of a client from its class (daemon/config/configuration.h) and its job.
struct ClientTraits {
  scheduler::ClientTerms terms = {};
  // Its process id as the kernel reports it; 0: not known. Clients of equal process ids are
  // successive sessions of one process.
  std::uint64_t process = 0;
  // Identifies equal programs to the estimator; 0: equal to no other.
  scheduler::ProgramHash program = 0;
  std::uint32_t minor = protocol::kMinor;  // version of the protocol that it speaks
};

// Receives the arbiter's answers. Answers to a client that has ended are ignored.
class GrantSink {
 public:
  virtual ~GrantSink() = default;
  virtual void set_word(ClientId client, LaneId lane, protocol::LeaseWord word) = 0;
  // False: the client's ring is full. The client repeats its request later.
  virtual bool grant(ClientId client, const protocol::Grant& grant) = 0;
  // set_word() has closed gates of the client since the last call.
  virtual void gates_closed(ClientId client) = 0;
  // Whether the client has a grant of the partition, for one lane or several. Called with true
  // before the first such grant is delivered, and with false when the last one has ended. Not
  // called for shared grants of the whole device, nor when the client is forgotten.
  virtual void holds_partition(ClientId, PartitionId, bool) {}
  // The client has reported all of its earlier work. Called once for each client.
  virtual void reported_earlier_work(ClientId) {}
  // Whether the client is to report its progress (DaemonSegment::reporting) from now on.
  virtual void set_reporting(ClientId, bool) {}
};

struct ArbiterCounters {
  std::uint64_t requests = 0;
  std::uint64_t overdue = 0;  // grants taken back from a client that did not answer
  // Returns of grants that do not exist, and reports of earlier work that were not accepted.
  std::uint64_t stale = 0;
  std::uint64_t undelivered = 0;  // grants for which the client's ring had no room
  // Accepted reports of earlier work on units that another client holds, or beyond the grants that
  // a lane can have.
  std::uint64_t overlaps = 0;
};

class DeviceArbiter {
 public:
  // A fallback partition; `shared`: other clients have the same one.
  struct Fallback {
    PartitionId partition = runtime::kWholeDevice;
    bool shared = false;
  };
  // One grant that a client holds, for status and tests.
  struct GrantStatus {
    ClientId client;
    LaneId lane;
    PartitionId partition;
    bool open;
    bool shared;              // a shared grant: it promises nothing about other clients
    bool adopted;             // covers earlier work
    std::uint64_t opened_ns;  // since when; of earlier work, when it was reported
  };

  // Under fifo, until use().
  DeviceArbiter(const runtime::PoolLayout& layout, const ArbiterSettings& settings,
                std::uint32_t epoch, GrantSink& sink);
  DeviceArbiter(const DeviceArbiter&) = delete;
  DeviceArbiter& operator=(const DeviceArbiter&) = delete;

  // The argument of scheduler::make() for policies of this device.
  scheduler::PolicyContext context(std::uint64_t seed) {
    return {layout_.partitions(), estimator_, &profile_, seed};
  }
  // Replaces the policy.
  void use(scheduler::Policy policy, std::uint64_t now_ns = 0);

  // Records every call and answer from now on, so that another arbiter can replay them. `trace`
  // must outlive this object.
  void record(runtime::trace::Recorder* trace) { trace_ = trace; }

  // Adds a client. `client` is not scheduler::kNoClient and above every id before it: of several
  // sessions of a process the one with the highest id is current.
  Fallback attach(ClientId client, const ClientTraits& traits = {}, std::uint64_t now_ns = 0);
  // Replaces the terms of a client.
  void set_terms(ClientId client, const scheduler::ClientTerms& terms, std::uint64_t now_ns);
  // Under a former daemon the client's process held the partition, or had it as its fallback
  // partition: reports of work there are accepted until `until_ns`, when such work is no longer
  // waited for.
  void accept_earlier_work(ClientId client, PartitionId partition, std::uint64_t until_ns);
  // A process of a former daemon has not connected yet. No other client is granted units of the
  // partition until the process has reported its work or ended, for the time that a client has to
  // answer, and not after `until_ns`. `absent` is a new id that stands for the process; call
  // forget(absent) when the process has ended.
  void reserve_for_absent(ClientId absent, std::uint64_t process, PartitionId partition,
                          std::uint64_t until_ns, std::uint64_t now_ns);
  // Replaces the settings.
  void set(const ArbiterSettings& settings);
  void request(ClientId client, const protocol::Request& request, std::uint64_t now_ns);
  // Cumulative completed work of the client (ClientSegment). Call it for every client that reports,
  // before step(), when wants_progress() is true.
  void set_progress(ClientId client, const scheduler::Progress& progress, std::uint64_t now_ns);
  bool wants_progress(std::uint64_t now_ns) const {
    return reporting_ && scheduler_.may_plan(now_ns);
  }
  // The client's process is ending: it submits nothing more, but its outstanding work still runs.
  void dying(ClientId client, std::uint64_t now_ns);
  // The client and its work have ended.
  void forget(ClientId client, std::uint64_t now_ns);
  // Decides, and passes the answers to the sink.
  void step(std::uint64_t now_ns);
  // When step() is to be called even if no client sends anything.
  std::uint64_t wake_at() const;

  const runtime::PoolLayout& layout() const { return layout_; }
  const scheduler::Scheduler& scheduler() const { return scheduler_; }
  const scheduler::Estimator& estimator() const { return estimator_; }
  // The alternatives of the choice in force: the policy's own, or the estimator's.
  void explain(scheduler::Findings& out) const;
  // Whether the latency bounds of all clients are met.
  std::vector<scheduler::SloStatus> slo_statuses() const;
  const ArbiterCounters& counters() const { return counters_; }
  const runtime::Profile& profile() const { return profile_; }
  const WaitHistogram& waits() const { return waits_; }
  std::vector<GrantStatus> held() const;
  // Includes waits that have not ended. Zero for a client that is not attached. `now_ns` is not
  // before any time that the arbiter was given.
  Usage usage(ClientId client, std::uint64_t now_ns) const;
  std::uint32_t epoch() const { return epoch_; }

 private:
  struct HeldGrant {
    scheduler::GrantId grant = scheduler::kNoGrant;
    PartitionId partition = runtime::kNoPartition;
    bool shared = false;
    bool adopted = false;
    // Every amendment of a grant has a word of its own: the newest one, and the generation of the
    // first one.
    protocol::LeaseWord word = 0;
    std::uint32_t first = 0;
    bool open = false;
    std::uint64_t answered_ns = 0;    // of a closed grant: when it was closed or last answered
    std::uint64_t closed_ns = 0;      // of a closed grant: since when
    bool unconfirmed = false;         // the process has not reported this earlier work (yet)
    std::uint64_t until_ns = kNever;  // earlier work that ends then at the latest
    // Whether `said` is any of the words that the grant has had.
    bool has_word(protocol::LeaseWord said) const;
    // Whether a grant of another client may have to wait for its end. None waits for a shared grant
    // of the whole device.
    bool is_awaited() const { return partition != runtime::kWholeDevice || !shared; }
  };
  struct Lane {
    protocol::LeaseWord word = 0;  // as published
    std::uint32_t generation = 0;
    // Since when it waits for a grant: a Ready, or the end of a grant that it did not give up; 0:
    // it does not wait.
    std::uint64_t waits_since_ns = 0;
    // A Ready was received since its last grant. A wait without one counts when it ends with a
    // grant: a client that has nothing to submit says so (Idle) only when it sees its gate closed.
    bool asked = false;
    scheduler::AnnouncedSteps steps;
    // Clients before 1.7: a request that is postponed until the lane returns a grant.
    scheduler::StreamDemand demand;
    bool postponed = false;
    std::vector<HeldGrant> grants;  // at most one of them open
    bool submits() const {
      return std::any_of(grants.begin(), grants.end(),
                         [](const HeldGrant& held) { return held.open; });
    }
  };
  struct Client {
    Fallback fallback;
    ClientTraits traits;
    bool ignored = false;  // its process ends or has a newer session: nothing more is taken from it
    bool absent = false;   // reserve_for_absent()
    bool sent_holding = false;    // a report of earlier work
    bool holdings_ended = false;  // it has reported all of its earlier work
    bool sent_ready = false;
    bool sends_progress = false;  // set_reporting(): it is to
    std::uint64_t steps = 0;      // announced so far
    // The bound that the Welcome told it. A shorter bound of a later configuration does not apply.
    std::uint64_t answer_within_ns = 0;
    // Drain credit as of `credited_ns`.
    std::uint64_t credit_ns = 0, credited_ns = 0;
    bool drains_long = false;  // as of credited_ns: a grant drains for longer than the bound
    std::map<LaneId, Lane> lanes;
    std::vector<std::uint32_t> awaited_grants;    // by partition: HeldGrant::is_awaited()
    std::map<PartitionId, std::uint64_t> before;  // accept_earlier_work()
    Usage usage;
  };

  Client* find(ClientId id);
  void handle(ClientId id, Client& client, const protocol::Ready& ready, std::uint64_t now_ns);
  void handle(ClientId id, Client& client, const protocol::Idle& idle, std::uint64_t now_ns);
  void handle(ClientId id, Client& client, const protocol::Returned& returned,
              std::uint64_t now_ns);
  void handle(ClientId id, Client& client, const protocol::Draining& draining,
              std::uint64_t now_ns);
  void handle(ClientId id, Client& client, const protocol::Holding& holding, std::uint64_t now_ns);
  void handle(ClientId id, Client& client, const protocol::HintRecord& hint, std::uint64_t now_ns);
  void handle(ClientId id, Client& client, const protocol::Timed& timed, std::uint64_t now_ns);
  void update_reporting(std::uint64_t now_ns);
  std::uint64_t answer_bound_ns(const Client& client) const {
    return std::max(client.answer_within_ns, settings_.answer_within_ns);
  }
  std::uint64_t overdue_from(const Client& client, const HeldGrant& held) const;
  void credit(Client& client, std::uint64_t now_ns);
  bool adopt(ClientId id, Client& client, LaneId lane, HeldGrant held, std::uint64_t now_ns);
  void add(ClientId id, Client& client, Lane& lane, const HeldGrant& held, std::uint64_t now_ns);
  void remove(ClientId id, Client& client, const HeldGrant& held, std::uint64_t now_ns);
  void await(ClientId id, Client& client, PartitionId partition) {
    if (client.awaited_grants[partition]++ == 0) sink_.holds_partition(id, partition, true);
  }
  void await_no_more(ClientId id, Client& client, PartitionId partition) {
    if (--client.awaited_grants[partition] == 0) sink_.holds_partition(id, partition, false);
  }
  void retry_postponed(ClientId id, Lane& lane, std::uint64_t now_ns);
  std::uint64_t accepted_until(ClientId id, const Client& client, PartitionId partition,
                               protocol::LeaseWord word, std::uint64_t now_ns) const;
  bool within_quota(const Client& client, PartitionId partition) const;
  void transfer_older_sessions(ClientId to, Client& newer, std::uint64_t now_ns);
  void drop_unconfirmed(ClientId id, Client& client, std::uint64_t now_ns);
  bool is_reserved_for(const Client& client, PartitionId partition) const;
  void end_earlier_work_reports(ClientId id, Client& client, std::uint64_t now_ns);
  void drop_absent();
  void stop_submitting(ClientId id, Client& client, LaneId lane_id, std::uint64_t now_ns);
  void deliver(const scheduler::Decision& decision, std::uint64_t now_ns);
  void deliver_grant(ClientId id, Client& client, const scheduler::Decision& decision,
                     std::uint64_t now_ns);
  void amend(ClientId id, Client& client, HeldGrant& held, const scheduler::Decision& decision,
             std::uint64_t now_ns);
  bool send(ClientId id, const scheduler::Decision& decision, protocol::LeaseWord word,
            protocol::LeaseWord amends);
  bool close(ClientId id, LaneId lane_id, Lane& lane, HeldGrant& held, std::uint64_t now_ns);
  void publish(ClientId id, LaneId lane_id, Lane& lane, protocol::LeaseWord word);
  void reclaim_overdue(std::uint64_t now_ns);
  // Adds to the trace, if there is one.
  void note(const runtime::trace::TraceEntry& record) {
    if (trace_ != nullptr) [[unlikely]]
      trace_->add(record);
  }
  void tell_gates_closed(ClientId client);

  runtime::PoolLayout layout_;
  ArbiterSettings settings_;
  std::uint32_t epoch_;
  GrantSink& sink_;
  runtime::Profile profile_;  // keyed by curve_of(client)
  scheduler::Estimator estimator_;
  scheduler::Scheduler scheduler_;
  std::map<ClientId, Client> clients_;
  ClientId found_id_ = scheduler::kNoClient;  // the last result of find()
  Client* found_ = nullptr;
  scheduler::UnitWidths widths_;
  std::vector<PartitionId> fallback_partitions_;  // disjoint, narrowest first
  std::vector<std::uint32_t> fallback_users_;     // number of clients of each
  ArbiterCounters counters_;
  WaitHistogram waits_;
  runtime::trace::Recorder* trace_ = nullptr;
  std::uint64_t overdue_at_ = kNever;
  bool reporting_ = false;
  std::size_t absent_ = 0;  // number of absent clients
  // Grants of the present step that were not delivered.
  struct Undelivered {
    ClientId client;
    LaneId lane;
    scheduler::GrantId grant;
    bool postponed;
  };
  std::vector<Undelivered> undelivered_;
};

}  // namespace vitamin::daemon
