// SPDX-License-Identifier: Apache-2.0
//
// A fake libnvidia-ml. The environment says what it answers, of each device in turn, separated by
// commas; the number of UUIDs is that of devices:
//   FAKE_NVML_UUID   its UUID
//   FAKE_NVML_USED   bytes in use, of 16 GiB and 600 MiB of the driver's own
// Of any device:
//   FAKE_NVML_PROCESSES  what processes have: "PROCESS:BYTES,PROCESS:BYTES"
//   FAKE_NVML_MPS    what clients of MPS have, likewise
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#define FAKE_NVML_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr unsigned long long kTotal = 16ULL << 30;
constexpr unsigned long long kReserved = 600ULL << 20;
std::vector<std::string> words_of(const char* variable, const char* without) {
  const char* const text = std::getenv(variable);
  std::istringstream list(text != nullptr ? text : without);
  std::vector<std::string> words;
  for (std::string word; std::getline(list, word, ',');) words.push_back(word);
  return words;
}
std::vector<std::string> uuids() { return words_of("FAKE_NVML_UUID", "GPU-none"); }

// A handle is the number of a device, from 1.
std::uintptr_t number_of(const void* device) { return reinterpret_cast<std::uintptr_t>(device); }
unsigned long long in_use(const void* device) {
  const auto words = words_of("FAKE_NVML_USED", "");
  const std::uintptr_t number = number_of(device);
  return number <= words.size() ? std::strtoull(words[number - 1].c_str(), nullptr, 10) : 0;
}
constexpr int kInvalidArgument = 2, kNotFound = 6, kTooSmall = 7, kVersionMismatch = 25;

}  // namespace

struct FakeProcess {
  unsigned process;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
};
struct FakeMemory {
  unsigned long long total, free, used;
};
struct FakeMemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

FAKE_NVML_EXPORT int nvmlInit_v2() { return 0; }
FAKE_NVML_EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(uuids().size());
  return 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= uuids().size()) return kInvalidArgument;
  *device = reinterpret_cast<void*>(std::uintptr_t{index} + 1);
  return 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  const auto known = uuids();
  for (unsigned i = 0; i < known.size(); ++i)
    if (known[i] == uuid) return nvmlDeviceGetHandleByIndex_v2(i, device);
  return kNotFound;
}
FAKE_NVML_EXPORT int nvmlDeviceGetUUID(void* device, char* text, unsigned room) {
  std::snprintf(text, room, "%s", uuids().at(number_of(device) - 1).c_str());
  return 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetMemoryInfo(void* device, FakeMemory* memory) {
  const unsigned long long used = in_use(device);
  *memory = {kTotal + kReserved, kTotal - used, used + kReserved};
  return 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetMemoryInfo_v2(void* device, FakeMemoryV2* memory) {
  if (memory->version != (sizeof *memory | 2U << 24)) return kVersionMismatch;
  const unsigned long long used = in_use(device);
  *memory = {memory->version, kTotal + kReserved, kReserved, kTotal - used, used};
  return 0;
}
static int list_processes(const char* variable, unsigned* count, FakeProcess* processes) {
  const unsigned room = *count;
  *count = 0;
  const char* at = std::getenv(variable);
  while (at != nullptr && *at != '\0') {
    char* end = nullptr;
    const auto process = static_cast<unsigned>(std::strtoul(at, &end, 10));
    const unsigned long long bytes = std::strtoull(end + 1, &end, 10);
    if (*count < room) processes[*count] = {process, bytes, ~0U, ~0U};
    ++*count;
    at = *end == ',' ? end + 1 : end;
  }
  return *count > room ? kTooSmall : 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count,
                                                             FakeProcess* processes) {
  return list_processes("FAKE_NVML_PROCESSES", count, processes);
}
FAKE_NVML_EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void*, unsigned* count,
                                                                FakeProcess* processes) {
  return list_processes("FAKE_NVML_MPS", count, processes);
}
