// SPDX-License-Identifier: Apache-2.0
//
// static: one fixed partition, as MPS percentages or a green context would give it. The device is
// cut into parts of equal size, which clients get in the order in which they come. A client that is
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
    partitions_.assign(units_.empty() ? parts_ : 1, kNoPartition);
    holders_.assign(snapshot.pool.size(), 0);
    for (const Client& client : snapshot.clients) {
      if (!client.active) continue;
      const std::size_t part = units_.empty() ? place(client.id) % parts_ : 0;
      PartitionId& known = partitions_[part];
      if (known == kNoPartition) known = partition(snapshot.pool, part);
      Row& row = out.rows.emplace_back();
      row.client = client.id;
      row.partition = known;
      ++holders_[known];
    }
    for (Row& row : out.rows)
      row.mode = holders_[row.partition] == 1 ? Mode::kExclusive : Mode::kShared;
  }

  void forget(ClientId client) override {
    std::replace(clients_.begin(), clients_.end(), client, kNoClient);
  }

 private:
  // The widest partition inside the part; a part of less than a partition is all.
  PartitionId partition(std::span<const Partition> pool, std::size_t part) const {
    hal::ComputeSet units = units_;
    if (units.empty()) {
      const std::size_t all = pool.front().compute.count();
      const std::size_t first = all * part / parts_, last = all * (part + 1) / parts_;
      units = hal::ComputeSet::range(static_cast<unsigned>(first),
                                     std::max(1U, static_cast<unsigned>(last - first)));
    }
    PartitionId best = kWholeDevice;
    for (const Partition& candidate : pool.subspan(1))
      if (units.contains(candidate.compute)) best = candidate.id;
    return best;
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
  std::vector<ClientId> clients_;        // by place, in the order in which they came
  std::vector<PartitionId> partitions_;  // by part; of one allocation
  std::vector<std::uint32_t> holders_;   // clients, by partition; of one allocation
};

constexpr Parameter kParameters[] = {
    {"units", "allocation units of one partition for all, like 0-7 or 0-3+8-11"},
    {"parts", "how many parts of equal size (default 2)"}};

}  // namespace

Policy make_static(const StaticOptions& options) {
  PolicyDescription description;
  description.name = "static";
  description.summary = "one fixed partition for each client: a baseline";
  description.parameters = kParameters;
  return {description, std::make_unique<Static>(options), nullptr};
}

}  // namespace vitamin::scheduler
