// SPDX-License-Identifier: Apache-2.0
//
// What every scenario starts from: a device with its primary context current, the test kernels, and
// words of device or page-locked memory. And how a program runs the one that its word names.
#pragma once

#include <atomic>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "driver.h"

using Word = std::uint32_t;
inline constexpr std::uint64_t kMillisecond = 1'000'000;

inline std::string module_image(const char* variable) {
  const char* path = std::getenv(variable);
  std::ifstream file(path != nullptr ? path : "", std::ios::binary);
  std::string image((std::istreambuf_iterator<char>(file)), {});
  if (image.empty()) {
    std::printf("%s names no module\n", variable);
    std::exit(3);
  }
  return image;
}

class Session {
 public:
  explicit Session(int ordinal = 0) {
    check(drv.cuInit(0));
    check(drv.cuDeviceGet(&device, ordinal));
    check(drv.cuDevicePrimaryCtxRetain(&context, device));
    check(drv.cuCtxSetCurrent(context));
    load();
  }
  void load() { check(drv.cuModuleLoadData(&module, module_image("TEST_KERNELS").data())); }
  CUfunction kernel(const char* name) const {
    CUfunction function = nullptr;
    check(drv.cuModuleGetFunction(&function, module, name));
    return function;
  }
  // One launch of one block unless told otherwise. Arguments by value.
  template <class... Args>
  CUresult try_launch(const char* name, CUstream stream, unsigned blocks, unsigned threads,
                      Args... args) const {
    void* pointers[] = {&args..., nullptr};
    return drv.cuLaunchKernel(kernel(name), blocks, 1, 1, threads, 1, 1, 0, stream, pointers,
                              nullptr);
  }
  template <class... Args>
  void launch(const char* name, CUstream stream, Args... args) const {
    check(try_launch(name, stream, 1, 32, args...));
  }
  CUdeviceptr words(std::size_t count, Word value = 0) const {
    CUdeviceptr address = 0;
    check(drv.cuMemAlloc(&address, count * sizeof(Word)));
    check(drv.cuMemsetD32(address, value, count));
    check(drv.cuCtxSynchronize());
    return address;
  }
  std::vector<Word> read(CUdeviceptr address, std::size_t count) const {
    std::vector<Word> words(count);
    check(drv.cuCtxSynchronize());
    check(drv.cuMemcpyDtoH(words.data(), address, count * sizeof(Word)));
    return words;
  }
  Word word(CUdeviceptr address) const { return read(address, 1)[0]; }
  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) const {
    CUstream made = nullptr;
    check(drv.cuStreamCreate(&made, flags));
    return made;
  }
  CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) const {
    CUevent made = nullptr;
    check(drv.cuEventCreate(&made, flags));
    return made;
  }

  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
};

// Page-locked words that host and device both see, and may use at once.
class Pinned {
 public:
  explicit Pinned(std::size_t count) {
    void* memory = nullptr;
    check(drv.cuMemAllocHost(&memory, count * sizeof(Word)));
    words = static_cast<std::atomic<Word>*>(memory);
    for (std::size_t i = 0; i < count; ++i) words[i] = 0;
    check(drv.cuMemHostGetDevicePointer(&device, memory, 0));
  }
  void* host() const { return words; }
  std::atomic<Word>* words = nullptr;
  CUdeviceptr device = 0;
};

using Scenarios = std::map<std::string, void (*)()>;

// All of main(): without a scenario's name, the names.
inline int run_scenario(const Scenarios& scenarios, int count, char** words) {
  const auto scenario = scenarios.find(count == 2 ? words[1] : "");
  if (scenario == scenarios.end()) {
    for (const auto& [name, function] : scenarios) std::printf("%s\n", name.c_str());
    return 64;
  }
  reach_driver();
  scenario->second();
  std::fflush(stdout);
  return 0;
}
