// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches, and value waits, which share a stream with them.
#include "interpose/launches.h"

#include <vector>

#include "interpose/libamdhip64/code.h"
#include "interpose/libamdhip64/manual_overrides.h"

namespace vitamin::interpose {
namespace {

hal::Dim3 size_of(dim3 d) { return {d.x, d.y, d.z}; }

hal::KernelLaunch stub_launch(const void* stub, dim3 grid, dim3 block, void** arguments,
                              std::size_t shared_bytes) {
  return launch_of(kernel_of_stub(stub), size_of(grid), size_of(block),
                   static_cast<std::uint32_t>(shared_bytes), arguments, nullptr);
}

hal::KernelLaunch cooperative(hal::KernelLaunch launch) {
  launch.form = hal::LaunchForm::kCooperative;
  launch.cooperative = true;
  return launch;
}

// The events of an extended launch are recorded around the kernel, by the launch, wherever it runs.
// What waiting for them means is said behind it: that changes nothing on the queue. `launch` lives
// as long as the call; what is deferred copies the record.
template <class Call>
hipError_t launched_extended(hipStream_t stream, hal::KernelLaunch launch,
                             hip::ExtendedLaunch& extended, Call call) {
  launch.form = hal::LaunchForm::kExtended;
  launch.attributes = {&extended, 1};
  for (hipEvent_t handle : {extended.start, extended.stop})
    if (handle != nullptr) settle(find_event(handle));
  const hipError_t answer = route_launch(stream, false, launch, call);
  if (answer != hipSuccess) return answer;
  const Destination destination = destination_of(stream, false);
  for (hipEvent_t handle : {extended.start, extended.stop}) {
    if (handle == nullptr) continue;
    EventRecord& event = find_event(handle);
    if (destination.route != Route::kManaged) {
      recorded_outside(destination, stream, false, false, event);
      continue;
    }
    auto nothing = runtime::call([](void*) { return hal::kNativeOk; });
    // The launch has made the real record, ahead of the kernel or right behind it.
    static_cast<void>(record_managed(destination, event, nothing, /*exact=*/false));
    event.launched_on.store(destination.record, std::memory_order_relaxed);
  }
  return answer;
}

std::uint32_t blocks(unsigned items, unsigned block) {
  return block == 0 ? 0 : items / block + (items % block != 0 ? 1 : 0);
}

}  // namespace

// A launch that cannot be is the runtime's to refuse.
hipError_t launch_kernel(EntryPoint<decltype(::hipLaunchKernel)> entry, const void* stub, dim3 grid,
                         dim3 block, void** arguments, std::size_t shared_bytes,
                         hipStream_t stream) {
  auto call = [&](hipStream_t native) {
    return entry.real(stub, grid, block, arguments, shared_bytes, native);
  };
  if (stub == nullptr) return call(stream);
  return route_launch(stream, entry.per_thread,
                      stub_launch(stub, grid, block, arguments, shared_bytes), call);
}

hipError_t launch_cooperative(EntryPoint<decltype(hipLaunchCooperativeKernel)> entry,
                              const void* stub, dim3 grid, dim3 block, void** arguments,
                              unsigned shared_bytes, hipStream_t stream) {
  auto call = [&](hipStream_t native) {
    return entry.real(stub, grid, block, arguments, shared_bytes, native);
  };
  if (stub == nullptr) return call(stream);
  return route_launch(stream, entry.per_thread,
                      cooperative(stub_launch(stub, grid, block, arguments, shared_bytes)), call);
}

hipError_t launch_extended(EntryPoint<decltype(hipExtLaunchKernel)> entry, const void* stub,
                           dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                           hipStream_t stream, hipEvent_t start, hipEvent_t stop, int flags) {
  auto call = [&](hipStream_t native) {
    return entry.real(stub, grid, block, arguments, shared_bytes, native, start, stop, flags);
  };
  if (stub == nullptr) return call(stream);
  hip::ExtendedLaunch extended;
  extended.flags = static_cast<std::uint32_t>(flags);
  extended.start = start;
  extended.stop = stop;
  return launched_extended(stream, stub_launch(stub, grid, block, arguments, shared_bytes),
                           extended, call);
}

hipError_t launch_module(EntryPoint<decltype(::hipModuleLaunchKernel)> entry,
                         hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                         unsigned block_x, unsigned block_y, unsigned block_z,
                         unsigned shared_bytes, hipStream_t stream, void** arguments,
                         void** extra) {
  auto call = [&](hipStream_t native) {
    return entry.real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                      native, arguments, extra);
  };
  if (function == nullptr || (arguments != nullptr && extra != nullptr)) return call(stream);
  return route_launch(stream, entry.per_thread,
                      launch_of(kernel_of_function(function), {grid_x, grid_y, grid_z},
                                {block_x, block_y, block_z}, shared_bytes, arguments, extra),
                      call);
}

