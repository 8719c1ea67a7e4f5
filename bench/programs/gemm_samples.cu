// SPDX-License-Identifier: Apache-2.0
//
// The paper's matrix product, bf16 (512, 8192, 28672), one sample at a time: choose a stream,
// launch, wait. Arms:
//   plain       cuBLAS on one stream; natively, or with the stream's entry chosen by `vitamin run`
//   flat        8 contexts of --units units made ahead, one chosen for each sample
//   on-demand   a context of --units units made for each sample and destroyed behind it
//
// With --resident it waits for lines `samples COUNT WARM`, and answers each with the microseconds
// of COUNT samples behind WARM others and a hash of the last result.
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <iostream>
#include <utility>

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

// One way to run samples.
class Arm {
 public:
  Arm(const std::string& name, long units) : name_(name), set_((std::uint64_t{1} << units) - 1) {
    if (name != "plain" && name != "flat" && name != "on-demand")
      bench::die("--arm", "is plain, flat or on-demand", "", 0);
    BENCH_CHECK(cudaStreamCreateWithFlags(&plain_, cudaStreamNonBlocking));
    if (name == "flat")
      for (int i = 0; i < 8; ++i) flat_.push_back(device_.create(set_));
  }

  // Microseconds of the host, and of the device.
  std::pair<double, double> sample() {
    const std::uint64_t begin = bench::now_ns();
    float ms = 0;
    if (name_ == "plain") {
      ms = product_.run(plain_);
    } else if (name_ == "flat") {
      ms = product_.run(flat_[count_++ * 5 % flat_.size()].stream);
    } else {
      const bench::GreenStream green = device_.create(set_);
      ms = product_.run(green.stream);
      device_.destroy(green);
    }
    return {1e-3 * static_cast<double>(bench::now_ns() - begin), 1e3 * ms};
  }
  const Product& product() const { return product_; }

 private:
  const bench::GreenDevice device_;
  Product product_;
  std::string name_;
  std::uint64_t set_;
  cudaStream_t plain_ = nullptr;
  std::vector<bench::GreenStream> flat_;
  std::size_t count_ = 0;
};

void tell_list(const char* name, const std::vector<double>& values) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < values.size(); ++i)
    std::printf("%s%.2f", i == 0 ? "" : ", ", values[i]);
  std::printf("], ");
}

void resident(Arm& arm) {
  std::printf("{\"ready\": true}\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line); std::fflush(stdout)) {
    long count = 0, warm = 0;
    if (std::sscanf(line.c_str(), "samples %ld %ld", &count, &warm) != 2)
      bench::die(line.c_str(), "is no command", "", 0);
    std::vector<double> wall_us, device_us;
    for (long i = -warm; i < count; ++i) {
      const auto [wall, device] = arm.sample();
      if (i < 0) continue;
      wall_us.push_back(wall);
      device_us.push_back(device);
    }
    std::printf("{");
    tell_list("wall_us", wall_us);
    tell_list("device_us", device_us);
    if (line.ends_with("hash"))
      std::printf("\"hash\": \"%s\", ",
                  bench::hash_of(arm.product().result(), arm.product().result_bytes()).c_str());
    std::printf("\"count\": %ld}\n", count);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = bench::option(argc, argv, "--arm", "plain");
  const long samples = bench::number(argc, argv, "--samples", 2000);
  const long units = bench::number(argc, argv, "--units", 15);
  Arm arm(name, units);
  if (argc > 1 && std::string(argv[argc - 1]) == "--resident") {
    resident(arm);
    return 0;
  }
  std::vector<double> wall_us;
  std::vector<double> device_us;
  for (long i = -50; i < samples; ++i) {
    const auto [wall, device] = arm.sample();
    if (i < 0) continue;
    wall_us.push_back(wall);
    device_us.push_back(device);
  }
  const bench::Order wall(wall_us);
  const bench::Order gpu(device_us);
  std::printf(
      "{\"name\": \"gemm\", \"arm\": \"%s\", \"samples\": %ld, \"units\": %ld, \"wall_p50_us\": "
      "%.2f, \"wall_p95_us\": %.2f, \"wall_p99_us\": %.2f, \"device_p50_us\": %.2f, "
      "\"device_p95_us\": %.2f, \"device_p99_us\": %.2f}\n",
      name.c_str(), samples, name == "plain" ? 0 : units, wall.median(), wall.at(0.95),
      wall.at(0.99), gpu.median(), gpu.at(0.95), gpu.at(0.99));
  bench::tell_bytes("gemm result", arm.product().result(), arm.product().result_bytes());
}
