// SPDX-License-Identifier: Apache-2.0
//
// Stream capture and graphs: which calls a capture forbids, to whom, and in which order graphs run.
#include <thread>

#include "session.h"

namespace vitamin::differential {
namespace {

std::string status(CUstream stream) {
  CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = api.cuStreamIsCapturing(stream, &state);
  static constexpr const char* kNames[] = {"none", "active", "invalidated"};
  return result == CUDA_SUCCESS ? kNames[state] : code(result);
}

std::size_t node_count(CUgraph graph) {
  std::size_t count = 0;
  if (graph != nullptr) VITAMIN_MUST(cuGraphGetNodes(graph, nullptr, &count));
  return count;
}

// Ends the capture and says how it ended.
std::string end(CUstream stream) {
  CUgraph graph = nullptr;
  const CUresult result = api.cuStreamEndCapture(stream, &graph);
  std::string text = code(result);
  if (graph != nullptr) {
    text += ", " + std::to_string(node_count(graph)) + " nodes";
    VITAMIN_MUST(cuGraphDestroy(graph));
  }
  return text;
}

struct Call {
  const char* name;
  std::function<CUresult()> make;
};

// What makes new objects, and what is neither a copy nor a question.
std::vector<Call> calls_of_every_kind(Session& session, CUstream other, CUdeviceptr memory) {
  return {
      {"cuEventCreate",
       [] {
         CUevent more = nullptr;
         return api.cuEventCreate(&more, CU_EVENT_DISABLE_TIMING);
       }},
      {"cuStreamCreate",
       [] {
         CUstream more = nullptr;
         return api.cuStreamCreate(&more, CU_STREAM_NON_BLOCKING);
       }},
      {"cuStreamWriteValue32",
       [=] { return api.cuStreamWriteValue32(other, memory, 1, CU_STREAM_WRITE_VALUE_DEFAULT); }},
      {"cuLaunchHostFunc",
       [=] {
         return api.cuLaunchHostFunc(
             other, [](void*) {}, nullptr);
       }},
      {"cuModuleLoadData",
       [&session] {
         CUmodule module = nullptr;
         return api.cuModuleLoadData(&module, session.image().data());
       }},
      {"cuMemGetInfo",
       [] {
         std::size_t free = 0;
         std::size_t total = 0;
         return api.cuMemGetInfo(&free, &total);
       }},
  };
}

// Calls that a tracker thread or a library might make while a thread captures.
std::vector<Call> bystander_calls(Session& session) {
  static CUstream other = session.stream(CU_STREAM_NON_BLOCKING);
  static CUstream blocking = session.stream();
  static CUstream green = session.green_stream(session.green({0}));
  static CUevent event = session.event();
  static CUevent fired = session.event();
  static CUdeviceptr memory = session.memory(4096);
  static CUfunction store = session.function("store");
  static std::uint32_t* host = session.pinned(4096);
  VITAMIN_MUST(cuEventRecord(fired, other));
  drain();
  const auto store_on = [](CUstream stream) {
    const std::uint32_t value = 1;
    return launch(store, stream, {&memory, &value});
  };
  std::vector<Call> calls = {
      {"cuEventQuery", [] { return api.cuEventQuery(fired); }},
      {"cuEventSynchronize", [] { return api.cuEventSynchronize(fired); }},
      {"cuEventRecord", [] { return api.cuEventRecord(event, other); }},
      {"cuStreamWaitEvent", [] { return api.cuStreamWaitEvent(other, fired, 0); }},
      {"cuStreamQuery", [] { return soon([] { return api.cuStreamQuery(other); }); }},
      {"cuStreamSynchronize", [] { return api.cuStreamSynchronize(other); }},
      {"cuStreamQuery of a green stream", [] { return api.cuStreamQuery(green); }},
      {"cuStreamSynchronize of a blocking stream",
       [] { return api.cuStreamSynchronize(blocking); }},
      {"cuStreamQuery of NULL", [] { return api.cuStreamQuery(nullptr); }},
      {"cuStreamSynchronize of NULL", [] { return api.cuStreamSynchronize(nullptr); }},
      {"cuCtxSynchronize", [] { return api.cuCtxSynchronize(); }},
      {"launch on a non-blocking stream", [=] { return store_on(other); }},
      {"launch on a blocking stream", [=] { return store_on(blocking); }},
      {"launch on a green stream", [=] { return store_on(green); }},
      {"launch on NULL", [=] { return store_on(nullptr); }},
      {"launch on 0x2", [=] { return store_on(CU_STREAM_PER_THREAD); }},
      {"cuEventRecord on NULL", [] { return api.cuEventRecord(event, nullptr); }},
      {"cuMemAlloc",
       [] {
         CUdeviceptr more = 0;
         return api.cuMemAlloc(&more, 4096);
       }},
      {"cuMemFree of NULL", [] { return api.cuMemFree(0); }},
      {"cuMemHostAlloc",
       [] {
         void* more = nullptr;
         return api.cuMemHostAlloc(&more, 4096, 0);
       }},
      {"cuMemAllocAsync on another stream",
       [] {
         CUdeviceptr more = 0;
         return api.cuMemAllocAsync(&more, 4096, other);
       }},
      {"cuMemsetD32", [] { return api.cuMemsetD32(memory, 0, 4); }},
      {"cuMemcpyHtoD", [] { return api.cuMemcpyHtoD(memory, host, 64); }},
      {"cuMemcpyHtoD_ptds", [] { return api.cuMemcpyHtoD_v2_ptds(memory, host, 64); }},
      {"cuMemcpyHtoDAsync on another stream",
       [] { return api.cuMemcpyHtoDAsync(memory, host, 64, other); }},
  };
  for (Call& call : calls_of_every_kind(session, other, memory)) calls.push_back(std::move(call));
  return calls;
}

// Makes each call in a capture of its own; who makes it, and in which capture mode of that thread.
void bystanders(CUstreamCaptureMode mode, bool other_thread, bool relaxed, unsigned stream_flags) {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(stream_flags);
  for (const Call& call : bystander_calls(session)) {
    VITAMIN_MUST(cuStreamBeginCapture(stream, mode));
    must(log.append(stream, 1), "launch");
    CUresult result = CUDA_SUCCESS;
    const auto make = [&] {
      VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
      CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_RELAXED;
      if (relaxed) VITAMIN_MUST(cuThreadExchangeStreamCaptureMode(&own));
      result = call.make();
      if (relaxed) VITAMIN_MUST(cuThreadExchangeStreamCaptureMode(&own));
    };
    if (other_thread)
      std::thread(make).join();
    else
      make();
    const std::string after = status(stream);
    Say{"{}: {}; capture {}; end {}", call.name, code(result), after, end(stream)};
    drain();
  }
}

}  // namespace

VITAMIN_RULE(capture_global_same_thread,
             "Which calls does a GLOBAL capture forbid to the thread that captures?") {
  bystanders(CU_STREAM_CAPTURE_MODE_GLOBAL, false, false, CU_STREAM_NON_BLOCKING);
}
VITAMIN_RULE(capture_global_other_thread,
             "Which calls does a GLOBAL capture forbid to other threads?") {
  bystanders(CU_STREAM_CAPTURE_MODE_GLOBAL, true, false, CU_STREAM_NON_BLOCKING);
}
VITAMIN_RULE(capture_global_same_thread_relaxed,
             "Which calls does a GLOBAL capture forbid to its own thread in relaxed mode?") {
  bystanders(CU_STREAM_CAPTURE_MODE_GLOBAL, false, true, CU_STREAM_NON_BLOCKING);
}
VITAMIN_RULE(capture_global_other_thread_relaxed,
             "Which calls does a GLOBAL capture forbid to another thread in relaxed mode?") {
  bystanders(CU_STREAM_CAPTURE_MODE_GLOBAL, true, true, CU_STREAM_NON_BLOCKING);
}
VITAMIN_RULE(capture_thread_local_other_thread,
             "Which calls does a THREAD_LOCAL capture forbid to other threads?") {
  bystanders(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, false, CU_STREAM_NON_BLOCKING);
}
VITAMIN_RULE(capture_relaxed_same_thread,
             "Which calls does a RELAXED capture forbid to the thread that captures?") {
  bystanders(CU_STREAM_CAPTURE_MODE_RELAXED, false, false, CU_STREAM_NON_BLOCKING);
}
VITAMIN_RULE(capture_of_a_blocking_stream,
             "Which calls does the capture of a blocking stream forbid in relaxed mode?") {
  bystanders(CU_STREAM_CAPTURE_MODE_RELAXED, false, false, CU_STREAM_DEFAULT);
}
VITAMIN_RULE(capture_of_a_blocking_stream_other_thread,
             "Which calls does the relaxed capture of a blocking stream forbid to other threads?") {
  bystanders(CU_STREAM_CAPTURE_MODE_RELAXED, true, true, CU_STREAM_DEFAULT);
}

VITAMIN_RULE(capture_which_streams, "Which streams can be captured?") {
  Session session;
  const Log log(session);
  const Door doors[] = {{"NULL", nullptr},
                        {"0x1", CU_STREAM_LEGACY},
                        {"0x2", CU_STREAM_PER_THREAD},
                        {"blocking", session.stream()},
                        {"non-blocking", session.stream(CU_STREAM_NON_BLOCKING)},
                        {"green", session.green_stream(session.green({0}))}};
  for (const Door& door : doors) {
    const CUresult begun = api.cuStreamBeginCapture(door.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    Say{"{}: begin {}, status {}", door.name, code(begun), status(door.stream)};
    if (begun != CUDA_SUCCESS) continue;
    must(log.append(door.stream, 1), "launch");
    Say{"{}: end {}", door.name, end(door.stream)};
  }
  const CUresult begun = api.cuStreamBeginCapture_v2_ptsz(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED);
  Say{"NULL through _ptsz: begin {}, status of 0x2 {}", code(begun), status(CU_STREAM_PER_THREAD)};
  if (begun == CUDA_SUCCESS) Say{"NULL through _ptsz: end {}", end(CU_STREAM_PER_THREAD)};
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(
    capture_of_a_busy_stream,
    "Can a stream be captured while work is pending on it, and is that work in the graph?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  Gate gate(session, stream);
  must(log.append(stream, 1), "launch");
  Say{"begin {}", waits_for(gate, [&] {
        return api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
      })};
  must(log.append(stream, 2), "launch");
  Say{"status {}", status(stream)};
  Say{"end {}", end(stream)};
  Say{"query {}", now(stream)};
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(capture_on_the_capturing_stream,
             "What do calls on the capturing stream itself answer?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream other = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent before = session.event();
  VITAMIN_MUST(cuEventRecord(before, other));
  drain();
  CUevent inside = session.event();
  static CUdeviceptr memory = session.memory(4096);
  std::uint32_t* host = session.pinned(4096);
  const Call calls[] = {
      {"cuStreamQuery", [&] { return api.cuStreamQuery(stream); }},
      {"cuStreamSynchronize", [&] { return api.cuStreamSynchronize(stream); }},
      {"cuEventRecord", [&] { return api.cuEventRecord(inside, stream); }},
      {"cuEventRecord external",
       [&] { return api.cuEventRecordWithFlags(inside, stream, CU_EVENT_RECORD_EXTERNAL); }},
      {"cuEventRecord, then query",
       [&] {
         must(api.cuEventRecord(inside, stream), "record");
         return api.cuEventQuery(inside);
       }},
      {"cuEventRecord, then synchronize",
       [&] {
         must(api.cuEventRecord(inside, stream), "record");
         return api.cuEventSynchronize(inside);
       }},
      {"wait for an event from outside", [&] { return api.cuStreamWaitEvent(stream, before, 0); }},
      {"external wait for an event from outside",
       [&] { return api.cuStreamWaitEvent(stream, before, CU_EVENT_WAIT_EXTERNAL); }},
      {"fork without a join",
       [&] {
         must(api.cuEventRecord(inside, stream), "record");
         must(api.cuStreamWaitEvent(other, inside, 0), "wait");
         return log.append(other, 2);
       }},
      {"fork and join",
       [&] {
         must(api.cuEventRecord(inside, stream), "record");
         must(api.cuStreamWaitEvent(other, inside, 0), "wait");
         must(log.append(other, 2), "launch");
         must(api.cuEventRecord(inside, other), "record");
         return api.cuStreamWaitEvent(stream, inside, 0);
       }},
      {"host function",
       [&] {
         return api.cuLaunchHostFunc(
             stream, [](void*) {}, nullptr);
       }},
      {"callback",
       [&] {
         return api.cuStreamAddCallback(
             stream, [](CUstream, CUresult, void*) {}, nullptr, 0);
       }},
      {"fill", [&] { return api.cuMemsetD32Async(memory, 1, 4, stream); }},
      {"copy from pinned memory", [&] { return api.cuMemcpyHtoDAsync(memory, host, 64, stream); }},
      {"copy from pageable memory",
       [&] {
         static std::uint32_t pageable[16];
         return api.cuMemcpyHtoDAsync(memory, pageable, 64, stream);
       }},
      {"value write",
       [&] { return api.cuStreamWriteValue32(stream, memory, 1, CU_STREAM_WRITE_VALUE_DEFAULT); }},
      {"ordered allocation",
       [&] {
         CUdeviceptr more = 0;
         return api.cuMemAllocAsync(&more, 4096, stream);
       }},
      {"an impossible launch",
       [&] {
         const std::uint32_t value = 1;
         return launch(session.function("store"), stream, {&memory, &value}, 1, 1025);
       }},
      {"a second capture",
       [&] { return api.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }},
      {"destroying the stream's fork event",
       [&] {
         CUevent event = session.event();
         must(api.cuEventRecord(event, stream), "record");
         return api.cuEventDestroy(event);
       }},
  };
  for (const Call& call : calls) {
    VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    must(log.append(stream, 1), "launch");
    const CUresult result = call.make();
    const std::string after = status(stream);
    const std::string other_after = status(other);
    Say{"{}: {}; capture {}, other stream {}; end {}",
        call.name,
        code(result),
        after,
        other_after,
        end(stream)};
    Say{"  the event afterwards {}, other stream {}", now(inside), status(other)};
    drain();
  }
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(capture_ended_elsewhere, "Who may end a capture, and can two captures be joined?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream other = session.stream(CU_STREAM_NON_BLOCKING);
  for (const CUstreamCaptureMode mode :
       {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CU_STREAM_CAPTURE_MODE_RELAXED}) {
    VITAMIN_MUST(cuStreamBeginCapture(stream, mode));
    must(log.append(stream, 1), "launch");
    std::string from_thread;
    std::thread([&] {
      VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
      from_thread = end(stream);
    }).join();
    Say{"mode {}: ended by another thread {}; then {}", static_cast<int>(mode), from_thread,
        end(stream)};
  }
  CUgraph graph = nullptr;
  Say{"end without begin {}", code(api.cuStreamEndCapture(stream, &graph))};
  VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  VITAMIN_MUST(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
  must(log.append(stream, 1), "launch");
  must(log.append(other, 2), "launch");
  CUevent event = session.event();
  VITAMIN_MUST(cuEventRecord(event, stream));
  Say{"wait across captures {}", code(api.cuStreamWaitEvent(other, event, 0))};
  Say{"status {} and {}", status(stream), status(other)};
  Say{"end of the first {}", end(stream)};
  Say{"end of the second {}", end(other)};
}

namespace {

// A graph of one kernel that appends `value`, captured on `stream`.
CUgraphExec captured(const Log& log, CUstream stream, std::uint32_t value) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  must(log.append(stream, value), "launch");
  VITAMIN_MUST(cuStreamEndCapture(stream, &graph));
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  return executable;
}

}  // namespace

VITAMIN_RULE(graph_launch_order, "Is a graph ordered in its stream, with itself and with NULL?") {
  Session session;
  const Log log(session);
  CUstream capture = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream green = session.green_stream(session.green({0}));
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream other = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream blocking = session.stream();
  CUgraphExec one = captured(log, capture, 1);
  CUgraphExec two = captured(log, green, 2);
  Say{"after the captures: kernels {}", log.text()};
  {
    Gate gate(session, held);
    Say{"launch {}", waits_for(gate, [&] { return api.cuGraphLaunch(one, held); })};
    must(log.append(held, 9), "launch");
    Say{"pending {}", now(held)};
    Say{"the same graph on another stream {}",
        waits_for(gate, [&] { return api.cuGraphLaunch(one, other); })};
    Say{"it is {}", soon(other)};
    Say{"another graph on a green stream {}",
        waits_for(gate, [&] { return api.cuGraphLaunch(two, green); })};
    Say{"it is {}", soon(green)};
    gate.open();
    drain();
  }
  {
    Gate gate(session, blocking);
    Say{"on NULL {}", waits_for(gate, [&] { return api.cuGraphLaunch(one, nullptr); })};
    Say{"NULL {}", soon(static_cast<CUstream>(nullptr))};
    Say{"upload {}", waits_for(gate, [&] { return api.cuGraphUpload(two, other); })};
    Say{"destroy a graph that is queued {}",
        waits_for(gate, [&] { return api.cuGraphExecDestroy(one); })};
    gate.open();
    drain();
  }
  std::size_t total = 0;
  for (const char c : log.text()) total += c == ' ';
  Say{"kernels run {}", total + 1};
}

namespace {

// A capture that begins on `origin`, forks to `joined` and comes back.
void capture_across(Session& session, const char* name, CUstream origin, CUstream joined) {
  const Log log(session);
  CUevent fork = session.event();
  CUevent join = session.event();
  CUgraph graph = nullptr;
  Say{"{}: begin {}", name,
      code(api.cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))};
  Say{"{}: record {}", name, code(api.cuEventRecord(fork, origin))};
  Say{"{}: wait {}", name, code(api.cuStreamWaitEvent(joined, fork, 0))};
  Say{"{}: the joined stream is {}", name, status(joined)};
  Say{"{}: launch {}", name, code(log.append(joined, 1))};
  Say{"{}: record there {}", name, code(api.cuEventRecord(join, joined))};
  Say{"{}: wait for it {}", name, code(api.cuStreamWaitEvent(origin, join, 0))};
  Say{"{}: end {}", name, code(api.cuStreamEndCapture(origin, &graph))};
  drain();
  Say{"{}: kernels {}; the joined stream is {}", name, log.text(), status(joined)};
  CUgraphExec executable = nullptr;
  if (graph == nullptr) return;
  Say{"{}: instantiate {}", name, code(api.cuGraphInstantiate(&executable, graph, 0))};
  if (executable == nullptr) return;
  Say{"{}: launch of the graph {}", name, code(api.cuGraphLaunch(executable, joined))};
  drain();
  Say{"{}: kernels {}", name, log.text()};
  // The events were recorded in a capture that is over.
  Say{"{}: wait for the fork's event afterwards {}", name,
      code(api.cuStreamWaitEvent(joined, fork, 0))};
  Say{"{}: query of it {}", name, code(api.cuEventQuery(fork))};
  Say{"{}: record of it {}", name, code(api.cuEventRecord(fork, joined))};
  drain();
  Say{"{}: query then {}", name, code(api.cuEventQuery(fork))};
}

}  // namespace

VITAMIN_RULE(captures_across_contexts_and_threads,
             "Does a stream join a capture of a green stream, of a per-thread default stream, of "
             "another thread?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream blocking = session.stream();
  CUstream green = session.green_stream(session.green({0}));
  CUstream other_green = session.green_stream(session.green({1}));
  capture_across(session, "green to ordinary", green, stream);
  capture_across(session, "green to blocking", green, blocking);
  capture_across(session, "green to green", green, other_green);
  capture_across(session, "ordinary to green", stream, green);
  capture_across(session, "per-thread to ordinary", CU_STREAM_PER_THREAD, stream);
  capture_across(session, "ordinary to per-thread", stream, CU_STREAM_PER_THREAD);
}

}  // namespace vitamin::differential
