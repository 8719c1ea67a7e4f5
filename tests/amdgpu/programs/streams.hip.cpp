// SPDX-License-Identifier: Apache-2.0
//
// Streams, events, callbacks, value operations and every way to launch a kernel. Built twice: with
// the legacy default stream and with a default stream for each thread.
#include <atomic>
#include <thread>

#include "program.h"

// Debian's header needs what the runtime's header defines.
#include <hip/hip_cooperative_groups.h>

namespace {

__global__ void increment(int* value) { atomicAdd(value, 1); }
__global__ void assign(int* value, int to) { *value = to; }

int read(const DeviceArray<int>& array) { return array.host()[0]; }

hipStream_t free_stream() {
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  return stream;
}

#if !defined(HIP_API_PER_THREAD_DEFAULT_STREAM)
// The library of ROCm 5.2 lacks the per-thread form of hipEventRecord that its header names.
void events() {
  const hipStream_t a = free_stream(), b = free_stream();
  DeviceArray<int> value(std::vector<int>(1));
  hipEvent_t done = nullptr, later = nullptr;
  HIP_OK(hipEventCreateWithFlags(&done, hipEventDisableTiming));
  HIP_OK(hipEventCreate(&later));
  for (int i = 0; i < 100; ++i) increment<<<1, 64, 0, a>>>(value.data());
  HIP_OK(hipEventRecord(done, a));
  HIP_OK(hipStreamWaitEvent(b, done, 0));
  int seen = 0;
  HIP_OK(hipMemcpyAsync(&seen, value.data(), sizeof seen, hipMemcpyDeviceToHost, b));
  HIP_OK(hipEventRecord(later, b));
  HIP_OK(hipEventSynchronize(later));
  report("an event orders two streams", seen == 6400 && hipEventQuery(later) == hipSuccess);
  HIP_OK(hipEventDestroy(done));
  HIP_OK(hipEventDestroy(later));
  HIP_OK(hipStreamDestroy(a));
  HIP_OK(hipStreamDestroy(b));
}
#endif

void callbacks() {
  static std::atomic<int> calls{0};
  static int by = 4;
  const hipStream_t stream = free_stream();
  DeviceArray<int> value(std::vector<int>(1));
  increment<<<1, 64, 0, stream>>>(value.data());
  HIP_OK(hipStreamAddCallback(
      stream, [](hipStream_t, hipError_t, void* amount) { calls += *static_cast<int*>(amount); },
      &by, 0));
  increment<<<1, 64, 0, stream>>>(value.data());
  HIP_OK(hipStreamSynchronize(stream));
  report("a callback runs between two kernels", calls == 4 && read(value) == 128);
}

void value_operations() {
  const hipStream_t waiting = free_stream(), writing = free_stream();
  DeviceArray<int> value(std::vector<int>(1));
  std::uint32_t* flag = nullptr;
  HIP_OK(hipExtMallocWithFlags(reinterpret_cast<void**>(&flag), 8, hipMallocSignalMemory));
  *flag = 0;
  HIP_OK(hipStreamWaitValue32(waiting, flag, 5, hipStreamWaitValueEq, 0xffffffff));
  assign<<<1, 1, 0, waiting>>>(value.data(), 42);
  HIP_OK(hipStreamSynchronize(writing));
  const bool early = hipStreamQuery(waiting) == hipErrorNotReady;
  HIP_OK(hipStreamWriteValue32(writing, flag, 5, 0));
  HIP_OK(hipStreamSynchronize(waiting));
  report("a stream waits for a value that another one writes", early && read(value) == 42);
}

void legacy_order() {
  DeviceArray<int> value(std::vector<int>(1));
  hipStream_t blocking = nullptr;
  HIP_OK(hipStreamCreate(&blocking));
  for (int i = 0; i < 20; ++i) increment<<<1, 64, 0, blocking>>>(value.data());
#if defined(HIP_API_PER_THREAD_DEFAULT_STREAM)
  HIP_OK(hipStreamSynchronize(blocking));
#endif
  assign<<<1, 1>>>(value.data(), -1);
#if defined(HIP_API_PER_THREAD_DEFAULT_STREAM)
  HIP_OK(hipStreamSynchronize(hipStreamPerThread));
#endif
  increment<<<1, 64, 0, blocking>>>(value.data());
  HIP_OK(hipDeviceSynchronize());
  report("the default stream keeps its order with a blocking stream", read(value) == 63);
}

void threads() {
  constexpr int kThreads = 4;
  DeviceArray<int> value(std::vector<int>(1));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int launch = 0; launch < 25; ++launch) increment<<<1, 64>>>(value.data());
      HIP_OK(hipStreamSynchronize(hipStreamPerThread));
      HIP_OK(hipStreamSynchronize(nullptr));
    });
  for (std::thread& thread : threads) thread.join();
  report("threads launch on their default streams", read(value) == kThreads * 25 * 64);
}

