// SPDX-License-Identifier: Apache-2.0
//
// Costs of the control path: a grant over the rings, against the round trip of a bare cache line; a
// launch under a held grant, with vitamind and with the arbiter in this process; a decision of the
// arbiter.
//
// Percentiles are of single requests and stand in the counters p50_ns and p99_ns.
#include <benchmark/benchmark.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "daemon/client/local_arbiter.h"
#include "daemon/client/remote_arbiter.h"
#include "daemon/server/server.h"
#include "tests/cost.h"
#include "tests/daemon/device.h"

namespace vitamin {
namespace {

const hal::DeviceInfo& device() {
  static const hal::DeviceInfo info = tests::device_like_an_h200("GPU-bench");
  return info;
}

std::uint64_t now() {
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

class Percentiles {
 public:
  void add(std::uint64_t ns) { samples_.push_back(ns); }
  void report(benchmark::State& state) {
    if (samples_.empty()) return;
    std::sort(samples_.begin(), samples_.end());
    state.counters["p50_ns"] = static_cast<double>(samples_[samples_.size() / 2]);
    state.counters["p99_ns"] = static_cast<double>(samples_[samples_.size() * 99 / 100]);
  }

 private:
  std::vector<std::uint64_t> samples_;
};

// A whole vitamind in a thread of this process.
class Daemon {
 public:
  explicit Daemon(const std::string& policy) {
    settings_.socket = "/tmp/vitamin-bench-" + std::to_string(::getpid());
    settings_.configuration.daemon.lock_directory = "/tmp";
    settings_.configuration.policy.name = policy;
    settings_.configuration.daemon.spin_ns = 50'000'000;
    server_ = std::move(*daemon::Server::create(settings_));
    thread_ = std::thread([this] { server_->run(); });
    client::RemoteOptions options;
    options.socket = settings_.socket;
    options.spin = std::chrono::milliseconds(100);  // on the spot: nothing here defers
    arbiter_ = std::move(*client::RemoteArbiter::connect(options, device()));
  }
  ~Daemon() {
    arbiter_ = nullptr;
    server_->stop();
    thread_.join();
    ::unlink(settings_.socket.c_str());
  }
  client::RemoteArbiter& arbiter() { return *arbiter_; }

 private:
  daemon::Settings settings_;
  std::unique_ptr<daemon::Server> server_;
  std::thread thread_;
  std::unique_ptr<client::RemoteArbiter> arbiter_;
};

std::vector<runtime::PartitionId> eligible_partitions() {
  std::vector<runtime::PartitionId> partitions;
  const auto layout = runtime::PoolLayout::build(device());
  for (const runtime::Partition& partition : layout.partitions())
    if (!partition.whole()) partitions.push_back(partition.id);
  partitions.push_back(runtime::kWholeDevice);
  return partitions;
}

void cache_line_round_trip(benchmark::State& state) {
  alignas(64) static std::atomic<std::uint64_t> there{0};
  alignas(64) static std::atomic<std::uint64_t> back{0};
  there = back = 0;
  std::atomic<bool> end{false};
  std::thread other([&] {
    for (std::uint64_t i = 1; !end;) {
      if (there.load(std::memory_order_acquire) != i) continue;
      back.store(i++, std::memory_order_release);
    }
  });
  Percentiles percentiles;
  std::uint64_t i = 0;
  for (auto unused : state) {
    (void)unused;
    const std::uint64_t begin = now();
    there.store(++i, std::memory_order_release);
    while (back.load(std::memory_order_acquire) != i) {
    }
    percentiles.add(now() - begin);
  }
  end = true;
  other.join();
  percentiles.report(state);
}
BENCHMARK(cache_line_round_trip)->UseRealTime();

// Asks until there is a grant: the first answer is none when the daemon was asleep, or had no core.
runtime::GrantTerms granted(runtime::Arbiter& arbiter,
                            const std::vector<runtime::PartitionId>& eligible) {
  const std::uint64_t begin = now();
  runtime::GrantTerms terms{runtime::kNoPartition, 0};
  while (terms.partition == runtime::kNoPartition && now() - begin < 10'000'000'000)
    terms = arbiter.grant({}, eligible);
  return terms;
}

// Every launch needs another partition: it returns the old grant and requests a new one.
void request_to_grant(benchmark::State& state) {
  Daemon daemon("random");
  const auto eligible = eligible_partitions();
  Percentiles percentiles;
  for (auto unused : state) {
    (void)unused;
    const std::uint64_t begin = now();
    const runtime::GrantTerms terms = granted(daemon.arbiter(), eligible);
    percentiles.add(now() - begin);
    if (terms.partition == runtime::kNoPartition) {
      state.SkipWithError("no grant came");
      break;
    }
  }
  percentiles.report(state);
}
BENCHMARK(request_to_grant)->UseRealTime();

void launch_under(runtime::Arbiter& arbiter, benchmark::State& state) {
  const auto eligible = eligible_partitions();
  const runtime::GrantTerms terms = granted(arbiter, eligible);
  if (terms.partition == runtime::kNoPartition) return state.SkipWithError("no grant came");
  for (auto unused : state) {
    (void)unused;
    bool admitted = arbiter.admits(terms.partition, 0);
    benchmark::DoNotOptimize(admitted);
    arbiter.submitted(terms.partition, 0);
    arbiter.ended(terms.partition, 0, 1);
  }
}

void inline_launch_daemon(benchmark::State& state) {
  Daemon daemon("static:units=0-3");
  launch_under(daemon.arbiter(), state);
}
BENCHMARK(inline_launch_daemon);

void inline_launch_in_process(benchmark::State& state) {
  const auto layout = runtime::PoolLayout::build(device());
  client::LocalArbiter local(layout);
  local.use(std::move(*scheduler::make("static:units=0-3", local.context(1))));
  launch_under(local, state);
}
BENCHMARK(inline_launch_in_process);

// How slow this machine is, for limits (tests/cost.h).
void machine(benchmark::State& state) {
  double slowness = 1e9;
  for (auto _ : state) slowness = std::min(slowness, test::slowness());
  state.counters["slowness"] = slowness;
}
BENCHMARK(machine);

class Nowhere final : public daemon::GrantSink {
 public:
  void set_word(scheduler::ClientId, protocol::LaneId, protocol::LeaseWord) override {}
  bool grant(scheduler::ClientId client, const protocol::Grant& grant) override {
    last = grant;
    if (client >= grants.size()) grants.resize(client + 1);
    grants[client] = grant;
    return true;
  }
  void gates_closed(scheduler::ClientId) override {}
  protocol::Grant last;
  std::vector<protocol::Grant> grants;  // by client: its last
};

// One client after the other requests a grant for a lane and returns it.
void decisions(benchmark::State& state) {
  Nowhere nowhere;
  daemon::DeviceArbiter arbiter(runtime::PoolLayout::build(device()), {}, 1, nowhere);
  arbiter.use(std::move(*scheduler::make("fifo", arbiter.context(1))));
  const auto clients = static_cast<scheduler::ClientId>(state.range(0));
  for (scheduler::ClientId id = 1; id <= clients; ++id) arbiter.attach(id);
  std::uint64_t time = 1;
  scheduler::ClientId id = 1;
  for (auto unused : state) {
    (void)unused;
    arbiter.request(id, protocol::Ready{}, ++time);
    arbiter.step(time);
    protocol::Returned returned;
    returned.word = nowhere.last.word;
    returned.partition = nowhere.last.partition;
    arbiter.request(id, returned, ++time);
    arbiter.request(id, protocol::Idle{}, time);
    id = id % clients + 1;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(decisions)->Arg(1)->Arg(8)->Arg(64);

// So many clients hold a grant and make progress; one after the other returns its grant and
// requests a new one.
void decision_beside(benchmark::State& state, const char* policy) {
  Nowhere nowhere;
  daemon::DeviceArbiter arbiter(runtime::PoolLayout::build(device()), {}, 1, nowhere);
  arbiter.use(std::move(*scheduler::make(policy, arbiter.context(1))));
  const auto clients = static_cast<scheduler::ClientId>(state.range(0));
  std::uint64_t time = 1, operations = 0;
  for (scheduler::ClientId id = 1; id <= clients; ++id) {
    arbiter.attach(id);
    arbiter.request(id, protocol::Ready{}, time);
  }
  arbiter.step(time);
  std::vector<daemon::DeviceArbiter::GrantStatus> held = arbiter.held();
  std::size_t index = 0;
  for (auto unused : state) {
    (void)unused;
    time += 1'000;
    if (arbiter.wants_progress(time)) {
      ++operations;
      for (scheduler::ClientId id = 1; id <= clients; ++id)
        arbiter.set_progress(id, {operations * 1'000, operations * 1'000, 0, operations}, time);
    }
    const scheduler::ClientId id = held[index].client;
    index = (index + 1) % held.size();
    protocol::Returned returned;
    returned.partition = nowhere.grants[id].partition;
    returned.word = nowhere.grants[id].word;
    arbiter.request(id, protocol::Idle{}, time);
    arbiter.request(id, returned, time);
    arbiter.step(time);
    arbiter.request(id, protocol::Ready{}, time);
    arbiter.step(time);
  }
  state.SetItemsProcessed(2 * state.iterations());
  state.counters["granted"] = static_cast<double>(held.size());
  state.counters["grants"] = static_cast<double>(arbiter.scheduler().counters().grants);
}
BENCHMARK_CAPTURE(decision_beside, fifo, "fifo")->Arg(16)->Arg(256)->Arg(1024);
BENCHMARK_CAPTURE(decision_beside, throughput, "throughput")->Arg(16)->Arg(64)->Arg(256)->Arg(1024);
BENCHMARK_CAPTURE(decision_beside, parts, "throughput:model=algorithm1")->Arg(64)->Arg(1024);

// The number of grants of the lane that has most.
std::size_t most_of_a_lane(const daemon::DeviceArbiter& arbiter) {
  std::map<std::pair<scheduler::ClientId, protocol::LaneId>, std::size_t> grants;
  std::size_t most = 0;
  for (const auto& held : arbiter.held()) most = std::max(most, ++grants[{held.client, held.lane}]);
  return most;
}

protocol::Ready any_request(std::minstd_rand& random) {
  protocol::Ready ready;
  ready.head.lane = static_cast<std::uint32_t>(random() % protocol::kLanes);
  ready.sms = static_cast<std::uint32_t>(1 + random() % 133);
  ready.moves_on = random() % 2;
  return ready;
}

// 1.3 s of the arbiter's time: after a second what waits is starving.
constexpr int kDrainIterations = 130'000;

// An honest client requests and returns grants beside one that has abandoned as many grants on all
// of its lanes as it was allowed to, and whose work never ends.
void decision_beside_drains(benchmark::State& state, const char* policy, std::uint32_t share) {
  constexpr scheduler::ClientId kHonest = 1, kMoving = 2;
  Nowhere nowhere;
  daemon::ArbiterSettings settings;
  settings.answer_within_ns = settings.drain_within_ns = 1'000'000'000'000'000;
  daemon::DeviceArbiter arbiter(runtime::PoolLayout::build(device()), settings, 1, nowhere);
  arbiter.use(std::move(*scheduler::make(policy, arbiter.context(1))));
  arbiter.attach(kHonest);
  daemon::ClientTraits traits;
  traits.terms.limits.max_sms = share;
  arbiter.attach(kMoving, traits);
  std::uint64_t time = 1;
  std::minstd_rand random;
  for (int i = 0; i < 1'000; ++i) {
    for (int j = 0; j < 100; ++j) arbiter.request(kMoving, any_request(random), time);
    arbiter.step(time += 10'000);
  }
  for (auto unused : state) {
    (void)unused;
    arbiter.request(kHonest, protocol::Ready{}, time += 10'000);
    arbiter.step(time);
    protocol::Returned returned;
    returned.partition = nowhere.grants[kHonest].partition;
    returned.word = nowhere.grants[kHonest].word;
    arbiter.request(kHonest, protocol::Idle{}, time);
    arbiter.request(kHonest, returned, time);
  }
  state.counters["of_a_lane"] = static_cast<double>(most_of_a_lane(arbiter));
  state.counters["grants"] = static_cast<double>(arbiter.held().size());
}
BENCHMARK_CAPTURE(decision_beside_drains, fifo, "fifo", 0)->Iterations(kDrainIterations);
BENCHMARK_CAPTURE(decision_beside_drains, throughput, "throughput", 0)
    ->Iterations(kDrainIterations);
BENCHMARK_CAPTURE(decision_beside_drains, random, "random:max_sms=64", 0)
    ->Iterations(kDrainIterations);
BENCHMARK_CAPTURE(decision_beside_drains, parts, "throughput:model=algorithm1", 0)
    ->Iterations(kDrainIterations);
BENCHMARK_CAPTURE(decision_beside_drains, share, "throughput", 64)->Iterations(kDrainIterations);

// An iteration of the event loop with one request of an honest client, beside one that sends so
// many well-formed records for all of its lanes in each: the wait of the honest client.
void turn_beside_a_flood(benchmark::State& state, const char* policy) {
  Nowhere nowhere;
  daemon::DeviceArbiter arbiter(runtime::PoolLayout::build(device()), {}, 1, nowhere);
  arbiter.use(std::move(*scheduler::make(policy, arbiter.context(1))));
  constexpr scheduler::ClientId kHonest = 1, kFlooding = 2;
  arbiter.attach(kHonest);
  arbiter.attach(kFlooding);
  std::uint64_t time = 1;
  std::minstd_rand random;
  for (auto unused : state) {
    (void)unused;
    time += 1'000;
    for (std::int64_t i = 0; i < state.range(0); ++i)
      arbiter.request(kFlooding, any_request(random), time);
    arbiter.request(kHonest, protocol::Ready{}, time);
    arbiter.step(time);
  }
  state.counters["of_a_lane"] = static_cast<double>(most_of_a_lane(arbiter));
}
BENCHMARK_CAPTURE(turn_beside_a_flood, fifo, "fifo")->Arg(0)->Arg(4)->Arg(64);
BENCHMARK_CAPTURE(turn_beside_a_flood, throughput, "throughput")->Arg(0)->Arg(4)->Arg(64);

// All clients request at the same time.
void burst_of_requests(benchmark::State& state, const char* policy) {
  const auto clients = static_cast<scheduler::ClientId>(state.range(0));
  for (auto unused : state) {
    (void)unused;
    Nowhere nowhere;
    daemon::DeviceArbiter arbiter(runtime::PoolLayout::build(device()), {}, 1, nowhere);
    arbiter.use(std::move(*scheduler::make(policy, arbiter.context(1))));
    for (scheduler::ClientId id = 1; id <= clients; ++id) arbiter.attach(id);
    for (scheduler::ClientId id = 1; id <= clients; ++id) arbiter.request(id, protocol::Ready{}, 1);
    arbiter.step(1);
  }
  state.SetItemsProcessed(clients * state.iterations());
}
BENCHMARK_CAPTURE(burst_of_requests, fifo, "fifo")->Arg(64)->Arg(1024);
BENCHMARK_CAPTURE(burst_of_requests, throughput, "throughput")->Arg(64)->Arg(1024);

}  // namespace
}  // namespace vitamin

BENCHMARK_MAIN();
