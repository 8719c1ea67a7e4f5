// SPDX-License-Identifier: Apache-2.0
//
// The hand-written overrides that have the same form and meaning at every vendor: those whose
// meaning no generic treatment has. Each takes how the call came in (EntryPoint, hook.h) and its
// arguments.
#pragma once

#include "interpose/context.h"
#include "interpose/hook.h"

namespace vitamin::interpose {

// events.cpp
ApiStatus event_create(EntryPoint<ApiStatus(NativeEvent*, unsigned)> entry, NativeEvent* event,
                       unsigned flags);
ApiStatus event_destroy(EntryPoint<ApiStatus(NativeEvent)> entry, NativeEvent event);
ApiStatus event_record(EntryPoint<ApiStatus(NativeEvent, NativeStream)> entry, NativeEvent event,
                       NativeStream stream);
ApiStatus event_record_with_flags(EntryPoint<ApiStatus(NativeEvent, NativeStream, unsigned)> entry,
                                  NativeEvent event, NativeStream stream, unsigned flags);
ApiStatus stream_wait_event(EntryPoint<ApiStatus(NativeStream, NativeEvent, unsigned)> entry,
                            NativeStream stream, NativeEvent event, unsigned flags);
ApiStatus event_query(EntryPoint<ApiStatus(NativeEvent)> entry, NativeEvent event);
ApiStatus event_synchronize(EntryPoint<ApiStatus(NativeEvent)> entry, NativeEvent event);
ApiStatus event_elapsed_time(EntryPoint<ApiStatus(float*, NativeEvent, NativeEvent)> entry,
                             float* milliseconds, NativeEvent start, NativeEvent end);
// Before code that is not virtualised looks at the event.
void settle(EventRecord& event);
struct Destination;
// Records the event on a managed stream by `operation`. `exact`: as VirtualContext::record().
ApiStatus record_managed(const Destination& destination, EventRecord& event,
                         runtime::Operation& operation, bool exact = true);
// The driver recorded the event, on a stream that is foreign or captured: `stream` as the
// application named it.
void recorded_outside(const Destination& destination, NativeStream stream, bool per_thread,
                      bool external, EventRecord& event);
// An event of another process.
void event_opened(NativeEvent event);

// streams.cpp
ApiStatus stream_created(ApiStatus answer, const NativeStream* stream);
ApiStatus stream_create(EntryPoint<ApiStatus(NativeStream*, unsigned)> entry, NativeStream* stream,
                        unsigned flags);
ApiStatus stream_create_with_priority(EntryPoint<ApiStatus(NativeStream*, unsigned, int)> entry,
                                      NativeStream* stream, unsigned flags, int priority);
ApiStatus stream_destroy(EntryPoint<ApiStatus(NativeStream)> entry, NativeStream stream);
ApiStatus stream_query(EntryPoint<ApiStatus(NativeStream)> entry, NativeStream stream);
ApiStatus stream_synchronize(EntryPoint<ApiStatus(NativeStream)> entry, NativeStream stream);

// launches.cpp
ApiStatus launch_host_function(EntryPoint<ApiStatus(NativeStream, HostFunction, void*)> entry,
                               NativeStream stream, HostFunction function, void* data);
ApiStatus add_callback(EntryPoint<ApiStatus(NativeStream, StreamCallback, void*, unsigned)> entry,
                       NativeStream stream, StreamCallback function, void* data, unsigned flags);

// graphs.cpp
ApiStatus end_capture(EntryPoint<ApiStatus(NativeStream, Graph*)> entry, NativeStream stream,
                      Graph* graph);
ApiStatus graph_launch(EntryPoint<ApiStatus(GraphExec, NativeStream)> entry, GraphExec graph,
                       NativeStream stream);
ApiStatus graph_exec_destroy(EntryPoint<ApiStatus(GraphExec)> entry, GraphExec executable);

}  // namespace vitamin::interpose
