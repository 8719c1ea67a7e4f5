// SPDX-License-Identifier: Apache-2.0
//
// A device between the runtime and the next one: a test looks at what is asked of it, or spoils it.
#pragma once

#include <memory>

#include "hal/device.h"

namespace vitamin::determinism {

// Asked instead of each queue; the default passes on. Threads: calls on one queue are made by one
// thread at a time (hal/device.h), on several queues by several.
class Between {
 public:
  virtual ~Between() = default;
  virtual void opened(hal::Device&) {}
  virtual void closed(hal::Device&) {}
  // `sms`: of the queue.
  virtual hal::NativeStatus launch(hal::Queue& queue, std::uint32_t /*sms*/,
                                   const hal::KernelLaunch& launch) {
    return queue.launch(launch);
  }
  virtual hal::NativeStatus wait(hal::Queue& queue, hal::Event event) { return queue.wait(event); }
  virtual void ends(hal::Queue&) {}  // before it is destroyed
};

std::unique_ptr<hal::Device> device_between(std::shared_ptr<Between> between,
                                            std::unique_ptr<hal::Device> device);

}  // namespace vitamin::determinism
