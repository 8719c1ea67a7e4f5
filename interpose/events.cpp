// SPDX-License-Identifier: Apache-2.0
//
// Events. The application's event is a real one and is always really recorded, on the queue behind
// the work that it covers; what we add is which record a wait means while records are deferred.
//
//   its newest record was made   a wait or query asks
//     on a managed stream          the VirtualContext of that stream
//     in a capture                 the driver: the wait makes the waiting stream join
//     on a foreign stream          the driver: to a managed stream the wait is a host wait, since
//                                  what ends that work is not known
//     never                        the driver: it is complete, and a wait does nothing
//
// An event that a graph or another process may record (shared) is asked of the driver from then on,
// and its records by calls are never deferred: the driver sees all of them in the order of the
// calls.
#include "interpose/call_wrappers.h"
#include "interpose/manual_overrides.h"

namespace vitamin::interpose {
namespace {

bool ours_to_answer(const EventRecord& event) {
  return event.state.recorded_in != nullptr && !event.state.foreign &&
         !event.captured.load(std::memory_order_relaxed);
}

// Whether it was made with times, and ever recorded as far as was seen.
bool has_time(const EventRecord& event) {
  const bool recorded = event.state.recorded_in != nullptr || event.state.foreign ||
                        event.state.shared || event.captured.load(std::memory_order_relaxed);
  return recorded && !event.untimed;
}

// The stream as the driver knows it where no stand-in is meant.
NativeStream native_of(const Destination& destination, NativeStream given, bool per_thread) {
  if (destination.route != Route::kForeign) return destination.native();
  return given == nullptr && per_thread ? kThreadStream : given;
}

bool captures_now(const Destination& destination, NativeStream stream) {
  if (destination.route == Route::kCaptured) return true;
  // The legacy stream cannot be captured, and asking about it is an error while others are.
  return captures_open() && stream != nullptr && stream != kLegacyStream && captures(stream);
}

template <class Call>
ApiStatus record_event(NativeEvent handle, NativeStream stream, bool per_thread, bool external,
                       Keep keep, Call call) {
  if (handle == nullptr) return call(stream);
  EventRecord& event = find_event(handle);
  event.launched_on.store(nullptr, std::memory_order_relaxed);
  const Destination destination = destination_of(stream, per_thread);
  if (!kBridged && destination.route == Route::kManaged) return call(destination.native());
  if (destination.route == Route::kManaged) {
    // Natively the call is refused: what is not deferred is told so at once.
    if (event.context && *event.context != destination.record->context->handle) mark_shared(event);
    auto operation = runtime::call(
        [call, context = destination.record->context->handle](void* native) {
          const CurrentContext current(context);
          return hal::NativeStatus(call(static_cast<NativeStream>(native)));
        },
        keep);
    return record_managed(destination, event, operation);
  }
  // Deferred records of the event come before this one, so they must not come later.
  settle(event);
  // A node of the graph, which records the event whenever the graph is launched.
  if (external && captures_now(destination, native_of(destination, stream, per_thread)))
    mark_shared(event);
  const ApiStatus answer =
      call(destination.route == Route::kForeign ? stream : destination.native());
  if (answer == kSuccess) recorded_outside(destination, stream, per_thread, external, event);
  return answer;
}

// A managed stream waits for an event that a capture recorded, and joins that capture. But what the
// event means now only the driver knows: when the stream does not capture behind the call, the call
// was an ordinary wait.
ApiStatus join_capture(const Destination& destination, runtime::Operation& wait) {
  const ReentrancyGuard ours;
  const ApiStatus answer = result(destination.context().begin_capture(destination.stream(), wait));
  if (answer != kSuccess || (captures_open() && is_capturing(*destination.record))) return answer;
  auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, Keep::kNo);
  return result(
      destination.context().bridge(destination.stream(), nothing, CallKind::kPlacelessHostWait));
}

}  // namespace

ApiStatus record_managed(const Destination& destination, EventRecord& event,
                         runtime::Operation& operation, bool exact) {
  event.captured.store(false, std::memory_order_relaxed);
  const ReentrancyGuard ours;
  // An event belongs to the context where it was recorded last; its record in the one before is
  // over.
  if (event.state.recorded_in != nullptr && event.state.recorded_in != &destination.context())
    event.state.recorded_in.load()->forget(event.state);
  return result(destination.context().record(destination.stream(), event.state, operation, exact));
}

void recorded_outside(const Destination& destination, NativeStream stream, bool per_thread,
                      bool external, EventRecord& event) {
  if (!external && captures_now(destination, native_of(destination, stream, per_thread)))
    event.captured.store(true, std::memory_order_relaxed);
  else
    mark_foreign(event);
}

void settle(EventRecord& event) {
  if (event.state.recorded_in == nullptr) return;
  const ReentrancyGuard ours;
  event.state.recorded_in.load()->settle(event.state);
}

ApiStatus event_create(EntryPoint<ApiStatus(NativeEvent*, unsigned)> entry, NativeEvent* event,
                       unsigned flags) {
  const ApiStatus answer = entry.real(event, flags);
  if (answer == kSuccess) announce_event(*event, flags);
  return answer;
}

