// SPDX-License-Identifier: Apache-2.0
//
// Makes and destroys objects of one kind, again and again, and prints after each round how much
// malloc() gave out and has not got back: flat_memory KIND OBJECTS ROUNDS.
#include <malloc.h>

#include <thread>

#include "program.h"

extern "C" [[gnu::weak]] std::size_t __sanitizer_get_current_allocated_bytes();

namespace {

__global__ void count(unsigned* total) { atomicAdd(total, 1u); }

struct Place {
  DeviceArray<unsigned> total{1};
  hipStream_t stream = nullptr;
  void work(hipStream_t on) const { count<<<1, 1, 0, on>>>(total.data()); }
};

void stream(const Place& place, unsigned flags, bool wait) {
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, flags));
  place.work(stream);
  if (wait) HIP_OK(hipStreamSynchronize(stream));
  HIP_OK(hipStreamDestroy(stream));
}

void event(const Place& place) {
  hipEvent_t event = nullptr;
  HIP_OK(hipEventCreate(&event));
  place.work(place.stream);
  HIP_OK(hipEventRecord(event, place.stream));
  HIP_OK(hipStreamWaitEvent(nullptr, event, 0));
  HIP_OK(hipEventDestroy(event));
}

void graph(const Place& place) {
  hipGraph_t graph = nullptr;
  hipGraphExec_t ready = nullptr;
  HIP_OK(hipStreamBeginCapture(place.stream, hipStreamCaptureModeThreadLocal));
  place.work(place.stream);
  HIP_OK(hipStreamEndCapture(place.stream, &graph));
  HIP_OK(hipGraphInstantiate(&ready, graph, nullptr, nullptr, 0));
  HIP_OK(hipGraphLaunch(ready, place.stream));
  HIP_OK(hipStreamSynchronize(place.stream));
  HIP_OK(hipGraphExecDestroy(ready));
  HIP_OK(hipGraphDestroy(graph));
}

void module(const Place& place) {
  hipModule_t module = nullptr;
  hipFunction_t function = nullptr;
  HIP_OK(hipModuleLoad(&module, std::getenv("MODULE_FILE")));
  HIP_OK(hipModuleGetFunction(&function, module, "scale"));
  float* values = reinterpret_cast<float*>(place.total.data());
  float by = 1;
  int size = 0;
  void* arguments[] = {&values, &by, &size};
  HIP_OK(hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, place.stream, arguments, nullptr));
  HIP_OK(hipStreamSynchronize(place.stream));
  HIP_OK(hipModuleUnload(module));
}

void memory(const Place& place) {
  void *device = nullptr, *host = nullptr;
  HIP_OK(hipMalloc(&device, 4096));
  HIP_OK(hipHostMalloc(&host, 4096, 0));
  HIP_OK(hipMemcpyAsync(device, host, 4096, hipMemcpyHostToDevice, place.stream));
  HIP_OK(hipFree(device));
  HIP_OK(hipHostFree(host));
}

void memory_in_stream_order(const Place& place) {
  void* block = nullptr;
  HIP_OK(hipMallocAsync(&block, 4096, place.stream));
  count<<<1, 1, 0, place.stream>>>(static_cast<unsigned*>(block));
  HIP_OK(hipFreeAsync(block, place.stream));
}

void thread(const Place& place) {
  std::thread([&place] {
    place.work(hipStreamPerThread);
    HIP_OK(hipStreamSynchronize(hipStreamPerThread));
  }).join();
}

const std::map<std::string, void (*)(const Place&)> kKinds = {
    {"streams", [](const Place& place) { stream(place, hipStreamNonBlocking, true); }},
    {"blocking_streams", [](const Place& place) { stream(place, hipStreamDefault, true); }},
    {"busy_streams", [](const Place& place) { stream(place, hipStreamNonBlocking, false); }},
    {"events", &event},
    {"graphs", &graph},
    {"modules", &module},
    {"memory", &memory},
    {"memory_in_stream_order", &memory_in_stream_order},
    {"threads", &thread},
};

std::size_t heap_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return __sanitizer_get_current_allocated_bytes();
  const struct mallinfo2 facts = ::mallinfo2();
  return facts.uordblks + facts.hblkhd;
}

}  // namespace

int main(int count, char** words) {
  const auto kind = kKinds.find(count == 4 ? words[1] : "");
  if (kind == kKinds.end()) return 64;
  Place place;
  HIP_OK(hipStreamCreateWithFlags(&place.stream, hipStreamNonBlocking));
  for (int round = 0; round < std::atoi(words[3]); ++round) {
    for (int i = 0; i < std::atoi(words[2]); ++i) kind->second(place);
    HIP_OK(hipDeviceSynchronize());
    for (int i = 0; i < 4; ++i) kind->second(place);
    HIP_OK(hipDeviceSynchronize());
    std::printf("%zu\n", heap_bytes());
  }
  std::fflush(stdout);
  return 0;
}
