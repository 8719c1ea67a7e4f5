// SPDX-License-Identifier: Apache-2.0
//
// The devices that clients have reported: each with its lock, an arbiter under the configured
// policy, and a trace.
//
// vitamind opens no device, and no system interface tells how CUDA divides one into units, or what
// an MPS thread percentage leaves of it to a process. So clients that describe one UUID differently
// (name, vendor, SM count, units) have different views of it, each with its own arbiter. A client
// with a wrong description affects no client of another view, and no lease of another view
// restrains it: it is in the position of a process that is not a client.
//
// Each isolation domain (daemon/config/isolation.h) has views of its own, too: contexts of two
// domains are never on the device at once, so leases of one do not concern the other.
//
// The lock of a device is held while any of its views has sessions. A view without sessions is kept
// for its metrics until there are too many, or until another view of the device is in use; drained
// views and views with a trace are always kept.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "daemon/arbiter/numa_binding.h"
#include "daemon/metrics/prometheus_text.h"
#include "daemon/protocol/device_lock.h"
#include "daemon/protocol/handshake.h"
#include "daemon/settings.h"
#include "runtime/trace/trace.h"

namespace vitamin::daemon {

struct ServedDevice {
  hal::DeviceInfo info;
  std::string domain;                               // isolation domain; empty: the shared one
  bool of_process = false;                          // the domain of one process
  unsigned view = 1;                                // number among the views of UUID and domain
  std::shared_ptr<protocol::DeviceLock> lock;       // shared by all views; null: no sessions
  std::unique_ptr<runtime::trace::Recorder> trace;  // null: none
  std::unique_ptr<DeviceArbiter> arbiter;
  std::string policy;
  bool fault_reported = false;  // that fifo has replaced the policy
  std::uint64_t seed = 0;
  runtime::PoolLimits pool;
  std::size_t sessions = 0;
  uid_t user = 0;                 // of the first of these sessions
  std::uint64_t left = 0;         // orders devices by when their last session ended
  PrometheusText::Labels labels;  // of its metrics
  bool drained = false;           // admits no new client
  std::uint64_t key = 0;          // in the lease record; 0: the record was not read for it yet
  bool touched = false;           // the arbiter was called since its last step()
  std::uint64_t bounds_ns = 0;    // when its clients' latency bounds were checked last
};

class Devices {
 public:
  // `epoch`: of this daemon. `sink`: receives the arbiters' answers; must outlive this object.
  Devices(const Settings& settings, std::uint32_t epoch, GrantSink& sink);

  // Counts a session on the device that a client of this user describes. The device is valid until
  // end_session(). `domain`: of the client. The error is a sentence for the user.
  hal::Result<ServedDevice*> begin_session(const protocol::Hello& hello, uid_t user,
                                           const std::string& domain = {});
  // May destroy the device.
  void end_session(ServedDevice& device);
  // Applies another configuration: all of it, or nothing if some device cannot take it.
  hal::Status apply(const config::Configuration& configuration);
  // Logs, once, that the policy has failed.
  void report_policy_fault(ServedDevice& device) const;
  // Sets whether the devices of this UUID ("all": every device) admit no new client. Returns how
  // many devices that were.
  std::size_t drain(const std::string& which, bool drained);

  // Whether some stream waits for another client to return a grant.
  bool waits_for_answer() const;
  std::uint64_t wake_at() const;

  auto begin() { return known_.begin(); }
  auto end() { return known_.end(); }
  auto begin() const { return known_.begin(); }
  auto end() const { return known_.end(); }

 private:
  using Known = std::map<std::string, ServedDevice>;
  hal::Result<std::shared_ptr<protocol::DeviceLock>> lock_of(const hal::DeviceInfo& info);
  // Another view of the same device in the same domain that has sessions; null: none.
  const ServedDevice* other_view(const ServedDevice& device) const;
  void warn_of_other_view(const ServedDevice& device) const;
  hal::Result<ServedDevice> make(hal::DeviceInfo info, const std::string& domain);
  hal::Status make_room(uid_t user, const std::string& domain);
  void start_trace(ServedDevice& device, const ArbiterSettings& settings);
  void pin_near_gpus();

  const Settings& settings_;
  std::uint32_t epoch_;
  GrantSink& sink_;
  std::unique_ptr<NumaBinding> numa_;  // null: there is one NUMA node, or pinning is off
  std::vector<unsigned> allowed_;      // CPUs that the loop may run on
  Known known_;                        // by key_of() their description
  std::uint64_t left_ = 0;
};

}  // namespace vitamin::daemon
