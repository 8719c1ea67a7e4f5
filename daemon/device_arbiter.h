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
// Profiles. Clients say how long their launches took on how many processors, and how long the same
// ones are taken to last on the whole device. A grant stands for whatever its lane launches next,
// so what a policy is told of an operation is the curve of all its client's launches together: how
// many times as long they take at each width, lately. Nobody's word counts for others.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/exposition.h"
#include "protocol/record.h"
#include "protocol/segment.h"
#include "runtime/profile.h"
#include "runtime/scheduler.h"
#include "runtime/trace.h"

namespace vitamin::daemon {

using runtime::ClientId;
using runtime::EntryId;
using runtime::LaneId;

struct ArbiterSettings {
  runtime::SchedulerOptions scheduler;
  std::uint64_t answer_within_ns = 1'000'000'000;
  std::uint64_t drain_within_ns = 60'000'000'000;
  // What was learnt since is a reason to plan anew, not more often than this.
  std::uint64_t reconsider_ns = 100'000'000;
};

// What is known of a client from its workload class (config/configuration.h) and its job.
struct Traits {
  runtime::OperationClass kind = runtime::OperationClass::kUnknown;
  // A step, from when the client first asks for it, is to take no longer; 0: no target.
  std::uint64_t tpot_ns = 0;
  // Its process, by the kernel's word; 0: not known. Its sessions follow each other.
  std::uint64_t process = 0;
  // It must not wait, and says no time that would do: as if it were alone, then.
  bool right_of_way() const { return kind == runtime::OperationClass::kDecode && tpot_ns == 0; }
  // What policies::Bounded keeps the policy to for this client; here only so that it is recorded.
  std::uint32_t most = 0, reserved = 0, group = 0;
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
  // is; or it does not hold it any more. Not told when it is forgotten.
  virtual void holds(ClientId, EntryId, bool) {}
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
  };

  DeviceArbiter(const runtime::PoolLayout& layout, std::unique_ptr<runtime::Policy> policy,
                const ArbiterSettings& settings, std::uint32_t epoch, Outlet& outlet);

  // Everything that it is told and answers is recorded from now on, which is enough to tell and
  // ask another arbiter the same. `trace` outlives it.
  void record(runtime::trace::Recorder* trace) { trace_ = trace; }

  // `client` is new and not runtime::kNobody.
  Home attach(ClientId client, const Traits& traits = {});
  // Under a former daemon the client's process held the entry, or had it as home: what it tells of
  // work there counts until then, and no such work is waited for any longer.
  void had_before(ClientId client, EntryId entry, std::uint64_t until_ns);
  // Other settings from now on, and perhaps another policy inside of the object that was given.
  void set(const ArbiterSettings& settings);
  void request(ClientId client, const protocol::Request& request, std::uint64_t now_ns);
  // How far the client has got, cumulative (ClientSegment::progress): to be told of everybody,
  // before step(), when wants_progress() says so.
  void progressed(ClientId client, std::uint64_t operations, std::uint64_t now_ns);
  bool wants_progress(std::uint64_t now_ns) const { return scheduler_.look_at() <= now_ns; }
  // Its process is ending: it submits nothing more, and what it submitted still runs.
  void dying(ClientId client, std::uint64_t now_ns);
  // It is gone, and so is its work.
  void forget(ClientId client, std::uint64_t now_ns);
  // Decides, and writes the answers out.
  void step(std::uint64_t now_ns);
  // step() has something to do at this time even if nobody says anything.
  std::uint64_t wake_at() const;

  const runtime::PoolLayout& layout() const { return layout_; }
  const runtime::Scheduler& scheduler() const { return scheduler_; }
  const ArbiterCounters& counters() const { return counters_; }
  const runtime::Profile& profile() const { return profile_; }
  const WaitHistogram& waits() const { return waits_; }
  std::vector<Held> held() const;
  std::uint32_t epoch() const { return epoch_; }
  runtime::Scheduler& scheduler() { return scheduler_; }

 private:
  struct Hold {
    EntryId entry = runtime::kNoEntry;
    protocol::LeaseWord word = 0;
    bool open = false;
    std::uint64_t heard_ns = 0;   // closed: when it was closed, or last answered
    std::uint64_t closed_ns = 0;  // closed: since when
    bool unnamed = false;         // of an older session; nobody has said yet that work runs there
    std::uint64_t until_ns = runtime::kNever;  // of a former daemon's time: it ends then at last
  };
  struct Lane {
    protocol::LeaseWord word = 0;  // as published
    std::uint32_t generation = 0;
    std::uint64_t asked_ns = 0;     // it waits since then; 0: it does not
    std::uint64_t deadline_ns = 0;  // of the step that it is in, from its class's target; 0: none
    std::vector<Hold> holds;        // at most one of them open
    bool submits() const {
      return std::any_of(holds.begin(), holds.end(), [](const Hold& hold) { return hold.open; });
    }
  };
  struct Client {
    Home home;
    Traits traits;
    bool over = false;   // it says nothing more: its process ends, or has another session
    bool told = false;   // of what it held before
    bool asked = false;  // it was ready once: all of that is told
    // What it was told to answer within. Another bound, later, is not its own.
    std::uint64_t answer_within_ns = 0;
    // For which it may drain beyond that; as of then.
    std::uint64_t credit_ns = 0, credited_ns = 0;
    bool drains_long = false;  // when it was looked at last
    std::map<LaneId, Lane> lanes;
    std::vector<std::uint32_t> lanes_on;      // of each entry: that hold it
    std::map<EntryId, std::uint64_t> before;  // had_before()
  };

  Client* find(ClientId id);
  void take(ClientId id, Client& client, const protocol::Ready& ready, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Idle& idle, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Returned& returned, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Draining& draining, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Holding& holding, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::HintRecord& hint, std::uint64_t now_ns);
  void take(ClientId id, Client& client, const protocol::Timed& timed, std::uint64_t now_ns);
  void reconsider(std::uint64_t now_ns);
  std::uint64_t within(const Client& client) const {
    return std::max(client.answer_within_ns, settings_.answer_within_ns);
  }
  std::uint64_t overdue_from(const Client& client, const Hold& hold) const;
  void credit(Client& client, std::uint64_t now_ns);
  void add(ClientId id, Client& client, Lane& lane, const Hold& hold);
  void dropped(ClientId id, Client& client, EntryId entry);
  std::uint64_t believed_until(ClientId id, const Client& client, EntryId entry,
                               protocol::LeaseWord word, std::uint64_t now_ns) const;
  bool within_share(const Client& client, EntryId entry) const;
  void inherit(ClientId to, Client& heir, std::uint64_t now_ns);
  void drop_unnamed(ClientId id, Client& client, std::uint64_t now_ns);
  void leave(ClientId id, Client& client, LaneId lane_id, std::uint64_t now_ns);
  void deliver(const runtime::Decision& decision, std::uint64_t now_ns);
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
  runtime::Scheduler scheduler_;
  std::map<ClientId, Client> clients_;
  ClientId found_id_ = runtime::kNobody;  // by find(), the last time
  Client* found_ = nullptr;
  std::vector<EntryId> homes_;         // disjoint, narrowest first
  std::vector<std::uint32_t> guests_;  // clients of each home
  ArbiterCounters counters_;
  WaitHistogram waits_;
  runtime::trace::Recorder* trace_ = nullptr;
  std::uint64_t overdue_at_ = runtime::kNever;
  std::uint64_t considered_ = 0, considered_ns_ = 0;  // version of the profile; when
};

}  // namespace vitamin::daemon
