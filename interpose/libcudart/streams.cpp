// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "interpose/libcudart/handlers.h"
#include "interpose/libcudart/treatments.h"

namespace vitamin::interpose {
namespace {

CUresult created(CUresult answer, const CUstream* stream) {
  if (answer == CUDA_SUCCESS) forget_stream(*stream);
  return answer;
}

// Attributes of a stream that its launches inherit. The others say how the host waits for the
// stream, or, priority, which of an entry's queues it may use.
bool inherited(CUlaunchAttributeID attribute) {
  return attribute == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW ||
         attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP ||
         attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN;
}

// `records` with this attribute set to `value`.
void set_record(std::vector<std::byte>& records, CUlaunchAttributeID id,
                const CUlaunchAttributeValue& value) {
  CUlaunchAttribute record{};
  record.id = id;
  record.value = value;
  for (std::size_t at = 0; at + sizeof record <= records.size(); at += sizeof record) {
    CUlaunchAttribute held;
    std::memcpy(&held, records.data() + at, sizeof held);
    if (held.id != id) continue;
    std::memcpy(records.data() + at, &record, sizeof record);
    return;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(&record);
  records.insert(records.end(), bytes, bytes + sizeof record);
}

}  // namespace

CUresult stream_create(Via<decltype(::cuStreamCreate)> via, CUstream* stream, unsigned flags) {
  return created(via.real(stream, flags), stream);
}

CUresult stream_create_with_priority(Via<decltype(::cuStreamCreateWithPriority)> via,
                                     CUstream* stream, unsigned flags, int priority) {
  return created(via.real(stream, flags, priority), stream);
}

CUresult green_stream_create(Via<CUresult(CUstream*, CUgreenCtx, unsigned, int)> via,
                             CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  return created(via.real(stream, context, flags, priority), stream);
}

CUresult stream_destroy(Via<decltype(::cuStreamDestroy)> via, CUstream stream) {
  StreamRecord* record = known_stream(stream, false);
  // The default streams cannot be destroyed; the driver says so.
  if (record == nullptr || record->legacy || stream == CU_STREAM_PER_THREAD) {
    const CUresult answer = via.real(stream);
    if (answer == CUDA_SUCCESS) forget_stream(stream);
    return answer;
  }
  auto operation =
      runtime::call([&](void*) { return hal::NativeStatus(via.real(stream)); }, Keep::kNo);
  CUresult answer;
  const StreamRecord was = *record;
  const bool captured = captures_open() && is_capturing(was);
  forget_stream(stream);  // before another thread is given the same handle
  if (captured) {
    answer = via.real(stream);
  } else {
    const Inside ours;
    answer = result(was.context->virtual_context->retire(*was.stream, operation));
  }
  if (captures_open() && answer == CUDA_SUCCESS) capture_may_have_ended(stream, true);
  return answer;
}

CUresult stream_query(Via<decltype(::cuStreamQuery)> via, CUstream stream) {
  const Way way = way_of(stream, via.per_thread);
  if (way.route == Route::kForeign) return via.real(stream);
  if (way.route == Route::kCaptured) return via.real(way.native());
  // Whether the legacy stream may be asked while somebody captures is the driver's to say.
  if (captures_open() && way.record->legacy)
    if (const CUresult answer = via.real(stream);
        answer != CUDA_SUCCESS && answer != CUDA_ERROR_NOT_READY)
      return answer;
  const Inside ours;
  return result(way.context().query(way.stream()));
}

CUresult stream_synchronize(Via<decltype(::cuStreamSynchronize)> via, CUstream stream) {
  const Way way = way_of(stream, via.per_thread);
  if (way.route == Route::kForeign) return via.real(stream);
  if (way.route == Route::kCaptured) return via.real(way.native());
  if (captures_open() && way.record->legacy)
    if (const CUresult answer = via.real(stream); answer != CUDA_SUCCESS) return answer;
  const Inside ours;
  return result(way.context().synchronize(way.stream()));
}

CUresult stream_set_attribute(Via<decltype(::cuStreamSetAttribute)> via, CUstream stream,
                              CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  const StreamRecord* record = find_stream(stream, via.per_thread);
  if (record == nullptr) return via.real(stream, attribute, value);
  Context& context = *record->context;
  auto set = [&] {
    return via.real(record->legacy ? stream : context.native(*record), attribute, value);
  };
  if (value == nullptr || !inherited(attribute)) return set();
  const Inside ours;
  std::vector<std::byte> records = context.virtual_context->stream_attributes(*record->stream);
  set_record(records, attribute, *value);
  return result(context.virtual_context->set_stream_attributes(
      *record->stream, [&] { return hal::NativeStatus(set()); }, std::move(records)));
}

CUresult stream_copy_attributes(Via<decltype(::cuStreamCopyAttributes)> via, CUstream to,
                                CUstream from) {
  const StreamRecord* target = find_stream(to, via.per_thread);
  const StreamRecord* source = find_stream(from, via.per_thread);
  auto native = [](const StreamRecord* record, CUstream given) {
    return record == nullptr || record->legacy ? given : record->context->native(*record);
  };
  auto copy = [&] { return via.real(native(target, to), native(source, from)); };
  if (target == nullptr || source == nullptr) return copy();
  const Inside ours;
  return result(target->context->virtual_context->set_stream_attributes(
      *target->stream, [&] { return hal::NativeStatus(copy()); },
      source->context->virtual_context->stream_attributes(*source->stream)));
}

}  // namespace vitamin::interpose
