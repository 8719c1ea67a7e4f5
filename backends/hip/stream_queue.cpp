// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/stream_queue.h"

#include "backends/hip/status.h"

namespace vitamin::hip {
namespace {

using hal::NativeStatus;

hipEvent_t event_of(hal::Event event) { return static_cast<hipEvent_t>(event.native); }
const Kernel& kernel_of(const hal::KernelLaunch& launch) {
  return *static_cast<const Kernel*>(launch.kernel);
}
dim3 dim3_of(const hal::Dim3& d) { return {d.x, d.y, d.z}; }

}  // namespace

StreamQueue::~StreamQueue() {
  if (owned_) static_cast<void>(api_.hipStreamDestroy(stream_));
}

NativeStatus StreamQueue::launch(const hal::KernelLaunch& l) noexcept {
  const Kernel& kernel = kernel_of(l);
  const CurrentDevice current(api_, ordinal_);  // a host stub means the current device's kernel
  if (l.form == hal::LaunchForm::kExtended) return launch_extended(l);
  const bool cooperative = l.form == hal::LaunchForm::kCooperative;
  if (kernel.kind == Kernel::Kind::kHostFunction) {
    if (l.extra != nullptr) return hipErrorInvalidValue;  // hipLaunchKernel has no packed form
    if (cooperative)
      return api_.hipLaunchCooperativeKernel(kernel.native, dim3_of(l.grid), dim3_of(l.block),
                                             l.arguments, l.shared_bytes, stream_);
    return api_.hipLaunchKernel(kernel.native, dim3_of(l.grid), dim3_of(l.block), l.arguments,
                                l.shared_bytes, stream_);
  }
  if (cooperative) {
    if (api_.hipModuleLaunchCooperativeKernel == nullptr) return hipErrorNotSupported;
    return api_.hipModuleLaunchCooperativeKernel(kernel.function(), l.grid.x, l.grid.y, l.grid.z,
                                                 l.block.x, l.block.y, l.block.z, l.shared_bytes,
                                                 stream_, l.arguments);
  }
  return api_.hipModuleLaunchKernel(kernel.function(), l.grid.x, l.grid.y, l.grid.z, l.block.x,
                                    l.block.y, l.block.z, l.shared_bytes, stream_, l.arguments,
                                    l.extra);
}

hipError_t StreamQueue::launch_extended(const hal::KernelLaunch& l) noexcept {
  const Kernel& kernel = kernel_of(l);
  const auto& e = *static_cast<const ExtendedLaunch*>(l.attributes.records);
  if (kernel.kind == Kernel::Kind::kHostFunction)
    return api_.hipExtLaunchKernel(kernel.native, dim3_of(l.grid), dim3_of(l.block), l.arguments,
                                   l.shared_bytes, stream_, e.start, e.stop,
                                   static_cast<int>(e.flags));
  if (api_.hipExtModuleLaunchKernel == nullptr) return hipErrorNotSupported;
  return api_.hipExtModuleLaunchKernel(
      kernel.function(), e.work_items.x, e.work_items.y, e.work_items.z, l.block.x, l.block.y,
      l.block.z, l.shared_bytes, stream_, l.arguments, l.extra, e.start, e.stop, e.flags);
}

NativeStatus StreamQueue::record(hal::Event event) noexcept {
  return api_.hipEventRecord(event_of(event), stream_);
}
NativeStatus StreamQueue::wait(hal::Event event) noexcept {
  return api_.hipStreamWaitEvent(stream_, event_of(event), 0);
}
NativeStatus StreamQueue::query() noexcept { return api_.hipStreamQuery(stream_); }
NativeStatus StreamQueue::synchronize() noexcept { return api_.hipStreamSynchronize(stream_); }

tl::unexpected<hal::Error> PoolQueues::refused(hipError_t status) {
  if (notice_ != nullptr && !told_.exchange(true))
    notice_(("A CU-masked queue cannot be created (HIP error " + std::to_string(int(status)) +
             "): launches share those that there are, or stay on the application's streams.")
                .c_str());
  return failed("a CU-masked queue cannot be created", status);
}

tl::unexpected<hal::Error> PoolQueues::none_left() {
  if (notice_ != nullptr && !told_.exchange(true))
    notice_(
        "Other processes have the GPU's compute queues: launches share those that there are, or "
        "stay on the application's streams. GPU_MAX_HW_QUEUES=1 or 2 leaves more to all.");
  return hal::fail(hal::Errc::kBusy, "other processes have the GPU's compute queues");
}

hal::Result<std::unique_ptr<hal::Queue>> MaskedContext::create_queue(int) {
  return queues_.make([&](hipStream_t* stream) {
    return api_.hipExtStreamCreateWithCUMask(stream, static_cast<std::uint32_t>(mask_.size()),
                                             mask_.data());
  });
}

}  // namespace vitamin::hip
