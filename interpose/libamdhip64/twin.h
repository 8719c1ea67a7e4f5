// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills without a stream.
#pragma once

#include "interpose/call_wrappers.h"
#include "interpose/libamdhip64/version_rules.h"

namespace vitamin::interpose {

// A call on the default stream that has a twin with a stream as its last argument: made as that,
// then waited for, unless the vendor's call returns before its work ends. Where the runtime has no
// twin, or something captures, as DefaultStream.
template <class Real, class Treatment>
struct Twin {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    auto* twin = reinterpret_cast<ApiStatus (*)(Args..., NativeStream)>(Real::address());
    // While any thread captures the vendor decides whether a call without a stream is allowed.
    if (twin == nullptr || captures_open())
      return DefaultStream<Host::kMayBlock>::run(entry, args...);
    if ((... || is_null_descriptor(args))) return entry.real(args...);
    CopySides sides;
    if constexpr (requires { Treatment::kSides; })
      sides = CopySides::of<Treatment::kSides>(args...);
    // The vendor makes a copy from another device's memory on the legacy stream of that one.
    for (const int device : sides.elsewhere)
      if (const ApiStatus answer = await_legacy_stream(device); answer != kSuccess) return answer;
    const NativeStream stream = entry.per_thread ? kThreadStream : nullptr;
    const EntryPoint<ApiStatus(Args..., NativeStream)> there{twin, entry.per_thread};
    const ApiStatus answer = Treatment::run(there, args..., stream);
    if (answer != kSuccess || (sides.within_device && calls_within_device_return())) return answer;
    return stream_synchronize({&synchronize_natively, entry.per_thread}, stream);
  }

 private:
  static ApiStatus await_legacy_stream(int device) {
    if (device < 0 || device >= kMaxContexts) return kSuccess;
    Context* const context = context_of_device[device].load(std::memory_order_acquire);
    if (context == nullptr) return kSuccess;
    const ReentrancyGuard ours;
    return result(context->virtual_context->synchronize(*context->legacy.stream));
  }
};

}  // namespace vitamin::interpose
