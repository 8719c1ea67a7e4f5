// SPDX-License-Identifier: Apache-2.0
//
// Where workgroups ran, as they see it themselves, and work that stays on a mask for a while.
#include <set>

#include "program.h"

namespace {

// The compute unit's identity out of the hardware id registers: XCC, engine, array and CU fields.
__device__ unsigned compute_unit() {
#if defined(__GFX9__)
  unsigned id, xcc = 0;
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID)" : "=s"(id));
#if defined(__gfx940__) || defined(__gfx942__)
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_XCC_ID)" : "=s"(xcc));
#endif
  return (id >> 8 & 0xff) | (xcc & 15) << 8;
#else
  unsigned id;
  asm volatile("s_getreg_b32 %0, hwreg(HW_REG_HW_ID1)" : "=s"(id));
  // The upper bit of the SIMD's number tells the two CUs of a workgroup processor apart.
  return (id >> 9 & 1) | (id >> 10 & 15) << 1 | (id >> 16 & 1) << 5 | (id >> 18 & 7) << 6;
#endif
}

__global__ void where(unsigned* units) {
  if (threadIdx.x == 0) units[blockIdx.x] = compute_unit();
}

std::set<unsigned> units_seen() {
  constexpr int kBlocks = 512;
  DeviceArray<unsigned> units(kBlocks);
  where<<<kBlocks, 64, 0, test_stream()>>>(units.data());
  HIP_OK(hipStreamSynchronize(test_stream()));
  const auto seen = units.host();
  return {seen.begin(), seen.end()};
}

void placement() {
  const auto units = units_seen();
  std::printf("units");
  for (const unsigned unit : units) std::printf(" %u", unit);
  std::printf("\n");
}

__global__ void spin(int* done, int rounds) {
  int value = threadIdx.x;
  for (int i = 0; i < rounds; ++i) value = value * 1664525 + 1013904223;
  if (value == 12345) done[1] = value;
  if (threadIdx.x == 0) atomicAdd(done, 1);
}

// Says that it is ready and goes on when it is told to, so that processes hold the device together.
void rendezvous() {
  std::printf("ready\n");
  std::fflush(stdout);
  static_cast<void>(std::getchar());
}

// Nothing here but kernels on the test's stream: copies and fills would be kernels of the runtime
// on queues of its own.
void occupy() {
  constexpr int kLaunches = 40, kBlocks = 128;
  int* done = nullptr;
  HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&done), 2 * sizeof(int)));
  spin<<<1, 64, 0, test_stream()>>>(done, 100);
  HIP_OK(hipStreamSynchronize(test_stream()));
  done[0] = done[1] = 0;
  rendezvous();
  for (int i = 0; i < kLaunches; ++i) spin<<<kBlocks, 64, 0, test_stream()>>>(done, 100);
  HIP_OK(hipStreamSynchronize(test_stream()));
  report("every workgroup ran", done[0] == kLaunches * kBlocks);
}

// As occupy, and fills on the default stream, which has no mask.
void occupy_with_fills() {
  DeviceArray<int> filled(1 << 16);
  occupy();
  for (int i = 0; i < 40; ++i) HIP_OK(hipMemsetAsync(filled.data(), i, 4 << 16, nullptr));
  HIP_OK(hipDeviceSynchronize());
}

// As occupy, and then the same in graphs of two kernels each.
void occupy_with_graphs() {
  constexpr int kLaunches = 20, kBlocks = 128;
  int* done = nullptr;
  HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&done), 2 * sizeof(int)));
  done[0] = done[1] = 0;
  hipStream_t stream = nullptr;
  hipGraph_t graph = nullptr;
  hipGraphExec_t ready = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  HIP_OK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  for (int i = 0; i < 2; ++i) spin<<<kBlocks, 64, 0, stream>>>(done, 100);
  HIP_OK(hipStreamEndCapture(stream, &graph));
  HIP_OK(hipGraphInstantiate(&ready, graph, nullptr, nullptr, 0));
  occupy();
  for (int i = 0; i < kLaunches; ++i) HIP_OK(hipGraphLaunch(ready, test_stream()));
  HIP_OK(hipStreamSynchronize(test_stream()));
  report("every workgroup of the graphs ran", done[0] == kLaunches * 2 * kBlocks);
}

// A mask that the runtime or the driver may refuse.
void try_masks() {
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto mask = mask_of(0, 16);
    hipStream_t stream = nullptr;
    std::printf("create %s\n", hipGetErrorName(hipExtStreamCreateWithCUMask(
                                   &stream, static_cast<std::uint32_t>(mask.size()), mask.data())));
  }
}

__global__ void unknown_instruction(float* out) {
#if defined(__HIP_DEVICE_COMPILE__)
  asm volatile("v_qsad_pk_u16_u8 v[0:1], v[2:3], v4, v[6:7]" ::: "v0", "v1");
#endif
  out[threadIdx.x] = 0;
}

void unknown() {
  DeviceArray<float> out(64);
  unknown_instruction<<<1, 64, 0, test_stream()>>>(out.data());
  HIP_OK(hipStreamSynchronize(test_stream()));
  report("an unknown instruction went unnoticed", false);
}

__global__ void work(float* out, int rounds) {
  __shared__ float shared[256];
  float a = threadIdx.x * 0.5f, b = 1.25f;
  int c = threadIdx.x;
  for (int i = 0; i < rounds; ++i) {
    a = fmaf(a, 0.999f, b);
    c = c * 1664525 + 1013904223;
    shared[threadIdx.x] = a;
    b = shared[(threadIdx.x + 1) & 255] * 0.5f + static_cast<float>(c >> 20);
    a = c & 1 ? a - b : fmaxf(a, b);
  }
  out[threadIdx.x] = a + b;
}

void throughput() {
  DeviceArray<float> out(256);
  work<<<1, 256, 0, test_stream()>>>(out.data(), 40'000);
  HIP_OK(hipStreamSynchronize(test_stream()));
  report("the kernel ended", true);
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"placement", placement},
                     {"occupy", occupy},
                     {"occupy_with_fills", occupy_with_fills},
                     {"occupy_with_graphs", occupy_with_graphs},
                     {"try_masks", try_masks},
                     {"unknown", unknown},
                     {"throughput", throughput}},
                    count, arguments);
}
