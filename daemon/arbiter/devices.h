// SPDX-License-Identifier: Apache-2.0
//
// The devices that clients told of: each with its lock, its arbiter under the policy that the
// configuration says, and its trace.
//
// vitamind opens no device, and no source says how CUDA cuts one into units, or what a percentage
// of MPS leaves of it to a process. So clients of one UUID that say different things of it (name,
// vendor, processors, units) have different views of it, each with an arbiter of its own: whoever
// says what is not so decides nothing for others, and is kept from nothing, as a process that is
// nobody's client.
//
// The lock of a device is held while somebody uses any view of it. A view that nobody uses stays
// for its figures until there are too many, or another view of the device is in use: drained ones
// and those with a trace are not forgotten for that.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "daemon/metrics/exposition.h"
#include "daemon/protocol/device_lock.h"
#include "daemon/protocol/handshake.h"
#include "daemon/server/placement.h"
#include "daemon/settings.h"
#include "runtime/trace/trace.h"

namespace vitamin::daemon {

struct Device {
  hal::DeviceInfo info;
  unsigned view = 1;                                // of those of this UUID
  std::shared_ptr<protocol::DeviceLock> lock;       // of all views, while there are sessions
  std::unique_ptr<runtime::trace::Recorder> trace;  // null: none
  std::unique_ptr<DeviceArbiter> arbiter;
  std::string policy;
  bool fault_told = false;  // that fifo took the policy's place
  std::uint64_t seed = 0;
  runtime::PoolLimits pool;
  std::size_t sessions = 0;
  uid_t user = 0;               // who came first of those
  std::uint64_t left = 0;       // in the order in which they were left
  Exposition::Labels labels;    // of its metrics
  bool drained = false;         // no new client
  std::uint64_t key = 0;        // in the lease record; 0: that has not been asked yet
  bool touched = false;         // something was said since the last step
  std::uint64_t bounds_ns = 0;  // its clients' bounds were looked at then
};

class Devices {
 public:
  // `epoch`: of this daemon. `outlet`: whom the arbiters answer.
  Devices(const Settings& settings, std::uint32_t epoch, Outlet& outlet);

  // One more session on the device that this client of that user says it has.
  hal::Result<Device*> enter(const protocol::Hello& hello, uid_t user);
  // One less. The device may be gone after that.
  void leave(Device& device);
  // Another configuration, from now on: all of it, or, when some device cannot have it, nothing.
  hal::Status apply(const config::Configuration& configuration);
  // Once, when the policy failed.
  void tell_of_fault(Device& device) const;
  // How many devices there are of that name ("all": every one), which take new clients or do not.
  std::size_t drain(const std::string& which, bool drained);

  bool somebody_waits() const;
  std::uint64_t wake_at() const;

  auto begin() { return known_.begin(); }
  auto end() { return known_.end(); }
  auto begin() const { return known_.begin(); }
  auto end() const { return known_.end(); }

 private:
  using Known = std::map<std::string, Device>;
  hal::Result<std::shared_ptr<protocol::DeviceLock>> lock_of(const hal::DeviceInfo& info);
  // Another one of the same device that has sessions; null: none.
  const Device* other_view(const Device& device) const;
  void tell_of_views(const Device& device) const;
  hal::Result<Device> make(hal::DeviceInfo info);
  hal::Status make_room(uid_t user);
  void start_trace(Device& device, const ArbiterSettings& settings);
  void move_next_to_gpus();

  const Settings& settings_;
  std::uint32_t epoch_;
  Outlet& outlet_;
  std::unique_ptr<Placement> placement_;  // null: there is one NUMA node, or pinning is off
  std::vector<unsigned> allowed_;         // processors that the loop was given
  Known known_;                           // by all that clients say of them
  std::uint64_t left_ = 0;
};

}  // namespace vitamin::daemon
