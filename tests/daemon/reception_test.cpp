// SPDX-License-Identifier: Apache-2.0
#include "daemon/reception.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace vitamin::daemon {
namespace {

TEST_CASE("who has said nothing yet is not gone") {
  char folder[] = "/tmp/vitamin-reception-XXXXXX";
  REQUIRE(::mkdtemp(folder) != nullptr);
  const std::string path = std::string(folder) + "/s";
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
  ::rmdir(folder);
}

}  // namespace
}  // namespace vitamin::daemon
