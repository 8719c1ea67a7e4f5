// SPDX-License-Identifier: Apache-2.0
//
// What one launch executes on the calling thread: instructions by library, system calls and heap
// allocations, counted by single-stepping it. The program traces a child of its own, which marks
// each launch with two breakpoints; only the child's main thread is stepped.
#include <unistd.h>

#include <map>

#include "bench.h"
#include "single_step.h"

namespace {

__global__ void empty() {}
__global__ void with_parameters(float* data, unsigned count, float factor) {
  if (data != nullptr && count == 0) *data = factor;
}

constexpr int kWarmUp = 300;
constexpr int kCounted = 25;

// In the child. A pair of breakpoints around each of kCounted launches of each kind.
int traced() {
  bench::let_parent_trace();
  BENCH_CHECK(cudaFree(nullptr));
  auto* launch = BENCH_DRIVER(cuLaunchKernel, 4000);
  cudaFunction_t kernels[2];
  BENCH_CHECK(cudaGetFuncBySymbol(&kernels[0], reinterpret_cast<const void*>(&empty)));
  BENCH_CHECK(cudaGetFuncBySymbol(&kernels[1], reinterpret_cast<const void*>(&with_parameters)));
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  float* data = nullptr;
  unsigned count = 1;
  float factor = 2;
  void* parameters[] = {&data, &count, &factor};
  for (CUfunction kernel : kernels) {
    for (int i = 0; i < kWarmUp + kCounted; ++i) {
      // As in a running program: a launch before this one, and nothing that waits.
      BENCH_CHECK(launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
      if (i < kWarmUp) continue;
      CUresult result = CUDA_SUCCESS;
      BENCH_STEP(result = launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr));
      BENCH_CHECK(result);
      BENCH_CHECK(cudaStreamSynchronize(stream));
    }
  }
  _exit(0);
}

using bench::Counts;

void tell(const char* kernel, const Counts* begin, const Counts* end) {
  std::vector<double> instructions;
  std::uint64_t system_calls = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  std::map<std::uint64_t, std::uint64_t> by_system_call;
  std::map<std::string, std::vector<double>> by_library;
  for (const Counts* counts = begin; counts != end; ++counts) {
    instructions.push_back(static_cast<double>(counts->instructions));
    system_calls = std::max(system_calls, counts->system_calls);
    allocations = std::max(allocations, counts->allocations);
    frees = std::max(frees, counts->frees);
    for (const auto& [number, count] : counts->by_system_call) by_system_call[number] += count;
    for (const auto& [name, count] : counts->by_library)
      by_library[name].push_back(static_cast<double>(count));
  }
  std::printf(
      "{\"name\": \"launch path\", \"kernel\": \"%s\", \"launches\": %zu, \"instructions\": %.0f, "
      "\"system_calls_max\": %llu, \"allocations_max\": %llu, \"frees_max\": %llu, \"by_library\": "
      "{",
      kernel, instructions.size(), bench::Order(instructions).median(),
      static_cast<unsigned long long>(system_calls), static_cast<unsigned long long>(allocations),
      static_cast<unsigned long long>(frees));
  const char* comma = "";
  for (auto& [name, counts] : by_library) {
    counts.resize(instructions.size());  // launches that did not enter the library count as 0
    std::printf("%s\"%s\": %.0f", comma, name.c_str(), bench::Order(counts).median());
    comma = ", ";
  }
  std::printf("}, \"system_calls\": {");
  comma = "";
  for (const auto& [number, count] : by_system_call) {
    std::printf("%s\"%llu\": %llu", comma, static_cast<unsigned long long>(number),
                static_cast<unsigned long long>(count));
    comma = ", ";
  }
  std::printf("}}\n");
}

}  // namespace

int main() {
  const pid_t child = fork();
  if (child == 0) return traced();
  const std::vector<Counts> all = bench::Tracer(child).run();
  if (all.size() != 2 * kCounted) {
    std::fprintf(stderr, "%zu launches were counted, %d were made\n", all.size(), 2 * kCounted);
    return 1;
  }
  tell("no parameters", all.data(), all.data() + kCounted);
  tell("three parameters", all.data() + kCounted, all.data() + all.size());
}
