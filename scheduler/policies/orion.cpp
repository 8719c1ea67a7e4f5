// SPDX-License-Identifier: Apache-2.0
//
// orion: Orion's rules (EuroSys '24, section 5) on this mechanism. Every client shares the whole
// device. Clients with an SLO, and those in a prefill or decode, submit at once. A best-effort
// launch goes when
//   * no launch of those runs, or
//   * its client scales differently (compute- against memory-bound), needs few SMs, and the
//     best-effort work in flight is shorter than a threshold.
// Each best-effort launch is one decision: its row has `launches` = 1, and is used up by it.
#include "scheduler/policies/builtin.h"

namespace vitamin::scheduler {
namespace {

bool high_priority(const Client& client) {
  return client.slo.any() || client.phase == StepKind::kDecode ||
         client.phase == StepKind::kPrefill;
}

class Orion final : public AllocationPolicy {
 public:
  explicit Orion(const OrionOptions& options) : options_(options) {}

  void allocate(const Snapshot& snapshot, Allocation& out) override {
    const Client* beside = nullptr;  // of high priority, with work that runs
    std::uint64_t in_flight_ns = 0;  // of best effort
    bool any_in_flight = false;
    for (const Client& client : snapshot.clients) {
      const bool high = high_priority(client);
      if (high && client.active) out.rows.emplace_back().client = client.id;
      for (const StreamDemand& stream : client.streams) {
        if (high && stream.state != StreamDemand::State::kIdle) beside = &client;
        if (high || stream.state != StreamDemand::State::kRunning) continue;
        in_flight_ns += stream.predicted_ns;
        any_in_flight = true;
        grant(client, stream, out);
      }
    }
    for (const Client& client : snapshot.clients) {
      if (high_priority(client)) continue;
      for (const StreamDemand& stream : client.streams) {
        if (stream.state != StreamDemand::State::kWaiting) continue;
        if (beside != nullptr &&
            (memory_bound(snapshot, client) == memory_bound(snapshot, *beside) ||
             useful_sms(snapshot, client) > options_.sms ||
             (any_in_flight && in_flight_ns >= options_.duration_ns)))
          continue;
        in_flight_ns += stream.predicted_ns;
        any_in_flight = true;
        grant(client, stream, out);
      }
    }
  }

 private:
  static void grant(const Client& client, const StreamDemand& stream, Allocation& out) {
    Row& row = out.rows.emplace_back();
    row.client = client.id;
    row.stream = stream.id;
    row.launches = 1;
    row.rank = 1;
  }

  // Progress on the partition, relative to the whole device; unknown: proportional to its SMs.
  static float speed(const Snapshot& snapshot, const Client& client, const Partition& partition) {
    if (snapshot.estimates != nullptr) {
      const Assignment alone{client.id, partition.id, Mode::kExclusive};
      const Estimates::Speed known = snapshot.estimates->speed(client.id, {&alone, 1});
      if (known.mean > 0) return known.mean;
    }
    return static_cast<float>(partition.sms) / static_cast<float>(snapshot.pool.front().sms);
  }

  // Half of the SMs do nearly as well.
  static bool memory_bound(const Snapshot& snapshot, const Client& client) {
    for (const Partition& partition : snapshot.pool.subspan(1))
      if (partition.sms >= snapshot.pool.front().sms / 2)
        return speed(snapshot, client, partition) > 1 / 1.5F;
    return false;
  }

  // The narrowest width within a tenth of the best speed.
  static std::uint32_t useful_sms(const Snapshot& snapshot, const Client& client) {
    for (const Partition& partition : snapshot.pool.subspan(1))
      if (speed(snapshot, client, partition) > 1 / 1.1F) return partition.sms;
    return snapshot.pool.front().sms;
  }

  OrionOptions options_;
};

constexpr Parameter kParameters[] = {
    {"sms", "best effort that needs more waits (default 66)"},
    {"duration", "best-effort work in flight beside others (default 250us)"}};

}  // namespace

Policy make_orion(const OrionOptions& options) {
  PolicyDescription description;
  description.name = "orion";
  description.summary = "Orion's rules: best effort beside others when profiles differ: a baseline";
  description.parameters = kParameters;
  description.may_starve = true;
  description.uses_progress = true;
  description.uses_steps = true;
  description.uses_returns = true;
  description.uses_streams = true;
  return {description, std::make_unique<Orion>(options), nullptr};
}

}  // namespace vitamin::scheduler
