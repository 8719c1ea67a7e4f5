// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler costs, on any machine: no GPU. libexec/vitamin/bench/scheduler_bench [--json]
//
//   answers       a stream is idle, returns its grant, asks and is granted: with one client, and
//                 with 64, one after the other
//   plans/answer  how often the policy was asked for an answer
//   plan          allocate(), clip() and the difference, with 64 clients of one stream each
//
// "parts" gives each client one of 16 units, "parts, moving" another one with each plan. Where the
// policy reads them, clients report progress; a single client, and of 64 the even ones, have a
// bound and a step.
//
// Times are processor time of this process (CLOCK_PROCESS_CPUTIME_ID), so that what else runs on
// the machine does not count; medians of batches of answers, and of single plans, which include
// reading the clock once. While answers are measured the scheduler's time passes as fast as they
// are made, so that plans that are due by time are part of them.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/pool/layout.h"
#include "scheduler/estimator/estimator.h"
#include "scheduler/policies/adapter.h"
#include "scheduler/policies/builtin.h"
#include "scheduler/policies/registry.h"
#include "scheduler/scheduler.h"

namespace vitamin::scheduler {
namespace {

constexpr ClientId kMostClients = 64;

runtime::PoolLayout h200() {
  hal::DeviceInfo info;
  info.sms_per_unit.assign(15, 8);
  info.sms_per_unit.push_back(12);
  info.sms = 132;
  return runtime::PoolLayout::build(info);
}

// Of the processor.
double now_ns() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double median(std::vector<double>& samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

class Moving final : public AllocationPolicy {
 public:
  explicit Moving(bool moves) : moves_(moves) {}
  void allocate(const Snapshot& snapshot, Allocation& out) override {
    if (moves_) ++turn_;
    const auto narrow = static_cast<std::uint32_t>(
        std::count_if(snapshot.pool.begin() + 1, snapshot.pool.end(),
                      [](const Partition& partition) { return partition.compute.count() == 1; }));
    for (const Client& client : snapshot.clients) {
      if (!client.active) continue;
      Row& row = out.rows.emplace_back();
      row.client = client.id;
      row.partition = static_cast<PartitionId>(1 + (client.id + turn_) % narrow);
      row.mode = Mode::kShared;
    }
  }

 private:
  bool moves_;
  std::uint32_t turn_ = 0;
};

class Quarters final : public CallbackPolicy {
 public:
  Selection select(const Operation&, std::span<const PartitionId> eligible, const State&) override {
    return {eligible.front(), 1};
  }
};

struct Case {
  std::string name;
  std::function<Policy(const PolicyContext&)> make;
};

Case named(const char* name) {
  return {name, [name](const PolicyContext& context) { return std::move(*make(name, context)); }};
}

Policy moving(bool moves) {
  PolicyDescription description;
  description.name = "moving";
  return {description, std::make_unique<Moving>(moves), nullptr};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const PolicyDescription& policy : list()) all.push_back(named(policy.name.data()));
  all.push_back(named("throughput:model=algorithm1"));
  all.push_back({"parts", [](const PolicyContext&) { return moving(false); }});
  all.push_back({"parts, moving", [](const PolicyContext&) { return moving(true); }});
  all.push_back({"callbacks", [](const PolicyContext&) {
                   PolicyDescription description;
                   description.name = "callbacks";
                   return adapt(std::make_unique<Quarters>(), description);
                 }});
  return all;
}

// Clients that hold a grant each where the policy gives one.
class Machine {
 public:
  Machine(const Case& one, ClientId clients)
      : clients_(clients),
        layout_(h200()),
        estimator_(layout_.partitions()),
        scheduler_(layout_.partitions(), one.make({layout_.partitions(), estimator_}), {},
                   &estimator_) {
    for (ClientId client = 1; client <= clients_; ++client) {
      scheduler_.wants(client, StreamDemand(), now_);
      if (!scheduler_.policy().uses_steps || !bounded(client)) continue;
      ClientTerms terms;
      terms.slo.tpot_ns = kBoundNs;
      scheduler_.attach(client, terms, now_);
      begin_step(client);
    }
    follow();
  }

  Scheduler& scheduler() { return scheduler_; }

  // Obeys decisions until there are none.
  void follow() {
    for (int round = 0; round < 100; ++round) {
      const auto decisions = scheduler_.decide(now_);
      if (decisions.empty()) return;
      obey(decisions);
    }
  }

  // One holder of a grant after the other: idle, returned, wants, granted (where the policy does
  // not give the units to another client).
  double answers_per_second(int batches) {
    constexpr int kBatch = 10'000;
    const StreamDemand demand;
    std::vector<double> samples;
    for (int batch = 0; batch < batches; ++batch) {
      const std::uint64_t before = scheduler_.counters().grants;
      const double begin = now_ns();
      for (int i = 0; i < kBatch; ++i) {
        const ClientId client = next_holder();
        const GrantId held = std::exchange(held_[client], kNoGrant);
        scheduler_.idle(client, 0, now_);
        scheduler_.returned(client, 0, held, now_);
        obey(scheduler_.decide(now_));
        now_ += answer_ns_;
        scheduler_.wants(client, demand, now_);
        obey(scheduler_.decide(now_));
      }
      const double elapsed = now_ns() - begin;
      samples.push_back(static_cast<double>(scheduler_.counters().grants - before) / elapsed * 1e9);
      answer_ns_ = static_cast<std::uint64_t>(elapsed / kBatch);
    }
    return median(samples);
  }

