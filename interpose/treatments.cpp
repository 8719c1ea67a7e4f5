// SPDX-License-Identifier: Apache-2.0
#include "interpose/treatments.h"

#include <chrono>
#include <thread>

#include "interpose/origins.h"

namespace vitamin::interpose {
namespace {

// Deferred work of every context goes onto the real streams; none is waited for but for room.
Answer flushed_from(int ordinal, const runtime::VendorCall& call) {
  for (; ordinal < kMaxContexts; ++ordinal) {
    Context* context = context_of_device[ordinal].load(std::memory_order_acquire);
    if (context == nullptr) continue;
    return result(context->virtual_context->drain(
        Drain::kFlush, [&] { return hal::NativeStatus(flushed_from(ordinal + 1, call)); }));
  }
  return result(call());
}

}  // namespace

constinit std::atomic<int> ContextCall::made_{0};
constinit std::atomic<bool> ContextCall::away_{false};
constinit std::atomic<bool> ContextCall::ending_{false};

// Either this sees that a capture is open, or that one sees this call.
ContextCall::ContextCall() {
  made_.fetch_add(1);
  while (away_.load()) std::this_thread::yield();  // a capture of one launch: microseconds
}

bool ContextCall::keep_away(bool may_wait) {
  while (!ending_.load()) {
    bool others = false;
    if (away_.compare_exchange_strong(others, true)) {
      if (made_.load() == 0) return true;
      away_.store(false);
    }
    if (!may_wait) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

Answer flushed(const runtime::VendorCall& call) {
  const ContextCall held;
  const Inside ours;
  return flushed_from(0, call);
}

Answer drained(Context* context, const runtime::VendorCall& call) {
  const ContextCall held;
  if (context == nullptr) return result(call());
  const Inside ours;
  return result(context->virtual_context->drain(Drain::kWait, call));
}

void forget_block(std::uint64_t address) {
  const Inside ours;
  for_each_context([&](Context& context) { context.virtual_context->forget_block(address); });
}

Answer unloaded(const void* code, Answer answer) {
  if (answer != kSuccess) return answer;
  forget_origin(code);
  const Inside ours;
  for_each_context([](Context& context) { context.virtual_context->forget_kernels(); });
  return answer;
}

}  // namespace vitamin::interpose
