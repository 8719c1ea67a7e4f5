// SPDX-License-Identifier: Apache-2.0
//
// An AMD device as units (mask_plan.h), partitions as CU-masked streams.
//
// Kernel handles are `const Kernel*` (kernel.h). A context costs nothing; each of its queues is a
// hardware queue of its own, which is scarce: info().pool_queues_max says how many there may be.
//
// Masked streams are *blocking* streams (hipExtStreamCreateWithCUMask takes no flags): the runtime
// orders them with the real NULL stream, both ways, and hipStreamQuery of the NULL stream looks at
// them. So what an application asks about its streams is answered from markers, never from theirs.
//
// Every call of HIP replaces the thread's last error, which the application may ask for
// (hipGetLastError): the interposer answers that from its own memory.
#pragma once

#include <memory>
#include <string>

#include "backends/hip/api.h"
#include "backends/hip/kernel.h"
#include "backends/hip/settings.h"
#include "hal/device.h"
#include "hal/open_captures.h"

namespace vitamin::hip {

struct DeviceOptions {
  int ordinal = 0;  // as hipSetDevice counts
  // Compute queues that this process may hold on the device, the application's own included.
  unsigned queue_budget = 8;
  // Where all processes keep count of those that they hold together (queue_ledger.h); empty: each
  // process knows of itself only.
  std::string lock_directory = {};
  Settings settings = Settings::of_process();
  hal::OpenCaptures* open_captures = nullptr;  // of this process; null: never any
  // Told a sentence for a person, at most once each: what the user's settings cost, a queue that
  // could not be created. Any thread. Null: no sentence is told.
  void (*notice)(const char* sentence) = nullptr;
};

// kUnavailable: no such device.
hal::Result<std::unique_ptr<hal::Device>> open_device(const Api& api, const DeviceOptions& options);

}  // namespace vitamin::hip
