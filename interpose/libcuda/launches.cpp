// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches, and host functions and value waits, which share a stream with them.
#include "interpose/launches.h"

#include <cstring>
#include <vector>

#include "backends/cuda/launch_attributes.h"
#include "interpose/libcuda/manual_overrides.h"
#include "runtime/descriptor.h"

namespace vitamin::interpose {

namespace stats = runtime::stats;
using runtime::EventState;

CUresult launch_kernel(EntryPoint<decltype(::cuLaunchKernel)> entry, CUfunction kernel,
                       unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                       void** arguments, void** extra) {
  auto call = [&](CUstream native) {
    return entry.real(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                      native, arguments, extra);
  };
  // A launch that cannot be is the driver's to refuse.
  if (kernel == nullptr || (arguments != nullptr && extra != nullptr)) return call(stream);
  return route_launch(stream, entry.per_thread,
                      launch_of(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                                shared_bytes, arguments, extra),
                      call);
}

CUresult launch_cooperative(EntryPoint<decltype(::cuLaunchCooperativeKernel)> entry,
                            CUfunction kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned shared_bytes, CUstream stream, void** arguments) {
  auto call = [&](CUstream native) {
    return entry.real(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                      native, arguments);
  };
  if (kernel == nullptr) return call(stream);
  hal::KernelLaunch launch =
      launch_of(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                arguments, nullptr);
  launch.form = hal::LaunchForm::kCooperative;
  launch.cooperative = true;
  return route_launch(stream, entry.per_thread, launch, call);
}

CUresult launch_kernel_ex(EntryPoint<decltype(::cuLaunchKernelEx)> entry,
                          const CUlaunchConfig* config, CUfunction kernel, void** arguments,
                          void** extra) {
  if (config == nullptr || kernel == nullptr || (arguments != nullptr && extra != nullptr) ||
      (config->attrs == nullptr && config->numAttrs > 0))
    return entry.real(config, kernel, arguments, extra);
  auto call = [&](CUstream native) {
    CUlaunchConfig there = *config;
    there.hStream = native;
    return entry.real(&there, kernel, arguments, extra);
  };
  const Destination destination = destination_of(config->hStream, entry.per_thread);
  const cuda::LaunchAttributes attributes(config->attrs, config->numAttrs);
  if (destination.route != Route::kManaged) {
    if (attributes.recorded != nullptr) settle(find_event(attributes.recorded));
    const CUresult answer = destination.route == Route::kForeign
                                ? passed(entry.real(config, kernel, arguments, extra))
                                : captured(destination, call(destination.native()));
    if (answer == CUDA_SUCCESS && attributes.recorded != nullptr)
      recorded_outside(destination, config->hStream, entry.per_thread, false,
                       find_event(attributes.recorded));
    return answer;
  }
  const ReentrancyGuard ours;
  if (attributes.updatable_node || (captures_open() && destination.record->legacy))
    return bridge_launch(destination, kernel, stats::UnboundReason::kCapture, call);
  if (attributes.recorded != nullptr) {
    // The launch records an event. On the program's own stream, and the event once more behind
    // the kernel, so that waiting for it means what the event's record always means here. That is
    // later than the launch asked for, never earlier.
    settle(find_event(attributes.recorded));
    const CUresult answer = bridge_launch(destination, kernel, stats::UnboundReason::kOther, call);
    if (answer != CUDA_SUCCESS) return answer;
    auto record = runtime::call([event = attributes.recorded](void* native) {
      return hal::NativeStatus(VITAMIN_REAL(cuEventRecord)(event, static_cast<CUstream>(native)));
    });
    return record_managed(destination, find_event(attributes.recorded), record);
  }
  hal::KernelLaunch launch =
      launch_of(kernel, {config->gridDimX, config->gridDimY, config->gridDimZ},
                {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                arguments, extra);
  launch.form = hal::LaunchForm::kExtended;
  launch.attributes = {config->attrs, config->numAttrs};
  attributes.describe(launch);
  launch.in_context = destination.record->legacy;
  return result(destination.context().launch(destination.stream(), launch, current_advice()));
}

CUresult launch_multi_device(EntryPoint<decltype(::cuLaunchCooperativeKernelMultiDevice)> entry,
                             CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags) {
  std::vector<Destination> destinations;
  for (unsigned i = 0; launches != nullptr && i < count; ++i)
    destinations.push_back(destination_of(launches[i].hStream, false));
  return across(destinations, [&] { return entry.real(launches, count, flags); });
}

CUresult wait_value32(EntryPoint<decltype(::cuStreamWaitValue32)> entry, CUstream stream,
                      CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return host_wait(
      stream, entry.per_thread, HostWaitKind::kValueWait,
      [=](CUstream native) { return entry.real(native, address, value, flags); },
      [=] { return value_wait_accepted(address, sizeof value, flags); });
}

CUresult wait_value64(EntryPoint<decltype(::cuStreamWaitValue64)> entry, CUstream stream,
                      CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return host_wait(
      stream, entry.per_thread, HostWaitKind::kValueWait,
      [=](CUstream native) { return entry.real(native, address, value, flags); },
      [=] { return value_wait_accepted(address, sizeof value, flags); });
}

CUresult batch_memory_operation(EntryPoint<decltype(::cuStreamBatchMemOp)> entry, CUstream stream,
                                unsigned count, CUstreamBatchMemOpParams* operations,
                                unsigned flags) {
  // Of more the driver reads none.
  constexpr unsigned kMost = 255;
  if (operations == nullptr || count == 0 || count > kMost) {
    const Destination destination = destination_of(stream, entry.per_thread);
    return entry.real(destination.route == Route::kForeign ? stream : destination.native(), count,
                      operations, flags);
  }
  // Whether the driver takes every operation of a batch only the call tells.
  return host_wait(
      stream, entry.per_thread, HostWaitKind::kValueWait,
      [=, batch = std::vector(operations, operations + count)](CUstream native) mutable {
        return entry.real(native, count, batch.data(), flags);
      },
      [] { return false; });
}

}  // namespace vitamin::interpose
