// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills: which calls wait for the stream, and when the source is read.
#include <cstring>

#include "session.h"

namespace vitamin::differential {
namespace {

constexpr std::size_t kSmall = 256;
constexpr std::size_t kLarge = std::size_t{4} << 20;

struct Source {
  const char* name;
  std::uint8_t* bytes;
};

// Pageable, pinned and registered host memory, filled with 1.
std::vector<Source> host_memories(Session& session) {
  static std::vector<std::uint8_t> pageable(kLarge);
  auto* pinned = reinterpret_cast<std::uint8_t*>(session.pinned(kLarge));
  auto* registered = static_cast<std::uint8_t*>(std::aligned_alloc(4096, kLarge));
  std::memset(registered, 0, kLarge);
  VITAMIN_MUST(cuMemHostRegister(registered, kLarge, 0));
  return {{"pageable", pageable.data()}, {"pinned", pinned}, {"registered", registered}};
}

// What the device holds afterwards, read through a pinned buffer: "1", "2" or "mixed".
std::string content(Session& session, CUdeviceptr address, std::size_t bytes) {
  static auto* copy = reinterpret_cast<std::uint8_t*>(session.pinned(kLarge));
  VITAMIN_MUST(cuMemcpyDtoH(copy, address, bytes));
  for (std::size_t i = 1; i < bytes; ++i)
    if (copy[i] != copy[0]) return "mixed";
  return std::to_string(copy[0]);
}

using Copy = std::function<CUresult(CUdeviceptr, std::uint8_t*, std::size_t, CUstream)>;

// The source is overwritten with 2 as soon as the call has come back, and only then is the gate
// opened: the device holds 1 where the call consumed its source, 2 where the copy read it later.
void overwrite_source(const char* call, const Copy& copy) {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr target = session.memory(kLarge);
  content(session, target, 1);
  for (const Source& source : host_memories(session))
    for (const std::size_t bytes : {kSmall, kLarge}) {
      std::memset(source.bytes, 1, bytes);
      Gate gate(session, stream);
      const std::string answer =
          waits_for(gate, [&] { return copy(target, source.bytes, bytes, stream); });
      const bool returned = !gate.is_open();
      // Where the call returned, nothing has been copied from pinned memory yet: the stream is
      // held.
      if (returned) std::memset(source.bytes, 2, bytes);
      gate.open();
      drain();
      Say{"{} of {} {} bytes: {}; device holds {}", call, bytes, source.name, answer,
          content(session, target, bytes)};
    }
}

}  // namespace

VITAMIN_RULE(copy_to_device_async_source,
             "When does cuMemcpyHtoDAsync read its source, and does it wait for the stream?") {
  overwrite_source("cuMemcpyHtoDAsync",
                   [](CUdeviceptr to, std::uint8_t* from, std::size_t bytes, CUstream stream) {
                     return api.cuMemcpyHtoDAsync(to, from, bytes, stream);
                   });
}

VITAMIN_RULE(copy_generic_async_source,
             "When does cuMemcpyAsync read a host source, and does it wait for the stream?") {
  overwrite_source(
      "cuMemcpyAsync", [](CUdeviceptr to, std::uint8_t* from, std::size_t bytes, CUstream stream) {
        return api.cuMemcpyAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes, stream);
      });
}

VITAMIN_RULE(copy_2d_async_source,
             "When does cuMemcpy2DAsync read its source, and does it wait for the stream?") {
  overwrite_source("cuMemcpy2DAsync",
                   [](CUdeviceptr to, std::uint8_t* from, std::size_t bytes, CUstream stream) {
                     CUDA_MEMCPY2D copy{};
                     copy.srcMemoryType = CU_MEMORYTYPE_HOST;
                     copy.srcHost = from;
                     copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 64;
                     copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
                     copy.dstDevice = to;
                     copy.Height = bytes / 64;
                     const CUresult result = api.cuMemcpy2DAsync(&copy, stream);
                     std::memset(&copy, 0xff, sizeof copy);
                     return result;
                   });
}

VITAMIN_RULE(copy_batch_async_source,
             "When does cuMemcpyBatchAsync read its source, for each source access order?") {
  for (const CUmemcpySrcAccessOrder order :
       {CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL,
        CU_MEMCPY_SRC_ACCESS_ORDER_ANY}) {
    Say{"source access order {}", static_cast<int>(order)};
    overwrite_source("cuMemcpyBatchAsync", [order](CUdeviceptr to, std::uint8_t* from,
                                                   std::size_t bytes, CUstream stream) {
      auto source = reinterpret_cast<CUdeviceptr>(from);
      CUmemcpyAttributes attributes{};
      attributes.srcAccessOrder = order;
      std::size_t index = 0;
      const CUresult result =
          api.memcpy_batch_async(&to, &source, &bytes, 1, &attributes, &index, 1, stream);
      to = source = 0;
      bytes = 0;
      return result;
    });
  }
}

