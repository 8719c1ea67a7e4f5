// SPDX-License-Identifier: Apache-2.0
//
// Events: generations, what a wait binds to, queries, destruction, elapsed times, flags.
#include <thread>

#include "session.h"

namespace vitamin::differential {

VITAMIN_RULE(event_never_recorded, "What do query, synchronize, wait and elapsed time answer?") {
  Session session;
  CUevent event = session.event(CU_EVENT_DEFAULT);
  CUevent other = session.event(CU_EVENT_DEFAULT);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  float ms = 0;
  Say{"query {}", code(api.cuEventQuery(event))};
  Say{"synchronize {}", code(api.cuEventSynchronize(event))};
  Say{"wait {}", code(api.cuStreamWaitEvent(stream, event, 0))};
  Say{"stream behind the wait {}", soon(stream)};
  Say{"elapsed {}", code(api.elapsed_time_v2(&ms, event, other))};
  Say{"destroy {}", code(api.cuEventDestroy(event))};
}

VITAMIN_RULE(event_rerecorded_after_a_wait,
             "Does a wait keep the record that it was made for when the event is recorded again?") {
  Session session;
  const Log log(session);
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream waiter = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream idle = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent event = session.event();
  Gate gate(session, held);
  must(log.append(held, 1), "launch");
  VITAMIN_MUST(cuEventRecord(event, held));
  VITAMIN_MUST(cuStreamWaitEvent(waiter, event, 0));
  must(log.append(waiter, 2), "launch");
  Say{"first record: event {}, waiter {}", now(event), soon(waiter)};
  VITAMIN_MUST(cuEventRecord(event, idle));
  Say{"second record, on an idle stream: event {}, waiter {}", soon(event), soon(waiter)};
  Say{"synchronize: {}", waits_for(gate, [&] { return api.cuEventSynchronize(event); })};
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(event_rerecorded_behind_a_gate,
             "Does a wait made before the second record care about it?") {
  Session session;
  const Log log(session);
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream before = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream after = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent event = session.event();
  VITAMIN_MUST(cuEventRecord(event, after));
  Say{"first record: {}", soon(event)};
  VITAMIN_MUST(cuStreamWaitEvent(before, event, 0));
  Gate gate(session, held);
  VITAMIN_MUST(cuEventRecord(event, held));
  VITAMIN_MUST(cuStreamWaitEvent(after, event, 0));
  must(log.append(before, 1), "launch");
  must(log.append(after, 2), "launch");
  Say{"second record: event {}, waiter before {}, waiter after {}", now(event), soon(before),
      soon(after)};
  gate.open();
  drain();
  Say{"event {}, kernels {}", now(event), log.text()};
}

VITAMIN_RULE(event_covers_only_what_was_ahead,
             "Does work that is submitted behind a record delay the event?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent event = session.event();
  VITAMIN_MUST(cuEventRecord(event, stream));
  Gate gate(session, stream);
  Say{"event {}, stream {}", soon(event), now(stream)};
  gate.open();
  drain();
}

VITAMIN_RULE(event_destroyed_with_waiters,
             "Does destroying an event wait, and do its waiters still wait?") {
  Session session;
  const Log log(session);
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream waiter = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent event = session.event();
  Gate gate(session, held);
  must(log.append(held, 1), "launch");
  VITAMIN_MUST(cuEventRecord(event, held));
  VITAMIN_MUST(cuStreamWaitEvent(waiter, event, 0));
  must(log.append(waiter, 2), "launch");
  Say{"destroy {}", waits_for(gate, [&] { return api.cuEventDestroy(event); })};
  Say{"waiter {}", soon(waiter)};
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(event_elapsed_time_errors, "Which pairs of events have no elapsed time, and why?") {
  Session session;
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream idle = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent start = session.event(CU_EVENT_DEFAULT);
  CUevent end = session.event(CU_EVENT_DEFAULT);
  CUevent untimed = session.event();
  CUevent never = session.event(CU_EVENT_DEFAULT);
  VITAMIN_MUST(cuEventRecord(start, idle));
  VITAMIN_MUST(cuEventRecord(untimed, idle));
  drain();
  Gate gate(session, held);
  VITAMIN_MUST(cuEventRecord(end, held));
  float ms = -1;
  const auto both = [&](const char* what, CUevent a, CUevent b) {
    Say{"{}: {}, _v2 {}", what, code(api.elapsed_time_v1(&ms, a, b)),
        code(api.elapsed_time_v2(&ms, a, b))};
  };
  both("end pending", start, end);
  both("start pending", end, start);
  both("one without timing", start, untimed);
  both("one without timing, one pending", end, untimed);
  both("one never recorded", start, never);
  both("one never recorded, one pending", end, never);
  both("an event and itself", start, start);
  gate.open();
  drain();
  both("both fired", start, end);
  Say{"positive: {}", ms >= 0 ? "yes" : "no"};
  both("reversed", end, start);
  Say{"negative: {}", ms <= 0 ? "yes" : "no"};
}

VITAMIN_RULE(event_of_the_primary_on_green_streams,
             "May an event of the primary context be recorded on green streams, and timed?") {
  Session session;
  const Log log(session);
  CUstream green = session.green_stream(session.green({0}));
  CUstream other = session.green_stream(session.green({1}));
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent start = session.event(CU_EVENT_DEFAULT);
  CUevent end = session.event(CU_EVENT_DEFAULT);
  Gate gate(session, green);
  must(log.append(green, 1), "launch");
  Say{"record on green {}", code(api.cuEventRecord(start, green))};
  Say{"wait on another green {}", code(api.cuStreamWaitEvent(other, start, 0))};
  must(log.append(other, 2), "launch");
  Say{"record there {}", code(api.cuEventRecord(end, other))};
  Say{"wait on a primary stream {}", code(api.cuStreamWaitEvent(stream, end, 0))};
  must(log.append(stream, 3), "launch");
  Say{"pending: green {}, other {}, primary {}, events {} and {}",
      now(green),
      soon(other),
      soon(stream),
      now(start),
      now(end)};
  gate.open();
  drain();
  float ms = -1;
  Say{"elapsed between contexts {}, positive {}", code(api.elapsed_time_v2(&ms, start, end)),
      ms >= 0 ? "yes" : "no"};
  VITAMIN_MUST(cuEventRecord(end, stream));
  drain();
  Say{"elapsed green to primary {}", code(api.elapsed_time_v2(&ms, start, end))};
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(event_flags, "Which flags do create and record refuse?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent event = nullptr;
  for (const unsigned flags : {0u, 1u, 2u, 3u, 4u, 6u, 7u, 8u, 32u})
    Say{"create with {}: {}", flags, code(api.cuEventCreate(&event, flags))};
  CUevent plain = session.event();
  for (const unsigned flags : {0u, 1u, 2u})
    Say{"record with {}: {}", flags, code(api.cuEventRecordWithFlags(plain, stream, flags))};
  for (const unsigned flags : {0u, 1u, 2u})
    Say{"wait with {}: {}", flags, code(api.cuStreamWaitEvent(stream, plain, flags))};
  CUevent blocking = session.event(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
  Gate gate(session, stream);
  VITAMIN_MUST(cuEventRecord(blocking, stream));
  Say{"synchronize with BLOCKING_SYNC {}",
      waits_for(gate, [&] { return api.cuEventSynchronize(blocking); })};
  gate.open();
  drain();
}

VITAMIN_RULE(calls_without_a_current_context,
             "Which calls on explicit handles work on a thread that has no current context?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream green = session.green_stream(session.green({0}));
  CUevent event = session.event();
  CUfunction append = session.function("append");
  auto kernel = reinterpret_cast<CUfunction>(session.kernel("append"));
  CUdeviceptr words = log.words();
  std::uint32_t* host = session.pinned(64);
  std::thread([&] {
    CUcontext current = session.primary();
    Say{"current {}, none: {}", code(api.cuCtxGetCurrent(&current)),
        current == nullptr ? "yes" : "no"};
    const std::uint32_t value = 1;
    Say{"event record {}", code(api.cuEventRecord(event, stream))};
    Say{"event query {}", code(soon([&] { return api.cuEventQuery(event); }))};
    Say{"event synchronize {}", code(api.cuEventSynchronize(event))};
    Say{"stream query {}", code(soon([&] { return api.cuStreamQuery(stream); }))};
    Say{"stream synchronize {}", code(api.cuStreamSynchronize(stream))};
    Say{"wait event {}", code(api.cuStreamWaitEvent(stream, event, 0))};
    Say{"wait event on green {}", code(api.cuStreamWaitEvent(green, event, 0))};
    Say{"launch function {}", code(launch(append, stream, {&words, &value}))};
    Say{"launch kernel {}", code(launch(kernel, stream, {&words, &value}))};
    Say{"launch function on green {}", code(launch(append, green, {&words, &value}))};
    Say{"launch kernel on green {}", code(launch(kernel, green, {&words, &value}))};
    Say{"launch function on NULL {}", code(launch(append, nullptr, {&words, &value}))};
    Say{"launch kernel on NULL {}", code(launch(kernel, nullptr, {&words, &value}))};
    Say{"memset async {}", code(api.cuMemsetD32Async(words, 0, 1, stream))};
    Say{"copy async {}", code(api.cuMemcpyHtoDAsync(words, host, 4, stream))};
    Say{"host function {}", code(api.cuLaunchHostFunc(
                                stream, [](void*) {}, nullptr))};
    Say{"query NULL {}", code(api.cuStreamQuery(nullptr))};
    Say{"event create {}", code(api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING))};
    CUdeviceptr memory = 0;
    Say{"alloc {}", code(api.cuMemAlloc(&memory, 64))};
    Say{"context synchronize {}", code(api.cuCtxSynchronize())};
  }).join();
  drain();
}

VITAMIN_RULE(events_of_a_whole_context,
             "What do cuCtxRecordEvent and cuCtxWaitEvent of the primary context cover?") {
  Session session;
  const Log log(session);
  CUstream held = session.green_stream(session.green({0}));
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream other = session.green_stream(session.green({1}));
  CUevent event = session.event();
  Gate gate(session, held);
  must(log.append(held, 1), "launch");
  Say{"record of the primary {}", code(api.cuCtxRecordEvent(session.primary(), event))};
  Say{"event {}", soon(event)};
  Say{"wait of the primary {}", code(api.cuCtxWaitEvent(session.primary(), event))};
  must(log.append(stream, 2), "launch");
  must(log.append(other, 3), "launch");
  Say{"primary stream {}, other green {}", soon(stream), soon(other)};
  gate.open();
  drain();
}

VITAMIN_RULE(event_of_a_graph_recorded_again,
             "What does an event mean that a graph recorded, when a call records it again behind a "
             "gate, and the other way round?") {
  Session session;
  const Log log(session);
  CUstream first = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream waiting = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent event = session.event();
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuGraphCreate(&graph, 0));
  VITAMIN_MUST(cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  VITAMIN_MUST(cuGraphLaunch(executable, first));
  VITAMIN_MUST(cuStreamSynchronize(first));
  Say{"recorded by the graph {}", soon(event)};
  {
    Gate gate(session, held);
    must(log.append(held, 1), "launch");
    VITAMIN_MUST(cuEventRecord(event, held));
    Say{"recorded behind a gate {}", soon(event)};
    Say{"wait {}", code(api.cuStreamWaitEvent(waiting, event, 0))};
    must(log.append(waiting, 2), "launch");
    Say{"the waiting stream {}", soon(waiting)};
    VITAMIN_MUST(cuGraphLaunch(executable, first));
    VITAMIN_MUST(cuStreamSynchronize(first));
    Say{"recorded by the graph again {}; the waiting stream {}", soon(event), soon(waiting)};
    gate.open();
    drain();
    Say{"kernels {}", log.text()};
  }
  {
    Gate gate(session, first);
    VITAMIN_MUST(cuGraphLaunch(executable, first));
    Say{"recorded by a graph behind a gate {}", soon(event)};
    VITAMIN_MUST(cuEventRecord(event, held));
    Say{"then by a call on an idle stream {}", soon(event)};
    gate.open();
    drain();
  }
}

}  // namespace vitamin::differential
