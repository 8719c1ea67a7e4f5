// SPDX-License-Identifier: Apache-2.0
//
// attacker SOCKET VERB: a hostile client of vitamind, until it is killed. With "-alone" behind the
// verb the same program uses memory of its own and no daemon: the load that the machine itself
// causes.
//
//   press      well-formed records of every kind and lane, as fast as its ring takes them; random
//              progress; takes grants and drops them
//   scribble   random bytes over all memory that it can write
//   crowd      holds 10,000 connections that send nothing; replaces those that the daemon closes
//
// An evicted attacker comes back as another process, since a ban is of a process.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "daemon/client/connection.h"
#include "tests/daemon/device.h"
#include "tests/time_limit.h"

namespace vitamin {
namespace {

using protocol::kLanes;
using protocol::Record;

// Counters that are printed at the end; shared with the child processes.
struct Counters {
  std::atomic<std::uint64_t> sessions{0}, records{0}, connections{0};
};
Counters* counters = nullptr;

const hal::DeviceInfo& device() {
  static const hal::DeviceInfo info = tests::device_like_an_h200();
  return info;
}

// A session that it attacks, or memory of its own.
struct Target {
  std::unique_ptr<client::DaemonConnection> connection;
  protocol::ClientSegment* mine = nullptr;
  protocol::DaemonSegment* own = nullptr;  // without a daemon: this process writes it
  const protocol::DaemonSegment* theirs = nullptr;

  void ring() const {
    static const protocol::Fd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (connection != nullptr)
      protocol::ring_doorbell(connection->socket);
    else
      static_cast<void>(!::write(nowhere.get(), "", 1));
  }
  bool is_evicted() const {
    if (connection == nullptr) return false;
    pollfd socket{connection->socket.get(), 0, 0};
    return ::poll(&socket, 1, 0) > 0 && (socket.revents & (POLLHUP | POLLERR)) != 0;
  }
};

class Records {
 public:
  explicit Records(std::size_t partitions) : partitions_(partitions) {}

  // A random valid record.
  Record next() {
    const std::uint64_t dice = random_();
    const auto lane = static_cast<std::uint32_t>(random_() % kLanes);
    switch (dice % 8) {
      case 0:
        return of(protocol::Idle{}, lane);
      case 1:
        return hint(lane);
      case 2: {
        protocol::Timed timed;
        timed.mean_ns = 1 + random_() % 1'000'000;
        timed.launches = 1 + static_cast<std::uint32_t>(random_() % 100);
        timed.sms = 1 + static_cast<std::uint32_t>(random_() % 132);
        return of(timed, lane);
      }
      case 3: {
        protocol::Returned returned;
        returned.word = random_();
        returned.partition = static_cast<std::uint32_t>(random_() % partitions_);
        return of(returned, lane);
      }
      case 4: {
        protocol::Holding holding;
        holding.word = random_();
        holding.partition = 1 + static_cast<std::uint32_t>(random_() % (partitions_ - 1));
        return of(holding, lane);
      }
      default:
        return ready(lane);
    }
  }

