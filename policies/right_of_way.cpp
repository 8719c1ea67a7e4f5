// SPDX-License-Identifier: Apache-2.0
#include "policies/right_of_way.h"

#include <utility>

namespace vitamin::policies {

using runtime::ClientId;
using runtime::Holding;
using runtime::kNever;
using runtime::PoolView;
using runtime::ReadyOperation;

namespace {
constexpr std::uint64_t kLooks = 4;  // within `quiet`
}

RightOfWay::Client* RightOfWay::find(ClientId client) {
  for (Client& known : clients_)
    if (known.client == client) return &known;
  return nullptr;
}

void RightOfWay::look(const PoolView& pool, bool wanted) {
  draining_.clear();
  for (Client& client : clients_) {
    client.was_busy = client.busy();
    client.asks = client.holds = client.drains = false;
  }
  const auto of = [&](const ReadyOperation& operation) -> Client& {
    Client* known = find(operation.client);
    if (known == nullptr) known = &clients_.emplace_back(Client{operation.client});
    known->right_of_way = operation.right_of_way;
    return *known;
  };
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
  claimed_ = false;
  look_at_ = kNever;
  const std::uint64_t now = pool.now_ns;
  for (Client& client : clients_) {
    // Of who tells nothing (a client of before 1.4) it is asked every now and then.
    for (const runtime::Progress& said : pool.progress)
      if (said.client == client.client && client.operations != said.operations) {
        client.operations = said.operations;
        client.busy_ns = now;
      }
    if (client.asks || (client.holds && !watching_) || (client.drains && !client.holds) ||
        (client.was_busy && !client.busy()))
      client.busy_ns = now;
    client.asked_back = (client.asked_back && client.drains && !client.asks) ||
                        (client.holds && wanted && now - client.busy_ns >= quiet_ns_);
    const bool lately = client.busy_ns != 0 && now - client.busy_ns < quiet_ns_ / 2;
    if (client.busy() || lately) claimed_ = true;
    if (!wanted) continue;
    if (client.holds)
      look_at_ = std::min(look_at_, now + quiet_ns_ / kLooks);
    else if (lately)
      look_at_ = std::min(look_at_, client.busy_ns + quiet_ns_ / 2);
  }
  watching_ = wanted;
}

// Of a lane that waits: it drains. Of one that holds something: its client is quiet.
bool RightOfWay::rests(const ReadyOperation& operation) const {
  if (!concerns(operation)) return false;
  const auto client = std::find_if(clients_.begin(), clients_.end(), [&](const Client& known) {
    return known.client == operation.client;
  });
  if (client == clients_.end() || !client->asked_back) return false;
  const std::pair lane(operation.client, operation.lane);
  return client->holds || std::find(draining_.begin(), draining_.end(), lane) != draining_.end();
}

}  // namespace vitamin::policies