hipError_t launch_module_cooperative(EntryPoint<decltype(hipModuleLaunchCooperativeKernel)> entry,
                                     hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                     unsigned grid_z, unsigned block_x, unsigned block_y,
                                     unsigned block_z, unsigned shared_bytes, hipStream_t stream,
                                     void** arguments) {
  auto call = [&](hipStream_t native) {
    return entry.real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
                      native, arguments);
  };
  if (function == nullptr) return call(stream);
  return route_launch(
      stream, entry.per_thread,
      cooperative(launch_of(kernel_of_function(function), {grid_x, grid_y, grid_z},
                            {block_x, block_y, block_z}, shared_bytes, arguments, nullptr)),
      call);
}

hipError_t launch_module_extended(
    EntryPoint<hipError_t(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          std::size_t, hipStream_t, void**, void**, hipEvent_t, hipEvent_t,
                          unsigned)>
        entry,
    hipFunction_t function, unsigned items_x, unsigned items_y, unsigned items_z, unsigned block_x,
    unsigned block_y, unsigned block_z, std::size_t shared_bytes, hipStream_t stream,
    void** arguments, void** extra, hipEvent_t start, hipEvent_t stop, unsigned flags) {
  auto call = [&](hipStream_t native) {
    return entry.real(function, items_x, items_y, items_z, block_x, block_y, block_z, shared_bytes,
                      native, arguments, extra, start, stop, flags);
  };
  if (function == nullptr || (arguments != nullptr && extra != nullptr)) return call(stream);
  hip::ExtendedLaunch extended;
  extended.work_items = {items_x, items_y, items_z};
  extended.flags = flags;
  extended.start = start;
  extended.stop = stop;
  return launched_extended(
      stream,
      launch_of(kernel_of_function(function),
                {blocks(items_x, block_x), blocks(items_y, block_y), blocks(items_z, block_z)},
                {block_x, block_y, block_z}, static_cast<std::uint32_t>(shared_bytes), arguments,
                extra),
      extended, call);
}

// The older name of the same call, without flags.
hipError_t launch_module_hcc(
    EntryPoint<hipError_t(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          std::size_t, hipStream_t, void**, void**, hipEvent_t, hipEvent_t)>
        entry,
    hipFunction_t function, unsigned items_x, unsigned items_y, unsigned items_z, unsigned block_x,
    unsigned block_y, unsigned block_z, std::size_t shared_bytes, hipStream_t stream,
    void** arguments, void** extra, hipEvent_t start, hipEvent_t stop) {
  // clang-format off
  auto* real = VITAMIN_REAL(
_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j);
  // clang-format on
  return launch_module_extended({real, entry.per_thread}, function, items_x, items_y, items_z,
                                block_x, block_y, block_z, shared_bytes, stream, arguments, extra,
                                start, stop, 0);
}

// Attributes are newer than this code: with one, the launch is made as it came, on its own stream.
hipError_t launch_runtime_config(EntryPoint<decltype(hipLaunchKernelExC)> entry,
                                 const RuntimeLaunchConfig* config, const void* stub,
                                 void** arguments) {
  if (config == nullptr || stub == nullptr) return entry.real(config, stub, arguments);
  auto call = [&](hipStream_t native) {
    RuntimeLaunchConfig there = *config;
    there.stream = native;
    return entry.real(&there, stub, arguments);
  };
  const hal::KernelLaunch launch =
      stub_launch(stub, config->grid, config->block, arguments, config->shared_bytes);
  if (config->attribute_count == 0)
    return route_launch(config->stream, entry.per_thread, launch, call);
  return launch_on_own_stream(config->stream, entry.per_thread, launch.kernel, call);
}

