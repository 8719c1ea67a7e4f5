// SPDX-License-Identifier: Apache-2.0
//
// A pool entry on AMD: a CU mask, and the streams made with it; and the queues that wrap the
// application's own streams.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "backends/hip/api.h"
#include "backends/hip/kernel.h"
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
  StreamQueue(const Api& api, int ordinal, hipStream_t stream, Ownership ownership)
      : api_(api), ordinal_(ordinal), stream_(stream), owned_(ownership == Ownership::kOwned) {}
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
};

// Says to a person, once, that there are fewer queues than hoped for.
class QueueRefusal {
 public:
  explicit QueueRefusal(void (*notice)(const char*)) : notice_(notice) {}
  void tell(hipError_t status);

 private:
  void (*notice_)(const char*);
  std::atomic<bool> told_ = false;
};

class MaskedContext final : public hal::PhysicalContext {
 public:
  MaskedContext(const Api& api, int ordinal, hal::ComputeSet compute, std::uint32_t processors,
                std::vector<std::uint32_t> mask, QueueRefusal& refusal)
      : api_(api),
        ordinal_(ordinal),
        compute_(compute),
        processors_(processors),
        mask_(std::move(mask)),
        refusal_(refusal) {}
  hal::ComputeSet compute() const noexcept override { return compute_; }
  std::uint32_t processors() const noexcept override { return processors_; }
  // A masked stream has no priority: HIP has no call that takes both.
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override;

 private:
  const Api& api_;
  int ordinal_;
  hal::ComputeSet compute_;
  std::uint32_t processors_;
  std::vector<std::uint32_t> mask_;
  QueueRefusal& refusal_;  // the device's
};

}  // namespace vitamin::hip
