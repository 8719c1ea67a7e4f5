// SPDX-License-Identifier: Apache-2.0
//
// A chain of dependent kernels of about 5 µs on one stream: device time for each kernel, with
// everything submitted as fast as the caller can.
#include "bench.h"
#include "spin.h"

int main(int argc, char** argv) {
  const long kernels = bench::number(argc, argv, "--kernels", 1000);
  const long repeats = bench::number(argc, argv, "--repeats", 30);
  const long cycles = bench::number(argc, argv, "--cycles", 9500);
  const auto blocks = static_cast<unsigned>(bench::number(argc, argv, "--blocks", 8));
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  BENCH_CHECK(cudaEventCreate(&begin));
  BENCH_CHECK(cudaEventCreate(&end));
  std::vector<double> device_us;
  std::vector<double> wall_us;
  for (long repeat = -3; repeat < repeats; ++repeat) {
    const std::uint64_t started = bench::now_ns();
    BENCH_CHECK(cudaEventRecord(begin, stream));
    for (long i = 0; i < kernels; ++i) bench::spin<<<blocks, 128, 0, stream>>>(cycles);
    BENCH_CHECK(cudaGetLastError());
    BENCH_CHECK(cudaEventRecord(end, stream));
    BENCH_CHECK(cudaStreamSynchronize(stream));
    float ms = 0;
    BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (repeat < 0) continue;
    device_us.push_back(1e3 * ms / static_cast<double>(kernels));
    wall_us.push_back(1e-3 * static_cast<double>(bench::now_ns() - started) /
                      static_cast<double>(kernels));
  }
  // The kernel alone, for scale.
  std::vector<double> alone_us;
  for (int i = 0; i < 50; ++i) {
    BENCH_CHECK(cudaEventRecord(begin, stream));
    bench::spin<<<blocks, 128, 0, stream>>>(cycles);
    BENCH_CHECK(cudaEventRecord(end, stream));
    BENCH_CHECK(cudaStreamSynchronize(stream));
    float ms = 0;
    BENCH_CHECK(cudaEventElapsedTime(&ms, begin, end));
    alone_us.push_back(1e3 * ms);
  }
  const bench::Order device(device_us);
  std::printf(
      "{\"name\": \"chain\", \"kernels\": %ld, \"repeats\": %ld, \"per_kernel_us\": %.4f, "
      "\"p10_us\": %.4f, \"p90_us\": %.4f, \"wall_per_kernel_us\": %.4f, \"one_kernel_us\": "
      "%.3f}\n",
      kernels, repeats, device.median(), device.at(0.1), device.at(0.9),
      bench::Order(wall_us).median(), bench::Order(alone_us).median());
}
