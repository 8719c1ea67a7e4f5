// SPDX-License-Identifier: Apache-2.0
//
// cuFFT: complex and real transforms in one, two and three dimensions, and a length with a large
// prime factor.
#include <cufft.h>

#include "bench.h"

namespace {

void transform(cudaStream_t stream, const std::string& where, int rank, std::vector<int> extents,
               int batch, cufftType type) {
  std::size_t points = 1;
  for (const int extent : extents) points *= static_cast<std::size_t>(extent);
  const std::size_t all = points * static_cast<std::size_t>(batch);
  auto* in = bench::device_copy(bench::random_floats(2 * all, static_cast<std::uint64_t>(points)));
  auto* out = bench::device_zeros<cufftComplex>(all);
  cufftHandle plan = 0;
  BENCH_CHECK(
      cufftPlanMany(&plan, rank, extents.data(), nullptr, 1, 0, nullptr, 1, 0, type, batch));
  BENCH_CHECK(cufftSetStream(plan, stream));
  if (type == CUFFT_C2C)
    BENCH_CHECK(cufftExecC2C(plan, reinterpret_cast<cufftComplex*>(in), out, CUFFT_FORWARD));
  else
    BENCH_CHECK(cufftExecR2C(plan, reinterpret_cast<cufftReal*>(in), out));
  const std::string name = std::to_string(rank) + "d of " + std::to_string(points) +
                           (type == CUFFT_C2C ? " complex" : " real") + where;
  bench::tell_bytes(name.c_str(), out, all * sizeof(cufftComplex));
  BENCH_CHECK(cufftDestroy(plan));
  BENCH_CHECK(cudaFree(in));
  BENCH_CHECK(cudaFree(out));
}

}  // namespace

int main() {
  cudaStream_t own = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  for (cudaStream_t stream : {static_cast<cudaStream_t>(nullptr), own}) {
    const std::string where = stream == nullptr ? ", default stream" : ", own stream";
    transform(stream, where, 1, {4096}, 64, CUFFT_C2C);
    transform(stream, where, 1, {1 << 20}, 1, CUFFT_C2C);
    transform(stream, where, 1, {10007}, 8, CUFFT_C2C);
    transform(stream, where, 2, {512, 768}, 4, CUFFT_R2C);
    transform(stream, where, 3, {64, 64, 64}, 1, CUFFT_C2C);
  }
}
