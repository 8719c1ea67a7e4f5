// SPDX-License-Identifier: Apache-2.0
#include "policies/bounded.h"

#include <algorithm>
#include <utility>

namespace vitamin::policies {

using hal::ComputeSet;
using runtime::Choice;
using runtime::ClientId;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::kWholeDevice;
using runtime::PoolView;

void Bounded::bound(ClientId id, const Bounds& bounds) {
  if (bounds.most != 0 || bounds.reserved != 0) clients_[id].bounds = bounds;
}

void Bounded::replace(std::unique_ptr<runtime::Policy> policy, const std::string& specification) {
  if (policy_->remembers()) {
    if (former_.size() == kFormer) former_.erase(former_.begin());
    former_.push_back({specification_, std::move(policy_)});
  }
  const auto known = std::find_if(former_.begin(), former_.end(), [&](const Former& former) {
    return former.specification == specification;
  });
  if (known != former_.end()) {
    policy = std::move(known->policy);
    former_.erase(known);
  }
  policy_ = std::move(policy);
  specification_ = specification;
}

void Bounded::forget(ClientId id) {
  clients_.erase(id);
  policy_->forget(id);
  for (const Former& former : former_) former.policy->forget(id);
}

std::string Bounded::take_message() {
  if (!message_.empty()) return std::exchange(message_, {});
  return policy_->take_message();
}

// Where work of the client and of those of its group may run, this lane apart: what it submits next
// runs behind what it submitted before. The whole device is shared by everybody and held by nobody.
ComputeSet Bounded::held_beside(ClientId id, const Client& client, runtime::LaneId lane,
                                const PoolView& pool) const {
  const std::uint32_t group = client.bounds.group;
  const auto together = [&](ClientId holder) {
    if (holder == id || group == 0) return holder == id;
    const auto other = clients_.find(holder);
    return other != clients_.end() && other->second.bounds.group == group;
  };
  ComputeSet held;
  const std::span<const runtime::Holding> planned(planned_);
  for (const auto& holdings : {pool.holdings, pool.draining, planned})
    for (const runtime::Holding& holding : holdings) {
      const ClientId holder = holding.next.client;
      if (holding.entry == kWholeDevice || (holder == id && holding.next.lane == lane)) continue;
      if (together(holder)) held |= pool.entries[holding.entry].compute;
    }
  return held;
}

// Whether an operation that needs so many processors may run there, beside what is held.
bool Bounded::within(const Client& client, std::uint32_t needed, EntryId entry, ComputeSet held,
                     const PoolView& pool) const {
  const std::size_t narrowest = std::min<std::size_t>(1, pool.entries.size() - 1);
  const std::uint32_t most =
      std::max({client.bounds.most, needed, pool.entries[narrowest].processors});
  std::uint32_t processors = 0;
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    if ((held | pool.entries[entry].compute).has(static_cast<unsigned>(unit)))
      processors += units_[unit];
  return processors <= most;
}

// What the policy inside sees of it.
PoolView Bounded::inside(const PoolView& pool) const {
  PoolView view = pool;
  if (clients_.empty()) return view;
  const auto with_bounds = [&](ClientId client) { return clients_.contains(client); };
  for (const runtime::ReadyOperation& operation : pool.waiting)
    view.all_share = view.all_share && !with_bounds(operation.client);
  for (const runtime::Holding& holding : pool.holdings)
    view.all_share = view.all_share && !with_bounds(holding.next.client);
  return view;
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
  const bool bound = own != clients_.end() && own->second.bounds.most != 0;
  const ComputeSet held =
      bound ? held_beside(own->first, own->second, operation.lane, pool) : ComputeSet();
  // The widest part is the last entry.
  const bool some_part_fits = operation.processors <= pool.entries.back().processors;
  const bool others_reserve = std::any_of(clients_.begin(), clients_.end(), [&](const auto& each) {
    return each.first != operation.client && each.second.reserved != kNoEntry;
  });
  left_.clear();
  for (const EntryId id : eligible) {
    if (id == kWholeDevice && some_part_fits && (bound || others_reserve)) continue;
    if (id == kWholeDevice || !bound || within(own->second, operation.processors, id, held, pool))
      left_.push_back(id);
  }
  // No part that is free is within its share, or was not yet: it waits for one.
  if (left_.empty()) return {kNoEntry, 0};
  return policy_->select(operation, left_, inside(pool));
}

runtime::Plan Bounded::prepare(const runtime::Hint& hint, const PoolView& pool) {
  runtime::Plan plan = policy_->prepare(hint, inside(pool));
  const auto own = clients_.find(hint.client);
  if (own == clients_.end()) return plan;
  Client& client = own->second;
  if (std::exchange(planned_epoch_, pool.epoch) != pool.epoch) planned_.clear();
  if (client.bounds.most != 0 && plan.target != kNoEntry &&
      !within(client, hint.processors, plan.target,
              held_beside(own->first, client, hint.lane, pool), pool)) {
    plan.target = kNoEntry;
    plan.close_gates = false;
  }
  if (client.bounds.most != 0 && plan.target != kNoEntry) {
    runtime::Holding target;
    target.next.client = hint.client;
    target.next.lane = hint.lane;
    target.entry = plan.target;
    std::erase_if(planned_, [&](const runtime::Holding& earlier) {
      return earlier.next.client == hint.client && earlier.next.lane == hint.lane;
    });
    planned_.push_back(target);
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
