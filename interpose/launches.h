// SPDX-License-Identifier: Apache-2.0
//
// What the vendors' launch calls share: where a launch goes that cannot be bound, how it is
// counted, and work on a stream that needs the host.
#pragma once

#include <span>

#include "interpose/advice.h"
#include "interpose/call_wrappers.h"

namespace vitamin::interpose {

inline hal::KernelLaunch launch_of(hal::KernelHandle kernel, hal::Dim3 grid, hal::Dim3 block,
                                   std::uint32_t shared_bytes, void** arguments, void** extra) {
  hal::KernelLaunch launch;
  launch.kernel = kernel;
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = shared_bytes;
  launch.arguments = arguments;
  launch.extra = extra;
  return launch;
}

// Made by the driver on a stream that is not ours.
inline ApiStatus passed(ApiStatus answer) {
  if (answer == kSuccess) page().passed_unmanaged.add_shared();
  return answer;
}

inline ApiStatus captured(const Destination& destination, ApiStatus answer) {
  if (answer == kSuccess) destination.page().launches.captured.add_shared();
  return answer;
}

// Made on the program's own stream by `call`, and counted as that.
template <class Call>
ApiStatus bridge_launch(const Destination& destination, hal::KernelHandle kernel,
                        runtime::stats::UnboundReason reason, Call call) {
  runtime::VirtualContext& context = destination.context();
  const std::string origin = context.device().inspector().origin(kernel);
  auto operation = runtime::call(
      [&](void* native) {
        const ApiStatus answer = call(static_cast<NativeStream>(native));
        if (answer != kSuccess) return hal::NativeStatus(answer);
        runtime::stats::DevicePage& counters = context.page();  // the lock is held here
        runtime::stats::LibrarySlot& library = counters.library(origin.c_str());
        counters.launches.seen.add();
        counters.launches.bridged.add();
        counters.unbound[static_cast<unsigned>(reason)].add();
        library.seen.add();
        library.bridged.add();
        return hal::NativeStatus(answer);
      },
      Keep::kNo);
  return result(context.bridge(destination.stream(), operation));
}

// Binds a launch. `call` makes it as the application did, on a stream that it is given.
template <class Call>
ApiStatus route_launch(NativeStream stream, bool per_thread, hal::KernelLaunch launch, Call call) {
  const Destination destination = destination_of(stream, per_thread);
  if (destination.route == Route::kForeign) return passed(call(stream));
  if (destination.route == Route::kCaptured)
    return captured(destination, call(destination.native()));
  const ReentrancyGuard ours;
  if (captures_open() && destination.record->legacy)
    return bridge_launch(destination, launch.kernel, runtime::stats::UnboundReason::kCapture, call);
  if (destination.record->confined)
    return bridge_launch(destination, launch.kernel, runtime::stats::UnboundReason::kConfined,
                         call);
  launch.in_context =
      destination.record->legacy;  // the legacy stream is that of the current context
  return result(destination.context().launch(destination.stream(), launch, current_advice()));
}

// A launch that stays on the program's own stream.
template <class Call>
ApiStatus launch_on_own_stream(NativeStream stream, bool per_thread, hal::KernelHandle kernel,
                               Call call) {
  const Destination destination = destination_of(stream, per_thread);
  if (destination.route == Route::kForeign) return passed(call(stream));
  if (destination.route == Route::kCaptured)
    return captured(destination, call(destination.native()));
  const ReentrancyGuard ours;
  return bridge_launch(destination, kernel, runtime::stats::UnboundReason::kOther, call);
}

// One call on streams of several devices. Before it, what is deferred is flushed and each real
// stream comes behind its stream's newest work; after it that work is on the program's own.
template <class Call>
ApiStatus across(std::span<const Destination> destinations, Call call) {
  auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, Keep::kNo);
  auto touch_all = [&] {
    const ReentrancyGuard ours;
    for (const Destination& destination : destinations)
      if (destination.route == Route::kManaged)
        destination.context().bridge(destination.stream(), nothing);
  };
  touch_all();
  const ApiStatus answer = passed(call());
  touch_all();
  return answer;
}

enum class HostWaitKind : std::uint8_t { kHostFunction, kValueWait };

// A call on the program's own stream that ends only when the host or another stream acts.
// Everything that `call` holds is a value, so it can wait its turn where the vendor does not refuse
// it (`accepted`).
template <class Call, class Accepted>
ApiStatus host_wait(NativeStream stream, bool per_thread, HostWaitKind kind, Call call,
                    Accepted accepted) {
  const Destination destination = destination_of(stream, per_thread);
  if (destination.route == Route::kForeign) return call(stream);
  if (destination.route == Route::kCaptured) return call(destination.native());
  runtime::stats::OtherWork& other = destination.page().other;
  const bool host = kind == HostWaitKind::kHostFunction;
  runtime::stats::Counter& host_waits = host ? other.host_functions : other.value_waits;
  auto operation = runtime::call_kept_if(
      [call, &host_waits, context = destination.record->context->handle](void* native) mutable {
        const CurrentContext current(context);
        host_waits.add();
        return hal::NativeStatus(call(static_cast<NativeStream>(native)));
      },
      accepted);
  const ReentrancyGuard ours;
  return result(destination.context().bridge(
      destination.stream(), operation, host ? CallKind::kPlacelessHostWait : CallKind::kHostWait));
}
template <class Call>
ApiStatus host_wait(NativeStream stream, bool per_thread, HostWaitKind kind, Call call) {
  return host_wait(stream, per_thread, kind, call, [] { return true; });
}

}  // namespace vitamin::interpose
