// SPDX-License-Identifier: Apache-2.0
//
// The contract of every backend. Device, PhysicalContext, Queue and Event, in this file, execute
// work; KernelInspector (kernel_inspector.h) describes kernels, ErrorClassifier
// (error_classifier.h) explains status codes.
//
// Threads. Every function may be called from any thread. launch(), record(), wait() and query() of
// one Queue are called under the device lock; a backend need not lock them against each other.
// synchronize(), and the vendor's calls that the runtime makes on native(), run without that lock
// and at the same time as those.
// Order. A Queue is in order. Work of two queues is ordered by Queue::wait only.
// Errors. Set-up calls return Result; calls on the launch path return the vendor's own code,
// which Device::errors() explains. Nothing throws, logs or exits.
// Ownership. The creator of an object destroys it; a PhysicalContext must outlive its queues, the
// Device everything.
// Validation. The runtime checks descriptor compatibility, dependencies and grants before it
// calls; backends do not check them again. Set-up calls check their arguments: create_context()
// returns kInvalidArgument for units that the device does not have.
//
// One split. A Device splits itself into units exactly once, when it is opened; contexts name units
// by index (CUDA: "resources must be outputs of the same split API instance",
// cuDevResourceGenerateDesc), so a set of units of two splits cannot be expressed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hal/compute_set.h"
#include "hal/error_classifier.h"
#include "hal/kernel_inspector.h"
#include "hal/operation.h"
#include "hal/result.h"

namespace vitamin::hal {

enum class Vendor : std::uint8_t { kSoftware, kNvidia, kAmd };

struct DeviceInfo {
  Vendor vendor = Vendor::kSoftware;
  std::string name;
  std::string uuid;       // as the vendor prints it
  std::uint32_t sms = 0;  // SMs or CUs of the whole device
  std::vector<std::uint32_t>
      sms_per_unit;  // one element for each unit; its index is the bit of a ComputeSet
  // Launches, copies and fills that a queue takes before the driver blocks the caller. The runtime
  // submits no more than these.
  std::uint32_t queue_depth = 900;
  // True: measured on this kind of device: natively the caller is blocked a few operations later,
  // so it may be blocked here. False: a guess that is low enough.
  bool queue_depth_measured = false;
  // Whether event records and waits for events count towards queue_depth, too.
  bool markers_take_places = true;
  // A launch counts towards queue_depth once for each so many bytes of its parameters, rounded up;
  // 0: once, whatever its parameters.
  std::uint32_t parameter_bytes_of_place = 0;
  // The most queues of partitions that one process should hold at a time, where each is a scarce
  // hardware queue (AMD); 0: no limit.
  std::uint32_t pool_queues_max = 0;
  // PhysicalContext::create_queue applies its priority.
  bool pool_priorities = true;
  // The runtime's native handle of the legacy default stream is that stream itself, so the driver
  // orders work on it with the application's blocking streams.
  bool driver_orders_legacy_stream = true;

  unsigned units() const { return static_cast<unsigned>(sms_per_unit.size()); }
  std::uint32_t sms_of(ComputeSet set) const {
    std::uint32_t sum = 0;
    for (unsigned unit = 0; unit < units(); ++unit)
      if (set.has(unit)) sum += sms_per_unit[unit];
    return sum;
  }
};

// A native event: a cheap value that can be recorded many times. A wait is for the record that is
// newest when the wait is made, so a handle may be re-recorded while older waits are pending.
struct Event {
  void* native = nullptr;
  explicit operator bool() const { return native != nullptr; }
};

// One in-order physical queue.
class Queue {
 public:
  // What was submitted is carried out all the same. For a queue that was created, not adopted, the
  // call may wait for that (HIP), so it is made without the device lock.
  virtual ~Queue() = default;
  // The vendor's stream handle, for calls that the HAL does not have (copies, fills).
  virtual void* native() const noexcept = 0;
  virtual NativeStatus launch(const KernelLaunch& launch) noexcept = 0;
  virtual NativeStatus record(Event event) noexcept = 0;
  virtual NativeStatus wait(Event event) noexcept = 0;  // device-side; returns at once
  virtual NativeStatus query() noexcept = 0;            // kNotReady while work is outstanding
  virtual NativeStatus synchronize() noexcept = 0;      // blocks the host
};

// One ComputeSet made usable. Holds no application state.
class PhysicalContext {
 public:
  virtual ~PhysicalContext() = default;
  virtual ComputeSet compute() const noexcept = 0;
  virtual std::uint32_t sms() const noexcept = 0;
  // Never on the launch path (1-2 ms on an H200). Priority: the vendor's number, 0 is default.
  virtual Result<std::unique_ptr<Queue>> create_queue(int priority) = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const noexcept = 0;
  // Both references are valid until the device is destroyed.
  virtual KernelInspector& inspector() noexcept = 0;
  virtual const ErrorClassifier& errors() const noexcept = 0;

  virtual Result<std::unique_ptr<PhysicalContext>> create_context(ComputeSet compute) = 0;
  // Wraps a stream of the application (whole device). Does not own the native stream.
  virtual std::unique_ptr<Queue> adopt_queue(void* native_stream) = 0;
  // How many queues of partitions this process should hold now: fewer than pool_queues_max while
  // other processes on the device need some. Slow; never on the launch path. Without meaning
  // where pool_queues_max is 0.
  virtual std::uint32_t pool_queues_now() { return info().pool_queues_max; }
  // Creates a stream on the whole device that synchronises with the legacy default stream as an
  // ordinary blocking stream does. The runtime uses it in place of a thread's per-thread default
  // stream, whose handle means another stream on every other thread.
  virtual Result<std::unique_ptr<Queue>> create_whole_queue(int priority) = 0;

  virtual Result<Event> create_event() = 0;        // no timing
  virtual Result<Event> create_timed_event() = 0;  // for elapsed()
  // Also before its newest record has fired; waits that were made for it stay.
  virtual void destroy_event(Event event) noexcept = 0;
  virtual NativeStatus query(Event event) noexcept = 0;        // kNotReady until it has fired
  virtual NativeStatus synchronize(Event event) noexcept = 0;  // blocks the host
  // Device time between the newest records of two timed events, as precise as the vendor's clock
  // is. Where one has not fired, kNotReady; then, and after an error, `ns` has no meaning.
  virtual NativeStatus elapsed(Event from, Event to, double& ns) noexcept = 0;

  // Memory of the device that no process has allocated, in bytes; 0: unknown.
  virtual std::uint64_t free_bytes() noexcept { return 0; }

  // Called once by each thread that the runtime starts, before any other call: some vendors' calls
  // depend on the thread's current context or device.
  virtual void attach_thread() noexcept {}
  // Between the two, calls of the runtime (not of the application) on this thread are legal even
  // while another thread of the process captures a graph. Nests.
  virtual void enter_internal() noexcept = 0;
  virtual void leave_internal() noexcept = 0;
};

}  // namespace vitamin::hal