VITAMIN_RULE(copy_to_host_async,
             "Does a copy to host memory wait for the stream, and when is the target written?") {
  Session session;
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr source = session.memory(kLarge);
  VITAMIN_MUST(cuMemsetD8(source, 1, kLarge));
  drain();
  for (const Source& target : host_memories(session))
    for (const std::size_t bytes : {kSmall, kLarge}) {
      std::memset(target.bytes, 0, bytes);
      Gate gate(session, stream);
      const std::string answer = waits_for(
          gate, [&] { return api.cuMemcpyDtoHAsync(target.bytes, source, bytes, stream); });
      const bool waited = gate.is_open();
      const int at_return = target.bytes[bytes - 1];
      gate.open();
      drain();
      Say{"{} bytes to {} memory: {}; at return {}, in the end {}",
          bytes,
          target.name,
          answer,
          waited && at_return != 1 ? -1 : at_return,
          target.bytes[bytes - 1]};
    }
}

VITAMIN_RULE(copies_and_fills_behind_a_gate,
             "Which synchronous and asynchronous copies and fills wait for a held stream?") {
  Session session;
  static CUdeviceptr device = session.memory(kLarge);
  static CUdeviceptr other = session.memory(kLarge);
  const std::vector<Source> hosts = host_memories(session);
  static std::uint8_t* pageable = hosts[0].bytes;
  static std::uint8_t* pinned = hosts[1].bytes;
  static CUdeviceptr pinned_device = 0;
  VITAMIN_MUST(cuMemHostGetDevicePointer(&pinned_device, pinned, 0));
  static CUstream stream = nullptr;
  struct Call {
    const char* name;
    CUresult (*make)();
  };
  static constexpr Call kSynchronous[] = {
      {"cuMemcpyHtoD pageable 256", [] { return api.cuMemcpyHtoD(device, pageable, kSmall); }},
      {"cuMemcpyHtoD pageable 4M", [] { return api.cuMemcpyHtoD(device, pageable, kLarge); }},
      {"cuMemcpyHtoD pinned 256", [] { return api.cuMemcpyHtoD(device, pinned, kSmall); }},
      {"cuMemcpyHtoD pinned 4M", [] { return api.cuMemcpyHtoD(device, pinned, kLarge); }},
      {"cuMemcpyDtoH pageable", [] { return api.cuMemcpyDtoH(pageable, device, kSmall); }},
      {"cuMemcpyDtoH pinned", [] { return api.cuMemcpyDtoH(pinned, device, kSmall); }},
      {"cuMemcpyDtoD", [] { return api.cuMemcpyDtoD(device, other, kSmall); }},
      {"cuMemcpy device to device", [] { return api.cuMemcpy(device, other, kSmall); }},
      {"cuMemcpy host to host",
       [] {
         return api.cuMemcpy(reinterpret_cast<CUdeviceptr>(pageable),
                             reinterpret_cast<CUdeviceptr>(pageable + kSmall), kSmall);
       }},
      {"cuMemsetD8 device", [] { return api.cuMemsetD8(device, 1, kSmall); }},
      {"cuMemsetD32 device", [] { return api.cuMemsetD32(device, 1, kSmall / 4); }},
      {"cuMemsetD2D8 device", [] { return api.cuMemsetD2D8(device, 64, 1, 16, 4); }},
      {"cuMemsetD8 pinned", [] { return api.cuMemsetD8(pinned_device, 1, kSmall); }}};
  static constexpr Call kAsynchronous[] = {
      {"cuMemcpyDtoDAsync", [] { return api.cuMemcpyDtoDAsync(device, other, kSmall, stream); }},
      {"cuMemcpyAsync host to host",
       [] {
         return api.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(pageable),
                                  reinterpret_cast<CUdeviceptr>(pageable + kSmall), kSmall, stream);
       }},
      {"cuMemcpyAsync pinned to pinned",
       [] {
         return api.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(pinned),
                                  reinterpret_cast<CUdeviceptr>(pinned + kSmall), kSmall, stream);
       }},
      {"cuMemsetD8Async device", [] { return api.cuMemsetD8Async(device, 1, kSmall, stream); }},
      {"cuMemsetD8Async pinned",
       [] { return api.cuMemsetD8Async(pinned_device, 1, kSmall, stream); }}};

  CUstream blocking = session.stream();
  CUstream free = session.stream(CU_STREAM_NON_BLOCKING);
  for (const Call& call : kSynchronous) {
    for (CUstream held : {blocking, free}) {
      Gate gate(session, held);
      Say{"{}, {} stream held: {}", call.name, held == blocking ? "blocking" : "non-blocking",
          waits_for(gate, call.make)};
      gate.open();
      drain();
    }
  }
  for (const Call& call : kAsynchronous) {
    stream = free;
    Gate gate(session, free);
    Say{"{} on the held stream: {}", call.name, waits_for(gate, call.make)};
    gate.open();
    drain();
  }
}

