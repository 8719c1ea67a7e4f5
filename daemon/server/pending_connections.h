// SPDX-License-Identifier: Apache-2.0
//
// Connections that were accepted and have no session yet. Identifies each peer by what the kernel
// reports, refuses peers that may not connect, bounds the connections of all users and of one user,
// reads the first message and drops connections that send none in time. A client whose user's
// clients were repeatedly evicted waits here until the AbuseLimiter admits it.
//
// Threads: the server's only. Nothing blocks.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "daemon/protocol/handshake.h"
#include "daemon/protocol/socket.h"
#include "daemon/server/abuse_limiter.h"
#include "daemon/settings.h"

namespace vitamin::daemon {

struct Connection {
  protocol::Fd socket;
  protocol::Peer peer;
};
// The first message of a connection: Hello of a client, or the verb of a tool's request.
struct FirstMessage {
  Connection connection;
  std::variant<protocol::Hello, std::string> message;
};

class PendingConnections {
 public:
  // `watch` is called with the listener and with each accepted connection: when such a descriptor
  // becomes readable, call accept() or read().
  PendingConnections(protocol::Fd listener, const Settings& settings,
                     std::function<void(int)> watch);

  int descriptor() const { return listener_.get(); }
  bool contains(int fd) const { return waiting_.contains(fd); }
  bool empty() const { return waiting_.empty(); }
  // When the next connection expires or is admitted; scheduler::kNever: there is none.
  std::uint64_t wake_at(std::uint64_t now_ns) const;

  // Accepts at most `most` connections.
  void accept(std::uint64_t now_ns, int most = 16);
  // The first message of the connection, which is then the caller's. Empty: none has arrived, or
  // the connection was closed, refused, or must wait.
  std::optional<FirstMessage> read(int fd, std::uint64_t now_ns);
  // A client that had to wait and is admitted now; empty: there is none.
  std::optional<FirstMessage> next_admitted(std::uint64_t now_ns);
  // Drops connections that sent no message in time, and refuses clients that waited too long.
  void drop_expired(std::uint64_t now_ns);

  // Sends a Refusal; `sentence` is for the user.
  void refuse(const Connection& connection, const std::string& sentence);
  // A client was evicted. Refuses its process until `until_ns`, if the process can be identified,
  // with `why` as the reason, and counts the eviction against its user. `who`: program and process,
  // for the log.
  void ban(const protocol::Peer& peer, const std::string& who, std::string_view why,
           std::uint64_t now_ns, std::uint64_t until_ns);
  AbuseLimiter& abuse_limiter() { return abuse_limiter_; }

  std::uint64_t connections() const { return connections_; }  // accepted so far
  std::uint64_t refused() const { return refused_; }          // refused with a sentence so far

 private:
  struct Waiting {
    Connection connection;
    std::uint64_t until_ns = 0;
    bool prolonged = false;    // its time has been over once
    std::string refused = {};  // not empty: the refusal to send after its first message
    std::optional<protocol::Hello> hello = {};  // set: the client waits to be admitted
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
  AbuseLimiter abuse_limiter_;
  std::uint64_t connections_ = 0, refused_ = 0;
};

}  // namespace vitamin::daemon
