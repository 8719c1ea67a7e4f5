// SPDX-License-Identifier: Apache-2.0
//
// The client's thread and connections against a daemon that does only what the test says.
#include "daemon/client/remote_arbiter.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
#include <vector>

#include "tests/time_limit.h"

namespace vitamin::client {
namespace {

using protocol::LaneId;
using runtime::kNoPartition;
using runtime::PartitionId;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

const hal::DeviceInfo kInfo{hal::Vendor::kSoftware, "d", "GPU-0", 16, {4, 4, 4, 4}, 1000};
constexpr std::uint32_t kEpoch = 7;

// Welcomes every client; reads no ring, and its counter of turns stands still.
class Puppet {
 public:
  struct Session {
    protocol::Fd socket;
    protocol::SessionMemory memory;
    protocol::DaemonEnds rings;
    bool closed() const {
      pollfd watched{socket.get(), POLLIN, 0};
      return ::poll(&watched, 1, 0) > 0 && (watched.revents & POLLHUP) != 0;
    }
    void grant(LaneId lane, PartitionId partition) {
      protocol::Grant grant;
      grant.head.lane = lane;
      grant.partition = partition;
      grant.launches = runtime::kUntilRevoked;
      grant.word = protocol::lease_word(kEpoch, 1, protocol::GateState::kOpen);
      memory.daemon->leases[lane].store(grant.word);
      REQUIRE(rings.grants.write(protocol::encode(grant)) == protocol::RingState::kOk);
      rings.grants.publish();
    }
    std::vector<protocol::Request> read() {
      std::vector<protocol::Request> all;
      protocol::Record copy;
      while (rings.requests.read(copy) == protocol::RingState::kOk)
        all.push_back(*protocol::decode_request(copy, {layout().size(), layout().at(0).sms}));
      rings.requests.release();
      return all;
    }
  };

  Puppet() {
    REQUIRE(::mkdtemp(directory_) != nullptr);
    listener_ = std::move(*protocol::listen_at(path(), 0600));
    thread_ = std::thread([this] {
      while (!stopping_) welcome();
    });
  }
  ~Puppet() {
    if (thread_.joinable()) welcome_no_more();
    ::rmdir(directory_);
  }
  void welcome_no_more() {
    stopping_ = true;
    thread_.join();
    listener_ = {};
    ::unlink(path().c_str());
  }
  static const runtime::PoolLayout& layout() {
    static const auto made = runtime::PoolLayout::build(kInfo);
    return made;
  }
  std::string path() const { return std::string(directory_) + "/s"; }
  std::size_t many() {
    const std::lock_guard lock(mutex_);
    return sessions_.size();
  }
  Session& at(std::size_t index) {
    const std::lock_guard lock(mutex_);
    return *sessions_.at(index);
  }

 private:
  void welcome() {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 10) <= 0) return;
    auto session = std::make_unique<Session>();
    session->socket = std::move(*protocol::accept_from(listener_));
    waiting.fd = session->socket.get();
    ::poll(&waiting, 1, -1);
    if (!protocol::receive_message(session->socket, protocol::kGreetingMax)) return;
    session->memory = std::move(*protocol::make_session_memory());
    session->rings = {*session->memory.daemon, *session->memory.client};
    protocol::Welcome welcome;
    welcome.preamble.kind = protocol::MessageKind::kWelcome;
    welcome.epoch = kEpoch;
    const runtime::PoolLimits limits;
    welcome.partitions_max = limits.partitions_max;
    welcome.leaf_units = limits.leaf_units;
    welcome.all_runs = limits.all_runs ? 1 : 0;
    welcome.fallback = layout().find(hal::ComputeSet(0b0001));
    welcome.pool_hash = protocol::hash_of(layout());
    welcome.answer_within_ns = 1'000'000'000;
    const int fds[] = {session->memory.client_fd.get(), session->memory.daemon_fd.get()};
    const Session& made = *session;
    {
      const std::lock_guard lock(mutex_);
      sessions_.push_back(std::move(session));
    }
    (void)protocol::send_message(made.socket, protocol::bytes_of(welcome), fds);
  }

  char directory_[64] = "/tmp/vitamin-puppet-XXXXXX";
  protocol::Fd listener_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Session>> sessions_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// A client that takes the daemon for lost after `poll_timeout`, and waits for its greeting for as
// long as this machine needs.
RemoteOptions options_for(const Puppet& daemon, milliseconds poll_timeout) {
  RemoteOptions options;
  options.socket = daemon.path();
  options.poll_timeout = poll_timeout;
  options.handshake_timeout =
      std::chrono::duration_cast<milliseconds>(test::time_limit(options.handshake_timeout));
  return options;
}

}  // namespace

