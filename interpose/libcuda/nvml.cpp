// SPDX-License-Identifier: Apache-2.0
//
// NVML's answers to how much memory a device has, within the quotas of this process. Programs
// (PyTorch, pynvml and what uses it) open libnvidia-ml and look its functions up by dlsym, which
// leads here; a program that links it is answered natively. CUDA is not touched: a process that
// asks NVML may have reasons not to initialise it, such as a fork to come.
#include <atomic>
#include <cstring>

#include "interpose/entry_points.h"
#include "interpose/libcuda/memory.h"

namespace vitamin::interpose {
namespace {

// As nvml.h has them, in every version so far.
using NvmlDevice = struct nvmlDevice_st*;
using NvmlStatus = int;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlMemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kVersion2 = sizeof(NvmlMemoryV2) | 2U << 24;
constexpr unsigned kUuidRoom = 96;

// Of the library that was asked first.
constinit std::atomic<NvmlStatus (*)(NvmlDevice, NvmlMemory*)> memory_v1{nullptr};
constinit std::atomic<NvmlStatus (*)(NvmlDevice, NvmlMemoryV2*)> memory_v2{nullptr};
constinit std::atomic<NvmlStatus (*)(NvmlDevice, char*, unsigned)> uuid_of{nullptr};

template <class Function>
bool keep(std::atomic<Function>& real, void* found) {
  Function none = nullptr;
  const auto function = reinterpret_cast<Function>(found);
  return real.compare_exchange_strong(none, function) || none == function;
}

// Null: nothing bounds the device. A part of one (MIG) has another UUID than CUDA says.
DeviceQuotas* quotas_of(NvmlDevice device, std::uint64_t total) {
  char uuid[kUuidRoom] = "";
  if (no_quotas() || uuid_of.load()(device, uuid, sizeof uuid) != 0 ||
      std::strncmp(uuid, "GPU-", 4) != 0)
    return nullptr;
  return quotas_of(MemoryFacts{uuid, total});
}

// `reserved` is the driver's own and no part of what CUDA calls the total.
void bound(NvmlDevice device, std::uint64_t reserved, unsigned long long& total,
           unsigned long long& free, unsigned long long& used) {
  const DeviceQuotas::View real{total - reserved, free};
  DeviceQuotas* const quotas = quotas_of(device, real.total);
  if (quotas == nullptr) return;
  if (pools_may_shrink.load(std::memory_order_relaxed)) settle_pools();
  const DeviceQuotas::View view = quotas->bounded(real);
  used += real.free - view.free;
  used -= real.total - view.total;
  total = view.total + reserved;
  free = view.free;
}

NvmlStatus bounded_v2(NvmlDevice device, NvmlMemoryV2* memory) {
  const NvmlStatus answer = memory_v2.load()(device, memory);
  if (answer == 0 && !passes_natively())
    bound(device, memory->reserved, memory->total, memory->free, memory->used);
  return answer;
}

NvmlStatus bounded_v1(NvmlDevice device, NvmlMemory* memory) {
  const NvmlStatus answer = memory_v1.load()(device, memory);
  if (answer != 0 || passes_natively()) return answer;
  NvmlMemoryV2 whole{};
  whole.version = kVersion2;
  auto* const ask = memory_v2.load();
  const std::uint64_t reserved = ask != nullptr && ask(device, &whole) == 0 ? whole.reserved : 0;
  bound(device, reserved, memory->total, memory->free, memory->used);
  return answer;
}

}  // namespace

void* management_override(void* found, const char* name,
                          const std::function<void*(const char*)>& other) {
  constexpr const char* kV2 = "nvmlDeviceGetMemoryInfo_v2";
  const bool first = std::strcmp(name, kV2) != 0;
  void* const uuid = other("nvmlDeviceGetUUID");
  if (uuid == nullptr || !keep(uuid_of, uuid)) return found;
  if (!first) return keep(memory_v2, found) ? reinterpret_cast<void*>(&bounded_v2) : found;
  if (void* const second = other(kV2)) static_cast<void>(keep(memory_v2, second));
  return keep(memory_v1, found) ? reinterpret_cast<void*>(&bounded_v1) : found;
}

}  // namespace vitamin::interpose
