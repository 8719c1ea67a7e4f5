// SPDX-License-Identifier: Apache-2.0
//
// An arbiter that grants the whole device, as a lease or shared, and counts what is outstanding.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "runtime/arbiter.h"

namespace vitamin::tests {

// What a test says and sees; any thread.
struct Leases {
  std::atomic<bool> counts_outstanding = true, draining = false;
  std::atomic<bool> brief = false;  // each grant is revoked before the launch is submitted
  std::atomic<unsigned> grant = 1;  // the one that is open
  std::atomic<std::uint64_t> submitted = 0, ended = 0;
  std::atomic<std::uint64_t> looks = 0;  // of the runtime, whether something drains
  std::mutex mutex;
  std::function<void()> wake;

  // The grant of before is revoked.
  void change(bool counts) {
    counts_outstanding = counts;
    ++grant;
  }
  void drain() {
    const std::lock_guard lock(mutex);
    draining = true;
    if (wake) wake();
  }
};

class Leasing final : public runtime::Arbiter {
 public:
  explicit Leasing(Leases& leases) : leases_(leases) {}
  runtime::GrantTerms grant(const runtime::ReadyOperation& operation,
                            std::span<const runtime::PartitionId>) override {
    granted_[operation.stream] = leases_.grant;
    if (leases_.brief) ++leases_.grant;
    return {runtime::kWholeDevice, runtime::kUntilRevoked, runtime::kNever,
            leases_.counts_outstanding};
  }
  bool admits(runtime::PartitionId partition, runtime::StreamId stream) const override {
    const auto granted = granted_.find(stream);
    return partition == runtime::kWholeDevice && granted != granted_.end() &&
           granted->second == leases_.grant;
  }
  void submitted(runtime::PartitionId partition, runtime::StreamId) override {
    leases_.submitted += partition == runtime::kWholeDevice ? 1 : 1'000'000;
  }
  void ended(runtime::PartitionId partition, runtime::StreamId, std::uint32_t operations) override {
    leases_.ended += partition == runtime::kWholeDevice ? operations : 1'000'000;
  }
  void release(runtime::PartitionId, runtime::StreamId) override {}
  bool streams_share() const override { return true; }
  hal::ComputeSet barred(runtime::StreamId) const override { return {}; }
  void on_change(std::function<void()> wake) override {
    const std::lock_guard lock(leases_.mutex);
    leases_.wake = std::move(wake);
  }
  bool wants_service() const override { return leases_.draining; }
  bool draining() const override {
    ++leases_.looks;
    return leases_.draining;
  }

  static runtime::MakeArbiter maker(Leases& leases) {
    return [&leases](const hal::DeviceInfo&, runtime::PoolLimits&) {
      return std::make_unique<Leasing>(leases);
    };
  }

 private:
  Leases& leases_;
  std::map<runtime::StreamId, unsigned> granted_;
};

}  // namespace vitamin::tests
