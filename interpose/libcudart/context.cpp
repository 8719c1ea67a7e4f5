// SPDX-License-Identifier: Apache-2.0
#include "interpose/libcudart/context.h"

#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "interpose/handle_map.h"
#include "interpose/libcudart/backend.h"

namespace vitamin::interpose {

namespace stats = runtime::stats;

constinit std::atomic<Context*> context_of_device[kMaxContexts]{};
constinit std::atomic<int> open_captures{0};

namespace {

// A context handle that was looked at: managed, or null for foreign ones.
struct ContextRecord {
  Context* context = nullptr;
};

constinit HandleMap<ContextRecord> contexts;
constinit HandleMap<StreamRecord> streams;
constinit HandleMap<EventRecord> events;
// Making contexts and adopting handles: rare, so one lock for all of it.
constinit std::mutex adoption;
// Another thread may still be inside a call on what went away: records are used again, not freed.
constinit StreamRecord* retired_streams = nullptr;
constinit Context* retired_contexts = nullptr;

constinit thread_local StreamRecord* thread_streams[kMaxContexts] [[gnu::tls_model(
    "initial-exec")]] = {};

// --- contexts ------------------------------------------------------------------------------------

// The ordinal of the device whose primary context this is, or -1.
int primary_of(CUcontext handle) {
  CUdevice device = 0;
  if (VITAMIN_REAL(cuCtxPushCurrent_v2)(handle) != CUDA_SUCCESS) return -1;
  const CUresult got = VITAMIN_REAL(cuCtxGetDevice)(&device);
  CUcontext popped = nullptr;
  VITAMIN_REAL(cuCtxPopCurrent_v2)(&popped);
  if (got != CUDA_SUCCESS || device < 0 || device >= kMaxContexts) return -1;
  unsigned flags = 0;
  int active = 0;
  if (VITAMIN_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS ||
      active == 0)
    return -1;
  // The handle can only be had by retaining; it was active before, so this creates nothing.
  CUcontext primary = nullptr;
  if (VITAMIN_REAL(cuDevicePrimaryCtxRetain)(&primary, device) != CUDA_SUCCESS) return -1;
  VITAMIN_REAL(cuDevicePrimaryCtxRelease_v2)(device);
  return primary == handle ? device : -1;
}

std::unique_ptr<Context> make_context(CUcontext handle, int ordinal) {
  start_managing();
  stats::DevicePage& device_page = page().devices[ordinal];
  device_page.ordinal = static_cast<std::uint32_t>(ordinal);
  device_page.used.store(1, std::memory_order_relaxed);
  Configuration configuration = interpose::configuration();
  configuration.dispatch.page = &device_page;
  configuration.dispatch.audit = make_audit(ordinal);

  auto device = open_device(ordinal, handle);
  if (!device) return degrade(device.error().message.c_str()), nullptr;
  auto policy = make_policy(configuration);
  if (!policy) return degrade(policy.error().message.c_str()), nullptr;
  if (configuration.dispatch.audit)
    *device = runtime::Audit::watch(configuration.dispatch.audit, std::move(*device));
  auto made = runtime::VirtualContext::create(std::move(*device), std::move(*policy),
                                              configuration.dispatch, CU_STREAM_LEGACY);
  if (!made) return degrade(made.error().message.c_str()), nullptr;

  auto context = std::make_unique<Context>();
  context->handle = handle;
  context->ordinal = ordinal;
  context->virtual_context = std::move(*made);
  context->legacy = {context.get(), &context->virtual_context->legacy(), true, nullptr};
  page().reach(stats::Stage::kManaged);
  return context;
}

Context* adopt_context(CUcontext handle) {
  const std::lock_guard lock(adoption);
  if (const ContextRecord* record = contexts.find(handle)) return record->context;
  const Inside ours;
  auto record = std::make_unique<ContextRecord>();
  if (const int ordinal = primary_of(handle); ordinal >= 0) {
    if (auto made = make_context(handle, ordinal)) {
      record->context = made.release();
      context_of_device[ordinal].store(record->context, std::memory_order_release);
    }
  }
  Context* context = record->context;
  contexts.insert(handle, record.release());
  return context;
}

// --- streams -------------------------------------------------------------------------------------

// Wants the lock.
void retire(StreamRecord* record) {
  record->next = retired_streams;
  retired_streams = record;
}

StreamRecord* adopt_stream(CUstream stream) {
  CUcontext handle = nullptr;
  if (VITAMIN_REAL(cuStreamGetCtx)(stream, &handle) != CUDA_SUCCESS) return nullptr;
  CUgreenCtx green = nullptr;
  const bool in_green =
      VITAMIN_REAL(cuStreamGetGreenCtx)(stream, &green) == CUDA_SUCCESS && green != nullptr;
  Context* context = in_green ? nullptr : managed_context(handle);

  const std::lock_guard lock(adoption);
  if (StreamRecord* known = streams.find(stream)) return known->context ? known : nullptr;
  StreamRecord* record = retired_streams;
  if (record != nullptr)
    retired_streams = record->next;
  else
    record = new StreamRecord;
  *record = {};
  if (context != nullptr) {
    unsigned flags = 0;
    int priority = 0;
    VITAMIN_REAL(cuStreamGetFlags)(stream, &flags);
    VITAMIN_REAL(cuStreamGetPriority)(stream, &priority);
    const bool blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
    const Inside ours;
    record->context = context;
    record->stream = &context->virtual_context->adopt(
        stream, blocking ? runtime::StreamKind::kBlocking : runtime::StreamKind::kNonBlocking,
        priority);
  }
  streams.insert(stream, record);
  return record->context ? record : nullptr;
}

// At the end of a thread its stand-ins wait for the next thread: work that is still queued there
// goes on, as natively.
void thread_ended(void*) {
  for (StreamRecord*& record : thread_streams) {
    if (record == nullptr) continue;
    std::atomic<StreamRecord*>& idle = record->context->idle_thread_streams;
    const std::lock_guard lock(adoption);
    record->next = idle.load(std::memory_order_relaxed);
    idle.store(record, std::memory_order_relaxed);
    record = nullptr;
  }
}

void watch_thread_end() {
  static constinit pthread_key_t key = 0;
  static constinit bool made = false;
  {
    const std::lock_guard lock(adoption);
    if (!made) made = pthread_key_create(&key, &thread_ended) == 0;
  }
  if (made) pthread_setspecific(key, &key);  // any value but null: the destructor runs
}

StreamRecord* thread_stream(Context& context) {
  StreamRecord*& mine = thread_streams[context.ordinal];
  if (mine != nullptr && mine->context == &context) return mine;
  watch_thread_end();
  {
    const std::lock_guard lock(adoption);
    if (mine != nullptr) retire(std::exchange(mine, nullptr));  // of a context that was torn down
    if (StreamRecord* idle = context.idle_thread_streams.load(std::memory_order_relaxed)) {
      context.idle_thread_streams.store(idle->next, std::memory_order_relaxed);
      return mine = idle;
    }
  }
  const Inside ours;
  runtime::Stream* stream = context.virtual_context->adopt_per_thread(CU_STREAM_PER_THREAD);
  if (stream == nullptr) {
    VITAMIN_WARN_ONCE(
        "no stand-in for a per-thread default stream could be made; its launches "
        "are not bound");
    return nullptr;
  }
  return mine = new StreamRecord{&context, stream, false, nullptr};
}

bool is_default(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}
bool is_thread_default(CUstream stream, bool per_thread) {
  return stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread);
}

// --- captures ------------------------------------------------------------------------------------

// Streams on which a capture began and was not seen to end. Leaked at exit on purpose.
std::vector<CUstream>& capture_origins() {
  static auto* origins = new std::vector<CUstream>;
  return *origins;
}

CUstreamCaptureStatus capture_status(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (VITAMIN_REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS)
    return CU_STREAM_CAPTURE_STATUS_NONE;
  return status;
}

}  // namespace

