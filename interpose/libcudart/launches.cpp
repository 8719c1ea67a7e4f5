// SPDX-License-Identifier: Apache-2.0
//
// Kernel launches, and host functions and value waits, which share a stream with them.
#include <cstring>
#include <vector>

#include "interpose/libcudart/handlers.h"
#include "interpose/libcudart/treatments.h"
#include "runtime/descriptor.h"

namespace vitamin::interpose {

namespace stats = runtime::stats;
using runtime::EventState;

static_assert(sizeof(CUlaunchAttribute) == runtime::kAttributeRecordBytes);

namespace {

// What a launch's attributes say to us. The attributes themselves travel untouched.
struct Attributes {
  std::uint32_t cluster_blocks = 1;
  bool cooperative = false;
  bool programmatic = false;
  CUevent recorded = nullptr;  // the launch records it
  bool graph_node = false;     // only has a meaning in a graph

  Attributes(const CUlaunchAttribute* records, unsigned count) {
    for (unsigned i = 0; i < count; ++i) read(records[i]);
  }

 private:
  void read(const CUlaunchAttribute& attribute) {
    const CUlaunchAttributeValue& value = attribute.value;
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        widen(value.clusterDim.x, value.clusterDim.y, value.clusterDim.z);
        break;
#if CUDA_VERSION >= 12080
      case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        widen(value.preferredClusterDim.x, value.preferredClusterDim.y,
              value.preferredClusterDim.z);
        break;
#endif
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        cooperative = value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        programmatic = value.programmaticStreamSerializationAllowed != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
        recorded = value.programmaticEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        recorded = value.launchCompletionEvent.event;
        break;
      case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        graph_node = true;
        break;
      default:
        break;
    }
  }
  void widen(unsigned x, unsigned y, unsigned z) {
    cluster_blocks = std::max(cluster_blocks, x * std::max(1U, y) * std::max(1U, z));
  }
};

hal::KernelLaunch launch_of(CUfunction kernel, hal::Dim3 grid, hal::Dim3 block,
                            std::uint32_t shared_bytes, void** arguments, void** extra) {
  hal::KernelLaunch launch;
  launch.kernel = kernel;
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = shared_bytes;
  launch.arguments = arguments;
  launch.extra = extra;
  return launch;
}

// Made by the driver on a stream that is not ours.
CUresult passed(CUresult answer) {
  if (answer == CUDA_SUCCESS) page().passed_unmanaged.add_shared();
  return answer;
}

CUresult captured(const Way& way, CUresult answer) {
  if (answer == CUDA_SUCCESS) way.page().launches.captured.add_shared();
  return answer;
}

// Made on the application's own stream by `call`, and counted as that.
template <class Call>
CUresult bridged(const Way& way, CUfunction kernel, stats::UnboundReason reason, Call call) {
  runtime::VirtualContext& context = way.context();
  const std::string origin = context.device().kernel_origin(kernel);
  auto operation = runtime::call(
      [&](void* native) {
        const CUresult answer = call(static_cast<CUstream>(native));
        if (answer != CUDA_SUCCESS) return hal::NativeStatus(answer);
        stats::DevicePage& counters = context.page();  // the lock is held here
        stats::LibrarySlot& library = counters.library(origin.c_str());
        counters.launches.seen.add();
        counters.launches.bridged.add();
        counters.unbound[static_cast<unsigned>(reason)].add();
        library.seen.add();
        library.bridged.add();
        return hal::NativeStatus(answer);
      },
      Keep::kNo);
  return result(context.bridge(way.stream(), operation));
}

}  // namespace

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
  const Way way = way_of(stream, via.per_thread);
  if (way.route == Route::kForeign) return passed(call(stream));
  if (way.route == Route::kCaptured) return captured(way, call(way.native()));
  const Inside ours;
  if (captures_open() && way.record->legacy)
    return bridged(way, kernel, stats::UnboundReason::kCapture, call);
  return result(way.context().launch(
      way.stream(), launch_of(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z},
                              shared_bytes, arguments, extra)));
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
  const Way way = way_of(stream, via.per_thread);
  if (way.route == Route::kForeign) return passed(call(stream));
  if (way.route == Route::kCaptured) return captured(way, call(way.native()));
  const Inside ours;
  if (captures_open() && way.record->legacy)
    return bridged(way, kernel, stats::UnboundReason::kCapture, call);
  hal::KernelLaunch launch =
      launch_of(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes,
                arguments, nullptr);
  launch.form = hal::LaunchForm::kCooperative;
  launch.cooperative = true;
  return result(way.context().launch(way.stream(), launch));
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
  if (way.route == Route::kForeign) return passed(via.real(config, kernel, arguments, extra));
  if (way.route == Route::kCaptured) return captured(way, call(way.native()));
  const Attributes attributes(config->attrs, config->numAttrs);
  const Inside ours;
  if (attributes.graph_node || (captures_open() && way.record->legacy))
    return bridged(way, kernel, stats::UnboundReason::kCapture, call);
  if (attributes.recorded != nullptr) {
    // The launch records an event. On the application's own stream, and the event once more behind
    // the kernel, so that waiting for it means what the event's record always means here. That is
    // later than the launch asked for, never earlier.
    const CUresult answer = bridged(way, kernel, stats::UnboundReason::kOther, call);
    if (answer != CUDA_SUCCESS) return answer;
    auto record = runtime::call([event = attributes.recorded](void* native) {
      return hal::NativeStatus(VITAMIN_REAL(cuEventRecord)(event, static_cast<CUstream>(native)));
    });
    EventRecord& event = find_event(attributes.recorded);
    event.captured.store(false, std::memory_order_relaxed);
    return result(way.context().record(way.stream(), event.state, record));
  }
  hal::KernelLaunch launch =
      launch_of(kernel, {config->gridDimX, config->gridDimY, config->gridDimZ},
                {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                arguments, extra);
  launch.form = hal::LaunchForm::kExtended;
  launch.attributes = {config->attrs, config->numAttrs};
  launch.cluster_blocks = attributes.cluster_blocks;
  launch.cooperative = attributes.cooperative;
  launch.programmatic = attributes.programmatic;
  return result(way.context().launch(way.stream(), launch));
}

