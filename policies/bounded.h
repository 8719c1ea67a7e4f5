// SPDX-License-Identifier: Apache-2.0
//
// What a workload class asks for its clients, around any policy: a most share of the device, and
// processors that are kept for a client though it has nothing to run.
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
  std::uint32_t most = 0;      // processors of one grant; 0: no bound
  std::uint32_t reserved = 0;  // processors; 0: none
};

class Bounded final : public runtime::Policy {
 public:
  explicit Bounded(std::unique_ptr<runtime::Policy> policy) : policy_(std::move(policy)) {}

  // From now on, for this client; forget() ends it.
  void bound(runtime::ClientId client, const Bounds& bounds);
  // Another policy inside; what is reserved stays.
  void replace(std::unique_ptr<runtime::Policy> policy);

  std::string_view name() const override { return policy_->name(); }
  std::optional<std::size_t> pick(std::span<const runtime::ReadyOperation> ready,
                                  const runtime::PoolView& pool) override {
    return policy_->pick(ready, pool);
  }
  runtime::Choice select(const runtime::ReadyOperation& operation,
                         std::span<const runtime::EntryId> eligible,
                         const runtime::PoolView& pool) override;
  runtime::Plan prepare(const runtime::Hint& hint, const runtime::PoolView& pool) override;
  void forget(runtime::ClientId client) override;
  runtime::Terms terms() const override { return policy_->terms(); }
  std::string take_message() override;
  bool lanes_share() const override { return policy_->lanes_share(); }

 private:
  struct Client {
    Bounds bounds;
    runtime::EntryId reserved = runtime::kNoEntry;
    runtime::LaneId lane = 0;  // that carries the reservation
    bool tried = false;
  };
  void choose_reservation(Client& client, const runtime::Hint& hint, const runtime::PoolView& pool);

  std::unique_ptr<runtime::Policy> policy_;
  std::map<runtime::ClientId, Client> clients_;  // with bounds
  std::vector<runtime::EntryId> left_;           // scratch of select()
  std::string message_;
};

}  // namespace vitamin::policies
