// SPDX-License-Identifier: Apache-2.0
//
// What every ioctl works on: the GPUs that a process sees, and what they have in
// common. Made at the first use and never destroyed, because the runtime's threads outlive the
// program's main().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/soft/amdgpu/event.h"
#include "backends/soft/amdgpu/hardware_queues.h"
#include "backends/soft/amdgpu/isa/code.h"
#include "backends/soft/amdgpu/kernel_info.h"
#include "backends/soft/amdgpu/memory.h"
#include "backends/soft/amdgpu/occupancy.h"
#include "backends/soft/amdgpu/queue.h"
#include "backends/soft/amdgpu/settings.h"
#include "backends/soft/amdgpu/trace.h"

namespace vitamin::soft::amdgpu {

// Of the machine and of each GPU.
constexpr std::uint64_t kSystemBytes = 16ull << 30, kVideoBytes = 8ull << 30;

// One GPU, as far as it is not like the others. They all reach all memory of the process.
struct Gpu {
  Gpu(unsigned its_number, const Settings& settings);

  // Creating, destroying or masking one queue unmaps every user queue of the GPU, on parts before
  // gfx11. On gfx11 Linux schedules queues by the micro-engine scheduler (MES), which unmaps that
  // queue only; the calls are counted alike.
  std::uint64_t count_preemption() { return preemptions.fetch_add(1) + 1; }

  const unsigned number;  // from 0; its node is one more
  Occupancy occupancy;
  isa::GridBarrier barrier;  // one resource of the GPU; grids that use it run one at a time
  HardwareQueues hardware_queues;
  std::atomic<bool> lost{false};
  std::atomic<std::uint64_t> turns{0};  // that ended although there was more to run
  std::atomic<std::uint64_t> preemptions{0}, queues{0}, masks{0}, dispatches{0}, instructions{0};
};

struct Machine {
  explicit Machine(Settings from_environment);

  // True when this call is one that the settings make fail.
  bool fails(FaultPoint point);
  // Every queue of the GPU reports an exception to the runtime and stops. Later calls fail.
  void lose(Gpu& gpu, const char* why);

  const Settings settings;
  const Part& part;
  const std::vector<isa::WorkgroupPlace> cus;
  std::vector<std::unique_ptr<Gpu>> gpus;
  Memory memory;
  Events events;
  isa::CodeCache code;
  KernelInfos kernels;
  PacketLog trace;
  Queues queues;

 private:
  std::array<std::atomic<std::uint64_t>, kFaultPoints> calls_{};
};

Machine& machine();

// The first time that the device is opened, the trace says so; then a summary ends it.
void note_opened(Machine& machine);

std::uint64_t now_ns();

}  // namespace vitamin::soft::amdgpu
