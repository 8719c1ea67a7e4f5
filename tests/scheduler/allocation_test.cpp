// SPDX-License-Identifier: Apache-2.0
//
// After warm-up, no message and no plan allocates memory.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "scheduler/policies/builtin.h"
#include "scheduler/scheduler.h"
#include "tests/scheduler/allocations.h"
#include "tests/scheduler/fixture.h"

namespace vitamin::scheduler {
namespace {

// Each client has two streams; each turn, one stream of each client changes its mind.
class Clients {
 public:
  explicit Clients(Policy policy)
      : layout_(h200()),
        scheduler_(layout_.partitions(), std::move(policy)),
        held_(2 * kClients + 2) {
    held_.shrink_to_fit();
    ended_.reserve(256);
  }

  void turn() {
    for (ClientId client = 1; client <= kClients; ++client) {
      const auto stream = static_cast<StreamId>(random_() % 2);
      GrantId& held = held_[2 * client + stream];
      switch (random_() % 4) {
        case 0:
          scheduler_.idle(client, stream, now_);
          break;
        case 1: {
          Step step;
          step.id = random_() % 4;
          step.client = client;
          step.kind = StepKind::kIteration;
          if (random_() % 2 == 0)
            scheduler_.step_begin(step, now_);
          else
            scheduler_.step_end(client, step.id, now_);
          break;
        }
        default: {
          StreamDemand demand;
          demand.id = stream;
          demand.min_sms = 1 + static_cast<std::uint32_t>(random_() % 16);
          scheduler_.wants(client, demand, now_);
        }
      }
      if (held != kNoGrant && random_() % 3 == 0) {
        scheduler_.returned(client, stream, held, now_);
        held = kNoGrant;
      }
    }
    now_ += random_() % 2'000'000;
    for (const Decision& decision : scheduler_.decide(now_)) {
      GrantId& held = held_[2 * decision.client + decision.stream];
      if (decision.kind == Decision::Kind::kAmend) continue;
      if (held != kNoGrant) ended_.push_back({decision.client, decision.stream, held});
      held = decision.kind == Decision::Kind::kGrant ? decision.grant : kNoGrant;
    }
    for (const Ended& ended : ended_)
      scheduler_.returned(ended.client, ended.stream, ended.grant, now_);
    ended_.clear();
  }

  const SchedulerCounters& counters() const { return scheduler_.counters(); }

 private:
  static constexpr ClientId kClients = 32;
  struct Ended {
    ClientId client;
    StreamId stream;
    GrantId grant;
  };
  runtime::PoolLayout layout_;
  Scheduler scheduler_;
  std::vector<GrantId> held_;
  std::vector<Ended> ended_;
  std::mt19937 random_;
  std::uint64_t now_ = 1;
};

TEST_CASE("after warm-up no message and no plan allocates memory") {
  for (int which = 0; which < 6; ++which) {
    CAPTURE(which);
    Clients clients(which == 0   ? make_fifo()
                    : which == 1 ? make_static({hal::ComputeSet(), 8})
                    : which == 2 ? make_temporal()
                    : which == 3 ? make_salus()
                    : which == 4 ? make_orion()
                                 : make_random());
    for (int i = 0; i < 3'000; ++i) clients.turn();
    const auto plans = clients.counters().plans, grants = clients.counters().grants;
    const std::uint64_t before = test::allocations();
    for (int i = 0; i < 1'000; ++i) clients.turn();
    const std::uint64_t after = test::allocations();
    CHECK(before > 0);
    CHECK(after == before);
    CHECK(clients.counters().grants > grants);
    if (which < 5) CHECK(clients.counters().plans > plans);
  }
}

}  // namespace
}  // namespace vitamin::scheduler
