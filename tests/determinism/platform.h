// SPDX-License-Identifier: Apache-2.0
//
// What the suite needs of a backend besides the HAL: the suite is one source, each backend's test
// program links it with a platform of its own (soft_platform.cpp, tests/cuda, tests/hip).
//
// Errors: thrown as std::runtime_error with a sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include "hal/device.h"

namespace vitamin::determinism {

template <class Value>
Value needed(hal::Result<Value> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

// One opened device with its memory. Must outlive what is made of its device.
class Platform {
 public:
  virtual ~Platform() = default;
  // Once.
  virtual std::unique_ptr<hal::Device> take_device() = 0;
  virtual hal::KernelHandle kernel(const std::string& name) = 0;
  virtual std::uint64_t allocate(std::size_t bytes) = 0;  // for the life of the platform
  virtual void read(void* to, std::uint64_t from, std::size_t bytes) = 0;
  // An application's stream that takes no part in the legacy stream's order.
  virtual void* make_stream() = 0;
  virtual void* legacy_stream() = 0;
  // The device finishes everything; a runtime above it does not learn of it.
  virtual void settle() = 0;
  // Moves a device in virtual time on; empty: time passes by itself.
  virtual std::function<void()> idle() { return {}; }
};
// `seed`: of the order in which the device does what may be done in any order, where that can be
// chosen.
std::unique_ptr<Platform> make_platform(std::uint64_t seed);

// How much of the suite a continuous integration run has time for. A device in real time takes
// seconds for what one in virtual time does at once.
struct Effort {
  unsigned trials;           // of each subject under each treatment
  unsigned drift_trials;     // the same, where launches are reshaped
  unsigned every_partition;  // of the pool's partitions every so many-th
  unsigned every_other;      // of other lists of treatments every so many-th
  bool seeded;               // the platform heeds its seed
};
Effort effort();

}  // namespace vitamin::determinism
