// SPDX-License-Identifier: Apache-2.0
//
// Host functions, callbacks, value waits and value writes.
#include <atomic>
#include <thread>

#include "session.h"

namespace vitamin::differential {
namespace {

// A host function that notes when it ran and, where told to, waits to be released.
struct HostFunction {
  std::atomic<bool> began{false};
  std::atomic<bool> may_end{true};
  static void run(void* self) {
    auto* function = static_cast<HostFunction*>(self);
    function->began = true;
    while (!function->may_end) std::this_thread::yield();
  }
  static void callback(CUstream, CUresult, void* self) { run(self); }
  bool begins_soon() {
    return soon([&] { return began ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY; }) == CUDA_SUCCESS;
  }
};

using Enqueue = CUresult (*)(CUstream, HostFunction*);
CUresult as_host_function(CUstream stream, HostFunction* function) {
  return api.cuLaunchHostFunc(stream, &HostFunction::run, function);
}
CUresult as_callback(CUstream stream, HostFunction* function) {
  return api.cuStreamAddCallback(stream, &HostFunction::callback, function, 0);
}

void host_function_in_a_stream(Session& session, const char* name, CUstream stream,
                               Enqueue enqueue) {
  const Log log(session);
  CUstream free = session.stream(CU_STREAM_NON_BLOCKING);
  static HostFunction functions[16];
  static int used = 0;
  HostFunction& function = functions[used++];
  function.may_end = false;
  Gate gate(session, stream);
  must(log.append(stream, 1), "launch");
  const CUresult made = enqueue(stream, &function);
  must(log.append(stream, 2), "launch");
  Say{"{}: enqueue {}; behind the gate it began: {}", name, code(made),
      yes_no(function.begins_soon())};
  gate.open();
  Say{"{}: it began after the gate: {}; kernels while it runs: {}", name,
      yes_no(function.begins_soon()), log.text()};
  Say{"{}: stream while it runs {}", name, now(stream)};
  must(log.append(free, 9), "launch");
  Say{"{}: another stream meanwhile {}", name, soon(free)};
  function.may_end = true;
  drain();
  Say{"{}: kernels {}", name, log.text()};
}

}  // namespace

VITAMIN_RULE(host_functions_in_stream_order,
             "Does a host function wait for what is ahead, and hold what is behind?") {
  Session session;
  host_function_in_a_stream(session, "host function, non-blocking",
                            session.stream(CU_STREAM_NON_BLOCKING), as_host_function);
  host_function_in_a_stream(session, "host function, green",
                            session.green_stream(session.green({0})), as_host_function);
  host_function_in_a_stream(session, "callback, non-blocking",
                            session.stream(CU_STREAM_NON_BLOCKING), as_callback);
  host_function_in_a_stream(session, "callback, green", session.green_stream(session.green({1})),
                            as_callback);
}

VITAMIN_RULE(host_functions_of_two_streams,
             "Does a host function that does not end hold the host function of another stream?") {
  Session session;
  CUstream first = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream second = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream green = session.green_stream(session.green({0}));
  for (const Enqueue enqueue : {as_host_function, as_callback}) {
    HostFunction blocks;
    HostFunction waits;
    HostFunction waits_green;
    blocks.may_end = false;
    must(enqueue(first, &blocks), "enqueue");
    Say{"first began: {}", yes_no(blocks.begins_soon())};
    must(enqueue(second, &waits), "enqueue");
    must(enqueue(green, &waits_green), "enqueue");
    Say{"second began while the first runs: {}", yes_no(waits.begins_soon())};
    Say{"one on a green stream began while the first runs: {}", yes_no(waits_green.begins_soon())};
    Say{"second stream {}", now(second)};
    blocks.may_end = true;
    drain();
    Say{"second began in the end: {}", yes_no(waits.began)};
  }
}

VITAMIN_RULE(host_function_on_the_legacy_stream,
             "Does a host function on the legacy stream wait for and hold blocking streams?") {
  Session session;
  const Log log(session);
  CUstream blocking = session.stream();
  CUstream later = session.stream();
  HostFunction function;
  function.may_end = false;
  Gate gate(session, blocking);
  must(log.append(blocking, 1), "launch");
  must(as_host_function(nullptr, &function), "enqueue");
  must(log.append(later, 2), "launch");
  Say{"began behind the gate: {}", yes_no(function.begins_soon())};
  gate.open();
  Say{"began after the gate: {}", yes_no(function.begins_soon())};
  Say{"kernels while it runs: {}", log.text()};
  function.may_end = true;
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(value_waits_and_writes,
             "Which comparison lets a value wait pass, and is a write ordered behind a kernel?") {
  Session session;
  const Log log(session);
  std::uint32_t* word = session.pinned(64);
  CUdeviceptr address = 0;
  VITAMIN_MUST(cuMemHostGetDevicePointer(&address, word, 0));
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  struct Case {
    unsigned flags;
    std::uint32_t before, wanted, after;
  };
  for (const Case& c :
       {Case{CU_STREAM_WAIT_VALUE_GEQ, 4, 5, 5},
        Case{CU_STREAM_WAIT_VALUE_GEQ, 0, 0xfffffff0, 0xfffffff0},
        Case{CU_STREAM_WAIT_VALUE_EQ, 6, 5, 5}, Case{CU_STREAM_WAIT_VALUE_AND, 2, 5, 4},
        Case{CU_STREAM_WAIT_VALUE_NOR, 0xfffffffd, 2, 0}}) {
    __atomic_store_n(word, c.before, __ATOMIC_SEQ_CST);
    const CUresult made = api.cuStreamWaitValue32(stream, address, c.wanted, c.flags);
    const std::string before = soon(stream);
    __atomic_store_n(word, c.after, __ATOMIC_SEQ_CST);
    Say{"flags {}, {} waits for {}: {}, {}; at {}: {}",
        c.flags,
        c.before,
        c.wanted,
        code(made),
        before,
        c.after,
        soon(stream)};
  }
  Say{"a bad flag: {}", code(api.cuStreamWaitValue32(stream, address, 0, 77))};
  Say{"an odd address: {}", code(api.cuStreamWaitValue32(stream, address + 2, 0, 0))};

  CUstream writer = session.stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr flag = session.memory(64);
  Say{"wait for a device word {}",
      code(api.cuStreamWaitValue32(stream, flag, 1, CU_STREAM_WAIT_VALUE_GEQ))};
  must(log.append(stream, 2), "launch");
  must(log.append(writer, 1), "launch");
  Say{"before the write {}", soon(stream)};
  Say{"write {}", code(api.cuStreamWriteValue32(writer, flag, 1, CU_STREAM_WRITE_VALUE_DEFAULT))};
  Say{"after the write {}", soon(stream)};
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(value_operations_in_a_batch_and_on_green_streams,
             "Do batches, 64-bit forms and green streams take value operations?") {
  Session session;
  std::uint32_t* word = session.pinned(64);
  CUdeviceptr address = 0;
  VITAMIN_MUST(cuMemHostGetDevicePointer(&address, word, 0));
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream green = session.green_stream(session.green({0}));
  for (CUstream on : {stream, green}) {
    __atomic_store_n(word, 0, __ATOMIC_SEQ_CST);
    CUstreamBatchMemOpParams batch[2]{};
    batch[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    batch[0].waitValue.address = address;
    batch[0].waitValue.value = 3;
    batch[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    batch[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    batch[1].writeValue.address = address + 8;
    batch[1].writeValue.value = 9;
    Say{"batch {}, {}", code(api.cuStreamBatchMemOp(on, 2, batch, 0)), soon(on)};
    __atomic_store_n(word, 3, __ATOMIC_SEQ_CST);
    Say{"after the word {}, written {}", soon(on), __atomic_load_n(word + 2, __ATOMIC_SEQ_CST)};
    Say{"64-bit wait {}",
        code(api.cuStreamWaitValue64(on, address + 16, 1, CU_STREAM_WAIT_VALUE_GEQ))};
    Say{"64-bit pending {}", soon(on)};
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(word + 4), 1, __ATOMIC_SEQ_CST);
    Say{"64-bit after {}", soon(on)};
    Say{"64-bit write {}",
        code(api.cuStreamWriteValue64(on, address + 16, 0, CU_STREAM_WRITE_VALUE_DEFAULT))};
    drain();
    Say{"64-bit word {}", __atomic_load_n(word + 4, __ATOMIC_SEQ_CST)};
  }
}

VITAMIN_RULE(two_way_traffic_with_the_host,
             "Can a stream wait for a word that another stream writes behind its own gate?") {
  Session session;
  const Log log(session);
  CUstream producer = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream consumer = session.stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr word = session.memory(64);
  Gate gate(session, producer);
  VITAMIN_MUST(cuStreamWaitValue32(consumer, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
  must(log.append(consumer, 2), "launch");
  must(log.append(producer, 1), "launch");
  VITAMIN_MUST(cuStreamWriteValue32(producer, word, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  Say{"producer {}, consumer {}", now(producer), now(consumer)};
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
}

}  // namespace vitamin::differential