  // Of decide() with a plan; 0: the policy makes none.
  double us_per_plan(int count) {
    const std::uint64_t before = scheduler_.counters().plans;
    std::vector<double> samples;
    for (int i = 0; i < count; ++i) {
      now_ += scheduler_.policy().uses_progress ? kPlanNs : 100;
      if (scheduler_.policy().uses_progress)
        for (ClientId client = 1; client <= clients_; ++client)
          scheduler_.progress(client, {now_, now_, 0, now_ / 10'000});
      if (const ClientId client = 1 + static_cast<ClientId>(i) % clients_;
          scheduler_.policy().uses_steps && bounded(client))
        begin_step(client);
      scheduler_.replan();
      const double begin = now_ns();
      const auto decisions = scheduler_.decide(now_);
      samples.push_back((now_ns() - begin) / 1e3);
      obey(decisions);
      follow();
    }
    return scheduler_.counters().plans == before ? 0 : median(samples);
  }

 private:
  static constexpr std::uint64_t kBoundNs = 30'000'000;
  static constexpr std::uint64_t kPlanNs = 1'000'000;  // between plans that read progress

  bool bounded(ClientId client) const { return clients_ == 1 || client % 2 == 0; }

  // Of the client whose grant is oldest.
  ClientId next_holder() {
    while (held_[holders_.front()] == kNoGrant) holders_.pop_front();
    const ClientId client = holders_.front();
    holders_.pop_front();
    return client;
  }

  // The one before it has ended.
  void begin_step(ClientId client) {
    scheduler_.step_end(client, steps_[client], now_);
    Step step;
    step.id = ++steps_[client];
    step.client = client;
    step.kind = StepKind::kDecode;
    step.ready_ns = now_;
    step.due_ns = now_ + kBoundNs;
    step.work_ns = kBoundNs / 3;
    scheduler_.step_begin(step, now_);
  }

  // What is revoked or moved from ends at once.
  void obey(std::span<const Decision> decisions) {
    if (decisions.empty()) return;
    returns_.clear();
    for (const Decision& decision : decisions) {
      if (decision.kind == Decision::Kind::kAmend) continue;
      GrantId& held = held_[decision.client];
      if (held != kNoGrant) returns_.push_back({decision.client, held});
      held = decision.kind == Decision::Kind::kGrant ? decision.grant : kNoGrant;
      if (held != kNoGrant) holders_.push_back(decision.client);
    }
    for (const auto& [client, grant] : returns_) scheduler_.returned(client, 0, grant, now_);
  }

  ClientId clients_;
  runtime::PoolLayout layout_;
  Estimator estimator_;
  Scheduler scheduler_;
  std::uint64_t steps_[kMostClients + 1] = {};
  std::uint64_t now_ = 1;
  std::uint64_t answer_ns_ = 100;  // of the batch before
  std::deque<ClientId> holders_;   // by grant; of some the grant has ended
  GrantId held_[kMostClients + 1] = {};
  std::vector<std::pair<ClientId, GrantId>> returns_;
};

struct Answers {
  double per_second = 0, plans = 0;  // of the policy, placements too, for an answer
};

Answers answers(const Case& one, ClientId clients) {
  constexpr int kBatches = 50;
  Machine machine(one, clients);
  machine.answers_per_second(kBatches / 10);
  const SchedulerCounters before = machine.scheduler().counters();
  Answers found;
  found.per_second = machine.answers_per_second(kBatches);
  const SchedulerCounters& after = machine.scheduler().counters();
  found.plans =
      static_cast<double>(after.plans + after.placements - before.plans - before.placements) /
      static_cast<double>(std::max<std::uint64_t>(1, after.grants - before.grants));
  return found;
}

}  // namespace
}  // namespace vitamin::scheduler

int main(int argc, char** argv) {
  using namespace vitamin::scheduler;  // NOLINT: the program's own
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: scheduler_bench [--json]\n");
    return 2;
  }
  constexpr int kPlans = 2'000;
  if (!json)
    std::printf("%-28s %10s %16s %14s %16s %14s\n", "policy", "plan (us)", "1 client (M/s)",
                "plans/answer", "64 clients (M/s)", "plans/answer");
  for (const Case& one : cases()) {
    const Answers single = answers(one, 1), many = answers(one, kMostClients);
    const double plan = Machine(one, kMostClients).us_per_plan(kPlans);
    std::printf(json ? "{\"policy\": \"%s\", \"plan_us\": %.2f, \"answers_1_per_s\": %.4g, "
                       "\"plans_per_answer_1\": %.4f, \"answers_64_per_s\": %.4g, "
                       "\"plans_per_answer_64\": %.4f}\n"
                     : "%-28s %10.2f %16.3g %14.4f %16.3g %14.4f\n",
                one.name.c_str(), plan, single.per_second / (json ? 1 : 1e6), single.plans,
                many.per_second / (json ? 1 : 1e6), many.plans);
  }
  return 0;
}
