// SPDX-License-Identifier: Apache-2.0
//
// Sockets and shared memory: listening, connecting, messages, and what the kernel refuses to a
// client.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "daemon/protocol/handshake.h"
#include "daemon/protocol/liveness.h"
#include "daemon/protocol/session_memory.h"
#include "daemon/protocol/socket.h"
#include "tests/time_limit.h"

namespace vitamin::protocol {

namespace {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/vitamin-protocol-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TemporaryDirectory() {
    ::unlink(socket().c_str());
    ::rmdir(path_.c_str());
  }
  std::string socket() const { return path_ + "/s"; }

 private:
  std::string path_;
};

struct Pair {
  Fd client, daemon;
};
Pair make_pair_of_sockets() {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd) count += ::fcntl(fd, F_GETFD) != -1;
  return count;
}

// Time limit of poll() for an event that is due at once.
int hang_ms() {
  using std::chrono::milliseconds;
  return static_cast<int>(
      std::chrono::ceil<milliseconds>(test::time_limit(milliseconds(5000))).count());
}

}  // namespace

TEST_CASE("a stale socket is replaced, a live one is not") {
  const TemporaryDirectory directory;
  {
    const auto first = listen_at(directory.socket(), 0600);
    REQUIRE(first);
    const auto second = listen_at(directory.socket(), 0600);
    REQUIRE_FALSE(second);
    CHECK(second.error().message.find("another vitamind") != std::string::npos);
  }
  CHECK_FALSE(connect_to(directory.socket()));  // the file is there, no process listens
  CHECK(listen_at(directory.socket(), 0600));
}

