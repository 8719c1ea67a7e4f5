// SPDX-License-Identifier: Apache-2.0
//
// Runs calls of foreign code one after the other on a thread of its own, and waits for each within
// limits only.
//
// A thread cannot be ended from outside. A call that does not return keeps its thread, which gets
// the lowest priority, and the sandbox runs nothing any more. So whatever a call touches must be
// owned by the call (a shared pointer), not lent to it.
//
// Threads: one caller at a time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace vitamin::scheduler {

// What one call may take. A loop uses up its processor time; on a busy machine only the clock runs.
// The clock's bound is for calls that sleep: below the 200 ms after which clients take a daemon
// that does not answer for gone. The processor's is far above what a call takes: a virtual
// processor that its host takes away goes on counting the time of the thread that it runs.
//
// Both count only while the caller is awake at least every 10 ms: a machine that stands still for
// a second (a virtual machine that moves, a laptop that sleeps) uses up 10 ms of either.
struct SandboxLimits {
  std::chrono::milliseconds processor{50};
  std::chrono::milliseconds clock{150};
};

class Sandbox {
 public:
  Sandbox();
  ~Sandbox();
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;
  enum class Outcome : std::uint8_t { kReturned, kProcessorTime, kClock, kEnded };
  // Which limit the call exceeded, if it did not return; kEnded: an earlier one did not. An
  // exception of the call is thrown here.
  Outcome run(std::function<void()> call, const SandboxLimits& limits = {});

 private:
  struct State;
  static void serve(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace vitamin::scheduler
