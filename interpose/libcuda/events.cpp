// SPDX-License-Identifier: Apache-2.0
//
// Events of other processes and of whole contexts.
#include "interpose/call_wrappers.h"
#include "interpose/libcuda/manual_overrides.h"

namespace vitamin::interpose {

CUresult event_open(EntryPoint<decltype(::cuIpcOpenEventHandle)> entry, CUevent* event,
                    CUipcEventHandle handle) {
  const CUresult answer = entry.real(event, handle);
  if (answer == CUDA_SUCCESS) event_opened(*event);
  return answer;
}

namespace {

// Recorded behind everything in a context; that includes our queues, whose contexts belong to it.
template <class Call>
CUresult record_all(CUevent handle, Call call) {
  EventRecord& event = find_event(handle);
  settle(event);
  const CUresult answer = flush_deferred_then([&] { return hal::NativeStatus(call()); });
  if (answer == CUDA_SUCCESS) mark_foreign(event);
  return answer;
}

template <class Call>
CUresult wait_all(CUevent handle, Call call) {
  settle(find_event(handle));
  return flush_deferred_then([&] { return hal::NativeStatus(call()); });
}

}  // namespace

CUresult context_record_event(EntryPoint<CUresult(CUcontext, CUevent)> entry, CUcontext context,
                              CUevent event) {
  return record_all(event, [&] { return entry.real(context, event); });
}

CUresult context_wait_event(EntryPoint<CUresult(CUcontext, CUevent)> entry, CUcontext context,
                            CUevent event) {
  return wait_all(event, [&] { return entry.real(context, event); });
}

CUresult green_record_event(EntryPoint<decltype(::cuGreenCtxRecordEvent)> entry, CUgreenCtx context,
                            CUevent event) {
  return record_all(event, [&] { return entry.real(context, event); });
}

CUresult green_wait_event(EntryPoint<decltype(::cuGreenCtxWaitEvent)> entry, CUgreenCtx context,
                          CUevent event) {
  return wait_all(event, [&] { return entry.real(context, event); });
}

}  // namespace vitamin::interpose
