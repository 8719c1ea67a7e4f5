// SPDX-License-Identifier: Apache-2.0
//
// orion: Orion's rules (EuroSys '24, section 5) on this mechanism. Every client shares the whole
// device. Clients with an SLO, and those in a prefill or decode, submit at once. A best-effort
// launch goes when
//   * no launch of those runs, or
//   * its client scales differently (compute- against memory-bound), needs few SMs, and the
//     best-effort work in flight is shorter than a threshold.
// Each best-effort launch is one decision: its row has `launches` = 1, and is used up by it. It is
// in flight until its grant is returned, which is when it has ended (clients count what is
// outstanding under such a grant, on the whole device, too). One of unknown time counts as the
// threshold: nothing goes behind it.
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
    for (const Client& client : snapshot.clients) {
      const bool high = high_priority(client);
      if (high && client.active) out.rows.emplace_back().client = client.id;
      for (const StreamDemand& stream : client.streams) {
        if (high && stream.state != StreamDemand::State::kIdle) beside = &client;
        if (!high && stream.state == StreamDemand::State::kRunning) grant(client, stream, out);
      }
    }
    const bool beside_memory = beside != nullptr && memory_bound(snapshot, *beside);
    std::uint64_t in_flight_ns = best_effort_in_flight_ns(snapshot);
    for (const Client& client : snapshot.clients) {
      if (high_priority(client)) continue;
      for (const StreamDemand& stream : client.streams) {
        if (stream.state != StreamDemand::State::kWaiting) continue;
        if (beside != nullptr && (in_flight_ns >= options_.duration_ns ||
                                  memory_bound(snapshot, client) == beside_memory ||
                                  useful_sms(snapshot, client) > options_.sms))
          continue;
        in_flight_ns += launch_ns(&stream);
        grant(client, stream, out);
      }
    }
  }

 private:
  // Of one launch; null: of a stream that has nothing more to submit.
  std::uint64_t launch_ns(const StreamDemand* stream) const {
    return stream != nullptr && stream->predicted_ns != 0 ? stream->predicted_ns
                                                          : options_.duration_ns;
  }

  // Under every grant that was not returned, one launch.
  std::uint64_t best_effort_in_flight_ns(const Snapshot& snapshot) const {
    std::uint64_t sum_ns = 0;
    for (const Grant& grant : snapshot.grants) {
      if (grant.state == Grant::State::kPending) continue;
      const Client* const client = snapshot.find(grant.client);
      if (client != nullptr && high_priority(*client)) continue;
      const StreamDemand* of = nullptr;
      if (client != nullptr)
        for (const StreamDemand& stream : client->streams)
          if (stream.id == grant.stream) of = &stream;
      sum_ns += launch_ns(of);
    }
    return sum_ns;
  }

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
    {"sms", "best effort that needs more SMs waits (default 66)"},
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
