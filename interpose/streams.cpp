// SPDX-License-Identifier: Apache-2.0
#include "interpose/call_wrappers.h"
#include "interpose/manual_overrides.h"

namespace vitamin::interpose {

ApiStatus stream_created(ApiStatus answer, const NativeStream* stream) {
  if (answer == kSuccess) forget_stream(*stream);
  return answer;
}

ApiStatus stream_create(Via<ApiStatus(NativeStream*, unsigned)> via, NativeStream* stream,
                        unsigned flags) {
  return stream_created(via.real(stream, flags), stream);
}

ApiStatus stream_create_with_priority(Via<ApiStatus(NativeStream*, unsigned, int)> via,
                                      NativeStream* stream, unsigned flags, int priority) {
  return stream_created(via.real(stream, flags, priority), stream);
}

ApiStatus stream_destroy(Via<ApiStatus(NativeStream)> via, NativeStream stream) {
  StreamRecord* record = known_stream(stream, false);
  // The default streams cannot be destroyed; the driver says so.
  if (record == nullptr || record->legacy || stream == kThreadStream) {
    const ApiStatus answer = via.real(stream);
    if (answer != kSuccess) return answer;
    forget_stream(stream);
    if (captures_open()) capture_may_have_ended(stream, true);
    return answer;
  }
  auto operation = runtime::call([=](void*) { return hal::NativeStatus(via.real(stream)); });
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

ApiStatus stream_query(Via<ApiStatus(NativeStream)> via, NativeStream stream) {
  const Way way = way_of(stream, via.per_thread);
  if (way.route == Route::kForeign) return via.real(stream);
  if (way.route == Route::kCaptured) return via.real(way.native());
  // Whether a stream may be asked while a thread captures is the driver's to say.
  if (captures_open() && (way.record->legacy || kCaptureForbidsQuestions)) {
    const ApiStatus answer = via.real(way.record->legacy ? stream : way.native());
    if (answer != kSuccess && answer != kNotReady) return answer;
  }
  const ReentrancyGuard ours;
  return result(way.context().query(way.stream()));
}

ApiStatus stream_synchronize(Via<ApiStatus(NativeStream)> via, NativeStream stream) {
  const Way way = way_of(stream, via.per_thread);
  if (way.route == Route::kForeign) return via.real(stream);
  if (way.route == Route::kCaptured) return via.real(way.native());
  if (const ApiStatus answer = forbidden_by_capture(way.native()); answer != kSuccess)
    return answer;
  if (captures_open() && way.record->legacy && !kCaptureForbidsQuestions)
    if (const ApiStatus answer = via.real(stream); answer != kSuccess) return answer;
  const ReentrancyGuard ours;
  return result(way.context().synchronize(way.stream()));
}

}  // namespace vitamin::interpose
