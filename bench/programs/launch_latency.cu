// SPDX-License-Identifier: Apache-2.0
//
// The time of one cuLaunchKernel of an empty kernel, seen by the caller, with the queue never full
// and every predecessor submitted: the inline path.
#include "bench.h"

namespace {

__global__ void empty() {}

struct Latency {
  bench::Order each;   // a clock around every call
  bench::Order batch;  // a clock around `kBatch` calls
};

constexpr int kBatch = 100;

Latency measure(CUfunction kernel, cudaStream_t stream, long launches) {
  auto* launch = BENCH_DRIVER(cuLaunchKernel, 4000);
  std::vector<double> each;
  std::vector<double> batch;
  const auto one = [&] { return launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr); };
  for (int i = 0; i < 2000; ++i) {
    BENCH_CHECK(one());
    if (i % kBatch == 0) BENCH_CHECK(cudaStreamSynchronize(stream));
  }
  for (long i = 0; i < launches / kBatch; ++i) {
    BENCH_CHECK(cudaStreamSynchronize(stream));
    for (int j = 0; j < kBatch; ++j) {
      const std::uint64_t begin = bench::now_ns();
      BENCH_CHECK(one());
      each.push_back(static_cast<double>(bench::now_ns() - begin));
    }
    BENCH_CHECK(cudaStreamSynchronize(stream));
    const std::uint64_t begin = bench::now_ns();
    for (int j = 0; j < kBatch; ++j) BENCH_CHECK(one());
    batch.push_back(static_cast<double>(bench::now_ns() - begin) / kBatch);
  }
  BENCH_CHECK(cudaStreamSynchronize(stream));
  return {bench::Order(std::move(each)), bench::Order(std::move(batch))};
}

}  // namespace

int main(int argc, char** argv) {
  const long launches = bench::number(argc, argv, "--launches", 20000);
  BENCH_CHECK(cudaFree(nullptr));
  cudaFunction_t kernel = nullptr;
  BENCH_CHECK(cudaGetFuncBySymbol(&kernel, reinterpret_cast<const void*>(&empty)));
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const bool null : {false, true}) {
    const Latency latency = measure(kernel, null ? nullptr : stream, launches);
    std::printf(
        "{\"name\": \"launch call\", \"stream\": \"%s\", \"launches\": %ld, \"median_ns\": %.1f, "
        "\"p10_ns\": %.1f, \"p95_ns\": %.1f, \"p99_ns\": %.1f, \"batch_median_ns\": %.1f, "
        "\"batch_p10_ns\": %.1f}\n",
        null ? "legacy" : "non-blocking", launches, latency.each.median(), latency.each.at(0.1),
        latency.each.at(0.95), latency.each.at(0.99), latency.batch.median(),
        latency.batch.at(0.1));
  }
}
