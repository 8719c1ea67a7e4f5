// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/played_job.h"

#include <algorithm>

namespace vitamin::sim {

PlayedJob::PlayedJob(const RecordedJob& job) : job_(job) {
  std::size_t longest = 0;
  std::uint32_t streams = 0;
  for (const RecordedJob::Part& part : job.parts) {
    longest = std::max(longest, part.operations.size());
    for (const RecordedJob::Operation& operation : part.operations)
      if (operation.call == RecordedJob::Call::kCopy) streams = std::max(streams, operation.of + 1);
  }
  ends_.resize(4 * longest, kForever);
  stream_ns_.resize(streams, 0);
}

void PlayedJob::play(const RecordedJob::Part& part, double at_ns, double pace) {
  parts_.push_back({&part, at_ns, pace});
  run_host();
}

// Only of what was asked for lately: no caller waits for anything older.
double PlayedJob::end_of(std::uint64_t serial) const {
  return serial == kNothing ? 0 : ends_[serial % ends_.size()];
}

void PlayedJob::run_host() {
  while (!parts_.empty()) {
    const RecordedJob::Part& part = *parts_.front().part;
    const double pace = parts_.front().pace;
    if (call_ == 0) host_ns_ = std::max(host_ns_, parts_.front().at_ns);
    if (call_ == part.operations.size()) {
      host_ns_ += part.end_ns * pace;
      first_ += call_;
      call_ = 0;
      parts_.pop_front();
      continue;
    }
    const RecordedJob::Operation& operation = part.operations[call_];
    const std::uint64_t serial = first_ + call_;
    const std::uint64_t after =
        operation.after < 0 ? kNothing : first_ + static_cast<std::uint64_t>(operation.after);
    if (operation.call == RecordedJob::Call::kWait) {
      const double end = end_of(after);
      if (end == kForever) return;
      host_ns_ = std::max(host_ns_ + operation.host_ns * pace, end + job_.return_ns);
      seen_ns_ = host_ns_;
    } else {
      host_ns_ += operation.host_ns * pace;
      set_end(serial, kForever);
      if (operation.call == RecordedJob::Call::kKernel) {
        kernels_.push_back({&operation, serial, after, host_ns_, call_ == part.last_kernel});
      } else {
        copies_.push_back({&operation, serial, after, host_ns_, false});
      }
    }
    ++call_;
  }
}

double PlayedJob::ready_ns(const Issued& issued) const {
  return std::max(issued.at_ns + job_.launch_ns, end_of(issued.after));
}

const RecordedJob::Operation* PlayedJob::next() const {
  return kernels_.empty() ? nullptr : kernels_.front().operation;
}

double PlayedJob::ready_ns() const {
  return kernels_.empty() ? kForever : ready_ns(kernels_.front());
}

bool PlayedJob::ended(double now_ns) {
  const Issued issued = kernels_.front();
  kernels_.pop_front();
  set_end(issued.serial, now_ns);
  run_host();
  return issued.last;
}

double PlayedJob::next_copy_ns() const {
  if (copies_.empty()) return kForever;
  const Issued& copy = copies_.front();
  return std::max(ready_ns(copy), stream_ns_[copy.operation->of]);
}

void PlayedJob::copy(double now_ns, double* link_free_ns) {
  bool any = false;
  while (next_copy_ns() <= now_ns) {
    const Issued copy = copies_.front();
    copies_.pop_front();
    const double end = std::max(now_ns, *link_free_ns) + copy.operation->ns;
    *link_free_ns = stream_ns_[copy.operation->of] = end;
    set_end(copy.serial, end);
    any = true;
  }
  if (any) run_host();
}

std::size_t PlayedJob::asked(double by_ns) const {
  const auto end =
      std::partition_point(kernels_.begin(), kernels_.end(),
                           [&](const Issued& issued) { return issued.at_ns <= by_ns; });
  return static_cast<std::size_t>(end - kernels_.begin());
}

double alone_ns(const RecordedJob& job, const RecordedJob::Part& part, std::uint32_t sms) {
  constexpr unsigned kTimes = 6, kCounted = 3;
  PlayedJob played(job);
  double now = 0, link = 0, counted_from = 0;
  played.play(part, 0);
  played.play(part, 0);
  for (unsigned ended = 0; ended < kTimes;) {
    played.copy(now, &link);
    const RecordedJob::Operation* operation = played.next();
    const double ready = operation == nullptr ? kForever : played.ready_ns();
    if (ready == kForever) {
      now = std::max(now, played.next_copy_ns());
      if (now == kForever) return 0;  // it waits for itself
      continue;
    }
    // A copy that starts before may end before.
    if (played.next_copy_ns() < ready) {
      now = std::max(now, played.next_copy_ns());
      continue;
    }
    const RecordedJob::Kernel& kernel = job.kernels[operation->of];
    now = std::max(now + job.gap_ns, ready) + operation->ns * kernel.stretch[sms];
    if (!played.ended(now)) continue;
    if (++ended == kTimes - kCounted) counted_from = now;
    played.play(part, now);
  }
  return (now - counted_from) / kCounted;
}

}  // namespace vitamin::sim
