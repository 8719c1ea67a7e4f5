// SPDX-License-Identifier: Apache-2.0
//
// A policy that cannot do harm for longer than 10 ms: one that throws or answers nonsense is
// replaced by fifo for good; so is one that does not answer in time (Limits), where it runs in a
// TimedThread
// (loadable policies do; the loops of the built-in ones are bounded by the number of lanes and
// entries, and are not paid for with a hand-off at every decision).
//
// Threads: as runtime::Policy.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/policy.h"

namespace vitamin::policies {

// Where a line for people goes. Not called with a lock of ours held.
using Sink = std::function<void(const std::string&)>;

class Guarded final : public runtime::Policy {
 public:
  explicit Guarded(std::unique_ptr<runtime::Policy> policy, Sink sink = {});
  // The policy's own name, also after it was replaced.
  std::string_view name() const override { return name_; }
  std::optional<std::size_t> pick(std::span<const runtime::ReadyOperation> ready,
                                  const runtime::PoolView& pool) override;
  runtime::Choice select(const runtime::ReadyOperation& operation,
                         std::span<const runtime::EntryId> eligible,
                         const runtime::PoolView& pool) override;
  runtime::Plan prepare(const runtime::Hint& hint, const runtime::PoolView& pool) override;
  void forget(runtime::ClientId client) override;
  runtime::Terms terms() const override { return terms_; }
  // Also that it was replaced, once.
  std::string take_message() override;
  bool lanes_share() const override { return lanes_share_; }
  bool plans() const override { return policy_->plans(); }
  bool wants_profile() const override { return wants_profile_; }
  bool remembers() const override { return !replaced() && policy_->remembers(); }
  std::uint64_t look_at() const override { return policy_->look_at(); }

  // Why it was replaced; empty while it was not. Safe to ask from any thread: `replaced()`.
  const std::string& why() const { return why_; }
  bool replaced() const { return replaced_.load(std::memory_order_relaxed); }

 private:
  template <class Answer, class Call>
  Answer guard(const char* callback, Answer otherwise, Call call);
  void replace(std::string why);

  std::unique_ptr<runtime::Policy> policy_;
  std::unique_ptr<runtime::Policy> spent_;  // the replaced one: may be in the middle of a call
  Sink sink_;
  std::string name_, why_, untold_;
  runtime::Terms terms_;
  bool lanes_share_ = true, wants_profile_ = false;
  std::atomic<bool> replaced_{false};
};

// What a call may take. A loop uses up its processor time; a machine that is busy with something
// else takes only the clock's. The clock's bound is for what sleeps: below the 200 ms after which
// clients take a daemon that does not turn for gone.
struct Limits {
  std::chrono::milliseconds processor{8};
  std::chrono::milliseconds clock{150};
};

// Runs calls one after the other on a thread of its own and waits for each within limits only. A
// call that does not return keeps its thread, which is then given the lowest priority: a thread
// cannot be ended from outside. So whatever a call touches must be shared with it, not lent.
class TimedThread {
 public:
  TimedThread();
  ~TimedThread();
  TimedThread(const TimedThread&) = delete;
  TimedThread& operator=(const TimedThread&) = delete;
  enum class Outcome : std::uint8_t { kReturned, kProcessorTime, kClock, kStopped };
  // Which limit it exceeded, if it did not return; then nothing is run any more (kStopped). What
  // the call throws is thrown here.
  Outcome run(std::function<void()> call, const Limits& limits = {});

 private:
  struct State;
  static void serve(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace vitamin::policies
