// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the scheduler write often: demands, decisions, partitions, rows, and policies
// that are one function.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/pool/layout.h"
#include "scheduler/scheduler.h"

namespace vitamin::scheduler {

inline StreamDemand demand(StreamId id, std::uint32_t min_sms = 1) {
  StreamDemand demand;
  demand.id = id;
  demand.min_sms = min_sms;
  return demand;
}

// The client announces a step of decode that is to end by then.
inline Step decode_step(ClientId client, std::uint64_t due_ns) {
  Step step;
  step.id = 1;
  step.client = client;
  step.kind = StepKind::kDecode;
  step.due_ns = due_ns;
  return step;
}

inline std::vector<Decision> decide(Scheduler& scheduler, std::uint64_t now) {
  const auto decisions = scheduler.decide(now);
  return {decisions.begin(), decisions.end()};
}

inline PartitionId part(const runtime::PoolLayout& layout, unsigned first, unsigned count) {
  const PartitionId id = layout.find(hal::ComputeSet::range(first, count));
  REQUIRE(id != kNoPartition);
  return id;
}

class FunctionPolicy final : public AllocationPolicy {
 public:
  using Call = std::function<void(const Snapshot&, Allocation&)>;
  explicit FunctionPolicy(Call call) : call_(std::move(call)) {}
  void allocate(const Snapshot& snapshot, Allocation& out) override { call_(snapshot, out); }

 private:
  Call call_;
};

inline Policy policy(FunctionPolicy::Call call, PolicyDescription description = {}) {
  if (description.name.empty()) description.name = "test";
  return {description, std::make_unique<FunctionPolicy>(std::move(call)), nullptr};
}

inline Row row(ClientId client, PartitionId partition, Mode mode, std::uint32_t launches = 0) {
  Row row;
  row.client = client;
  row.partition = partition;
  row.mode = mode;
  row.launches = launches;
  return row;
}

}  // namespace vitamin::scheduler
