// SPDX-License-Identifier: Apache-2.0
#include "interpose/treatments.h"

#include <chrono>
#include <thread>

#include "interpose/origins.h"

namespace vitamin::interpose {
namespace {

Answer drained_from(int ordinal, Drain how, const runtime::VendorCall& call) {
  for (; ordinal < kMaxContexts; ++ordinal) {
    Context* context = context_of_device[ordinal].load(std::memory_order_acquire);
    if (context == nullptr) continue;
    return result(context->virtual_context->drain(
        how, [&] { return hal::NativeStatus(drained_from(ordinal + 1, how, call)); }));
  }
  return result(call());
}

}  // namespace

constinit std::atomic<int> ContextCall::made_{0};
constinit std::atomic<bool> ContextCall::away_{false};

// Either this sees that a capture is open, or that one sees this call.
ContextCall::ContextCall() {
  made_.fetch_add(1);
  while (away_.load()) std::this_thread::yield();  // a capture of one launch: microseconds
}

void ContextCall::keep_away() {
  for (;;) {
    away_.store(true);
    if (made_.load() == 0) return;
    away_.store(false);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

Answer drained(Drain how, const runtime::VendorCall& call) {
  const ContextCall held;
  const Inside ours;
  return drained_from(0, how, call);
}

Answer unload(const void* code, Drain how, const runtime::VendorCall& call) {
  const Answer answer = drained(how, call);
  if (answer != kSuccess) return answer;
  forget_origin(code);
  const Inside ours;
  for_each_context([](Context& context) { context.virtual_context->forget_kernels(); });
  return answer;
}

}  // namespace vitamin::interpose
