// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of a device that lives in vitamind: LeaseClient over a DaemonConnection, and a thread
// that watches the daemon.
//
// The thread lives as long as the process. It holds the liveness futex
// (daemon/protocol/liveness.h), by which the daemon learns at once that this process dies. It
// sleeps until the daemon rings, dies or hangs up; then it moves the lanes to the fallback
// partition and reconnects. It touches no state that the device lock guards: it sets a flag and
// wakes the mover (Arbiter::on_change), which takes that lock for a moment.
//
// A daemon whose loop does not run while a request waits (stopped or starved) counts as lost, too.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "daemon/client/connection.h"
#include "daemon/client/lease_client.h"
#include "daemon/protocol/fd.h"
#include "runtime/arbiter.h"

namespace vitamin::client {

struct RemoteOptions {
  std::string socket;     // where the daemon listens
  std::string program;    // name for logs and status
  protocol::Claim claim;  // class, job and share that the program claims
  std::chrono::milliseconds handshake_timeout{1000};
  // While a request waits, a daemon whose loop does not run for this time is lost.
  std::chrono::milliseconds poll_timeout{200};
  // How long a launch polls for a grant before it is deferred.
  std::chrono::nanoseconds spin{3000};
  // Gets one line for each event that a user should know; called from any thread. May be null.
  void (*report)(const char* line) = nullptr;
};

class RemoteArbiter final : public runtime::Arbiter {
 public:
  // Makes the first connection. The error says why no daemon can be used for this device.
  static hal::Result<std::unique_ptr<RemoteArbiter>> connect(const RemoteOptions& options,
                                                             const hal::DeviceInfo& info);
  ~RemoteArbiter() override;

  hal::ComputeSet barred(StreamId) const override { return {}; }  // the daemon decides
  GrantTerms grant(const runtime::ReadyOperation& operation,
                   std::span<const PartitionId> eligible) override;
  bool admits(PartitionId partition, StreamId stream) const override {
    return client_.admits(partition, stream);
  }
  void submitted(PartitionId partition, StreamId stream) override {
    client_.submitted(partition, stream);
  }
  void ended(PartitionId partition, StreamId stream, std::uint32_t operations) override {
    client_.ended(partition, stream, operations);
  }
  void progressed() override { client_.progressed(); }
  void collective() override { client_.collective(); }
  bool reports() const override { return client_.reports(); }
  void completed(PartitionId partition, StreamId stream, std::uint32_t launches,
                 std::uint64_t work) override {
    client_.completed(partition, stream, launches, work);
  }
  void busy(std::uint64_t ns) override { client_.busy(ns); }
  void set_busy(bool busy) override { client_.set_busy(busy); }
  void release(PartitionId, StreamId) override {}
  void expect(const runtime::ExpectedOperation& expected) override;
  void timed(const runtime::TimedLaunches& launches) override { client_.timed(launches); }
  bool streams_share() const override { return true; }
  bool between_processes() const override { return true; }
  void on_change(std::function<void()> wake) override;
  bool wants_service() const override {
    return attention_.load(std::memory_order_acquire) || !client_.sleeps() ||
           (!previous_.empty() && !client_.in_fallback());
  }
  void service() override;
  bool draining() const override { return client_.draining(); }

  runtime::PoolLimits limits() const { return protocol::limits_of(connection_->welcome); }
  std::string policy() const { return connection_->welcome.policy.get(); }
  const LeaseClient& client() const { return client_; }

 private:
  RemoteArbiter(const RemoteOptions& options, const hal::DeviceInfo& info,
                std::unique_ptr<DaemonConnection> connection, protocol::Fd wake_fd);
  void adopt(std::unique_ptr<DaemonConnection> connection);
  void check_daemon_polls(std::uint64_t now_ns);
  void run();
  bool watch(DaemonConnection& connection);
  std::unique_ptr<DaemonConnection> reconnect();
  void raise_attention();
  void report(const std::string& line) const;

  RemoteOptions options_;
  hal::DeviceInfo info_;
  runtime::PoolLayout layout_;
  std::uint64_t pool_hash_;
  // Replaced under the device lock only. A lost connection stays mapped until then.
  std::unique_ptr<DaemonConnection> connection_;
  // Lost connections, kept open until the earlier work was reported over the newest one: a daemon
  // that was stopped for a while, perhaps twice, keeps the leases of sessions that are open.
  std::vector<std::unique_ptr<DaemonConnection>> previous_;
  LeaseClient client_;
  std::uint64_t turns_ = 0;  // the daemon's counter when it last changed, and when that was
  std::uint64_t turn_seen_ns_ = 0;
  // When that was looked at last, and how long it has stood still.
  std::uint64_t looked_ns_ = 0, silent_ns_ = 0;
  bool rung_ = false;

  std::atomic<bool> attention_{true};
  std::mutex mutex_;  // protects the next two
  std::unique_ptr<DaemonConnection> next_;
  bool stopping_ = false;
  std::mutex wake_mutex_;  // protects wake_ and is held while it runs, so on_change() waits for it
  std::function<void()> wake_;
  protocol::Fd wake_fd_;  // an eventfd that wakes the thread
  std::atomic<bool> daemon_stopped_{false};
  std::thread thread_;
};

}  // namespace vitamin::client
