// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/pending_connections.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "daemon/log.h"
#include "runtime/problem.h"
#include "scheduler/types.h"

namespace vitamin::daemon {
namespace {

// The longest wait for admission, and the longest further wait for a message: shorter than
// RemoteOptions::handshake_timeout, so that the client gets the reason.
constexpr std::uint64_t kHeld = 700'000'000;

bool has_message(const protocol::Fd& socket) {
  pollfd ready{socket.get(), POLLIN, 0};
  return ::poll(&ready, 1, 0) > 0;
}

}  // namespace

PendingConnections::PendingConnections(protocol::Fd listener, const Settings& settings,
                                       std::function<void(int)> watch)
    : listener_(std::move(listener)), settings_(settings), watch_(std::move(watch)) {
  watch_(listener_.get());
}

std::uint64_t PendingConnections::wake_at(std::uint64_t now_ns) const {
  std::uint64_t next = scheduler::kNever;
  for (const auto& [fd, waiting] : waiting_) {
    next = std::min(next, waiting.until_ns);
    if (waiting.hello)
      next = std::min(next, abuse_limiter_.admits_at(waiting.connection.peer.uid, now_ns));
  }
  return next;
}

void PendingConnections::accept(std::uint64_t now_ns, int most) {
  // Not all pending connections at once: a flood of them must not starve clients with sessions.
  for (int i = 0; i < most; ++i) {
    auto socket = protocol::accept_from(listener_);
    if (!socket) return;
    ++connections_;
    auto peer = protocol::peer_of(*socket);
    if (!peer) continue;
    Waiting waiting{{std::move(*socket), std::move(*peer)}, 0};
    const uid_t uid = waiting.connection.peer.uid;
    waiting.until_ns = now_ns + static_cast<std::uint64_t>(
                                    std::chrono::nanoseconds(settings_.budgets.greeting).count());
    // The refusal is sent after the first message was read: the kernel discards an answer whose
    // sender closes the socket with data unread.
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

hal::Status PendingConnections::allowed(const protocol::Peer& peer, std::uint64_t now_ns) const {
  if (!settings_.any_user && peer.uid != ::getuid() && peer.uid != 0)
    return hal::fail(hal::Errc::kUnsupported,
                     "this vitamind belongs to another user: start one of your own, or ask for the "
                     "machine's (vitamind --system)");
  for (const Banned& banned : banned_)
    if (banned.uid == peer.uid && banned.pid == peer.pid && now_ns < banned.until_ns)
      return hal::fail(hal::Errc::kUnsupported, "this process was evicted because it sent " +
                                                    banned.why +
                                                    ": it stays in its fallback partition");
  return {};
}

std::optional<FirstMessage> PendingConnections::read(int fd, std::uint64_t now_ns) {
  auto node = waiting_.extract(fd);
  if (node.empty()) return std::nullopt;
  Waiting& waiting = node.mapped();
  const auto message = protocol::receive_message(waiting.connection.socket, protocol::kGreetingMax);
  if (!message && message.error().code == hal::Errc::kUnavailable) {  // not yet
    waiting_.insert(std::move(node));
    return std::nullopt;
  }
  // It hung up, or sent a second message while it had to wait: `node` closes it.
  if (!message || message->empty() || waiting.hello) return std::nullopt;
  if (!waiting.refused.empty()) {
    refuse(waiting.connection, waiting.refused);
    return std::nullopt;
  }
  if (const auto control = protocol::parse<protocol::Control>(*message))
    return FirstMessage{std::move(waiting.connection), control->verb.get()};
  const auto hello = protocol::parse<protocol::Hello>(*message);
  if (!hello) {
    refuse(waiting.connection, hello.error().message);
    return std::nullopt;
  }
  if (abuse_limiter_.admits_at(waiting.connection.peer.uid, now_ns) <= now_ns)
    return FirstMessage{std::move(waiting.connection), *hello};
  waiting.hello = *hello;
  waiting.until_ns = std::min(waiting.until_ns, now_ns + kHeld);
  waiting_.insert(std::move(node));
  return std::nullopt;
}

// Approximately first come, first served.
std::optional<FirstMessage> PendingConnections::next_admitted(std::uint64_t now_ns) {
  auto first = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it)
    if (it->second.hello &&
        (first == waiting_.end() || it->second.until_ns < first->second.until_ns) &&
        abuse_limiter_.admits_at(it->second.connection.peer.uid, now_ns) <= now_ns)
      first = it;
  if (first == waiting_.end()) return std::nullopt;
  auto node = waiting_.extract(first);
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the loop takes none without
  return FirstMessage{std::move(node.mapped().connection), *node.mapped().hello};
}

void PendingConnections::drop_expired(std::uint64_t now_ns) {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const auto it = next++;
    Waiting& waiting = it->second;
    if (waiting.until_ns > now_ns) continue;
    if (waiting.hello) {
      refuse(waiting.connection,
             "clients of this user were repeatedly evicted for breaking the protocol, so new ones "
             "must wait: end that program (vitamin status names it), and try again");
    } else if (has_message(waiting.connection.socket)) {
      continue;  // it came in time, or the machine stood still: one of the next turns reads it
    } else if (!std::exchange(waiting.prolonged, true)) {
      waiting.until_ns = now_ns + kHeld;  // the client stood still, too, before it sent one
      continue;
    }
    waiting_.erase(it);
  }
}

void PendingConnections::refuse(const Connection& connection, const std::string& sentence) {
  ++refused_;
  (void)protocol::send_message(connection.socket, protocol::bytes_of(protocol::refusal(sentence)));
}

void PendingConnections::ban(const protocol::Peer& peer, const std::string& who,
                             std::string_view why, std::uint64_t now_ns, std::uint64_t until_ns) {
  if (abuse_limiter_.record_eviction(peer.uid, who, now_ns))
    log::warn(
        "user {}: its clients were evicted {} times in a row, last {}: until that ends, one "
        "of them is admitted every {} ms; end that program [{}]",
        peer.uid, abuse_limiter_.users(now_ns).at(peer.uid).evictions, who,
        AbuseLimiter::kEvery / 1'000'000, runtime::code_of(runtime::Problem::kClientEvicted));
  // Processes of another pid namespace all have id 0: a ban of one would hit all of its user.
  if (peer.pid == 0) return;
  if (banned_.size() >= settings_.configuration.daemon.clients) banned_.pop_front();
  banned_.push_back({peer.uid, peer.pid, until_ns, std::string(why)});
}

}  // namespace vitamin::daemon