 private:
  template <class T>
  static Record of(T typed, std::uint32_t lane) {
    typed.head.lane = lane;
    return protocol::encode(typed);
  }
  Record ready(std::uint32_t lane) {
    protocol::Ready ready;
    ready.sms = 1 + static_cast<std::uint32_t>(random_() % 133);
    ready.predicted_ns = random_() % 1'000'000;
    ready.deadline_in_ns = random_() % 2 * (random_() % 1'000'000);
    ready.moves_on = random_() % 2;
    ready.iteration_end = random_() % 2;
    ready.kind = static_cast<std::uint8_t>(random_() % 4);
    return of(ready, lane);
  }
  Record hint(std::uint32_t lane) {
    protocol::HintRecord hint;
    hint.sms = static_cast<std::uint32_t>(random_() % 133);
    hint.ready_in_ns = random_() % 1'000'000;
    hint.cancelled = random_() % 4 == 0;
    hint.kind = static_cast<std::uint8_t>(random_() % 4);
    return of(hint, lane);
  }
  std::size_t partitions_;
  std::mt19937_64 random_{7};
};

void press(const Target& target) {
  Records records(runtime::PoolLayout::build(device()).size());
  protocol::RequestProducer requests(target.mine->requests, target.mine->request_tail,
                                     target.theirs->request_head);
  protocol::RequestConsumer own_reader;
  if (target.own != nullptr)
    own_reader = {target.mine->requests, target.mine->request_tail, target.own->request_head};
  for (std::uint64_t turn = 0; turn % 256 != 0 || !target.is_evicted(); ++turn) {
    for (int i = 0; i < 16; ++i)
      if (requests.write(records.next()) == protocol::RingState::kOk)
        counters->records.fetch_add(1, std::memory_order_relaxed);
    requests.publish();
    if (target.connection == nullptr || target.theirs->sleep_flag.asleep()) target.ring();
    target.mine->operations.store(turn * 0x9e3779b97f4a7c15, std::memory_order_relaxed);
    target.mine->launches.store(turn * 0x9e3779b97f4a7c15, std::memory_order_relaxed);
    target.mine->work.store(turn * 0xd1342543de82ef95, std::memory_order_relaxed);
    target.mine->misplaced.store(turn * 0xaf251af3b0f025b5, std::memory_order_relaxed);
    target.mine->busy_ns.store(0 - turn, std::memory_order_relaxed);
    target.mine->grant_head.store(target.theirs->grant_tail.load(std::memory_order_acquire),
                                  std::memory_order_release);
    if (target.own == nullptr) continue;
    for (Record copy; own_reader.read(copy) == protocol::RingState::kOk;) own_reader.release();
  }
}

void scribble(const Target& target) {
  static std::mt19937_64 random(counters->sessions.load());  // another seed in each session
  auto* const bytes = reinterpret_cast<unsigned char*>(target.mine);
  while (!target.is_evicted())
    for (int i = 0; i < 1000; ++i) {
      const std::uint64_t value = random();
      std::memcpy(bytes + random() % (sizeof(protocol::ClientSegment) - 8), &value, 8);
      if (i % 100 == 0) target.ring();
    }
}

Target new_session(const std::string& socket) {
  Target target;
  auto made = client::connect(socket, device(), "attacker", {},
                              std::chrono::duration_cast<std::chrono::milliseconds>(
                                  test::time_limit(std::chrono::milliseconds(3000))));
  if (!made) return target;
  target.connection = std::move(*made);
  target.mine = target.connection->memory.client.get();
  target.theirs = target.connection->memory.daemon.get();
  return target;
}

Target own_memory() {
  Target target;
  target.mine = new protocol::ClientSegment();
  target.theirs = target.own = new protocol::DaemonSegment();
  return target;
}

[[noreturn]] void attack_repeatedly(const std::string& socket, void (*attack)(const Target&)) {
  for (;;) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGTERM, SIG_DFL);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const Target target = new_session(socket);
      if (target.mine == nullptr) {
        ::usleep(1000);
        ::_exit(1);
      }
      counters->sessions.fetch_add(1);
      attack(target);
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
  }
}

[[noreturn]] void crowd(const std::string& socket) {
  constexpr std::size_t kMany = 10'000;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  std::vector<protocol::Fd> open(kMany);
  for (std::size_t i = 0;; i = (i + 1) % kMany) {
    if (open[i]) {
      pollfd state{open[i].get(), 0, 0};
      if (::poll(&state, 1, 0) == 0) continue;
    }
    auto made = protocol::connect_to(socket);
    if (!made) {  // the queue is full, or no descriptor is left
      ::usleep(50);
      continue;
    }
    open[i] = std::move(*made);
    counters->connections.fetch_add(1, std::memory_order_relaxed);
  }
}

// The same system calls and memory, without a daemon.
[[noreturn]] void crowd_alone() {
  constexpr std::size_t kMany = 10'000;
  std::vector<protocol::Fd> open(kMany);
  for (std::size_t i = 0;; i = (i + 1) % kMany) {
    open[i] = protocol::Fd(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    ::usleep(50);
  }
}

int run(int argc, char** argv) {
  const std::string socket = argc > 1 ? argv[1] : "", verb = argc > 2 ? argv[2] : "";
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  void* const shared =
      ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  counters = new (shared) Counters;
  ::signal(SIGTERM, [](int) {
    char line[160];
    const int length = std::snprintf(
        line, sizeof line, "{\"sessions\": %llu, \"records\": %llu, \"connections\": %llu}\n",
        static_cast<unsigned long long>(counters->sessions),
        static_cast<unsigned long long>(counters->records),
        static_cast<unsigned long long>(counters->connections));
    static_cast<void>(!::write(STDOUT_FILENO, line, static_cast<std::size_t>(length)));
    ::_exit(0);
  });
  if (verb == "press") attack_repeatedly(socket, &press);
  if (verb == "scribble") attack_repeatedly(socket, &scribble);
  if (verb == "crowd") crowd(socket);
  if (verb == "press-alone") press(own_memory());
  if (verb == "scribble-alone") scribble(own_memory());
  if (verb == "crowd-alone") crowd_alone();
  std::fprintf(stderr, "usage: attacker SOCKET press|scribble|crowd[-alone]\n");
  return 2;
}

}  // namespace
}  // namespace vitamin

int main(int argc, char** argv) { return vitamin::run(argc, argv); }
