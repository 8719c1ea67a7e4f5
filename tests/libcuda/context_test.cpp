// SPDX-License-Identifier: Apache-2.0
#include <thread>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

TEST_CASE("the device calls itself by its own name and has the shape of an H200") {
  REQUIRE_OK(cuInit(0));
  char name[64];
  REQUIRE_OK(cuDeviceGetName(name, sizeof name, 0));
  CHECK_EQ(std::string(name), "Vitamin Software GPU");
  int value = 0, version = 0;
  REQUIRE_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  CHECK_EQ(value, 132);
  REQUIRE_OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0));
  CHECK_EQ(value, 9);
  REQUIRE_OK(cuDriverGetVersion(&version));
  CHECK_EQ(version, 13000);
  CUdevice device;
  CHECK_RESULT(cuDeviceGet(&device, 99), CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("a primary context lives from its first retain to its last release") {
  REQUIRE_OK(cuInit(0));
  unsigned flags;
  int active;
  CUcontext first, second;
  REQUIRE_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK_EQ(active, 0);
  REQUIRE_OK(cuDevicePrimaryCtxRetain(&first, 0));
  REQUIRE_OK(cuDevicePrimaryCtxRetain(&second, 0));
  CHECK_EQ(first, second);
  REQUIRE_OK(cuCtxSetCurrent(first));
  CUdeviceptr memory;
  REQUIRE_OK(cuMemAlloc(&memory, 256));
  REQUIRE_OK(cuDevicePrimaryCtxRelease(0));
  REQUIRE_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK_EQ(active, 1);
  REQUIRE_OK(cuDevicePrimaryCtxRelease(0));
  REQUIRE_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK_EQ(active, 0);
  CHECK_RESULT(cuMemFree(memory), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK_RESULT(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE_OK(cuCtxSetCurrent(nullptr));
}

TEST_CASE("each thread has a stack of contexts of its own") {
  const Primary primary;
  CUcontext other = nullptr, seen = nullptr;
  REQUIRE_OK(create_context(&other));
  REQUIRE_OK(cuCtxGetCurrent(&seen));
  CHECK_EQ(seen, other);
  std::thread([&] {
    CUcontext here = other;
    CHECK_RESULT(cuCtxGetCurrent(&here), CUDA_SUCCESS);
    CHECK_EQ(here, nullptr);
    CUdevice device;
    CHECK_RESULT(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    CUstream stream;
    CHECK_RESULT(cuStreamCreate(&stream, 0), CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  REQUIRE_OK(cuCtxPopCurrent(&seen));
  CHECK_EQ(seen, other);
  REQUIRE_OK(cuCtxGetCurrent(&seen));
  CHECK_EQ(seen, primary.get());
  REQUIRE_OK(cuCtxDestroy(other));
  CHECK_RESULT(cuCtxPushCurrent(other), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_CASE("objects of a destroyed context answer that it is gone") {
  const Primary primary;
  CUcontext other = nullptr;
  REQUIRE_OK(create_context(&other));
  CUstream stream;
  CUevent event;
  REQUIRE_OK(cuStreamCreate(&stream, 0));
  REQUIRE_OK(cuEventCreate(&event, 0));
  REQUIRE_OK(cuCtxDestroy(other));
  CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_CASE("an event of one context cannot be recorded in a stream of another") {
  const Primary primary;
  const Event event;
  CUcontext other = nullptr;
  REQUIRE_OK(create_context(&other));
  {
    const Stream stream;
    CHECK_RESULT(cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
  }
  REQUIRE_OK(cuCtxDestroy(other));
}

TEST_CASE("a primary context and its green contexts share their limits") {
  const Primary primary;
  const Split split;
  const Green green({split.groups[0]});
  std::size_t value = 0;
  REQUIRE_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
  REQUIRE_OK(cuCtxPushCurrent(green.context()));
  REQUIRE_OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
  CHECK_EQ(value, 4096);
  REQUIRE_OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 8192));
  REQUIRE_OK(cuCtxPopCurrent(nullptr));
  REQUIRE_OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
  CHECK_EQ(value, 8192);
}

TEST_CASE("the cache configuration belongs to one context") {
  const Primary primary;
  const Split split;
  const Green green({split.groups[0]});
  CUfunc_cache cache;
  REQUIRE_OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
  REQUIRE_OK(cuCtxPushCurrent(green.context()));
  REQUIRE_OK(cuCtxGetCacheConfig(&cache));
  CHECK_EQ(cache, CU_FUNC_CACHE_PREFER_NONE);
  REQUIRE_OK(cuCtxPopCurrent(nullptr));
  REQUIRE_OK(cuCtxGetCacheConfig(&cache));
  CHECK_EQ(cache, CU_FUNC_CACHE_PREFER_L1);
}

TEST_CASE("synchronising a context waits for its green contexts too") {
  const Primary primary;
  const Kernels kernels;
  const Split split;
  const Green green({split.groups[0]});
  const DeviceWords words(1);
  REQUIRE_OK(
      launch(kernels["slow_add"], green.stream(), {}, words.get(), 1u, std::uint64_t{2'000'000}));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(words.now(), 1);
}

TEST_CASE("a reset primary context forgets its objects and its error, and can be used again") {
  REQUIRE_OK(cuInit(0));
  CUcontext context;
  REQUIRE_OK(cuDevicePrimaryCtxRetain(&context, 0));
  REQUIRE_OK(cuCtxSetCurrent(context));
  {
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    REQUIRE_OK(cuModuleLoadData(&module, kernel_image().data()));
    REQUIRE_OK(cuModuleGetFunction(&function, module, "fault"));
    REQUIRE_OK(cuMemAlloc(&memory, 4));
    REQUIRE_OK(launch(function, nullptr, {}, memory));
    CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  REQUIRE_OK(cuDevicePrimaryCtxReset(0));
  const DeviceWords words(1, 3);
  CHECK_EQ(words.now(), 3);
  REQUIRE_OK(cuCtxSetCurrent(context));
}

}  // namespace
}  // namespace vitamin::libcuda_tests
