// SPDX-License-Identifier: Apache-2.0
//
// How much a stream takes before a call blocks, what counts, and which calls block beside it.
//
// The numbers differ between devices and drivers: they go to stderr, and the trace keeps their
// classes ("as many as launches", "half as many").
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "session.h"

namespace vitamin::differential {
namespace {

// Makes one call after the other on a thread of its own until one does not return: a queue behind a
// gate that the caller has put is full then.
class FullQueue {
 public:
  using Make = std::function<CUresult(int)>;
  FullQueue(Session& session, Gate& gate, const Make& make, int enough = 20000)
      : gate_(gate), enough_(enough), maker_([this, &session, make] {
          VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
          while (made_ < enough_ && !stop_) {
            must(make(made_), "a call behind the gate");
            ++made_;
          }
        }) {
    for (int seen = -1; made_ < enough_ && seen != made_;) {
      seen = made_;
      std::this_thread::sleep_for(2 * timeout());
    }
  }
  ~FullQueue() {
    stop_ = true;
    gate_.open();
    maker_.join();
  }
  FullQueue(const FullQueue&) = delete;
  FullQueue& operator=(const FullQueue&) = delete;
  int made() const { return made_; }
  bool is_full() const { return made_ < enough_; }

 private:
  Gate& gate_;
  const int enough_;
  std::atomic<int> made_{0};
  std::atomic<bool> stop_{false};
  std::thread maker_;
};

struct Meanwhile {
  const char* name;
  std::function<CUresult()> call;
};

}  // namespace

VITAMIN_RULE(queue_depth,
             "How many launches fit behind a gate before a launch waits, and who waits with it?") {
  Session session;
  const CUdeviceptr word = session.memory(64);
  const std::uint32_t value = 1;
  CUfunction store = session.function("store");
  CUevent event = session.event();
  CUevent fired = session.event();
  VITAMIN_MUST(cuEventRecord(fired, session.stream(CU_STREAM_NON_BLOCKING)));
  drain();
  for (const bool green : {false, true}) {
    const char* kind = green ? "green" : "primary";
    CUstream stream =
        green ? session.green_stream(session.green({0})) : session.stream(CU_STREAM_NON_BLOCKING);
    CUstream primary = session.stream(CU_STREAM_NON_BLOCKING);
    CUstream other_green = session.green_stream(session.green({1}));
    const Meanwhile questions[] = {
        {"query of the full stream", [&] { return api.cuStreamQuery(stream); }},
        {"query of a fired event", [&] { return api.cuEventQuery(fired); }},
        {"launch on another primary stream",
         [&] {
           return launch(store, primary, {&word, &value});
         }},
        {"launch on another green stream",
         [&] {
           return launch(store, other_green, {&word, &value});
         }},
        {"record on another stream", [&] { return api.cuEventRecord(event, primary); }},
        {"wait on another stream", [&] { return api.cuStreamWaitEvent(primary, fired, 0); }},
        {"allocation", [&] {
           CUdeviceptr memory = 0;
           return api.cuMemAlloc(&memory, 1 << 16);
         }}};
    bool told = false;
    for (const Meanwhile& question : questions) {
      {
        Gate gate(session, stream);
        const FullQueue queue(session, gate, [&](int) {
          return launch(store, stream, {&word, &value});
        });
        if (!told) {
          std::fprintf(stderr, "queue_depth %s: %d\n", kind, queue.made());
          Say{"{}: at least 500 launches fit: {}", kind, yes_no(queue.made() >= 500)};
          Say{"{}: at some depth a launch waits: {}", kind, yes_no(queue.is_full())};
          told = true;
        }
        if (queue.is_full())
          Say{"{} full, {}: {}", kind, question.name, waits_for(gate, question.call)};
      }
      drain();
    }
  }
}

// --- what counts ---------------------------------------------------------------------------------

namespace {

// More than any device was seen to take.
constexpr int kEnoughOfAKind = 4096;

// A kind of call, made again and again on `stream`.
struct Counted {
  const char* name;
  std::function<CUresult(CUstream, int)> make;
};

CUgraphExec graph_of_launches(Session& session, CUdeviceptr word, int count) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const std::uint32_t value = 1;
  VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < count; ++i)
    must(launch(session.function("store"), stream, {&word, &value}), "launch");
  VITAMIN_MUST(cuStreamEndCapture(stream, &graph));
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  VITAMIN_MUST(cuGraphLaunch(executable, stream));
  drain();
  return executable;
}

