// SPDX-License-Identifier: Apache-2.0
//
// NVRTC: kernels compiled at run time, loaded as a module and launched through the driver API with
// both argument forms.
#include <nvrtc.h>

#include <cstddef>

#include "bench.h"

namespace {

constexpr const char* kSource = R"(
extern "C" __global__ void scale(float* data, float factor, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * factor + 1.0f;
}
extern "C" __global__ void block_sums(const float* data, float* sums, unsigned count) {
  __shared__ float part[256];
  float sum = 0;
  for (unsigned i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) sum += data[i];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
)";

std::vector<char> compile() {
  nvrtcProgram program = nullptr;
  BENCH_CHECK(nvrtcCreateProgram(&program, kSource, "use_nvrtc", 0, nullptr, nullptr));
  cudaDeviceProp properties{};
  BENCH_CHECK(cudaGetDeviceProperties(&properties, 0));
  const std::string architecture = "--gpu-architecture=sm_" + std::to_string(properties.major) +
                                   std::to_string(properties.minor);
  const char* options[] = {architecture.c_str()};
  BENCH_CHECK(nvrtcCompileProgram(program, 1, options));
  std::size_t bytes = 0;
  BENCH_CHECK(nvrtcGetCUBINSize(program, &bytes));
  std::vector<char> image(bytes);
  BENCH_CHECK(nvrtcGetCUBIN(program, image.data()));
  BENCH_CHECK(nvrtcDestroyProgram(&program));
  return image;
}

}  // namespace

int main() {
  BENCH_CHECK(cudaFree(nullptr));
  auto* load = BENCH_DRIVER(cuModuleLoadData, 2000);
  auto* find = BENCH_DRIVER(cuModuleGetFunction, 2000);
  auto* launch = BENCH_DRIVER(cuLaunchKernel, 4000);
  CUmodule module = nullptr;
  CUfunction scale = nullptr;
  CUfunction sums = nullptr;
  const std::vector<char> image = compile();
  BENCH_CHECK(load(&module, image.data()));
  BENCH_CHECK(find(&scale, module, "scale"));
  BENCH_CHECK(find(&sums, module, "block_sums"));

  constexpr unsigned kCount = 1 << 20;
  float* data = bench::device_copy(bench::random_floats(kCount, 1));
  auto* result = bench::device_zeros<float>(512);
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreate(&stream));
  for (cudaStream_t on : {stream, static_cast<cudaStream_t>(nullptr)})
    for (unsigned i = 0; i < 50; ++i) {
      float factor = 0.75f;
      unsigned count = kCount;
      void* parameters[] = {&data, &factor, &count};
      BENCH_CHECK(launch(scale, kCount / 256, 1, 1, 256, 1, 1, 0, on, parameters, nullptr));
      struct {
        const float* data;
        float* sums;
        unsigned count;
      } packed = {data, result, kCount};
      // Without the padding at the end: a buffer that is longer than the parameters is refused.
      std::size_t bytes = offsetof(decltype(packed), count) + sizeof packed.count;
      void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                       CU_LAUNCH_PARAM_END};
      BENCH_CHECK(launch(sums, 512, 1, 1, 256, 1, 1, 0, on, nullptr, extra));
    }
  bench::tell_bytes("scaled", data, kCount * sizeof(float));
  bench::tell_bytes("sums", result, 512 * sizeof(float));
}