CUresult launch_multi_device(Via<decltype(::cuLaunchCooperativeKernelMultiDevice)> via,
                             CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned flags) {
  // One call on streams of several devices: everything ahead of it goes onto the real streams,
  // and behind it each stream's newest work is said to lie there.
  std::vector<Way> ways;
  for (unsigned i = 0; launches != nullptr && i < count; ++i)
    ways.push_back(way_of(launches[i].hStream, false));
  auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, Keep::kNo);
  auto touch_all = [&] {
    const Inside ours;
    for (const Way& way : ways)
      if (way.route == Route::kManaged) way.context().bridge(way.stream(), nothing);
  };
  touch_all();
  const CUresult answer = passed(via.real(launches, count, flags));
  touch_all();
  return answer;
}

// --- work that needs the host -------------------------------------------------------------------

namespace {

// A call on the real stream that ends only when somebody outside the stream acts. Everything that
// `call` holds is a value, so it can wait its turn.
template <class Call>
CUresult gate(CUstream stream, bool per_thread, stats::Counter stats::OtherWork::*counter,
              Call call) {
  const Way way = way_of(stream, per_thread);
  if (way.route == Route::kForeign) return call(stream);
  if (way.route == Route::kCaptured) return call(way.native());
  stats::Counter& gates = way.page().other.*counter;
  auto operation =
      runtime::call([call, &gates, context = way.record->context->handle](void* native) mutable {
        const CurrentContext current(context);
        gates.add();
        return hal::NativeStatus(call(static_cast<CUstream>(native)));
      });
  const Inside ours;
  return result(way.context().bridge(way.stream(), operation, Behind::kGate));
}

}  // namespace

CUresult launch_host_function(Via<decltype(::cuLaunchHostFunc)> via, CUstream stream,
                              CUhostFn function, void* data) {
  return gate(stream, via.per_thread, &stats::OtherWork::host_functions,
              [=](CUstream native) { return via.real(native, function, data); });
}

namespace {

// A callback is told its stream: the one that the application knows.
struct Callback {
  CUstreamCallback function;
  void* data;
  CUstream stream;
};
void CUDA_CB call_back(CUstream, CUresult status, void* data) {
  const Callback callback = *static_cast<Callback*>(data);
  delete static_cast<Callback*>(data);
  callback.function(callback.stream, status, callback.data);
}

}  // namespace

CUresult add_callback(Via<decltype(::cuStreamAddCallback)> via, CUstream stream,
                      CUstreamCallback function, void* data, unsigned flags) {
  if (function == nullptr) return via.real(stream, function, data, flags);
  auto* callback = new Callback{function, data, stream};
  const CUresult answer =
      gate(stream, via.per_thread, &stats::OtherWork::host_functions,
           [=](CUstream native) { return via.real(native, &call_back, callback, flags); });
  if (answer != CUDA_SUCCESS) delete callback;
  return answer;
}

CUresult wait_value32(Via<decltype(::cuStreamWaitValue32)> via, CUstream stream,
                      CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return gate(stream, via.per_thread, &stats::OtherWork::value_waits,
              [=](CUstream native) { return via.real(native, address, value, flags); });
}

CUresult wait_value64(Via<decltype(::cuStreamWaitValue64)> via, CUstream stream,
                      CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return gate(stream, via.per_thread, &stats::OtherWork::value_waits,
              [=](CUstream native) { return via.real(native, address, value, flags); });
}

CUresult batch_memory_operation(Via<decltype(::cuStreamBatchMemOp)> via, CUstream stream,
                                unsigned count, CUstreamBatchMemOpParams* operations,
                                unsigned flags) {
  if (operations == nullptr) return via.real(stream, count, operations, flags);
  return gate(stream, via.per_thread, &stats::OtherWork::value_waits,
              [=, batch = std::vector(operations, operations + count)](CUstream native) mutable {
                return via.real(native, count, batch.data(), flags);
              });
}

}  // namespace vitamin::interpose
