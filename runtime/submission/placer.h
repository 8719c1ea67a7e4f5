// SPDX-License-Identifier: Apache-2.0
//
// Placer: which partition of the pool a launch goes to, on which queue. Keeps Stream::placing
// (stream.h).
//
// The arbiter answers (Arbiter::grant) for one launch, for a number of them, or until something
// changes; while an answer stands it is not asked. What the answer names is checked: the partition
// is wide enough, has not refused the kernel, and has a queue for the stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/descriptor.h"
#include "runtime/submission/queue_manager.h"

namespace vitamin::runtime {

class Placer {
 public:
  Placer(Core& core, Completion& completion, QueueManager& queues)
      : core_(core), completion_(completion), queues_(queues) {}
  // The pool is realised.
  void list_partitions();

  struct Binding {
    PhysicalQueue* queue = nullptr;                           // null: there is no grant: deferred
    stats::WholeReason reason = stats::WholeReason::kPolicy;  // why the whole device, if it is that
    bool narrow_eligible = false;
    // The launch counts under the stream's grant (Arbiter::submitted), though that may be revoked
    // before the driver has it.
    bool counts_outstanding = false;
  };
  // `operation`: null for a call of the vendor that computes. `needed`: SMs.
  Binding bind(Stream& stream, Kernel& kernel, const LaunchOperation* operation,
               std::uint32_t needed);
  // Before a bind(). Moves are made just in time (DispatchOptions::ahead_of_move): false while more
  // of the stream's work is unfinished and the next launch would move; then it has been looked at.
  // `flushing`: the launch can wait for no better time. Where streams share grants, it stays on the
  // stream's partition even if the grant's launches are used up, and counts under that grant, or it
  // moves at the higher price: else it would go to the whole device, where it counts under none.
  bool prepare_move(Stream& stream, const Kernel& kernel, std::uint32_t needed, bool flushing);
  // The part that a later launch of the stream may be granted: that of its own grant, else the one
  // that any stream was granted last. kNoPartition: the whole device.
  PartitionId likely_part(Stream& stream, const Kernel& kernel, std::uint32_t needed);
  // The driver refused the launch on a part; a bind() follows.
  void refused(Stream& stream, Kernel& kernel, PhysicalQueue& queue);
  // The grant of the partition is given up, unless the stream's earlier work is on the queue.
  void give_up(Stream& stream, const PhysicalQueue& queue);
  // The stream has a grant of the whole device under which a launch counts that begins now.
  bool counts_whole(const Stream& stream) const {
    const GrantTerms& grant = stream.placing.grant;
    return grant.counts_outstanding && grant.partition == kWholeDevice &&
           core_.arbiter->admits(kWholeDevice, stream.id);
  }
  // The stream, or the process where its streams share grants, shares the whole device, and
  // nothing there has to end soon. Launches may then wait on the device for what may need the host
  // or another process, as natively: no other client waits for them. Where it is so, places in the
  // driver's queues are kept for them.
  bool claim_free_sharing(const Stream& stream) const {
    const bool shares =
        granted_freely(stream) || (core_.streams_share && stream.placing.grant.launches == 0 &&
                                   sharer_ != nullptr && granted_freely(*sharer_));
    return shares && completion_.reserve_behind_host_waits();
  }
  // One of `eligible`, which the arbiter chooses for this launch.
  GrantTerms ask(Stream& stream, const Kernel& kernel, const LaunchOperation* operation,
                 std::uint32_t needed, std::span<const PartitionId> eligible);
  // Partitions that could take the launch now, narrowest first. Valid until the next call. Under an
  // arbiter that isolates streams, idle grants of this process end first (look_at_parts()).
  std::span<const PartitionId> eligible(Stream& stream, const Kernel& kernel, std::uint32_t needed);

  // --- steps and requests ----------------------------------------------------------------------
  // `needed` SMs, or as many as the step asks for where there are such partitions.
  std::uint32_t widened(const Advice* advice, std::uint32_t needed) const;
  // The arbiter hears of a step that begins with this launch while a grant stands.
  void announce_step(Stream& stream, const Advice* advice);
  // What is to come on the stream.
  void expect(Stream& stream, const Advice& advice, bool cancelled);
  // What was said of ends of iterations holds behind the operations that it was said behind.
  static void pass_iteration_ends(Stream& stream);
  // What is said of an operation, by itself (null: nothing) or by its stream.
  static const Advice* advice_for(const Stream& stream, const Advice* said);
  static const Advice* advice_for(const Stream& stream, const LaunchOperation* operation) {
    return advice_for(stream, operation != nullptr ? operation->advice() : nullptr);
  }

  std::uint32_t widest() const { return widest_; }                // made of units
  std::uint32_t widest_narrow() const { return widest_narrow_; }  // and less than the whole device
  bool parts() const { return by_width_.size() > 1; }             // there are any

 private:
  bool granted_freely(const Stream& stream) const {
    const GrantTerms& grant = stream.placing.grant;
    return grant.partition == kWholeDevice && !grant.counts_outstanding &&
           grant.launches == kUntilRevoked && !completion_.waits_for_completion() &&
           !completion_.has_window(stream) && core_.arbiter->admits(kWholeDevice, stream.id);
  }
  bool grant_stands(const Stream& stream, const Kernel& kernel, std::uint32_t needed) const;
  std::uint32_t next_wider(const Kernel& kernel, PartitionId partition) const;

  Core& core_;
  Completion& completion_;
  QueueManager& queues_;
  std::vector<PartitionId>
      by_width_;                      // realised partitions, narrowest first, the whole device last
  std::vector<PartitionId> scratch_;  // eligible partitions when some are excluded
  std::uint32_t widest_ = 0, widest_narrow_ = 0;
  PartitionId last_part_ = kNoPartition;  // that was granted, to any stream
  const Stream* sharer_ = nullptr;        // that was granted the whole device last
};

}  // namespace vitamin::runtime
