// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

CUmemorytype memory_type(const void* address) {
  CUmemorytype type{};
  const CUresult asked = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                               reinterpret_cast<CUdeviceptr>(address));
  return asked == CUDA_SUCCESS ? type : CUmemorytype{};
}

TEST_CASE("pointer attributes tell device, pinned, registered, managed and pageable memory apart") {
  const Primary primary;
  const DeviceWords device(16);
  const PinnedWords pinned(16);
  std::vector<std::uint32_t> pageable(4096);
  CHECK_EQ(memory_type(reinterpret_cast<void*>(device.get() + 8)), CU_MEMORYTYPE_DEVICE);
  CHECK_EQ(memory_type(pinned.get()), CU_MEMORYTYPE_HOST);
  CHECK_EQ(memory_type(pageable.data()), CUmemorytype{});
  REQUIRE_OK(cuMemHostRegister(pageable.data(), pageable.size() * 4, 0));
  CHECK_EQ(memory_type(&pageable[100]), CU_MEMORYTYPE_HOST);
  CHECK_RESULT(cuMemHostRegister(&pageable[10], 64, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  REQUIRE_OK(cuMemHostUnregister(pageable.data()));
  CHECK_RESULT(cuMemHostUnregister(pageable.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CUdeviceptr managed;
  REQUIRE_OK(cuMemAllocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  unsigned is_managed = 0;
  REQUIRE_OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
  CHECK_EQ(is_managed, 1);
  *reinterpret_cast<int*>(managed) = 5;  // the host may touch it
  REQUIRE_OK(cuMemFree(managed));
}

TEST_CASE("an address range has the base and the size of its allocation") {
  const Primary primary;
  CUdeviceptr memory, base;
  std::size_t pitch, bytes;
  REQUIRE_OK(cuMemAllocPitch(&memory, &pitch, 100, 3, 4));
  CHECK_EQ(pitch % 512, 0);
  REQUIRE_OK(cuMemGetAddressRange(&base, &bytes, memory + 700));
  CHECK_EQ(base, memory);
  CHECK_EQ(bytes, pitch * 3);
  CHECK_RESULT(cuMemFree(memory + 4), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuMemFree(memory));
  CHECK_RESULT(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(cuMemAlloc(&memory, std::size_t{1} << 50), CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_RESULT(cuMemAlloc(&memory, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("cuMemFree waits for everything that might use the memory") {
  const Primary primary;
  const Kernels kernels;
  const DeviceWords out(1);
  const Stream stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr memory;
  REQUIRE_OK(cuMemAlloc(&memory, 4));
  REQUIRE_OK(cuMemsetD32(memory, 77, 1));
  REQUIRE_OK(cuCtxSynchronize());
  REQUIRE_OK(
      launch(kernels["slow_copy"], stream, {}, out.get(), memory, 1u, std::uint64_t{2'000'000}));
  REQUIRE_OK(cuMemFree(memory));
  CHECK_EQ(out.now(), 77);
}

// ----------------------------------------------------------------------------------------- pools

// Copies through a kernel that is held, from memory that is freed behind it or beside it.
std::uint32_t read_of_freed_block(CUstream user, CUstream freer) {
  const Kernels kernels;
  const DeviceWords out(1);
  CUdeviceptr block;
  REQUIRE_OK(cuMemAllocAsync(&block, 4, user));
  REQUIRE_OK(cuMemsetD32Async(block, 123, 1, user));
  REQUIRE_OK(cuStreamSynchronize(user));
  Gate gate(user);
  REQUIRE_OK(launch(kernels["copy"], user, {}, out.get(), block, 1u));
  REQUIRE_OK(cuMemFreeAsync(block, freer));
  if (freer != user) {
    REQUIRE_OK(cuStreamSynchronize(freer));
  }
  gate.open();
  REQUIRE_OK(cuStreamSynchronize(user));
  return out.now();
}

TEST_CASE("a free behind its user in the same stream is safe") {
  const Primary primary;
  const Stream stream(CU_STREAM_NON_BLOCKING);
  CHECK_EQ(read_of_freed_block(stream, stream), 123);
}

TEST_CASE("a free that reaches an idle stream too early corrupts its user") {
  const Primary primary;
  const Stream user(CU_STREAM_NON_BLOCKING), idle(CU_STREAM_NON_BLOCKING);
  CHECK_NE(read_of_freed_block(user, idle), 123);
}

TEST_CASE("a stream gets back at once what it freed, another only when the free has happened") {
  const Primary primary;
  const Stream first(CU_STREAM_NON_BLOCKING), second(CU_STREAM_NON_BLOCKING);
  CUmemoryPool pool;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  REQUIRE_OK(cuMemPoolCreate(&pool, &properties));
  CUdeviceptr block, same, other, later;
  REQUIRE_OK(cuMemAllocFromPoolAsync(&block, 4096, pool, first));
  {
    Gate gate(first);
    REQUIRE_OK(cuMemFreeAsync(block, first));
    REQUIRE_OK(cuMemAllocFromPoolAsync(&other, 4096, pool, second));
    CHECK_NE(other, block);
    REQUIRE_OK(cuMemAllocFromPoolAsync(&same, 4096, pool, first));
    CHECK_EQ(same, block);
    REQUIRE_OK(cuMemFreeAsync(same, first));
    gate.open();
  }
  REQUIRE_OK(cuStreamSynchronize(first));
  REQUIRE_OK(cuMemAllocFromPoolAsync(&later, 4096, pool, second));
  CHECK_EQ(later, block);
  std::uint64_t used = 0;
  REQUIRE_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  CHECK_EQ(used, 8192);
  REQUIRE_OK(cuMemFreeAsync(later, second));
  REQUIRE_OK(cuMemFreeAsync(other, second));
  REQUIRE_OK(cuStreamSynchronize(second));
  REQUIRE_OK(cuMemPoolTrimTo(pool, 0));
  REQUIRE_OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &used));
  CHECK_EQ(used, 0);
  REQUIRE_OK(cuMemPoolDestroy(pool));
}

TEST_CASE("a pool at its limit waits for a free and for nothing that came behind it") {
  const Primary primary;
  const Stream freeing(CU_STREAM_DEFAULT), held(CU_STREAM_DEFAULT), asking(CU_STREAM_NON_BLOCKING);
  const DeviceWords words(1);
  CUmemoryPool pool;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.maxSize = 4096;
  REQUIRE_OK(cuMemPoolCreate(&pool, &properties));
  CUdeviceptr block, same;
  REQUIRE_OK(cuMemAllocFromPoolAsync(&block, 4096, pool, freeing));
  Gate first(freeing), second(held);
  REQUIRE_OK(cuMemFreeAsync(block, freeing));
  // What the blocking streams get from now on comes behind both gates.
  REQUIRE_OK(cuMemsetD32Async(words.get(), 1, 1, CU_STREAM_LEGACY));
  REQUIRE_OK(cuMemAllocFromPoolAsync(&same, 4096, pool, asking));
  CHECK_EQ(same, block);
  CHECK_RESULT(cuStreamQuery(asking), CUDA_ERROR_NOT_READY);
  first.open();
  REQUIRE_OK(cuStreamSynchronize(asking));
  CHECK_RESULT(cuStreamQuery(held), CUDA_ERROR_NOT_READY);
  second.open();
  REQUIRE_OK(cuMemFreeAsync(same, asking));
  REQUIRE_OK(cuStreamSynchronize(asking));
  REQUIRE_OK(cuCtxSynchronize());
  REQUIRE_OK(cuMemPoolDestroy(pool));
}

TEST_CASE("cuMemFree takes memory of a pool and does not wait, cuMemFreeAsync takes no other") {
  const Primary primary;
  CUdeviceptr block;
  const Stream stream(CU_STREAM_NON_BLOCKING);
  Gate gate(stream);
  REQUIRE_OK(cuMemAllocAsync(&block, 64, stream));
  REQUIRE_OK(cuMemFree(block));
  CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  gate.open();
  const DeviceWords words(4);
  CHECK_RESULT(cuMemFreeAsync(words.get(), nullptr), CUDA_ERROR_INVALID_VALUE);
}

// ---------------------------------------------------------------------------------------- arrays

TEST_CASE("an array is written and read by linear copies and by boxes") {
  const Primary primary;
  const Stream stream;
  CUDA_ARRAY_DESCRIPTOR description{};
  description.Width = 4;
  description.Height = 3;
  description.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  description.NumChannels = 1;
  CUarray array;
  REQUIRE_OK(cuArrayCreate(&array, &description));
  std::vector<std::uint32_t> words(12), row(2);
  for (std::uint32_t i = 0; i < 12; ++i) words[i] = i;
  REQUIRE_OK(cuMemcpyHtoA(array, 0, words.data(), 16));
  CUDA_MEMCPY2D box{};
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = words.data() + 4;
  box.srcPitch = 16;
  box.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  box.dstArray = array;
  box.dstY = 1;
  box.WidthInBytes = 16;
  box.Height = 2;
  REQUIRE_OK(cuMemcpy2DAsync(&box, stream));
  box = CUDA_MEMCPY2D{};
  box.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  box.srcArray = array;
  box.srcXInBytes = 8;
  box.srcY = 2;
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = row.data();
  box.WidthInBytes = 8;
  box.Height = 1;
  REQUIRE_OK(cuMemcpy2DAsync(&box, stream));
  CHECK_EQ(row, std::vector<std::uint32_t>{10, 11});
  CHECK_RESULT(cuMemcpyAtoH(row.data(), array, 44, 8), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuArrayDestroy(array));
  CHECK_RESULT(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
}

// ----------------------------------------------------------------------------- virtual addresses

TEST_CASE("memory can be mapped at a reserved address, unmapped, and mapped there again") {
  const Primary primary;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  std::size_t granularity;
  REQUIRE_OK(
      cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUdeviceptr address;
  REQUIRE_OK(cuMemAddressReserve(&address, 2 * granularity, 0, 0, 0));
  CUmemGenericAllocationHandle memory;
  REQUIRE_OK(cuMemCreate(&memory, granularity, &properties, 0));
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (const std::size_t offset : {std::size_t{0}, granularity}) {
    REQUIRE_OK(cuMemMap(address + offset, granularity, 0, memory, 0));
    REQUIRE_OK(cuMemSetAccess(address + offset, granularity, &access, 1));
    std::uint32_t word = 0;
    if (offset == 0) {
      REQUIRE_OK(cuMemsetD32(address, 9, 1));
    }
    REQUIRE_OK(cuMemcpyDtoH(&word, address + offset, 4));
    CHECK_EQ(word, 9);
    REQUIRE_OK(cuMemUnmap(address + offset, granularity));
  }
  REQUIRE_OK(cuMemRelease(memory));
  REQUIRE_OK(cuMemAddressFree(address, 2 * granularity));
}

}  // namespace
}  // namespace vitamin::libcuda_tests