hipError_t launch_driver_config(EntryPoint<decltype(hipDrvLaunchKernelEx)> entry,
                                const DriverLaunchConfig* config, hipFunction_t function,
                                void** arguments, void** extra) {
  if (config == nullptr || function == nullptr || (arguments != nullptr && extra != nullptr))
    return entry.real(config, function, arguments, extra);
  auto call = [&](hipStream_t native) {
    DriverLaunchConfig there = *config;
    there.stream = native;
    return entry.real(&there, function, arguments, extra);
  };
  const hal::KernelLaunch launch = launch_of(
      kernel_of_function(function), {config->grid_x, config->grid_y, config->grid_z},
      {config->block_x, config->block_y, config->block_z}, config->shared_bytes, arguments, extra);
  if (config->attribute_count == 0)
    return route_launch(config->stream, entry.per_thread, launch, call);
  return launch_on_own_stream(config->stream, entry.per_thread, launch.kernel, call);
}

namespace {

// `call` with the launches on the streams that they run on here.
template <class Launch, class Call>
hipError_t launch_on_each(const Launch* launches, std::size_t count, Call&& call) {
  std::vector<Launch> there(launches, launches + count);
  std::vector<Destination> destinations;
  for (Launch& launch : there) {
    destinations.push_back(destination_of(launch.stream, false));
    if (destinations.back().route == Route::kManaged) launch.stream = destinations.back().native();
  }
  return across(destinations, [&] { return call(there.data()); });
}

}  // namespace

hipError_t launch_multi_device(EntryPoint<hipError_t(hipLaunchParams*, int, unsigned)> entry,
                               hipLaunchParams* launches, int count, unsigned flags) {
  if (launches == nullptr || count <= 0) return entry.real(launches, count, flags);
  return launch_on_each(launches, static_cast<std::size_t>(count),
                        [&](hipLaunchParams* there) { return entry.real(there, count, flags); });
}

hipError_t launch_modules_multi_device(
    EntryPoint<decltype(hipModuleLaunchCooperativeKernelMultiDevice)> entry, ModuleLaunch* launches,
    unsigned count, unsigned flags) {
  if (launches == nullptr || count == 0) return entry.real(launches, count, flags);
  return launch_on_each(launches, count,
                        [&](ModuleLaunch* there) { return entry.real(there, count, flags); });
}

// --- the launch interface of HIP 1 ---------------------------------------------------------------

namespace {

// The streams of configurations that hipLaunchByPtr has not used yet.
thread_local std::vector<hipStream_t> configured;

}  // namespace

hipError_t configure_call(EntryPoint<decltype(::hipConfigureCall)> entry, dim3 grid, dim3 block,
                          std::size_t shared_bytes, hipStream_t stream) {
  const Destination destination = destination_of(stream, false);
  const hipError_t answer =
      entry.real(grid, block, shared_bytes,
                 destination.route == Route::kManaged ? destination.native() : stream);
  if (answer == hipSuccess) configured.push_back(stream);
  return answer;
}

hipError_t launch_by_pointer(EntryPoint<decltype(::hipLaunchByPtr)> entry, const void* stub) {
  if (configured.empty() || stub == nullptr) return entry.real(stub);
  const hipStream_t stream = configured.back();
  configured.pop_back();
  return launch_on_own_stream(stream, false, kernel_of_stub(stub),
                              [&](hipStream_t) { return entry.real(stub); });
}

// --- value waits ---------------------------------------------------------------------------------

hipError_t wait_value32(EntryPoint<decltype(::hipStreamWaitValue32)> entry, hipStream_t stream,
                        void* address, std::uint32_t value, unsigned flags, std::uint32_t mask) {
  return host_wait(
      stream, entry.per_thread, HostWaitKind::kValueWait,
      [=](hipStream_t native) { return entry.real(native, address, value, flags, mask); },
      [=] { return value_wait_accepted(address, sizeof value, flags); });
}

hipError_t wait_value64(EntryPoint<decltype(::hipStreamWaitValue64)> entry, hipStream_t stream,
                        void* address, std::uint64_t value, unsigned flags, std::uint64_t mask) {
  return host_wait(
      stream, entry.per_thread, HostWaitKind::kValueWait,
      [=](hipStream_t native) { return entry.real(native, address, value, flags, mask); },
      [=] { return value_wait_accepted(address, sizeof value, flags); });
}

hipError_t batch_memory_operation(EntryPoint<decltype(hipStreamBatchMemOp)> entry,
                                  hipStream_t stream, unsigned count, void* operations,
                                  unsigned flags) {
  return host_wait(
      stream, entry.per_thread, HostWaitKind::kValueWait,
      [=](hipStream_t native) { return entry.real(native, count, operations, flags); },
      [] { return false; });  // the operations are the caller's
}

}  // namespace vitamin::interpose
