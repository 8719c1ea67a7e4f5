// SPDX-License-Identifier: Apache-2.0
//
// A client process of the simulated node: its sessions, its lanes and their operations.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "daemon/arbiter/lease_record.h"
#include "daemon/client/lease_client.h"

namespace vitamin::tests {

using protocol::GateState;
using protocol::LaneId;
using runtime::kNoPartition;
using runtime::kWholeDevice;
using runtime::PartitionId;
using scheduler::ClientId;

inline constexpr std::size_t kLanes = 3;
inline constexpr std::uint64_t kAnswerWithin = 3'000'000;
inline constexpr std::uint64_t kAfterFaults = 100'000;  // steps
inline constexpr std::size_t kSessions = 64;
inline constexpr std::uint64_t kDevice = 1;

inline const hal::DeviceInfo& device() {
  static const hal::DeviceInfo info{hal::Vendor::kSoftware,   "simulated", "GPU-0", 36,
                                    {4, 4, 4, 4, 4, 4, 4, 8}, 1000};
  return info;
}

struct Operation {
  std::uint64_t number;
  PartitionId partition;
  std::uint64_t ends_ns;
  std::uint64_t epoch;     // of the daemon; 0: fallback work
  bool counted;            // counts as outstanding (runtime::Arbiter::submitted)
  bool shared;             // under a shared grant
  bool contested = false;  // reported, and not adopted or adopted beside other clients
  bool overdue = false;    // a daemon has taken its grant back
};

struct SimulatedLane {
  std::uint64_t left = 0;  // operations not yet submitted
  std::uint64_t next = 1, ended = 0;
  runtime::GrantTerms terms{kNoPartition, 0};
  std::deque<Operation> running;
};

// One session of a client, as the daemon sees it.
struct Session {
  Session(ClientId id_, std::uint64_t process_) : id(id_), process(process_) {}
  ClientId id;
  std::uint64_t process;
  std::size_t slot = daemon::LeaseRecord::kNoSlot;
  protocol::ClientSegment own;
  protocol::DaemonSegment daemons;
  protocol::DaemonEnds rings{daemons, own};
};

// A client process.
struct Client {
  Client(std::uint64_t process_, const runtime::PoolLayout& layout)
      : process(process_),
        leases(std::make_unique<client::LeaseClient>(layout, [this] { rang = true; })) {}
  std::uint64_t process;
  // Sessions with this daemon, the newest last. Older ones were lost, and stay open until all work
  // is reported in the newest.
  std::vector<std::unique_ptr<Session>> sessions;
  std::unique_ptr<Session> lost;  // of a daemon that has ended; mapped until the next session
  std::unique_ptr<client::LeaseClient> leases;
  std::array<SimulatedLane, kLanes> lanes;
  bool rang = false;
  bool alive = true;
  bool attached = false;  // it uses its newest session
  bool reported_dying = false;
  bool excused = false;  // it was stopped or killed: its work may overlap other clients'
  std::uint64_t stopped_until = 0;
  std::uint64_t gone_at = 0;  // of a dead client: when its pidfd becomes readable

  std::uint64_t left() const {
    std::uint64_t sum = 0;
    for (const SimulatedLane& lane : lanes) sum += lane.left + lane.running.size();
    return sum;
  }
  bool has(ClientId id) const {
    for (const auto& session : sessions)
      if (session->id == id) return true;
    return false;
  }
  ClientId id() const { return sessions.back()->id; }  // attached

  // Marks the work of grants that a step of the daemon has taken back as overdue: those that the
  // daemon held `before` the step and not `after` it.
  using Held = std::vector<daemon::DeviceArbiter::GrantStatus>;
  void mark_overdue(const Held& before, const Held& after) {
    for (const auto& held : before) {
      const auto is_same = [&](const auto& other) {
        return other.client == held.client && other.lane == held.lane &&
               other.partition == held.partition;
      };
      if (!has(held.client) || std::any_of(after.begin(), after.end(), is_same)) continue;
      for (Operation& one : lanes[held.lane % kLanes].running)
        one.overdue = one.overdue || one.partition == held.partition;
    }
  }
  // Whether the lane has work there that this daemon and later ones must adopt. They need not adopt
  // overdue work: a later daemon finds no record of it. Nor, on the whole device, what could not be
  // reported before 1.8 (Node::attach()).
  bool must_be_adopted(LaneId lane, PartitionId on) const {
    const std::deque<Operation>& running = lanes[lane % kLanes].running;
    return std::any_of(running.begin(), running.end(), [on](const Operation& one) {
      return one.partition == on && !one.overdue && (on != kWholeDevice || one.epoch != 0);
    });
  }
};

}  // namespace vitamin::tests
