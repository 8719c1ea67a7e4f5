// SPDX-License-Identifier: Apache-2.0
#include "daemon/reception.h"

#include <unistd.h>

#include <algorithm>

#include "runtime/policy.h"

namespace vitamin::daemon {

Reception::Reception(protocol::Fd listener, const Settings& settings,
                     std::function<void(int)> watch)
    : listener_(std::move(listener)), settings_(settings), watch_(std::move(watch)) {
  watch_(listener_.get());
}

std::uint64_t Reception::next_ns() const {
  std::uint64_t next = runtime::kNever;
  for (const auto& [fd, waiting] : waiting_) next = std::min(next, waiting.until_ns);
  return next;
}

void Reception::accept(std::uint64_t now_ns) {
  // Not all that wait at once: a flood of connections must not starve those who have one.
  for (int i = 0; i < 16; ++i) {
    auto socket = protocol::accept_from(listener_);
    if (!socket) return;
    ++connections_;
    auto peer = protocol::peer_of(*socket);
    if (!peer) continue;
    Waiting waiting{{std::move(*socket), std::move(*peer)}, 0};
    const uid_t uid = waiting.connection.peer.uid;
    waiting.until_ns = now_ns + static_cast<std::uint64_t>(
                                    std::chrono::nanoseconds(settings_.budgets.greeting).count());
    // Told behind its greeting: the kernel throws an answer away whose sender closes with something
    // unread.
    if (const auto may = allowed(waiting.connection.peer, now_ns); !may)
      waiting.refused = may.error().message;
    const auto of_user = static_cast<std::size_t>(
        std::count_if(waiting_.begin(), waiting_.end(),
                      [&](const auto& other) { return other.second.connection.peer.uid == uid; }));
    if (of_user >= settings_.budgets.greetings_of_user ||
        waiting_.size() >= settings_.budgets.greetings) {
      refuse(waiting.connection, "too many connections at once: try again");
      continue;
    }
    const int fd = waiting.connection.socket.get();
    watch_(fd);
    waiting_.emplace(fd, std::move(waiting));
  }
}

hal::Status Reception::allowed(const protocol::Peer& peer, std::uint64_t now_ns) const {
  if (!settings_.any_user && peer.uid != ::getuid() && peer.uid != 0)
    return hal::fail(hal::Errc::kUnsupported,
                     "this vitamind belongs to another user: start one of your own, or ask for the "
                     "machine's (vitamind --system)");
  for (const Banned& banned : banned_)
    if (banned.uid == peer.uid && banned.pid == peer.pid && now_ns < banned.until_ns)
      return hal::fail(hal::Errc::kUnsupported, "this process was let go because it sent " +
                                                    banned.why +
                                                    ": it stays on its home part of the device");
  return {};
}

std::optional<Visitor> Reception::hear(int fd) {
  auto node = waiting_.extract(fd);
  if (node.empty()) return std::nullopt;
  Waiting& waiting = node.mapped();
  const auto message = protocol::receive_message(waiting.connection.socket, protocol::kGreetingMax);
  if (!message && message.error().code == hal::Errc::kUnavailable) {  // not yet
    waiting_.insert(std::move(node));
    return std::nullopt;
  }
  if (!message || message->empty()) return std::nullopt;  // gone, and its descriptor goes with it
  if (!waiting.refused.empty()) {
    refuse(waiting.connection, waiting.refused);
    return std::nullopt;
  }
  if (const auto control = protocol::parse<protocol::Control>(*message))
    return Visitor{std::move(waiting.connection), control->verb.get()};
  if (const auto hello = protocol::parse<protocol::Hello>(*message))
    return Visitor{std::move(waiting.connection), *hello};
  else
    refuse(waiting.connection, hello.error().message);
  return std::nullopt;
}

void Reception::drop_late(std::uint64_t now_ns) {
  std::erase_if(waiting_, [&](const auto& waiting) { return waiting.second.until_ns <= now_ns; });
}

void Reception::refuse(const Connection& connection, const std::string& sentence) {
  ++refused_;
  (void)protocol::send_message(connection.socket, protocol::bytes_of(protocol::refusal(sentence)));
}

void Reception::ban(const protocol::Peer& peer, std::string_view why, std::uint64_t until_ns) {
  // Processes of another pid namespace are all 0 here: one would speak for all of its user.
  if (peer.pid == 0) return;
  if (banned_.size() >= settings_.configuration.daemon.clients) banned_.pop_front();
  banned_.push_back({peer.uid, peer.pid, until_ns, std::string(why)});
}

}  // namespace vitamin::daemon
