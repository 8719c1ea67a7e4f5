// SPDX-License-Identifier: Apache-2.0
//
// static: one fixed partition, as MPS percentages or a green context would give it. The device is
// cut into the widest partitions of an equal number of units of which there are enough; what is
// left of the device is idle. Clients get them in the order in which they come. A client that is
// alone on its part has it exclusively; several share it. A baseline, and a way to share a device
// by hand.
#include <algorithm>
#include <vector>

#include "scheduler/policies/builtin.h"

namespace vitamin::scheduler {
namespace {

class Static final : public AllocationPolicy {
 public:
  explicit Static(const StaticOptions& options)
      : units_(options.units), parts_(std::max(1U, options.parts)) {}

  void allocate(const Snapshot& snapshot, Allocation& out) override {
    if (cut_.empty()) cut(snapshot.pool);
    holders_.assign(snapshot.pool.size(), 0);
    for (const Client& client : snapshot.clients) {
      if (!client.active) continue;
      Row& row = out.rows.emplace_back();
      row.client = client.id;
      row.partition = cut_.size() == 1 ? cut_.front() : cut_[place(client.id) % cut_.size()];
      ++holders_[row.partition];
    }
    for (Row& row : out.rows)
      row.mode = holders_[row.partition] == 1 ? Mode::kExclusive : Mode::kShared;
  }

  void forget(ClientId client) override {
    std::replace(clients_.begin(), clients_.end(), client, kNoClient);
  }

 private:
  // Without a partition that is narrow enough: the whole device.
  void cut(std::span<const Partition> pool) {
    if (!units_.empty()) {
      PartitionId best = kWholeDevice;
      for (const Partition& candidate : pool.subspan(1))
        if (units_.contains(candidate.compute)) best = candidate.id;
      return cut_.assign(1, best);
    }
    for (unsigned units = pool.front().compute.count(); units > 0; --units) {
      std::vector<PartitionId> parts = disjoint(pool, units);
      if (!parts.empty()) cut_ = std::move(parts);
      if (cut_.size() < parts_) continue;
      return cut_.resize(parts_);
    }
    if (cut_.empty()) cut_.assign(1, kWholeDevice);
  }

  // Partitions of so many units, from the first unit on.
  static std::vector<PartitionId> disjoint(std::span<const Partition> pool, unsigned units) {
    std::vector<const Partition*> all;
    for (const Partition& partition : pool.subspan(1))
      if (partition.compute.count() == units) all.push_back(&partition);
    std::sort(all.begin(), all.end(), [](const Partition* a, const Partition* b) {
      return a->compute.bits() < b->compute.bits();
    });
    std::vector<PartitionId> chosen;
    hal::ComputeSet taken;
    for (const Partition* partition : all) {
      if (partition->compute.overlaps(taken)) continue;
      taken |= partition->compute;
      chosen.push_back(partition->id);
    }
    return chosen;
  }

  std::size_t place(ClientId client) {
    auto known = std::find(clients_.begin(), clients_.end(), client);
    if (known == clients_.end())  // the place of one that has gone, else the next
      known = std::find(clients_.begin(), clients_.end(), kNoClient);
    const auto at = static_cast<std::size_t>(known - clients_.begin());
    if (known == clients_.end()) clients_.push_back(client);
    clients_[at] = client;
    return at;
  }

  hal::ComputeSet units_;
  std::uint32_t parts_;
  std::vector<ClientId> clients_;       // by place, in the order in which they came
  std::vector<PartitionId> cut_;        // the parts
  std::vector<std::uint32_t> holders_;  // clients, by partition; of one allocation
};

constexpr Parameter kParameters[] = {
    {"units", "allocation units, like 0-7 or 0-3+8-15: the widest partition inside, for all"},
    {"parts", "how many parts of an equal number of units (default 2)"}};

}  // namespace

Policy make_static(const StaticOptions& options) {
  PolicyDescription description;
  description.name = "static";
  description.summary = "one fixed partition for each client: a baseline";
  description.parameters = kParameters;
  return {description, std::make_unique<Static>(options), nullptr};
}

}  // namespace vitamin::scheduler
