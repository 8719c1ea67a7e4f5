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
    for (const Client& client : snapshot.clients) {
      if (!client.active) continue;
      Row& row = out.rows.emplace_back();
      row.client = client.id;
      row.partition = partition(snapshot, client.id);
      row.mode = Mode::kExclusive;
    }
    for (Row& row : out.rows)
      for (const Row& other : out.rows)
        if (row.client != other.client && row.partition == other.partition)
          row.mode = Mode::kShared;
  }

  void forget(ClientId client) override {
    std::replace(clients_.begin(), clients_.end(), client, kNoClient);
  }

 private:
  // The widest partition inside the client's part; a part of less than a partition is all.
  PartitionId partition(const Snapshot& snapshot, ClientId client) {
    const hal::ComputeSet units = units_.empty() ? part_of(snapshot, client) : units_;
    PartitionId best = kWholeDevice;
    for (const Partition& candidate : snapshot.pool.subspan(1))
      if (units.contains(candidate.compute)) best = candidate.id;
    return best;
  }

  hal::ComputeSet part_of(const Snapshot& snapshot, ClientId client) {
    auto known = std::find(clients_.begin(), clients_.end(), client);
    if (known == clients_.end())  // the place of one that has gone, else the next
      known = std::find(clients_.begin(), clients_.end(), kNoClient);
    const auto place = static_cast<std::size_t>(known - clients_.begin());
    if (known == clients_.end()) clients_.push_back(client);
    clients_[place] = client;
    const unsigned units = snapshot.pool.front().compute.count();
    const auto nth = static_cast<unsigned>(place) % parts_;
    const unsigned first = units * nth / parts_, last = units * (nth + 1) / parts_;
    return hal::ComputeSet::range(first, std::max(1U, last - first));
  }

  hal::ComputeSet units_;
  std::uint32_t parts_;
  std::vector<ClientId> clients_;  // by place, in the order in which they came
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
