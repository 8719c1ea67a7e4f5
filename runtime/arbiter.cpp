// SPDX-License-Identifier: Apache-2.0
#include "runtime/arbiter.h"

#include <algorithm>

#include "runtime/clock.h"

namespace vitamin::runtime {

PoolView LocalArbiter::view(LesseeId lessee) const {
  PoolView view{layout_.entries(), leases_.barred(lessee)};
  view.profile = profile_;
  return view;
}

void LocalArbiter::expect(const Hint& hint) {
  PoolView view = this->view(lessee(hint.lane));
  view.now_ns = now_ns();
  policy_->prepare(hint, view);
}

Choice LocalArbiter::grant(const ReadyOperation& operation, std::span<const EntryId> eligible) {
  const LesseeId lessee = this->lessee(operation.lane);
  PoolView view = this->view(lessee);
  // Reading the clock is a part of a launch's cost that only those pay who speak of times.
  if ((operation.ready_at_ns | operation.deadline_ns) != 0) view.now_ns = now_ns();
  Choice choice;
  if (const auto picked = policy_->pick({&operation, 1}, view); !picked || *picked != 0)
    return {kNoEntry, 0};
  choice = policy_->select(operation, eligible, view);
  // The proposal is tentative (the paper, "Binding and Submission"): a policy that answers
  // nonsense wastes the device and breaks nothing.
  if (std::find(eligible.begin(), eligible.end(), choice.entry) == eligible.end())
    choice = {eligible.back(), 1};
  if (choice.entry == kWholeDevice) return choice;
  LeaseVerdict verdict = leases_.acquire(choice.entry, lessee);
  if (verdict == LeaseVerdict::kGateClosed) verdict = leases_.open_gate(choice.entry);
  return verdict == LeaseVerdict::kGranted ? choice : Choice{kNoEntry, 0};
}

}  // namespace vitamin::runtime
