// SPDX-License-Identifier: Apache-2.0
//
// Two distributed jobs on the same two devices, each with a process on either: every interleaving.
//
// A process runs an ordinary kernel, which needs a lease, and then one rendezvous in each form that
// a kernel which waits for its peer can have: a collective known by name, a cooperative launch, a
// graph. A rendezvous ends when both processes of its job have it on their device. Each device is
// a production Scheduler under a policy that gives all of it to one tenant at a time, for the least
// time, the worst for this.
//
// The rule: a rendezvous asks for no grant (runtime/submission/launch.cpp). States are explored by
// doing their history again; two histories that lead to the same state are followed once.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/pool/layout.h"
#include "scheduler/policies/builtin.h"
#include "scheduler/scheduler.h"

namespace vitamin::scheduler {
namespace {

constexpr int kJobs = 2, kDevices = 2;

enum class Form { kKernel, kCollective, kCooperative, kGraph };
using Forms = std::array<Form, 3>;

// Which forms are recognised; one that is not waits for a grant like any kernel.
struct Known {
  bool collective = true, cooperative = true, graph = true;
  bool leased(Form form) const {
    if (form == Form::kCollective) return !collective;
    if (form == Form::kCooperative) return !cooperative;
    return form == Form::kKernel || !graph;
  }
};

const hal::DeviceInfo& device() {
  static const hal::DeviceInfo info{hal::Vendor::kSoftware, "d", "GPU-0", 8, {4, 4}, 1000};
  return info;
}

// One process: of a job, on a device.
struct Rank {
  std::vector<Form> program;
  std::size_t at = 0;
  enum class Phase { kReady, kWaiting, kRunning } phase = Phase::kReady;
  GrantId held = kNoGrant;      // open
  std::vector<GrantId> closed;  // under which its kernel runs
  std::uint64_t since = 0;      // since when it waits
  bool done() const { return at == program.size(); }
};

class World {
 public:
  World(const std::array<Forms, kJobs>& forms, const Known& known)
      : known_(known), layout_(runtime::PoolLayout::build(device())) {
    for (int d = 0; d < kDevices; ++d) {
      SchedulerOptions options;
      options.idle_after_ns = options.replan_least_ns = 0;
      TurnOptions turns;
      turns.slice_ns = 1;  // a tenant that waits gets the grant of the other revoked at once
      schedulers_[d] =
          std::make_unique<Scheduler>(layout_.partitions(), make_temporal(turns), options);
      for (int j = 0; j < kJobs; ++j) {
        Rank& rank = ranks_[j][d];
        rank.program.push_back(Form::kKernel);
        rank.program.insert(rank.program.end(), forms[j].begin(), forms[j].end());
      }
    }
  }

  // The possible next steps, numbered by job and device: that process makes one step.
  bool can_step(int action) const {
    const auto [job, d] = who(action);
    const Rank& rank = ranks_[job][d];
    if (rank.done()) return false;
    switch (rank.phase) {
      case Rank::Phase::kReady:
        return true;
      case Rank::Phase::kWaiting:
        return rank.held != kNoGrant;
      case Rank::Phase::kRunning:
        return form(rank) == Form::kKernel || met(job, d);
    }
    return false;
  }

  void step(int action) {
    const auto [job, d] = who(action);
    Rank& rank = ranks_[job][d];
    time_ += 10;
    if (rank.phase == Rank::Phase::kReady && known_.leased(form(rank)) && rank.held == kNoGrant) {
      StreamDemand demand;
      demand.min_sms = 8;
      schedulers_[d]->wants(client(job), demand, time_);
      rank.phase = Rank::Phase::kWaiting;
      rank.since = time_;
    } else if (rank.phase != Rank::Phase::kRunning) {
      rank.phase = Rank::Phase::kRunning;
    } else {
      rank.phase = Rank::Phase::kReady;
      ++rank.at;
      for (const GrantId grant : std::exchange(rank.closed, {})) give_back(job, d, grant);
      if (rank.done() || !known_.leased(form(rank))) {
        schedulers_[d]->idle(client(job), 0, time_);
        if (rank.held != kNoGrant) give_back(job, d, std::exchange(rank.held, kNoGrant));
      }
    }
    decide(d);
  }

