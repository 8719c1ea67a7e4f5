// SPDX-License-Identifier: Apache-2.0
//
// The devices that clients told of: each with its lock, its arbiter under the policy that the
// configuration says, and its trace. A device stays once it was heard of.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/device_arbiter.h"
#include "daemon/placement.h"
#include "daemon/settings.h"
#include "policies/bounded.h"
#include "protocol/fd.h"
#include "protocol/handshake.h"
#include "runtime/trace.h"

namespace vitamin::daemon {

struct Device {
  hal::DeviceInfo info;
  protocol::Fd lock;
  std::unique_ptr<runtime::trace::Recorder> trace;  // null: none
  std::unique_ptr<DeviceArbiter> arbiter;
  policies::Bounded* bounded = nullptr;  // the arbiter's policy
  std::string policy;
  std::uint64_t seed = 0;
  runtime::PoolLimits pool;
  bool drained = false;  // no new client
  bool touched = false;  // something was said since the last step
};

class Devices {
 public:
  // `epoch`: of this daemon. `outlet`: whom the arbiters answer.
  Devices(const Settings& settings, std::uint32_t epoch, Outlet& outlet);

  // The one that a client uses, made at the first.
  hal::Result<Device*> of(const protocol::Hello& hello);
  // Another configuration, from now on: all of it, or, when some device cannot have it, nothing.
  hal::Status apply(const config::Configuration& configuration);
  // How many devices there are of that name ("all": every one), which take new clients or do not.
  std::size_t drain(const std::string& which, bool drained);

  bool somebody_waits() const;
  std::uint64_t wake_at() const;

  auto begin() { return known_.begin(); }
  auto end() { return known_.end(); }
  auto begin() const { return known_.begin(); }
  auto end() const { return known_.end(); }

 private:
  void start_trace(Device& device, const ArbiterSettings& settings);
  void move_next_to_gpus();

  const Settings& settings_;
  std::uint32_t epoch_;
  Outlet& outlet_;
  std::unique_ptr<Placement> placement_;  // null: there is one NUMA node, or pinning is off
  std::vector<unsigned> allowed_;         // processors that the loop was given
  std::map<std::string, Device> known_;   // by UUID
};

}  // namespace vitamin::daemon
