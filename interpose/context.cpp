// SPDX-License-Identifier: Apache-2.0
#include "interpose/context.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include "interpose/call_wrappers.h"
#include "interpose/graphs.h"
#include "interpose/handle_map.h"
#include "interpose/manual_overrides.h"

namespace vitamin::interpose {

namespace stats = runtime::stats;

constinit std::atomic<Context*> context_of_device[kMaxContexts]{};
constinit hal::OpenCaptures open_captures;

namespace {

constinit HandleMap<StreamRecord> streams;
constinit HandleMap<EventRecord> events;
constinit std::mutex context_registry_mutex;
// Another thread may still be inside a call on what went away: records are used again, not freed.
constinit StreamRecord* retired_streams = nullptr;
constinit Context* retired_contexts = nullptr;

constinit thread_local StreamRecord* thread_streams[kMaxContexts] [[gnu::tls_model(
    "initial-exec")]] = {};

// --- streams -------------------------------------------------------------------------------------

// Wants the lock.
void retire(StreamRecord* record) {
  record->next = retired_streams;
  retired_streams = record;
}

StreamRecord* adopt_stream(NativeStream stream) {
  const std::optional<StreamFacts> facts = stream_facts(stream);
  if (!facts) return nullptr;
  const std::lock_guard lock(registry_mutex());
  if (StreamRecord* known = streams.find(stream)) return known->context ? known : nullptr;
  StreamRecord* record = retired_streams;
  if (record != nullptr)
    retired_streams = record->next;
  else
    record = new StreamRecord;
  *record = {};
  if (Context* context = facts->context) {
    const ReentrancyGuard ours;
    record->context = context;
    record->stream = &context->virtual_context->adopt(stream, facts->kind, facts->priority);
  }
  streams.insert(stream, record);
  return record->context ? record : nullptr;
}

// At the end of a thread its stand-ins wait for the next thread: work that is still queued there
// goes on, as natively.
void thread_ended(void*) {
  if (passive.load(std::memory_order_relaxed)) return;
  for (StreamRecord*& record : thread_streams) {
    if (record == nullptr) continue;
    const std::lock_guard lock(registry_mutex());
    record->next = std::exchange(record->context->idle_thread_streams, record);
    record = nullptr;
  }
}

void watch_thread_end() {
  static constinit pthread_key_t key = 0;
  static constinit bool made = false;
  {
    const std::lock_guard lock(registry_mutex());
    if (!made) made = pthread_key_create(&key, &thread_ended) == 0;
  }
  if (made) pthread_setspecific(key, &key);  // any value but null: the destructor runs
}

// The stand-in of a thread that has ended, if its work has, too: the default streams of two threads
// do not wait for each other. Wants the lock.
StreamRecord* take_idle_thread_stream(Context& context) {
  const ReentrancyGuard ours;
  for (StreamRecord** at = &context.idle_thread_streams; *at != nullptr; at = &(*at)->next) {
    StreamRecord* idle = *at;
    if (!context.virtual_context->idle(*idle->stream)) continue;
    *at = idle->next;
    return idle;
  }
  return nullptr;
}

StreamRecord* thread_stream(Context& context) {
  StreamRecord*& mine = thread_streams[context.ordinal];
  if (mine != nullptr && mine->context == &context) return mine;
  watch_thread_end();
  {
    const std::lock_guard lock(registry_mutex());
    if (mine != nullptr) retire(std::exchange(mine, nullptr));  // of a context that was torn down
    mine = take_idle_thread_stream(context);
  }
  if (mine != nullptr) {
    // The thread finds what a new stream has, not what the other thread set.
    const ReentrancyGuard ours;
    context.virtual_context->advise(*mine->stream, std::nullopt);
    if (std::exchange(mine->settings, false)) reset_settings(context, *mine);
    return mine;
  }
  const ReentrancyGuard ours;
  runtime::Stream* stream = context.virtual_context->adopt_per_thread(kThreadStream);
  if (stream == nullptr) {
    VITAMIN_WARN_ONCE(Problem::kNotManaged,
                      "no stand-in for a per-thread default stream could be made; its launches "
                      "are not bound");
    return nullptr;
  }
  return mine = new StreamRecord{&context, stream, false, false, false, nullptr};
}

bool is_default(NativeStream stream) {
  return stream == nullptr || stream == kLegacyStream || stream == kThreadStream;
}
bool is_thread_default(NativeStream stream, bool per_thread) {
  return stream == kThreadStream || (stream == nullptr && per_thread);
}

// --- captures ------------------------------------------------------------------------------------

// A stream on which a capture begins, or began and was not seen to end.
struct CaptureOrigin {
  NativeStream stream;
  NativeContext context;
};
// Leaked at exit on purpose. Wants the lock.
std::vector<CaptureOrigin>& capture_origins() {
  static auto* origins = new std::vector<CaptureOrigin>;
  return *origins;
}

// Reads the times that were not read yet, and makes no more calls where they would fault. A child
// has none of our threads, and threads that it has not may hold our locks.
void before_runtime_ends(Context& context) {
  if (passive.load(std::memory_order_relaxed)) return;
  ContextCall::end();
  context.virtual_context->finish_graphs();
  if (kFaultsAtExit)
    context.virtual_context->stop();
  else
    context.virtual_context->finish_timing();
}

// Handlers of other libraries, which run between these, may call HIP as ever: no lock is held.
constinit thread_local bool forks [[gnu::tls_model("initial-exec")]] = false;

void before_fork() {
  if (passes_natively()) return;
  forks = true;
  runtime::VirtualContext::begin_fork();
  const std::lock_guard lock(registry_mutex());  // no context is torn down meanwhile
  for_each_context([](Context& context) { context.virtual_context->await_rest(); });
}

void after_fork() {
  if (std::exchange(forks, false)) runtime::VirtualContext::end_fork();
}

}  // namespace

std::mutex& registry_mutex() { return context_registry_mutex; }

namespace {

Context* make_context_now(NativeContext handle, int ordinal) {
  start_managing();
  stats::DevicePage& counters = device_page(static_cast<unsigned>(ordinal));
  counters.ordinal = static_cast<std::uint32_t>(ordinal);
  counters.used.store(1, std::memory_order_relaxed);
  ProcessOptions options = process_options();
  options.dispatch.page = &counters;
  options.dispatch.audit = make_audit(ordinal);
  options.dispatch.blocking_covers_legacy = blocking_covers_legacy();
  options.dispatch.ended_wait_covers_legacy = ended_wait_covers_legacy();

  auto device = open_device(ordinal, handle);
  if (!device) return degrade(device.error().message.c_str()), nullptr;
  auto policy = make_policy(options);
  if (!policy) return degrade(policy.error().message.c_str()), nullptr;
  options.dispatch.trace = make_trace(ordinal, (*device)->info(), options);
  set_up_profile(options.dispatch, (*device)->info().name, ordinal);
  // Registered behind the runtime's own start, so this comes before its end.
  [[maybe_unused]] static const int registered =
      std::atexit([] { for_each_context(&before_runtime_ends); });
  if constexpr (kServesForks) [[maybe_unused]]
    static const int watched = ::pthread_atfork(&before_fork, &after_fork, &after_fork);
  if (options.dispatch.audit)
    *device = runtime::Audit::watch(options.dispatch.audit, std::move(*device));
  const auto legacy = legacy_stream(handle);
  if (!legacy) return degrade(legacy.error().message.c_str()), nullptr;
  auto made =
      runtime::VirtualContext::create(std::move(*device), *policy, options.dispatch, *legacy);
  if (!made) return degrade(made.error().message.c_str()), nullptr;

  auto context = std::make_unique<Context>();
  context->handle = handle;
  context->ordinal = ordinal;
  context->virtual_context = std::move(*made);
  context->legacy = {context.get(), &context->virtual_context->legacy(), true, false, false,
                     nullptr};
  page().reach(stats::Stage::kManaged);
  context_of_device[ordinal].store(context.get(), std::memory_order_release);
  return context.release();
}

}  // namespace

Context* make_context(std::unique_lock<std::mutex>& registry, NativeContext handle, int ordinal) {
  static const hal::LockRule::Watched watched(context_registry_mutex, "the registry lock is held");
  static bool making = false;
  static auto* const made =
      new std::condition_variable;  // never destroyed: a thread may wait at exit
  made->wait(registry, [] { return !making; });
  if (Context* other = context_of_device[ordinal].load(std::memory_order_acquire)) return other;
  making = true;
  registry.unlock();
  Context* const context = make_context_now(handle, ordinal);
  registry.lock();
  making = false;
  made->notify_all();
  return context;
}

void finish_work(int ordinal, runtime::Deferred how) {
  if (ordinal < 0 || ordinal >= kMaxContexts) return;
  Context* context = context_of_device[ordinal].load(std::memory_order_acquire);
  if (context == nullptr) return;
  const ContextCall held;
  const ReentrancyGuard ours;
  // An error is that of a context which ends: the driver's call answers for it.
  static_cast<void>(context->virtual_context->call_for_context(how, [&] {
    return how == runtime::Deferred::kAwait ? hal::NativeStatus(wait_for_all(*context))
                                            : hal::kNativeOk;
  }));
}

void tear_down(int ordinal) {
  if (ordinal < 0 || ordinal >= kMaxContexts) return;
  Context* context = context_of_device[ordinal].exchange(nullptr);
  if (context == nullptr) return;
  const ReentrancyGuard ours;
  forget_captures(context->handle);
  forget_graphs(*context);
  std::unique_ptr<runtime::VirtualContext> ended;  // without the lock
  const std::lock_guard lock(registry_mutex());
  context->next = retired_contexts;  // threads look at it to see that it is gone
  retired_contexts = context;
  streams.erase_if([&](const StreamRecord& record) { return record.context == context; },
                   [](StreamRecord* record) { retire(record); });
  events.erase_if(
      [&](const EventRecord& event) {
        return event.state.recorded_in.load() == context->virtual_context.get();
      },
      [&](EventRecord* event) {
        context->virtual_context->forget(event->state);
        delete event;
      });
  ended = std::move(context->virtual_context);
}

StreamRecord* find_stream(NativeStream stream, bool per_thread) {
  if (!is_default(stream)) {
    StreamRecord* record = streams.find(stream);
    if (record == nullptr) return adopt_stream(stream);
    return record->context != nullptr ? record : nullptr;
  }
  Context* context = current_context();
  if (context == nullptr) return nullptr;
  return is_thread_default(stream, per_thread) ? thread_stream(*context) : &context->legacy;
}

StreamRecord* known_stream(NativeStream stream, bool per_thread) {
  if (!is_default(stream)) {
    StreamRecord* record = streams.find(stream);
    return record != nullptr && record->context != nullptr ? record : nullptr;
  }
  Context* context = known_current_context();
  if (context == nullptr) return nullptr;
  if (!is_thread_default(stream, per_thread)) return &context->legacy;
  StreamRecord* mine = thread_streams[context->ordinal];
  return mine != nullptr && mine->context == context ? mine : nullptr;
}

void announce_confined(NativeStream stream) {
  if (StreamRecord* record = adopt_stream(stream)) record->confined = true;
}

void forget_stream(NativeStream stream) {
  const std::lock_guard lock(registry_mutex());
  if (StreamRecord* record = streams.erase(stream)) retire(record);
}

EventRecord& find_event(NativeEvent event) {
  if (EventRecord* record = events.find(event)) return *record;
  const std::lock_guard lock(registry_mutex());
  if (EventRecord* record = events.find(event)) return *record;
  auto* record = new EventRecord;
  record->state.native = {event};
  record->state.foreign = true;  // whether it was recorded is unknown
  events.insert(event, record);
  return *record;
}

void announce_event(NativeEvent event, unsigned flags) {
  auto record = std::make_unique<EventRecord>();
  record->state.native = {event};
  record->state.shared = (flags & kEventInterprocess) != 0;
  record->untimed = (flags & kEventDisableTiming) != 0;
  record->context = native_current_context();
  const std::lock_guard lock(registry_mutex());
  delete events.insert(event, record.release());
}

std::unique_ptr<EventRecord> take_event(NativeEvent event) {
  const std::lock_guard lock(registry_mutex());
  return std::unique_ptr<EventRecord>(events.erase(event));
}

void mark_foreign(EventRecord& event) {
  if (event.state.recorded_in != nullptr) event.state.recorded_in.load()->forget(event.state);
  event.state.foreign = true;
  event.captured.store(false, std::memory_order_relaxed);
}

void mark_shared(EventRecord& event) {
  if (event.state.shared.exchange(true)) return;
  // A record that was deferred until now comes before what others do with the event.
  settle(event);
}

bool is_capturing(const StreamRecord& record) {
  // The legacy stream cannot be captured, and asking about it is an error while a blocking stream
  // is.
  if (record.legacy) return false;
  return captures(record.context->native(record));
}

void capture_begins(NativeStream origin) {
  const NativeContext context = context_of_stream(origin);
  {
    const std::lock_guard lock(registry_mutex());
    capture_origins().push_back({origin, context});
  }
  open_captures.begins();
}

void capture_may_have_ended(NativeStream origin, bool destroyed) {
  if (destroyed || !captures(origin)) capture_did_not_begin(origin);
}

void capture_did_not_begin(NativeStream origin) {
  const std::lock_guard lock(registry_mutex());
  auto& origins = capture_origins();
  const auto found = std::find_if(origins.begin(), origins.end(),
                                  [&](const CaptureOrigin& one) { return one.stream == origin; });
  if (found == origins.end()) return;
  origins.erase(found);
  open_captures.ended();
}

void forget_captures(NativeContext context) {
  const std::lock_guard lock(registry_mutex());
  const auto ended = std::erase_if(
      capture_origins(), [&](const CaptureOrigin& one) { return one.context == context; });
  open_captures.ended(static_cast<int>(ended));
}

}  // namespace vitamin::interpose
