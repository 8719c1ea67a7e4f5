// SPDX-License-Identifier: Apache-2.0
//
// Copies between two contexts, of two devices or of one: which streams of which context each copy
// waits for, and whether later work of each context waits for the copy. The documentation says of
// cuMemcpyPeer "serialized with respect to all pending and future asynchronous work in the current
// context, the source context and the destination context".
//
#include <algorithm>
#include <stdexcept>

#include "full_queue.h"
#include "session.h"

namespace vitamin::differential {
namespace {

constexpr std::size_t kBytes = 4096;

// One context with a stream of each kind, and a buffer.
struct Side {
  const char* name;
  CUcontext context = nullptr;
  CUdevice device = 0;
  CUstream blocking = nullptr, non_blocking = nullptr, later = nullptr;
  CUdeviceptr memory = 0;

  void make_current() const { VITAMIN_MUST(cuCtxSetCurrent(context)); }
  void prepare(Session& session) {
    make_current();
    blocking = session.stream();
    non_blocking = session.stream(CU_STREAM_NON_BLOCKING);
    later = session.stream(CU_STREAM_NON_BLOCKING);
    memory = session.memory(kBytes);
  }
  void fill(unsigned char value) const {
    make_current();
    VITAMIN_MUST(cuMemsetD8(memory, value, kBytes));
    drain();
  }
  void wait() const {
    make_current();
    drain();
  }
};

struct Pair {
  Session& session;
  Side source{"source"}, target{"target"};
  CUstream caller = nullptr;  // a non-blocking stream of the source's context
  std::uint8_t* host = nullptr;
  CUdeviceptr pinned = 0;  // host memory that the source's context allocated; holds 1
};

// The source is the primary context of device 0.
Pair& prepare(Pair& pair) {
  pair.source.context = pair.session.primary();
  pair.host = reinterpret_cast<std::uint8_t*>(pair.session.pinned(kBytes));
  pair.target.prepare(pair.session);
  pair.source.prepare(pair.session);
  pair.caller = pair.session.stream(CU_STREAM_NON_BLOCKING);
  auto* const pinned = reinterpret_cast<std::uint8_t*>(pair.session.pinned(kBytes));
  std::fill_n(pinned, kBytes, std::uint8_t{1});
  pair.pinned = reinterpret_cast<CUdeviceptr>(pinned);
  return pair;
}

Pair two_devices(Session& session) {
  int count = 0;
  VITAMIN_MUST(cuDeviceGetCount(&count));
  if (count < 2) throw std::runtime_error("it needs 2 devices");
  Pair pair{session};
  VITAMIN_MUST(cuDeviceGet(&pair.target.device, 1));
  VITAMIN_MUST(cuDevicePrimaryCtxRetain(&pair.target.context, pair.target.device));
  return prepare(pair);
}

Pair two_contexts(Session& session) {
  Pair pair{session};
  must(api.create_context(&pair.target.context, 0, session.device()), "cuCtxCreate");
  return prepare(pair);
}

struct Call {
  const char* name;
  bool from_source;  // whose context is current
  CUresult (*make)(const Pair& pair);
  bool on_caller = false;  // on the stream `caller`; else on the current context's legacy stream