VITAMIN_RULE(synchronous_fill_and_copy_complete_later,
             "Are cuMemsetD32 and cuMemcpyDtoD ordered behind a held blocking stream though they "
             "return at once?") {
  Session session;
  const Log log(session);
  CUstream blocking = session.stream();
  CUdeviceptr word = session.memory(64);
  CUfunction store = session.function("store");
  const std::uint32_t one = 1;
  Gate gate(session, blocking);
  must(launch(store, blocking, {&word, &one}), "launch");
  const std::string answer = waits_for(gate, [&] { return api.cuMemsetD32(word, 5, 1); });
  Say{"cuMemsetD32 {}", answer};
  gate.open();
  drain();
  std::uint32_t value = 0;
  VITAMIN_MUST(cuMemcpyDtoH(&value, word, 4));
  Say{"in the end {}", value};
}

namespace {

struct BadCall {
  const char* name;
  CUresult (*make)(CUstream stream);
};

}  // namespace

VITAMIN_RULE(errors_of_other_calls_behind_a_gate,
             "Are impossible copies, fills, frees, waits and records refused at once, with the "
             "same code, behind a held stream?") {
  Session session;
  static CUdeviceptr device = session.memory(kLarge);
  static CUdeviceptr other = session.memory(kLarge);
  static auto* pinned = reinterpret_cast<std::uint8_t*>(session.pinned(kLarge));
  static constexpr CUdeviceptr kNowhere = 0x1000;
  static CUcontext second = nullptr;
  static CUevent foreign = nullptr;
  must(api.create_context(&second, 0, session.device()), "cuCtxCreate");
  foreign = session.event();
  VITAMIN_MUST(cuCtxSetCurrent(session.primary()));
  static constexpr BadCall kCalls[] = {
      {"cuMemcpyDtoDAsync from nowhere",
       [](CUstream s) { return api.cuMemcpyDtoDAsync(device, kNowhere, 64, s); }},
      {"cuMemcpyDtoDAsync to nowhere",
       [](CUstream s) { return api.cuMemcpyDtoDAsync(kNowhere, device, 64, s); }},
      {"cuMemcpyDtoDAsync from NULL",
       [](CUstream s) { return api.cuMemcpyDtoDAsync(device, 0, 64, s); }},
      {"cuMemcpyDtoDAsync of 1 TiB",
       [](CUstream s) { return api.cuMemcpyDtoDAsync(device, other, std::size_t{1} << 40, s); }},
      {"cuMemcpyDtoDAsync of nothing",
       [](CUstream s) { return api.cuMemcpyDtoDAsync(device, kNowhere, 0, s); }},
      {"cuMemcpyHtoDAsync pinned to nowhere",
       [](CUstream s) { return api.cuMemcpyHtoDAsync(kNowhere, pinned, 64, s); }},
      {"cuMemcpyHtoDAsync from NULL",
       [](CUstream s) { return api.cuMemcpyHtoDAsync(device, nullptr, 64, s); }},
      {"cuMemcpyDtoHAsync pinned from nowhere",
       [](CUstream s) { return api.cuMemcpyDtoHAsync(pinned, kNowhere, 64, s); }},
      {"cuMemcpyAsync from pinned to NULL",
       [](CUstream s) {
         return api.cuMemcpyAsync(0, reinterpret_cast<CUdeviceptr>(pinned), 64, s);
       }},
      {"cuMemcpy2DAsync with a short pitch",
       [](CUstream s) {
         CUDA_MEMCPY2D copy{};
         copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
         copy.srcDevice = other;
         copy.dstDevice = device;
         copy.srcPitch = copy.dstPitch = 32;
         copy.WidthInBytes = 64;
         copy.Height = 4;
         return api.cuMemcpy2DAsync(&copy, s);
       }},
      {"cuMemcpy2DAsync of no memory type",
       [](CUstream s) {
         CUDA_MEMCPY2D copy{};
         copy.srcDevice = other;
         copy.dstDevice = device;
         copy.srcPitch = copy.dstPitch = copy.WidthInBytes = 64;
         copy.Height = 4;
         return api.cuMemcpy2DAsync(&copy, s);
       }},
      {"cuMemcpy2DAsync without a box", [](CUstream s) { return api.cuMemcpy2DAsync(nullptr, s); }},
      {"cuMemsetD8Async of nowhere",
       [](CUstream s) { return api.cuMemsetD8Async(kNowhere, 1, 64, s); }},
      {"cuMemsetD8Async of 1 TiB",
       [](CUstream s) { return api.cuMemsetD8Async(device, 1, std::size_t{1} << 40, s); }},
      {"cuMemsetD32Async of an odd address",
       [](CUstream s) { return api.cuMemsetD32Async(device + 1, 1, 4, s); }},
      {"cuMemsetD8Async of nothing",
       [](CUstream s) { return api.cuMemsetD8Async(kNowhere, 1, 0, s); }},
      {"cuMemFreeAsync of memory of cuMemAlloc",
       [](CUstream s) { return api.cuMemFreeAsync(other + 64, s); }},
      {"cuMemFreeAsync of nowhere", [](CUstream s) { return api.cuMemFreeAsync(kNowhere, s); }},
      {"cuMemAllocAsync of nothing",
       [](CUstream s) {
         CUdeviceptr memory = 0;
         return api.cuMemAllocAsync(&memory, 0, s);
       }},
      {"cuLaunchHostFunc of nothing",
       [](CUstream s) { return api.cuLaunchHostFunc(s, nullptr, nullptr); }},
      {"cuStreamAddCallback with flags",
       [](CUstream s) {
         return api.cuStreamAddCallback(
             s, [](CUstream, CUresult, void*) {}, nullptr, 7);
       }},
      {"cuStreamWaitValue32 of an odd address",
       [](CUstream s) {
         return api.cuStreamWaitValue32(s, device + 1, 0, CU_STREAM_WAIT_VALUE_GEQ);
       }},
      {"cuStreamWaitValue32 with flags",
       [](CUstream s) { return api.cuStreamWaitValue32(s, device, 0, 0x40); }},
      {"cuStreamWriteValue32 of nowhere",
       [](CUstream s) { return api.cuStreamWriteValue32(s, kNowhere, 0, 0); }},
      {"cuEventRecord of another context's event",
       [](CUstream s) { return api.cuEventRecord(foreign, s); }},
      {"cuEventRecordWithFlags external, outside a capture",
       [](CUstream s) { return api.cuEventRecordWithFlags(foreign, s, CU_EVENT_RECORD_EXTERNAL); }},
      {"cuStreamWaitEvent with flags",
       [](CUstream s) { return api.cuStreamWaitEvent(s, foreign, 0x40); }},
      {"cuGraphLaunch of nothing", [](CUstream s) { return api.cuGraphLaunch(nullptr, s); }}};
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const std::uint32_t value = 1;
  for (const BadCall& call : kCalls) {
    const std::string open = code(call.make(stream));
    Gate gate(session, stream);
    must(launch(session.function("store"), stream, {&other, &value}), "launch");
    const std::string held = waits_for(gate, [&] { return call.make(stream); });
    gate.open();
    Say{"{}: {}; behind a gate {}; synchronize {}", call.name, open, held,
        code(api.cuStreamSynchronize(stream))};
  }
}