  bool done() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& job) {
      return std::all_of(job.begin(), job.end(), [](const Rank& rank) { return rank.done(); });
    });
  }

  // Everything on which later steps depend.
  std::string state() const {
    std::string text;
    for (const auto& job : ranks_)
      for (const Rank& rank : job) {
        text += static_cast<char>('0' + rank.at);
        text += static_cast<char>('a' + static_cast<int>(rank.phase) +
                                  4 * static_cast<int>(rank.closed.size() % 4) +
                                  16 * (rank.held != kNoGrant));
      }
    // And whose turn it is, and which process has waited longer, if both wait.
    for (int d = 0; d < kDevices; ++d) {
      for (const Planned& planned : schedulers_[d]->plan())
        text += static_cast<char>('0' + planned.row.client);
      const Rank &a = ranks_[0][d], &b = ranks_[1][d];
      if (a.phase == Rank::Phase::kWaiting && b.phase == Rank::Phase::kWaiting)
        text += a.since < b.since ? 'x' : 'y';
    }
    return text;
  }

 private:
  static std::pair<int, int> who(int action) { return {action / kDevices, action % kDevices}; }
  static ClientId client(int job) { return static_cast<ClientId>(job + 1); }
  static Form form(const Rank& rank) { return rank.program[rank.at]; }
  bool met(int job, int d) const {
    const Rank& mine = ranks_[job][d];
    const Rank& peer = ranks_[job][1 - d];
    return peer.at > mine.at || (peer.at == mine.at && peer.phase == Rank::Phase::kRunning);
  }

  void give_back(int job, int d, GrantId grant) {
    schedulers_[d]->returned(client(job), 0, grant, time_);
    ranks_[job][d].since = time_;
  }

  // A revocation is answered at once, unless work runs under the grant.
  void decide(int d) {
    const auto no_tenant_has_it = [&] {
      return std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& job) {
        return job[d].held == kNoGrant && job[d].closed.empty();
      });
    };
    // A turn ends as soon as it has begun; time stops while a tenant has one.
    for (int rounds = 0; rounds < 4 || no_tenant_has_it(); ++rounds) {
      time_ += 10;
      std::vector<Decision> decisions;
      for (const Decision& one : schedulers_[d]->decide(time_)) decisions.push_back(one);
      if (decisions.empty() && schedulers_[d]->wake_at() > time_ + 10) return;
      for (const Decision& one : decisions) {
        if (one.kind == Decision::Kind::kAmend) continue;
        Rank& rank = ranks_[static_cast<int>(one.client) - 1][d];
        const GrantId over = one.kind == Decision::Kind::kGrant ? rank.held : one.grant;
        if (over != kNoGrant && over == rank.held) {
          rank.held = kNoGrant;
          if (rank.phase == Rank::Phase::kRunning && known_.leased(form(rank)))
            rank.closed.push_back(over);
          else
            give_back(static_cast<int>(one.client) - 1, d, over);
        }
        if (one.kind == Decision::Kind::kGrant) rank.held = one.grant;
      }
    }
  }

  Known known_;
  runtime::PoolLayout layout_;
  std::array<std::unique_ptr<Scheduler>, kDevices> schedulers_;
  std::array<std::array<Rank, kDevices>, kJobs> ranks_;
  std::uint64_t time_ = 1;
};

struct Exploration {
  std::size_t states = 0, deadlocks = 0, ends = 0;
};

// Every interleaving from the beginning, until one deadlocks.
void explore(const std::array<Forms, kJobs>& forms, const Known& known, Exploration& found) {
  std::set<std::string> seen;
  std::vector<std::vector<int>> open{{}};
  while (!open.empty()) {
    const std::vector<int> history = std::move(open.back());
    open.pop_back();
    World world(forms, known);
    for (const int action : history) world.step(action);
    if (!seen.insert(world.state()).second) continue;
    ++found.states;
    bool stuck = true;
    for (int action = 0; action < kJobs * kDevices; ++action) {
      if (!world.can_step(action)) continue;
      stuck = false;
      open.push_back(history);
      open.back().push_back(action);
    }
    if (world.done())
      ++found.ends;
    else if (stuck)
      ++found.deadlocks;
    if (found.deadlocks > 0) return;
  }
}

Exploration explore_all(const Known& known) {
  std::vector<Forms> orders;
  Forms forms{Form::kCollective, Form::kCooperative, Form::kGraph};
  do orders.push_back(forms);
  while (std::next_permutation(forms.begin(), forms.end()));
  Exploration found;
  for (const Forms& first : orders)
    for (const Forms& second : orders)
      if (found.deadlocks == 0) explore({first, second}, known, found);
  return found;
}

TEST_CASE("two distributed jobs on the same two devices never deadlock") {
  const Exploration found = explore_all({});
  MESSAGE(found.states << " states, " << found.ends << " ends");
  CHECK(found.deadlocks == 0);
  CHECK(found.ends >= 36);  // each pair of orders comes to its end
  CHECK(found.states > 10'000);
}

TEST_CASE("they deadlock when a form of rendezvous is taken for an ordinary kernel") {
  CHECK(explore_all({.collective = false}).deadlocks > 0);
  CHECK(explore_all({.cooperative = false}).deadlocks > 0);
  CHECK(explore_all({.graph = false}).deadlocks > 0);
}

}  // namespace
}  // namespace vitamin::scheduler