  CUstream stream(const Pair& pair) const { return on_caller ? pair.caller : CU_STREAM_LEGACY; }
};

CUresult copy_3d(const Pair& pair, bool async) {
  CUDA_MEMCPY3D_PEER box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.srcDevice = pair.source.memory;
  box.srcContext = pair.source.context;
  box.dstDevice = pair.target.memory;
  box.dstContext = pair.target.context;
  box.srcPitch = box.dstPitch = box.WidthInBytes = 64;
  box.Height = box.srcHeight = box.dstHeight = kBytes / 64;
  box.Depth = 1;
  return async ? api.cuMemcpy3DPeerAsync(&box, pair.caller) : api.cuMemcpy3DPeer(&box);
}

CUresult peer(const Pair& pair) {
  return api.cuMemcpyPeer(pair.target.memory, pair.target.context, pair.source.memory,
                          pair.source.context, kBytes);
}
CUresult unified(const Pair& pair) {
  return api.cuMemcpy(pair.target.memory, pair.source.memory, kBytes);
}
CUresult device_to_device(const Pair& pair) {
  return api.cuMemcpyDtoD(pair.target.memory, pair.source.memory, kBytes);
}

constexpr Call kSynchronous[] = {
    {"cuMemcpyPeer, source current", true, &peer},
    {"cuMemcpyPeer, target current", false, &peer},
    {"cuMemcpy3DPeer, source current", true, [](const Pair& p) { return copy_3d(p, false); }},
    {"cuMemcpy, source current", true, &unified},
    {"cuMemcpy, target current", false, &unified},
    {"cuMemcpyDtoD, source current", true, &device_to_device},
    {"cuMemcpyDtoD, target current", false, &device_to_device}};

CUresult peer_async(const Pair& pair, CUstream stream) {
  return api.cuMemcpyPeerAsync(pair.target.memory, pair.target.context, pair.source.memory,
                               pair.source.context, kBytes, stream);
}

constexpr Call kAsynchronous[] = {
    {"cuMemcpyPeerAsync, source's stream", true,
     [](const Pair& p) { return peer_async(p, p.caller); }, true},
    {"cuMemcpyPeerAsync, NULL of the source", true,
     [](const Pair& p) { return peer_async(p, nullptr); }},
    {"cuMemcpyPeerAsync, NULL of the target", false,
     [](const Pair& p) { return peer_async(p, nullptr); }},
    {"cuMemcpy3DPeerAsync, source's stream", true, [](const Pair& p) { return copy_3d(p, true); },
     true},
    {"cuMemcpyAsync, source's stream", true,
     [](const Pair& p) {
       return api.cuMemcpyAsync(p.target.memory, p.source.memory, kBytes, p.caller);
     },
     true},
    {"cuMemcpyDtoDAsync, source's stream", true,
     [](const Pair& p) {
       return api.cuMemcpyDtoDAsync(p.target.memory, p.source.memory, kBytes, p.caller);
     },
     true}};

// Work that is given to a non-blocking stream of `side` now, and what it reads there. A copy that
// nothing holds may end later than ask() waited for: the read is repeated until it sees the
// copy.
std::string later_work(const Pair& pair, const Side& side) {
  side.make_current();
  CUresult ended = CUDA_SUCCESS;
  soon([&] {
    VITAMIN_MUST(cuMemcpyDtoHAsync(pair.host, side.memory, kBytes, side.later));
    ended = soon([&] { return api.cuStreamQuery(side.later); });
    return ended == CUDA_SUCCESS && pair.host[kBytes - 1] == 2 ? CUDA_ERROR_NOT_READY
                                                               : CUDA_SUCCESS;
  });
  std::string text = code(ended);
  if (ended == CUDA_SUCCESS) text += ", reads " + std::to_string(pair.host[kBytes - 1]);
  return text;
}

// The source holds 1 and the target 2, so a read of 2 came before the copy.
void ask(const Pair& pair, const Call& call, const Side& side, const char* kind, CUstream held) {
  pair.source.fill(1);
  pair.target.fill(2);
  side.make_current();
  Gate gate(pair.session, held);
  (call.from_source ? pair.source : pair.target).make_current();
  const std::string answer = waits_for(gate, [&] { return call.make(pair); });
  if (gate.is_open()) {
    Say{"{}; {} of the {} held: {}", call.name, kind, side.name, answer};
  } else {
    // A read beside a copy that nothing holds would race with it. One that is held does not end.
    static_cast<void>(soon([&] { return api.cuStreamQuery(call.stream(pair)); }));
    const std::string beside_target = later_work(pair, pair.target);
    const std::string beside_source = later_work(pair, pair.source);
    Say{"{}; {} of the {} held: {}; later work of the target {}, of the source {}",
        call.name,
        kind,
        side.name,
        answer,
        beside_target,
        beside_source};
  }
  gate.open();
  pair.source.wait();
  pair.target.wait();
}

template <std::size_t kCalls>
void ask_all(const Pair& pair, const Call (&calls)[kCalls]) {
  for (const Call& call : calls) {
    for (const Side* side : {&pair.source, &pair.target}) {
      ask(pair, call, *side, "legacy stream", CU_STREAM_LEGACY);
      ask(pair, call, *side, "blocking stream", side->blocking);
      ask(pair, call, *side, "non-blocking stream", side->non_blocking);
    }
    std::uint8_t value = 0;
    pair.source.fill(3);
    pair.target.fill(2);
    (call.from_source ? pair.source : pair.target).make_current();
    const CUresult copied = call.make(pair);
    pair.source.wait();
    pair.target.wait();
    VITAMIN_MUST(cuMemcpyDtoH(&value, pair.target.memory, 1));
    Say{"{}; nothing held: {}, the target holds {}", call.name, code(copied), value};
  }
}

}  // namespace

VITAMIN_RULE(two_devices_synchronous_copies,
             "Which streams of two devices does a synchronous copy between them wait for, and "
             "does their later work wait for it?") {
  Session session;
  ask_all(two_devices(session), kSynchronous);
}

VITAMIN_RULE(two_devices_asynchronous_copies,
             "Which streams of two devices does an asynchronous copy between them wait for, and "
             "does their later work wait for it?") {
  Session session;
  ask_all(two_devices(session), kAsynchronous);
}

VITAMIN_RULE(two_devices_copies_beside_a_full_legacy_stream,
             "Does an asynchronous copy between two devices return while a launch waits for room "
             "on the legacy stream of the other device?") {
  static constexpr Call kCalls[] = {
      {"cuMemcpyPeerAsync", false, [](const Pair& p) { return peer_async(p, CU_STREAM_LEGACY); }},
      {"cuMemcpyDtoDAsync", false, [](const Pair& p) {
         return api.cuMemcpyDtoDAsync(p.target.memory, p.source.memory, kBytes, CU_STREAM_LEGACY);
       }}};
  Session session;
  const Pair pair = two_devices(session);
  CUdeviceptr word = session.memory(4);
  const std::uint32_t value = 1;
  const CUfunction store = session.function("store");
  for (const Call& call : kCalls) {
    pair.source.make_current();
    {
      Gate gate(session, CU_STREAM_LEGACY);
      const FullQueue queue(
          session, gate,
          [&](int) {
            return launch(store, CU_STREAM_LEGACY, {&word, &value});
          },
          kEnoughOfAKind);
      pair.target.make_current();
      Say{"full: {}; {} {}", yes_no(queue.is_full()), call.name,
          waits_for(gate, [&] { return call.make(pair); })};
    }
    pair.source.wait();
    pair.target.wait();
  }
}

VITAMIN_RULE(two_contexts_synchronous_copies,
             "Which streams of two contexts of one device does a synchronous copy between them "
             "wait for, and does their later work wait for it?") {
  Session session;
  ask_all(two_contexts(session), kSynchronous);
}

VITAMIN_RULE(
    two_contexts_copies_on_default_streams,
    "Does an asynchronous copy on a default stream that does not name the contexts wait for "
    "streams of both?") {
  static constexpr Call kCalls[] = {
      {"cuMemcpyAsync, NULL of the source", true,
       [](const Pair& p) {
         return api.cuMemcpyAsync(p.target.memory, p.source.memory, kBytes, nullptr);
       }},
      {"cuMemcpyAsync, NULL of the target", false,
       [](const Pair& p) {
         return api.cuMemcpyAsync(p.target.memory, p.source.memory, kBytes, nullptr);
       }},
      {"cuMemcpyDtoDAsync, NULL of the source", true,
       [](const Pair& p) {
         return api.cuMemcpyDtoDAsync(p.target.memory, p.source.memory, kBytes, nullptr);
       }},
      {"cuMemcpyDtoDAsync, NULL of the target", false, [](const Pair& p) {
         return api.cuMemcpyDtoDAsync(p.target.memory, p.source.memory, kBytes, nullptr);
       }}};
  Session session;
  ask_all(two_contexts(session), kCalls);
}

VITAMIN_RULE(two_contexts_copies_of_the_others_memory,
             "Which streams of two contexts of one device does a synchronous copy or fill of one's "
             "memory wait for when the other is current?") {
  static std::uint8_t bytes[kBytes];
  static constexpr Call kCalls[] = {
      {"cuMemcpyHtoD to the target, source current", true,
       [](const Pair& p) {
         std::fill(bytes, bytes + kBytes, std::uint8_t{3});
         return api.cuMemcpyHtoD(p.target.memory, bytes, kBytes);
       }},
      {"cuMemcpyDtoH from the source, target current", false,
       [](const Pair& p) { return api.cuMemcpyDtoH(bytes, p.source.memory, kBytes); }},
      {"cuMemsetD8 of the target, source current", true,
       [](const Pair& p) { return api.cuMemsetD8(p.target.memory, 3, kBytes); }}};
  Session session;
  const Pair pair = two_contexts(session);
  for (const Call& call : kCalls)
    for (const Side* side : {&pair.source, &pair.target}) {
      ask(pair, call, *side, "legacy stream", CU_STREAM_LEGACY);
      ask(pair, call, *side, "blocking stream", side->blocking);
    }
}

VITAMIN_RULE(two_contexts_copies_of_pinned_memory,
             "Which streams of two contexts of one device does a copy on a default stream of one "
             "wait for, of pinned memory that the other allocated?") {
  static constexpr Call kCalls[] = {
      {"cuMemcpyAsync, NULL of the target", false,
       [](const Pair& p) { return api.cuMemcpyAsync(p.target.memory, p.pinned, kBytes, nullptr); }},
      {"cuMemcpy, target current", false,
       [](const Pair& p) { return api.cuMemcpy(p.target.memory, p.pinned, kBytes); }}};
  Session session;
  const Pair pair = two_contexts(session);
  for (const Call& call : kCalls)
    for (const Side* side : {&pair.source, &pair.target}) {
      ask(pair, call, *side, "legacy stream", CU_STREAM_LEGACY);
      ask(pair, call, *side, "blocking stream", side->blocking);
    }
}

VITAMIN_RULE(two_contexts_asynchronous_copies,
             "Which streams of two contexts of one device does an asynchronous copy between them "
             "wait for, and does their later work wait for it?") {
  Session session;
  ask_all(two_contexts(session), kAsynchronous);
}

// Order without the host in it: a copy between devices behind work on either side.
VITAMIN_RULE(two_devices_copy_sees_pending_work,
             "Does cuMemcpyPeer read what non-blocking streams of either device are still to "
             "write?") {
  Session session;
  const Pair pair = two_devices(session);
  for (const bool of_source : {true, false}) {
    const Side& writer = of_source ? pair.source : pair.target;
    pair.source.fill(1);
    pair.target.fill(2);
    writer.make_current();
    Gate gate(session, writer.non_blocking);
    VITAMIN_MUST(cuMemsetD8Async(writer.memory, 5, kBytes, writer.non_blocking));
    pair.source.make_current();
    // The call may return before the copy is made; a copy behind it, on the legacy stream of the
    // target, does not.
    const std::string answer = waits_for(gate, [&] {
      std::uint8_t read = 0;
      const CUresult copied = peer(pair);
      pair.target.make_current();
      return copied == CUDA_SUCCESS ? api.cuMemcpyDtoH(&read, pair.target.memory, 1) : copied;
    });
    gate.open();
    pair.source.wait();
    pair.target.wait();
    std::uint8_t value = 0;
    VITAMIN_MUST(cuMemcpyDtoH(&value, pair.target.memory, 1));
    Say{"a pending fill of the {} with 5: the copy of 1 {}, the target holds {}", writer.name,
        answer, value};
  }
}

}  // namespace vitamin::differential
