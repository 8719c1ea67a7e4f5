// SPDX-License-Identifier: Apache-2.0
#include "interpose/launches.h"

#include "interpose/manual_overrides.h"

namespace vitamin::interpose {

ApiStatus launch_host_function(EntryPoint<ApiStatus(NativeStream, HostFunction, void*)> entry,
                               NativeStream stream, HostFunction function, void* data) {
  return host_wait(
      stream, entry.per_thread, HostWaitKind::kHostFunction,
      [=](NativeStream native) { return entry.real(native, function, data); },
      [=] { return function != nullptr; });
}

namespace {

// A callback is told its stream: the one that the application knows.
struct Callback {
  StreamCallback function;
  void* data;
  NativeStream stream;
};
void call_back(NativeStream, ApiStatus status, void* data) {
  const Callback callback = *static_cast<Callback*>(data);
  delete static_cast<Callback*>(data);
  callback.function(callback.stream, status, callback.data);
}

}  // namespace

ApiStatus add_callback(EntryPoint<ApiStatus(NativeStream, StreamCallback, void*, unsigned)> entry,
                       NativeStream stream, StreamCallback function, void* data, unsigned flags) {
  if (function == nullptr) return entry.real(stream, function, data, flags);
  auto* callback = new Callback{function, data, stream};
  const ApiStatus answer = host_wait(
      stream, entry.per_thread, HostWaitKind::kHostFunction,
      [=](NativeStream native) { return entry.real(native, &call_back, callback, flags); },
      [=] { return flags == 0; });
  if (answer != kSuccess) delete callback;
  return answer;
}

}  // namespace vitamin::interpose
