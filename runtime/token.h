// SPDX-License-Identifier: Apache-2.0
//
// Timelines and tokens: completion as a number on a logical stream.
//
// Each logical stream is a timeline. Its operations have serials 1, 2, 3 ... in program order and
// are submitted and completed in that order, so one counter answers for all of them. A token is a
// point on a timeline; the default token is satisfied.
// The paper (section "Token-Based Logical Dependencies") satisfies a token when the operation
// completes. Under pipelined late binding (docs/design.md) submission is enough to make the
// dependent bindable, because the device itself then keeps the order; completion is asked of the
// native event behind the token. So a timeline counts both.
#pragma once

#include <cstdint>

namespace vitamin::runtime {

class Token;

struct Timeline {
  std::uint64_t issued = 0;     // serial of the newest operation that the application issued
  std::uint64_t submitted = 0;  // of the newest one handed to a physical queue
  std::uint64_t completed = 0;  // of the newest one observed complete; trails the device

  std::uint64_t outstanding() const { return submitted - completed; }
  Token newest() const;
};

// Guarded by the device lock of the timeline's virtual context, and no longer valid than
// the timeline is. A stream's goes on when its state is used for another stream: a token of the
// former one is completed.
class Token {
 public:
  Token() = default;
  Token(const Timeline& timeline, std::uint64_t serial) : timeline_(&timeline), serial_(serial) {}
  bool submitted() const { return timeline_ == nullptr || timeline_->submitted >= serial_; }
  bool completed() const { return timeline_ == nullptr || timeline_->completed >= serial_; }
  std::uint64_t serial() const { return serial_; }

 private:
  const Timeline* timeline_ = nullptr;
  std::uint64_t serial_ = 0;
};

inline Token Timeline::newest() const { return {*this, issued}; }

}  // namespace vitamin::runtime
