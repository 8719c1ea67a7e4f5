// SPDX-License-Identifier: Apache-2.0
//
// The one GPU of a process: what every entry point of the thunk works on. Made at the first use and
// never destroyed, because the runtime's threads outlive the program's main().
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/soft/amdgpu/event.h"
#include "backends/soft/amdgpu/isa/code.h"
#include "backends/soft/amdgpu/kernel_info.h"
#include "backends/soft/amdgpu/memory.h"
#include "backends/soft/amdgpu/occupancy.h"
#include "backends/soft/amdgpu/queue.h"
#include "backends/soft/amdgpu/settings.h"
#include "backends/soft/amdgpu/trace.h"

namespace vitamin::soft::amdgpu {

struct Device {
  explicit Device(Settings from_environment);

  // True when this call is one that the settings make fail.
  bool fails(FaultPoint point);
  // Every queue reports an exception to the runtime and stops. Later calls fail.
  void lose(const char* why);
  // Creating, destroying or masking one queue unmaps every user queue of the GPU on parts without
  // a micro-engine scheduler, which are all that this device stands for.
  std::uint64_t count_preemption() { return preemptions.fetch_add(1) + 1; }

  const Settings settings;
  const Part& part;
  const std::vector<isa::Place> cus;
  Memory memory;
  Events events;
  isa::CodeCache code;
  KernelInfos kernels;
  Trace trace;
  Occupancy occupancy;
  Queues queues;
  std::atomic<bool> lost{false};
  std::atomic<std::uint64_t> preemptions{0}, dispatches{0}, instructions{0};

 private:
  std::array<std::atomic<std::uint64_t>, kFaultPoints> calls_{};
};

Device& device();

std::uint64_t now_ns();

}  // namespace vitamin::soft::amdgpu
