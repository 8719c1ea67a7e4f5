// SPDX-License-Identifier: Apache-2.0
//
// The daemon's brain for one device: what clients say, as records, goes to the scheduler; what the
// scheduler decides becomes lease words and grant records.
//
// Pure: no thread, socket or clock; time is an argument. vitamind runs one for each device, the
// simulator runs the same object over rings in its own memory.
//
// A grant of a lane is open, then closed (by the scheduler, or because the client says that it
// moves on), then returned by the client. The client must answer a closed gate: by returning the
// grant, or by saying every now and then that it drains. One that does neither within
// `answer_within_ns` is overdue (stopped, starved): its grant counts as returned, and whatever it
// still submits there is a stale submission, which changes placement only. So is one that drains
// for longer than `drain_within_ns`, whatever it says; and one that drains for longer than
// `answer_within_ns` again and again: beside others a client has as long for that as it was there
// without draining so long, and no more than `drain_within_ns` saved up.
//
// A new session tells, before it asks for anything, where work runs: of the daemon before, of home,
// and of older sessions of the same process, which gave this daemon up as silent. With the first
// word of that it has all that they held, without a moment in between, and keeps what it names. Of
// anything else it is believed only what is known otherwise: the home of an older session, and what
// its process had under a former daemon (had_before()). So nobody takes units, or keeps them, by
// telling of work.
//
// Until a process of a former daemon has told, what it may have is granted to no other
// (expect_back()): an absent client holds it in its place.
//
// Profiles. Clients say how long their launches took on how many processors, and how long the same
// ones are taken to last on the whole device. A grant stands for whatever its lane launches next,
// so what a policy is told of a launch is the curve of all its client's launches together: how
// many times as long they take at each width, lately. Nobody's word counts for others.
//
// Steps. What a program says of a lane (advice): scheduler/announced_steps.h.
//
// Progress. Where the policy compares what clients get on, and there are several, they report what
// they completed, and give back what they do not use (Outlet::reports()).
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/arbiter/usage.h"
#include "daemon/metrics/exposition.h"
#include "daemon/protocol/record.h"
#include "daemon/protocol/segment.h"
#include "daemon/protocol/version.h"
#include "runtime/profile/profile.h"
#include "runtime/trace/trace.h"
#include "scheduler/announced_steps.h"
#include "scheduler/estimator.h"
#include "scheduler/policies/registry.h"
#include "scheduler/scheduler.h"

namespace vitamin::daemon {

using runtime::EntryId;
using scheduler::ClientId;
using LaneId = scheduler::StreamId;
inline constexpr std::uint64_t kNever = scheduler::kNever;

struct ArbiterSettings {
  scheduler::SchedulerOptions scheduler;
  std::uint64_t answer_within_ns = 1'000'000'000;
  std::uint64_t drain_within_ns = 60'000'000'000;
};

// What is known of a client from its workload class (daemon/config/configuration.h) and its job.
struct Traits {
  scheduler::ClientTerms terms = {};
  // Its process, by the kernel's word; 0: not known. Its sessions follow each other.
  std::uint64_t process = 0;
  // What it runs, for the estimator; 0: a program of its own.
  scheduler::Program program = 0;
  std::uint32_t minor = protocol::kMinor;  // of the protocol that it speaks
};

// Where answers go. A client that the outlet does not know any more is ignored.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void set_word(ClientId client, LaneId lane, protocol::LeaseWord word) = 0;
  // False: the client's ring is full. It will ask again.
  virtual bool grant(ClientId client, const protocol::Grant& grant) = 0;
  // Words of the client were closed since the last call.
  virtual void gates_closed(ClientId client) = 0;
  // The client holds the entry, on one lane or several, from now on, which is told before its grant
  // is; or it does not hold it any more. Not told when it is forgotten, nor of the whole device
  // where that is shared.
  virtual void holds(ClientId, EntryId, bool) {}
  // The client has told of all work that it has of before. Told once.
  virtual void told_all(ClientId) {}
  // The client is to report its progress (DaemonSegment::reporting), or not any more.
  virtual void reports(ClientId, bool) {}
};

struct ArbiterCounters {
  std::uint64_t requests = 0;
  std::uint64_t overdue = 0;  // grants taken back from a client that did not answer
  // Returns of grants that were no more, or never were; work told of that nothing else is known of.
  std::uint64_t stale = 0;
  std::uint64_t undelivered = 0;  // grants that found the client's ring full
  // Work of an earlier epoch on units that others hold by now, or more of it than a lane can have.
  std::uint64_t overlaps = 0;
};

class DeviceArbiter {
 public:
  struct Home {
    EntryId entry = runtime::kWholeDevice;
    bool shared = false;
  };
  // What one client holds, for status and tests.
  struct Held {
    ClientId client;
    LaneId lane;
    EntryId entry;
    bool open;
    bool shared;   // with others: it promises nothing
    bool adopted;  // work of before this daemon
  };