CUresult no_host_function(CUstream stream) {
  return api.cuLaunchHostFunc(
      stream, [](void*) {}, nullptr);
}

// What the calls use, prepared before the gate closes.
struct Material {
  explicit Material(Session& session)
      : store(session.function("store")),
        large(session.function("store_of_many")),
        word(session.memory(1 << 16)),
        host(session.pinned(1 << 16)),
        one_event(session.event()),
        fired(session.event()),
        held(session.event()),
        holder(session.stream(CU_STREAM_NON_BLOCKING)),
        small_graph(graph_of_launches(session, word, 1)),
        large_graph(graph_of_launches(session, word, 20)) {
    VITAMIN_MUST(cuFuncLoad(large));
    for (int i = 0; i < kEnoughOfAKind; ++i) events.push_back(session.event());
    VITAMIN_MUST(cuEventRecord(fired, holder));
    VITAMIN_MUST(cuMemHostGetDevicePointer(&host_word, host, 0));
    drain();
  }
  CUresult launch_small(CUstream stream) const {
    const std::uint32_t value = 1;
    return launch(store, stream, {&word, &value});
  }
  CUresult launch_large(CUstream stream) const {
    static const std::vector<std::uint32_t> many(kLargeParameterWords);
    return launch(large, stream, {&word, many.data()});
  }

  CUfunction store, large;
  CUdeviceptr word;
  std::uint32_t* host;
  CUdeviceptr host_word = 0;
  CUevent one_event, fired;
  CUevent held;  // pending while the gate is closed
  CUstream holder;
  CUgraphExec small_graph, large_graph;
  std::vector<CUevent> events;
};

// The answers of calls that are made one after the other, as braces promise: the first failure.
CUresult failure_of(std::initializer_list<CUresult> answers) {
  for (const CUresult answer : answers)
    if (answer != CUDA_SUCCESS) return answer;
  return CUDA_SUCCESS;
}

std::vector<Counted> counted_markers(const Material& m) {
  return {
      {"record of one event", [&](CUstream s, int) { return api.cuEventRecord(m.one_event, s); }},
      {"record of an event each",
       [&](CUstream s, int i) { return api.cuEventRecord(m.events[i], s); }},
      {"wait for a fired event",
       [&](CUstream s, int) { return api.cuStreamWaitEvent(s, m.fired, 0); }},
      {"wait for a pending event",
       [&](CUstream s, int) { return api.cuStreamWaitEvent(s, m.held, 0); }},
      {"launch and record of one event",
       [&](CUstream s, int) {
         return failure_of({m.launch_small(s), api.cuEventRecord(m.one_event, s)});
       }},
      {"launch and record of an event each",
       [&](CUstream s, int i) {
         return failure_of({m.launch_small(s), api.cuEventRecord(m.events[i], s)});
       }},
      {"launch and wait for a pending event",
       [&](CUstream s, int) {
         return failure_of({m.launch_small(s), api.cuStreamWaitEvent(s, m.held, 0)});
       }},
      {"launch, wait for a pending event and record of an event each",
       [&](CUstream s, int i) {
         return failure_of({m.launch_small(s), api.cuStreamWaitEvent(s, m.held, 0),
                            api.cuEventRecord(m.events[i], s)});
       }},
  };
}

std::vector<Counted> counted_work(const Material& m) {
  return {
      {"launch with 4,000 bytes of parameters", [&](CUstream s, int) { return m.launch_large(s); }},
      {"fill", [&](CUstream s, int) { return api.cuMemsetD32Async(m.word, 1, 16, s); }},
      {"copy on the device",
       [&](CUstream s, int) { return api.cuMemcpyDtoDAsync(m.word, m.word + 4096, 64, s); }},
      {"copy from pinned memory",
       [&](CUstream s, int) { return api.cuMemcpyHtoDAsync(m.word, m.host, 64, s); }},
      {"copy to pinned memory",
       [&](CUstream s, int) { return api.cuMemcpyDtoHAsync(m.host + 64, m.word, 64, s); }},
      {"value write",
       [&](CUstream s, int) { return api.cuStreamWriteValue32(s, m.host_word + 512, 1, 0); }},
      {"host function", [&](CUstream s, int) { return no_host_function(s); }},
      {"launch and copy on the device",
       [&](CUstream s, int) {
         return failure_of(
             {m.launch_small(s), api.cuMemcpyDtoDAsync(m.word, m.word + 4096, 64, s)});
       }},
      {"graph of one launch", [&](CUstream s, int) { return api.cuGraphLaunch(m.small_graph, s); }},
      {"graph of 20 launches",
       [&](CUstream s, int) { return api.cuGraphLaunch(m.large_graph, s); }},
  };
}

