// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the software driver share. Each class owns what it makes and requires every
// call to succeed.
#pragma once

#include <cuda.h>
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

// The per-thread variants, which cuda.h declares only instead of the plain ones.
extern "C" {
decltype(cuLaunchKernel) cuLaunchKernel_ptsz;
decltype(cuStreamQuery) cuStreamQuery_ptsz;
decltype(cuMemcpyDtoH) cuMemcpyDtoH_v2_ptds;
#if CUDA_VERSION < 12050
CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx green, unsigned int flags,
                                        int priority);
#endif
}

namespace vitamin::libcuda_tests {

// CU_DEV_SM_RESOURCE_SPLIT_*, which have no names before CUDA 12.5.
inline constexpr unsigned kIgnoreCoscheduling = 1;
inline constexpr unsigned kMaxPotentialClusterSize = 2;

// cuCtxCreate with no parameters, whichever variant the headers name.
inline CUresult create_context(CUcontext* context) {
#if CUDA_VERSION >= 13000
  return cuCtxCreate(context, nullptr, 0, 0);
#else
  return cuCtxCreate(context, 0, 0);
#endif
}

// Compares with CUDA_SUCCESS and shows the number.
#define REQUIRE_OK(call) REQUIRE_EQ(static_cast<int>(call), static_cast<int>(CUDA_SUCCESS))
#define CHECK_RESULT(call, code) CHECK_EQ(static_cast<int>(call), static_cast<int>(code))
#define REQUIRE_RESULT(call, code) REQUIRE_EQ(static_cast<int>(call), static_cast<int>(code))

// The primary context of one device, current while it lives.
class Primary {
 public:
  explicit Primary(CUdevice device = 0) : device_(device) {
    REQUIRE_OK(cuInit(0));
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&context_, device));
    REQUIRE_OK(cuCtxPushCurrent(context_));
  }
  ~Primary() {
    cuCtxPopCurrent(nullptr);
    cuDevicePrimaryCtxRelease(device_);
  }
  Primary(const Primary&) = delete;
  Primary& operator=(const Primary&) = delete;
  CUcontext get() const { return context_; }

 private:
  CUdevice device_;
  CUcontext context_ = nullptr;
};

inline std::vector<char> kernel_image() {
  const char* path = std::getenv("VITAMIN_TEST_KERNELS");
  REQUIRE_MESSAGE(path != nullptr, "VITAMIN_TEST_KERNELS names the module of the test kernels");
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  REQUIRE_FALSE(bytes.empty());
  return bytes;
}

// The test kernels, loaded into the current context.
class Kernels {
 public:
  Kernels() { REQUIRE_OK(cuModuleLoadData(&module_, kernel_image().data())); }
  ~Kernels() { cuModuleUnload(module_); }
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  CUmodule module() const { return module_; }
  CUfunction operator[](const char* name) const {
    CUfunction function = nullptr;
    REQUIRE_OK(cuModuleGetFunction(&function, module_, name));
    return function;
  }

 private:
  CUmodule module_ = nullptr;
};

// Launches one block of one thread, or what `grid` and `block` say.
struct Shape {
  unsigned grid = 1, block = 1, shared = 0;
};
template <class... Arguments>
CUresult launch(CUfunction function, CUstream stream, Shape shape, Arguments... arguments) {
  std::array<void*, sizeof...(Arguments) + 1> pointers{&arguments..., nullptr};
  return cuLaunchKernel(function, shape.grid, 1, 1, shape.block, 1, 1, shape.shared, stream,
                        pointers.data(), nullptr);
}

// Words of device memory, zeroed.
class DeviceWords {
 public:
  explicit DeviceWords(std::size_t count, std::uint32_t value = 0) : count_(count) {
    REQUIRE_OK(cuMemAlloc(&address_, count * 4));
    const std::vector<std::uint32_t> words(count, value);
    REQUIRE_OK(cuMemcpyHtoD(address_, words.data(), count * 4));
    REQUIRE_OK(cuCtxSynchronize());
  }
  ~DeviceWords() { cuMemFree(address_); }
  DeviceWords(const DeviceWords&) = delete;
  DeviceWords& operator=(const DeviceWords&) = delete;
  CUdeviceptr get() const { return address_; }
  // Looks without any stream's order: the device's memory is the host's.
  std::uint32_t now(std::size_t i = 0) const {
    return std::atomic_ref(reinterpret_cast<std::uint32_t*>(address_)[i]).load();
  }
  std::vector<std::uint32_t> all() const {
    std::vector<std::uint32_t> words(count_);
    for (std::size_t i = 0; i < count_; ++i) words[i] = now(i);
    return words;
  }

