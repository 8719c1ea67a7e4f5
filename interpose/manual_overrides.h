// SPDX-License-Identifier: Apache-2.0
//
// The hand-written overrides that have the same form and meaning at every vendor: those whose
// meaning no generic treatment has. Each takes how the call came in (Via, hook.h) and the arguments
// of the entry point.
#pragma once

#include "interpose/context.h"
#include "interpose/hook.h"

namespace vitamin::interpose {

// events.cpp
ApiStatus event_create(Via<ApiStatus(NativeEvent*, unsigned)> via, NativeEvent* event,
                       unsigned flags);
ApiStatus event_destroy(Via<ApiStatus(NativeEvent)> via, NativeEvent event);
ApiStatus event_record(Via<ApiStatus(NativeEvent, NativeStream)> via, NativeEvent event,
                       NativeStream stream);
ApiStatus event_record_with_flags(Via<ApiStatus(NativeEvent, NativeStream, unsigned)> via,
                                  NativeEvent event, NativeStream stream, unsigned flags);
ApiStatus stream_wait_event(Via<ApiStatus(NativeStream, NativeEvent, unsigned)> via,
                            NativeStream stream, NativeEvent event, unsigned flags);
ApiStatus event_query(Via<ApiStatus(NativeEvent)> via, NativeEvent event);
ApiStatus event_synchronize(Via<ApiStatus(NativeEvent)> via, NativeEvent event);
ApiStatus event_elapsed_time(Via<ApiStatus(float*, NativeEvent, NativeEvent)> via,
                             float* milliseconds, NativeEvent start, NativeEvent end);
// Before code that is not virtualised looks at the event.
void settle(EventRecord& event);
struct Way;
// Records the event on a managed stream by `operation`.
ApiStatus record_managed(const Way& way, EventRecord& event, runtime::Operation& operation);
// The driver recorded the event, on a stream that is foreign or captured: `stream` as the
// application named it.
void recorded_outside(const Way& way, NativeStream stream, bool per_thread, bool external,
                      EventRecord& event);
// An event of another process.
void event_opened(NativeEvent event);

// streams.cpp
ApiStatus stream_created(ApiStatus answer, const NativeStream* stream);
ApiStatus stream_create(Via<ApiStatus(NativeStream*, unsigned)> via, NativeStream* stream,
                        unsigned flags);
ApiStatus stream_create_with_priority(Via<ApiStatus(NativeStream*, unsigned, int)> via,
                                      NativeStream* stream, unsigned flags, int priority);
ApiStatus stream_destroy(Via<ApiStatus(NativeStream)> via, NativeStream stream);
ApiStatus stream_query(Via<ApiStatus(NativeStream)> via, NativeStream stream);
ApiStatus stream_synchronize(Via<ApiStatus(NativeStream)> via, NativeStream stream);

// launches.cpp
ApiStatus launch_host_function(Via<ApiStatus(NativeStream, HostFunction, void*)> via,
                               NativeStream stream, HostFunction function, void* data);
ApiStatus add_callback(Via<ApiStatus(NativeStream, StreamCallback, void*, unsigned)> via,
                       NativeStream stream, StreamCallback function, void* data, unsigned flags);

// graphs.cpp
ApiStatus end_capture(Via<ApiStatus(NativeStream, Graph*)> via, NativeStream stream, Graph* graph);
ApiStatus graph_launch(Via<ApiStatus(GraphExec, NativeStream)> via, GraphExec graph,
                       NativeStream stream);
ApiStatus graph_exec_destroy(Via<ApiStatus(GraphExec)> via, GraphExec executable);

}  // namespace vitamin::interpose
