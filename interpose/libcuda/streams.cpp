// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <vector>

#include "interpose/call_wrappers.h"
#include "interpose/libcuda/manual_overrides.h"

namespace vitamin::interpose {
namespace {

// Attributes of a stream that its launches inherit. The others say how the host waits for the
// stream, or, priority, which of a partition's queues it may use.
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

// Those of a stream that was made just now.
void reset_settings(Context& context, const StreamRecord& record) {
  const CurrentContext current(context.handle);
  CUstream fresh = nullptr;
  if (VITAMIN_REAL(cuStreamCreate)(&fresh, CU_STREAM_DEFAULT) != CUDA_SUCCESS) return;
  static_cast<void>(context.virtual_context->set_stream_attributes(
      *record.stream,
      [&] {
        return hal::NativeStatus(
            VITAMIN_REAL(cuStreamCopyAttributes)(context.native(record), fresh));
      },
      [](std::vector<std::byte>& records) { records.clear(); }));
  VITAMIN_REAL(cuStreamDestroy_v2)(fresh);
}

CUresult green_stream_create(EntryPoint<CUresult(CUstream*, CUgreenCtx, unsigned, int)> entry,
                             CUstream* stream, CUgreenCtx context, unsigned flags, int priority) {
  return stream_created(entry.real(stream, context, flags, priority), stream);
}

CUresult stream_set_attribute(EntryPoint<decltype(::cuStreamSetAttribute)> entry, CUstream stream,
                              CUstreamAttrID attribute, const CUstreamAttrValue* value) {
  StreamRecord* record = find_stream(stream, entry.per_thread);
  if (record == nullptr) return entry.real(stream, attribute, value);
  Context& context = *record->context;
  record->settings = true;
  auto set = [&] {
    return entry.real(record->legacy ? stream : context.native(*record), attribute, value);
  };
  if (value == nullptr || !inherited(attribute)) return set();
  const ReentrancyGuard ours;
  return result(context.virtual_context->set_stream_attributes(
      *record->stream, [&] { return hal::NativeStatus(set()); },
      [&](std::vector<std::byte>& records) { set_record(records, attribute, *value); }));
}

CUresult stream_copy_attributes(EntryPoint<decltype(::cuStreamCopyAttributes)> entry, CUstream to,
                                CUstream from) {
  StreamRecord* target = find_stream(to, entry.per_thread);
  const StreamRecord* source = find_stream(from, entry.per_thread);
  auto native = [](const StreamRecord* record, CUstream given) {
    return record == nullptr || record->legacy ? given : record->context->native(*record);
  };
  auto copy = [&] { return entry.real(native(target, to), native(source, from)); };
  if (target != nullptr) target->settings = true;
  if (target == nullptr || source == nullptr) return copy();
  const ReentrancyGuard ours;
  std::vector<std::byte> copied =
      source->context->virtual_context->stream_attributes(*source->stream);
  return result(target->context->virtual_context->set_stream_attributes(
      *target->stream, [&] { return hal::NativeStatus(copy()); },
      [&](std::vector<std::byte>& records) { records = std::move(copied); }));
}

}  // namespace vitamin::interpose
