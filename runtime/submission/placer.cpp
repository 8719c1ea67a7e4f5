// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/placer.h"

#include <algorithm>
#include <utility>

namespace vitamin::runtime {

using stats::WholeReason;

void Placer::list_partitions() {
  for (const Partition& partition : core_.layout.partitions()) {
    if (partition.whole() || !core_.pool.has(partition.id)) continue;
    by_width_.push_back(partition.id);
    widest_ = std::max(widest_, partition.sms);
    if (partition.sms < core_.whole()) widest_narrow_ = std::max(widest_narrow_, partition.sms);
  }
  by_width_.push_back(kWholeDevice);
  scratch_.reserve(by_width_.size());
}

Placer::Binding Placer::bind(Stream& stream, Kernel& kernel, const LaunchOperation* operation,
                             std::uint32_t needed) {
  GrantTerms& grant = stream.placing.grant;
  Binding binding;
  if (needed > widest_ || !parts()) {
    binding.queue = &stream.app_stream;
    binding.counts_outstanding = counts_whole(stream);
    binding.reason = kernel.resident           ? WholeReason::kResident
                     : needed > core_.whole()  ? WholeReason::kCluster
                     : !parts()                ? WholeReason::kPoolMissing
                     : kernel.assumed_resident ? WholeReason::kResident
                                               : WholeReason::kNoEligiblePartition;
    return binding;
  }
  auto take = [&](PhysicalQueue& queue) {
    if (grant.launches != kUntilRevoked) --grant.launches;
    // On the whole device it still wants: else every launch would wait anew for what never comes.
    if (!queue.whole()) stream.placing.queue_wanted_since.reset();
    binding.queue = &queue;
    binding.counts_outstanding = grant.counts_outstanding;
    return binding;
  };
  if (grant_stands(stream, kernel, needed)) {
    announce_step(stream, advice_for(stream, operation));
    if (PhysicalQueue* queue = queues_.free_queue(stream, grant.partition)) return take(*queue);
    if (queues_.awaits_queue(stream)) return {};
  }
  std::span<const PartitionId> left = eligible(stream, kernel, needed);
  bool second_choice = false;
  // A partition without a free queue drops out; the arbiter is asked again among the others.
  while (!left.empty()) {
    grant = ask(stream, kernel, operation, needed, left);
    if (grant.partition == kNoPartition) return {};
    if (grant.partition == kWholeDevice) sharer_ = &stream;
    if (PhysicalQueue* queue = queues_.free_queue(stream, grant.partition)) {
      // What the arbiter did not choose first stands for one launch only.
      if (second_choice) grant.launches = 1;
      return take(*queue);
    }
    if (queues_.awaits_queue(stream)) return {};
    if (!core_.streams_share) core_.arbiter->release(grant.partition, stream.id);
    binding.reason = WholeReason::kNoQueue;
    second_choice = true;
    if (left.data() != scratch_.data()) scratch_.assign(left.begin(), left.end());
    const PhysicalQueue* const tail = stream.submitted.tail;
    const PartitionId given_up =
        tail != nullptr && queues_.gives_up_slot(stream) ? tail->partition : kNoPartition;
    std::erase_if(scratch_, [&](PartitionId id) {
      return id == grant.partition || !core_.pool.has_queue(id) ||
             (id == given_up && id != kWholeDevice);
    });
    left = scratch_;
  }
  grant = {};
  grant.launches = 0;
  if (core_.streams_share) binding.queue = &stream.app_stream;
  return binding;  // streams kept apart and no room: deferred until another stream's grant ends
}

// The stream's grant is good for the launch: it is not used up, its partition is wide enough and
// has not refused the kernel, and the arbiter admits the stream there.
bool Placer::grant_stands(const Stream& stream, const Kernel& kernel, std::uint32_t needed) const {
  const GrantTerms& grant = stream.placing.grant;
  return grant.launches > 0 && core_.layout.at(grant.partition).sms >= needed &&
         !kernel.refused.test(grant.partition) && core_.arbiter->admits(grant.partition, stream.id);
}

bool Placer::prepare_move(Stream& stream, const Kernel& kernel, std::uint32_t needed,
                          bool flushing) {
  auto just_in_time = [&] { return stream.timeline.outstanding() < core_.options.ahead_of_move; };
  if (just_in_time() || grant_stands(stream, kernel, needed)) return true;
  completion_.close_batch(stream);  // else its end would be seen too late, or never
  completion_.poll(stream);
  if (just_in_time()) return true;
  if (!flushing || !core_.streams_share) return false;
  GrantTerms& grant = stream.placing.grant;
  const PhysicalQueue* const tail = stream.submitted.tail;
  if (grant.launches == 0 && tail != nullptr && tail->partition == grant.partition)
    grant.launches = 1;
  return true;
}

PartitionId Placer::likely_part(Stream& stream, const Kernel& kernel, std::uint32_t needed) {
  const PartitionId granted = stream.placing.grant.partition;
  const bool part = granted != kWholeDevice && granted != kNoPartition;
  const PartitionId partition = part ? granted : last_part_;
  if (partition == kNoPartition) return kNoPartition;
  if (core_.layout.at(partition).sms >= needed && !kernel.refused.test(partition)) return partition;
  const std::span<const PartitionId> wide = eligible(stream, kernel, needed);
  return wide.empty() || wide.front() == kWholeDevice ? kNoPartition : wide.front();
}

void Placer::refused(Stream& stream, Kernel& kernel, PhysicalQueue& queue) {
  kernel.refused.set(queue.partition);
  Stream::Placing& placing = stream.placing;
  placing.retry_sms = std::max(placing.retry_sms, next_wider(kernel, queue.partition));
  placing.grant = {kWholeDevice, 0};
  give_up(stream, queue);
}

// It never was this stream's, unless its earlier work is there: then it still is.
void Placer::give_up(Stream& stream, const PhysicalQueue& queue) {
  if (!core_.streams_share && &queue != stream.submitted.tail)
    core_.arbiter->release(queue.partition, stream.id);
}

// SMs of the narrowest partition beyond this one that has not refused the kernel; 0: none that
// is at most twice as wide as the first that did. For a wider one others would pay more than its
// launches cost that go to the whole device.
std::uint32_t Placer::next_wider(const Kernel& kernel, PartitionId partition) const {
  std::uint32_t least = 0;
  for (const PartitionId id : by_width_) {
    const std::uint32_t sms = core_.layout.at(id).sms;
    if (kernel.refused.test(id)) {
      least = least == 0 ? sms : least;
    } else if (least != 0 && id != kWholeDevice && sms > core_.layout.at(partition).sms) {
      return sms <= 2 * least ? sms : 0;
    }
  }
  return 0;
}

std::span<const PartitionId> Placer::eligible(Stream& stream, const Kernel& kernel,
                                              std::uint32_t needed) {
  const auto first = std::find_if(by_width_.begin(), by_width_.end(), [&](PartitionId id) {
    return core_.layout.at(id).sms >= needed;
  });
  const std::span<const PartitionId> wide(first, by_width_.end());
  if (core_.streams_share && kernel.refused.none()) return wide;
  hal::ComputeSet excluded = core_.arbiter->barred(stream.id);
  if (!excluded.empty()) {
    completion_.look_at_parts();
    excluded = core_.arbiter->barred(stream.id);
  }
  scratch_.clear();
  for (const PartitionId id : wide) {
    const bool out =
        id == kWholeDevice ? !core_.streams_share : core_.layout.at(id).compute.overlaps(excluded);
    if (!out && !kernel.refused.test(id)) scratch_.push_back(id);
  }
  return scratch_;
}

GrantTerms Placer::ask(Stream& stream, const Kernel& kernel, const LaunchOperation* operation,
                       std::uint32_t needed, std::span<const PartitionId> eligible) {
  Stream::Placing& placing = stream.placing;
  ReadyOperation ready;
  ready.id = stream.timeline.submitted + 1;
  ready.stream = stream.id;
  ready.sms = needed;
  const hal::KernelLaunch* launch = operation != nullptr ? &operation->launch() : nullptr;
  if (launch != nullptr) ready.kernel = launch_key(kernel.name_hash, *launch);
  ready.predicted_ns = core_.predicted_ns(kernel, launch, core_.whole());
  ready.last_partition = placing.last_partition;
  ready.iteration_end = placing.iteration_ended;
  const Advice* const advice = advice_for(stream, operation);
  if (advice != nullptr) {
    ready.kind = advice->kind;
    ready.ready_at_ns = advice->ready_at_ns;
    ready.deadline_ns = advice->deadline_ns;
    ready.queued_ns = advice->queued_ns;
  }
  GrantTerms terms = core_.arbiter->grant(ready, eligible);
  terms.counts_outstanding = terms.counts_outstanding || terms.partition != kWholeDevice;
  if (terms.partition != kNoPartition && terms.partition != kWholeDevice)
    last_part_ = terms.partition;
  // A policy that answers until something changes does not ask for ends of iterations.
  if (terms.heard || terms.launches == kUntilRevoked) placing.iteration_ended = false;
  if (terms.heard) {
    if (advice != nullptr) placing.announced_deadline_ns = advice->deadline_ns;
  } else if (terms.partition != kNoPartition) {
    announce_step(stream, advice);
  }
  if (core_.traced()) [[unlikely]]
    core_.trace(trace::TraceKind::kDecision, stream, ready.id, terms.partition, terms.launches);
  if (core_.arbiter->wants_service()) core_.wake.notify_one();
  return terms;
}

// --- steps and requests ------------------------------------------------------------------------

const Advice* Placer::advice_for(const Stream& stream, const Advice* said) {
  if (said != nullptr) return said;
  return stream.placing.advice ? &*stream.placing.advice : nullptr;
}

std::uint32_t Placer::widened(const Advice* advice, std::uint32_t needed) const {
  if (advice == nullptr || needed > widest_) return needed;
  return std::max(needed, std::min(advice->sms, widest_));
}

// Deadlines are moments, so another deadline is another step; ranges without one may be nested in
// a step as deep as its layers, and say nothing of when it begins.
void Placer::announce_step(Stream& stream, const Advice* advice) {
  if (advice == nullptr || advice->deadline_ns == 0 ||
      advice->deadline_ns == stream.placing.announced_deadline_ns)
    return;
  stream.placing.announced_deadline_ns = advice->deadline_ns;
  expect(stream, *advice, false);
}

void Placer::expect(Stream& stream, const Advice& advice, bool cancelled) {
  ExpectedOperation expected;
  expected.stream = stream.id;
  expected.sms = std::max({1U, std::min(advice.sms, widest_), stream.placing.retry_sms});
  expected.ready_at_ns = advice.ready_at_ns;
  expected.deadline_ns = advice.deadline_ns;
  expected.queued_ns = advice.queued_ns;
  expected.kind = advice.kind;
  expected.cancelled = cancelled;
  core_.arbiter->expect(expected);
  if (core_.arbiter->wants_service()) core_.wake.notify_one();
}

// An answer for so many launches stands for one iteration at most.
void Placer::pass_iteration_ends(Stream& stream) {
  std::deque<std::uint64_t>& ends = stream.placing.iteration_ends;
  for (; !ends.empty() && ends.front() <= stream.timeline.submitted; ends.pop_front()) {
    stream.placing.iteration_ended = true;
    if (stream.placing.grant.launches != kUntilRevoked) stream.placing.grant.launches = 0;
  }
}

}  // namespace vitamin::runtime
