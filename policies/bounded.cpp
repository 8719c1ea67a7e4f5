// SPDX-License-Identifier: Apache-2.0
#include "policies/bounded.h"

#include <algorithm>
#include <utility>

namespace vitamin::policies {

using hal::ComputeSet;
using runtime::Choice;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::kWholeDevice;
using runtime::PoolView;

void Bounded::bound(runtime::ClientId id, const Bounds& bounds) {
  if (bounds.most != 0 || bounds.reserved != 0) clients_[id].bounds = bounds;
}

void Bounded::replace(std::unique_ptr<runtime::Policy> policy) { policy_ = std::move(policy); }

void Bounded::forget(runtime::ClientId id) {
  clients_.erase(id);
  policy_->forget(id);
}

std::string Bounded::take_message() {
  if (!message_.empty()) return std::exchange(message_, {});
  return policy_->take_message();
}

Choice Bounded::select(const runtime::ReadyOperation& operation, std::span<const EntryId> eligible,
                       const PoolView& pool) {
  if (clients_.empty()) return policy_->select(operation, eligible, pool);
  const auto own = clients_.find(operation.client);
  if (own != clients_.end()) {
    const EntryId reserved = own->second.reserved;
    if (std::find(eligible.begin(), eligible.end(), reserved) != eligible.end())
      return {reserved, runtime::kUntilChanged};
  }
  const std::uint32_t bound = own == clients_.end() ? 0 : own->second.bounds.most;
  // What needs more than its share cannot run at all with less.
  const std::uint32_t most = bound == 0 ? ~0U : std::max(bound, operation.processors);
  // The widest part is the last entry.
  const bool some_part_fits = operation.processors <= pool.entries.back().processors;
  const bool others_reserve = std::any_of(clients_.begin(), clients_.end(), [&](const auto& each) {
    return each.first != operation.client && each.second.reserved != kNoEntry;
  });
  left_.clear();
  for (const EntryId id : eligible) {
    if (id == kWholeDevice && some_part_fits && (bound != 0 || others_reserve)) continue;
    if (id == kWholeDevice || pool.entries[id].processors <= most) left_.push_back(id);
  }
  // No part that is free is within its share, or was not yet: it waits for one.
  if (left_.empty()) return {kNoEntry, 0};
  return policy_->select(operation, left_, pool);
}

runtime::Plan Bounded::prepare(const runtime::Hint& hint, const PoolView& pool) {
  runtime::Plan plan = policy_->prepare(hint, pool);
  const auto own = clients_.find(hint.client);
  if (own == clients_.end()) return plan;
  Client& client = own->second;
  if (client.bounds.most != 0 && plan.target != kNoEntry &&
      pool.entries[plan.target].processors > std::max(client.bounds.most, hint.processors)) {
    plan.target = kNoEntry;
    plan.close_gates = false;
  }
  if (client.bounds.reserved == 0) return plan;
  if (!client.tried) choose_reservation(client, hint, pool);
  // The policy's own reservation, where it makes one, knows more than a number.
  if (plan.standing != kNoEntry || client.reserved == kNoEntry) return plan;
  if (pool.entries[client.reserved].processors >= hint.processors) plan.target = kNoEntry;
  if (hint.lane == client.lane) plan.standing = client.reserved;
  return plan;
}

// The narrowest part that is wide enough and free of other reservations, once for each client. Not
// so much that nothing would be left for those without one.
void Bounded::choose_reservation(Client& client, const runtime::Hint& hint, const PoolView& pool) {
  client.tried = true;
  client.lane = hint.lane;
  ComputeSet taken = pool.set_aside;
  for (const auto& [id, other] : clients_)
    if (other.reserved != kNoEntry) taken |= pool.entries[other.reserved].compute;
  for (const runtime::PoolEntry& entry : pool.entries.subspan(1)) {
    if (entry.processors < client.bounds.reserved || entry.compute.overlaps(taken)) continue;
    if ((taken | entry.compute) == pool.entries.front().compute) continue;
    client.reserved = entry.id;
    return;
  }
  message_ = "client " + std::to_string(hint.client) +
             " gets no reservation: " + std::to_string(client.bounds.reserved) +
             " processors beside those of others are not "
             "to be had";
}

}  // namespace vitamin::policies