  // Under fifo, until use().
  DeviceArbiter(const runtime::PoolLayout& layout, const ArbiterSettings& settings,
                std::uint32_t epoch, Outlet& outlet);
  DeviceArbiter(const DeviceArbiter&) = delete;
  DeviceArbiter& operator=(const DeviceArbiter&) = delete;

  // What policies of this device are made for (scheduler::make()).
  scheduler::PolicyContext context(std::uint64_t seed) {
    return {layout_.entries(), estimator_, &profile_, seed};
  }
  // Another policy from now on.
  void use(scheduler::Policy policy, std::uint64_t now_ns = 0);

  // Everything that it is told and answers is recorded from now on, which is enough to tell and
  // ask another arbiter the same. `trace` outlives it.
  void record(runtime::trace::Recorder* trace) { trace_ = trace; }

  // `client` is new, not scheduler::kNoClient, and above every one before it: of the sessions of a
  // process the last is the one that counts.
  Home attach(ClientId client, const Traits& traits = {}, std::uint64_t now_ns = 0);
  // Other limits for a client from now on.
  void limit(ClientId client, const scheduler::Limits& limits, std::uint64_t now_ns);
  // Under a former daemon the client's process held the entry, or had it as home: what it tells of
  // work there counts until then, and no such work is waited for any longer.
  void had_before(ClientId client, EntryId entry, std::uint64_t until_ns);
  // That process has not come back yet. No other is granted units of the entry before it has told
  // where its work runs, or after the time that a client has to answer; not after `until_ns`.
  // `absent` is new, stands for the process, and is forgotten like a client when that ends.
  void expect_back(ClientId absent, std::uint64_t process, EntryId entry, std::uint64_t until_ns,
                   std::uint64_t now_ns);
  // Other settings from now on.
  void set(const ArbiterSettings& settings);
  void request(ClientId client, const protocol::Request& request, std::uint64_t now_ns);
  // How far the client has got, cumulative (ClientSegment): to be told of everybody who reports,
  // before step(), when wants_progress() says so.
  void progressed(ClientId client, const scheduler::Progress& progress, std::uint64_t now_ns);
  bool wants_progress(std::uint64_t now_ns) const {
    return reporting_ && scheduler_.may_plan(now_ns);
  }
  // Its process is ending: it submits nothing more, and what it submitted still runs.
  void dying(ClientId client, std::uint64_t now_ns);
  // It is gone, and so is its work.
  void forget(ClientId client, std::uint64_t now_ns);
  // Decides, and writes the answers out.
  void step(std::uint64_t now_ns);
  // step() has something to do at this time even if nobody says anything.
  std::uint64_t wake_at() const;

  const runtime::PoolLayout& layout() const { return layout_; }
  const scheduler::Scheduler& scheduler() const { return scheduler_; }
  const scheduler::Estimator& estimator() const { return estimator_; }
  // Among what the policy chooses now: its own alternatives, or the estimator's.
  void explain(scheduler::Findings& out) const;
  // What becomes of the latency bounds of all clients.
  std::vector<scheduler::Promise> promises() const;
  const ArbiterCounters& counters() const { return counters_; }
  const runtime::Profile& profile() const { return profile_; }
  const WaitHistogram& waits() const { return waits_; }
  std::vector<Held> held() const;
  // Waits that last are in it. Of a client that is not attached: nothing. `now_ns` is not before a
  // time that the arbiter was told.
  Usage usage(ClientId client, std::uint64_t now_ns) const;
  std::uint32_t epoch() const { return epoch_; }

 private:
  struct Hold {
    scheduler::GrantId grant = scheduler::kNoGrant;
    EntryId entry = runtime::kNoEntry;
    bool shared = false;
    bool adopted = false;
    // What its lane's word has said while it was open: the last one; and the generation of the
    // first, since other terms of a grant have another word.
    protocol::LeaseWord word = 0;
    std::uint32_t first = 0;
    bool open = false;
    std::uint64_t heard_ns = 0;   // closed: when it was closed, or last answered
    std::uint64_t closed_ns = 0;  // closed: since when
    bool unnamed = false;         // of an older session; nobody has said yet that work runs there
    std::uint64_t until_ns = kNever;  // of a former daemon's time: it ends then at last
    bool is_called(protocol::LeaseWord said) const;
    // Its work is waited for. A share of the whole device promises nothing.
    bool is_lease() const { return entry != runtime::kWholeDevice || !shared; }
  };
  struct Lane {
    protocol::LeaseWord word = 0;  // as published
    std::uint32_t generation = 0;
    std::uint64_t asked_ns = 0;  // it waits since then; 0: it does not
    scheduler::AnnouncedSteps steps;
    // What it asked for, and cannot have before it has returned something (before 1.7).
    scheduler::StreamDemand demand;
    bool postponed = false;
    std::vector<Hold> holds;  // at most one of them open
    bool submits() const {
      return std::any_of(holds.begin(), holds.end(), [](const Hold& hold) { return hold.open; });
    }
  };
  struct Client {
    Home home;
    Traits traits;
    bool over = false;      // it says nothing more: its process ends, or has another session
    bool absent = false;    // expect_back()
    bool told = false;      // of something that it held before
    bool told_all = false;  // and of all of it
    bool asked = false;     // it was ready once
    bool reports = false;
    std::uint64_t steps = 0;  // that were announced
    // What it was told to answer within. Another bound, later, is not its own.
    std::uint64_t answer_within_ns = 0;
    // For which it may drain beyond that; as of then.
    std::uint64_t credit_ns = 0, credited_ns = 0;
    bool drains_long = false;  // when it was looked at last
    std::map<LaneId, Lane> lanes;
    std::vector<std::uint32_t> lanes_on;      // of each entry: that lease it
    std::map<EntryId, std::uint64_t> before;  // had_before()
    Usage usage;
  };

