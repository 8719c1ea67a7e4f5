// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler costs, on any machine: no GPU. libexec/vitamin/bench/scheduler_bench [--json]
//
//   answers       a stream of one of 64 clients is idle, returns its grant, asks and is granted
//   plan          allocate(), clip() and the difference, with 64 clients of one stream each
//   plans/answer  how often the policy was asked for an answer
//
// "parts" gives each client one of 16 units, "parts, moving" another one with each plan. Where the
// policy reads them, clients report progress; of the even ones each has a bound and a step.
//
// Answers: the best of several hundred short batches; plans: the median: what the code costs
// without what else runs on the machine.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/pool/layout.h"
#include "scheduler/estimator.h"
#include "scheduler/policies/adapter.h"
#include "scheduler/policies/builtin.h"
#include "scheduler/policies/registry.h"
#include "scheduler/scheduler.h"

namespace vitamin::scheduler {
namespace {

constexpr ClientId kClients = 64;

runtime::PoolLayout h200() {
  hal::DeviceInfo info;
  info.processors_per_unit.assign(15, 8);
  info.processors_per_unit.push_back(12);
  info.processors = 132;
  return runtime::PoolLayout::build(info);
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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
  Choice select(const Operation&, std::span<const PartitionId> eligible, const State&) override {
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
  explicit Machine(const Case& one)
      : layout_(h200()),
        estimator_(layout_.entries()),
        scheduler_(layout_.entries(), one.make({layout_.entries(), estimator_}), {}, &estimator_) {
    for (ClientId client = 1; client <= kClients; ++client) {
      scheduler_.wants(client, StreamDemand(), now_);
      if (!scheduler_.policy().uses_steps || client % 2 != 0) continue;
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
  // not give the units to another client). The best of many batches, each too short to be preempted
  // often.
  double answers_per_second(int batches) {
    constexpr int kBatch = 1'000;
    const StreamDemand demand;
    double best = 0;
    for (int batch = 0; batch < batches; ++batch) {
      const std::uint64_t before = scheduler_.counters().grants;
      const double begin = seconds();
      for (int i = 0; i < kBatch; ++i) {
        do client_ = client_ % kClients + 1;
        while (held_[client_] == kNoGrant);
        const GrantId held = std::exchange(held_[client_], kNoGrant);
        scheduler_.idle(client_, 0, now_);
        scheduler_.returned(client_, 0, held, now_);
        obey(scheduler_.decide(now_));
        now_ += 100;
        scheduler_.wants(client_, demand, now_);
        obey(scheduler_.decide(now_));
      }
      const double elapsed = seconds() - begin;
      best = std::max(best, static_cast<double>(scheduler_.counters().grants - before) / elapsed);
    }
    return best;
  }

  // Median of decide() with a plan.
  double us_per_plan(int count) {
    const std::uint64_t before = scheduler_.counters().plans;
    std::vector<double> samples;
    for (int i = 0; i < count; ++i) {
      now_ += scheduler_.policy().uses_progress ? kPlanNs : 100;
      if (scheduler_.policy().uses_progress)
        for (ClientId client = 1; client <= kClients; ++client)
          scheduler_.progress(client, {now_, now_, 0, now_ / 10'000});
      if (const ClientId client = 2 + 2 * static_cast<ClientId>(i) % kClients;
          scheduler_.policy().uses_steps && client <= kClients)
        begin_step(client);
      scheduler_.replan();
      const double begin = seconds();
      const auto decisions = scheduler_.decide(now_);
      samples.push_back(seconds() - begin);
      obey(decisions);
      follow();
    }
    std::nth_element(samples.begin(), samples.begin() + count / 2, samples.end());
    if (scheduler_.counters().plans == before) return 0;
    return samples[static_cast<std::size_t>(count) / 2] * 1e6;
  }

 private:
  static constexpr std::uint64_t kBoundNs = 30'000'000;
  static constexpr std::uint64_t kPlanNs = 1'000'000;  // between plans that read progress

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
    }
    for (const auto& [client, grant] : returns_) scheduler_.returned(client, 0, grant, now_);
  }

  runtime::PoolLayout layout_;
  Estimator estimator_;
  Scheduler scheduler_;
  std::uint64_t steps_[kClients + 1] = {};
  std::uint64_t now_ = 1;
  ClientId client_ = 0;  // of the last answer
  GrantId held_[kClients + 1] = {};
  std::vector<std::pair<ClientId, GrantId>> returns_;
};

}  // namespace
}  // namespace vitamin::scheduler

int main(int argc, char** argv) {
  using namespace vitamin::scheduler;  // NOLINT: the program's own
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: scheduler_bench [--json]\n");
    return 2;
  }
  constexpr int kRepeats = 3, kBatches = 100, kPlans = 1'000;
  std::printf(json ? "[\n" : "%-28s %18s %14s %12s\n", "policy", "answers (M/s)", "plan (us)",
              "plans/answer");
  bool first = true;
  for (const Case& one : cases()) {
    double answers = 0, plan = 1e9, share = 0;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      Machine machine(one);
      machine.answers_per_second(kBatches / 10);
      const auto& counters = machine.scheduler().counters();
      const auto plans = counters.plans, grants = counters.grants;
      answers = std::max(answers, machine.answers_per_second(kBatches));
      share = static_cast<double>(counters.plans - plans) /
              static_cast<double>(std::max<std::uint64_t>(1, counters.grants - grants));
      plan = std::min(plan, machine.us_per_plan(kPlans));
    }
    if (json)
      std::printf(
          "%s  {\"policy\": \"%s\", \"answers_per_second\": %.0f, \"plan_us\": %.3f, "
          "\"plans_per_answer\": %.4f}",
          first ? "" : ",\n", one.name.c_str(), answers, plan, share);
    else
      std::printf("%-28s %18.2f %14.2f %12.4f\n", one.name.c_str(), answers / 1e6, plan, share);
    first = false;
  }
  if (json) std::printf("\n]\n");
  return 0;
}
