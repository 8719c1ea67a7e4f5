// SPDX-License-Identifier: Apache-2.0
//
// cuBLASLt with its heuristic: bf16 products of several shapes with a bias and GELU behind them.
#include <cublasLt.h>
#include <cuda_bf16.h>

#include "bench.h"

namespace {

__nv_bfloat16* filled(std::size_t count, std::uint64_t seed) {
  const std::vector<float> values = bench::random_floats(count, seed);
  std::vector<__nv_bfloat16> host(count);
  for (std::size_t i = 0; i < count; ++i) host[i] = __float2bfloat16(values[i]);
  return bench::device_copy(host);
}

cublasLtMatrixLayout_t layout(std::uint64_t rows, std::uint64_t columns) {
  cublasLtMatrixLayout_t result = nullptr;
  BENCH_CHECK(cublasLtMatrixLayoutCreate(&result, CUDA_R_16BF, rows, columns,
                                         static_cast<std::int64_t>(rows)));
  return result;
}

void product(cublasLtHandle_t handle, cudaStream_t stream, int m, int n, int k, bool gelu) {
  constexpr std::size_t kWorkspace = std::size_t{32} << 20;
  static void* workspace = bench::device_zeros<unsigned char>(kWorkspace);
  auto* a = filled(static_cast<std::size_t>(m) * static_cast<std::size_t>(k), 1);
  auto* b = filled(static_cast<std::size_t>(k) * static_cast<std::size_t>(n), 2);
  auto* bias = filled(static_cast<std::size_t>(m), 3);
  const std::size_t outputs = static_cast<std::size_t>(m) * static_cast<std::size_t>(n);
  auto* d = bench::device_zeros<__nv_bfloat16>(outputs);

  cublasLtMatmulDesc_t operation = nullptr;
  BENCH_CHECK(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  BENCH_CHECK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                             sizeof transpose));
  const cublasLtEpilogue_t epilogue = gelu ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  BENCH_CHECK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                             sizeof epilogue));
  BENCH_CHECK(cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                             sizeof bias));
  cublasLtMatrixLayout_t la = layout(static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(m));
  cublasLtMatrixLayout_t lb = layout(static_cast<std::uint64_t>(k), static_cast<std::uint64_t>(n));
  cublasLtMatrixLayout_t ld = layout(static_cast<std::uint64_t>(m), static_cast<std::uint64_t>(n));
  cublasLtMatmulPreference_t preference = nullptr;
  BENCH_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  BENCH_CHECK(cublasLtMatmulPreferenceSetAttribute(
      preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace, sizeof kWorkspace));
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  BENCH_CHECK(cublasLtMatmulAlgoGetHeuristic(handle, operation, la, lb, ld, ld, preference, 8,
                                             found, &count));
  const float one = 1;
  const float zero = 0;
  // The heuristic's first choices, so that several kernels run.
  for (int i = 0; i < std::min(count, 4); ++i) {
    BENCH_CHECK(cublasLtMatmul(handle, operation, &one, a, la, b, lb, &zero, d, ld, d, ld,
                               &found[i].algo, workspace, kWorkspace, stream));
    const std::string name = std::to_string(m) + " x " + std::to_string(n) + " x " +
                             std::to_string(k) + (gelu ? ", gelu" : ", bias") + ", choice " +
                             std::to_string(i);
    bench::tell_bytes(name.c_str(), d, outputs * sizeof(__nv_bfloat16));
  }
  BENCH_CHECK(cudaFree(a));
  BENCH_CHECK(cudaFree(b));
  BENCH_CHECK(cudaFree(d));
}

}  // namespace

int main() {
  cublasLtHandle_t handle = nullptr;
  BENCH_CHECK(cublasLtCreate(&handle));
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (cudaStream_t on : {stream, static_cast<cudaStream_t>(nullptr)}) {
    product(handle, on, 1024, 512, 4096, true);
    product(handle, on, 4096, 16, 4096, false);
    product(handle, on, 128, 128, 16384, false);
    product(handle, on, 8192, 512, 2048, true);
  }
  BENCH_CHECK(cublasLtDestroy(handle));
}