std::vector<Counted> counted_memory_operations(const Material& m) {
  const auto batch = [&m](CUstream stream, unsigned count) {
    CUstreamBatchMemOpParams writes[16] = {};
    for (CUstreamBatchMemOpParams& write : writes) {
      write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      write.writeValue.address = m.host_word + 512;
      write.writeValue.value = 1;
    }
    return api.cuStreamBatchMemOp(stream, count, writes, 0);
  };
  return {
      {"wait for a value that is there",
       [&](CUstream s, int) {
         return api.cuStreamWaitValue32(s, m.host_word + 1024, 0, CU_STREAM_WAIT_VALUE_EQ);
       }},
      {"batch of one value write", [=](CUstream s, int) { return batch(s, 1); }},
      {"batch of 16 value writes", [=](CUstream s, int) { return batch(s, 16); }},
  };
}

const char* compared(int count, int launches) {
  const double ratio = static_cast<double>(count) / launches;
  if (count >= kEnoughOfAKind) return "no end was found";
  if (ratio > 1.6) return "more";
  if (ratio > 0.7) return "as many";
  if (ratio > 0.4) return "half as many";
  if (ratio > 0.25) return "a third as many";
  return "fewer";
}

void depth_by_kind(Session& session, const char* stream_name, CUstream stream,
                   std::vector<Counted> (*kinds)(const Material&)) {
  const Material material(session);
  int launches = 0;
  std::vector<Counted> all = kinds(material);
  all.insert(all.begin(), {"launch", [&](CUstream s, int) { return material.launch_small(s); }});
  for (const Counted& kind : all) {
    int made = 0;
    bool full = false;
    {
      Gate gate(session);
      gate.put(material.holder);
      VITAMIN_MUST(cuEventRecord(material.held, material.holder));
      gate.put(stream);
      const FullQueue queue(
          session, gate, [&](int i) { return kind.make(stream, i); }, kEnoughOfAKind);
      made = queue.made();
      full = queue.is_full();
    }
    drain();
    std::fprintf(stderr, "queue_depth of %s, %s: %d%s\n", stream_name, kind.name, made,
                 full ? "" : " and more");
    if (launches == 0) launches = made;
    Say{"{}: {}: at least 400 fit: {}; at some depth one waits: {}", stream_name, kind.name,
        yes_no(made >= 400), yes_no(full)};
    if (&kind != &all.front())
      Say{"{}: {}: compared with launches: {}", stream_name, kind.name, compared(made, launches)};
  }
}

}  // namespace

VITAMIN_RULE(queue_depth_of_markers_on_a_primary_stream,
             "How many records, waits and launches with them fit behind a gate?") {
  Session session;
  depth_by_kind(session, "primary", session.stream(CU_STREAM_NON_BLOCKING), counted_markers);
}
VITAMIN_RULE(queue_depth_of_markers_on_a_green_stream,
             "How many records, waits and launches with them fit behind a gate?") {
  Session session;
  depth_by_kind(session, "green", session.green_stream(session.green({0})), counted_markers);
}
VITAMIN_RULE(queue_depth_of_markers_on_the_legacy_stream,
             "How many records, waits and launches with them fit behind a gate?") {
  Session session;
  depth_by_kind(session, "legacy", nullptr, counted_markers);
}
VITAMIN_RULE(queue_depth_of_work_on_a_primary_stream,
             "How many copies, fills, host functions and graphs fit behind a gate?") {
  Session session;
  depth_by_kind(session, "primary", session.stream(CU_STREAM_NON_BLOCKING), counted_work);
}
VITAMIN_RULE(queue_depth_of_work_on_a_green_stream,
             "How many copies, fills, host functions and graphs fit behind a gate?") {
  Session session;
  depth_by_kind(session, "green", session.green_stream(session.green({0})), counted_work);
}
VITAMIN_RULE(queue_depth_of_work_on_the_legacy_stream,
             "How many copies, fills, host functions and graphs fit behind a gate?") {
  Session session;
  depth_by_kind(session, "legacy", nullptr, counted_work);
}

