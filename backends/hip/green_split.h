// SPDX-License-Identifier: Apache-2.0
//
// The units of a mask plan as resources of HIP's execution contexts (execution_context.h).
//
// A runtime that has them deals neighbouring bits of the CU mask to each group of a split, so the
// n-th unit is the n-th group wherever units are equally long runs of bits; the bits that are over
// are the remainder and belong to one unit. Where a plan is not like that, or the runtime's groups
// turn out not to be the plan's bits, there is no split, and CU-masked streams are used.
#pragma once

#include <memory>
#include <vector>

#include "backends/hip/api.h"
#include "backends/hip/execution_context.h"
#include "backends/hip/mask_plan.h"
#include "backends/hip/stream_queue.h"

namespace vitamin::hip {

class GreenSplit {
 public:
  // Makes two queues and looks at their masks: not for the launch path. kUnavailable: the runtime
  // has no execution contexts, which the user needs not be told; kUnsupported: they are of no use.
  static hal::Result<GreenSplit> make(const Api& api, int ordinal, const MaskPlan& plan);

  // The execution context of these units; the caller destroys it, after its streams.
  hal::Result<ExecutionContext> create(hal::ComputeSet set) const;

 private:
  GreenSplit(const Api& api, int ordinal) : api_(&api), ordinal_(ordinal) {}
  hal::Status check(hal::ComputeSet set, const MaskPlan& plan) const;

  const Api* api_;
  int ordinal_;
  std::vector<std::vector<Resource>> units_;
};

// A partition as an execution context: its streams are outside the legacy stream's order and have
// priorities, neither of which CU-masked streams can.
class GreenContext final : public PoolContext {
 public:
  GreenContext(const Api& api, hal::ComputeSet compute, std::uint32_t sms, PoolQueues& queues,
               const GreenSplit& split)
      : PoolContext(api, compute, sms, queues), split_(split) {}
  ~GreenContext() override;
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override;

 private:
  const GreenSplit& split_;            // the device's
  ExecutionContext native_ = nullptr;  // made with the first queue: most partitions never have one
};

}  // namespace vitamin::hip
