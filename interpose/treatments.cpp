// SPDX-License-Identifier: Apache-2.0
#include "interpose/treatments.h"

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

Answer drained(Drain how, const runtime::VendorCall& call) {
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
