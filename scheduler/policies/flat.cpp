// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/flat.h"

#include <algorithm>
#include <limits>

namespace vitamin::scheduler {
namespace {

template <class Flat>
Flat sized() {
  Flat flat{};
  flat.size = sizeof(Flat);
  return flat;
}

template <class Count>
std::uint32_t count(const Count& of) {
  return static_cast<std::uint32_t>(of.size());
}

// `value`, or the greatest of a narrower type.
template <class To>
To saturated(std::uint32_t value) {
  return static_cast<To>(std::min<std::uint32_t>(value, std::numeric_limits<To>::max()));
}

}  // namespace

vitamin_partition flat(const Partition& partition) {
  auto out = sized<vitamin_partition>();
  out.sms = partition.sms;
  out.units = partition.compute.bits();
  return out;
}

vitamin_stream flat(const StreamDemand& stream) {
  auto out = sized<vitamin_stream>();
  out.id = stream.id;
  out.state = static_cast<std::uint32_t>(stream.state);
  out.min_sms = stream.min_sms;
  out.kernel = stream.profile_key;
  out.predicted_ns = stream.predicted_ns;
  out.waiting_since_ns = stream.waiting_since_ns;
  return out;
}

vitamin_step flat(const Step& step) {
  auto out = sized<vitamin_step>();
  out.client = step.client;
  out.stream = step.stream;
  out.kind = static_cast<std::uint32_t>(step.kind);
  out.id = step.id;
  out.request = step.request;
  out.ready_ns = step.ready_ns;
  out.begin_ns = step.begin_ns;
  out.due_ns = step.due_ns;
  out.work_ns = step.work_ns;
  out.min_sms = step.min_sms;
  return out;
}

vitamin_client flat(const Client& client) {
  auto out = sized<vitamin_client>();
  out.id = client.id;
  out.weight = client.weight;
  out.max_sms = client.limits.most_sms();
  out.reserved_sms = client.limits.reserved_sms;
  out.group = client.limits.group;
  out.may_share = client.limits.may_share;
  out.phase = static_cast<std::uint32_t>(client.phase);
  out.active = client.active;
  out.reports_progress = client.reports_progress;
  out.ttft_ns = client.slo.ttft_ns;
  out.tpot_ns = client.slo.tpot_ns;
  out.latency_ns = client.slo.latency_ns;
  out.step_ns = client.slo.step_ns;
  out.quantile = client.slo.quantile;
  out.work = client.progress.work;
  out.busy_ns = client.progress.busy_ns;
  out.misplaced = client.progress.misplaced;
  out.launches = client.progress.launches;
  out.active_since_ns = client.active_since_ns;
  out.collectives = client.progress.collectives;
  out.distributed = client.distributed;
  return out;
}

vitamin_grant flat(const Grant& grant) {
  auto out = sized<vitamin_grant>();
  out.client = grant.client;
  out.stream = grant.stream;
  out.partition = grant.partition;
  out.mode = static_cast<std::uint32_t>(grant.mode);
  out.state = static_cast<std::uint32_t>(grant.state);
  out.launches = grant.launches;
  out.id = grant.id;
  out.run_ahead_ns = grant.run_ahead_ns;
  out.requested_ns = grant.requested_ns;
  out.opened_ns = grant.opened_ns;
  out.revoked_ns = grant.revoked_ns;
  out.heard_ns = grant.revoked_ns;
  return out;
}

vitamin_row flat(const Row& row) {
  auto out = sized<vitamin_row>();
  out.client = row.client;
  out.stream = row.stream;
  out.partition = row.partition;
  out.mode = static_cast<std::uint32_t>(row.mode);
  out.rank = row.rank;
  out.hold = row.hold;
  out.launches = row.launches;
  out.run_ahead_ns = row.run_ahead_ns;
  out.until_ns = row.until_ns;
  return out;
}

PartitionId partition_from_flat(std::uint32_t partition) {
  return static_cast<PartitionId>(partition > VITAMIN_NO_PARTITION ? VITAMIN_NO_PARTITION - 1
                                                                   : partition);
}

Row from_flat(const vitamin_row& row) {
  Row out;
  out.client = row.client;
  out.stream = row.stream;
  out.partition = partition_from_flat(row.partition);
  out.mode = static_cast<Mode>(saturated<std::uint8_t>(row.mode));
  out.rank = saturated<std::uint8_t>(row.rank);
  out.hold = row.hold != 0;
  out.launches = row.launches;
  out.run_ahead_ns = row.run_ahead_ns;
  out.until_ns = row.until_ns;
  return out;
}

void FlatSnapshot::fill(const Snapshot& snapshot) {
  partitions_.clear(), clients_.clear(), streams_.clear(), steps_.clear();
  grants_.clear(), current_.clear();
  for (const Partition& partition : snapshot.pool) partitions_.push_back(flat(partition));
  for (const Client& client : snapshot.clients) {
    vitamin_client& out = clients_.emplace_back(flat(client));
    out.streams_count = count(client.streams);
    out.steps_count = count(client.steps);
    for (const StreamDemand& stream : client.streams) streams_.push_back(flat(stream));
    for (const Step& step : client.steps) steps_.push_back(flat(step));
  }
  const vitamin_stream* stream = streams_.data();
  const vitamin_step* step = steps_.data();
  for (vitamin_client& client : clients_) {
    client.streams = stream, client.steps = step;
    stream += client.streams_count, step += client.steps_count;
  }
  for (const Grant& grant : snapshot.grants) grants_.push_back(flat(grant));
  if (snapshot.current != nullptr)
    for (const Row& row : snapshot.current->rows) current_.push_back(flat(row));
  changed_.assign(snapshot.changed.begin(), snapshot.changed.end());
  speeds_.clear();
  if (snapshot.estimates != nullptr)
    for (const Client& client : snapshot.clients)
      for (const Partition& partition : snapshot.pool) {
        const Assignment alone{client.id, partition.id, Mode::kExclusive};
        speeds_.push_back(snapshot.estimates->speed(client.id, {&alone, 1}));
      }
  view_ = sized<vitamin_snapshot>();
  view_.partitions_count = count(partitions_), view_.partitions = partitions_.data();
  view_.clients_count = count(clients_), view_.clients = clients_.data();
  view_.grants_count = count(grants_), view_.grants = grants_.data();
  view_.changed_count = count(changed_), view_.changed = changed_.data();
  view_.current_count = count(current_), view_.current = current_.data();
  view_.now_ns = snapshot.now_ns;
  view_.revision = snapshot.revision;
  view_.speed = speed;
  view_.host = this;
}

int FlatSnapshot::speed(const vitamin_snapshot* snapshot, std::uint32_t client,
                        std::uint32_t partition, float* mean, float* error) {
  const auto& self = *static_cast<const FlatSnapshot*>(snapshot->host);
  const auto at = std::lower_bound(
      self.clients_.begin(), self.clients_.end(), client,
      [](const vitamin_client& of, std::uint32_t wanted) { return of.id < wanted; });
  if (self.speeds_.empty() || at == self.clients_.end() || at->id != client ||
      partition >= self.partitions_.size())
    return 0;
  const auto index = static_cast<std::size_t>(at - self.clients_.begin());
  const Estimates::Speed known = self.speeds_[index * self.partitions_.size() + partition];
  if (!(known.mean > 0)) return 0;
  *mean = known.mean;
  *error = known.error;
  return 1;
}

}  // namespace vitamin::scheduler
