// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/pending_connections.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "tests/daemon/device.h"

namespace vitamin::daemon {
namespace {

// A listener with a queue of connections.
struct Listener {
  Listener() {
    REQUIRE(::mkdtemp(directory) != nullptr);
    path = std::string(directory) + "/s";
    pending =
        std::make_unique<PendingConnections>(std::move(*protocol::listen_at(path, 0600)), settings,
                                             [this](int fd) { watched.push_back(fd); });
  }
  ~Listener() {
    ::unlink(path.c_str());
    ::rmdir(directory);
  }
  // One that has said Hello; its descriptor at the listener.
  std::pair<protocol::Fd, int> connects(std::uint64_t now_ns) {
    auto client = protocol::connect_to(path);
    REQUIRE(client);
    pending->accept(now_ns, 1);
    const protocol::Hello hello = protocol::hello_of(tests::device_like_an_h200(), "p");
    REQUIRE(protocol::send_message(*client, protocol::bytes_of(hello)));
    return {std::move(*client), watched.back()};
  }
  char directory[32] = "/tmp/vitamin-pending-XXXXXX";
  std::string path;
  const Settings settings;
  std::vector<int> watched;
  std::unique_ptr<PendingConnections> pending;
};

TEST_CASE("accept takes no more connections than asked for") {
  Listener listener;
  std::vector<protocol::Fd> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(std::move(*protocol::connect_to(listener.path)));
  listener.pending->accept(0, 1);
  CHECK_EQ(listener.pending->connections(), 1);
  listener.pending->accept(0, 3);
  CHECK_EQ(listener.pending->connections(), 4);
}

TEST_CASE(
    "a client of a user with repeated evictions waits and is admitted, or is told the reason") {
  Listener listener;
  std::uint64_t now = 1'000'000'000;
  auto first = listener.connects(now);
  CHECK(listener.pending->read(first.second, now));  // no evictions yet
  protocol::Peer bad;
  bad.uid = ::getuid();
  bad.pid = 1;
  for (int i = 0; i < 100; ++i) listener.pending->ban(bad, "x (process 1)", "dirt", now, now);
  auto second = listener.connects(now), third = listener.connects(now),
       gone = listener.connects(now);
  for (const int fd : {second.second, third.second, gone.second}) {
    CHECK_FALSE(listener.pending->read(fd, now));
    CHECK(listener.pending->contains(fd));
  }
  CHECK_FALSE(listener.pending->next_admitted(now));
  gone.first.reset();
  CHECK_FALSE(listener.pending->read(gone.second, now));
  CHECK_FALSE(listener.pending->contains(gone.second));
  // A tool does not wait: it may ask for the status.
  const auto tool = protocol::connect_to(listener.path);
  listener.pending->accept(now, 1);
  protocol::Control control;
  control.preamble.kind = protocol::MessageKind::kControl;
  control.verb.set("status");
  REQUIRE(protocol::send_message(*tool, protocol::bytes_of(control)));
  CHECK(listener.pending->read(listener.watched.back(), now));
  // The loop may sleep until then.
  now = listener.pending->wake_at(now);
  CHECK_EQ(now, 1'000'000'000 + AbuseLimiter::kLongest * AbuseLimiter::kEvery);
  const auto admitted = listener.pending->next_admitted(now);
  REQUIRE(admitted);
  listener.pending->abuse_limiter().admitted(::getuid(), now);
  CHECK_FALSE(listener.pending->next_admitted(now));  // one by one
  // Long enough for all of them to expire.
  listener.pending->drop_expired(now + 1'000'000'000);
  CHECK(listener.pending->empty());
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): REQUIRE has asked
  const auto& told = admitted->connection.socket.get() == second.second ? third : second;
  const auto answer = protocol::receive_message(told.first, 4096);
  REQUIRE(answer);
  const auto welcome = protocol::parse<protocol::Welcome>(*answer);
  REQUIRE_FALSE(welcome);
  CHECK(welcome.error().message.find("repeatedly evicted") != std::string::npos);
}

// Between the turns of the loop the machine may stand still.
TEST_CASE("a message that came is read however late, and a silent connection is closed") {
  Listener listener;
  const auto silent = protocol::connect_to(listener.path);
  listener.pending->accept(0, 1);
  const int unread = listener.watched.back();
  const auto client = listener.connects(0);
  constexpr std::uint64_t kLate = 3'600'000'000'000;
  listener.pending->drop_expired(kLate);
  CHECK(listener.pending->contains(unread));  // it may be about to send one
  REQUIRE(listener.pending->contains(client.second));
  CHECK(listener.pending->read(client.second, kLate));
  listener.pending->drop_expired(listener.pending->wake_at(kLate));
  CHECK_FALSE(listener.pending->contains(unread));
}

TEST_CASE("a connection that has sent nothing yet is kept") {
  char directory[] = "/tmp/vitamin-pending-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  const std::string path = std::string(directory) + "/s";
  const Settings settings;
  std::vector<int> watched;
  PendingConnections pending(std::move(*protocol::listen_at(path, 0600)), settings,
                             [&](int fd) { watched.push_back(fd); });
  const auto client = protocol::connect_to(path);
  REQUIRE(client);
  pending.accept(0);
  const int fd = watched.back();
  REQUIRE(pending.contains(fd));
  CHECK_FALSE(pending.read(fd, 0));  // like a spurious wake-up
  CHECK(pending.contains(fd));
  protocol::Control control;
  control.preamble.kind = protocol::MessageKind::kControl;
  control.verb.set("ping");
  REQUIRE(protocol::send_message(*client, protocol::bytes_of(control)));
  const auto first = pending.read(fd, 0);
  REQUIRE(first);
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): REQUIRE has asked
  CHECK_EQ(std::get<std::string>(first->message), "ping");
  CHECK_FALSE(pending.contains(fd));
  ::unlink(path.c_str());
  ::rmdir(directory);
}

}  // namespace
}  // namespace vitamin::daemon
