// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/placement.h"

#include <algorithm>
#include <utility>

namespace vitamin::runtime {

using stats::WholeReason;

void Placement::list_entries() {
  for (const PoolEntry& entry : core_.layout.entries()) {
    if (entry.whole() || !core_.pool.has(entry.id)) continue;
    by_width_.push_back(entry.id);
    widest_ = std::max(widest_, entry.processors);
    if (entry.processors < core_.whole())
      widest_narrow_ = std::max(widest_narrow_, entry.processors);
  }
  by_width_.push_back(kWholeDevice);
  scratch_.reserve(by_width_.size());
}

Placement::Binding Placement::bind(Stream& stream, Kernel& kernel, const LaunchOperation* operation,
                                   std::uint32_t needed) {
  Choice& grant = stream.placing.grant;
  Binding binding;
  if (needed > widest_ || !parts()) {
    binding.queue = &stream.own;
    binding.leased = leases_whole(stream);
    binding.reason = kernel.resident          ? WholeReason::kResident
                     : needed > core_.whole() ? WholeReason::kCluster
                     : !parts()               ? WholeReason::kPoolMissing
                     : kernel.doubted         ? WholeReason::kResident
                                              : WholeReason::kNoEligibleEntry;
    return binding;
  }
  auto take = [&](PhysicalQueue& queue) {
    if (grant.launches != kUntilChanged) --grant.launches;
    // On the whole device it still wants: else every launch would wait anew for what never comes.
    if (!queue.whole()) stream.placing.queue_wanted_since.reset();
    binding.queue = &queue;
    binding.leased = grant.leased;
    return binding;
  };
  if (grant_stands(stream, kernel, needed)) {
    announce_step(stream, advice_for(stream, operation));
    if (PhysicalQueue* queue = queues_.free_queue(stream, grant.entry)) return take(*queue);
    if (queues_.awaits_queue(stream)) return {};
  }
  std::span<const EntryId> left = eligible(stream, kernel, needed);
  // An entry without a free queue drops out; the policy is asked again among the others.
  while (!left.empty()) {
    grant = ask(stream, kernel, operation, needed, left);
    if (grant.entry == kNoEntry) return {};
    if (grant.entry == kWholeDevice) sharer_ = &stream;
    if (PhysicalQueue* queue = queues_.free_queue(stream, grant.entry)) {
      // What the policy did not choose first stands for one launch only.
      if (binding.reason == WholeReason::kNoQueue) grant.launches = 1;
      return take(*queue);
    }
    if (queues_.awaits_queue(stream)) return {};
    if (!core_.lanes_share) core_.arbiter->release(grant.entry, stream.lane);
    binding.reason = WholeReason::kNoQueue;
    if (left.data() != scratch_.data()) scratch_.assign(left.begin(), left.end());
    const PhysicalQueue* const tail = stream.submitted.tail;
    const EntryId given_up =
        tail != nullptr && queues_.gives_up_slot(stream) ? tail->entry : kNoEntry;
    std::erase_if(scratch_, [&](EntryId id) {
      return id == grant.entry || !core_.pool.has_queue(id) ||
             (id == given_up && id != kWholeDevice);
    });
    left = scratch_;
  }
  grant = {};
  grant.launches = 0;
  if (core_.lanes_share) binding.queue = &stream.own;
  return binding;  // lanes kept apart and no room: deferred until another lane's lease ends
}

// The policy's last answer, as long as the entry is wide enough and its gate open.
bool Placement::grant_stands(const Stream& stream, const Kernel& kernel,
                             std::uint32_t needed) const {
  const Choice& grant = stream.placing.grant;
  return grant.launches > 0 && core_.layout.at(grant.entry).processors >= needed &&
         !kernel.refused.test(grant.entry) && core_.arbiter->admits(grant.entry, stream.lane);
}

bool Placement::may_move(Stream& stream, const Kernel& kernel, std::uint32_t needed, bool hurried) {
  auto just_in_time = [&] { return stream.timeline.outstanding() < core_.options.ahead_of_move; };
  if (just_in_time() || grant_stands(stream, kernel, needed)) return true;
  completion_.close_batch(stream);  // else its end would be seen too late, or never
  completion_.poll(stream);
  if (just_in_time()) return true;
  if (!hurried || !core_.lanes_share) return false;
  Choice& grant = stream.placing.grant;
  const PhysicalQueue* const tail = stream.submitted.tail;
  if (grant.launches == 0 && tail != nullptr && tail->entry == grant.entry) grant.launches = 1;
  return true;
}

EntryId Placement::likely_part(Stream& stream, const Kernel& kernel, std::uint32_t needed) {
  const EntryId entry =
      stream.placing.grant.entry != kWholeDevice ? stream.placing.grant.entry : last_part_;
  if (entry == kNoEntry) return kNoEntry;
  if (core_.layout.at(entry).processors >= needed && !kernel.refused.test(entry)) return entry;
  const std::span<const EntryId> wide = eligible(stream, kernel, needed);
  return wide.empty() || wide.front() == kWholeDevice ? kNoEntry : wide.front();
}

void Placement::refused(Stream& stream, Kernel& kernel, PhysicalQueue& queue) {
  kernel.refused.set(queue.entry);
  Stream::Placing& placing = stream.placing;
  placing.retry_processors = std::max(placing.retry_processors, next_wider(kernel, queue.entry));
  placing.grant = {kWholeDevice, 0};
  give_up(stream, queue);
}

// It never was this stream's, unless its earlier work is there: then it still is.
void Placement::give_up(Stream& stream, const PhysicalQueue& queue) {
  if (!core_.lanes_share && &queue != stream.submitted.tail)
    core_.arbiter->release(queue.entry, stream.lane);
}

// Processors of the narrowest entry beyond this one that has not refused the kernel; 0: none that
// is at most twice as wide as the first that did. For a wider one others would pay more than its
// launches cost that go to the whole device.
std::uint32_t Placement::next_wider(const Kernel& kernel, EntryId entry) const {
  std::uint32_t least = 0;
  for (const EntryId id : by_width_) {
    const std::uint32_t processors = core_.layout.at(id).processors;
    if (kernel.refused.test(id)) {
      least = least == 0 ? processors : least;
    } else if (least != 0 && id != kWholeDevice && processors > core_.layout.at(entry).processors) {
      return processors <= 2 * least ? processors : 0;
    }
  }
  return 0;
}

std::span<const EntryId> Placement::eligible(Stream& stream, const Kernel& kernel,
                                             std::uint32_t needed) {
  const auto first = std::find_if(by_width_.begin(), by_width_.end(), [&](EntryId id) {
    return core_.layout.at(id).processors >= needed;
  });
  const std::span<const EntryId> wide(first, by_width_.end());
  if (core_.lanes_share && kernel.refused.none()) return wide;
  hal::ComputeSet excluded = core_.arbiter->barred(stream.lane);
  if (!excluded.empty()) {
    completion_.release_idle();
    excluded = core_.arbiter->barred(stream.lane);
  }
  scratch_.clear();
  for (const EntryId id : wide) {
    const bool out =
        id == kWholeDevice ? !core_.lanes_share : core_.layout.at(id).compute.overlaps(excluded);
    if (!out && !kernel.refused.test(id)) scratch_.push_back(id);
  }
  return scratch_;
}

Choice Placement::ask(Stream& stream, const Kernel& kernel, const LaunchOperation* operation,
                      std::uint32_t needed, std::span<const EntryId> eligible) {
  Stream::Placing& placing = stream.placing;
  ReadyOperation ready;
  ready.id = stream.timeline.submitted + 1;
  ready.lane = stream.lane;
  ready.processors = needed;
  const hal::KernelLaunch* launch = operation != nullptr ? &operation->launch() : nullptr;
  if (launch != nullptr) ready.kernel = launch_key(kernel.name_hash, *launch);
  ready.predicted_ns = core_.predicted_ns(kernel, launch, core_.whole());
  ready.last_entry = placing.last_entry;
  ready.iteration_end = std::exchange(placing.iteration_ended, false);
  const Advice* const advice = advice_for(stream, operation);
  if (advice != nullptr) {
    ready.kind = advice->kind;
    ready.ready_at_ns = advice->ready_at_ns;
    ready.deadline_ns = advice->deadline_ns;
    ready.queued_ns = advice->queued_ns;
  }
  Choice choice = core_.arbiter->grant(ready, eligible);
  choice.leased = choice.leased || choice.entry != kWholeDevice;
  if (choice.entry != kNoEntry && choice.entry != kWholeDevice) last_part_ = choice.entry;
  // An arbiter elsewhere has not heard the question when a grant that stands has answered it.
  if (advice != nullptr && core_.between_processes && choice.entry != kNoEntry)
    announce_step(stream, advice);
  else if (advice != nullptr)
    placing.announced_deadline_ns = advice->deadline_ns;
  if (core_.traced()) [[unlikely]]
    core_.trace(trace::Kind::kDecision, stream, ready.id, choice.entry, choice.launches);
  if (core_.arbiter->wants_service()) core_.wake.notify_one();
  return choice;
}

// --- steps and requests ------------------------------------------------------------------------

const Advice* Placement::advice_for(const Stream& stream, const LaunchOperation* operation) {
  if (operation != nullptr && operation->advice() != nullptr) return operation->advice();
  return stream.placing.advice ? &*stream.placing.advice : nullptr;
}

std::uint32_t Placement::widened(const Stream& stream, const LaunchOperation* operation,
                                 std::uint32_t needed) const {
  const Advice* const advice = advice_for(stream, operation);
  if (advice == nullptr || needed > widest_) return needed;
  return std::max(needed, std::min(advice->processors, widest_));
}

// Deadlines are moments, so another deadline is another step; ranges without one may be nested in
// a step as deep as its layers, and say nothing of when it begins.
void Placement::announce_step(Stream& stream, const Advice* advice) {
  if (advice == nullptr || advice->deadline_ns == 0 ||
      advice->deadline_ns == stream.placing.announced_deadline_ns)
    return;
  stream.placing.announced_deadline_ns = advice->deadline_ns;
  expect(stream, *advice, false);
}

void Placement::expect(Stream& stream, const Advice& advice, bool cancelled) {
  Hint hint;
  hint.lane = stream.lane;
  hint.processors =
      std::max({1U, std::min(advice.processors, widest_), stream.placing.retry_processors});
  hint.ready_at_ns = advice.ready_at_ns;
  hint.deadline_ns = advice.deadline_ns;
  hint.queued_ns = advice.queued_ns;
  hint.kind = advice.kind;
  hint.cancelled = cancelled;
  core_.arbiter->expect(hint);
  if (core_.arbiter->wants_service()) core_.wake.notify_one();
}

// An answer for so many launches stands for one iteration at most; a policy that answers until
// something changes does not ask for ends of iterations.
void Placement::pass_iteration_ends(Stream& stream) {
  std::deque<std::uint64_t>& ends = stream.placing.iteration_ends;
  for (; !ends.empty() && ends.front() <= stream.timeline.submitted; ends.pop_front()) {
    stream.placing.iteration_ended = true;
    if (stream.placing.grant.launches != kUntilChanged) stream.placing.grant.launches = 0;
  }
}

}  // namespace vitamin::runtime
