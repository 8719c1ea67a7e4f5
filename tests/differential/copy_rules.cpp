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

}  // namespace vitamin::differential
