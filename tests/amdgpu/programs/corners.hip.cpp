// SPDX-License-Identifier: Apache-2.0
//
// What an interposer is easily wrong about: graphs, look-ups by name, the thread's last error,
// times between events, devices that are not there, events and memory of other processes.
#include <dlfcn.h>

#include <functional>
#include <utility>

#include "program.h"

__device__ int symbol[16];  // the runtime finds it by its name

namespace {

__global__ void add(int* value, int by) { atomicAdd(value, by); }

__global__ void spin(int* value, int rounds) {
  int x = static_cast<int>(threadIdx.x);
  for (int i = 0; i < rounds; ++i) x = x * 1664525 + 1013904223;
  if (threadIdx.x == 0) atomicAdd(value, x == 12345 ? 2 : 1);
}

hipStream_t free_stream() {
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  return stream;
}

// A captured graph, launched between ordinary launches on the same stream and on another.
void captured_graph() {
  constexpr int kRounds = 20;
  const hipStream_t stream = free_stream(), other = free_stream();
  DeviceArray<int> value(std::vector<int>(1));
  hipEvent_t done = nullptr;
  HIP_OK(hipEventCreateWithFlags(&done, hipEventDisableTiming));
  hipGraph_t graph = nullptr;
  hipGraphExec_t ready = nullptr;
  HIP_OK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  add<<<2, 64, 0, stream>>>(value.data(), 1);
  add<<<1, 64, 0, stream>>>(value.data(), 3);
  HIP_OK(hipStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  HIP_OK(hipGraphGetNodes(graph, nullptr, &nodes));
  HIP_OK(hipGraphInstantiate(&ready, graph, nullptr, nullptr, 0));
  for (int i = 0; i < kRounds; ++i) {
    add<<<1, 64, 0, stream>>>(value.data(), 5);
    HIP_OK(hipGraphLaunch(ready, stream));
    HIP_OK(hipEventRecord(done, stream));
    HIP_OK(hipStreamWaitEvent(other, done, 0));
    add<<<1, 64, 0, other>>>(value.data(), 7);
    HIP_OK(hipEventRecord(done, other));
    HIP_OK(hipStreamWaitEvent(stream, done, 0));
  }
  HIP_OK(hipDeviceSynchronize());
  report("a captured graph among launches",
         nodes == 2 && value.host()[0] == kRounds * 64 * (2 + 3 + 5 + 7));
  HIP_OK(hipGraphExecDestroy(ready));
  HIP_OK(hipGraphDestroy(graph));
}

// What a copy or a fill without a stream answers while a blocking stream captures, and what becomes
// of the capture, are the runtime's to say: they differ between its versions.
void copies_in_captures() {
  hipStream_t blocking = nullptr;
  HIP_OK(hipStreamCreate(&blocking));
  DeviceArray<int> value(std::vector<int>(1));
  int host = 3, back = 0;
  const std::pair<const char*, std::function<hipError_t()>> calls[] = {
      {"a copy", [&] { return hipMemcpy(value.data(), &host, sizeof host, hipMemcpyDefault); }},
      {"a fill", [&] { return hipMemset(value.data(), 0, sizeof host); }},
      {"a copy within the device", [&] { return hipMemcpyDtoD(value.data(), value.data(), 4); }},
      {"a fill of the thread's", [&] { return hipMemset_spt(value.data(), 18, sizeof host); }},
      {"a copy of the thread's",
       [&] { return hipMemcpy_spt(&back, value.data(), sizeof host, hipMemcpyDefault); }},
  };
  for (const hipStream_t stream : {blocking, hipStreamPerThread}) {
    for (const auto mode : {hipStreamCaptureModeGlobal, hipStreamCaptureModeThreadLocal,
                            hipStreamCaptureModeRelaxed}) {
      for (const auto& [name, call] : calls) {
        add<<<1, 64>>>(value.data(), 1);
        HIP_OK(hipStreamSynchronize(nullptr));
        hipGraph_t graph = nullptr;
        HIP_OK(hipStreamBeginCapture(stream, mode));
        const hipError_t answer = call();
        const hipError_t end = hipStreamEndCapture(stream, &graph);
        std::printf("%s in a capture of mode %d: %d, its end: %d, %d was read\n", name, mode,
                    answer, end, back);
        if (graph != nullptr) HIP_OK(hipGraphDestroy(graph));
        (void)hipGetLastError();
      }
    }
  }
}

// The same kernel by a graph that was built by hand.
void built_graph() {
  DeviceArray<int> value(std::vector<int>(1));
  hipGraph_t graph = nullptr;
  hipGraphExec_t ready = nullptr;
  HIP_OK(hipGraphCreate(&graph, 0));
  int* where = value.data();
  int by = 2;
  void* arguments[] = {&where, &by};
  hipKernelNodeParams kernel{};
  kernel.func = reinterpret_cast<void*>(add);
  kernel.gridDim = dim3(1);
  kernel.blockDim = dim3(64);
  kernel.kernelParams = arguments;
  hipGraphNode_t first = nullptr, second = nullptr;
  HIP_OK(hipGraphAddKernelNode(&first, graph, nullptr, 0, &kernel));
  HIP_OK(hipGraphAddKernelNode(&second, graph, &first, 1, &kernel));
  HIP_OK(hipGraphInstantiate(&ready, graph, nullptr, nullptr, 0));
  HIP_OK(hipGraphLaunch(ready, nullptr));
  HIP_OK(hipStreamSynchronize(nullptr));
  report("a graph built by hand", value.host()[0] == 2 * 64 * 2);
  HIP_OK(hipGraphExecDestroy(ready));
  HIP_OK(hipGraphDestroy(graph));
}

// Entry points that the program asks the loader for are bound as those that it is linked with.
void asked_for_by_name() {
  void* library = nullptr;
  for (const char* name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"})
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return report("the library that the program is linked with", false);
  const auto launch =
      reinterpret_cast<decltype(&hipLaunchKernel)>(::dlsym(library, "hipLaunchKernel"));
  const auto fill = reinterpret_cast<decltype(&hipMemsetAsync)>(::dlsym(library, "hipMemsetAsync"));
  DeviceArray<int> value(std::vector<int>(1));
  int* where = value.data();
  int by = 1;
  void* arguments[] = {&where, &by};
  const hipStream_t stream = free_stream();
  HIP_OK(fill(where, 1, sizeof(int), stream));
  for (int i = 0; i < 10; ++i)
    HIP_OK(launch(reinterpret_cast<const void*>(add), dim3(1), dim3(64), arguments, 0, stream));
  HIP_OK(hipStreamSynchronize(stream));
  report("entry points that were asked for by name", value.host()[0] == 0x01010101 + 640);
}

// HIP 5 replaces the last error with every call, one that succeeds too.
void last_error() {
  DeviceArray<int> value(std::vector<int>(1));
  const hipError_t refused = hipMemcpy(value.data(), nullptr, 4, hipMemcpyHostToDevice);
  const hipError_t peeked = hipPeekAtLastError();
  const hipError_t told = hipGetLastError(), then = hipGetLastError();
  add<<<1, 64>>>(value.data(), 1);
  const hipError_t launched = hipGetLastError();
  add<<<1, 4096>>>(value.data(), 1);
  const hipError_t too_wide = hipGetLastError();
  const hipError_t early = hipStreamQuery(free_stream());
  const hipError_t after_query = hipGetLastError();
  std::printf("refused %d peeked %d told %d then %d launched %d too wide %d early %d after %d\n",
              refused, peeked, told, then, launched, too_wide, early, after_query);
  HIP_OK(hipDeviceSynchronize());
  report("errors are told as the runtime tells them",
         refused != hipSuccess && peeked == refused && told == refused && then == hipSuccess &&
             launched == hipSuccess && too_wide != hipSuccess && value.host()[0] == 64);
}

// Which memory may be attached to which stream depends on the version, on the default stream, too.
void attachments() {
  DeviceArray<int> value(std::vector<int>(1));
  add<<<1, 64>>>(value.data(), 1);
  int* managed = nullptr;
  HIP_OK(hipMallocManaged(reinterpret_cast<void**>(&managed), 64));
  bool refused = true;
  for (const hipStream_t stream : {hipStream_t{}, hipStreamPerThread, free_stream()}) {
    for (const unsigned flags : {hipMemAttachGlobal, hipMemAttachHost, hipMemAttachSingle})
      for (const std::size_t bytes : {0, 64})
        std::printf("%d ", hipStreamAttachMemAsync(stream, managed, bytes, flags));
    refused &=
        hipStreamAttachMemAsync(stream, nullptr, 64, hipMemAttachGlobal) == hipErrorInvalidValue;
  }
  std::printf("attached\n");
  report("memory is attached to streams that run", refused && value.host()[0] == 64);
}

// Events around one launch, and around several: no negative time, the longer work takes longer.
void times_between_events() {
  DeviceArray<int> value(std::vector<int>(1));
  int* where = value.data();
  int rounds = 200;
  void* arguments[] = {&where, &rounds};
  const hipStream_t stream = free_stream();
  hipEvent_t start = nullptr, stop = nullptr, before = nullptr, after = nullptr;
  for (hipEvent_t* event : {&start, &stop, &before, &after}) HIP_OK(hipEventCreate(event));
  HIP_OK(hipEventRecord(before, stream));
  for (int i = 0; i < 9; ++i) spin<<<4, 64, 0, stream>>>(where, rounds);
  HIP_OK(hipExtLaunchKernel(reinterpret_cast<void*>(spin), dim3(4), dim3(64), arguments, 0, stream,
                            start, stop, 0));
  HIP_OK(hipEventRecord(after, stream));
  HIP_OK(hipStreamSynchronize(stream));
  for (const hipEvent_t event : {start, stop, before, after}) HIP_OK(hipEventSynchronize(event));
  float one = -1, all = -1;
  HIP_OK(hipEventElapsedTime(&one, start, stop));
  HIP_OK(hipEventElapsedTime(&all, before, after));
  report("times between events", one > 0 && all > one && value.host()[0] == 40);
}

void devices() {
  int count = 0, current = -1;
  HIP_OK(hipGetDeviceCount(&count));
  const hipError_t set = hipSetDevice(count);
  HIP_OK(hipGetDevice(&current));
  hipStream_t stream = free_stream();
  DeviceArray<int> value(std::vector<int>(1));
  int* where = value.data();
  int by = 1;
  void* arguments[] = {&where, &by};
  hipLaunchParams launch{reinterpret_cast<void*>(add), dim3(2), dim3(64), arguments, 0, stream};
  HIP_OK(hipExtLaunchMultiKernelMultiDevice(&launch, 1, 0));
  HIP_OK(hipDeviceSynchronize());
  std::printf("%d device(s), the next is %d\n", count, set);
  report("a device that is not there, and a launch over all that are",
         count == 1 && set != hipSuccess && current == 0 && value.host()[0] == 128);
}

// The same answers as natively, whatever they are here.
void other_processes() {
  DeviceArray<int> value(std::vector<int>(1));
  hipEvent_t event = nullptr;
  HIP_OK(hipEventCreateWithFlags(&event, hipEventDisableTiming | hipEventInterprocess));
  hipIpcEventHandle_t event_handle{};
  const hipError_t of_event = hipIpcGetEventHandle(&event_handle, event);
  hipIpcMemHandle_t memory_handle{};
  const hipError_t of_memory = hipIpcGetMemHandle(&memory_handle, value.data());
  const hipStream_t stream = free_stream();
  add<<<1, 64, 0, stream>>>(value.data(), 1);
  HIP_OK(hipEventRecord(event, stream));
  HIP_OK(hipEventSynchronize(event));
  std::printf("event handle %d, memory handle %d\n", of_event, of_memory);
  report("an event for other processes", value.host()[0] == 64);
}

// Calls that go beyond their memory, with the answer that each must have at once.
void refused(const char* what, hipError_t answer, hipError_t of_host) {
  std::printf("%s: %d, of the host's memory %d\n", what, answer, of_host);
  report(what, answer == hipErrorInvalidValue && hipDeviceSynchronize() == hipSuccess);
}

void refused_fill() {
  DeviceArray<int> memory(64);
  int host[64];
  const hipError_t beyond = hipMemsetAsync(memory.data(), 1, 257, nullptr);
  refused("a fill", beyond, hipMemsetAsync(host, 1, 4, nullptr));
}

void refused_words() {
  DeviceArray<int> memory(64);
  int host[64];
  const hipError_t beyond = hipMemsetD32Async(memory.data(), 1, 65, nullptr);
  refused("a fill with words", beyond, hipMemsetD32Async(host, 1, 1, nullptr));
}

void refused_rectangle() {
  DeviceArray<int> memory(64);
  int host[64];
  const hipError_t beyond = hipMemset2DAsync(memory.data(), 64, 1, 64, 5, nullptr);
  refused("a fill of a rectangle", beyond, hipMemset2DAsync(host, 64, 1, 64, 1, nullptr));
}

void refused_box() {
  DeviceArray<int> memory(64);
  int host[64];
  const hipExtent extent = make_hipExtent(16, 4, 5);
  const hipError_t beyond =
      hipMemset3DAsync(make_hipPitchedPtr(memory.data(), 16, 16, 4), 1, extent, nullptr);
  refused("a fill of a box", beyond,
          hipMemset3DAsync(make_hipPitchedPtr(host, 16, 16, 4), 1, extent, nullptr));
}

void refused_copy() {
  DeviceArray<int> from(64), to(32);
  const hipError_t beyond =
      hipMemcpyAsync(to.data(), from.data(), 256, hipMemcpyDeviceToDevice, nullptr);
  refused("a copy", beyond, hipMemcpyDtoDAsync(to.data(), from.data(), 129, nullptr));
}

void refused_symbol() {
  DeviceArray<int> memory(64);
  const hipError_t beyond = hipMemcpyToSymbolAsync(HIP_SYMBOL(symbol), memory.data(), 65, 0,
                                                   hipMemcpyDeviceToDevice, nullptr);
  const hipError_t from = hipMemcpyFromSymbolAsync(memory.data(), HIP_SYMBOL(symbol), 60, 8,
                                                   hipMemcpyDeviceToDevice, nullptr);
  refused("a copy to a symbol", beyond, from);
}

void refused_array() {
  DeviceArray<int> memory(64);
  hipArray_t array = nullptr;
  const hipChannelFormatDesc format = hipCreateChannelDesc<int>();
  HIP_OK(hipMallocArray(&array, &format, 4, 4, 0));
  const hipError_t beyond = hipMemcpy2DToArrayAsync(array, 0, 0, memory.data(), 64, 64, 4,
                                                    hipMemcpyDeviceToDevice, nullptr);
  refused("a copy to an array", beyond,
          hipMemcpy2DFromArrayAsync(memory.data(), 64, array, 0, 0, 64, 4, hipMemcpyDeviceToDevice,
                                    nullptr));
  HIP_OK(hipFreeArray(array));
}

void refused_descriptor() {
  DeviceArray<int> from(64), to(32);
  hip_Memcpy2D rectangle{};
  rectangle.srcMemoryType = rectangle.dstMemoryType = hipMemoryTypeDevice;
  rectangle.srcDevice = from.data();
  rectangle.dstDevice = to.data();
  rectangle.srcPitch = rectangle.dstPitch = rectangle.WidthInBytes = 64;
  rectangle.Height = 4;
  const hipError_t beyond = hipMemcpyParam2DAsync(&rectangle, nullptr);
  hipMemcpy3DParms box{};
  box.srcPtr = make_hipPitchedPtr(from.data(), 64, 64, 4);
  box.dstPtr = make_hipPitchedPtr(to.data(), 64, 64, 4);
  box.extent = make_hipExtent(64, 4, 1);
  box.kind = hipMemcpyDeviceToDevice;
  refused("a copy by a descriptor", beyond, hipMemcpy3DAsync(&box, nullptr));
}

void refused_value() {
  DeviceArray<int> memory(64);
  int host[4];
  const hipError_t beyond = hipStreamWriteValue64(nullptr, memory.data() + 64, 1, 0);
  refused("a write of a value", beyond, hipStreamWriteValue32(nullptr, host, 1, 0));
}

void refused_wait() {
  DeviceArray<int> memory(64);
  int host[4];
  const hipError_t beyond =
      hipStreamWaitValue64(nullptr, memory.data() + 64, 1, hipStreamWaitValueGte);
  refused("a wait for a value", beyond,
          hipStreamWaitValue32(nullptr, host, 1, hipStreamWaitValueGte));
}

__global__ void __launch_bounds__(64) bounded(int* value) { *value = -1; }

// Launches that cannot be: a block of no threads, a grid of none, blocks that are too large or need
// too much shared memory, or more threads than the kernel was compiled for. Codes differ between
// versions and between their calls.
void refused_launches() {
  DeviceArray<int> value(std::vector<int>(1));
  int* where = value.data();
  int by = 1;
  void* arguments[] = {&where, &by};
  const hipStream_t stream = free_stream();
  const auto launch = [&](unsigned grid, unsigned block, std::size_t shared) {
    return hipLaunchKernel(reinterpret_cast<void*>(add), dim3(grid), dim3(block), arguments, shared,
                           stream);
  };
  const auto extended = [&](unsigned grid, unsigned block) {
    return hipExtLaunchKernel(reinterpret_cast<void*>(add), dim3(grid), dim3(block), arguments, 0,
                              stream, nullptr, nullptr, 0);
  };
  const hipError_t answers[] = {
      launch(1, 0, 0),
      launch(0, 64, 0),
      launch(1, 4096, 0),
      launch(1, 64, 1 << 20),
      extended(1, 0),
      extended(0, 64),
      extended(1, 4096),
      hipLaunchKernel(reinterpret_cast<void*>(bounded), dim3(1), dim3(128), arguments, 0, stream)};
  bool all = true;
  for (const hipError_t answer : answers) {
    std::printf("%d ", answer);
    all &= answer != hipSuccess;
  }
  std::printf("of launches that cannot be\n");
  HIP_OK(launch(1, 64, 0));
  HIP_OK(hipStreamSynchronize(stream));
  report("launches that cannot be are refused", all && value.host()[0] == 64);
}

__global__ void grow(float* value) {
  if (threadIdx.x == 0 && blockIdx.x == 0) *value = *value * 2 + 1;
}

// Launches that look as if they could not be, and that HIP takes: in their place behind others. HIP
// multiplies the sizes of a block in 32 bits, and cuts the block to the work items; an event may be
// part of a capture, which asking for its state would end.
void odd_launches() {
  DeviceArray<float> value(std::vector<float>{1});
  float* where = value.data();
  void* arguments[] = {&where};
  hipModule_t module = nullptr;
  hipFunction_t triple = nullptr;
  HIP_OK(hipModuleLoad(&module, std::getenv("MODULE_FILE")));
  HIP_OK(hipModuleGetFunction(&triple, module, "triple"));
  const hipStream_t stream = free_stream(), captures = free_stream();
  hipEvent_t event = nullptr;
  HIP_OK(hipEventCreate(&event));
  hipGraph_t graph = nullptr;
  const auto grows = [&](hipEvent_t stop) {
    return hipExtLaunchKernel(reinterpret_cast<void*>(grow), dim3(1), dim3(64), arguments, 0,
                              stream, nullptr, stop, 0);
  };
  HIP_OK(hipStreamBeginCapture(captures, hipStreamCaptureModeRelaxed));
  HIP_OK(hipEventRecord(event, captures));
  HIP_OK(grows(nullptr));
  const hipError_t answers[] = {
      hipExtModuleLaunchKernel(triple, 64, 1, 1, 65536, 65536, 1, 0, stream, arguments, nullptr,
                               nullptr, nullptr, 0),
      grows(event),
      hipExtModuleLaunchKernel(triple, 64, 1, 1, 64, 1 << 26, 1, 0, stream, arguments, nullptr,
                               nullptr, nullptr, 0)};
  const hipError_t ended = hipStreamEndCapture(captures, &graph);
  for (const hipError_t answer : answers) std::printf("%d ", answer);
  std::printf("of odd launches, %d of a capture beside them\n", ended);
  HIP_OK(hipStreamSynchronize(stream));
  report("odd launches keep their place", value.host()[0] == 57);
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"captured_graph", captured_graph},
                     {"copies_in_captures", copies_in_captures},
                     {"built_graph", built_graph},
                     {"asked_for_by_name", asked_for_by_name},
                     {"last_error", last_error},
                     {"attachments", attachments},
                     {"times_between_events", times_between_events},
                     {"devices", devices},
                     {"other_processes", other_processes},
                     {"refused_fill", refused_fill},
                     {"refused_words", refused_words},
                     {"refused_rectangle", refused_rectangle},
                     {"refused_box", refused_box},
                     {"refused_copy", refused_copy},
                     {"refused_symbol", refused_symbol},
                     {"refused_array", refused_array},
                     {"refused_descriptor", refused_descriptor},
                     {"refused_value", refused_value},
                     {"refused_wait", refused_wait},
                     {"refused_launches", refused_launches},
                     {"odd_launches", odd_launches}},
                    count, arguments);
}
