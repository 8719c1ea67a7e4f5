// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/throughput.h"

#include <algorithm>
#include <vector>

#include "scheduler/estimator/configurations.h"
#include "scheduler/policies/assignment.h"

namespace vitamin::scheduler {
namespace {

class Measured final : public AllocationPolicy {
 public:
  Measured(const Objective& objective, Estimator& estimator, std::span<const Partition> pool)
      : objective_(objective), estimator_(estimator), configurations_(pool) {}

  void allocate(const Snapshot& snapshot, Allocation& out) override {
    const std::uint64_t now = snapshot.now_ns;
    const bool exclusive_open =
        std::none_of(snapshot.grants.begin(), snapshot.grants.end(), [](const Grant& grant) {
          return grant.mode == Mode::kExclusive && grant.state != Grant::State::kOpen;
        });
    if (estimator_.enter(snapshot.clients, objective_, now))
      estimator_.offer(configurations_.generate(snapshot.clients, objective_, estimator_));
    const MeasurementBlock block = estimator_.next(now, exclusive_open);
    std::size_t active = 0;
    bool distributed = false;
    for (const Client& client : snapshot.clients) {
      active += client.active ? 1 : 0;
      distributed = distributed || (client.active && client.distributed);
    }
    // Distributed clients that share have nothing else to be measured: no grant has to end soon.
    const bool stays = distributed && block.purpose == Purpose::kOnly &&
                       !block.configuration.empty() &&
                       std::all_of(block.configuration.begin(), block.configuration.end(),
                                   [](const Assignment& a) {
                                     return a.mode == Mode::kShared && a.partition == kWholeDevice;
                                   });
    const bool bounded = active > 1 && !stays;
    auto at = block.configuration.begin();
    for (const Client& client : snapshot.clients) {
      if (!client.active) continue;
      while (at != block.configuration.end() && at->client < client.id) ++at;
      Row& row = out.rows.emplace_back();
      row.client = client.id;
      row.mode = Mode::kPaused;
      if (at != block.configuration.end() && at->client == client.id) {
        row.partition = at->partition;
        row.mode = at->mode;
      } else if (block.configuration.empty()) {
        row.mode = Mode::kShared;  // no candidate keeps within the limits: constraints decide
      }
      if (bounded) row.run_ahead_ns = kRunAheadNs;
    }
    out.wake_ns = block.wake_ns;
  }

  void forget(ClientId client) override { estimator_.forget(client); }

 private:
  Objective objective_;
  Estimator& estimator_;
  Configurations configurations_;
};

// The paper's: what the streams that wait or run are to have, by Algorithm 1. A plan is replaced
// only by one that is clearly better: a change costs drains.
class Algorithm1 final : public AllocationPolicy {
 public:
  Algorithm1(bool against_narrowest, std::span<const Partition> pool,
             const runtime::Profile* profile)
      : pool_(pool),
        curves_(pool, profile),
        assignment_(against_narrowest ? Assigner::Relative::kNarrowest
                                      : Assigner::Relative::kWhole) {}

  void allocate(const Snapshot& snapshot, Allocation& out) override {
    collect(snapshot);
    const std::size_t count =
        std::min<std::size_t>(demanded_.size(), pool_.front().compute.count());
    operations_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      const Demanded& demanded = demanded_[i];
      const bool waits_long =
          demanded.since_ns != 0 && snapshot.now_ns - demanded.since_ns >= kWaitsLongNs;
      operations_.push_back({demanded.demand->min_sms, curves_.of(demanded.demand->profile_key),
                             before(demanded.client, demanded.demand->id), waits_long});
    }
    const std::span<const PartitionId> plan =
        assignment_.plan(operations_, pool_, pool_.front().compute);
    const std::span<const PartitionId> kept = keep(plan);
    plan_.clear();
    for (std::size_t i = 0; i < demanded_.size(); ++i) {
      const Demanded& demanded = demanded_[i];
      Row& row = out.rows.emplace_back();
      row.client = demanded.client;
      row.stream = demanded.demand->id;
      row.mode = Mode::kPaused;
      row.rank = static_cast<std::uint8_t>(std::min<std::size_t>(i, 255));
      row.run_ahead_ns = kRunAheadNs;
      if (demanded.demand->min_sms > pool_.back().sms) {  // only the whole device runs it
        row.mode = Mode::kShared;
      } else if (i < kept.size() && kept[i] != kNoPartition) {
        row.mode = Mode::kExclusive;
        row.partition = kept[i];
        plan_.push_back({demanded.client, demanded.demand->id, kept[i]});
      }
    }
  }