void event_opened(NativeEvent event) {
  announce_event(event, kEventInterprocess);
  mark_foreign(find_event(event));
}

ApiStatus event_destroy(EntryPoint<ApiStatus(NativeEvent)> entry, NativeEvent event) {
  // Deferred waits hold what the event meant; a deferred record of it is not made any more.
  if (const auto record = take_event(event); record && record->state.recorded_in != nullptr) {
    const ReentrancyGuard ours;
    record->state.recorded_in.load()->forget(record->state);
  }
  return entry.real(event);
}

ApiStatus event_record(EntryPoint<ApiStatus(NativeEvent, NativeStream)> entry, NativeEvent event,
                       NativeStream stream) {
  return record_event(event, stream, entry.per_thread, false, Keep::kYes,
                      [=](NativeStream native) { return entry.real(event, native); });
}

ApiStatus event_record_with_flags(EntryPoint<ApiStatus(NativeEvent, NativeStream, unsigned)> entry,
                                  NativeEvent event, NativeStream stream, unsigned flags) {
  // Outside a capture any flag is the driver's to refuse.
  return record_event(event, stream, entry.per_thread, (flags & kEventRecordExternal) != 0,
                      flags == 0 ? Keep::kYes : Keep::kNo,
                      [=](NativeStream native) { return entry.real(event, native, flags); });
}

ApiStatus stream_wait_event(EntryPoint<ApiStatus(NativeStream, NativeEvent, unsigned)> entry,
                            NativeStream stream, NativeEvent handle, unsigned flags) {
  if (handle == nullptr) return entry.real(stream, handle, flags);
  EventRecord& event = find_event(handle);
  const Destination destination = destination_of(stream, entry.per_thread);
  if (destination.route != Route::kManaged || !kBridged) {
    settle(event);
    return entry.real(destination.route == Route::kForeign ? stream : destination.native(), handle,
                      flags);
  }
  auto operation = runtime::call(
      [&](void* native) {
        return hal::NativeStatus(entry.real(static_cast<NativeStream>(native), handle, flags));
      },
      Keep::kNo);
  // The stream joins the capture that the event was recorded in.
  if (event.captured.load(std::memory_order_relaxed)) return join_capture(destination, operation);
  if (flags != 0) {  // the driver's to refuse
    settle(event);
    const ReentrancyGuard ours;
    return result(destination.context().bridge(destination.stream(), operation,
                                               CallKind::kPlacelessHostWait));
  }
  const bool elsewhere = event.state.recorded_in != &destination.context();
  if (elsewhere && event.state.recorded_in == nullptr && !event.state.foreign &&
      !event.state.shared)
    return entry.real(destination.native(), handle, flags);  // never recorded: nothing to wait for
  if (elsewhere) settle(event);
  const ReentrancyGuard ours;
  return result(destination.context().wait(destination.stream(), event.state, operation));
}

ApiStatus event_query(EntryPoint<ApiStatus(NativeEvent)> entry, NativeEvent handle) {
  if (handle == nullptr) return entry.real(handle);
  EventRecord& event = find_event(handle);
  if (!ours_to_answer(event)) return entry.real(handle);
  if (const ApiStatus answer = forbidden_by_capture(handle); answer != kSuccess) return answer;
  const ReentrancyGuard ours;
  return result(event.state.recorded_in.load()->query(
      event.state, [&] { return hal::NativeStatus(entry.real(handle)); }));
}

ApiStatus event_synchronize(EntryPoint<ApiStatus(NativeEvent)> entry, NativeEvent handle) {
  if (handle == nullptr) return entry.real(handle);
  EventRecord& event = find_event(handle);
  if (!ours_to_answer(event)) return entry.real(handle);
  if (const ApiStatus answer = forbidden_by_capture(handle); answer != kSuccess) return answer;
  const ReentrancyGuard ours;
  return result(event.state.recorded_in.load()->synchronize(
      event.state, [&] { return hal::NativeStatus(entry.real(handle)); }));
}

ApiStatus event_elapsed_time(EntryPoint<ApiStatus(float*, NativeEvent, NativeEvent)> entry,
                             float* milliseconds, NativeEvent start, NativeEvent end) {
  auto elapsed = [&] { return hal::NativeStatus(entry.real(milliseconds, start, end)); };
  if (milliseconds == nullptr || start == nullptr || end == nullptr) return result(elapsed());
  EventRecord& first = find_event(start);
  EventRecord& second = find_event(end);
  // The driver refuses these before it looks whether they are ready.
  if (!has_time(first) || !has_time(second)) return result(elapsed());
  const ReentrancyGuard ours;
  // "Not ready" when either record is still deferred.
  auto behind_end = [&] {
    return ours_to_answer(second) ? second.state.recorded_in.load()->query(second.state, elapsed)
                                  : elapsed();
  };
  return result(ours_to_answer(first)
                    ? first.state.recorded_in.load()->query(first.state, behind_end)
                    : behind_end());
}

}  // namespace vitamin::interpose
