// SPDX-License-Identifier: Apache-2.0
//
// Launches of kernels: bound, submitted, counted.
#include <algorithm>
#include <cstring>

#include "runtime/submission/pipeline.h"

namespace vitamin::runtime {

using hal::NativeStatus;
using hal::Outcome;
using stats::WholeReason;

namespace {

// It waits for its peers on other devices: never deferred for a grant, for which the client that
// holds these SMs may wait elsewhere, and never in a queue that others share.
bool is_collective(const Kernel& kernel, const hal::KernelLaunch* launch,
                   const DispatchOptions& options) {
  return kernel.collective ||
         (options.cooperative_collective && launch != nullptr && launch->cooperative);
}

// Why a launch goes to the program's own stream, whatever the policy would have chosen. `host_wait`
// may ask the driver: it is called only where the answer counts.
template <class HostWait>
WholeReason reason_of_own_stream(const Submission& submission, bool collective,
                                 const HostWait& host_wait) {
  if (collective) return WholeReason::kCollective;
  // Nothing forbade to keep it: it cannot be copied.
  if (submission.kept == nullptr && !submission.must_not_defer)
    return WholeReason::kUnsupportedLayout;
  return host_wait() ? WholeReason::kHostWait : WholeReason::kFlushed;
}

// Why no part of the pool takes a launch.
WholeReason reason_of_width(const Kernel& kernel, const hal::KernelLaunch* launch) {
  if (kernel.resident) return WholeReason::kResident;
  if (launch != nullptr && launch->cooperative) return WholeReason::kCooperative;
  return kernel.assumed_resident ? WholeReason::kResident : WholeReason::kNoEligiblePartition;
}

}  // namespace

bool Pipeline::launch_fast_path(Stream& stream, Kernel& kernel, const hal::KernelLaunch& launch,
                                const Advice* advice, NativeStatus& status) {
  PhysicalQueue* const queue = stream.submitted.tail;
  const GrantTerms& grant = stream.placing.grant;
  const std::uint32_t needed = kernel.known_sms(launch);
  const bool nothing_open = queue != nullptr && stream.deferral.operations.empty() &&
                            !stream.submitted.host_wait &&
                            stream.submitted.unmarked_host_wait == 0 && !stream.order.allocated &&
                            stream.order.extra.empty();
  if (!nothing_open || !completion_.unobserved() || core_.profiler.next_is_due()) return false;
  // Where the stream's grant says, and where everything before it went.
  if (grant.launches != kUntilRevoked || queue->partition != grant.partition ||
      grant.ahead_ns != kNever)
    return false;
  if (needed == 0 || needed > queue->sms || needed > placer_.widest_narrow() || kernel.collective ||
      kernel.refused.test(queue->partition) || !core_.arbiter->admits(queue->partition, stream.id))
    return false;
  if (advice == nullptr && stream.placing.advice) advice = &*stream.placing.advice;
  if (advice != nullptr && std::min(advice->sms, placer_.widest()) > queue->sms) return false;
  // No marker falls due behind it, and the queue has room.
  if (!completion_.room_on_fast_path(stream, kernel) ||
      (completion_.blocking_streams() && stream.kind == StreamKind::kLegacy))
    return false;
  const bool part = !queue->whole();
  if (part &&
      (!stream.attributes.empty() || (launch.grid.volume() > 1 && kernel.proven_sms > queue->sms)))
    return false;

  placer_.announce_step(stream, advice);
  status = queue->queue->launch(launch);
  if (status != hal::kNativeOk) [[unlikely]] {
    if (part && core_.errors.classify(status) == Outcome::kPartitionRefused) return false;
    core_.page.launches.failed.add();
    return true;
  }
  core_.profiler.turn();  // counts it
  count(stream, kernel, {.queue = queue, .narrow_eligible = true}, *queue);
  completion_.submitted_on_fast_path(stream, kernel);
  return true;
}

SubmitResult Pipeline::launch_now(Stream& stream, Submission& submission,
                                  std::span<const Predecessor> predecessors, bool own_stream) {
  // A computing call is an ordinary kernel of the vendor's: any partition takes it, nothing is
  // counted.
  const bool computes = submission.kind == OperationKind::kCompute;
  Kernel& kernel = computes ? vendor_kernel_ : *submission.kernel.get();
  if (!stream.placing.iteration_ends.empty()) [[unlikely]]
    Placer::pass_iteration_ends(stream);
  const LaunchOperation* const operation = submission.operation->as_launch();
  const hal::KernelLaunch* launch = operation != nullptr ? &operation->launch() : nullptr;
  const bool collective = is_collective(kernel, launch, core_.options);
  const bool own = own_stream || collective;
  const bool others_wait_for_host =
      ordering_.others_wait_for_host(predecessors, submission.marker, submission.host_wait);
  const bool waits_for_host = others_wait_for_host || (!own && completion_.waits_for_host(stream));
  if (!own_stream && waits_for_host && !placer_.claim_free_sharing(stream))
    return {Blocked::kHostWait};
  const std::uint64_t predicted = predicted_now(stream, kernel, launch);
  if (!completion_.room(stream, predecessors, !own_stream, kernel.places, predicted))
    return {Blocked::kTooMuchOutstanding};

  std::uint32_t needed = computes ? 1 : kernel.sms_needed(core_.device, *launch);
  const bool fits_narrow = needed <= placer_.widest_narrow();
  needed = placer_.widened(Placer::advice_for(stream, operation), needed);
  Placer::Binding binding;
  if (own) {
    binding.queue = &stream.app_stream;
    binding.reason = reason_of_own_stream(submission, collective, [&] {
      return others_wait_for_host || completion_.waits_for_host(stream);
    });
  } else {
    if (!placer_.prepare_move(stream, kernel, needed, submission.flushing))
      return {Blocked::kTooMuchOutstanding};
    binding = placer_.bind(stream, kernel, operation, needed);
    if (binding.queue == nullptr) return {Blocked::kNoGrant};
    if (waits_for_host && (binding.counts_outstanding || !binding.queue->whole() ||
                           completion_.has_window(stream))) {  // the grant has just changed
      placer_.give_up(stream, *binding.queue);
      return {Blocked::kHostWait};
    }
  }
  binding.narrow_eligible = fits_narrow && !collective;
  // That no narrower partition could take it says more than that the policy chose no wider one.
  if (!binding.narrow_eligible && binding.reason == WholeReason::kPolicy &&
      placer_.widest_narrow() > 0)
    binding.reason = reason_of_width(kernel, launch);
  const bool host_waits = collective || others_wait_for_host;
  if (host_waits) completion_.close_batch(stream);
  NativeStatus status = launch_on(stream, submission, predecessors, *binding.queue);
  // The driver knows better than our arithmetic: a wider partition, at last the whole device, which
  // answers what the application would have got natively.
  while (!binding.queue->whole() && core_.errors.classify(status) == Outcome::kPartitionRefused) {
    core_.page.launches.retried.add();
    placer_.refused(stream, kernel, *binding.queue);
    const Placer::Binding wider = placer_.bind(stream, kernel, operation, needed);
    binding.queue = wider.queue != nullptr ? wider.queue : &stream.app_stream;
    binding.counts_outstanding = wider.counts_outstanding;
    binding.reason = WholeReason::kPartitionRefused;
    status = launch_on(stream, submission, predecessors, *binding.queue);
  }
  if (status != hal::kNativeOk) {
    if (!computes) core_.page.launches.failed.add();
    return {Blocked::kNo, status};
  }
  PhysicalQueue& queue = *binding.queue;
  if (!computes) count(stream, kernel, binding, queue);
  completion_.submitted(stream, queue,
                        {.places = kernel.places,
                         .predicted_ns = predicted,
                         .work = kernel.work,
                         .counts_outstanding = binding.counts_outstanding});
  if (collective) core_.arbiter->collective();
  if (host_waits) completion_.note_host_wait(stream, completion_.tail_marker(stream));
  if (!computes && !queue.whole()) watch(kernel, stream, queue, *launch);
  return {};
}

NativeStatus Pipeline::launch_on(Stream& stream, Submission& submission,
                                 std::span<const Predecessor> predecessors, PhysicalQueue& queue) {
  unsigned waits = 0;
  NativeStatus status = ordering_.order(stream, *queue.queue, &queue, predecessors, waits);
  if (status == hal::kNativeOk) {
    const Profiler::Turn turn = core_.profiler.turn();
    status = turn == Profiler::Turn::kNo ? native_launch(stream, submission, queue, waits)
                                         : timed_launch(stream, submission, queue, waits, turn);
  }
  if (status != hal::kNativeOk && waits > 0) [[unlikely]]
    leave_waits(stream, queue);
  return status;
}

// The driver has refused a launch of the stream for which the queue waits by now: no other stream
// gets the queue before these waits have ended.
void Pipeline::leave_waits(Stream& stream, PhysicalQueue& queue) {
  if (queue.whole() || queue.owner == &stream) return;
  queue.last_owner = &stream;
  queue.last = completion_.mark(stream, *queue.queue);
}

// One of the launches that are timed; what may overlap its predecessor has no time of its own.
NativeStatus Pipeline::timed_launch(Stream& stream, Submission& submission, PhysicalQueue& queue,
                                    unsigned waits, Profiler::Turn turn) {
  Profiler& profiler = core_.profiler;
  const LaunchOperation* const operation = submission.operation->as_launch();
  const hal::KernelLaunch* launch = operation != nullptr ? &operation->launch() : nullptr;
  const bool searched = turn == Profiler::Turn::kSearch;
  bool wanted = launch != nullptr && !launch->programmatic;
  std::uint64_t key = 0;
  if (wanted) {
    key = launch_key(submission.kernel.get()->name_hash, *launch);
    wanted = !searched || profiler.worth_timing(key, queue.sms);
  }
  Profiler::Stopwatch* stopwatch = wanted ? profiler.start(*queue.queue) : nullptr;
  if (stopwatch != nullptr) completion_.put_beside(stream, 2);
  const NativeStatus status = native_launch(stream, submission, queue, waits);
  if (stopwatch == nullptr) return status;
  if (status != hal::kNativeOk) {
    profiler.abandon(stopwatch);
    return status;
  }
  if (!profiler.awaits()) core_.wake.notify_one();  // the mover sleeps while nothing is awaited
  profiler.stop(stopwatch, *queue.queue, key, submission.kernel.get()->name, *launch, queue.sms,
                searched);
  return status;
}

NativeStatus Pipeline::native_launch(Stream& stream, Submission& submission, PhysicalQueue& queue,
                                     unsigned waits) {
  const LaunchOperation* const operation = submission.operation->as_launch();
  if (operation == nullptr) return submission.operation->submit(*queue.queue);
  // The logical descriptor stays as it is; a copy of its head carries the two differences that the
  // contract allows (docs/design.md, "The contract"): a programmatic launch only behind its very
  // predecessor, and attributes that the application set on its stream made explicit.
  const hal::KernelLaunch& asked = operation->launch();
  const bool programmatic = asked.programmatic && waits == 0 && stream.submitted.tail == &queue;
  const bool explicitly = !stream.attributes.empty() && !queue.whole();
  if (programmatic == asked.programmatic && !explicitly) return queue.queue->launch(asked);
  hal::KernelLaunch launch = asked;
  launch.programmatic = programmatic;
  if (explicitly) launch.attributes = with_stream_attributes(stream, asked.attributes);
  return queue.queue->launch(launch);
}

// The launch's own attributes behind those of the stream that it does not set itself.
hal::AttributeList Pipeline::with_stream_attributes(const Stream& stream,
                                                    const hal::AttributeList& asked) {
  const auto* own = static_cast<const std::byte*>(asked.records);
  const std::size_t record_bytes = core_.inspector.attribute_record_bytes();
  const std::size_t own_bytes = asked.count * record_bytes;
  auto sets = [&](const std::byte* record) {  // a record begins with the id of its attribute
    for (std::size_t at = 0; at < own_bytes; at += record_bytes)
      if (std::memcmp(own + at, record, sizeof(std::uint32_t)) == 0) return true;
    return false;
  };
  attributes_.clear();
  for (std::size_t at = 0; at < stream.attributes.size(); at += record_bytes) {
    const std::byte* record = stream.attributes.data() + at;
    if (sets(record)) continue;
    attributes_.insert(attributes_.end(), record, record + record_bytes);
  }
  attributes_.insert(attributes_.end(), own, own + own_bytes);
  const std::size_t count = attributes_.size() / record_bytes;
  return {attributes_.data(), static_cast<std::uint32_t>(count)};
}

inline void Pipeline::count(Stream& stream, Kernel& kernel, const Placer::Binding& binding,
                            const PhysicalQueue& queue) {
  stats::Launches& launches = core_.page.launches;
  stats::LibrarySlot& library = *kernel.library;
  ++kernel.launches;
  launches.seen.add();
  launches.bound.add();
  library.seen.add();
  library.bound.add();
  const PartitionId partition = queue.partition;
  widths_[partition]->launches.add();
  if (queue.whole()) core_.page.whole[static_cast<unsigned>(binding.reason)].add();
  if (binding.narrow_eligible) launches.narrow_eligible.add();
  if (!queue.whole() && queue.sms < core_.whole()) {
    launches.narrow.add();
    library.narrow.add();
  }
  PartitionId& last = stream.placing.last_partition;
  if (last != kNoPartition) {
    launches.successors.add();
    if (last != partition) {
      launches.moved.add();
      library.moved.add();
    }
  }
  last = partition;
}

void Pipeline::watch(Kernel& kernel, Stream& stream, PhysicalQueue& queue,
                     const hal::KernelLaunch& launch) {
  // One block waits for no other, and a cooperative grid runs only where all of it fits.
  if (launch.grid.volume() <= 1 || launch.cooperative || !watchdog_.wants(kernel, queue.sms))
    return;
  watchdog_.watch(kernel, queue.sms, core_.predicted_ns(kernel, &launch, queue.sms),
                  completion_.tail_marker(stream));
}

}  // namespace vitamin::runtime
