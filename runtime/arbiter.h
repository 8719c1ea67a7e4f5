// SPDX-License-Identifier: Apache-2.0
//
// The one seam between a client and whoever decides where its work runs: an object in this process
// (LocalArbiter), or a daemon behind rings.
//
// Threads: called with the device lock held. Nothing here blocks.
#pragma once

#include <memory>
#include <span>

#include "runtime/lease_table.h"
#include "runtime/policy.h"

namespace vitamin::runtime {

class Arbiter {
 public:
  virtual ~Arbiter() = default;
  // What `lessee` must not be given now.
  virtual hal::ComputeSet barred(LesseeId lessee) const = 0;
  // An entry of `eligible` for the operation, leased to `lessee`; kNoEntry when none is to be had
  // now. The whole device is never leased, only shared.
  virtual Choice grant(LesseeId lessee, const ReadyOperation& operation,
                       std::span<const EntryId> eligible) = 0;
  // The lessee holds the entry and its gate is open. Asked before every submission.
  virtual bool admits(EntryId entry, LesseeId lessee) const = 0;
  virtual void submitted(EntryId entry, LesseeId lessee) = 0;
  virtual void retired(EntryId entry, LesseeId lessee, std::uint32_t operations) = 0;
  // Given up; ends when nothing of the lessee is outstanding there.
  virtual void release(EntryId entry, LesseeId lessee) = 0;
  // Whether the streams of one client are one lessee.
  virtual bool lanes_share() const = 0;
};

// A policy and a lease table in this process.
class LocalArbiter final : public Arbiter {
 public:
  LocalArbiter(const PoolLayout& layout, std::unique_ptr<Policy> policy)
      : layout_(layout), policy_(std::move(policy)), leases_(layout) {}
  hal::ComputeSet barred(LesseeId lessee) const override { return leases_.barred(lessee); }
  Choice grant(LesseeId lessee, const ReadyOperation& operation,
               std::span<const EntryId> eligible) override;
  bool admits(EntryId entry, LesseeId lessee) const override {
    return entry == kWholeDevice ||
           (leases_.lessee(entry) == lessee && leases_.state(entry) == LeaseState::kLeased);
  }
  void submitted(EntryId entry, LesseeId lessee) override { leases_.submitted(entry, lessee); }
  void retired(EntryId entry, LesseeId lessee, std::uint32_t operations) override {
    leases_.retired(entry, lessee, operations);
  }
  void release(EntryId entry, LesseeId lessee) override { leases_.release(entry, lessee); }
  bool lanes_share() const override { return policy_->lanes_share(); }
  const LeaseTable& leases() const { return leases_; }

 private:
  const PoolLayout& layout_;
  std::unique_ptr<Policy> policy_;
  LeaseTable leases_;
};

}  // namespace vitamin::runtime
