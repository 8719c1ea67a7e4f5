// SPDX-License-Identifier: Apache-2.0
#include "interpose/call_wrappers.h"
#include "interpose/manual_overrides.h"

namespace vitamin::interpose {

ApiStatus stream_created(ApiStatus answer, const NativeStream* stream) {
  if (answer == kSuccess) forget_stream(*stream);
  return answer;
}

ApiStatus stream_create(EntryPoint<ApiStatus(NativeStream*, unsigned)> entry, NativeStream* stream,
                        unsigned flags) {
  return stream_created(entry.real(stream, flags), stream);
}

ApiStatus stream_create_with_priority(EntryPoint<ApiStatus(NativeStream*, unsigned, int)> entry,
                                      NativeStream* stream, unsigned flags, int priority) {
  return stream_created(entry.real(stream, flags, priority), stream);
}

ApiStatus stream_destroy(EntryPoint<ApiStatus(NativeStream)> entry, NativeStream stream) {
  StreamRecord* record = known_stream(stream, false);
  // The default streams cannot be destroyed; the driver says so.
  if (record == nullptr || record->legacy || stream == kThreadStream) {
    const ApiStatus answer = entry.real(stream);
    if (answer != kSuccess) return answer;
    forget_stream(stream);
    if (captures_open()) capture_may_have_ended(stream, true);
    return answer;
  }
  auto operation = runtime::call([=](void*) { return hal::NativeStatus(entry.real(stream)); });
  ApiStatus answer;
  const StreamRecord was = *record;
  forget_stream(stream);  // before another thread is given the same handle
  {
    // Of a captured stream nothing is outstanding that would have to be recorded: that was done
    // when it entered the capture.
    const ReentrancyGuard ours;
    answer = result(was.context->virtual_context->retire(
        *was.stream, operation, kStreamDestroyWaits ? Host::kMayBlock : Host::kReturns));
  }
  if (captures_open() && answer == kSuccess) capture_may_have_ended(stream, true);
  return answer;
}

ApiStatus stream_query(EntryPoint<ApiStatus(NativeStream)> entry, NativeStream stream) {
  const Destination destination = destination_of(stream, entry.per_thread);
  if (destination.route == Route::kForeign) return entry.real(stream);
  if (destination.route == Route::kCaptured) return entry.real(destination.native());
  // Whether a stream may be asked while a thread captures is the driver's to say.
  if (captures_open() && (destination.record->legacy || kCaptureForbidsQuestions)) {
    const ApiStatus answer = entry.real(destination.record->legacy ? stream : destination.native());
    if (answer != kSuccess && answer != kNotReady) return answer;
  }
  const ReentrancyGuard ours;
  return result(destination.context().query(destination.stream()));
}

ApiStatus stream_synchronize(EntryPoint<ApiStatus(NativeStream)> entry, NativeStream stream) {
  const Destination destination = destination_of(stream, entry.per_thread);
  if (destination.route == Route::kForeign) return entry.real(stream);
  if (destination.route == Route::kCaptured) return entry.real(destination.native());
  if (const ApiStatus answer = forbidden_by_capture(destination.native()); answer != kSuccess)
    return answer;
  if (captures_open() && destination.record->legacy && !kCaptureForbidsQuestions)
    if (const ApiStatus answer = entry.real(stream); answer != kSuccess) return answer;
  const ReentrancyGuard ours;
  return result(destination.context().synchronize(destination.stream()));
}

}  // namespace vitamin::interpose
