// SPDX-License-Identifier: Apache-2.0
//
// Memory that the host and all GPUs share: hipMallocManaged, advice, prefetches, what is told of a
// range.
#include "program.h"

namespace {

__global__ void add(int* values, int by) { values[blockIdx.x * blockDim.x + threadIdx.x] += by; }

struct Managed {
  explicit Managed(std::size_t count) {
    HIP_OK(
        hipMallocManaged(reinterpret_cast<void**>(&data), count * sizeof(int), hipMemAttachGlobal));
  }
  ~Managed() { HIP_OK(hipFree(data)); }
  int* data = nullptr;
};

int told(const Managed& memory, std::size_t bytes, hipMemRangeAttribute attribute) {
  int value = -99;
  HIP_OK(hipMemRangeGetAttribute(&value, sizeof value, attribute, memory.data, bytes));
  return value;
}

void offered() {
  int managed = 0, concurrent = 0;
  HIP_OK(hipDeviceGetAttribute(&managed, hipDeviceAttributeManagedMemory, 0));
  HIP_OK(hipDeviceGetAttribute(&concurrent, hipDeviceAttributeConcurrentManagedAccess, 0));
  std::printf("managed %d, concurrent %d\n", managed, concurrent);
  report("managed memory is offered", managed == 1);
}

// The host and the GPU take turns on the same words.
void shared_by_host_and_gpu() {
  constexpr int kCount = 1 << 12, kRounds = 8;
  const Managed memory(kCount);
  for (int i = 0; i < kCount; ++i) memory.data[i] = i;
  bool right = true;
  for (int round = 0; round < kRounds; ++round) {
    add<<<kCount / 256, 256, 0, test_stream()>>>(memory.data, 3);
    HIP_OK(hipStreamSynchronize(test_stream()));
    for (int i = 0; i < kCount; ++i)
      right = right && std::exchange(memory.data[i], memory.data[i] + 1) == i + round * 4 + 3;
  }
  report("host and GPU take turns", right);
}

void advised() {
  constexpr std::size_t kBytes = 1 << 16;
  const Managed memory(kBytes / sizeof(int));
  HIP_OK(hipMemAdvise(memory.data, kBytes, hipMemAdviseSetPreferredLocation, 0));
  HIP_OK(hipMemAdvise(memory.data, kBytes, hipMemAdviseSetReadMostly, 0));
  const int device = told(memory, kBytes, hipMemRangeAttributePreferredLocation);
  const int mostly_read = told(memory, kBytes, hipMemRangeAttributeReadMostly);
  HIP_OK(hipMemAdvise(memory.data, kBytes / 2, hipMemAdviseUnsetPreferredLocation, 0));
  const int halves = told(memory, kBytes, hipMemRangeAttributePreferredLocation);
  HIP_OK(hipMemAdvise(memory.data, kBytes, hipMemAdviseUnsetReadMostly, 0));
  const int not_mostly = told(memory, kBytes, hipMemRangeAttributeReadMostly);
  std::printf("preferred %d, of unlike halves %d, mostly read %d then %d\n", device, halves,
              mostly_read, not_mostly);
  report("what was advised is told",
         device == 0 && halves == hipInvalidDeviceId && mostly_read == 1 && not_mostly == 0);
}

// A prefetch is work of its stream.
void prefetched() {
  constexpr std::size_t kCount = 1 << 12, kBytes = kCount * sizeof(int);
  const Managed memory(kCount);
  std::fill_n(memory.data, kCount, 1);
  HIP_OK(hipMemPrefetchAsync(memory.data, kBytes, 0, test_stream()));
  add<<<kCount / 256, 256, 0, test_stream()>>>(memory.data, 4);
  HIP_OK(hipMemPrefetchAsync(memory.data, kBytes, hipCpuDeviceId, test_stream()));
  HIP_OK(hipStreamSynchronize(test_stream()));
  const int place = told(memory, kBytes, hipMemRangeAttributeLastPrefetchLocation);
  std::printf("last prefetched to %d\n", place);
  report("prefetches to the GPU and back",
         place == hipCpuDeviceId && std::count(memory.data, memory.data + kCount, 5) == kCount);
}

// What was known of memory ends with it.
void given_back() {
  constexpr std::size_t kBytes = 1 << 20;
  {
    const Managed memory(kBytes / sizeof(int));
    HIP_OK(hipMemAdvise(memory.data, kBytes, hipMemAdviseSetPreferredLocation, 0));
  }
  const Managed memory(kBytes / sizeof(int));
  report("new memory has no preferred location",
         told(memory, kBytes, hipMemRangeAttributePreferredLocation) == hipInvalidDeviceId);
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"offered", offered},
                     {"shared_by_host_and_gpu", shared_by_host_and_gpu},
                     {"advised", advised},
                     {"prefetched", prefetched},
                     {"given_back", given_back}},
                    count, arguments);
}
