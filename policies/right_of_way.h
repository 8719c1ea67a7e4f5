// SPDX-License-Identifier: Apache-2.0
//
// Whether clients that must not wait have anything to run just now: those that have the right of
// way, those that prefill (both claim the device while they have), and those that decode (who need
// a part of it).
//
// A client that holds a grant says nothing more: it submits when it likes, and nobody hears of a
// pause. So whoever waits for its processors would wait for ever, or it would have to ask for them
// at every launch. Instead:
//
//     asks ----> served ----> no launch for `quiet` ----> asked back ----> its work has ended
//       ^                     (PoolView::progress)        (gate closed)        |
//       |                                                                      v
//       +--------- the next request's first launch --------- resting <---- half of `quiet`
//                                                            others run    without a launch
//
// Its host may have been waiting for the device, as between two tokens: then the grant comes back
// when its work has ended, it asks at once, and has lost one message. Nobody else ran meanwhile. A
// client holds what it has while nobody wants it; nothing is looked at then. Who has said how long
// its step takes is not quiet before that has passed. What decodes held is others' at once.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/policy.h"

namespace vitamin::policies {

// Makes way for whoever must not wait.
inline bool yields(const runtime::ReadyOperation& operation) {
  return !operation.right_of_way && operation.kind != runtime::OperationClass::kDecode &&
         operation.kind != runtime::OperationClass::kPrefill;
}

class RightOfWay {
 public:
  explicit RightOfWay(std::uint64_t quiet_ns) : quiet_ns_(quiet_ns) {}

  struct Client {
    runtime::ClientId client = 0;
    bool right_of_way = false;
    bool decodes = false;  // and nothing else: what it needs, it has anyway
    bool seen = false;     // in this epoch
    std::uint64_t operations = 0;
    std::uint64_t busy_ns = 0;      // when it was seen to have something to run, last
    std::uint64_t expected_ns = 0;  // its step runs until then
    bool asks = false, holds = false, drains = false, asked_back = false;
    bool busy() const { return asks || holds || drains; }
    bool was_busy = false;
    bool watched = false;  // since the last epoch: its progress is told
  };
  // By id, as of the last look.
  std::span<const Client> clients() const { return clients_; }
  const Client* find(runtime::ClientId client) const;

  // Somebody would run where those that claim the device do not; where decodes do not.
  struct Wanted {
    bool of_claimants = false;
    bool of_decodes = false;
  };
  // What is submitted by now runs until then, as far as it was said. Before look().
  void expect(runtime::ClientId client, std::uint64_t until_ns);
  // Once in every epoch.
  void look(const runtime::PoolView& pool, Wanted wanted);
  // One that claims the device has work, or had until a moment ago.
  bool claimed() const { return claimed_; }
  // Somebody who prefills, that is.
  bool claimed_by_prefills() const { return prefills_; }
  // It holds something that it is to give back, or has not given back yet.
  bool rests(const runtime::ReadyOperation& operation) const;
  bool has(runtime::ClientId client) const {
    const Client* known = find(client);
    return known != nullptr && known->right_of_way;
  }
  // Whether there is any such client at all; any but those that prefill.
  bool any() const { return !clients_.empty(); }
  bool any_token() const {
    return std::any_of(clients_.begin(), clients_.end(),
                       [](const Client& known) { return known.right_of_way || known.decodes; });
  }
  std::uint64_t look_at() const { return look_at_; }
  void forget(runtime::ClientId client) {
    std::erase_if(clients_, [&](const Client& known) { return known.client == client; });
  }

 private:
  static bool before(const Client& known, runtime::ClientId client) {
    return known.client < client;
  }
  Client* find(runtime::ClientId client);
  // A prefill has no deadline that anybody knows: it is late from the beginning.
  static bool concerns(const runtime::ReadyOperation& operation) {
    return operation.right_of_way || operation.kind == runtime::OperationClass::kPrefill ||
           operation.kind == runtime::OperationClass::kDecode;
  }
  Client& of(const runtime::ReadyOperation& operation);

  std::uint64_t quiet_ns_;
  std::vector<Client> clients_;  // by id
  std::vector<std::pair<runtime::ClientId, runtime::LaneId>> draining_;
  bool claimed_ = false, prefills_ = false;
  std::uint64_t look_at_ = runtime::kNever;
};

}  // namespace vitamin::policies
