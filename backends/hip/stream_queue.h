// SPDX-License-Identifier: Apache-2.0
//
// A partition on AMD: a CU mask, and the streams made with it; and the queues that wrap the
// program's own streams.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "backends/hip/api.h"
#include "backends/hip/kernel.h"
#include "backends/hip/queue_ledger.h"
#include "hal/device.h"

namespace vitamin::hip {

// Makes a device current for its lifetime. The application's is restored: a call of ours may come
// on any of its threads.
class CurrentDevice {
 public:
  CurrentDevice(const Api& api, int ordinal) : api_(api) {
    changed_ = api_.hipGetDevice(&before_) == hipSuccess && before_ != ordinal &&
               api_.hipSetDevice(ordinal) == hipSuccess;
  }
  ~CurrentDevice() {
    if (changed_) static_cast<void>(api_.hipSetDevice(before_));
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const Api& api_;
  int before_ = 0;
  bool changed_ = false;
};

class StreamQueue : public hal::Queue {
 public:
  enum class Ownership : bool { kBorrowed, kOwned };
  // `ticket`: given back when the stream is gone; null where queues are not shared out.
  StreamQueue(const Api& api, int ordinal, hipStream_t stream, Ownership ownership,
              QueueLedger::Ticket ticket)
      : api_(api),
        ordinal_(ordinal),
        stream_(stream),
        owned_(ownership == Ownership::kOwned),
        ticket_(std::move(ticket)) {}
  ~StreamQueue() override;
  void* native() const noexcept override { return stream_; }
  hal::NativeStatus launch(const hal::KernelLaunch& launch) noexcept override;
  hal::NativeStatus record(hal::Event event) noexcept override;
  hal::NativeStatus wait(hal::Event event) noexcept override;
  hal::NativeStatus query() noexcept override;
  hal::NativeStatus synchronize() noexcept override;

 private:
  hipError_t launch_extended(const hal::KernelLaunch& launch) noexcept;
  const Api& api_;
  int ordinal_;
  hipStream_t stream_;
  bool owned_;
  QueueLedger::Ticket ticket_;
};

// What a device's pool queues are made within: a queue of the GPU for each, or a sentence to a
// person, once, that there are fewer than hoped for.
class PoolQueues {
 public:
  PoolQueues(const Api& api, int ordinal, void (*notice)(const char*))
      : api_(api), ordinal_(ordinal), notice_(notice) {}
  // Null (and before this): the GPU's queues are not shared out.
  void share(std::shared_ptr<QueueLedger> ledger) { ledger_ = std::move(ledger); }
  QueueLedger* ledger() const { return ledger_.get(); }

  // `create(&stream)`: the runtime's way. kBusy: other processes have the GPU's queues.
  template <class Create>
  hal::Result<std::unique_ptr<hal::Queue>> make(Create create) {
    QueueLedger::Ticket ticket = ledger_ != nullptr ? ledger_->pool_queue() : nullptr;
    if (ledger_ != nullptr && ticket == nullptr) return none_left();
    const CurrentDevice current(api_, ordinal_);
    hipStream_t stream = nullptr;
    if (const hipError_t status = create(&stream); status != hipSuccess) return refused(status);
    return std::make_unique<StreamQueue>(api_, ordinal_, stream, StreamQueue::Ownership::kOwned,
                                         std::move(ticket));
  }
  tl::unexpected<hal::Error> refused(hipError_t status);
  tl::unexpected<hal::Error> none_left();

 private:
  const Api& api_;
  int ordinal_;
  void (*notice_)(const char*);
  std::shared_ptr<QueueLedger> ledger_;
  std::atomic<bool> told_ = false;
};

// A partition, whatever makes its streams.
class PoolContext : public hal::PhysicalContext {
 public:
  PoolContext(const Api& api, hal::ComputeSet compute, std::uint32_t sms, PoolQueues& queues)
      : api_(api), queues_(queues), compute_(compute), sms_(sms) {}
  hal::ComputeSet compute() const noexcept override { return compute_; }
  std::uint32_t sms() const noexcept override { return sms_; }

 protected:
  const Api& api_;
  PoolQueues& queues_;  // the device's

 private:
  hal::ComputeSet compute_;
  std::uint32_t sms_;
};

class MaskedContext final : public PoolContext {
 public:
  MaskedContext(const Api& api, hal::ComputeSet compute, std::uint32_t sms, PoolQueues& queues,
                std::vector<std::uint32_t> mask)
      : PoolContext(api, compute, sms, queues), mask_(std::move(mask)) {}
  // A masked stream has no priority: HIP has no call that takes both.
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override;

 private:
  std::vector<std::uint32_t> mask_;
};

}  // namespace vitamin::hip
