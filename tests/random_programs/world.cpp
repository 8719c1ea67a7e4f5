// SPDX-License-Identifier: Apache-2.0
#include "world.h"

namespace vitamin::random_programs {

namespace {
constexpr std::size_t kPoolBytes = 512;
}  // namespace

void World::start() {
  MUST(cuInit(0));
  gpus_.resize(kSecondContext + 1);
  for (std::size_t i = 0; i < gpus_.size(); ++i) set_up(i);
}

CUcontext World::make_context(CUdevice device, bool primary) {
  CUcontext context = nullptr;
  if (primary) {
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    return context;
  }
#if CUDA_VERSION >= 13000
  MUST(cuCtxCreate(&context, nullptr, 0, device));
#else
  MUST(cuCtxCreate(&context, 0, device));
#endif
  MUST(cuCtxPopCurrent(nullptr));
  return context;
}

CUresult World::end(std::size_t index, bool release) {
  Gpu& gpu = gpus_[index];
  if (index == kSecondContext) return cuCtxDestroy(gpu.context);
  return release ? cuDevicePrimaryCtxRelease(gpu.device) : cuDevicePrimaryCtxReset(gpu.device);
}

void World::set_up(std::size_t index) {
  Gpu& gpu = gpus_[index];
  const int ordinal = index == kSecondContext ? 0 : static_cast<int>(index);
  MUST(cuDeviceGet(&gpu.device, ordinal));
  gpu.context = make_context(gpu.device, index != kSecondContext);
  MUST(cuCtxSetCurrent(gpu.context));
  MUST(cuModuleLoadData(&gpu.module, image_.data()));
  MUST(cuModuleGetFunction(&gpu.mix, gpu.module, "mix"));
  MUST(cuModuleGetFunction(&gpu.add_slowly, gpu.module, "add_slowly"));
  MUST(cuModuleGetFunction(&gpu.nothing, gpu.module, "nothing"));
  MUST(cuModuleGetFunction(&gpu.spin, gpu.module, "spin_until_equal"));
  MUST(cuModuleGetFunction(&gpu.barrier, gpu.module, "grid_barrier"));
  // A pool that grows waits for other streams, which a gate may hold: it has its memory now and
  // keeps it.
  CUmemoryPool pool = nullptr;
  cuuint64_t keep = ~cuuint64_t{0};
  MUST(cuDeviceGetMemPool(&pool, gpu.device));
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  CUdeviceptr memory = 0;
  MUST(cuMemAllocAsync(&memory, 1 << 20, CU_STREAM_LEGACY));
  MUST(cuMemFreeAsync(memory, CU_STREAM_LEGACY));
  if (gpu.pool == nullptr) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = ordinal;
    properties.maxSize = kPoolBytes;
    MUST(cuMemPoolCreate(&gpu.pool, &properties));
    MUST(cuMemPoolSetAttribute(gpu.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  }
  MUST(cuMemAllocFromPoolAsync(&memory, kPoolBytes, gpu.pool, CU_STREAM_LEGACY));
  MUST(cuMemFreeAsync(memory, CU_STREAM_LEGACY));
  MUST(cuCtxSynchronize());
  if (index != 0) return;
  CUdevResource all{}, part{}, rest{};
  CUdevResourceDesc description = nullptr;
  unsigned groups = 1;
  MUST(cuDeviceGetDevResource(gpu.device, &all, CU_DEV_RESOURCE_TYPE_SM));
  MUST(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, 64));
  MUST(cuDevResourceGenerateDesc(&description, &part, 1));
  MUST(cuGreenCtxCreate(&gpu.green, description, gpu.device, CU_GREEN_CTX_DEFAULT_STREAM));
}

void World::shut_down() {
  for (Gpu& gpu : gpus_) {
    MUST(cuCtxSetCurrent(gpu.context));
    MUST(cuCtxSynchronize());
    if (gpu.green != nullptr) MUST(cuGreenCtxDestroy(gpu.green));
    MUST(cuModuleUnload(gpu.module));
    MUST(end(static_cast<std::size_t>(&gpu - gpus_.data()), true));
  }
}

}  // namespace vitamin::random_programs
