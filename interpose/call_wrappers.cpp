// SPDX-License-Identifier: Apache-2.0
#include "interpose/call_wrappers.h"

#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "interpose/module_origins.h"

namespace vitamin::interpose {
namespace {

// Deferred work of every context is flushed; none is waited for but for room.
ApiStatus flush_deferred_from(int ordinal, const runtime::VendorCall& call) {
  for (; ordinal < kMaxContexts; ++ordinal) {
    Context* context = context_of_device[ordinal].load(std::memory_order_acquire);
    if (context == nullptr) continue;
    return result(context->virtual_context->call_for_context(Deferred::kFlush, [&] {
      return hal::NativeStatus(flush_deferred_from(ordinal + 1, call));
    }));
  }
  return result(call());
}

// Few frees are deferred at a time, and only threads that free or defer one look.
constinit std::mutex frees_mutex;
std::unordered_set<std::uint64_t>& deferred_frees() {
  static auto* const frees = new std::unordered_set<std::uint64_t>;  // leaked at exit on purpose
  return *frees;
}

}  // namespace

constinit std::atomic<std::size_t> DeferredFree::count_{0};

DeferredFree::DeferredFree(std::uint64_t address) : address_(address) {
  const std::lock_guard lock(frees_mutex);
  count_.fetch_add(1, std::memory_order_relaxed);
  deferred_frees().insert(address);
}

DeferredFree::~DeferredFree() {
  if (address_ == 0) return;
  const std::lock_guard lock(frees_mutex);
  count_.fetch_sub(1, std::memory_order_relaxed);
  deferred_frees().erase(address_);
}

bool DeferredFree::is_listed(std::uint64_t address) {
  const std::lock_guard lock(frees_mutex);
  return deferred_frees().contains(address);
}

constinit std::atomic<int> ContextCall::made_{0};
constinit std::atomic<bool> ContextCall::away_{false};
constinit std::atomic<bool> ContextCall::ending_{false};

// Either this sees that a capture is open, or that one sees this call.
ContextCall::ContextCall() {
  made_.fetch_add(1);
  while (away_.load()) std::this_thread::yield();  // a capture of one launch: microseconds
}

bool ContextCall::keep_away(hal::WaitsUntil waits) {
  while (!ending_.load()) {
    bool others = false;
    if (away_.compare_exchange_strong(others, true)) {
      if (made_.load() == 0) return true;
      away_.store(false);
    }
    if (waits == nullptr || waits->load()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

ApiStatus flush_deferred_then(const runtime::VendorCall& call) {
  const ContextCall held;
  const ReentrancyGuard ours;
  return flush_deferred_from(0, call);
}

void flush_deferred() {
  static_cast<void>(flush_deferred_then([] { return hal::kNativeOk; }));
}

ApiStatus await_deferred_then(Context* context, const runtime::VendorCall& call) {
  const ContextCall held;
  if (context == nullptr) return result(call());
  const ReentrancyGuard ours;
  return result(context->virtual_context->call_for_context(Deferred::kAwait, call));
}

ApiStatus await_if_accepted_then(Context* context, bool accepted, const runtime::VendorCall& call) {
  if (context == nullptr || (accepted && !captures_open()))
    return await_deferred_then(context, call);
  const ContextCall held;
  const ReentrancyGuard ours;
  return result(context->virtual_context->call_for_context(Deferred::kFlush, call));
}

void forget_block(std::uint64_t address) {
  const ReentrancyGuard ours;
  for_each_context([&](Context& context) { context.virtual_context->forget_block(address); });
}

ApiStatus unloaded(const void* code, ApiStatus answer) {
  if (answer != kSuccess) return answer;
  forget_origin(code);
  const ReentrancyGuard ours;
  for_each_context([](Context& context) { context.virtual_context->forget_kernels(); });
  return answer;
}

}  // namespace vitamin::interpose