Context* managed_context(CUcontext handle) {
  if (handle == nullptr) return nullptr;
  if (const ContextRecord* record = contexts.find(handle)) return record->context;
  return adopt_context(handle);
}

Context* current_context() {
  CUcontext handle = nullptr;
  if (VITAMIN_REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS) return nullptr;
  return managed_context(handle);
}

void forget_context(CUcontext handle) {
  const std::lock_guard lock(adoption);
  delete contexts.erase(handle);
}

void tear_down(int ordinal) {
  if (ordinal < 0 || ordinal >= kMaxContexts) return;
  Context* context = context_of_device[ordinal].exchange(nullptr);
  if (context == nullptr) return;
  const Inside ours;
  const std::lock_guard lock(adoption);
  delete contexts.erase(context->handle);
  context->next = retired_contexts;  // threads look at it to see that it is gone
  retired_contexts = context;
  streams.erase_if([&](const StreamRecord& record) { return record.context == context; },
                   [](StreamRecord* record) { retire(record); });
  events.erase_if(
      [&](const EventRecord& event) { return event.state.home.load() == context->virtual_context.get(); },
      [&](EventRecord* event) {
        context->virtual_context->forget(event->state);
        delete event;
      });
  context->virtual_context.reset();
}

StreamRecord* find_stream(CUstream stream, bool per_thread) {
  if (!is_default(stream)) {
    StreamRecord* record = streams.find(stream);
    if (record == nullptr) return adopt_stream(stream);
    return record->context != nullptr ? record : nullptr;
  }
  Context* context = current_context();
  if (context == nullptr) return nullptr;
  return is_thread_default(stream, per_thread) ? thread_stream(*context) : &context->legacy;
}

