// SPDX-License-Identifier: Apache-2.0
//
// What the interposer knows about the application's contexts, streams and events.
//
// A *managed* context is the primary context of a device, with a VirtualContext behind it; it is
// made at the first call that needs it. Everything else is *foreign*: contexts made by cuCtxCreate,
// green contexts of the application and their streams, devices whose pool could not be made. Work
// on foreign streams goes straight to the driver.
//
// Handles that nobody announced (made before we were asked, or by a door that we do not know) are
// looked up at the driver once, when they are first used.
#pragma once

#include <atomic>
#include <memory>

#include "interpose/client.h"
#include "interpose/libcudart/driver.h"
#include "runtime/virtual_context.h"

namespace vitamin::interpose {

struct Context;

struct StreamRecord {
  Context* context = nullptr;  // null: foreign
  runtime::Stream* stream = nullptr;
  bool legacy = false;
  StreamRecord* next = nullptr;  // in a list of records that stand for nothing now
};

struct Context {
  CUcontext handle = nullptr;
  int ordinal = 0;
  std::unique_ptr<runtime::VirtualContext> virtual_context;  // null: torn down
  StreamRecord legacy;
  std::atomic<StreamRecord*> idle_thread_streams{nullptr};  // of threads that have ended
  Context* next = nullptr;                                  // in the list of those torn down

  CUstream native(const StreamRecord& record) const {
    return static_cast<CUstream>(virtual_context->native(*record.stream));
  }
};

struct EventRecord {
  runtime::EventState state;
  std::atomic<bool> captured{false};  // its newest record is a node of a capture
  // A graph records it when it is launched, so nobody knows from the calls when that happens.
  std::atomic<bool> in_graph{false};
};

// --- contexts ------------------------------------------------------------------------------------

// The managed context that is current on this thread, made if need be; null: foreign or none.
Context* current_context();
// The managed context of a handle, made if need be; null: foreign.
Context* managed_context(CUcontext handle);
// Calls `function` for each managed context.
template <class Function>
void for_each_context(Function function);
// Before the driver destroys the primary context of a device, and with it our pool.
void tear_down(int ordinal);
// The handle will not mean this context any more.
void forget_context(CUcontext handle);

// --- streams -------------------------------------------------------------------------------------

// The record of a stream argument; null: foreign, or not a stream. `per_thread`: NULL means the
// calling thread's own default stream.
StreamRecord* find_stream(CUstream stream, bool per_thread);
// As find_stream, for calls that only ask: makes neither a context nor a stand-in.
StreamRecord* known_stream(CUstream stream, bool per_thread);
// A new stream may have the handle of one that went away unseen.
void forget_stream(CUstream stream);

// --- events --------------------------------------------------------------------------------------

EventRecord& find_event(CUevent event);
void announce_event(CUevent event, unsigned flags);
// Null when the handle was not known.
std::unique_ptr<EventRecord> take_event(CUevent event);
// Its newest record was made by somebody who is not virtualised.
void mark_foreign(EventRecord& event);

// --- captures ------------------------------------------------------------------------------------

extern constinit std::atomic<int> open_captures;
inline bool captures_open() { return open_captures.load(std::memory_order_relaxed) > 0; }
// Whether the stream is part of a capture now. Only asked while one is open.
bool is_capturing(const StreamRecord& record);
void capture_began(CUstream origin);
// After cuStreamEndCapture or the destruction of the stream, whatever these answered.
void capture_may_have_ended(CUstream origin, bool destroyed);

inline constexpr int kMaxContexts = static_cast<int>(runtime::stats::kDevices);
extern constinit std::atomic<Context*> context_of_device[kMaxContexts];

template <class Function>
void for_each_context(Function function) {
  for (std::atomic<Context*>& slot : context_of_device)
    if (Context* context = slot.load(std::memory_order_acquire)) function(*context);
}

}  // namespace vitamin::interpose
