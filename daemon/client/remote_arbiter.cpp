// SPDX-License-Identifier: Apache-2.0
#include "daemon/client/remote_arbiter.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <csignal>

#include "daemon/protocol/life.h"
#include "runtime/clock.h"

namespace vitamin::client {

using runtime::now_ns;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

hal::Result<std::unique_ptr<RemoteArbiter>> RemoteArbiter::connect(const RemoteOptions& options,
                                                                   const hal::DeviceInfo& info) {
  auto connection =
      client::connect(options.socket, info, options.program, options.claim, options.patience);
  if (!connection) return tl::unexpected(connection.error());
  // Without it the thread could not be told to end.
  protocol::Fd poke(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!poke) return hal::fail(hal::Errc::kUnavailable, "no descriptor is left for vitamind");
  return std::unique_ptr<RemoteArbiter>(
      new RemoteArbiter(options, info, std::move(*connection), std::move(poke)));
}

RemoteArbiter::RemoteArbiter(const RemoteOptions& options, const hal::DeviceInfo& info,
                             std::unique_ptr<Connection> connection, protocol::Fd poke)
    : options_(options),
      info_(info),
      layout_(runtime::PoolLayout::build(info, protocol::limits_of(connection->welcome))),
      pool_hash_(connection->welcome.pool_hash),
      connection_(std::move(connection)),
      client_(layout_, [this] { protocol::ring_doorbell(connection_->socket); }),
      poke_(std::move(poke)) {
  client_.connect(connection_->link(), now_ns());
  // Signals of the application are for its own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

RemoteArbiter::~RemoteArbiter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ::eventfd_write(poke_.get(), 1);
  thread_.join();
}

void RemoteArbiter::on_change(std::function<void()> wake) {
  const std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
}

// --- under the device lock -------------------------------------------------------------------

Choice RemoteArbiter::grant(const runtime::ReadyOperation& operation,
                            std::span<const EntryId> eligible) {
  std::uint64_t time = now_ns();
  const std::uint64_t until = time + static_cast<std::uint64_t>(options_.spin.count());
  for (;;) {
    const Choice choice = client_.grant(operation.lane, operation, eligible, time);
    // Nobody waits on the spot for a daemon that must be woken first.
    if (choice.entry != runtime::kNoEntry || time >= until ||
        connection_->memory.daemon->park.asleep())
      return choice;
    __builtin_ia32_pause();  // one takes 40 ns on some processors
    time = now_ns();
  }
}

void RemoteArbiter::expect(const runtime::Hint& hint) { client_.hint(hint, now_ns()); }

void RemoteArbiter::service() {
  attention_.store(false, std::memory_order_release);
  std::unique_ptr<Connection> next;
  {
    const std::lock_guard lock(mutex_);
    next = std::move(next_);
  }
  if (next != nullptr) adopt(std::move(next));
  const std::uint64_t time = now_ns();
  client_.service(time);
  if (!before_.empty() && !client_.at_home() && client_.heard()) before_.clear();
  suspect(time);
}

void RemoteArbiter::adopt(std::unique_ptr<Connection> connection) {
  std::swap(connection_, connection);
  client_.connect(connection_->link(), now_ns());
  turned_ns_ = 0;
  before_.push_back(std::move(connection));  // nothing here refers to it any more
}

// Does the daemon turn while we wait for it?
void RemoteArbiter::suspect(std::uint64_t time) {
  if (!client_.waiting() || client_.at_home()) {
    turned_ns_ = 0;
    return;
  }
  const std::uint64_t turns = connection_->memory.daemon->turns.load(std::memory_order_relaxed);
  const auto silence = static_cast<std::uint64_t>(nanoseconds(options_.silence).count());
  if (turned_ns_ == 0 || turns != turns_) {
    turns_ = turns;
    turned_ns_ = time;
    rung_ = false;
  } else if (time - turned_ns_ >= silence) {
    client_.lose();
    silent_.store(true, std::memory_order_release);
    ::eventfd_write(poke_.get(), 1);
  } else if (time - turned_ns_ >= silence / 4 && !rung_) {
    rung_ = true;  // asleep it does not turn either: now it must
    protocol::ring_doorbell(connection_->socket);
  }
}

// --- the thread ------------------------------------------------------------------------------

void RemoteArbiter::run() {
  ::pthread_setname_np(::pthread_self(), "vitamin-watch");
  Connection* watched = connection_.get();  // nothing replaces it before we offer another one
  for (;;) {
    if (!watch(*watched)) return;
    client_.lose();
    raise_attention();
    say("vitamind is gone; the program continues on its home part of the device");
    std::unique_ptr<Connection> next = reconnect();
    if (next == nullptr) return;
    say("vitamind is back");
    watched = next.get();
    {
      const std::lock_guard lock(mutex_);
      next_ = std::move(next);
    }
    raise_attention();
  }
}

// Until the daemon is gone (true) or we are (false).
bool RemoteArbiter::watch(Connection& connection) {
  const protocol::LifeLine life(connection.memory.client->life);
  pollfd watched[] = {{connection.socket.get(), POLLIN, 0},
                      {connection.daemon.pidfd.get(), POLLIN, 0},
                      {poke_.get(), POLLIN, 0}};
  for (;;) {
    if (::poll(watched, std::size(watched), -1) < 0) continue;
    if ((watched[2].revents & POLLIN) != 0) {
      eventfd_t count = 0;
      ::eventfd_read(poke_.get(), &count);
      const std::lock_guard lock(mutex_);
      if (stopping_) return false;
      if (silent_.exchange(false)) return true;
    }
    if ((watched[1].revents & POLLIN) != 0) return true;
    if ((watched[0].revents & (POLLHUP | POLLERR)) != 0) return true;
    if ((watched[0].revents & POLLIN) == 0) continue;
    // Every ring of the doorbell so far means the same.
    for (;;) {
      const auto message = protocol::receive_message(connection.socket, 16);
      if (!message) break;
      if (message->empty()) return true;
    }
    raise_attention();
  }
}

std::unique_ptr<Connection> RemoteArbiter::reconnect() {
  milliseconds pause(5);
  std::string told;
  for (;;) {
    // A process that ends does not wait for a daemon that is stopped.
    auto made = client::connect(options_.socket, info_, options_.program, options_.claim,
                                {options_.patience, poke_.get()});
    if (made && (*made)->welcome.pool_hash == pool_hash_) return std::move(*made);
    const std::string why =
        made ? "vitamind is back with another pool, which this process cannot follow"
             : made.error().message;
    // No daemon is what we know; anything else the user should.
    if ((made || made.error().code != hal::Errc::kUnavailable) && why != told) say(told = why);
    pollfd poked{poke_.get(), POLLIN, 0};
    if (::poll(&poked, 1, static_cast<int>(pause.count())) > 0) {
      eventfd_t count = 0;
      ::eventfd_read(poke_.get(), &count);
      const std::lock_guard lock(mutex_);
      if (stopping_) return nullptr;
    }
    pause = std::min(pause * 2, milliseconds(500));
  }
}

void RemoteArbiter::raise_attention() {
  attention_.store(true, std::memory_order_release);
  const std::lock_guard lock(wake_mutex_);
  if (wake_) wake_();
}

void RemoteArbiter::say(const std::string& line) const {
  if (options_.say != nullptr) options_.say(line.c_str());
}

}  // namespace vitamin::client