TEST_CASE("connect_to() waits while the accept queue is full, and no daemon replaces the socket") {
  const TemporaryDirectory directory;
  const auto listener = listen_at(directory.socket(), 0600);
  REQUIRE(listener);
  REQUIRE_EQ(::listen(listener->get(), 1), 0);  // a queue of two
  std::vector<Fd> queue;
  for (;;) {
    auto next = connect_to(directory.socket());
    if (!next) {
      CHECK_EQ(next.error().native, EAGAIN);
      break;
    }
    queue.push_back(std::move(*next));
  }
  CHECK_GE(queue.size(), 1);
  const auto second = listen_at(directory.socket(), 0600);
  REQUIRE_FALSE(second);
  CHECK(second.error().message.find("another vitamind") != std::string::npos);
  std::thread daemon([&] {
    ::usleep(50'000);
    CHECK(accept_from(*listener));
  });
  CHECK(connect_to(directory.socket(), std::chrono::milliseconds(hang_ms())));
  daemon.join();
}

TEST_CASE("the socket of a daemon that is being killed is replaced") {
  using std::chrono::steady_clock;
  // A daemon that does not answer for 2 s counts as live: where its end took that long, once more.
  for (bool in_time = false; !in_time;) {
    const TemporaryDirectory directory;
    const pid_t child = ::fork();
    if (child == 0) {
      const auto listener = listen_at(directory.socket(), 0600);
      for (;;) ::pause();
    }
    while (!connect_to(directory.socket())) ::usleep(1000);
    const auto begin = steady_clock::now();
    std::thread killer([&] {
      ::usleep(100'000);  // the time that its end takes
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
      in_time = steady_clock::now() - begin < std::chrono::seconds(2);
    });
    const auto replaced = listen_at(directory.socket(), 0600);
    killer.join();
    CHECK((replaced.has_value() || !in_time));
  }
}

TEST_CASE("daemons that start at the same time check the path one after another") {
  const TemporaryDirectory directory;
  const std::string path = directory.socket();
  Fd looking(::open(path.substr(0, path.rfind('/')).c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(::flock(looking.get(), LOCK_EX) == 0);
  std::string refused;
  std::thread second([&] {
    const auto listener = listen_at(path, 0600);
    refused = listener ? "" : listener.error().message;
  });
  ::usleep(50'000);
  CHECK(::access(path.c_str(), F_OK) != 0);  // it waits
  // The first daemon has found no other, and listens.
  ::unlink(path.c_str());
  const Fd first(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  REQUIRE(::bind(first.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(first.get(), 8) == 0);
  looking.reset();
  pollfd asked{first.get(), POLLIN, 0};
  if (::poll(&asked, 1, hang_ms()) > 0) {
    const auto visitor = accept_from(first);
    asked.fd = visitor->get();
    ::poll(&asked, 1, hang_ms());
    CHECK(receive_message(*visitor, kGreetingMax));
    // It has hung up if it waited for 2 s.
    static_cast<void>(send_message(*visitor, bytes_of(Control{})));
  }
  second.join();
  CHECK(refused.find("another vitamind listens") != std::string::npos);
}

TEST_CASE("a daemon that refuses every connection counts as live") {
  const TemporaryDirectory directory;
  const auto listener = listen_at(directory.socket(), 0600);
  REQUIRE(listener);
  // As a daemon whose connection quota is used up: it hangs up before it has read a message.
  std::atomic<bool> over{false};
  std::thread daemon([&] {
    while (!over) {
      const auto visitor = accept_from(*listener);
      if (visitor) (void)send_message(*visitor, bytes_of(refusal("too many connections")));
    }
  });
  for (int i = 0; i < 50; ++i) {
    const auto second = listen_at(directory.socket(), 0600);
    CHECK_FALSE(second);
    CHECK(connect_to(directory.socket()));
  }
  over = true;
  daemon.join();
}

TEST_CASE("exchange() returns the refusal of a daemon that hung up before it read the message") {
  const TemporaryDirectory directory;
  const auto listener = listen_at(directory.socket(), 0600);
  REQUIRE(listener);
  const auto client = connect_to(directory.socket());
  REQUIRE(client);
  {
    const auto visitor = accept_from(*listener);
    REQUIRE(visitor);
    REQUIRE(send_message(*visitor, bytes_of(refusal("too many connections"))));
  }
  const auto answer = exchange(*client, bytes_of(Hello{}), 4096, std::chrono::milliseconds(5000));
  REQUIRE(answer);
  const auto refused = parse<Refusal>(answer->bytes);
  REQUIRE(refused);
  CHECK(refused->sentence.get() == "too many connections");
  // The next one returns an empty message: the daemon has closed.
  const auto end = exchange(*client, bytes_of(Hello{}), 4096, std::chrono::milliseconds(5000));
  REQUIRE(end);
  CHECK(end->bytes.empty());
}

TEST_CASE("a socket file is removed by the daemon that made it only") {
  const TemporaryDirectory directory;
  PlacedFile first_file, second_file;
  auto first = listen_at(directory.socket(), 0600, &first_file);
  REQUIRE(first);
  ::unlink(directory.socket().c_str());
  auto second = listen_at(directory.socket(), 0600, &second_file);
  REQUIRE(second);
  first->reset();
  first_file.remove();
  CHECK(connect_to(directory.socket()));
  second->reset();
  second_file.remove();
  CHECK(::access(directory.socket().c_str(), F_OK) != 0);
}

TEST_CASE("a client that finds the socket at its path can connect") {
  const TemporaryDirectory directory;
  // Odd while a listener is being closed: from before its file is unlinked.
  std::atomic<int> stage{0};
  std::atomic<bool> over{false};
  std::atomic<int> found{0}, refused{0};
  std::thread client([&] {
    struct stat file {};
    while (!over) {
      const int before = stage;
      if (before % 2 != 0 || ::lstat(directory.socket().c_str(), &file) != 0) continue;
      ++found;
      const auto connected = connect_to(directory.socket());
      // A full accept queue is no refusal: no thread accepts here.
      refused += !connected && connected.error().native != EAGAIN && stage == before;
    }
  });
  for (int i = 0; i < 2000; ++i) {
    {
      PlacedFile file;
      auto listener = listen_at(directory.socket(), 0600, &file);
      REQUIRE(listener);
      const int before = found;
      while (found == before) ::sched_yield();
      ++stage;
      // Gone from its path before it is closed.
      ::unlink(directory.socket().c_str());
    }
    ++stage;
  }
  over = true;
  client.join();
  CHECK(refused == 0);
}

TEST_CASE("a path that is too long for the suffix .new can be listened at") {
  const TemporaryDirectory directory;
  const std::string path = directory.socket() + std::string(107 - directory.socket().size(), 'x');
  {
    PlacedFile file;
    auto listener = listen_at(path, 0600, &file);
    REQUIRE(listener);
    CHECK(connect_to(path));
    CHECK_FALSE(listen_at(path, 0600));
    listener->reset();
    CHECK(listen_at(path, 0600));  // which replaces the stale one
  }
  ::unlink(path.c_str());
}

TEST_CASE("the mode of the socket is what was asked for") {
  const TemporaryDirectory directory;
  const auto listener = listen_at(directory.socket(), 0660);
  REQUIRE(listener);
  struct stat facts {};
  REQUIRE(::stat(directory.socket().c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0660);
}

TEST_CASE("something else at the socket's path is left alone") {
  const TemporaryDirectory directory;
  const Fd file(::open(directory.socket().c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  REQUIRE(file);
  CHECK_FALSE(listen_at(directory.socket(), 0600));
  struct stat facts {};
  CHECK(::stat(directory.socket().c_str(), &facts) == 0);
  CHECK(S_ISREG(facts.st_mode));
}

TEST_CASE("the kernel reports the user and process of a client, and its end") {
  const TemporaryDirectory directory;
  const auto listener = listen_at(directory.socket(), 0600);
  REQUIRE(listener);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto socket = connect_to(directory.socket());
    for (;;) ::pause();
  }
  hal::Result<Fd> accepted = accept_from(*listener);
  while (!accepted) accepted = accept_from(*listener);
  const auto peer = peer_of(*accepted);
  REQUIRE(peer);
  CHECK(peer->uid == ::getuid());
  CHECK(peer->pid == child);
  pollfd ended{peer->pidfd.get(), POLLIN, 0};
  CHECK(::poll(&ended, 1, 0) == 0);
  ::kill(child, SIGKILL);
  CHECK(::poll(&ended, 1, hang_ms()) == 1);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("descriptors that a client sends are never installed") {
  const Pair pair = make_pair_of_sockets();
  const int before = open_descriptors();
  const int foreign[] = {0, 1, 2};
  const Hello hello;
  for (int i = 0; i < 10; ++i) REQUIRE(send_message(pair.client, bytes_of(hello), foreign));
  for (int i = 0; i < 10; ++i) REQUIRE(receive_message(pair.daemon, sizeof hello));
  CHECK(open_descriptors() == before);
}

// A daemon that received one would close it, and could block in that for as long as the client sets
// with SO_LINGER.
TEST_CASE("a client cannot send a descriptor, and the daemon can") {
  const TemporaryDirectory directory;
  const auto listener = listen_at(directory.socket(), 0600);
  REQUIRE(listener);
  int on = 1;
  socklen_t size = sizeof on;
  constexpr int kPassRights = 83;  // SO_PASSRIGHTS
  if (::getsockopt(listener->get(), SOL_SOCKET, kPassRights, &on, &size) != 0) {
    MESSAGE("not tried: before Linux 6.16 descriptors are discarded, not refused");
    return;
  }
  CHECK(on == 0);
  const auto client = connect_to(directory.socket());
  REQUIRE(client);
  const int foreign[] = {0};
  CHECK_FALSE(send_message(*client, bytes_of(Hello{}), foreign));
  const auto accepted = accept_from(*listener);
  REQUIRE(accepted);
  CHECK_FALSE(send_message(*client, bytes_of(Hello{}), foreign));
  CHECK(send_message(*accepted, bytes_of(Hello{}), foreign));
  CHECK(send_message(*client, bytes_of(Hello{})));
}

TEST_CASE("a wait for a daemon that does not answer ends when it is cancelled") {
  const TemporaryDirectory directory;
  const auto listener = listen_at(directory.socket(), 0600);
  REQUIRE(listener);
  const auto client = connect_to(directory.socket());
  REQUIRE(client);
  const Fd cancel(::eventfd(0, EFD_CLOEXEC));
  const WaitLimit hours{std::chrono::hours(24), cancel.get()};
  std::thread canceller([&] {
    ::usleep(50'000);
    ::eventfd_write(cancel.get(), 1);
  });
  const auto answer = receive_parcel(*client, 64, hours);
  canceller.join();
  REQUIRE_FALSE(answer);
  CHECK(answer.error().code == hal::Errc::kUnavailable);
  CHECK_FALSE(receive_parcel(*client, 64, hours));  // also when it was cancelled before the call
  // A message that has arrived is received even then.
  const auto accepted = accept_from(*listener);
  REQUIRE(accepted);
  REQUIRE(send_message(*accepted, std::as_bytes(std::span("well"))));
  CHECK(receive_parcel(*client, 64, hours));
}

// Profilers send signals to programs; the first use of a device must not fail because of them.
TEST_CASE("signals neither end the wait for an answer nor make it longer than its limit") {
  const TemporaryDirectory directory;
  const auto listener = listen_at(directory.socket(), 0600);
  REQUIRE(listener);
  struct sigaction handler {
  }, handler_before{};
  static std::atomic<int> signals{0};
  signals = 0;
  handler.sa_handler = [](int) { ++signals; };
  handler.sa_flags = SA_RESTART;  // which poll() does not know
  ::sigaction(SIGALRM, &handler, &handler_before);
  // The daemon's thread takes no signal: they all come to the one that waits.
  sigset_t alarm, before;
  ::sigemptyset(&alarm);
  ::sigaddset(&alarm, SIGALRM);
  ::pthread_sigmask(SIG_BLOCK, &alarm, &before);
  std::thread daemon([&] {
    pollfd visitor{listener->get(), POLLIN, 0};
    ::poll(&visitor, 1, hang_ms());
    const auto accepted = accept_from(*listener);
    test::eventually([] { return signals > 5; });
    const char answer[] = "well";
    if (accepted) (void)send_message(*accepted, std::as_bytes(std::span(answer)));
    pollfd end{accepted ? accepted->get() : -1, POLLIN, 0};
    ::poll(&end, 1, hang_ms());  // until the client hangs up
  });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  const itimerval kilohertz{{0, 1000}, {0, 1000}}, off{};
  ::setitimer(ITIMER_REAL, &kilohertz, nullptr);
  auto client = connect_to(directory.socket());
  const bool connected = client.has_value();
  hal::Result<Parcel> first = hal::fail(hal::Errc::kInternal, "no connection");
  hal::Result<Parcel> second = hal::fail(hal::Errc::kInternal, "no connection");
  if (client) first = receive_parcel(*client, 64, std::chrono::milliseconds(hang_ms()));
  const auto begin = std::chrono::steady_clock::now();
  if (client) second = receive_parcel(*client, 64, std::chrono::milliseconds(100));
  const auto waited = std::chrono::steady_clock::now() - begin;
  ::setitimer(ITIMER_REAL, &off, nullptr);
  if (client) client->reset();
  daemon.join();
  ::sigaction(SIGALRM, &handler_before, nullptr);
  CHECK(signals > 5);
  REQUIRE(connected);
  REQUIRE(first);
  CHECK(first->bytes.size() == 5);
  CHECK_FALSE(second);  // nothing more was said
  CHECK(waited >= std::chrono::milliseconds(100));
  CHECK(waited < test::time_limit(std::chrono::milliseconds(3000)));
}

TEST_CASE("the doorbell never blocks, however often it rings unheard") {
  const Pair pair = make_pair_of_sockets();
  for (int i = 0; i < 100'000; ++i) ring_doorbell(pair.daemon);
  CHECK(receive_message(pair.client, 16)->size() == 1);
  // A client cannot make the daemon's end block: its own end is another file description.
  const int flags = ::fcntl(pair.client.get(), F_GETFL);
  REQUIRE(::fcntl(pair.client.get(), F_SETFL, flags & ~O_NONBLOCK) == 0);
  for (int i = 0; i < 100'000; ++i) ring_doorbell(pair.daemon);
}

TEST_CASE("a client cannot write leases, nor change the size of what the daemon has mapped") {
  const auto memory = make_session_memory();
  REQUIRE(memory);
  const int leases = memory->daemon_fd.get(), requests = memory->client_fd.get();
  memory->daemon->leases[3].store(7, std::memory_order_relaxed);
  CHECK(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, leases, 0) == MAP_FAILED);
  void* const readable = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, leases, 0);
  REQUIRE(readable != MAP_FAILED);
  CHECK(::mprotect(readable, 4096, PROT_READ | PROT_WRITE) != 0);
  ::munmap(readable, 4096);
  CHECK(::pwrite(leases, "x", 1, 0) < 0);
  for (const int fd : {leases, requests}) {
    CHECK(::ftruncate(fd, 0) != 0);
    CHECK(::ftruncate(fd, 1 << 24) != 0);
  }
  const auto mapped = map_session_memory(memory->client_fd, memory->daemon_fd);
  REQUIRE(mapped);
  CHECK(mapped->daemon->leases[3].load(std::memory_order_relaxed) == 7);
  mapped->client->request_tail.store(5, std::memory_order_relaxed);
  CHECK(memory->client->request_tail.load(std::memory_order_relaxed) == 5);
}

TEST_CASE("a client refuses memory that is not sealed or of another size") {
  const auto memory = make_session_memory();
  REQUIRE(memory);
  const Fd unsealed(::memfd_create("t", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), sizeof(ClientSegment)) == 0);
  CHECK_FALSE(map_session_memory(unsealed, memory->daemon_fd));
  CHECK_FALSE(map_session_memory(memory->daemon_fd, memory->client_fd));
}

TEST_CASE("the liveness futex reports the death of a client before its pidfd") {
  const auto memory = make_session_memory();
  REQUIRE(memory);
  const int fd = memory->client_fd.get();
  int seen[2];  // a byte: its parent has seen it alive
  REQUIRE(::pipe(seen) == 0);
  const auto is_seen = [&] {
    char byte;
    (void)!::read(seen[0], &byte, 1);
  };
  auto held = [&](auto then) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto* const segment = static_cast<ClientSegment*>(
          ::mmap(nullptr, sizeof(ClientSegment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
      // Held by a thread that does nothing else, as in a real client.
      std::atomic<bool> holds = false, end = false;
      std::thread holder([&] {
        const LivenessFutex line(segment->liveness);
        holds = true;
        while (!end) ::usleep(100);
      });
      while (!holds) ::usleep(100);
      then();
      end = true;
      holder.join();
      ::_exit(0);
    }
    return child;
  };
  auto wait_for = [&](auto what) {
    return test::eventually(
        [&] { return what(memory->client->liveness.load(std::memory_order_acquire)); });
  };
  auto alive = [](std::uint32_t word) { return word != 0 && !owner_died(word); };
  const pid_t killed = held([] { ::pause(); });
  CHECK(wait_for(alive));
  ::kill(killed, SIGKILL);
  CHECK(wait_for(owner_died));
  ::waitpid(killed, nullptr, 0);

  const pid_t execs = held([&] { is_seen(), ::execl("/bin/sleep", "sleep", "60", nullptr); });
  CHECK(wait_for(alive));
  REQUIRE(::write(seen[1], "", 1) == 1);
  CHECK(wait_for(owner_died));  // although the process goes on
  CHECK(::kill(execs, 0) == 0);
  ::kill(execs, SIGKILL);
  ::waitpid(execs, nullptr, 0);

  const pid_t ends = held(is_seen);
  CHECK(wait_for(alive));
  REQUIRE(::write(seen[1], "", 1) == 1);
  ::waitpid(ends, nullptr, 0);
  CHECK(memory->client->liveness.load(std::memory_order_acquire) == 0);  // an orderly end
  ::close(seen[0]), ::close(seen[1]);
}

// Peers of 1.3 map the same bytes: one that writes `progress` under a daemon that does not know it,
// and one that never writes it under a daemon that looks.
TEST_CASE("what 1.4 added lies where 1.3 has nothing, and moves nothing") {
  CHECK(sizeof(ClientSegment) == 4 * 64 + kRequests * sizeof(Record));
  CHECK(offsetof(ClientSegment, liveness) == 0);
  CHECK(offsetof(ClientSegment, operations) >= sizeof(std::uint32_t));
  CHECK(offsetof(ClientSegment, operations) + sizeof(std::uint64_t) <= 64);
  CHECK(offsetof(ClientSegment, request_tail) == 64);
  CHECK(offsetof(ClientSegment, grant_head) == 128);
  CHECK(offsetof(ClientSegment, sleep_flag) == 192);
  CHECK(offsetof(ClientSegment, requests) == 256);
  auto made = make_session_memory();
  REQUIRE(made.has_value());
  CHECK(made->client->operations.load(std::memory_order_relaxed) == 0);
}

TEST_CASE("what 1.6 added lies where 1.5 has nothing, and moves nothing") {
  CHECK(offsetof(ClientSegment, launches) >= offsetof(ClientSegment, operations) + 8);
  CHECK(offsetof(ClientSegment, busy_ns) + sizeof(std::uint64_t) <= 64);
  CHECK(offsetof(DaemonSegment, reporting) == offsetof(DaemonSegment, gate_changes) + 4);
  CHECK(offsetof(DaemonSegment, leases) == offsetof(DaemonSegment, gate_changes) + 64);
  auto made = make_session_memory();
  REQUIRE(made.has_value());
  CHECK(made->client->work.load(std::memory_order_relaxed) == 0);
  CHECK(made->daemon->reporting.load(std::memory_order_relaxed) == 0);
}

}  // namespace vitamin::protocol