  Client* find(ClientId id);
  void take(ClientId id, Client& client, const protocol::Ready& ready, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Idle& idle, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Returned& returned, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Draining& draining, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Holding& holding, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::HintRecord& hint, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Timed& timed, std::uint64_t now_ns);
  void tell_of_reports(std::uint64_t now_ns);
  std::uint64_t within(const Client& client) const {
    return std::max(client.answer_within_ns, settings_.answer_within_ns);
  }
  std::uint64_t overdue_from(const Client& client, const Hold& hold) const;
  void credit(Client& client, std::uint64_t now_ns);
  bool adopt(ClientId id, Client& client, LaneId lane, Hold hold, std::uint64_t now_ns);
  void add(ClientId id, Client& client, Lane& lane, const Hold& hold, std::uint64_t now_ns);
  void dropped(ClientId id, Client& client, const Hold& hold, std::uint64_t now_ns);
  void ask_again(ClientId id, Lane& lane, std::uint64_t now_ns);
  std::uint64_t believed_until(ClientId id, const Client& client, EntryId entry,
                               protocol::LeaseWord word, std::uint64_t now_ns) const;
  bool within_share(const Client& client, EntryId entry) const;
  void inherit(ClientId to, Client& heir, std::uint64_t now_ns);
  void drop_unnamed(ClientId id, Client& client, std::uint64_t now_ns);
  bool expects(const Client& client, EntryId entry) const;
  void told_all(ClientId id, Client& client, std::uint64_t now_ns);
  void drop_absent();
  void leave(ClientId id, Client& client, LaneId lane_id, std::uint64_t now_ns);
  void deliver(const scheduler::Decision& decision, std::uint64_t now_ns);
  void deliver_grant(ClientId id, Client& client, const scheduler::Decision& decision,
                     std::uint64_t now_ns);
  void amend(ClientId id, Client& client, Hold& hold, const scheduler::Decision& decision,
             std::uint64_t now_ns);
  bool send(ClientId id, const scheduler::Decision& decision, protocol::LeaseWord word,
            protocol::LeaseWord amends);
  bool close(ClientId id, LaneId lane_id, Lane& lane, Hold& hold, std::uint64_t now_ns);
  void publish(ClientId id, LaneId lane_id, Lane& lane, protocol::LeaseWord word);
  void take_back_overdue(std::uint64_t now_ns);
  // What is told and answered, where that is recorded.
  void note(const runtime::trace::Record& record) {
    if (trace_ != nullptr) [[unlikely]]
      trace_->add(record);
  }
  void close_gates(ClientId client);

  runtime::PoolLayout layout_;
  ArbiterSettings settings_;
  std::uint32_t epoch_;
  Outlet& outlet_;
  runtime::Profile profile_;  // by client: curve_of()
  scheduler::Estimator estimator_;
  scheduler::Scheduler scheduler_;
  std::map<ClientId, Client> clients_;
  ClientId found_id_ = scheduler::kNoClient;  // by find(), the last time
  Client* found_ = nullptr;
  scheduler::UnitWidths widths_;
  std::vector<EntryId> homes_;         // disjoint, narrowest first
  std::vector<std::uint32_t> guests_;  // clients of each home
  ArbiterCounters counters_;
  WaitHistogram waits_;
  runtime::trace::Recorder* trace_ = nullptr;
  std::uint64_t overdue_at_ = kNever;
  bool reporting_ = false;
  std::size_t absent_ = 0;  // clients that are
  // Grants of the present step that did not arrive.
  struct Lost {
    ClientId client;
    LaneId lane;
    scheduler::GrantId grant;
    bool postponed;
  };
  std::vector<Lost> lost_;
};

}  // namespace vitamin::daemon
