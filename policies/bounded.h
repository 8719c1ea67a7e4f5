// SPDX-License-Identifier: Apache-2.0
//
// What a workload class and a scheduler's job ask for clients, around any policy: a most share of
// the device, and processors that are kept for a client though it has nothing to run.
//
// What a client, or all clients of one group together, run on at a time is within the share. Beyond
// it goes only what cannot be avoided: an operation that needs more, the narrowest part where the
// share is less, and whom the scheduler serves by age, whatever a policy says.
//
// A client with a reservation runs there, whatever fits. The policy inside decides among what is
// left. While something is reserved, the whole device,
// which nobody leases, is given only to what no part can run.
//
// Threads: as runtime::Policy.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/policy.h"

namespace vitamin::policies {

struct Bounds {
  std::uint32_t most = 0;      // processors that are held at a time; 0: no bound
  std::uint32_t reserved = 0;  // processors; 0: none
  std::uint32_t group = 0;     // `most` is of all clients of this group together; 0: of this one
};

class Bounded final : public runtime::Policy {
 public:
  // `units`: processors of each unit of the device. `specification`: of the policy.
  Bounded(std::unique_ptr<runtime::Policy> policy, std::vector<std::uint32_t> units,
          std::string specification = {})
      : policy_(std::move(policy)),
        specification_(std::move(specification)),
        units_(std::move(units)) {}

  // From now on, for this client; forget() ends it.
  void bound(runtime::ClientId client, const Bounds& bounds);
  // Another policy inside; what is reserved stays. One that was inside before, and has measured
  // something (Policy::remembers), is taken again instead of a new one.
  void replace(std::unique_ptr<runtime::Policy> policy, const std::string& specification);

  std::string_view name() const override { return policy_->name(); }
  std::optional<std::size_t> pick(std::span<const runtime::ReadyOperation> ready,
                                  const runtime::PoolView& pool) override {
    return policy_->pick(ready, inside(pool));
  }
  runtime::Choice select(const runtime::ReadyOperation& operation,
                         std::span<const runtime::EntryId> eligible,
                         const runtime::PoolView& pool) override;
  runtime::Plan prepare(const runtime::Hint& hint, const runtime::PoolView& pool) override;
  void forget(runtime::ClientId client) override;
  runtime::Terms terms() const override { return policy_->terms(); }
  std::string take_message() override;
  bool lanes_share() const override { return policy_->lanes_share(); }
  bool plans() const override { return !clients_.empty() || policy_->plans(); }
  std::uint64_t look_at() const override { return policy_->look_at(); }

 private:
  struct Client {
    Bounds bounds;
    runtime::EntryId reserved = runtime::kNoEntry;
    runtime::LaneId lane = 0;  // that carries the reservation
    bool tried = false;
  };
  runtime::PoolView inside(const runtime::PoolView& pool) const;
  bool within(const Client& client, std::uint32_t needed, runtime::EntryId entry,
              hal::ComputeSet held, const runtime::PoolView& pool) const;
  hal::ComputeSet held_beside(runtime::ClientId id, const Client& client, runtime::LaneId lane,
                              const runtime::PoolView& pool) const;
  void choose_reservation(Client& client, const runtime::Hint& hint, const runtime::PoolView& pool);

  std::unique_ptr<runtime::Policy> policy_;
  std::string specification_;
  struct Former {
    std::string specification;
    std::unique_ptr<runtime::Policy> policy;
  };
  static constexpr std::size_t kFormer = 8;
  std::vector<Former> former_;  // the newest last
  std::vector<std::uint32_t> units_;
  std::map<runtime::ClientId, Client> clients_;  // with bounds
  // Targets of bounded clients in this epoch: lanes that are planned for one after the other move
  // at once.
  std::vector<runtime::Holding> planned_;
  std::uint64_t planned_epoch_ = 0;
  std::vector<runtime::EntryId> left_;  // scratch of select()
  std::string message_;
};

}  // namespace vitamin::policies
