// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/reception.h"

#include <unistd.h>

#include <algorithm>

#include "daemon/log.h"
#include "runtime/problem.h"
#include "scheduler/types.h"

namespace vitamin::daemon {
namespace {

// For which one has to wait at most: it is told why before it gives up (RemoteOptions::patience).
constexpr std::uint64_t kHeld = 700'000'000;

}  // namespace

Reception::Reception(protocol::Fd listener, const Settings& settings,
                     std::function<void(int)> watch)
    : listener_(std::move(listener)), settings_(settings), watch_(std::move(watch)) {
  watch_(listener_.get());
}

std::uint64_t Reception::next_ns(std::uint64_t now_ns) const {
  std::uint64_t next = scheduler::kNever;
  for (const auto& [fd, waiting] : waiting_) {
    next = std::min(next, waiting.until_ns);
    if (waiting.hello)
      next = std::min(next, conduct_.admits_at(waiting.connection.peer.uid, now_ns));
  }
  return next;
}

void Reception::accept(std::uint64_t now_ns, int most) {
  // Not all that wait at once: a flood of connections must not starve those who have one.
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

std::optional<Visitor> Reception::hear(int fd, std::uint64_t now_ns) {
  auto node = waiting_.extract(fd);
  if (node.empty()) return std::nullopt;
  Waiting& waiting = node.mapped();
  const auto message = protocol::receive_message(waiting.connection.socket, protocol::kGreetingMax);
  if (!message && message.error().code == hal::Errc::kUnavailable) {  // not yet
    waiting_.insert(std::move(node));
    return std::nullopt;
  }
  // Gone, and its descriptor goes with it; or it does not wait for its answer.
  if (!message || message->empty() || waiting.hello) return std::nullopt;
  if (!waiting.refused.empty()) {
    refuse(waiting.connection, waiting.refused);
    return std::nullopt;
  }
  if (const auto control = protocol::parse<protocol::Control>(*message))
    return Visitor{std::move(waiting.connection), control->verb.get()};
  const auto hello = protocol::parse<protocol::Hello>(*message);
  if (!hello) {
    refuse(waiting.connection, hello.error().message);
    return std::nullopt;
  }
  if (conduct_.admits_at(waiting.connection.peer.uid, now_ns) <= now_ns)
    return Visitor{std::move(waiting.connection), *hello};
  waiting.hello = *hello;
  waiting.until_ns = std::min(waiting.until_ns, now_ns + kHeld);
  waiting_.insert(std::move(node));
  return std::nullopt;
}

// In the order in which they came, as nearly as it matters.
std::optional<Visitor> Reception::due(std::uint64_t now_ns) {
  auto first = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it)
    if (it->second.hello &&
        (first == waiting_.end() || it->second.until_ns < first->second.until_ns) &&
        conduct_.admits_at(it->second.connection.peer.uid, now_ns) <= now_ns)
      first = it;
  if (first == waiting_.end()) return std::nullopt;
  auto node = waiting_.extract(first);
  return Visitor{std::move(node.mapped().connection), *node.mapped().hello};
}

void Reception::drop_late(std::uint64_t now_ns) {
  std::erase_if(waiting_, [&](const auto& each) {
    const Waiting& waiting = each.second;
    if (waiting.until_ns > now_ns) return false;
    if (waiting.hello)
      refuse(waiting.connection,
             "clients of this user are let go again and again for breaking the protocol, and new "
             "ones wait: end that program (vitamin status names it), and try again");
    return true;
  });
}

void Reception::refuse(const Connection& connection, const std::string& sentence) {
  ++refused_;
  (void)protocol::send_message(connection.socket, protocol::bytes_of(protocol::refusal(sentence)));
}

void Reception::ban(const protocol::Peer& peer, const std::string& who, std::string_view why,
                    std::uint64_t now_ns, std::uint64_t until_ns) {
  if (conduct_.let_go(peer.uid, who, now_ns))
    log::warn(
        "user {}: its clients were let go {} times in a row, the last one was {}: until that ends "
        "one "
        "of them is admitted every {} ms; end that program [{}]",
        peer.uid, conduct_.users(now_ns).at(peer.uid).let_go, who, Conduct::kEvery / 1'000'000,
        runtime::code_of(runtime::Problem::kClientLetGo));
  // Processes of another pid namespace are all 0 here: one would speak for all of its user.
  if (peer.pid == 0) return;
  if (banned_.size() >= settings_.configuration.daemon.clients) banned_.pop_front();
  banned_.push_back({peer.uid, peer.pid, until_ns, std::string(why)});
}

}  // namespace vitamin::daemon
