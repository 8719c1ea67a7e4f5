// SPDX-License-Identifier: Apache-2.0
//
// cuBLAS as programs use it: vectors, matrix-vector and matrix products in several types, batches,
// on the default stream and on streams of its own with an event between them.
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include "bench.h"

namespace {

constexpr int kM = 768;
constexpr int kN = 520;
constexpr int kK = 1000;

template <class T>
T* converted(const std::vector<float>& values) {
  std::vector<T> host(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) host[i] = T(values[i]);
  return bench::device_copy(host);
}

void products(cublasHandle_t handle, cudaStream_t stream, const char* where) {
  const float one = 1;
  const float half = 0.5f;
  const auto name = [&](const char* what) { return std::string(what) + ", " + where; };
  const std::vector<float> av = bench::random_floats(std::size_t{kM} * kK, 1);
  const std::vector<float> bv = bench::random_floats(std::size_t{kK} * kN, 2);
  const std::vector<float> cv = bench::random_floats(std::size_t{kM} * kN, 3);
  BENCH_CHECK(cublasSetStream(handle, stream));

  float* a = bench::device_copy(av);
  float* b = bench::device_copy(bv);
  float* c = bench::device_copy(cv);
  for (int i = 0; i < 3; ++i)
    BENCH_CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, kM, kN, kK, &one, a, kM, b, kK, &half,
                            c, kM));
  bench::tell_bytes(name("sgemm").c_str(), c, cv.size() * sizeof(float));

  auto* a16 = converted<__nv_bfloat16>(av);
  auto* b16 = converted<__nv_bfloat16>(bv);
  auto* c16 = converted<__nv_bfloat16>(cv);
  for (int i = 0; i < 3; ++i)
    BENCH_CHECK(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kM, kN, kK, &one, a16, CUDA_R_16BF,
                             kK, b16, CUDA_R_16BF, kK, &half, c16, CUDA_R_16BF, kM,
                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  bench::tell_bytes(name("gemm bf16").c_str(), c16, cv.size() * sizeof(__nv_bfloat16));

  // Tall and thin: split along k on many devices.
  auto* thin = bench::device_zeros<float>(64 * 64);
  float* long_a = bench::device_copy(bench::random_floats(std::size_t{64} * 16384, 4));
  float* long_b = bench::device_copy(bench::random_floats(std::size_t{64} * 16384, 5));
  BENCH_CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, 64, 64, 16384, &one, long_a, 64, long_b,
                          64, &half, thin, 64));
  bench::tell_bytes(name("sgemm split along k").c_str(), thin, 64 * 64 * sizeof(float));

  BENCH_CHECK(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, 128, 128, 64, &one, a,
                                        128, 128 * 64, b, 64, 64 * 128, &half, c, 128, 128 * 128,
                                        20));
  bench::tell_bytes(name("sgemm batched").c_str(), c, std::size_t{128} * 128 * 20 * sizeof(float));

  auto* y = bench::device_zeros<float>(kM);
  BENCH_CHECK(cublasSgemv(handle, CUBLAS_OP_N, kM, kK, &one, a, kM, b, 1, &half, y, 1));
  bench::tell_bytes(name("sgemv").c_str(), y, kM * sizeof(float));

  float* dot = bench::device_zeros<float>(4);
  BENCH_CHECK(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE));
  BENCH_CHECK(cublasSdot(handle, kM * 500, a, 1, a + 1, 1, dot));
  BENCH_CHECK(cublasSnrm2(handle, kM * 500, a, 1, dot + 1));
  BENCH_CHECK(cublasSasum(handle, kM * 500, a, 1, dot + 2));
  BENCH_CHECK(cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST));
  bench::tell_bytes(name("dot, norm, sum").c_str(), dot, 4 * sizeof(float));
  float host_dot = 0;
  BENCH_CHECK(cublasSdot(handle, kM * 500, a, 1, a + 1, 1, &host_dot));
  BENCH_CHECK(cudaMemcpy(dot + 3, &host_dot, sizeof host_dot, cudaMemcpyHostToDevice));
  bench::tell_bytes(name("dot to the host").c_str(), dot + 3, sizeof(float));
  BENCH_CHECK(cudaFree(c));
}

}  // namespace

int main() {
  cublasHandle_t handle = nullptr;
  BENCH_CHECK(cublasCreate(&handle));
  products(handle, nullptr, "default stream");
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  products(handle, stream, "own stream");
  BENCH_CHECK(cublasDestroy(handle));
}
