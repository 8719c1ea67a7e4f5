// SPDX-License-Identifier: Apache-2.0
//
// The software device as a hal::Device: contexts are sets of units, queues are engine queues, a
// KernelHandle is a const KernelDescriptor*, an Event's native is a soft::Event*, a Queue's native
// a soft::Queue*.
//
// Differences from a real device, all on purpose: virtual time (Queue::synchronize advances it and
// answers kStuck where a real one would hang), scripted faults (engine().inject), applications'
// streams are made here (create_stream) because no driver makes them.
#pragma once

#include <cstdint>
#include <memory>

#include "backends/soft/engine.h"
#include "hal/device.h"

namespace vitamin::soft {

// One record of hal::AttributeList as this device reads it: the size and head of CUlaunchAttribute
// and hipLaunchAttribute. Only hashed, for the trace.
struct LaunchAttribute {
  std::uint32_t id = 0;
  std::uint32_t padding = 0;
  unsigned char value[64] = {};
};
static_assert(sizeof(LaunchAttribute) == 72);

// hal::KernelLaunch::extra: pairs (key, pointer) closed by kExtraEnd, as CU_LAUNCH_PARAM_*.
inline constexpr std::uintptr_t kExtraEnd = 0;
inline constexpr std::uintptr_t kExtraBuffer = 1;  // the packed parameters
inline constexpr std::uintptr_t kExtraSize = 2;    // pointer to std::size_t

class Device : public hal::Device {
 public:
  virtual Engine& engine() noexcept = 0;

  // An application's stream, on the whole device. The answer is what adopt_queue takes.
  virtual hal::Result<void*> create_stream(SyncClass sync, int priority = 0) = 0;
  virtual void destroy_stream(void* native_stream) noexcept = 0;
  // The default stream (kLegacy), made with the device.
  virtual void* legacy_stream() noexcept = 0;

  // How often events were asked for through the HAL, and how often the answer was "not yet".
  struct EventQueries {
    std::uint64_t asked = 0, outstanding = 0;
  };
  virtual EventQueries event_queries() const noexcept = 0;
  // hal::DeviceInfo::markers_take_places is false, before a runtime looks at it.
  virtual void keep_places_from_markers() noexcept = 0;
};

hal::Result<std::unique_ptr<Device>> open_device(EngineOptions options = {});

}  // namespace vitamin::soft
