// SPDX-License-Identifier: Apache-2.0
//
// copies: one result, brought to the host by every call that can. `copies N`: the result is N.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

#define TEXT(name) #name
#define SYMBOL(name) TEXT(name)

void* library() {
  static void* const handle = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return handle;
}

void check(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s answers %d\n", what, static_cast<int>(status));
  std::exit(1);
}

// Calls a function of the driver by the name that cuda.h maps it to.
#define CALL(name, ...) \
  check(reinterpret_cast<decltype(&::name)>(::dlsym(library(), SYMBOL(name)))(__VA_ARGS__), #name)

constexpr std::size_t kWidth = 256, kRows = 6, kSlices = 2, kBytes = kWidth * kRows * kSlices;
constexpr std::size_t kPitch = kWidth + 64, kTall = kRows + 1;

template <class Copy>
Copy described(CUdeviceptr from, void* to) {
  Copy copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.srcPitch = kWidth;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = to;
  copy.dstXInBytes = 32;
  copy.dstY = 1;
  copy.dstPitch = kPitch;
  copy.WidthInBytes = kWidth;
  copy.Height = kRows * kSlices;
  return copy;
}

CUDA_MEMCPY3D described_3d(CUdeviceptr from, void* to) {
  auto copy = described<CUDA_MEMCPY3D>(from, to);
  copy.srcHeight = kRows;
  copy.dstHeight = kTall;
  copy.dstZ = 1;
  copy.Height = kRows;
  copy.Depth = kSlices;
  return copy;
}

}  // namespace

int main(int argc, char** argv) {
  const int value = argc > 1 ? std::atoi(argv[1]) : 1;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr from = 0;
  void* to = nullptr;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  CALL(cuMemAlloc, &from, kBytes);
  constexpr std::size_t kRoom = kPitch * kTall * (kSlices + 1) * 2;
  CALL(cuMemAllocHost, &to, kRoom);
  std::vector<unsigned char> result(kBytes), pageable(kRoom);
  for (std::size_t i = 0; i < kBytes; ++i)
    result[i] = static_cast<unsigned char>(i * 31 + static_cast<std::size_t>(value));
  CALL(cuMemcpyHtoD, from, result.data(), kBytes);
  const auto pinned = reinterpret_cast<CUdeviceptr>(to);

  CALL(cuMemcpyDtoH, to, from, kBytes);
  CALL(cuMemcpyDtoH, pageable.data(), from, kBytes);
  CALL(cuMemcpy, pinned, from, kBytes);
  CALL(cuMemcpyDtoHAsync, to, from, kBytes, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemcpyDtoHAsync, pageable.data(), from, kBytes, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemcpyAsync, pinned, from, kBytes, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemcpyAsync, reinterpret_cast<CUdeviceptr>(pageable.data()), from, kBytes, stream);
  CALL(cuStreamSynchronize, stream);

  auto flat = described<CUDA_MEMCPY2D>(from, to);
  auto deep = described_3d(from, to);
  CALL(cuMemcpy2D, &flat);
  CALL(cuMemcpy2DUnaligned, &flat);
  CALL(cuMemcpy3D, &deep);
  CALL(cuMemcpy2DAsync, &flat, stream);
  CALL(cuStreamSynchronize, stream);
  CALL(cuMemcpy3DAsync, &deep, stream);
  CALL(cuStreamSynchronize, stream);
  flat.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  flat.dstDevice = pinned;
  CALL(cuMemcpy2DAsync, &flat, stream);
  CALL(cuStreamSynchronize, stream);

  // Nothing of these reaches the host.
  CUdeviceptr other = 0;
  CALL(cuMemAlloc, &other, kBytes);
  CALL(cuMemcpyDtoD, other, from, kBytes);
  CALL(cuMemcpy, other, from, kBytes);
  CALL(cuMemcpyAsync, other, pinned, kBytes, stream);
  CALL(cuMemsetD32, other, 7, kBytes / 4);
  CALL(cuStreamSynchronize, stream);
  std::printf("13 copies\n");
  return 0;
}
