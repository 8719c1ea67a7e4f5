// SPDX-License-Identifier: Apache-2.0
#include "daemon/client/remote_arbiter.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "daemon/protocol/liveness.h"
#include "hal/processor.h"
#include "runtime/clock.h"

namespace vitamin::client {

using runtime::now_ns;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

hal::Result<std::unique_ptr<RemoteArbiter>> RemoteArbiter::connect(const RemoteOptions& options,
                                                                   const hal::DeviceInfo& info) {
  auto connection = client::connect(options.socket, info, options.program, options.claim,
                                    options.handshake_timeout);
  if (!connection) return tl::unexpected(connection.error());
  // Without it the thread could not be stopped.
  protocol::Fd wake_fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd) return hal::fail(hal::Errc::kUnavailable, "no descriptor is left for vitamind");
  return std::unique_ptr<RemoteArbiter>(
      new RemoteArbiter(options, info, std::move(*connection), std::move(wake_fd)));
}

RemoteArbiter::RemoteArbiter(const RemoteOptions& options, const hal::DeviceInfo& info,
                             std::unique_ptr<DaemonConnection> connection, protocol::Fd wake_fd)
    : options_(options),
      info_(info),
      layout_(runtime::PoolLayout::build(info, protocol::limits_of(connection->welcome))),
      pool_hash_(connection->welcome.pool_hash),
      connection_(std::move(connection)),
      client_(layout_, [this] { protocol::ring_doorbell(connection_->socket); }),
      wake_fd_(std::move(wake_fd)) {
  client_.connect(connection_->link(), now_ns());
  // The application's signals must be delivered to its own threads.
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
  ::eventfd_write(wake_fd_.get(), 1);
  thread_.join();
}

void RemoteArbiter::on_change(std::function<void()> wake) {
  const std::lock_guard lock(wake_mutex_);
  wake_ = std::move(wake);
}

// --- under the device lock -------------------------------------------------------------------

GrantTerms RemoteArbiter::grant(const runtime::ReadyOperation& operation,
                                std::span<const PartitionId> eligible) {
  std::uint64_t time = now_ns();
  const std::uint64_t until = time + static_cast<std::uint64_t>(options_.spin.count());
  for (bool heard = false;;) {
    GrantTerms terms = client_.grant(operation.stream, operation, eligible, time);
    terms.heard = heard = heard || terms.heard;
    // Do not poll for a daemon that must be woken first.
    if (terms.partition != runtime::kNoPartition || time >= until ||
        connection_->memory.daemon->sleep_flag.asleep())
      return terms;
    hal::spin_pause();
    time = now_ns();
  }
}

void RemoteArbiter::expect(const runtime::ExpectedOperation& expected) {
  client_.expect(expected, now_ns());
}

void RemoteArbiter::service() {
  attention_.store(false, std::memory_order_release);
  std::unique_ptr<DaemonConnection> next;
  {
    const std::lock_guard lock(mutex_);
    next = std::move(next_);
  }
  if (next != nullptr) adopt(std::move(next));
  const std::uint64_t time = now_ns();
  client_.service(time);
  if (!previous_.empty() && !client_.in_fallback() && client_.has_reported_earlier_work())
    previous_.clear();
  check_daemon_polls(time);
}

void RemoteArbiter::adopt(std::unique_ptr<DaemonConnection> connection) {
  std::swap(connection_, connection);
  client_.connect(connection_->link(), now_ns());
  // lose() may have come before: what it stored is overwritten by now.
  if (connection_->lost.load()) client_.lose();
  turn_seen_ns_ = 0;
  previous_.push_back(std::move(connection));  // client_ does not refer to it any more
}