VITAMIN_RULE(queue_depth_of_memory_operations_on_a_primary_stream,
             "How many value waits and batches of value writes fit behind a gate?") {
  Session session;
  depth_by_kind(session, "primary", session.stream(CU_STREAM_NON_BLOCKING),
                counted_memory_operations);
}
VITAMIN_RULE(queue_depth_of_memory_operations_on_the_legacy_stream,
             "How many value waits and batches of value writes fit behind a gate?") {
  Session session;
  depth_by_kind(session, "legacy", nullptr, counted_memory_operations);
}

VITAMIN_RULE(queue_depth_of_the_legacy_stream_beside_a_blocking_one,
             "How many legacy launches fit when blocking streams exist, and alternate with them?") {
  Session session;
  const Material material(session);
  CUstream blocking = session.stream();
  const Counted kinds[] = {
      {"launch", [&](CUstream, int) { return material.launch_small(nullptr); }},
      {"launch on the legacy stream, then on the blocking one", [&](CUstream, int) {
         return failure_of({material.launch_small(nullptr), material.launch_small(blocking)});
       }}};
  for (const Counted& kind : kinds) {
    int made = 0;
    bool full = false;
    {
      must(material.launch_small(blocking), "launch");
      Gate gate(session, nullptr);
      const FullQueue queue(
          session, gate, [&](int i) { return kind.make(nullptr, i); }, kEnoughOfAKind);
      made = queue.made();
      full = queue.is_full();
    }
    drain();
    std::fprintf(stderr, "queue_depth beside a blocking stream, %s: %d%s\n", kind.name, made,
                 full ? "" : " and more");
    Say{"{}: at least 400 fit: {}; at some depth one waits: {}", kind.name, yes_no(made >= 400),
        yes_no(full)};
  }
}

// --- several streams -----------------------------------------------------------------------------

namespace {

void depth_across_streams(const char* connections, int count) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
  Session session;
  const Material material(session);
  CUstream free = session.stream(CU_STREAM_NON_BLOCKING);
  std::vector<CUstream> streams;
  for (int i = 0; i < count; ++i) streams.push_back(session.stream(CU_STREAM_NON_BLOCKING));
  for (CUstream stream : streams) must(material.launch_small(stream), "launch");
  must(material.launch_small(free), "launch");
  drain();
  Gate gate(session);
  for (CUstream stream : streams) gate.put(stream);
  std::vector<std::unique_ptr<FullQueue>> full;
  int least = kEnoughOfAKind;
  for (CUstream stream : streams) {
    full.push_back(std::make_unique<FullQueue>(
        session, gate, [&, stream](int) { return material.launch_small(stream); }, kEnoughOfAKind));
    least = std::min(least, full.back()->made());
    std::fprintf(stderr, "queue_depth of stream %zu of %d, %s connections: %d\n", full.size(),
                 count, connections, full.back()->made());
  }
  const int first = full.front()->made();
  Say{"the first of {} streams takes at least 400 launches: {}", count, yes_no(first >= 400)};
  Say{"every other stream takes as many: {}", yes_no(10 * least >= 9 * first)};
  Say{"a launch on a stream that is not held {}",
      waits_for(gate, [&] { return material.launch_small(free); })};
  gate.open();
  full.clear();
  drain();
}

}  // namespace

VITAMIN_RULE(queue_depth_of_streams_on_one_connection,
             "Does a full stream leave less to others when all share one hardware queue?") {
  depth_across_streams("1", 3);
}
VITAMIN_RULE(queue_depth_of_more_streams_than_connections,
             "Does a full stream leave less to others when some share a hardware queue?") {
  depth_across_streams("8", 20);
}
VITAMIN_RULE(queue_depth_of_streams_with_a_connection_each,
             "Does a full stream leave less to others when none share a hardware queue?") {
  depth_across_streams("32", 8);
}

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
