// SPDX-License-Identifier: Apache-2.0
//
// Connections until they have said what they want: who they are (the kernel's word), whether they
// may, how many there may be, and for how long. One that is late, gone or refused is dropped here.
// Whose user's clients were let go again and again waits here (Conduct).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "daemon/protocol/handshake.h"
#include "daemon/protocol/socket.h"
#include "daemon/server/conduct.h"
#include "daemon/settings.h"

namespace vitamin::daemon {

struct Connection {
  protocol::Fd socket;
  protocol::Peer peer;
};
// Who wants something: a client, or a tool with its verb.
struct Visitor {
  Connection connection;
  std::variant<protocol::Hello, std::string> wants;
};

class Reception {
 public:
  // `watch`: descriptors that become readable are told to hear() from then on.
  Reception(protocol::Fd listener, const Settings& settings, std::function<void(int)> watch);

  int descriptor() const { return listener_.get(); }
  bool knows(int fd) const { return waiting_.contains(fd); }
  bool empty() const { return waiting_.empty(); }
  // When the first one is late, or may come in; scheduler::kNever: nobody waits.
  std::uint64_t next_ns(std::uint64_t now_ns) const;

  // At most so many.
  void accept(std::uint64_t now_ns, int most = 16);
  // What the connection says. Nothing: nothing yet, or it is gone, was refused, or has to wait.
  std::optional<Visitor> hear(int fd, std::uint64_t now_ns);
  // Somebody who had to wait, and may come in now; or nothing.
  std::optional<Visitor> due(std::uint64_t now_ns);
  void drop_late(std::uint64_t now_ns);

  void refuse(const Connection& connection, const std::string& sentence);
  // This process, if it can be named, is refused until then, because of what it sent; and its user
  // waits before the next one, where there were many. `who`: for people.
  void ban(const protocol::Peer& peer, const std::string& who, std::string_view why,
           std::uint64_t now_ns, std::uint64_t until_ns);
  Conduct& conduct() { return conduct_; }

  std::uint64_t connections() const { return connections_; }
  std::uint64_t refused() const { return refused_; }  // with a sentence

 private:
  struct Waiting {
    Connection connection;
    std::uint64_t until_ns = 0;
    std::string refused = {};                   // why, told once it has said what it wants
    std::optional<protocol::Hello> hello = {};  // it has to wait
  };
  struct Banned {
    uid_t uid;
    pid_t pid;
    std::uint64_t until_ns;
    std::string why;
  };
  hal::Status allowed(const protocol::Peer& peer, std::uint64_t now_ns) const;

  protocol::Fd listener_;
  const Settings& settings_;
  std::function<void(int)> watch_;
  std::map<int, Waiting> waiting_;  // by descriptor
  std::deque<Banned> banned_;
  Conduct conduct_;
  std::uint64_t connections_ = 0, refused_ = 0;
};

}  // namespace vitamin::daemon