TEST_CASE("a process with few descriptors either connects or closes its connection") {
#if defined(__SANITIZE_ADDRESS__)
  // UndefinedBehaviorSanitizer reads an object's type through a pipe, and reports a wrong type when
  // no descriptor is left.
  MESSAGE("not with sanitizers that need descriptors themselves");
  return;
#endif
  // Fork before there are threads: the child starts threads, which ThreadSanitizer refuses in a
  // child of a multi-threaded process.
  int paths[2];
  REQUIRE(::pipe(paths) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::close(paths[1]);
    char path[64] = {};
    if (::read(paths[0], path, sizeof path - 1) <= 0) ::_exit(2);
    ::close(paths[0]);
    const auto limit = test::time_limit(std::chrono::seconds(20));
    ::alarm(static_cast<unsigned>(std::chrono::duration_cast<std::chrono::seconds>(limit).count()));
    const int next = ::dup(0);  // the lowest free descriptor
    bool made = false, refused = false;
    for (int most = next; most < next + 16; ++most) {
      const rlimit files{static_cast<rlim_t>(most), static_cast<rlim_t>(next + 32)};
      ::setrlimit(RLIMIT_NOFILE, &files);
      RemoteOptions options;
      options.socket = path;
      const bool connected = RemoteArbiter::connect(options, kInfo).has_value();
      (connected ? made : refused) = true;
    }
    ::_exit(made && refused ? 0 : 1);
  }
  Puppet daemon;
  const std::string path = daemon.path();
  CHECK(::write(paths[1], path.data(), path.size()) == static_cast<ssize_t>(path.size()));
  ::close(paths[0]);
  ::close(paths[1]);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("lost sessions stay open until the daemon has read the reports of their work") {
  Puppet daemon;
  const RemoteOptions options = options_for(daemon, milliseconds(40));
  auto made = RemoteArbiter::connect(options, kInfo);
  REQUIRE(made);
  RemoteArbiter& arbiter = **made;
  std::vector<PartitionId> eligible;
  for (const runtime::Partition& partition : Puppet::layout().partitions())
    if (!partition.whole()) eligible.push_back(partition.id);
  eligible.push_back(runtime::kWholeDevice);
  const auto ask = [&](LaneId lane) {
    runtime::ReadyOperation operation;
    operation.stream = lane;
    operation.sms = 1;
    return arbiter.grant(operation, eligible).partition;
  };
  const auto until = [&](auto what) {
    for (const auto end = steady_clock::now() + test::time_limit(std::chrono::seconds(20));
         !what();) {
      REQUIRE(steady_clock::now() < end);
      arbiter.service();
      ::usleep(500);
    }
  };
  const PartitionId leased = Puppet::layout().find(hal::ComputeSet(0b0011));
  ask(0);
  daemon.at(0).grant(0, leased);
  until([&] { return ask(0) == leased; });
  arbiter.submitted(leased, 0);
  for (const std::size_t sessions : {2U, 3U}) {     // lost twice
    until([&] { return ask(1) != kNoPartition; });  // in the fallback partition
    until([&] { return daemon.many() == sessions && !arbiter.client().in_fallback(); });
    for (std::size_t i = 0; i < sessions; ++i) CHECK_FALSE(daemon.at(i).closed());
  }
  const auto heard = daemon.at(2).read();
  REQUIRE_FALSE(heard.empty());
  const auto* holding = std::get_if<protocol::Holding>(&heard.front());
  REQUIRE(holding != nullptr);
  CHECK(holding->word == protocol::lease_word(kEpoch, 1, protocol::GateState::kOpen));
  CHECK(holding->partition == leased);
  until([&] { return daemon.at(0).closed() && daemon.at(1).closed(); });
  CHECK_FALSE(daemon.at(2).closed());
}

TEST_CASE("a daemon is not lost because the process stood still") {
  Puppet daemon;
  const RemoteOptions options = options_for(daemon, milliseconds(80));
  auto made = RemoteArbiter::connect(options, kInfo);
  REQUIRE(made);
  RemoteArbiter& arbiter = **made;
  const std::vector<PartitionId> eligible{Puppet::layout().find(hal::ComputeSet(0b0001)),
                                          runtime::kWholeDevice};
  runtime::ReadyOperation operation;
  operation.sms = 1;
  const auto ask = [&] { return arbiter.grant(operation, eligible).partition; };
  CHECK(ask() == kNoPartition);
  arbiter.service();
  ::usleep(200'000);
  CHECK(ask() == kNoPartition);
  arbiter.service();  // a look: the daemon had no turn for more than twice the time-out
  CHECK(ask() == kNoPartition);
  // One that has no turn between further looks is.
  const auto end = steady_clock::now() + test::time_limit(std::chrono::seconds(20));
  while (ask() == kNoPartition) {
    REQUIRE(steady_clock::now() < end);
    arbiter.service();
    ::usleep(500);
  }
}

TEST_CASE("a daemon that is lost before its session is adopted counts as lost") {
  Puppet daemon;
  // It is not noticed by its silence.
  const RemoteOptions options = options_for(daemon, std::chrono::minutes(10));
  auto made = RemoteArbiter::connect(options, kInfo);
  REQUIRE(made);
  RemoteArbiter& arbiter = **made;
  std::atomic<unsigned> changes{0};
  arbiter.on_change([&] { ++changes; });
  const auto until = [&](auto what) {
    for (const auto end = steady_clock::now() + test::time_limit(std::chrono::seconds(20));
         !what();) {
      REQUIRE(steady_clock::now() < end);
      ::usleep(500);
    }
  };
  daemon.at(0).socket = {};
  until([&] { return daemon.many() == 2 && changes >= 2; });  // lost, and another is there
  daemon.welcome_no_more();
  daemon.at(1).socket = {};
  until([&] { return changes >= 3; });  // lost as well
  arbiter.service();                    // adopts the session of the second
  runtime::ReadyOperation operation;
  operation.sms = 1;
  const std::vector<PartitionId> eligible{Puppet::layout().find(hal::ComputeSet(0b0001)),
                                          runtime::kWholeDevice};
  CHECK(arbiter.grant(operation, eligible).partition != kNoPartition);  // in the fallback partition
}

}  // namespace vitamin::client
