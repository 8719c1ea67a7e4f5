// SPDX-License-Identifier: Apache-2.0
//
// Which stream waits for which: legacy, per-thread, blocking, non-blocking and green streams.
#include <array>
#include <thread>

#include "session.h"

namespace vitamin::differential {
namespace {

// Every way to name a stream, asked about work that is pending on another one.
struct Observers {
  explicit Observers(Session& session)
      : doors{{{"NULL", nullptr},
               {"0x1", CU_STREAM_LEGACY},
               {"0x2", CU_STREAM_PER_THREAD},
               {"NULL through _ptsz", nullptr, true},
               {"0x1 through _ptsz", CU_STREAM_LEGACY, true},
               {"blocking", session.stream()},
               {"non-blocking", session.stream(CU_STREAM_NON_BLOCKING)},
               {"green", session.green_stream(session.green({0}))}}} {}
  std::array<Door, 8> doors;
};

// A held stream, with a kernel behind the gate so that more than a value wait is pending.
using Hold = std::function<void(Gate&)>;

void observe(Session& session, const Log& log, const Door& door, const Hold& hold) {
  CUevent event = session.event();
  CUstream follower = session.stream(CU_STREAM_NON_BLOCKING);
  {
    Gate gate(session);
    hold(gate);
    const std::string query = code(soon([&] { return door.query(); }));
    const CUresult record = door.record(event);
    const std::string fired = soon(event);
    must(api.cuStreamWaitEvent(follower, event, 0), "cuStreamWaitEvent");
    const std::string followed = soon(follower);
    const std::string synchronize = waits_for(gate, [&] { return door.synchronize(); });
    Say{"{}: query {}; record {}, event {}, follower {}; synchronize {}",
        door.name,
        query,
        code(record),
        fired,
        followed,
        synchronize};
    gate.open();
    drain();
  }
  {
    Gate gate(session);
    hold(gate);
    const CUresult launched = log.append(door, 7);
    Say{"{}: launch {}, then query {}", door.name, code(launched),
        code(soon([&] { return door.query(); }))};
    gate.open();
    drain();
  }
}

void observe_all(Session& session, const Hold& hold) {
  const Log log(session);
  Observers observers(session);
  for (const Door& door : observers.doors) observe(session, log, door, hold);
  Say{"kernels {}", log.text()};
}

void observe_work_on(Session& session, CUstream stream) {
  const Log log(session);
  observe_all(session, [&](Gate& gate) {
    gate.put(stream);
    must(log.append(stream, 1), "launch");
  });
}

}  // namespace

VITAMIN_RULE(pending_on_legacy, "Who waits for work that is pending on the legacy stream?") {
  Session session;
  observe_work_on(session, nullptr);
}

VITAMIN_RULE(pending_on_blocking, "Who waits for work that is pending on a blocking stream?") {
  Session session;
  observe_work_on(session, session.stream());
}

VITAMIN_RULE(pending_on_nonblocking,
             "Who waits for work that is pending on a non-blocking stream?") {
  Session session;
  observe_work_on(session, session.stream(CU_STREAM_NON_BLOCKING));
}

VITAMIN_RULE(pending_on_per_thread,
             "Who waits for work that is pending on this thread's default stream?") {
  Session session;
  observe_work_on(session, CU_STREAM_PER_THREAD);
}

VITAMIN_RULE(pending_on_per_thread_of_another_thread,
             "Who waits for work that is pending on another thread's default stream?") {
  Session session;
  const Log log(session);
  observe_all(session, [&](Gate& gate) {
    std::thread([&] {
      VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
      gate.put(CU_STREAM_PER_THREAD);
      must(log.append(CU_STREAM_PER_THREAD, 1), "launch");
    }).join();
  });
}

VITAMIN_RULE(pending_on_green, "Who waits for work that is pending on a green context's stream?") {
  Session session;
  observe_work_on(session, session.green_stream(session.green({1})));
}

VITAMIN_RULE(legacy_stream_orders_blocking_streams,
             "In which order do kernels of blocking streams run around one of the legacy stream?") {
  Session session;
  const Log log(session);
  CUstream first = session.stream();
  CUstream second = session.stream();
  CUstream free = session.stream(CU_STREAM_NON_BLOCKING);
  Gate gate(session, first);
  must(log.append(first, 1), "launch");
  must(log.append(nullptr, 2), "launch");
  must(log.append(second, 3), "launch");
  must(log.append(free, 4), "launch");
  Say{"non-blocking {}, kernels {}", soon(free), log.text()};
  Say{"first {}, second {}", soon(first), soon(second)};
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(per_thread_streams_are_independent,
             "Does one thread's default stream wait for another's, and is NULL through _ptsz it?") {
  Session session;
  const Log log(session);
  Gate gate(session);
  Say{"gate through _ptsz NULL: {}", code(gate.put_ptsz(nullptr))};
  must(log.append(Door{"", nullptr, true}, 1), "launch");
  Say{"0x2 on this thread {}", soon(CU_STREAM_PER_THREAD)};
  std::thread([&] {
    VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
    Say{"0x2 on another thread, idle: {}", soon(CU_STREAM_PER_THREAD)};
    must(log.append(CU_STREAM_PER_THREAD, 2), "launch");
    Say{"0x2 on another thread, after a launch: {}", soon(CU_STREAM_PER_THREAD)};
  }).join();
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
  unsigned flags = 99;
  Say{"flags of 0x2: {}", code(api.cuStreamGetFlags(CU_STREAM_PER_THREAD, &flags))};
  Say{"  {}", flags};
  Say{"flags of 0x1: {}", code(api.cuStreamGetFlags(CU_STREAM_LEGACY, &flags))};
  Say{"  {}", flags};
  Say{"flags of NULL: {}", code(api.cuStreamGetFlags(nullptr, &flags))};
  Say{"  {}", flags};
}

namespace {

struct LegacyCall {
  const char* name;
  std::function<CUresult()> make;
};

std::vector<LegacyCall> calls_on_the_legacy_stream(Session& session, const Log& log) {
  static CUdeviceptr target = session.memory(4096);
  static CUdeviceptr other = session.memory(4096);
  static std::uint32_t* host = session.pinned(4096);
  static CUevent event = session.event();
  static CUevent fired = session.event();
  static CUdeviceptr allocated = 0;
  VITAMIN_MUST(cuEventRecord(fired, session.stream(CU_STREAM_NON_BLOCKING)));
  drain();
  return {
      {"nothing", [] { return CUDA_SUCCESS; }},
      {"cuStreamQuery", [] { return api.cuStreamQuery(nullptr), CUDA_SUCCESS; }},
      {"cuEventRecord", [] { return api.cuEventRecord(event, nullptr); }},
      {"cuStreamWaitEvent of a fired event",
       [] { return api.cuStreamWaitEvent(nullptr, fired, 0); }},
      {"cuLaunchKernel", [&log] { return log.append(static_cast<CUstream>(nullptr), 2); }},
      {"cuLaunchHostFunc",
       [] {
         return api.cuLaunchHostFunc(
             nullptr, [](void*) {}, nullptr);
       }},
      {"cuMemsetD32Async", [] { return api.cuMemsetD32Async(target, 1, 16, nullptr); }},
      {"cuMemcpyDtoDAsync", [] { return api.cuMemcpyDtoDAsync(target, other, 64, nullptr); }},
      {"cuMemcpyHtoDAsync of pinned memory",
       [] { return api.cuMemcpyHtoDAsync(target, host, 64, nullptr); }},
      {"cuMemsetD32", [] { return api.cuMemsetD32(target, 1, 16); }},
      {"cuMemcpyDtoD", [] { return api.cuMemcpyDtoD(target, other, 64); }},
      {"cuStreamWriteValue32",
       [] { return api.cuStreamWriteValue32(nullptr, target, 1, CU_STREAM_WRITE_VALUE_DEFAULT); }},
      {"cuMemAllocAsync", [] { return api.cuMemAllocAsync(&allocated, 4096, nullptr); }},
      {"cuMemFreeAsync", [] { return api.cuMemFreeAsync(allocated, nullptr); }},
  };
}

}  // namespace

VITAMIN_RULE(legacy_calls_that_are_barriers,
             "After which calls on the legacy stream does a blocking stream wait for another?") {
  Session session;
  const Log log(session);
  CUstream held = session.stream();
  CUstream later = session.stream();
  for (const LegacyCall& call : calls_on_the_legacy_stream(session, log)) {
    Gate gate(session, held);
    must(log.append(held, 1), "launch");
    const CUresult made = call.make();
    must(log.append(later, 3), "launch");
    Say{"{}: {}; a later kernel of a blocking stream: {}", call.name, code(made), soon(later)};
    gate.open();
    drain();
  }
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(legacy_wait_holds_blocking_streams,
             "Does a wait on the legacy stream for a non-blocking stream hold blocking streams?") {
  Session session;
  const Log log(session);
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream blocking = session.stream();
  CUevent event = session.event();
  Gate gate(session, held);
  must(log.append(held, 1), "launch");
  VITAMIN_MUST(cuEventRecord(event, held));
  Say{"wait on NULL: {}", code(api.cuStreamWaitEvent(nullptr, event, 0))};
  Say{"NULL {}, blocking idle {}", soon(static_cast<CUstream>(nullptr)), soon(blocking)};
  must(log.append(blocking, 2), "launch");
  Say{"blocking after a launch: {}", soon(blocking)};
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(
    synchronous_copies_use_the_default_stream_of_their_entry,
    "Which held streams do cuMemcpyHtoD, DtoH and cuMemsetD32 wait for, in both variants?") {
  Session session;
  const Log log(session);
  CUdeviceptr target = session.memory(4096);
  static std::uint32_t* host = session.pinned(4096);
  struct Held {
    const char* name;
    CUstream stream;
  };
  const Held held[] = {{"blocking", session.stream()},
                       {"non-blocking", session.stream(CU_STREAM_NON_BLOCKING)},
                       {"legacy", CU_STREAM_LEGACY},
                       {"per-thread", CU_STREAM_PER_THREAD},
                       {"green", session.green_stream(session.green({0}))}};
  const LegacyCall calls[] = {
      {"cuMemcpyHtoD", [=] { return api.cuMemcpyHtoD(target, host, 64); }},
      {"cuMemcpyDtoH", [=] { return api.cuMemcpyDtoH(host, target, 64); }},
      {"cuMemsetD32", [=] { return api.cuMemsetD32(target, 0, 16); }},
      {"cuMemcpyHtoD_ptds", [=] { return api.cuMemcpyHtoD_v2_ptds(target, host, 64); }},
      {"cuMemcpyDtoH_ptds", [=] { return api.cuMemcpyDtoH_v2_ptds(host, target, 64); }},
      {"cuMemsetD32_ptds", [=] { return api.cuMemsetD32_v2_ptds(target, 0, 16); }}};
  for (const Held& stream : held)
    for (const LegacyCall& call : calls) {
      Gate gate(session, stream.stream);
      must(log.append(stream.stream, 1), "launch");
      Say{"{} stream held, {} {}", stream.name, call.name, waits_for(gate, call.make)};
      gate.open();
      drain();
    }
}

}  // namespace vitamin::differential
