// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/kernel_inspector.h"

#include <algorithm>

#include "backends/hip/kernel.h"
#include "backends/hip/status.h"
#include "backends/hip/stream_queue.h"
#include "hal/residency.h"

namespace vitamin::hip {

using hal::NativeStatus;

namespace {
const Kernel& as_kernel(hal::KernelHandle handle) { return *static_cast<const Kernel*>(handle); }
}  // namespace

std::size_t KernelInspector::attribute_record_bytes() const noexcept {
  return sizeof(ExtendedLaunch);
}

std::string KernelInspector::origin(hal::KernelHandle kernel) {
  return as_kernel(kernel).origin.empty() ? "(unknown)" : as_kernel(kernel).origin;
}

int KernelInspector::shared_bytes_max() const {
  int bytes = 0;
  const hipError_t status =
      api_.hipDeviceGetAttribute(&bytes, hipDeviceAttributeMaxSharedMemoryPerBlock, ordinal_);
  return status == hipSuccess ? bytes : 0;
}

hal::Result<hal::KernelLayout> KernelInspector::layout(hal::KernelHandle handle) {
  if (handle == nullptr) return hal::fail(hal::Errc::kInvalidArgument, "the kernel handle is null");
  const auto& layout = as_kernel(handle).layout;
  if (!layout)
    return hal::fail(hal::Errc::kUnsupported,
                     "the kernel's code object has no readable metadata (" + name(handle) + ")");
  return *layout;
}

std::string KernelInspector::name(hal::KernelHandle handle) {
  const Kernel& kernel = as_kernel(handle);
  if (!kernel.name.empty()) return kernel.name;
  const char* found = nullptr;
  if (kernel.kind == Kernel::Kind::kFunction && api_.hipKernelNameRef != nullptr)
    found = api_.hipKernelNameRef(kernel.function());
  else if (kernel.kind == Kernel::Kind::kHostFunction && api_.hipKernelNameRefByPtr != nullptr)
    found = api_.hipKernelNameRefByPtr(kernel.native, nullptr);
  return found != nullptr ? found : "(unnamed kernel)";
}

std::uint32_t KernelInspector::sms_needed(const hal::KernelLaunch& launch, bool resident) {
  // The runtime sends cooperative grids to a queue of its own on the whole device, whatever stream
  // they are launched on: on a partition they would escape its mask.
  if (launch.cooperative || launch.form == hal::LaunchForm::kCooperative) return info_.sms + 1;
  if (!resident) return 1;
  return hal::sms_to_hold(info_, launch.grid.volume(), resident_blocks(launch));
}

std::uint32_t KernelInspector::resident_blocks(const hal::KernelLaunch& launch) {
  const Kernel& kernel = as_kernel(launch.kernel);
  const CurrentDevice current(api_, ordinal_);
  const int threads = static_cast<int>(launch.block.volume());
  int blocks = 0;
  const hipError_t status = kernel.kind == Kernel::Kind::kFunction
                                ? api_.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
                                      &blocks, kernel.function(), threads, launch.shared_bytes)
                                : api_.hipOccupancyMaxActiveBlocksPerMultiprocessor(
                                      &blocks, kernel.native, threads, launch.shared_bytes);
  return status == hipSuccess ? static_cast<std::uint32_t>(std::max(0, blocks)) : 0;
}

// Whether the launch is one whose sizes HIP takes as they are: without products that do not fit
// into 32 bits, a block that it cuts to the work items, and events, of which only the call tells
// whether they are there (a query would end captures).
bool KernelInspector::plain(const hal::KernelLaunch& launch) const {
  const hal::Dim3 g = launch.grid, b = launch.block;
  constexpr std::uint32_t kGridYZ = 65535;
  if (g.y > kGridYZ || g.z > kGridYZ) return false;
  const auto fits = [](std::uint64_t product) { return product <= UINT32_MAX; };
  for (const std::uint64_t items :
       {std::uint64_t{g.x} * b.x, std::uint64_t{g.y} * b.y, std::uint64_t{g.z} * b.z})
    if (!fits(items)) return false;
  if (const std::uint64_t area = std::uint64_t{b.x} * b.y; !fits(area) || !fits(area * b.z))
    return false;
  if (launch.form != hal::LaunchForm::kExtended) return true;
  const auto& extended = *static_cast<const ExtendedLaunch*>(launch.attributes.records);
  if (extended.start != nullptr || extended.stop != nullptr) return false;
  if (as_kernel(launch.kernel).kind != Kernel::Kind::kFunction) return true;  // a grid of blocks
  const hal::Dim3 items = extended.work_items;
  return items.x % b.x == 0 && items.y % b.y == 0 && items.z % b.z == 0;
}

// Versions differ in the codes of what cannot be launched, and between their calls.
NativeStatus KernelInspector::validate(const hal::KernelLaunch& launch) noexcept {
  if (launch.kernel == nullptr || as_kernel(launch.kernel).native == nullptr)
    return hipErrorInvalidDeviceFunction;
  const Kernel& kernel = as_kernel(launch.kernel);
  const bool module = kernel.kind == Kernel::Kind::kFunction;
  for (const hal::Dim3 size : {launch.grid, launch.block})
    if (size.x == 0 || size.y == 0 || size.z == 0) return hal::kRefusedInAnyPlace;
  if (!plain(launch)) return hal::kOnlyTheCallTells;
  if (launch.extra != nullptr && (launch.arguments != nullptr || !module))
    return hal::kRefusedInAnyPlace;
  const CurrentDevice current(api_, ordinal_);
  int threads = 0;
  if (module) {
    if (api_.hipFuncGetAttribute(&threads, HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                                 kernel.function()) != hipSuccess)
      return hal::kOnlyTheCallTells;
  } else {
    hipFuncAttributes attributes{};
    if (api_.hipFuncGetAttributes(&attributes, kernel.native) != hipSuccess)
      return hal::kOnlyTheCallTells;
    threads = attributes.maxThreadsPerBlock;
  }
  const int shared = shared_bytes_max();
  if (threads <= 0 || shared <= 0) return hal::kOnlyTheCallTells;
  if (launch.block.volume() > static_cast<std::uint64_t>(threads) ||
      launch.shared_bytes > static_cast<std::uint32_t>(shared))
    return hal::kRefusedInAnyPlace;
  if (launch.cooperative) {
    const std::uint64_t blocks = resident_blocks(launch);
    if (blocks == 0) return hal::kOnlyTheCallTells;
    if (launch.grid.volume() > blocks * info_.sms) return hipErrorCooperativeLaunchTooLarge;
  }
  return hipSuccess;
}

}  // namespace vitamin::hip
