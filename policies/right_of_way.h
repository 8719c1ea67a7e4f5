// SPDX-License-Identifier: Apache-2.0
//
// Whether clients that have the right of way, or prefill, have anything to run just now.
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
// client holds what it has while nobody wants it; nothing is looked at then.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/policy.h"

namespace vitamin::policies {

class RightOfWay {
 public:
  explicit RightOfWay(std::uint64_t quiet_ns) : quiet_ns_(quiet_ns) {}

  // Once in every epoch. `wanted`: somebody would run where they do not.
  void look(const runtime::PoolView& pool, bool wanted);
  // One of them has work, or had until a moment ago.
  bool claimed() const { return claimed_; }
  // It holds something that it is to give back, or has not given back yet.
  bool rests(const runtime::ReadyOperation& operation) const;
  bool has(runtime::ClientId client) const {
    return std::any_of(clients_.begin(), clients_.end(), [&](const Client& known) {
      return known.client == client && known.right_of_way;
    });
  }
  // Whether there is any such client at all.
  bool any() const { return !clients_.empty(); }
  std::uint64_t look_at() const { return look_at_; }
  void forget(runtime::ClientId client) {
    std::erase_if(clients_, [&](const Client& known) { return known.client == client; });
  }

 private:
  struct Client {
    runtime::ClientId client = 0;
    bool right_of_way = false;
    std::uint64_t operations = 0;
    std::uint64_t busy_ns = 0;  // when it was seen to have something to run, last
    bool asks = false, holds = false, drains = false, asked_back = false;
    bool busy() const { return asks || holds || drains; }
    bool was_busy = false;
  };
  Client* find(runtime::ClientId client);
  // A prefill has no deadline that anybody knows: it is late from the beginning.
  static bool concerns(const runtime::ReadyOperation& operation) {
    return operation.right_of_way || operation.kind == runtime::OperationClass::kPrefill;
  }

  std::uint64_t quiet_ns_;
  std::vector<Client> clients_;
  std::vector<std::pair<runtime::ClientId, runtime::LaneId>> draining_;
  bool claimed_ = false;
  bool watching_ = false;  // since the last epoch: progress is told
  std::uint64_t look_at_ = runtime::kNever;
};

}  // namespace vitamin::policies