 private:
  // A stream that has waited for so long comes before those that need less.
  static constexpr std::uint64_t kWaitsLongNs = 10'000'000;
  // A new plan replaces the last when its progress is so many times that.
  static constexpr double kWorthMoving = 1.05;

  struct Demanded {
    std::uint32_t nth;  // of its client
    bool waits;
    std::uint64_t since_ns;
    ClientId client;
    const StreamDemand* demand;
  };
  struct Kept {
    ClientId client;
    StreamId stream;
    PartitionId partition;
  };

  // Age-aware round-robin over clients: running streams keep their turn, then each client's oldest
  // stream, then each client's second.
  void collect(const Snapshot& snapshot) {
    demanded_.clear();
    for (const Client& client : snapshot.clients) {
      const std::size_t first = demanded_.size();
      for (const StreamDemand& demand : client.streams)
        if (demand.state != StreamDemand::State::kIdle) {
          const bool waits = demand.state == StreamDemand::State::kWaiting;
          demanded_.push_back({0, waits, waits ? demand.waiting_since_ns : 0, client.id, &demand});
        }
      const auto from = demanded_.begin() + static_cast<std::ptrdiff_t>(first);
      std::sort(from, demanded_.end(), [](const Demanded& a, const Demanded& b) {
        return a.waits != b.waits ? b.waits : a.since_ns < b.since_ns;
      });
      for (std::size_t i = first; i < demanded_.size(); ++i)
        demanded_[i].nth = static_cast<std::uint32_t>(i - first);
    }
    std::sort(demanded_.begin(), demanded_.end(), [](const Demanded& a, const Demanded& b) {
      if (a.nth != b.nth) return a.nth < b.nth;
      if (a.waits != b.waits) return b.waits;
      if (a.since_ns != b.since_ns) return a.since_ns < b.since_ns;
      return a.client < b.client;
    });
  }

  PartitionId before(ClientId client, StreamId stream) const {
    for (const Kept& p : plan_)
      if (p.client == client && p.stream == stream) return p.partition;
    return kNoPartition;
  }

  // The last plan where it still holds and the new one is hardly better.
  std::span<const PartitionId> keep(std::span<const PartitionId> plan) {
    kept_.assign(operations_.size(), kNoPartition);
    hal::ComputeSet used;
    for (std::size_t i = 0; i < operations_.size(); ++i) {
      const PartitionId at = operations_[i].preferred;
      if (at == kNoPartition || pool_[at].compute.overlaps(used) ||
          pool_[at].sms < operations_[i].min_sms)
        return plan;
      used |= pool_[at].compute;
      kept_[i] = at;
    }
    const double old = assignment_.progress(operations_, pool_, kept_);
    return assignment_.progress(operations_, pool_, plan) >= kWorthMoving * old ? plan : kept_;
  }

  std::span<const Partition> pool_;
  KernelCurves curves_;
  Assigner assignment_;
  std::vector<Demanded> demanded_;
  std::vector<Assignable> operations_;
  std::vector<PartitionId> kept_;
  std::vector<Kept> plan_;  // the last: positions to keep
};

constexpr Parameter kParameters[] = {
    {"model", "measured (default): blocks under a few configurations; algorithm1: the paper's"},
    {"objective", "of measured: proportional (default), sum or fair"},
    {"min_share",
     "of objective=sum: minimum in percent of an equal share (default 50); a shortfall counts "
     "fourfold"},
    {"relative",
     "of algorithm1: alone (default: progress against each alone), paper (against the "
     "narrowest part)"}};

}  // namespace

Policy make_throughput(const ThroughputOptions& options, Estimator& estimator,
                       std::span<const Partition> pool, const runtime::Profile* profile) {
  PolicyDescription description;
  description.name = "throughput";
  description.summary = "the configuration in which clients are measured to get on best";
  description.parameters = kParameters;
  const bool measured = options.model == ThroughputOptions::Model::kMeasured;
  description.uses_progress = measured;
  description.weighs = measured;
  description.uses_kernel_times = !measured;
  if (!measured)
    return {description, std::make_unique<Algorithm1>(options.against_narrowest, pool, profile),
            nullptr};
  return {description, std::make_unique<Measured>(options.objective, estimator, pool), nullptr};
}

}  // namespace vitamin::scheduler