namespace {

// A pool that has room for one block, so that the second allocation can only be the first one's
// memory.
CUmemoryPool pool_of_one(Session& session, std::size_t bytes, std::uint64_t threshold) {
  CUmemoryPool pool = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = session.device();
  properties.maxSize = bytes;
  VITAMIN_MUST(cuMemPoolCreate(&pool, &properties));
  VITAMIN_MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  return pool;
}

}  // namespace

VITAMIN_RULE(memory_of_a_held_stream_allocated_on_another,
             "Does a stream whose allocation takes memory that a held stream frees wait for it, "
             "and do queries, synchronisation and events of it say so?") {
  Session session;
  constexpr std::size_t kBlock = std::size_t{32} << 20;
  CUmemoryPool pool = pool_of_one(session, kBlock, ~std::uint64_t{0});
  CUstream first = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream second = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream third = session.stream(CU_STREAM_NON_BLOCKING);
  CUevent event = session.event();
  CUdeviceptr one = 0;
  VITAMIN_MUST(cuMemAllocFromPoolAsync(&one, kBlock, pool, first));
  VITAMIN_MUST(cuMemsetD8Async(one, 1, kBlock, first));
  drain();
  const auto once = [&](const char* what,
                        const std::function<std::string(Gate&, CUdeviceptr)>& ask) {
    CUdeviceptr two = 0;
    Gate gate(session, first);
    VITAMIN_MUST(cuMemFreeAsync(one, first));
    const CUdeviceptr freed = one;
    CUresult result = CUDA_SUCCESS;
    const std::string allocated = waits_for(
        gate, [&] { return result = api.cuMemAllocFromPoolAsync(&two, kBlock, pool, second); });
    std::string answer = "not asked";
    if (!gate.is_open() && result == CUDA_SUCCESS) answer = ask(gate, two);
    Say{"allocation {}, the same memory: {}; {}: {}", allocated, two == freed ? "yes" : "no", what,
        answer};
    gate.open();
    drain();
    if (result == CUDA_SUCCESS) {
      one = two;
      VITAMIN_MUST(cuMemFreeAsync(one, second));
    }
    VITAMIN_MUST(cuMemAllocFromPoolAsync(&one, kBlock, pool, first));
    drain();
  };
  once("cuStreamQuery", [&](Gate&, CUdeviceptr) { return soon(second); });
  once("an event recorded behind it", [&](Gate&, CUdeviceptr) {
    VITAMIN_MUST(cuEventRecord(event, second));
    return soon(event);
  });
  once("a stream that waits for such an event", [&](Gate&, CUdeviceptr) {
    VITAMIN_MUST(cuEventRecord(event, second));
    VITAMIN_MUST(cuStreamWaitEvent(third, event, 0));
    return soon(third);
  });
  once("a launch behind it", [&](Gate&, CUdeviceptr memory) {
    const std::uint32_t value = 1;
    must(launch(session.function("store"), second, {&memory, &value}), "launch");
    return soon(second);
  });
  once("cuStreamSynchronize", [&](Gate& gate, CUdeviceptr) {
    return waits_for(gate, [&] { return api.cuStreamSynchronize(second); });
  });
  once("cuStreamSynchronize, then a fill on a third stream", [&](Gate& gate, CUdeviceptr memory) {
    const std::string text = waits_for(gate, [&] { return api.cuStreamSynchronize(second); });
    // Little, so that a slow machine fills it soon.
    VITAMIN_MUST(cuMemsetD8Async(memory, 3, 64, third));
    return text + "; the third stream " + soon(third);
  });
}

