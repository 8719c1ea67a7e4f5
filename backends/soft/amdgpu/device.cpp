// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/device.h"

#include <cstdio>
#include <ctime>

#include "backends/soft/amdgpu/thunk.h"

namespace vitamin::soft::amdgpu {

Device::Device(Settings from_environment)
    : settings(std::move(from_environment)),
      part(*settings.part),
      cus(mask_order(part)),
      code(part.name, part.preserves_halves,
           [this](std::uint64_t address) {
             const auto found = memory.find(address);
             return found ? isa::CodeCache::Extent{found->begin, found->bytes}
                          : isa::CodeCache::Extent{};
           }),
      trace(settings.trace),
      occupancy(settings.ledger, part.cus()) {}

bool Device::fails(FaultPoint point) {
  const auto index = static_cast<std::size_t>(point);
  const std::uint64_t call = calls_[index].fetch_add(1) + 1;
  for (const ScriptedFault& fault : settings.faults)
    if (fault.point == point && call >= fault.first && call <= fault.last) return true;
  return false;
}

void Device::lose(const char* why) {
  if (lost.exchange(true)) return;
  std::fprintf(stderr, "software AMD GPU: the device is lost: %s\n", why);
  trace.line("lost reason=%s", why);
}

// Leaked on purpose. What must be said at the end is said from a destructor function, which runs
// while the runtime's threads still wait on the device.
Device& device() {
  static Device* const instance = new Device(read_settings());
  return *instance;
}

std::uint64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

namespace {

std::atomic<bool> opened{false};

__attribute__((destructor)) void summarise() {
  if (!opened.load()) return;
  Device& gpu = device();
  gpu.trace.line(
      "summary dispatches=%llu instructions=%llu queues=%llu masks=%llu preemptions=%llu "
      "shared_cus=%u",
      static_cast<unsigned long long>(gpu.dispatches.load()),
      static_cast<unsigned long long>(gpu.instructions.load()),
      static_cast<unsigned long long>(gpu.queues.created()),
      static_cast<unsigned long long>(gpu.queues.masks_set()),
      static_cast<unsigned long long>(gpu.preemptions.load()), gpu.occupancy.shared_cus());
}

}  // namespace
}  // namespace vitamin::soft::amdgpu

VITAMIN_THUNK hsaKmtOpenKFD() {
  vitamin::soft::amdgpu::Device& gpu = vitamin::soft::amdgpu::device();
  if (!vitamin::soft::amdgpu::opened.exchange(true))
    gpu.trace.line("open part=%s cus=%u", gpu.part.name, gpu.part.cus());
  return gpu.lost ? HSAKMT_STATUS_KERNEL_IO_CHANNEL_NOT_OPENED : HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtCloseKFD() { return HSAKMT_STATUS_SUCCESS; }
