// SPDX-License-Identifier: Apache-2.0
//
// A partition on NVIDIA: a green context over a union of units, and its streams; and the queues
// that wrap the program's own streams.
#pragma once

#include <memory>
#include <vector>

#include "backends/cuda/api.h"
#include "hal/device.h"

namespace vitamin::cuda {

// Makes `context` current for its lifetime. The application's current context is restored: a call
// of ours may come on any of its threads.
class CurrentContext {
 public:
  CurrentContext(const Api& api, CUcontext context) : api_(api) {
    CUcontext current = nullptr;
    api_.cuCtxGetCurrent(&current);
    pushed_ = current != context && api_.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
  }
  ~CurrentContext() {
    CUcontext popped = nullptr;
    if (pushed_) api_.cuCtxPopCurrent_v2(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const Api& api_;
  bool pushed_ = false;
};

// A queue over any stream handle that means the same stream on every thread.
class StreamQueue : public hal::Queue {
 public:
  enum class Ownership : bool { kBorrowed, kOwned };
  StreamQueue(const Api& api, CUstream stream, Ownership ownership)
      : api_(api), stream_(stream), owned_(ownership == Ownership::kOwned) {}
  ~StreamQueue() override;
  void* native() const noexcept override { return stream_; }
  hal::NativeStatus launch(const hal::KernelLaunch& launch) noexcept override;
  hal::NativeStatus record(hal::Event event) noexcept override;
  hal::NativeStatus wait(hal::Event event) noexcept override;
  hal::NativeStatus query() noexcept override;
  hal::NativeStatus synchronize() noexcept override;

 protected:
  const Api& api_;

 private:
  CUstream stream_;
  bool owned_;
};

// The legacy default stream: its handle means the stream of whatever context is current.
class LegacyQueue final : public StreamQueue {
 public:
  LegacyQueue(const Api& api, CUcontext context)
      : StreamQueue(api, CU_STREAM_LEGACY, Ownership::kBorrowed), context_(context) {}
  hal::NativeStatus launch(const hal::KernelLaunch& launch) noexcept override;
  hal::NativeStatus record(hal::Event event) noexcept override;
  hal::NativeStatus wait(hal::Event event) noexcept override;
  hal::NativeStatus query() noexcept override;
  hal::NativeStatus synchronize() noexcept override;

 private:
  CUcontext context_;
};

class GreenContext final : public hal::PhysicalContext {
 public:
  // `resources` are outputs of the device's one split.
  static hal::Result<std::unique_ptr<hal::PhysicalContext>> create(
      const Api& api, CUdevice device, hal::ComputeSet compute, std::uint32_t sms,
      std::vector<CUdevResource> resources);
  ~GreenContext() override;
  hal::ComputeSet compute() const noexcept override { return compute_; }
  std::uint32_t sms() const noexcept override { return sms_; }
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override;
  CUcontext context() const { return context_; }
  // A stream that nothing runs on: captures of ours begin there (moved_graph.h). One thread at a
  // time.
  hal::Result<CUstream> capture_stream();

 private:
  GreenContext(const Api& api, CUgreenCtx green, CUcontext context, hal::ComputeSet compute,
               std::uint32_t sms)
      : api_(api), green_(green), context_(context), compute_(compute), sms_(sms) {}
  const Api& api_;
  CUgreenCtx green_;
  CUcontext context_;
  CUstream capture_stream_ = nullptr;  // null: not made yet
  hal::ComputeSet compute_;
  std::uint32_t sms_;
};

}  // namespace vitamin::cuda
