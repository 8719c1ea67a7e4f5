// SPDX-License-Identifier: Apache-2.0
#include "policies/right_of_way.h"

#include <utility>

namespace vitamin::policies {

using runtime::ClientId;
using runtime::Holding;
using runtime::kNever;
using runtime::OperationClass;
using runtime::PoolView;
using runtime::ReadyOperation;

namespace {
constexpr std::uint64_t kLooks = 4;  // within `quiet`
}

RightOfWay::Client* RightOfWay::find(ClientId client) {
  return const_cast<Client*>(std::as_const(*this).find(client));
}

const RightOfWay::Client* RightOfWay::find(ClientId client) const {
  const auto at = std::lower_bound(clients_.begin(), clients_.end(), client, before);
  return at != clients_.end() && at->client == client ? &*at : nullptr;
}

RightOfWay::Client& RightOfWay::of(const ReadyOperation& operation) {
  Client* known = find(operation.client);
  if (known == nullptr)
    known = &*clients_.insert(
        std::lower_bound(clients_.begin(), clients_.end(), operation.client, before),
        Client{operation.client});
  known->right_of_way = operation.right_of_way;
  const bool decodes = !operation.right_of_way && operation.kind == OperationClass::kDecode;
  known->decodes = decodes && (known->decodes || !known->seen);
  known->seen = true;
  return *known;
}

void RightOfWay::expect(ClientId client, std::uint64_t until_ns) {
  if (Client* known = find(client)) known->expected_ns = until_ns;
}

void RightOfWay::look(const PoolView& pool, Wanted wanted) {
  draining_.clear();
  for (Client& client : clients_) {
    client.was_busy = client.busy();
    client.asks = client.holds = client.drains = client.seen = false;
  }
  for (const Holding& holding : pool.draining)
    if (concerns(holding.next)) {
      of(holding.next).drains = true;
      draining_.emplace_back(holding.next.client, holding.next.lane);
    }
  for (const Holding& holding : pool.holdings)
    if (concerns(holding.next)) of(holding.next).holds = true;
  // A lane that was asked for its grant and has not given it back says then whether it wants more.
  for (const ReadyOperation& operation : pool.waiting)
    if (concerns(operation)) {
      Client& client = of(operation);
      if (!(client.asked_back && rests(operation))) client.asks = true;
    }
  claimed_ = prefills_ = false;
  look_at_ = kNever;
  const std::uint64_t now = pool.now_ns;
  // Who tells nothing (a client of before 1.4) is asked every now and then.
  for (const runtime::Progress& said : pool.progress)
    if (Client* client = find(said.client); client != nullptr)
      if (std::exchange(client->operations, said.operations) != said.operations)
        client->busy_ns = now;
  for (Client& client : clients_) {
    const bool is_wanted = client.decodes ? wanted.of_decodes : wanted.of_claimants;
    if (client.asks || (client.holds && (!client.watched || client.expected_ns > now)) ||
        (client.drains && !client.holds) || (client.was_busy && !client.busy()))
      client.busy_ns = now;
    client.watched = is_wanted;
    client.asked_back = (client.asked_back && client.drains && !client.asks) ||
                        (client.holds && is_wanted && now - client.busy_ns >= quiet_ns_);
    const bool lately = client.busy_ns != 0 && now - client.busy_ns < quiet_ns_ / 2;
    if (!client.decodes && (client.busy() || lately)) {
      claimed_ = true;
      prefills_ = prefills_ || !client.right_of_way;
    }
    if (!is_wanted) continue;
    // Decodes need no haste: what they have is small.
    const std::uint64_t quiet_at = std::max(client.busy_ns, client.expected_ns) + quiet_ns_;
    const std::uint64_t soon = now + quiet_ns_ / kLooks;
    if (client.holds)
      look_at_ = std::min(look_at_, client.decodes ? std::max(soon, quiet_at) : soon);
    else if (lately && !client.decodes)
      look_at_ = std::min(look_at_, client.busy_ns + quiet_ns_ / 2);
  }
}

// Of a lane that waits: it drains. Of one that holds something: its client is quiet.
bool RightOfWay::rests(const ReadyOperation& operation) const {
  if (!concerns(operation)) return false;
  const Client* client = find(operation.client);
  if (client == nullptr || !client->asked_back) return false;
  const std::pair lane(operation.client, operation.lane);
  return client->holds || std::find(draining_.begin(), draining_.end(), lane) != draining_.end();
}

}  // namespace vitamin::policies