VITAMIN_RULE(memory_of_a_freeing_stream_that_waits_behind_the_free,
             "Does a stream whose allocation takes memory that another stream frees wait for what "
             "came into that stream behind the free, too?") {
  Session session;
  constexpr std::size_t kBlock = std::size_t{32} << 20;
  const std::uint32_t value = 1;
  CUdeviceptr word = session.memory(4);
  const auto once = [&](const char* what, const std::function<void(CUstream, CUstream)>& behind) {
    CUmemoryPool pool = pool_of_one(session, kBlock, ~std::uint64_t{0});
    CUstream freeing = session.stream(), held = session.stream();
    CUstream asking = session.stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr one = 0, two = 0;
    VITAMIN_MUST(cuMemAllocFromPoolAsync(&one, kBlock, pool, freeing));
    drain();
    Gate first(session, freeing), second(session, held);
    VITAMIN_MUST(cuMemFreeAsync(one, freeing));
    behind(freeing, held);
    CUresult result = CUDA_SUCCESS;
    const std::string allocated = waits_for(
        first, [&] { return result = api.cuMemAllocFromPoolAsync(&two, kBlock, pool, asking); });
    first.open();
    Say{"{}: allocation {}, the same memory: {}; the free has run: {}; the stream that came "
        "behind it: {}",
        what,
        allocated,
        yes_no(one == two),
        soon(asking),
        soon(freeing)};
    second.open();
    if (result == CUDA_SUCCESS) VITAMIN_MUST(cuMemFreeAsync(two, asking));
    drain();
  };
  once("a launch behind a wait for a held stream", [&](CUstream freeing, CUstream held) {
    CUevent event = session.event();
    VITAMIN_MUST(cuEventRecord(event, held));
    VITAMIN_MUST(cuStreamWaitEvent(freeing, event, 0));
    must(launch(session.function("store"), freeing, {&word, &value}), "launch");
  });
  once("a launch behind the legacy stream", [&](CUstream freeing, CUstream) {
    must(launch(session.function("store"), CU_STREAM_LEGACY, {&word, &value}), "launch");
    must(launch(session.function("store"), freeing, {&word, &value}), "launch");
  });
  once("a launch on the legacy stream alone", [&](CUstream, CUstream) {
    must(launch(session.function("store"), CU_STREAM_LEGACY, {&word, &value}), "launch");
  });
}

}  // namespace vitamin::differential
