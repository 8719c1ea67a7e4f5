// SPDX-License-Identifier: Apache-2.0
//
// Real time: the device moves by itself, waits block, host functions do not stop it, processes
// share SMs through a ledger.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "backends/soft/ledger.h"
#include "tests/soft/harness.h"
#include "tests/soft/kernels.h"
#include "tests/time_limit.h"

namespace vitamin::soft {
namespace {

std::unique_ptr<Engine> make_real() {
  return make_engine(DeviceDescription::uniform(4, 2), 1, Clock::kReal);
}

using test::eventually;

TEST_CASE("device time follows the clock and completion times are those of the model") {
  auto engine = make_real();
  Queue* queue = make_queue(*engine);
  Event* begin = nullptr;
  Event* end = nullptr;
  REQUIRE(engine->create_event(&begin) == kOk);
  REQUIRE(engine->create_event(&end) == kOk);
  // Everything is enqueued before any of it begins, so that the host's pace does not show.
  Gate* gate = engine->create_gate();
  REQUIRE(engine->wait_gate(queue, gate) == kOk);
  REQUIRE(engine->record(queue, begin) == kOk);
  for (int i = 0; i < 10; ++i) {
    Call call(VITAMIN_SOFT_KERNEL(busy), {8, 1, 1}, {1024, 1, 1}, std::uint64_t{2'000'000});
    REQUIRE(engine->launch(queue, *call) == kOk);
  }
  REQUIRE(engine->record(queue, end) == kOk);
  const auto started = std::chrono::steady_clock::now();
  engine->destroy_gate(gate);
  const auto since = [&] { return std::chrono::steady_clock::now() - started; };
  const Status at_once = engine->query(end);
  if (since() < std::chrono::milliseconds(20)) CHECK(at_once == kNotReady);
  CHECK(engine->synchronize(end) == kOk);
  CHECK(since() >= std::chrono::milliseconds(20));
  Nanoseconds from = 0, to = 0;
  REQUIRE(engine->event_time(begin, &from) == kOk);
  REQUIRE(engine->event_time(end, &to) == kOk);
  CHECK(to - from == 20'000'000);
}

TEST_CASE("a host function that blocks stops its own queue only") {
  auto engine = make_real();
  Queue* gated = make_queue(*engine);
  Queue* free_queue = make_queue(*engine);
  std::atomic<bool> go{false}, after{false};
  REQUIRE(engine->host_function(gated, [&](Status) { eventually([&] { return go.load(); }); }) ==
          kOk);
  REQUIRE(engine->work(
              gated, [&] { after = true; }, 0) == kOk);
  std::uint32_t count = 0;
  Call call(VITAMIN_SOFT_KERNEL(count_blocks), {50, 1, 1}, {64, 1, 1}, &count);
  for (int i = 0; i < 20; ++i) REQUIRE(engine->launch(free_queue, *call) == kOk);
  CHECK(engine->synchronize(free_queue) == kOk);
  CHECK(count == 1000);
  CHECK_FALSE(after);
  go = true;
  CHECK(engine->synchronize(gated) == kOk);
  CHECK(after);
}

TEST_CASE("kernels and queues that wait for memory see what the host writes") {
  auto engine = make_real();
  Queue* spinner = make_queue(*engine);
  Queue* waiter = make_queue(*engine);
  std::uint32_t flag = 0;
  Call spin(VITAMIN_SOFT_KERNEL(spin_on), {4, 1, 1}, {32, 1, 1}, (const std::uint32_t*)&flag);
  REQUIRE(engine->launch(spinner, *spin) == kOk);
  REQUIRE(engine->wait_value(waiter, &flag, 1, Width::k32, Compare::kGreaterOrEqual) == kOk);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(engine->query(spinner) == kNotReady);
  CHECK(engine->query(waiter) == kNotReady);
  store_release(&flag, 1u);
  CHECK(engine->synchronize(spinner) == kOk);
  CHECK(engine->synchronize(waiter) == kOk);
}

TEST_CASE("threads may enqueue, wait and make events at the same time") {
  auto engine = make_real();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  std::vector<std::uint64_t> values(4);
  for (std::size_t id = 0; id < values.size(); ++id)
    threads.emplace_back([&, id] {
      Queue* a = make_queue(*engine);
      Queue* b = make_queue(*engine, engine->device().unit(static_cast<std::uint32_t>(id)));
      for (int i = 0; i < 50; ++i) {
        Event* event = nullptr;
        if (engine->create_event(&event) != kOk) ++wrong;
        std::uint64_t* const value = &values[id];
        if (engine->work(
                a, [value] { ++*value; }, 1000) != kOk)
          ++wrong;
        if (engine->record(a, event) != kOk || engine->wait(b, event) != kOk) ++wrong;
        Call call(VITAMIN_SOFT_KERNEL(add_later), {}, {}, (const std::uint64_t*)value, value,
                  std::uint64_t{1}, std::uint64_t{1000});
        if (engine->launch(b, *call) != kOk) ++wrong;
        if (engine->record(b, event) != kOk || engine->wait(a, event) != kOk) ++wrong;
        if (i % 10 == 0 && engine->synchronize(event) != kOk) ++wrong;
        engine->destroy_event(event);
      }
      if (engine->synchronize(a) != kOk || engine->synchronize(b) != kOk) ++wrong;
      engine->destroy_queue(a);
      engine->destroy_queue(b);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  for (const std::uint64_t value : values) CHECK(value == 100);
  CHECK(engine->outstanding() == 0);
}

TEST_CASE("threads may share one engine in virtual time") {
  auto engine = make_engine(DeviceDescription::uniform(4, 2));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  std::vector<std::uint64_t> values(4);
  for (std::uint64_t& value : values)
    threads.emplace_back([&] {
      Queue* queue = make_queue(*engine);
      for (int i = 0; i < 200; ++i) {
        std::uint64_t* const at = &value;
        if (engine->work(
                queue, [at] { ++*at; }, 10) != kOk)
          ++wrong;
        if (i % 5 == 0 && engine->synchronize(queue) != kOk) ++wrong;
      }
      if (engine->synchronize(queue) != kOk) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  for (const std::uint64_t value : values) CHECK(value == 200);
}

TEST_CASE("an engine with unfinished work can be destroyed") {
  auto engine = make_real();
  std::uint32_t never = 0;
  Call spin(VITAMIN_SOFT_KERNEL(spin_on), {200, 1, 1}, {512, 1, 1}, (const std::uint32_t*)&never);
  Call sleep(VITAMIN_SOFT_KERNEL(busy), {}, {}, std::uint64_t{60'000'000'000});
  REQUIRE(engine->launch(make_queue(*engine), *spin) == kOk);
  Queue* queue = make_queue(*engine);
  REQUIRE(engine->launch(queue, *sleep) == kOk);
  REQUIRE(engine->launch(queue, *spin) == kOk);
  REQUIRE(engine->work(
              queue, [text = std::string(100, 'x')] { CHECK(!text.empty()); }, 0) == kOk);
  CHECK(engine->query(queue) == kNotReady);
}

// ------------------------------------------------------------------------------ several processes

class LedgerPath {
 public:
  LedgerPath() {
    char name[] = "/tmp/vitamin-ledger-XXXXXX";
    const int fd = mkstemp(name);
    REQUIRE(fd >= 0);
    close(fd);
    path_ = name;
  }
  ~LedgerPath() { std::remove(path_.c_str()); }
  LedgerPath(const LedgerPath&) = delete;
  LedgerPath& operator=(const LedgerPath&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::unique_ptr<Engine> attach(const LedgerPath& ledger) {
  EngineOptions options;
  options.device = DeviceDescription::uniform(4, 2);
  options.clock = Clock::kReal;
  options.ledger_path = ledger.path();
  auto engine = Engine::create(std::move(options));
  return engine ? std::move(*engine) : nullptr;
}

// Runs `body` in a child process that leaves without destructors of its parent's objects.
template <class Body>
pid_t in_child(Body body) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) _exit(body() ? 0 : 1);
  return pid;
}

bool succeeded(pid_t pid) {
  int status = -1;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A word that parent and children share: children begin together.
class Start {
 public:
  Start()
      : ready_(static_cast<std::uint32_t*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Start() { munmap(ready_, 4096); }
  Start(const Start&) = delete;
  Start& operator=(const Start&) = delete;
  bool together(std::uint32_t processes) {
    atomic_add(ready_, 1u);
    return eventually([&] { return load_acquire(ready_) >= processes; });
  }

 private:
  std::uint32_t* ready_;
};

bool run_kernels(const LedgerPath& ledger, Start& start, std::uint64_t units, int kernels,
                 std::uint32_t blocks) {
  auto engine = attach(ledger);
  if (engine == nullptr || !start.together(2)) return false;
  QueueOptions options;
  options.sms = engine->device().units_of(units);
  Queue* queue = nullptr;
  if (engine->create_queue(options, &queue) != kOk) return false;
  const KernelDescriptor* kernel = VITAMIN_SOFT_KERNEL(busy);
  const std::uint64_t ns = 2'000'000;
  for (int i = 0; i < kernels; ++i) {
    Launch launch;
    launch.kernel = kernel;
    launch.grid = {blocks, 1, 1};
    launch.block = {1024, 1, 1};
    launch.parameters = &ns;
    if (engine->launch(queue, launch) != kOk) return false;
  }
  return engine->synchronize(queue) == kOk;
}

TEST_CASE("processes on disjoint SMs never meet and on the same SMs they do") {
  // Half a SM's threads each, so that two processes fit together where they meet: one that gets no
  // processor for a while may come when the other one's few kernels are over.
  bool met = false;
  for (int kernels = 20; !met && kernels <= 20'000; kernels *= 10)
    for (const bool disjoint : {true, false}) {
      LedgerPath ledger;
      Start start;
      const pid_t a = in_child([&] { return run_kernels(ledger, start, 0x3, kernels, 4); });
      const pid_t b =
          in_child([&] { return run_kernels(ledger, start, disjoint ? 0xc : 0x3, kernels, 4); });
      CHECK(succeeded(a));
      CHECK(succeeded(b));
      auto engine = attach(ledger);
      REQUIRE(engine != nullptr);
      std::uint32_t most = 0;
      Nanoseconds shared = 0;
      std::uint64_t blocks = 0;
      for (const SmSharing& sm : engine->sharing()) {
        most = std::max(most, sm.processes_max);
        shared += sm.shared_ns;
        blocks += sm.blocks;
        CHECK(sm.processes_now == 0);
      }
      CHECK(blocks == 8 * static_cast<std::uint64_t>(kernels));
      CHECK(most <= (disjoint ? 1 : 2));
      CHECK((shared != 0) == (most == 2));
      met = most == 2;
    }
  CHECK(met);
}

TEST_CASE("two processes that fill the same SMs take turns") {
  // Each alone would need 10 ms. A device that gets no processor until the other one's work has
  // ended catches up with its own time, so that both need no longer: then once more.
  bool took_both_times = false;
  for (int tries = 0; tries < 100 && !took_both_times; ++tries) {
    LedgerPath ledger;
    Start start;
    const auto started = std::chrono::steady_clock::now();
    const pid_t a = in_child([&] { return run_kernels(ledger, start, 0xf, 5, 16); });
    const pid_t b = in_child([&] { return run_kernels(ledger, start, 0xf, 5, 16); });
    CHECK(succeeded(a));
    CHECK(succeeded(b));
    took_both_times = std::chrono::steady_clock::now() - started >= std::chrono::milliseconds(20);
    auto engine = attach(ledger);
    REQUIRE(engine != nullptr);
    std::uint64_t blocks = 0;
    for (const SmSharing& sm : engine->sharing()) {
      CHECK(sm.processes_max == 1);
      blocks += sm.blocks;
    }
    CHECK(blocks == 2 * 5 * 16);
  }
  CHECK(took_both_times);
}

TEST_CASE("what a killed process held is given to the others") {
  LedgerPath ledger;
  std::uint32_t never = 0;
  const pid_t victim = in_child([&] {
    auto engine = attach(ledger);
    if (engine == nullptr) return false;
    QueueOptions options;
    options.sms = engine->device().all();
    Queue* queue = nullptr;
    const std::uint32_t* flag = &never;
    Launch launch;
    launch.kernel = VITAMIN_SOFT_KERNEL(spin_on);
    launch.grid = {16, 1, 1};
    launch.block = {1024, 1, 1};
    launch.parameters = &flag;
    if (engine->create_queue(options, &queue) != kOk || engine->launch(queue, launch) != kOk)
      return false;
    pause();
    return true;
  });
  auto engine = attach(ledger);
  REQUIRE(engine != nullptr);
  CHECK(eventually([&] { return engine->sharing()[7].processes_now == 1; }));
  Queue* queue = make_queue(*engine);
  std::uint32_t count = 0;
  Call call(VITAMIN_SOFT_KERNEL(count_blocks), {16, 1, 1}, {1024, 1, 1}, &count);
  REQUIRE(engine->launch(queue, *call) == kOk);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(engine->query(queue) == kNotReady);
  kill(victim, SIGKILL);
  CHECK(engine->synchronize(queue) == kOk);
  CHECK(count == 16);
  int status = 0;
  CHECK(waitpid(victim, &status, 0) == victim);
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("a process that dies inside the ledger's lock leaves it usable") {
  LedgerPath path;
  const pid_t victim = in_child([&] {
    auto ledger = ResidencyLedger::attach(path.path(), 8);
    if (!ledger) return false;
    (*ledger)->lock();
    (*ledger)->take(3, SmUsage{1024, 1, 4096, 0});
    kill(getpid(), SIGKILL);
    return true;
  });
  int status = 0;
  REQUIRE(waitpid(victim, &status, 0) == victim);
  REQUIRE(WIFSIGNALED(status));
  auto ledger = ResidencyLedger::attach(path.path(), 8);
  REQUIRE(ledger.has_value());
  (*ledger)->lock();
  CHECK((*ledger)->totals()[3].blocks == 0);
  CHECK((*ledger)->totals()[3].threads == 0);
  CHECK((*ledger)->sharing()[3].processes_now == 0);
  CHECK((*ledger)->sharing()[3].processes_max == 1);
  (*ledger)->unlock();
}

TEST_CASE("a file that is no ledger of this device is refused") {
  LedgerPath ledger;
  {
    auto engine = attach(ledger);
    REQUIRE(engine != nullptr);
  }
  EngineOptions options;
  options.device = DeviceDescription::uniform(4, 3);
  options.clock = Clock::kReal;
  options.ledger_path = ledger.path();
  CHECK_FALSE(Engine::create(options).has_value());
  options.ledger_path = "/proc/version";
  CHECK_FALSE(Engine::create(options).has_value());
}

}  // namespace
}  // namespace vitamin::soft
