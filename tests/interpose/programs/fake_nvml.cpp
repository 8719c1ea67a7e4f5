// SPDX-License-Identifier: Apache-2.0
//
// A fake libnvidia-ml of one device. The environment says what it answers:
//   FAKE_NVML_UUID   its UUID
//   FAKE_NVML_USED   bytes in use, of 16 GiB and 600 MiB of the driver's own
//   FAKE_NVML_PROCESSES  what processes have: "PROCESS:BYTES,PROCESS:BYTES"
//   FAKE_NVML_MPS    what clients of MPS have, likewise
#include <cstdio>
#include <cstdlib>

#define FAKE_NVML_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr unsigned long long kTotal = 16ULL << 30;
constexpr unsigned long long kReserved = 600ULL << 20;
unsigned long long in_use() {
  const char* const text = std::getenv("FAKE_NVML_USED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}
constexpr int kInvalidArgument = 2, kTooSmall = 7, kVersionMismatch = 25;

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
  *count = 1;
  return 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index != 0) return kInvalidArgument;
  *device = device;
  return 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetUUID(void*, char* text, unsigned room) {
  const char* const uuid = std::getenv("FAKE_NVML_UUID");
  std::snprintf(text, room, "%s", uuid != nullptr ? uuid : "GPU-none");
  return 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetMemoryInfo(void*, FakeMemory* memory) {
  *memory = {kTotal + kReserved, kTotal - in_use(), in_use() + kReserved};
  return 0;
}
FAKE_NVML_EXPORT int nvmlDeviceGetMemoryInfo_v2(void*, FakeMemoryV2* memory) {
  if (memory->version != (sizeof *memory | 2U << 24)) return kVersionMismatch;
  *memory = {memory->version, kTotal + kReserved, kReserved, kTotal - in_use(), in_use()};
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