StreamRecord* known_stream(CUstream stream, bool per_thread) {
  if (!is_default(stream)) {
    StreamRecord* record = streams.find(stream);
    return record != nullptr && record->context != nullptr ? record : nullptr;
  }
  CUcontext handle = nullptr;
  if (VITAMIN_REAL(cuCtxGetCurrent)(&handle) != CUDA_SUCCESS || handle == nullptr) return nullptr;
  const ContextRecord* known = contexts.find(handle);
  if (known == nullptr || known->context == nullptr) return nullptr;
  if (!is_thread_default(stream, per_thread)) return &known->context->legacy;
  StreamRecord* mine = thread_streams[known->context->ordinal];
  return mine != nullptr && mine->context == known->context ? mine : nullptr;
}

void forget_stream(CUstream stream) {
  const std::lock_guard lock(adoption);
  if (StreamRecord* record = streams.erase(stream)) retire(record);
}

EventRecord& find_event(CUevent event) {
  if (EventRecord* record = events.find(event)) return *record;
  const std::lock_guard lock(adoption);
  if (EventRecord* record = events.find(event)) return *record;
  auto* record = new EventRecord;
  events.insert(event, record);
  return *record;
}

void announce_event(CUevent event, unsigned flags) {
  auto record = std::make_unique<EventRecord>();
  record->state.interprocess = (flags & CU_EVENT_INTERPROCESS) != 0;
  const std::lock_guard lock(adoption);
  delete events.insert(event, record.release());
}

std::unique_ptr<EventRecord> take_event(CUevent event) {
  const std::lock_guard lock(adoption);
  return std::unique_ptr<EventRecord>(events.erase(event));
}

void mark_foreign(EventRecord& event) {
  if (event.state.home != nullptr) event.state.home.load()->forget(event.state);
  event.state.foreign = true;
}

bool is_capturing(const StreamRecord& record) {
  // The legacy stream cannot be captured, and asking about it is an error while a blocking stream
  // is.
  if (record.legacy) return false;
  return capture_status(record.context->native(record)) != CU_STREAM_CAPTURE_STATUS_NONE;
}

void capture_began(CUstream origin) {
  const std::lock_guard lock(adoption);
  capture_origins().push_back(origin);
  open_captures.fetch_add(1, std::memory_order_relaxed);
}

void capture_may_have_ended(CUstream origin, bool destroyed) {
  if (!destroyed && capture_status(origin) != CU_STREAM_CAPTURE_STATUS_NONE) return;
  const std::lock_guard lock(adoption);
  auto& origins = capture_origins();
  const auto found = std::find(origins.begin(), origins.end(), origin);
  if (found == origins.end()) return;
  origins.erase(found);
  open_captures.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace vitamin::interpose
