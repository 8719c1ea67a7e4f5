// SPDX-License-Identifier: Apache-2.0
//
// The hand-written overrides that have the same form and meaning at every vendor: those whose
// meaning no generic treatment has. Each takes the way it was called (the driver's own function of
// the same variant) and the arguments of the entry point.
#pragma once

#include "interpose/context.h"
#include "interpose/hook.h"

namespace vitamin::interpose {

// events.cpp
Answer event_create(Via<Answer(NativeEvent*, unsigned)> via, NativeEvent* event, unsigned flags);
Answer event_destroy(Via<Answer(NativeEvent)> via, NativeEvent event);
Answer event_record(Via<Answer(NativeEvent, NativeStream)> via, NativeEvent event,
                    NativeStream stream);
Answer event_record_with_flags(Via<Answer(NativeEvent, NativeStream, unsigned)> via,
                               NativeEvent event, NativeStream stream, unsigned flags);
Answer stream_wait_event(Via<Answer(NativeStream, NativeEvent, unsigned)> via, NativeStream stream,
                         NativeEvent event, unsigned flags);
Answer event_query(Via<Answer(NativeEvent)> via, NativeEvent event);
Answer event_synchronize(Via<Answer(NativeEvent)> via, NativeEvent event);
Answer event_elapsed_time(Via<Answer(float*, NativeEvent, NativeEvent)> via, float* milliseconds,
                          NativeEvent start, NativeEvent end);
// Before code that is not virtualised looks at the event.
void settle(EventRecord& event);
struct Way;
// Records the event on a managed stream by `operation`.
Answer record_managed(const Way& way, EventRecord& event, runtime::Operation& operation);
// The driver recorded the event, on a stream that is foreign or captured: `stream` as the
// application named it.
void recorded_outside(const Way& way, NativeStream stream, bool per_thread, bool external,
                      EventRecord& event);
// An event of another process.
void event_opened(NativeEvent event);

// streams.cpp
Answer stream_created(Answer answer, const NativeStream* stream);
Answer stream_create(Via<Answer(NativeStream*, unsigned)> via, NativeStream* stream,
                     unsigned flags);
Answer stream_create_with_priority(Via<Answer(NativeStream*, unsigned, int)> via,
                                   NativeStream* stream, unsigned flags, int priority);
Answer stream_destroy(Via<Answer(NativeStream)> via, NativeStream stream);
Answer stream_query(Via<Answer(NativeStream)> via, NativeStream stream);
Answer stream_synchronize(Via<Answer(NativeStream)> via, NativeStream stream);

// launches.cpp
Answer launch_host_function(Via<Answer(NativeStream, HostFunction, void*)> via, NativeStream stream,
                            HostFunction function, void* data);
Answer add_callback(Via<Answer(NativeStream, StreamCallback, void*, unsigned)> via,
                    NativeStream stream, StreamCallback function, void* data, unsigned flags);

// graphs.cpp
Answer end_capture(Via<Answer(NativeStream, Graph*)> via, NativeStream stream, Graph* graph);
Answer graph_launch(Via<Answer(GraphExec, NativeStream)> via, GraphExec graph, NativeStream stream);
Answer graph_exec_destroy(Via<Answer(GraphExec)> via, GraphExec executable);

}  // namespace vitamin::interpose
