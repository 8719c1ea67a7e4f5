// SPDX-License-Identifier: Apache-2.0
//
// What a pool of MPS contexts costs, one for each number of processors, as `cuCtxCreate` makes them
// with an execution affinity: the baseline of the paper's memory figure. Needs MPS. Makes --entries
// of them with a stream each, or as many as the driver gives.
#include <cstring>

#include "bench.h"

int main(int argc, char** argv) {
  const long entries = bench::number(argc, argv, "--entries", 32);
  BENCH_CHECK(cudaFree(nullptr));
  int supported = 0;
  auto* attribute = BENCH_DRIVER(cuDeviceGetAttribute, 12050);
  BENCH_CHECK(attribute(&supported, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  const int processors = supported;
  auto* affinity = BENCH_DRIVER(cuDeviceGetExecAffinitySupport, 11040);
  BENCH_CHECK(affinity(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0));
  if (supported == 0) bench::die("execution affinity", "not supported: is MPS running?", "", 0);
  auto* create = BENCH_DRIVER(cuCtxCreate, 12050);
  auto* pop = BENCH_DRIVER(cuCtxPopCurrent, 4000);
  auto* create_stream = BENCH_DRIVER(cuStreamCreate, 2000);
  const double used_before = bench::used_mib();
  const double resident_before = bench::resident_mib();
  std::vector<double> each_ms;
  CUresult refused = CUDA_SUCCESS;
  const std::uint64_t started = bench::now_ns();
  for (long i = 0; i < entries; ++i) {
    const std::uint64_t one = bench::now_ns();
    CUexecAffinityParam share{};
    share.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
    share.param.smCount.val =
        static_cast<unsigned>(std::max<long>(2, processors * (i % 16 + 1) / 16));
    CUctxCreateParams parameters{};
    parameters.execAffinityParams = &share;
    parameters.numExecAffinityParams = 1;
    CUcontext context = nullptr;
    refused = create(&context, &parameters, 0, 0);
    if (refused != CUDA_SUCCESS) break;
    CUstream stream = nullptr;
    BENCH_CHECK(create_stream(&stream, CU_STREAM_NON_BLOCKING));
    BENCH_CHECK(pop(&context));
    each_ms.push_back(1e-6 * static_cast<double>(bench::now_ns() - one));
  }
  const double pool_ms = 1e-6 * static_cast<double>(bench::now_ns() - started);
  const bench::Order each(each_ms);
  std::printf(
      "{\"name\": \"MPS pool\", \"asked\": %ld, \"entries\": %zu, \"refused\": %d, "
      "\"pool_ms\": %.1f, \"one_median_ms\": %.2f, \"pool_mib\": %.1f, "
      "\"pool_resident_mib\": %.1f}\n",
      entries, each_ms.size(), static_cast<int>(refused), pool_ms, each.median(),
      bench::used_mib() - used_before, bench::resident_mib() - resident_before);
}