 private:
  std::size_t count_;
  CUdeviceptr address_ = 0;
};

// Words of pinned host memory, zeroed.
class PinnedWords {
 public:
  explicit PinnedWords(std::size_t count) {
    REQUIRE_OK(cuMemHostAlloc(reinterpret_cast<void**>(&words_), count * 4, 0));
    for (std::size_t i = 0; i < count; ++i) words_[i] = 0;
  }
  ~PinnedWords() { cuMemFreeHost(words_); }
  PinnedWords(const PinnedWords&) = delete;
  PinnedWords& operator=(const PinnedWords&) = delete;
  std::uint32_t* get() const { return words_; }
  CUdeviceptr device() const { return reinterpret_cast<CUdeviceptr>(words_); }
  std::uint32_t& operator[](std::size_t i) const { return words_[i]; }
  void store(std::size_t i, std::uint32_t value) const {
    __atomic_store_n(&words_[i], value, __ATOMIC_RELEASE);
  }

 private:
  std::uint32_t* words_ = nullptr;
};

class Stream {
 public:
  explicit Stream(unsigned flags = CU_STREAM_DEFAULT, int priority = 0) {
    REQUIRE_OK(cuStreamCreateWithPriority(&stream_, flags, priority));
  }
  ~Stream() { cuStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  // NOLINTNEXTLINE(google-explicit-constructor): a stream is given where its handle is
  operator CUstream() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    REQUIRE_OK(cuEventCreate(&event_, flags));
  }
  ~Event() { cuEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // NOLINTNEXTLINE(google-explicit-constructor): an event is given where its handle is
  operator CUevent() const { return event_; }

 private:
  CUevent event_ = nullptr;
};

// Holds a stream until it is opened (or destroyed).
class Gate {
 public:
  explicit Gate(CUstream stream) : word_(1) {
    REQUIRE_OK(cuStreamWaitValue32(stream, word_.device(), 1, CU_STREAM_WAIT_VALUE_GEQ));
  }
  ~Gate() {
    open();
    cuCtxSynchronize();
  }
  void open() { word_.store(0, 1); }

 private:
  PinnedWords word_;
};

// The co-scheduled split of the device: fifteen groups and what is left.
struct Split {
  std::vector<CUdevResource> groups;
  CUdevResource rest{};
  explicit Split(unsigned minimum = 8, unsigned flags = 0) : groups(132) {
    CUdevResource whole;
    REQUIRE_OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
    unsigned count = static_cast<unsigned>(groups.size());
    REQUIRE_OK(cuDevSmResourceSplitByCount(groups.data(), &count, &whole, &rest, flags, minimum));
    groups.resize(count);
  }
};

// A green context over some resources, with one stream.
class Green {
 public:
  explicit Green(std::vector<CUdevResource> resources) {
    CUdevResourceDesc descriptor;
    REQUIRE_OK(cuDevResourceGenerateDesc(&descriptor, resources.data(),
                                         static_cast<unsigned>(resources.size())));
    REQUIRE_OK(cuGreenCtxCreate(&green_, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    REQUIRE_OK(cuGreenCtxStreamCreate(&stream_, green_, CU_STREAM_NON_BLOCKING, 0));
    REQUIRE_OK(cuCtxFromGreenCtx(&context_, green_));
  }
  ~Green() {
    cuStreamDestroy(stream_);
    cuGreenCtxDestroy(green_);
  }
  Green(const Green&) = delete;
  Green& operator=(const Green&) = delete;
  CUgreenCtx get() const { return green_; }
  CUstream stream() const { return stream_; }
  CUcontext context() const { return context_; }

 private:
  CUgreenCtx green_ = nullptr;
  CUstream stream_ = nullptr;
  CUcontext context_ = nullptr;
};

}  // namespace vitamin::libcuda_tests
