// SPDX-License-Identifier: Apache-2.0
//
// What a pool costs: time, GPU memory and resident memory. Without --entries the program makes
// nothing itself: run it natively and under `vitamin run`, the difference is the pool's. With
// --entries N it makes a pool of N contexts with one stream each.
#include <cstring>

#include "green.h"

namespace {

__global__ void touch(std::uint32_t* word) { *word = 1; }

}  // namespace

int main(int argc, char** argv) {
  const long entries = bench::number(argc, argv, "--entries", 0);
  const std::uint64_t begin = bench::now_ns();
  auto* word = bench::device_zeros<std::uint32_t>(1);
  touch<<<1, 1>>>(word);
  BENCH_CHECK(cudaGetLastError());
  BENCH_CHECK(cudaDeviceSynchronize());
  const double first_use_ms = 1e-6 * static_cast<double>(bench::now_ns() - begin);
  const double used_before = bench::used_mib();
  const double resident_before = bench::resident_mib();

  std::vector<double> each_ms;
  double pool_ms = 0;
  if (entries > 0) {
    const bench::GreenDevice device;
    const std::vector<std::uint64_t> sets = device.sets(static_cast<std::size_t>(entries));
    std::vector<bench::GreenStream> pool;
    const std::uint64_t started = bench::now_ns();
    for (const std::uint64_t set : sets) {
      const std::uint64_t one = bench::now_ns();
      pool.push_back(device.create(set));
      each_ms.push_back(1e-6 * static_cast<double>(bench::now_ns() - one));
    }
    pool_ms = 1e-6 * static_cast<double>(bench::now_ns() - started);
    // Every entry really works.
    for (const bench::GreenStream& green : pool) touch<<<1, 1, 0, green.stream>>>(word);
    BENCH_CHECK(cudaGetLastError());
    BENCH_CHECK(cudaDeviceSynchronize());
  }
  const bench::Order each(each_ms);
  std::printf(
      "{\"name\": \"pool cost\", \"entries\": %zu, \"first_use_ms\": %.1f, \"used_mib\": %.1f, "
      "\"resident_mib\": %.1f, \"pool_ms\": %.1f, \"one_median_ms\": %.2f, \"one_max_ms\": %.2f, "
      "\"pool_mib\": %.1f, \"pool_resident_mib\": %.1f}\n",
      each_ms.size(), first_use_ms, bench::used_mib(), bench::resident_mib(), pool_ms,
      each.median(), each.at(1),
      bench::used_mib() - used_before, bench::resident_mib() - resident_before);
}
