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

CUresult launch_kernel(Via<decltype(::cuLaunchKernel)> via, CUfunction kernel, unsigned grid_x,
                       unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes, CUstream stream, void** arguments,
                       void** extra) {
  auto call = [&](CUstream native) {
    return via.real(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, native,
                    arguments, extra);
  };
  // A launch that cannot be is the driver's to refuse.
  if (kernel == nullptr || (arguments != nullptr && extra != nullptr)) return call(stream);
  return route_launch(stream, via.per_thread,
                      launch_of(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                                shared_bytes, arguments, extra),
                      call);
}

CUresult launch_cooperative(Via<decltype(::cuLaunchCooperativeKernel)> via, CUfunction kernel,
                            unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes,
                            CUstream stream, void** arguments) {
  auto call = [&](CUstream native) {
    return via.real(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, native,
                    arguments);
  };
  if (kernel == nullptr) return call(stream);
  hal::KernelLaunch launch =
      launch_of(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                arguments, nullptr);
  launch.form = hal::LaunchForm::kCooperative;
  launch.cooperative = true;
  return route_launch(stream, via.per_thread, launch, call);
}

CUresult launch_kernel_ex(Via<decltype(::cuLaunchKernelEx)> via, const CUlaunchConfig* config,
                          CUfunction kernel, void** arguments, void** extra) {
  if (config == nullptr || kernel == nullptr || (arguments != nullptr && extra != nullptr) ||
      (config->attrs == nullptr && config->numAttrs > 0))
    return via.real(config, kernel, arguments, extra);
  auto call = [&](CUstream native) {
    CUlaunchConfig there = *config;
    there.hStream = native;
    return via.real(&there, kernel, arguments, extra);
  };
  const Way way = way_of(config->hStream, via.per_thread);
  const cuda::LaunchAttributes attributes(config->attrs, config->numAttrs);
  if (way.route != Route::kManaged) {
    if (attributes.recorded != nullptr) settle(find_event(attributes.recorded));
    const CUresult answer = way.route == Route::kForeign
                                ? passed(via.real(config, kernel, arguments, extra))
                                : captured(way, call(way.native()));
    if (answer == CUDA_SUCCESS && attributes.recorded != nullptr)
      recorded_outside(way, config->hStream, via.per_thread, false,
                       find_event(attributes.recorded));
    return answer;
  }
  const ReentrancyGuard ours;
  if (attributes.updatable_node || (captures_open() && way.record->legacy))
    return bridge_launch(way, kernel, stats::UnboundReason::kCapture, call);
  if (attributes.recorded != nullptr) {
    // The launch records an event. On the program's own stream, and the event once more behind
    // the kernel, so that waiting for it means what the event's record always means here. That is
    // later than the launch asked for, never earlier.
    const CUresult answer = bridge_launch(way, kernel, stats::UnboundReason::kOther, call);
    if (answer != CUDA_SUCCESS) return answer;
    auto record = runtime::call([event = attributes.recorded](void* native) {
      return hal::NativeStatus(VITAMIN_REAL(cuEventRecord)(event, static_cast<CUstream>(native)));
    });
    return record_managed(way, find_event(attributes.recorded), record);
  }
  hal::KernelLaunch launch =
      launch_of(kernel, {config->gridDimX, config->gridDimY, config->gridDimZ},
                {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                arguments, extra);
  launch.form = hal::LaunchForm::kExtended;
  launch.attributes = {config->attrs, config->numAttrs};
  attributes.describe(launch);
  launch.in_context = way.record->legacy;
  return result(way.context().launch(way.stream(), launch, current_advice()));
}

CUresult launch_multi_device(Via<decltype(::cuLaunchCooperativeKernelMultiDevice)> via,
                             CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags) {
  std::vector<Way> ways;
  for (unsigned i = 0; launches != nullptr && i < count; ++i)
    ways.push_back(way_of(launches[i].hStream, false));
  return across(ways, [&] { return via.real(launches, count, flags); });
}

CUresult wait_value32(Via<decltype(::cuStreamWaitValue32)> via, CUstream stream,
                      CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return host_wait(
      stream, via.per_thread, HostWaitKind::kValueWait,
      [=](CUstream native) { return via.real(native, address, value, flags); },
      [=] { return value_wait_accepted(address, sizeof value, flags); });
}

CUresult wait_value64(Via<decltype(::cuStreamWaitValue64)> via, CUstream stream,
                      CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return host_wait(
      stream, via.per_thread, HostWaitKind::kValueWait,
      [=](CUstream native) { return via.real(native, address, value, flags); },
      [=] { return value_wait_accepted(address, sizeof value, flags); });
}

CUresult batch_memory_operation(Via<decltype(::cuStreamBatchMemOp)> via, CUstream stream,
                                unsigned count, CUstreamBatchMemOpParams* operations,
                                unsigned flags) {
  // Of more the driver reads none.
  constexpr unsigned kMost = 255;
  if (operations == nullptr || count == 0 || count > kMost) {
    const Way way = way_of(stream, via.per_thread);
    return via.real(way.route == Route::kForeign ? stream : way.native(), count, operations, flags);
  }
  // Whether the driver takes every operation of a batch only the call tells.
  return host_wait(
      stream, via.per_thread, HostWaitKind::kValueWait,
      [=, batch = std::vector(operations, operations + count)](CUstream native) mutable {
        return via.real(native, count, batch.data(), flags);
      },
      [] { return false; });
}

}  // namespace vitamin::interpose
