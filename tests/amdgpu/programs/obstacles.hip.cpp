// SPDX-License-Identifier: Apache-2.0
//
// Code objects that an interposer cannot read, and streams that it must leave alone.
#include <elf.h>

#include <fstream>
#include <iterator>

#include "program.h"

namespace {

// Removes the notes from the program headers of every code object in `image`. The runtime still
// finds them by their sections; a reader of program headers alone, as a loader is, finds none.
unsigned hide_notes(std::vector<char>& image) {
  unsigned hidden = 0;
  for (std::size_t at = 0; at + sizeof(Elf64_Ehdr) < image.size(); ++at) {
    if (std::memcmp(&image[at], ELFMAG, SELFMAG) != 0) continue;
    Elf64_Ehdr header;
    std::memcpy(&header, &image[at], sizeof header);
    for (unsigned i = 0; i < header.e_phnum; ++i) {
      char* const segment = &image[at + header.e_phoff + i * sizeof(Elf64_Phdr)];
      Elf64_Phdr words;
      std::memcpy(&words, segment, sizeof words);
      if (words.p_type != PT_NOTE) continue;
      words.p_type = PT_NULL;
      std::memcpy(segment, &words, sizeof words);
      ++hidden;
    }
  }
  return hidden;
}

void unreadable_code() {
  std::ifstream file(std::getenv("MODULE_FILE"), std::ios::binary);
  std::vector<char> image{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const unsigned hidden = hide_notes(image);
  hipModule_t module = nullptr;
  hipFunction_t scale = nullptr;
  HIP_OK(hipModuleLoadData(&module, image.data()));
  HIP_OK(hipModuleGetFunction(&scale, module, "scale"));
  constexpr int kLaunches = 100, kCount = 1024;
  DeviceArray<float> values(std::vector<float>(kCount, 1.0f));
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  for (int i = 0; i < kLaunches; ++i) {
    float* data = values.data();
    float by = i % 2 == 0 ? 2.0f : 0.5f;
    int count = kCount;
    void* arguments[] = {&data, &by, &count};
    HIP_OK(hipModuleLaunchKernel(scale, 8, 1, 1, 128, 1, 1, 0, stream, arguments, nullptr));
    by = 0.0f;  // the launch has returned: its arguments must have been copied
    count = 0;
    data = nullptr;
  }
  HIP_OK(hipStreamSynchronize(stream));
  report("kernels of a code object without note headers",
         hidden > 0 && values.host() == std::vector<float>(kCount, 1.0f));
}

__global__ void on_own_mask(int* value) { atomicAdd(value, 1); }
__global__ void elsewhere(int* value) { atomicAdd(value, 1); }

void own_mask() {
  constexpr int kRounds = 40;
  const auto asked = mask_of(16, 24);
  hipStream_t masked = nullptr, plain = nullptr;
  HIP_OK(hipExtStreamCreateWithCUMask(&masked, static_cast<std::uint32_t>(asked.size()),
                                      asked.data()));
  HIP_OK(hipStreamCreateWithFlags(&plain, hipStreamNonBlocking));
  hipEvent_t done = nullptr;
  HIP_OK(hipEventCreateWithFlags(&done, hipEventDisableTiming));
  DeviceArray<int> value(std::vector<int>(1));
  for (int i = 0; i < kRounds; ++i) {
    for (const hipStream_t stream : {masked, plain}) {
      HIP_OK(hipStreamWaitEvent(stream, done, 0));
      if (stream == masked)
        on_own_mask<<<4, 64, 0, stream>>>(value.data());
      else
        elsewhere<<<4, 64, 0, stream>>>(value.data());
      HIP_OK(hipEventRecord(done, stream));
    }
    if (i % 4 == 3) HIP_OK(hipStreamSynchronize(plain));
  }
  HIP_OK(hipDeviceSynchronize());
  // HIP wants room for every CU of the device.
  int cus = 0;
  HIP_OK(hipDeviceGetAttribute(&cus, hipDeviceAttributeMultiprocessorCount, 0));
  auto expected = asked;
  expected.resize(std::max(asked.size(), (static_cast<std::size_t>(cus) + 31) / 32));
  std::vector<std::uint32_t> told(expected.size());
  HIP_OK(hipExtStreamGetCUMask(masked, static_cast<std::uint32_t>(told.size()), told.data()));
  report("launches on a masked stream and on a plain one", value.host()[0] == kRounds * 2 * 4 * 64);
  report("the mask that was asked for", told == expected, bits_of(told));
}

// Masks that make no sense, or only half: whatever the runtime says, and what it then computes.
void odd_masks() {
  constexpr std::uint32_t kAll = 0xffffffff;
  const std::vector<std::vector<std::uint32_t>> masks = {
      {0, 0, 0, 0},                          // no CU
      {kAll, kAll, kAll, kAll, kAll, kAll},  // more than there are
      {1},                                   // half a workgroup processor, where CUs are paired
      {7},                                   // one and a half
  };
  for (const auto& mask : masks) {
    hipStream_t stream = nullptr;
    const hipError_t answer =
        hipExtStreamCreateWithCUMask(&stream, static_cast<std::uint32_t>(mask.size()), mask.data());
    std::printf("%zu words, %08x: %s\n", mask.size(), mask[0], hipGetErrorName(answer));
    if (answer != hipSuccess || mask[0] == 0) continue;  // without a CU a launch hangs its queue
    DeviceArray<int> value(std::vector<int>(1));
    for (int i = 0; i < 5; ++i) on_own_mask<<<4, 64, 0, stream>>>(value.data());
    HIP_OK(hipStreamSynchronize(stream));
    report("launches under it", value.host()[0] == 5 * 4 * 64);
    HIP_OK(hipStreamDestroy(stream));
  }
  hipStream_t stream = nullptr;
  std::printf("no words: %s\n", hipGetErrorName(hipExtStreamCreateWithCUMask(&stream, 0, nullptr)));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks(
      {{"unreadable_code", unreadable_code}, {"own_mask", own_mask}, {"odd_masks", odd_masks}},
      count, arguments);
}
