// SPDX-License-Identifier: Apache-2.0
//
// An NVIDIA device as units, partitions as green contexts (CUDA Driver API, "Green Contexts").
//
// Units: one co-scheduled split of the device, made once. The flag that ignores co-scheduling would
// give finer units but forbids clusters larger than 2 (measured on an H200), which changes what
// runs; it is therefore an option for measurements and never the default. Partitions are green
// contexts over unions of units of that one split; streams are made with the green context's own
// call, which keeps the partition whatever context is current.
#pragma once

#include <memory>
#include <string>

#include "backends/cuda/api.h"
#include "hal/device.h"
#include "hal/open_captures.h"

namespace vitamin::cuda {

struct DeviceOptions {
  CUdevice ordinal = 0;
  CUcontext primary = nullptr;  // retained and active; its streams are the whole device
  // SMs of one unit; 0: the smallest that keeps clusters of 8 (8 on sm_90), wider where that
  // would make more units than a ComputeSet holds.
  unsigned unit_sms = 0;
  bool ignore_coscheduling = false;
  hal::OpenCaptures* open_captures = nullptr;  // of this process; null: never any
  // Where the code of a CUlibrary or CUmodule came from, for the coverage report.
  std::string (*origin_of)(void* library_or_module) = nullptr;
};

hal::Result<std::unique_ptr<hal::Device>> open_device(const Api& api, const DeviceOptions& options);

// The context of a partition, for limits and cache configuration, which are per context.
CUcontext context_of(hal::PhysicalContext& partition);

}  // namespace vitamin::cuda
