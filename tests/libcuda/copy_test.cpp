// SPDX-License-Identifier: Apache-2.0
//
// When a copy reads its source, and when it lets the host go on.
#include <atomic>
#include <chrono>
#include <thread>

#include "fixture.h"
#include "tests/time_limit.h"

namespace vitamin::libcuda_tests {
namespace {

using Words = std::vector<std::uint32_t>;
constexpr std::size_t kLarge = 64 * 1024;  // words: 256 KiB, more than is staged at once

// Makes a call on another thread and says whether it came back while `gate` was closed. One that is
// `expected` to is waited for.
template <class Call>
bool returns_behind(bool expected, const Primary& primary, Gate& gate, Call call) {
  std::atomic<bool> returned{false};
  std::thread caller([&] {
    REQUIRE_OK(cuCtxSetCurrent(primary.get()));
    REQUIRE_OK(call());
    returned = true;
  });
  if (expected)
    test::eventually([&] { return returned.load(); });
  else
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const bool answer = returned;
  gate.open();
  caller.join();
  return answer;
}

TEST_CASE("a small pageable source may be overwritten as soon as the call returns") {
  const Primary primary;
  const DeviceWords words(4);
  const Stream stream(CU_STREAM_NON_BLOCKING);
  Words source(4, 1);
  Gate gate(stream);
  REQUIRE_OK(cuMemcpyHtoDAsync_v2(words.get(), source.data(), 16, stream));
  source.assign(4, 2);
  gate.open();
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(words.all(), Words(4, 1));
}

TEST_CASE("a pinned source is read when the stream gets there: overwritten early, it corrupts") {
  const Primary primary;
  const DeviceWords words(4);
  const PinnedWords source(4);
  const Stream stream(CU_STREAM_NON_BLOCKING);
  for (std::size_t i = 0; i < 4; ++i) source[i] = 1;
  Gate gate(stream);
  REQUIRE_OK(cuMemcpyHtoDAsync_v2(words.get(), source.get(), 16, stream));
  for (std::size_t i = 0; i < 4; ++i) source[i] = 2;
  gate.open();
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(words.all(), Words(4, 2));
}

TEST_CASE("a large pageable source waits for its turn in the stream") {
  const Primary primary;
  const DeviceWords words(kLarge);
  const Stream stream(CU_STREAM_NON_BLOCKING);
  const Words source(kLarge, 1);
  Gate gate(stream);
  CHECK_FALSE(returns_behind(false, primary, gate, [&] {
    return cuMemcpyHtoDAsync_v2(words.get(), source.data(), kLarge * 4, stream);
  }));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(words.now(kLarge - 1), 1);
}

TEST_CASE("a copy to pageable memory has been made when the call returns") {
  const Primary primary;
  const Kernels kernels;
  const DeviceWords words(4);
  const Stream stream(CU_STREAM_NON_BLOCKING);
  Words target(4);
  REQUIRE_OK(launch(kernels["slow_add"], stream, {}, words.get(), 6u, std::uint64_t{2'000'000}));
  REQUIRE_OK(cuMemcpyDtoHAsync_v2(target.data(), words.get(), 16, stream));
  CHECK_EQ(target[0], 6);
}

TEST_CASE("asynchronous copies between pinned and device memory do not wait") {
  const Primary primary;
  const DeviceWords words(4), others(4);
  const PinnedWords pinned(4);
  const Stream stream(CU_STREAM_NON_BLOCKING);
  Gate gate(stream);
  CHECK(returns_behind(true, primary, gate, [&] {
    if (const CUresult error = cuMemcpyHtoDAsync_v2(words.get(), pinned.get(), 16, stream);
        error != CUDA_SUCCESS)
      return error;
    if (const CUresult error = cuMemcpyDtoDAsync_v2(others.get(), words.get(), 16, stream);
        error != CUDA_SUCCESS)
      return error;
    return cuMemcpyDtoHAsync_v2(pinned.get(), others.get(), 16, stream);
  }));
}

TEST_CASE("a synchronous copy waits for blocking streams and not for the others") {
  const Primary primary;
  const DeviceWords words(4);
  Words target(4);
  {
    const Stream stream(CU_STREAM_NON_BLOCKING);
    Gate gate(stream);
    CHECK(returns_behind(true, primary, gate,
                         [&] { return cuMemcpyDtoH_v2(target.data(), words.get(), 16); }));
  }
  {
    const Stream stream;
    Gate gate(stream);
    CHECK_FALSE(returns_behind(false, primary, gate,
                               [&] { return cuMemcpyDtoH_v2(target.data(), words.get(), 16); }));
  }
}

TEST_CASE("a synchronous copy through a _ptds entry waits for the thread's own stream alone") {
  const Primary primary;
  const DeviceWords words(4);
  Words target(4);
  const Stream stream;
  Gate gate(stream);
  CHECK(returns_behind(true, primary, gate,
                       [&] { return cuMemcpyDtoH_v2_ptds(target.data(), words.get(), 16); }));
}

TEST_CASE("synchronous device-to-device copies and fills do not block the host") {
  const Primary primary;
  const DeviceWords words(4), others(4);
  const Stream stream;
  Gate gate(stream);
  CHECK(returns_behind(true, primary, gate, [&] {
    const CUresult copied = cuMemcpyDtoD_v2(words.get(), others.get(), 16);
    return copied != CUDA_SUCCESS ? copied : cuMemsetD32_v2(others.get(), 5, 4);
  }));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(others.all(), Words(4, 5));
}

TEST_CASE("a fill of pinned memory has been made when the synchronous call returns") {
  const Primary primary;
  const PinnedWords pinned(4);
  REQUIRE_OK(cuMemsetD32_v2(pinned.device(), 8, 4));
  CHECK_EQ(pinned[3], 8);
}

TEST_CASE("fills write elements of their size, row by row") {
  const Primary primary;
  const DeviceWords words(8);
  REQUIRE_OK(cuMemsetD2D16_v2(words.get(), 16, 0xabcd, 2, 2));
  REQUIRE_OK(cuMemsetD8_v2(words.get() + 4, 0x11, 4));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(words.all(), Words{0xabcdabcd, 0x11111111, 0, 0, 0xabcdabcd, 0, 0, 0});
}

TEST_CASE("2D and 3D copies honour offsets and pitches") {
  const Primary primary;
  const DeviceWords words(64);
  const Stream stream;
  Words source(64);
  for (std::uint32_t i = 0; i < 64; ++i) source[i] = i;
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = source.data();
  box.srcPitch = 16;
  box.srcHeight = 4;
  box.srcXInBytes = 4;
  box.srcY = 1;
  box.srcZ = 1;
  box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = words.get();
  box.dstPitch = 8;
  box.dstHeight = 2;
  box.WidthInBytes = 8;
  box.Height = 2;
  box.Depth = 2;
  REQUIRE_OK(cuMemcpy3DAsync_v2(&box, stream));
  box.srcHost = nullptr;  // the description is not needed any more
  REQUIRE_OK(cuStreamSynchronize(stream));
  Words expected{21, 22, 25, 26, 37, 38, 41, 42};
  Words got = words.all();
  got.resize(8);
  CHECK_EQ(got, expected);

  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = words.get();
  rows.srcPitch = 8;
  rows.dstMemoryType = CU_MEMORYTYPE_HOST;
  Words back(8);
  rows.dstHost = back.data();
  rows.dstPitch = 16;
  rows.WidthInBytes = 4;
  rows.Height = 2;
  REQUIRE_OK(cuMemcpy2D_v2(&rows));
  CHECK_EQ(back, Words{21, 0, 0, 0, 25, 0, 0, 0});
}

#if CUDA_VERSION >= 13000
TEST_CASE("a batch reads a small pageable source during the call, a pinned one in stream order") {
  const Primary primary;
  const DeviceWords words(2);
  const PinnedWords pinned(1);
  const Stream stream(CU_STREAM_NON_BLOCKING);
  Words source{1};
  pinned[0] = 1;
  CUdeviceptr targets[] = {words.get(), words.get() + 4};
  CUdeviceptr sources[] = {reinterpret_cast<CUdeviceptr>(&source[0]), pinned.device()};
  size_t sizes[] = {4, 4};
  CUmemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first[] = {0, 1};
  Gate gate(stream);
  REQUIRE_OK(cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, attributes, first, 2, stream));
  source[0] = pinned[0] = 2;
  gate.open();
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(words.all(), Words{1, 2});
  CHECK_RESULT(cuMemcpyBatchAsync_v2(targets, sources, sizes, 2, attributes, first, 2, nullptr),
               CUDA_ERROR_INVALID_VALUE);
}
#endif

TEST_CASE("an address that was never allocated is refused as a device pointer") {
  const Primary primary;
  std::uint32_t word = 0;
  CHECK_RESULT(cuMemcpyHtoD_v2(0x1000, &word, 4), CUDA_ERROR_INVALID_VALUE);
  const DeviceWords words(1);
  CHECK_RESULT(cuMemcpyDtoH_v2(&word, words.get(), 8), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vitamin::libcuda_tests
