// SPDX-License-Identifier: Apache-2.0
//
// fifo: whatever comes first runs first, on the whole device. The smallest policy, and the one to
// read before writing another: a job that is alone on the device loses nothing under it.
#include "policies/builtin.h"

namespace vitamin::policies {
namespace {

class Fifo final : public runtime::Policy {
 public:
  std::string_view name() const override { return "fifo"; }
  bool plans() const override { return false; }

  // Pick is inherited: the first of the bindable operations.

  runtime::Choice select(const runtime::ReadyOperation&, std::span<const runtime::EntryId> eligible,
                         const runtime::PoolView&) override {
    // The whole device comes last among the eligible entries, which are sorted by width. The
    // answer stands until something changes, so the launch path asks us once.
    return {eligible.back(), runtime::kUntilChanged};
  }
};

}  // namespace

const Description kFifo = {"fifo", "in order, on the whole device: for a job alone", {}};

std::unique_ptr<runtime::Policy> make_fifo(Parameters&, std::uint64_t) {
  return std::make_unique<Fifo>();
}

}  // namespace vitamin::policies
