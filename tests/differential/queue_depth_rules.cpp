// SPDX-License-Identifier: Apache-2.0
//
// How much a stream takes before a call blocks, and what counts.
//
// The numbers differ between devices and drivers: they go to stderr, and the trace keeps their
// classes ("as many as launches", "half as many").
#include <cstdlib>
#include <memory>

#include "full_queue.h"
#include "session.h"

namespace vitamin::differential {

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
        {"query of the full stream",
         [&] {
           // Whether the launches have ended once it answers is a matter of time.
           const CUresult answer = api.cuStreamQuery(stream);
           return answer == CUDA_SUCCESS ? CUDA_ERROR_NOT_READY : answer;
         }},
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

// A kind of call, made again and again on `stream`.
struct Counted {
  const char* name;
  std::function<CUresult(CUstream, int)> make;
};

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

}  // namespace vitamin::differential
