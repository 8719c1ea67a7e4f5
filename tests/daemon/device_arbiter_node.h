// SPDX-License-Identifier: Apache-2.0
//
// For tests: the arbiter of a small device, which keeps its answers.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "runtime/demand.h"
#include "scheduler/policies/registry.h"

namespace vitamin::daemon {

using protocol::GateState;

inline const hal::DeviceInfo kInfo{hal::Vendor::kSoftware, "d", "GPU-0", 16, {4, 4, 4, 4}, 1000};

inline scheduler::Policy replanned_always(std::string_view name,
                                          std::unique_ptr<scheduler::AllocationPolicy> allocation) {
  scheduler::Policy policy;
  policy.description.name = name;
  policy.description.may_starve = policy.description.uses_steps = true;
  policy.description.uses_returns = policy.description.uses_streams = true;
  policy.allocation = std::move(allocation);
  return policy;
}

// Gives one partition to one client after the other; the others wait.
class OnePartition final : public scheduler::AllocationPolicy {
 public:
  OnePartition(hal::ComputeSet units, std::uint64_t quantum)
      : units_(units), quantum_ns_(quantum) {}
  void allocate(const scheduler::Snapshot& snapshot, scheduler::Allocation& out) override {
    const auto longest = [&](ClientId but) {
      ClientId found = scheduler::kNoClient;
      std::uint64_t since = kNever;
      for (const scheduler::Client& client : snapshot.clients)
        for (const scheduler::StreamDemand& stream : client.streams)
          if (client.id != but && stream.state == scheduler::StreamDemand::State::kWaiting &&
              stream.waiting_since_ns < since)
            found = client.id, since = stream.waiting_since_ns;
      return found;
    };
    const scheduler::Client* const holder = snapshot.find(holder_);
    const ClientId next = longest(holder_);
    if (holder != nullptr &&
        std::none_of(holder->streams.begin(), holder->streams.end(), [](const auto& stream) {
          return stream.state == scheduler::StreamDemand::State::kRunning;
        }))
      since_ns_ = snapshot.now_ns;  // it has not begun to run
    if (holder == nullptr || holder->streams.empty() ||
        (next != scheduler::kNoClient && snapshot.now_ns - since_ns_ >= quantum_ns_)) {
      holder_ = next;
      since_ns_ = snapshot.now_ns;
    }
    if (holder_ == scheduler::kNoClient) return;
    scheduler::Row& row = out.rows.emplace_back();
    row.client = holder_;
    row.mode = scheduler::Mode::kExclusive;
    for (const scheduler::Partition& partition : snapshot.pool.subspan(1))
      if (partition.compute == units_) row.partition = partition.id;
    if (longest(holder_) != scheduler::kNoClient) out.wake_ns = since_ns_ + quantum_ns_;
  }

 private:
  hal::ComputeSet units_;
  std::uint64_t quantum_ns_, since_ns_ = 0;
  ClientId holder_ = scheduler::kNoClient;
};

class Node : public daemon::GrantSink {
 public:
  explicit Node(std::uint64_t units, std::uint64_t quantum = 1000)
      : Node(replanned_always("one-partition",
                              std::make_unique<OnePartition>(hal::ComputeSet(units), quantum))) {}
  explicit Node(const std::string& policy, const hal::DeviceInfo& info = kInfo) : Node(info) {
    arbiter.use(std::move(*scheduler::make(policy, arbiter.context(1))));
  }
  explicit Node(scheduler::Policy policy, const hal::DeviceInfo& info = kInfo) : Node(info) {
    arbiter.use(std::move(policy));
  }
  explicit Node(const hal::DeviceInfo& info)
      : layout(runtime::PoolLayout::build(info)),
        settings{{.replan_least_ns = 1}, 10'000, 100'000},
        arbiter(layout, settings, 7, *this) {}

  void set_word(ClientId, LaneId lane, protocol::LeaseWord word) override { words[lane] = word; }
  bool grant(ClientId client, const protocol::Grant& grant) override {
    if (full) return false;
    grants.push_back({client, grant});
    given.push_back({client, grant});
    return true;
  }
  void gates_closed(ClientId) override { ++closed; }

  void wants(ClientId client, std::uint32_t sms = 1, bool moves_on = false) {
    protocol::Ready ready;
    ready.sms = sms;
    ready.moves_on = moves_on ? 1 : 0;
    arbiter.request(client, ready, now);
    arbiter.step(now);
  }
  // Returns the client's closed grant on the partition.
  void returns_closed(ClientId client, PartitionId partition) {
    for (const auto& [to, grant] : given)
      if (to == client && grant.partition == partition) last_word[{to, partition}] = grant.word;
    protocol::Returned returned;
    returned.word = last_word[{client, partition}];
    returned.partition = partition;
    arbiter.request(client, returned, now);
    arbiter.step(now);
  }
  void returns(ClientId client, const protocol::Grant& grant) {
    protocol::Returned returned;
    returned.word = grant.word;
    returned.partition = grant.partition;
    arbiter.request(client, returned, now);
    arbiter.step(now);
  }

  runtime::PoolLayout layout;
  daemon::ArbiterSettings settings;
  daemon::DeviceArbiter arbiter;
  std::map<LaneId, protocol::LeaseWord> words;
  std::vector<std::pair<ClientId, protocol::Grant>> grants;
  std::vector<std::pair<ClientId, protocol::Grant>> given;  // never cleared
  std::map<std::pair<ClientId, PartitionId>, protocol::LeaseWord> last_word;
  int closed = 0;
  bool full = false;
  std::uint64_t now = 1;
};

// A device of 59 partitions under a policy that moves lanes at random: a lane may drain on each.
struct Moving : Node {
  explicit Moving(const std::string& policy = "random:max_sms=16") : Node(policy, device()) {}
  explicit Moving(scheduler::Policy policy) : Node(std::move(policy), device()) {}
  static hal::DeviceInfo device() {
    return {hal::Vendor::kSoftware, "d", "GPU-0", 128, std::vector<std::uint32_t>(16, 8), 1000};
  }
  void moves_on(ClientId client, LaneId lane) {
    protocol::Ready ready;
    ready.head.lane = lane;
    ready.moves_on = 1;
    arbiter.request(client, ready, now);
    arbiter.step(now);
  }
  std::map<LaneId, std::size_t> lanes_of(ClientId client) const {
    std::map<LaneId, std::size_t> lanes;
    for (const DeviceArbiter::GrantStatus& held : arbiter.held())
      if (held.client == client) ++lanes[held.lane];
    return lanes;
  }
  const std::size_t most = settings.scheduler.grants_per_stream;
};

}  // namespace vitamin::daemon
