// SPDX-License-Identifier: Apache-2.0
//
// The paper's matrix product, bf16 (512, 8192, 28672), one sample at a time: choose a stream,
// launch, wait. Arms:
//   plain       cuBLAS on one stream; natively, or with the stream's entry chosen by `vitamin run`
//   flat        8 contexts of --units units made ahead, one chosen for each sample
//   on-demand   a context of --units units made for each sample and destroyed behind it
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include "green.h"

namespace {

constexpr int kM = 512;
constexpr int kN = 8192;
constexpr int kK = 28672;

// Random values in [-1, 1), each from its place: too many to make on the host.
__global__ void fill(__nv_bfloat16* data, std::size_t count, std::uint64_t seed) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint64_t x = (i + seed * 0x632be59bd9b4e019ULL) * 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
    data[i] = __float2bfloat16(static_cast<float>(x >> 40) / 8388608.0f - 1.0f);
  }
}

class Product {
 public:
  Product() {
    BENCH_CHECK(cublasCreate(&handle_));
    a_ = filled(std::size_t{kM} * kK, 1);
    b_ = filled(std::size_t{kK} * kN, 2);
    c_ = device_of(std::size_t{kM} * kN);
    BENCH_CHECK(cudaMalloc(&workspace_, kWorkspace));
    BENCH_CHECK(cudaEventCreate(&begin_));
    BENCH_CHECK(cudaEventCreate(&end_));
  }

  // One product on `stream`; device time by events, in ms.
  float run(cudaStream_t stream) {
    const float one = 1;
    const float zero = 0;
    BENCH_CHECK(cublasSetStream(handle_, stream));
    BENCH_CHECK(cublasSetWorkspace(handle_, workspace_, kWorkspace));
    BENCH_CHECK(cudaEventRecord(begin_, stream));
    BENCH_CHECK(cublasGemmEx(handle_, CUBLAS_OP_N, CUBLAS_OP_N, kN, kM, kK, &one, b_, CUDA_R_16BF,
                             kN, a_, CUDA_R_16BF, kK, &zero, c_, CUDA_R_16BF, kN,
                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    BENCH_CHECK(cudaEventRecord(end_, stream));
    BENCH_CHECK(cudaStreamSynchronize(stream));
    float ms = 0;
    BENCH_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    return ms;
  }
  const void* result() const { return c_; }
  std::size_t result_bytes() const { return std::size_t{kM} * kN * sizeof(__nv_bfloat16); }

 private:
  static constexpr std::size_t kWorkspace = std::size_t{32} << 20;
  static __nv_bfloat16* device_of(std::size_t count) {
    __nv_bfloat16* device = nullptr;
    BENCH_CHECK(cudaMalloc(&device, count * sizeof(__nv_bfloat16)));
    return device;
  }
  static __nv_bfloat16* filled(std::size_t count, std::uint64_t seed) {
    __nv_bfloat16* device = device_of(count);
    fill<<<1024, 256>>>(device, count, seed);
    BENCH_CHECK(cudaGetLastError());
    BENCH_CHECK(cudaDeviceSynchronize());
    return device;
  }
  cublasHandle_t handle_ = nullptr;
  __nv_bfloat16 *a_ = nullptr, *b_ = nullptr, *c_ = nullptr;
  void* workspace_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string arm = bench::option(argc, argv, "--arm", "plain");
  const long samples = bench::number(argc, argv, "--samples", 2000);
  const long units = bench::number(argc, argv, "--units", 15);
  const std::uint64_t set = (std::uint64_t{1} << units) - 1;
  const bench::GreenDevice device;
  Product product;
  cudaStream_t plain = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&plain, cudaStreamNonBlocking));
  std::vector<bench::GreenStream> flat;
  if (arm == "flat")
    for (int i = 0; i < 8; ++i) flat.push_back(device.create(set));

  std::vector<double> wall_us;
  std::vector<double> device_us;
  for (long i = -50; i < samples; ++i) {
    const std::uint64_t begin = bench::now_ns();
    float ms = 0;
    if (arm == "plain") {
      ms = product.run(plain);
    } else if (arm == "flat") {
      ms = product.run(flat[static_cast<std::size_t>(i + 50) * 5 % flat.size()].stream);
    } else if (arm == "on-demand") {
      const bench::GreenStream green = device.create(set);
      ms = product.run(green.stream);
      device.destroy(green);
    } else {
      std::fprintf(stderr, "gemm_samples: unknown arm '%s'\n", arm.c_str());
      return 2;
    }
    if (i < 0) continue;
    wall_us.push_back(1e-3 * static_cast<double>(bench::now_ns() - begin));
    device_us.push_back(1e3 * ms);
  }
  const bench::Order wall(wall_us);
  const bench::Order gpu(device_us);
  std::printf(
      "{\"name\": \"gemm\", \"arm\": \"%s\", \"samples\": %ld, \"units\": %ld, \"wall_p50_us\": "
      "%.2f, \"wall_p95_us\": %.2f, \"wall_p99_us\": %.2f, \"device_p50_us\": %.2f, "
      "\"device_p95_us\": %.2f, \"device_p99_us\": %.2f}\n",
      arm.c_str(), samples, arm == "plain" ? 0 : units, wall.median(), wall.at(0.95), wall.at(0.99),
      gpu.median(), gpu.at(0.95), gpu.at(0.99));
  bench::tell_bytes("gemm result", product.result(), product.result_bytes());
}
