// SPDX-License-Identifier: Apache-2.0
#include "scheduler/announced_steps.h"

#include <algorithm>
#include <utility>

namespace vitamin::scheduler {
namespace {

using runtime::WorkKind;

StepKind kind_of(WorkKind said) {
  switch (said) {
    case WorkKind::kPrefill:
      return StepKind::kPrefill;
    case WorkKind::kDecode:
      return StepKind::kDecode;
    case WorkKind::kBestEffort:
      return StepKind::kBestEffort;
    case WorkKind::kUnknown:
      break;
  }
  return StepKind::kUnknown;
}

}  // namespace

void AnnouncedSteps::launch(Scheduler& scheduler, ClientId client, StreamId stream,
                            std::uint64_t& ids, const Announcement& said, std::uint64_t now_ns) {
  if (said.iteration_end) end(scheduler, client, now_ns);
  const bool advised = said.kind != WorkKind::kUnknown || said.due_ns != 0;
  if (!advised && !said.iteration_end) {
    if (of_launch_) end(scheduler, client, now_ns);
    return;
  }
  const StepKind kind = advised ? kind_of(said.kind) : StepKind::kIteration;
  if (begun_ != 0 && expected_ == 0 && said.due_ns != 0 && said.due_ns == due_ns_ && kind == kind_)
    return;
  put(scheduler, client, stream, ids, said, kind, now_ns);
  of_launch_ = advised;
}

void AnnouncedSteps::announce(Scheduler& scheduler, ClientId client, StreamId stream,
                              std::uint64_t& ids, const Announcement& said, std::uint64_t now_ns) {
  put(scheduler, client, stream, ids, said, kind_of(said.kind), now_ns);
}

void AnnouncedSteps::put(Scheduler& scheduler, ClientId client, StreamId stream, std::uint64_t& ids,
                         const Announcement& said, StepKind kind, std::uint64_t now_ns) {
  Step step;
  step.id = expected_ != 0 ? expected_ : ++ids;
  step.client = client;
  step.stream = stream;
  step.kind = kind;
  step.ready_ns = std::max(said.ready_ns, now_ns);
  step.due_ns = said.due_ns;
  step.work_ns = said.work_ns;
  step.min_sms = std::max(1U, said.min_sms);
  if (said.ready_ns > now_ns) {
    expected_ = step.id;
    return scheduler.step_expected(step, now_ns);
  }
  expected_ = 0;
  end(scheduler, client, now_ns);
  begun_ = step.id;
  kind_ = kind;
  due_ns_ = said.due_ns;
  scheduler.step_begin(step, now_ns);
}

void AnnouncedSteps::cancel(Scheduler& scheduler, ClientId client, std::uint64_t now_ns) {
  if (expected_ != 0) scheduler.step_cancel(client, std::exchange(expected_, 0), now_ns);
}

void AnnouncedSteps::end(Scheduler& scheduler, ClientId client, std::uint64_t now_ns) {
  of_launch_ = false;
  if (begun_ != 0) scheduler.step_end(client, std::exchange(begun_, 0), now_ns);
}

}  // namespace vitamin::scheduler
