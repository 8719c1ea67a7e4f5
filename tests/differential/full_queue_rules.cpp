// SPDX-License-Identifier: Apache-2.0
//
// Which calls block beside a queue that is full, and beside a call that waits.
#include <atomic>
#include <thread>
#include <vector>

#include "full_queue.h"
#include "session.h"

namespace vitamin::differential {

// --- beside a full queue -------------------------------------------------------------------------

namespace {

// Calls on the full stream; `behind` is an event that was recorded there, behind the gate.
std::vector<Meanwhile> on_the_full_stream(Session& session, const Material& m, CUstream stream,
                                          CUevent behind) {
  return {
      {"record", [=, &m] { return api.cuEventRecord(m.one_event, stream); }},
      {"wait for a fired event", [=, &m] { return api.cuStreamWaitEvent(stream, m.fired, 0); }},
      {"query", [=] { return api.cuStreamQuery(stream); }},
      {"is capturing",
       [=] {
         CUstreamCaptureStatus status{};
         return api.cuStreamIsCapturing(stream, &status);
       }},
      {"get priority",
       [=] {
         int priority = 0;
         return api.cuStreamGetPriority(stream, &priority);
       }},
      {"query of an event behind it", [=] { return api.cuEventQuery(behind); }},
      {"wait of another stream for an event behind it",
       [=, other = session.stream(CU_STREAM_NON_BLOCKING)] {
         return api.cuStreamWaitEvent(other, behind, 0);
       }},
      {"record of the event behind it on another stream",
       [=, other = session.stream(CU_STREAM_NON_BLOCKING)] {
         return api.cuEventRecord(behind, other);
       }},
  };
}

std::vector<Meanwhile> on_other_streams(Session& session, const Material& m) {
  CUstream other = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream green = session.green_stream(session.green({1}));
  return {
      {"query of another stream", [=] { return api.cuStreamQuery(other); }},
      {"launch on another stream", [=, &m] { return m.launch_small(other); }},
      {"launch on another green stream", [=, &m] { return m.launch_small(green); }},
      {"fill on another stream",
       [=, &m] { return api.cuMemsetD32Async(m.word + 8192, 1, 16, other); }},
      {"graph launch on another stream",
       [=, &m] { return api.cuGraphLaunch(m.small_graph, other); }},
      {"graph launch on another green stream",
       [=, &m] { return api.cuGraphLaunch(m.small_graph, green); }},
      {"host function on another stream", [=] { return no_host_function(other); }},
      {"record on another green stream", [=, &m] { return api.cuEventRecord(m.one_event, green); }},
      {"query of a fired event", [=, &m] { return api.cuEventQuery(m.fired); }},
      {"synchronisation of a fired event", [=, &m] { return api.cuEventSynchronize(m.fired); }},
      {"destruction of another stream",
       [spare = session.stream(CU_STREAM_NON_BLOCKING)] { return api.cuStreamDestroy(spare); }},
      {"destruction of an event", [spare = session.event()] { return api.cuEventDestroy(spare); }},
  };
}

std::vector<Meanwhile> about_nothing_of_it(Session& session, const Material& m) {
  CUgraph graph = nullptr;
  VITAMIN_MUST(cuGraphCreate(&graph, 0));
  CUfunction store = m.store;
  CUgreenCtx green = session.green({2});
  return {
      {"creation of a stream",
       [] {
         CUstream stream = nullptr;
         return api.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
       }},
      {"creation of a green stream",
       [=] {
         CUstream stream = nullptr;
         return api.cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0);
       }},
      {"creation of an event",
       [] {
         CUevent event = nullptr;
         return api.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
       }},
      {"current context",
       [&session] {
         return failure_of({api.cuCtxSetCurrent(nullptr), api.cuCtxSetCurrent(session.primary())});
       }},
      {"capture mode",
       [] {
         CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
         const CUresult first = api.cuThreadExchangeStreamCaptureMode(&mode);
         return failure_of({first, api.cuThreadExchangeStreamCaptureMode(&mode)});
       }},
      {"attribute of a kernel",
       [=] {
         int value = 0;
         return api.cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, store);
       }},
      {"parameter of a kernel",
       [=] {
         std::size_t offset = 0;
         std::size_t size = 0;
         return api.cuFuncGetParamInfo(store, 0, &offset, &size);
       }},
      {"occupancy",
       [=] {
         int blocks = 0;
         return api.cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, store, 32, 0);
       }},
      {"free memory",
       [] {
         std::size_t free = 0;
         std::size_t total = 0;
         return api.cuMemGetInfo(&free, &total);
       }},
      {"clone of a graph",
       [=] {
         CUgraph clone = nullptr;
         return api.cuGraphClone(&clone, graph);
       }},
      {"instantiation of a graph",
       [=] {
         CUgraphExec executable = nullptr;
         return api.cuGraphInstantiate(&executable, graph, 0);
       }},
      {"update of a graph",
       [graph, executable = m.small_graph] {
         CUgraphExecUpdateResultInfo info{};
         const CUresult answer = api.cuGraphExecUpdate(executable, graph, &info);
         return answer == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE ? CUDA_SUCCESS : answer;
       }},
      {"destruction of an executable graph",
       [executable = graph_of_launches(session, m.word, 1)] {
         return api.cuGraphExecDestroy(executable);
       }},
  };
}

