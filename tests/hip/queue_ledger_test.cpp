// SPDX-License-Identifier: Apache-2.0
//
// A GPU's compute queues among processes. Each ledger here stands for a process: locks belong to
// the open file. One test has a real process that dies.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "backends/hip/queue_ledger.h"

namespace vitamin::tests {
namespace {

constexpr unsigned kQueues = 20;
constexpr unsigned kEach = 2;  // the runtime's own, the default stream's; left for a newcomer, too

class Directory {
 public:
  Directory() {
    char name[] = "/tmp/vitamin-queues-XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::shared_ptr<hip::QueueLedger> process(unsigned plain_max) const {
    auto ledger = hip::QueueLedger::open(path_, "0000:c1:00.0", kQueues, plain_max);
    REQUIRE(ledger.has_value());
    return *ledger;
  }

 private:
  std::string path_;
};

struct Process {
  std::shared_ptr<hip::QueueLedger> ledger;
  std::vector<hip::QueueLedger::Ticket> streams, queues;

  // As the pipeline does: never above its share, back to it when the share shrinks.
  void keep(unsigned wanted) {
    const unsigned limit = std::min(wanted, ledger->limit());
    if (queues.size() > limit) queues.resize(limit);
    while (queues.size() < limit) {
      auto ticket = ledger->pool_queue();
      if (ticket == nullptr) break;
      queues.push_back(std::move(ticket));
    }
  }
  std::size_t held(unsigned plain) const { return 1 + plain + queues.size(); }
};

TEST_CASE("a process alone may hold what its streams leave") {
  const Directory directory;
  Process one{directory.process(4), {}, {}};
  CHECK(one.ledger->limit() == kQueues - 2 * kEach);
  for (int i = 0; i < 10; ++i) one.streams.push_back(one.ledger->stream());
  CHECK(one.ledger->limit() == kQueues - 5 - kEach);  // streams share four
  one.streams.clear();
  CHECK(one.ledger->limit() == kQueues - 2 * kEach);
  one.keep(100);
  CHECK(one.queues.size() == kQueues - 2 * kEach);
  CHECK(one.ledger->pool_queue() == nullptr);
}

TEST_CASE("processes that come and go share the rest equally and never hold more than there are") {
  const Directory directory;
  std::vector<Process> processes;
  for (unsigned count = 1; count <= 8; ++count) {
    processes.push_back({directory.process(1), {}, {}});
    const auto in_use = [&] {
      std::size_t held = 0;
      for (const Process& process : processes) held += process.held(1);
      return held;
    };
    CHECK(in_use() <= kQueues);  // before any process gave one back
    // What one gives back another may take only then.
    for (int round = 0; round < 3; ++round)
      for (Process& process : processes) process.keep(4);
    std::size_t most = 0;
    for (const Process& process : processes) most = std::max(most, process.queues.size());
    const std::size_t left = kQueues - kEach * (count + 1);
    const std::size_t share = std::min<std::size_t>(4, left / count);
    CHECK(in_use() == kEach * count + (left >= count ? share * count : left));
    CHECK(most == std::max<std::size_t>(1, share));
  }
  processes.resize(2);
  for (Process& process : processes) process.keep(4);
  for (Process& process : processes) CHECK(process.queues.size() == 4);
}

TEST_CASE("streams of the applications are never refused and take from the pools") {
  const Directory directory;
  Process one{directory.process(4), {}, {}}, other{directory.process(30), {}, {}};
  one.keep(4);
  CHECK(one.queues.size() == 4);
  for (int i = 0; i < 30; ++i) other.streams.push_back(other.ledger->stream());
  one.keep(4);
  CHECK(one.queues.empty());
  other.keep(4);
  CHECK(other.queues.empty());
  CHECK(one.ledger->limit() == 0);
}

TEST_CASE("who holds more than its share by now gives it back") {
  const Directory directory;
  Process one{directory.process(1), {}, {}}, other{directory.process(20), {}, {}};
  one.keep(4);
  other.keep(4);
  for (int i = 0; i < 9; ++i) other.streams.push_back(other.ledger->stream());
  // 20 - 2 - 11 - 2 = 5 left for two.
  one.keep(4);
  other.keep(4);
  CHECK(one.queues.size() == 2);
  CHECK(other.queues.size() == 2);
  for (int i = 0; i < 4; ++i) other.streams.push_back(other.ledger->stream());
  // One left: who has the first piece has it.
  other.keep(4);
  one.keep(4);
  other.keep(4);
  CHECK(one.queues.size() + other.queues.size() == 1);
}

TEST_CASE("a process that dies leaves nothing behind") {
  const Directory directory;
  Process one{directory.process(1), {}, {}};
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Process theirs{directory.process(1), {}, {}};
    theirs.keep(9);
    const char held = static_cast<char>(theirs.queues.size());
    if (::write(ready[1], &held, 1) != 1) ::_exit(1);
    ::pause();
  }
  char held = 0;
  REQUIRE(::read(ready[0], &held, 1) == 1);
  CHECK(held == 7);  // its share of 20 - 3 * 2
  CHECK(one.ledger->limit() == 7);
  ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(one.ledger->limit() == kQueues - 2 * kEach);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("a directory that is not there is a sentence") {
  const auto ledger = hip::QueueLedger::open("/nowhere", "gpu", kQueues, 1);
  REQUIRE(!ledger.has_value());
  CHECK(ledger.error().message.find("/nowhere/vitamin-queues-gpu") != std::string::npos);
}

}  // namespace
}  // namespace vitamin::tests
