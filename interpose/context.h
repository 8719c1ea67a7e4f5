// SPDX-License-Identifier: Apache-2.0
//
// What the interposer knows about the application's contexts, streams and events.
//
// A *managed* context is the (primary) context of a device, with a VirtualContext behind it; it is
// made at the first call that needs it. Everything else is *foreign*: other contexts (CUDA: also
// the application's own green contexts), devices whose pool could not be made. Work on foreign
// streams goes straight to the driver. HIP: a stream that the application itself confined to CUs is
// managed and *confined*: its work is ordered with that of other streams and always bridged.
//
// Handles that were never registered (made before we were asked, or by an entry point that we do
// not know) are looked up at the driver once, when they are first used.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>

#include "hal/open_captures.h"
#include "interpose/entry_points.h"
#include "interpose/process_state.h"
#include "runtime/virtual_context.h"

namespace vitamin::interpose {

struct Context;

struct StreamRecord {
  Context* context = nullptr;  // null: foreign
  runtime::Stream* stream = nullptr;
  bool legacy = false;
  bool confined = false;         // HIP: to some CUs, by the application; its work is bridged
  bool settings = false;         // the application set attributes of it
  StreamRecord* next = nullptr;  // in a list of records that stand for nothing now
};

struct Context {
  NativeContext handle{};
  int ordinal = 0;
  std::unique_ptr<runtime::VirtualContext> virtual_context;  // null: torn down
  StreamRecord legacy;
  StreamRecord* idle_thread_streams = nullptr;  // of threads that have ended; under the lock
  Context* next = nullptr;                      // in the list of those torn down

  NativeStream native(const StreamRecord& record) const {
    return static_cast<NativeStream>(virtual_context->native(*record.stream));
  }
};

struct EventRecord {
  runtime::EventState state;
  std::optional<NativeContext> context;  // in which it was made; empty: not seen
  bool untimed = false;                  // made without times
  // Its newest record that was seen is part of a capture, which may have ended since.
  std::atomic<bool> captured{false};
  // Its newest record was made by a launch on this stream, not by a call that records.
  std::atomic<StreamRecord*> launched_on{nullptr};
};

// --- contexts ------------------------------------------------------------------------------------

// The managed context that is current on this thread, made if need be; null: foreign or none.
Context* current_context();  // by the vendor
// The same, but never made.
Context* known_current_context();  // by the vendor
// Makes the context of a device, with its pool. Null after a warning. The pool waits for the
// device, so the registry lock, which is held, is dropped meanwhile: others who want a context wait
// for this one, all other threads go on.
Context* make_context(std::unique_lock<std::mutex>& registry, NativeContext handle, int ordinal);
// Calls `function` for each managed context.
template <class Function>
void for_each_context(Function function);
// Before tear_down: what is deferred is submitted. kAwait: and its end is waited for, because the
// driver's call waits for it, too.
void finish_work(int ordinal, runtime::Deferred how);
// Before the driver destroys the primary context of a device, and with it our pool.
void tear_down(int ordinal);
// Making contexts and adopting handles: rare, so one lock for all of it.
std::mutex& registry_mutex();

// By the vendor: its backend for a device, on the driver's own functions.
hal::Result<std::unique_ptr<hal::Device>> open_device(int ordinal, NativeContext handle);
// By the vendor: the native stream that stands for the context's legacy default stream.
hal::Result<NativeStream> legacy_stream(NativeContext handle);
// By the vendor: whether a query of a blocking stream and a wait for it cover outstanding work of
// the legacy default stream.
bool blocking_covers_legacy();
// By the vendor: whether a blocking stream comes behind outstanding work of the legacy default
// stream by a wait for an event that has ended.
bool ended_wait_covers_legacy();
// By the vendor: the context that is current on this thread, managed or not.
NativeContext native_current_context();
// By the vendor: the context of a stream, of whatever kind; null: none, or not told.
NativeContext context_of_stream(NativeStream stream);
// By the vendor: waits for everything in the context.
ApiStatus wait_for_all(const Context& context);
// By the vendor: gives the stream the attributes of a new one.
void reset_settings(Context& context, const StreamRecord& record);

// --- streams -------------------------------------------------------------------------------------

// What the vendor says about a stream that was never registered.
struct StreamFacts {
  Context* context = nullptr;  // null: foreign
  runtime::StreamKind kind = runtime::StreamKind::kBlocking;
  int priority = 0;
};
// Empty: not a stream.
std::optional<StreamFacts> stream_facts(NativeStream stream);  // by the vendor

// The record of a stream argument; null: foreign, or not a stream. `per_thread`: NULL means the
// calling thread's own default stream.
StreamRecord* find_stream(NativeStream stream, bool per_thread);
// As find_stream, for calls that only ask: makes neither a context nor a stand-in.
StreamRecord* known_stream(NativeStream stream, bool per_thread);
// The application confined the stream to a part of the device.
void announce_confined(NativeStream stream);
// A new stream may have the handle of one that went away unseen.
void forget_stream(NativeStream stream);

// --- events --------------------------------------------------------------------------------------

EventRecord& find_event(NativeEvent event);
void announce_event(NativeEvent event, unsigned flags);
// Null when the handle was not known.
std::unique_ptr<EventRecord> take_event(NativeEvent event);
// Its newest record was made by code that is not virtualised, outside a capture.
void mark_foreign(EventRecord& event);
// A graph or another process may record it or look at it from now on.
void mark_shared(EventRecord& event);

// --- captures ------------------------------------------------------------------------------------

bool captures(NativeStream stream);  // by the vendor: whether it is part of a capture now

extern constinit hal::OpenCaptures open_captures;
inline bool captures_open() { return open_captures.any(); }
// Whether the stream is part of a capture now. Only asked while one is open.
bool is_capturing(const StreamRecord& record);
// Before the call that begins a capture, and after one that failed.
void capture_begins(NativeStream origin);
void capture_did_not_begin(NativeStream origin);
// After a capture's end or the destruction of the stream, whatever these answered.
void capture_may_have_ended(NativeStream origin, bool destroyed);
// Before the context ends, and every capture in it.
void forget_captures(NativeContext context);

inline constexpr int kMaxContexts = static_cast<int>(runtime::stats::kDevices);
extern constinit std::atomic<Context*> context_of_device[kMaxContexts];

template <class Function>
void for_each_context(Function function) {
  for (std::atomic<Context*>& slot : context_of_device)
    if (Context* context = slot.load(std::memory_order_acquire)) function(*context);
}

}  // namespace vitamin::interpose