// Loses a daemon whose loop does not run while a lane waits for a grant. The time between two looks
// counts for a quarter of the time-out at most: this process, or the machine, may have stood still.
void RemoteArbiter::check_daemon_polls(std::uint64_t time) {
  if (!client_.waiting() || client_.in_fallback()) {
    turn_seen_ns_ = 0;
    return;
  }
  const std::uint64_t turns = connection_->memory.daemon->turns.load(std::memory_order_relaxed);
  const auto poll_timeout = static_cast<std::uint64_t>(nanoseconds(options_.poll_timeout).count());
  const std::uint64_t since_look = time - std::exchange(looked_ns_, time);
  if (turn_seen_ns_ == 0 || turns != turns_) {
    turns_ = turns;
    turn_seen_ns_ = time;
    silent_ns_ = 0;
    rung_ = false;
    return;
  }
  silent_ns_ += std::min(since_look, poll_timeout / 4);
  if (silent_ns_ >= poll_timeout) {
    client_.lose();
    daemon_stopped_.store(true, std::memory_order_release);
    ::eventfd_write(wake_fd_.get(), 1);
  } else if (silent_ns_ >= poll_timeout / 4 && !rung_) {
    rung_ = true;  // the loop does not run while it sleeps either: wake it
    protocol::ring_doorbell(connection_->socket);
  }
}

// --- the thread ------------------------------------------------------------------------------

void RemoteArbiter::run() {
  ::pthread_setname_np(::pthread_self(), "vitamin-watch");
  DaemonConnection* watched = connection_.get();  // not replaced before this thread sets next_
  for (;;) {
    if (!watch(*watched)) return;
    watched->lost.store(true);
    client_.lose();
    raise_attention();
    report("vitamind is gone; the program continues in its fallback partition");
    std::unique_ptr<DaemonConnection> next = reconnect();
    if (next == nullptr) return;
    report("vitamind is back");
    watched = next.get();
    {
      const std::lock_guard lock(mutex_);
      next_ = std::move(next);
    }
    raise_attention();
  }
}

// Returns true when the daemon is lost, false when this object is being destroyed.
bool RemoteArbiter::watch(DaemonConnection& connection) {
  const protocol::LivenessFutex alive(connection.memory.client->liveness);
  pollfd watched[] = {{connection.socket.get(), POLLIN, 0},
                      {connection.daemon.pidfd.get(), POLLIN, 0},
                      {wake_fd_.get(), POLLIN, 0}};
  for (;;) {
    if (::poll(watched, std::size(watched), -1) < 0) continue;
    if ((watched[2].revents & POLLIN) != 0) {
      eventfd_t count = 0;
      ::eventfd_read(wake_fd_.get(), &count);
      const std::lock_guard lock(mutex_);
      if (stopping_) return false;
      if (daemon_stopped_.exchange(false)) return true;
    }
    if ((watched[1].revents & POLLIN) != 0) return true;
    if ((watched[0].revents & (POLLHUP | POLLERR)) != 0) return true;
    if ((watched[0].revents & POLLIN) == 0) continue;
    // Several rings of the doorbell are one notification.
    for (;;) {
      const auto message = protocol::receive_message(connection.socket, 16);
      if (!message) break;
      if (message->empty()) return true;
    }
    raise_attention();
  }
}

std::unique_ptr<DaemonConnection> RemoteArbiter::reconnect() {
  milliseconds pause(5);
  std::string told;
  for (;;) {
    // The destructor cancels the handshake, so a process does not end late for a stopped daemon.
    auto made = client::connect(options_.socket, info_, options_.program, options_.claim,
                                {options_.handshake_timeout, wake_fd_.get()});
    if (made && (*made)->welcome.pool_hash == pool_hash_) return std::move(*made);
    const std::string why =
        made ? "vitamind is back with another pool, which this process cannot follow"
             : made.error().message;
    // The user knows already that there is no daemon; report any other error, once.
    if ((made || made.error().code != hal::Errc::kUnavailable) && why != told) report(told = why);
    pollfd woken{wake_fd_.get(), POLLIN, 0};
    if (::poll(&woken, 1, static_cast<int>(pause.count())) > 0) {
      eventfd_t count = 0;
      ::eventfd_read(wake_fd_.get(), &count);
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

void RemoteArbiter::report(const std::string& line) const {
  if (options_.report != nullptr) options_.report(line.c_str());
}

}  // namespace vitamin::client
