// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/reception.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "tests/daemon/device.h"

namespace vitamin::daemon {
namespace {

// A reception of this test's own, with a queue of connections.
struct Desk {
  Desk() {
    REQUIRE(::mkdtemp(directory) != nullptr);
    path = std::string(directory) + "/s";
    reception = std::make_unique<Reception>(std::move(*protocol::listen_at(path, 0600)), settings,
                                            [this](int fd) { watched.push_back(fd); });
  }
  ~Desk() {
    ::unlink(path.c_str());
    ::rmdir(directory);
  }
  // One that has said Hello; its descriptor at the desk.
  std::pair<protocol::Fd, int> comes(std::uint64_t now_ns) {
    auto client = protocol::connect_to(path);
    REQUIRE(client);
    reception->accept(now_ns, 1);
    const protocol::Hello hello = protocol::hello_of(tests::device_like_an_h200(), "p");
    REQUIRE(protocol::send_message(*client, protocol::bytes_of(hello)));
    return {std::move(*client), watched.back()};
  }
  char directory[32] = "/tmp/vitamin-reception-XXXXXX";
  std::string path;
  const Settings settings;
  std::vector<int> watched;
  std::unique_ptr<Reception> reception;
};

TEST_CASE("of those who connect no more are taken than was asked for") {
  Desk desk;
  std::vector<protocol::Fd> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(std::move(*protocol::connect_to(desk.path)));
  desk.reception->accept(0, 1);
  CHECK_EQ(desk.reception->connections(), 1);
  desk.reception->accept(0, 3);
  CHECK_EQ(desk.reception->connections(), 4);
}

TEST_CASE("whose user's clients were let go again and again waits, comes in, or is told why not") {
  Desk desk;
  std::uint64_t now = 1'000'000'000;
  auto first = desk.comes(now);
  CHECK(desk.reception->hear(first.second, now));  // nothing against it yet
  protocol::Peer bad;
  bad.uid = ::getuid();
  bad.pid = 1;
  for (int i = 0; i < 100; ++i) desk.reception->ban(bad, "x (process 1)", "dirt", now, now);
  auto second = desk.comes(now), third = desk.comes(now), gone = desk.comes(now);
  for (const int fd : {second.second, third.second, gone.second}) {
    CHECK_FALSE(desk.reception->hear(fd, now));
    CHECK(desk.reception->knows(fd));
  }
  CHECK_FALSE(desk.reception->due(now));
  gone.first.reset();
  CHECK_FALSE(desk.reception->hear(gone.second, now));
  CHECK_FALSE(desk.reception->knows(gone.second));
  // A tool does not wait: it asks what is wrong.
  const auto tool = protocol::connect_to(desk.path);
  desk.reception->accept(now, 1);
  protocol::Control control;
  control.preamble.kind = protocol::Kind::kControl;
  control.verb.set("status");
  REQUIRE(protocol::send_message(*tool, protocol::bytes_of(control)));
  CHECK(desk.reception->hear(desk.watched.back(), now));
  // The loop sleeps until then.
  now = desk.reception->next_ns(now);
  CHECK_EQ(now, 1'000'000'000 + Conduct::kLongest * Conduct::kEvery);
  const auto visitor = desk.reception->due(now);
  REQUIRE(visitor);
  desk.reception->conduct().admitted(::getuid(), now);
  CHECK_FALSE(desk.reception->due(now));  // one by one
  // Long enough for the last of them.
  desk.reception->drop_late(now + 1'000'000'000);
  CHECK(desk.reception->empty());
  const auto& told = visitor->connection.socket.get() == second.second ? third : second;
  const auto answer = protocol::receive_message(told.first, 4096);
  REQUIRE(answer);
  const auto welcome = protocol::parse<protocol::Welcome>(*answer);
  REQUIRE_FALSE(welcome);
  CHECK(welcome.error().message.find("let go again and again") != std::string::npos);
}

TEST_CASE("who has said nothing yet is not gone") {
  char directory[] = "/tmp/vitamin-reception-XXXXXX";
  REQUIRE(::mkdtemp(directory) != nullptr);
  const std::string path = std::string(directory) + "/s";
  const Settings settings;
  std::vector<int> watched;
  Reception reception(std::move(*protocol::listen_at(path, 0600)), settings,
                      [&](int fd) { watched.push_back(fd); });
  const auto client = protocol::connect_to(path);
  REQUIRE(client);
  reception.accept(0);
  const int fd = watched.back();
  REQUIRE(reception.knows(fd));
  CHECK_FALSE(reception.hear(fd, 0));  // as after a wake-up for nothing
  CHECK(reception.knows(fd));
  protocol::Control control;
  control.preamble.kind = protocol::Kind::kControl;
  control.verb.set("ping");
  REQUIRE(protocol::send_message(*client, protocol::bytes_of(control)));
  const auto visitor = reception.hear(fd, 0);
  REQUIRE(visitor);
  CHECK_EQ(std::get<std::string>(visitor->wants), "ping");
  CHECK_FALSE(reception.knows(fd));
  ::unlink(path.c_str());
  ::rmdir(directory);
}

}  // namespace
}  // namespace vitamin::daemon