void direct_launches() {
  DeviceArray<int> value(std::vector<int>(1));
  int* argument = value.data();
  void* arguments[] = {&argument};
  const hipStream_t stream = free_stream();
  hipEvent_t start = nullptr, stop = nullptr;
  HIP_OK(hipEventCreate(&start));
  HIP_OK(hipEventCreate(&stop));
  HIP_OK(
      hipLaunchKernel(reinterpret_cast<void*>(increment), dim3(2), dim3(64), arguments, 0, stream));
  HIP_OK(hipExtLaunchKernel(reinterpret_cast<void*>(increment), dim3(3), dim3(64), arguments, 0,
                            stream, start, stop, 0));
  HIP_OK(hipStreamSynchronize(stream));
  float milliseconds = -1;
  HIP_OK(hipEventElapsedTime(&milliseconds, start, stop));
  report("kernels launched by pointer, with events", read(value) == 5 * 64 && milliseconds >= 0);
}

__global__ void meet(int* order, int* wrong, int rounds) {
  auto grid = cooperative_groups::this_grid();
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) atomicAdd(order, 1);
    grid.sync();
    if (threadIdx.x == 0 && *static_cast<volatile int*>(order) != (round + 1) * int(gridDim.x))
      atomicAdd(wrong, 1);
    grid.sync();
  }
}

void cooperative() {
  DeviceArray<int> order(std::vector<int>(1)), wrong(std::vector<int>(1));
  int *first = order.data(), *second = wrong.data(), rounds = 5;
  void* arguments[] = {&first, &second, &rounds};
  HIP_OK(hipLaunchCooperativeKernel(reinterpret_cast<void*>(meet), dim3(24), dim3(128), arguments,
                                    0, nullptr));
  HIP_OK(hipDeviceSynchronize());
  report("the workgroups of a cooperative grid meet", read(order) == 5 * 24 && read(wrong) == 0);
}

void modules() {
  const char* path = std::getenv("MODULE_FILE");
  if (path == nullptr) {
    report("MODULE_FILE names a code object", false);
    return;
  }
  hipModule_t module = nullptr;
  hipFunction_t scale = nullptr;
  HIP_OK(hipModuleLoad(&module, path));
  HIP_OK(hipModuleGetFunction(&scale, module, "scale"));
  DeviceArray<float> values(std::vector<float>(1000, 2.0f));
  struct {
    float* values;
    float by;
    int count;
  } packed{values.data(), 3.0f, 1000};
  std::size_t size = sizeof packed;
  void* extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, &packed, HIP_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   HIP_LAUNCH_PARAM_END};
  HIP_OK(hipModuleLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, nullptr, nullptr, extra));
  void* arguments[] = {&packed.values, &packed.by, &packed.count};
  HIP_OK(hipExtModuleLaunchKernel(scale, 8 * 128, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr,
                                  nullptr, nullptr, 0));
  HIP_OK(hipDeviceSynchronize());
  report("kernels of a module, by buffer and by pointers",
         values.host() == std::vector<float>(1000, 18.0f));
  HIP_OK(hipModuleUnload(module));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks(
      {
#if !defined(HIP_API_PER_THREAD_DEFAULT_STREAM)
        {"events", events},
#endif
            {"callbacks", callbacks}, {"value_operations", value_operations},
            {"legacy_order", legacy_order}, {"threads", threads},
            {"direct_launches", direct_launches}, {"cooperative", cooperative}, {
          "modules", modules
        }
      },
      count, arguments);
}