void beside_a_full_queue(Session& session, const char* name, CUstream stream) {
  const Material material(session);
  CUevent behind = session.event();
  std::vector<Meanwhile> all = on_the_full_stream(session, material, stream, behind);
  for (auto* more : {&on_other_streams, &about_nothing_of_it})
    for (const Meanwhile& question : more(session, material)) all.push_back(question);
  for (const Meanwhile& question : all) {
    {
      Gate gate(session, stream);
      VITAMIN_MUST(cuEventRecord(behind, stream));
      const FullQueue queue(
          session, gate, [&](int) { return material.launch_small(stream); }, kEnoughOfAKind);
      Say{"{} full: {}: {}", name, question.name, waits_for(gate, question.call)};
    }
    drain();
  }
}

}  // namespace

VITAMIN_RULE(calls_beside_a_full_primary_stream,
             "Which calls wait while a launch waits for room on a stream?") {
  Session session;
  beside_a_full_queue(session, "primary", session.stream(CU_STREAM_NON_BLOCKING));
}
VITAMIN_RULE(calls_beside_a_full_green_stream,
             "Which calls wait while a launch waits for room on a green stream?") {
  Session session;
  beside_a_full_queue(session, "green", session.green_stream(session.green({0})));
}

// --- beside a call that waits --------------------------------------------------------------------

namespace {

// A call on a thread of its own that does not come back before the gate opens.
class Waiting {
 public:
  Waiting(Session& session, Gate& gate, const std::function<CUresult()>& call)
      : gate_(gate), thread_([this, &session, call] {
          VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
          inside_ = true;
          must(call(), "a call that waits");
          inside_ = false;
        }) {
    std::this_thread::sleep_for(2 * timeout());
  }
  ~Waiting() {
    gate_.open();
    thread_.join();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  bool waits() const { return inside_ && !gate_.is_open(); }

 private:
  Gate& gate_;
  std::atomic<bool> inside_{false};
  std::thread thread_;
};

void beside_a_waiting_call(Session& session, const Meanwhile& waiting, CUstream stream) {
  const Material material(session);
  CUevent behind = session.event();
  std::vector<Meanwhile> all = on_the_full_stream(session, material, stream, behind);
  all.insert(all.begin(),
             {{"launch", [&] { return material.launch_small(stream); }},
              {"fill", [&] { return api.cuMemsetD32Async(material.word + 8192, 1, 16, stream); }}});
  for (auto* more : {&on_other_streams, &about_nothing_of_it})
    for (const Meanwhile& question : more(session, material)) all.push_back(question);
  bool told = false;
  for (const Meanwhile& question : all) {
    {
      Gate gate(session, stream);
      VITAMIN_MUST(cuEventRecord(behind, stream));
      const Waiting held(session, gate, waiting.call);
      if (!told) Say{"{}: does not return: {}", waiting.name, yes_no(held.waits())};
      told = true;
      if (!held.waits()) return;
      Say{"beside {}: {}: {}", waiting.name, question.name, waits_for(gate, question.call)};
    }
    drain();
  }
}

}  // namespace

VITAMIN_RULE(calls_beside_a_copy_from_pageable_memory,
             "Which calls wait while such a copy waits for its held stream?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr to = session.memory(1 << 20);
  static std::vector<char> from(1 << 20);
  beside_a_waiting_call(session,
                        {"a copy from pageable memory",
                         [=] { return api.cuMemcpyHtoDAsync(to, from.data(), 1 << 20, stream); }},
                        stream);
}
VITAMIN_RULE(calls_beside_a_copy_to_pageable_memory,
             "Which calls wait while such a copy waits for its held stream?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr from = session.memory(1 << 20);
  static std::vector<char> to(1 << 20);
  beside_a_waiting_call(session,
                        {"a copy to pageable memory",
                         [=] { return api.cuMemcpyDtoHAsync(to.data(), from, 1 << 20, stream); }},
                        stream);
}
VITAMIN_RULE(calls_beside_a_synchronisation,
             "Which calls wait while a thread synchronises with a held stream?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  beside_a_waiting_call(
      session, {"a synchronisation", [=] { return api.cuStreamSynchronize(stream); }}, stream);
}
VITAMIN_RULE(calls_beside_a_free, "Which calls wait while a free waits for a held stream?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  static std::vector<CUdeviceptr> memory;
  for (int i = 0; i < 64; ++i) memory.push_back(session.memory(1 << 16));
  beside_a_waiting_call(session,
                        {"a free",
                         [] {
                           const CUdeviceptr last = memory.back();
                           memory.pop_back();
                           return api.cuMemFree(last);
                         }},
                        stream);
}
VITAMIN_RULE(calls_beside_a_synchronisation_of_the_context,
             "Which calls wait while a thread synchronises with the context of a held stream?") {
  Session session;
  beside_a_waiting_call(session,
                        {"a synchronisation of the context", [] { return api.cuCtxSynchronize(); }},
                        session.stream(CU_STREAM_NON_BLOCKING));
}

}  // namespace vitamin::differential
