// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of a device that lives in vitamind: LeaseClient over a Connection, and a thread that
// watches the daemon.
//
// The thread lives as long as the process. It holds the life line (daemon/protocol/life.h), so its
// end is how the daemon learns of ours; sleeps until the daemon rings, dies or hangs up; sends the
// lanes home when the daemon is gone and connects again when there is one. It never takes the
// device lock itself: it raises a flag and wakes the pipeline's thread (Arbiter::on_change).
//
// A daemon that does not turn while a request waits (stopped, or starved) counts as gone too.
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
  std::string socket;                        // where the daemon listens
  std::string program;                       // what it shows to people
  protocol::Claim claim;                     // what it says of itself
  std::chrono::milliseconds patience{1000};  // for the answer to a connection
  // While a request waits, a daemon that does not turn for this long is gone.
  std::chrono::milliseconds silence{200};
  // How long a launch waits for a grant on the spot, before it is deferred.
  std::chrono::nanoseconds spin{3000};
  // Told what a user should know, one line each; any thread. Unset: nothing is said.
  void (*say)(const char* line) = nullptr;
};

class RemoteArbiter final : public runtime::Arbiter {
 public:
  // The first connection: an error means that there is no daemon for this device, and why.
  static hal::Result<std::unique_ptr<RemoteArbiter>> connect(const RemoteOptions& options,
                                                             const hal::DeviceInfo& info);
  ~RemoteArbiter() override;

  hal::ComputeSet barred(LaneId) const override { return {}; }  // the daemon's business
  Choice grant(const runtime::ReadyOperation& operation,
               std::span<const EntryId> eligible) override;
  bool admits(EntryId entry, LaneId lane) const override { return client_.admits(entry, lane); }
  void submitted(EntryId entry, LaneId lane) override { client_.submitted(entry, lane); }
  void retired(EntryId entry, LaneId lane, std::uint32_t operations) override {
    client_.retired(entry, lane, operations);
  }
  void progressed() override { client_.progressed(); }
  bool reports() const override { return client_.reports(); }
  void completed(EntryId entry, LaneId lane, std::uint32_t launches, std::uint64_t work) override {
    client_.completed(entry, lane, launches, work);
  }
  void busy(std::uint64_t ns) override { client_.busy(ns); }
  void outstanding(bool any) override { client_.outstanding(any); }
  void release(EntryId, LaneId) override {}
  void expect(const runtime::Hint& hint) override;
  void timed(const runtime::TimedLaunches& launches) override { client_.timed(launches); }
  bool lanes_share() const override { return true; }
  bool between_processes() const override { return true; }
  void on_change(std::function<void()> wake) override;
  bool wants_service() const override {
    return attention_.load(std::memory_order_acquire) || !client_.parked() ||
           (!before_.empty() && !client_.at_home());
  }
  void service() override;
  bool draining() const override { return client_.draining(); }

  runtime::PoolLimits limits() const { return protocol::limits_of(connection_->welcome); }
  std::string policy() const { return connection_->welcome.policy.get(); }
  const LeaseClient& client() const { return client_; }

 private:
  RemoteArbiter(const RemoteOptions& options, const hal::DeviceInfo& info,
                std::unique_ptr<Connection> connection, protocol::Fd poke);
  void adopt(std::unique_ptr<Connection> connection);
  void suspect(std::uint64_t now_ns);
  void run();
  bool watch(Connection& connection);
  std::unique_ptr<Connection> reconnect();
  void raise_attention();
  void say(const std::string& line) const;

  RemoteOptions options_;
  hal::DeviceInfo info_;
  runtime::PoolLayout layout_;
  std::uint64_t pool_hash_;
  // Replaced under the device lock only. A connection that was lost stays mapped until then.
  std::unique_ptr<Connection> connection_;
  // Those before, until the daemon has heard in the newest what runs under leases of theirs: a
  // daemon that was only silent, perhaps twice, holds them for as long as these are open.
  std::vector<std::unique_ptr<Connection>> before_;
  LeaseClient client_;
  std::uint64_t turns_ = 0;  // of the daemon, when they were seen to change last
  std::uint64_t turned_ns_ = 0;
  bool rung_ = false;

  std::atomic<bool> attention_{true};
  std::mutex mutex_;  // of the next two
  std::unique_ptr<Connection> next_;
  bool stopping_ = false;
  std::mutex wake_mutex_;  // of wake_, held while it runs: on_change() waits for it
  std::function<void()> wake_;
  protocol::Fd poke_;  // an eventfd: something changed for the thread
  std::atomic<bool> silent_{false};
  std::thread thread_;
};

}  // namespace vitamin::client
