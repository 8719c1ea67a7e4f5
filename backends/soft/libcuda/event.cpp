// SPDX-License-Identifier: Apache-2.0
//
// Events: records are generations, a wait keeps the generation that it saw.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/clock.h"
#include "backends/soft/libcuda/command.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/events.h"
#include "hal/file_memory.h"

namespace vitamin::soft::driver {
namespace {

constexpr unsigned kEventFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

std::atomic_ref<std::uint64_t> cell(std::uint64_t& value) {
  return std::atomic_ref<std::uint64_t>(value);
}

SharedEventPage* map_page(const std::string& name, bool create) {
  const int fd = shm_open(name.c_str(), O_RDWR | (create ? O_CREAT | O_EXCL : 0), 0600);
  if (fd < 0) return nullptr;
  void* page = nullptr;
  if (create) {
    page = hal::grow_file(fd, nullptr, 0, sizeof(SharedEventPage));
    if (page == nullptr) shm_unlink(name.c_str());
  } else if (struct stat facts{}; fstat(fd, &facts) == 0 &&
                                  facts.st_size == static_cast<off_t>(sizeof(SharedEventPage))) {
    page = hal::map_file(fd, sizeof(SharedEventPage), PROT_READ | PROT_WRITE);
  }
  close(fd);
  return static_cast<SharedEventPage*>(page);
}

CUresult make_shared_page(EventObject& event, std::uint64_t id) {
  event.shared_name = "/vitamin-soft-event-" + std::to_string(getpid()) + "-" + std::to_string(id);
  event.shared = map_page(event.shared_name, true);
  event.owns_name = true;
  return event.shared != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

QueueRef temporary_queue(Context& context) {
  Engine& engine = *context.device->engine;
  QueueOptions options;
  options.sms = engine.device().all();
  Queue* queue = nullptr;
  if (engine.create_queue(options, &queue) != kOk) return nullptr;
  return QueueRef(queue, QueueDeleter{&engine});
}

}  // namespace

std::shared_ptr<vitamin::soft::Event> make_native(Engine& engine) {
  vitamin::soft::Event* event = nullptr;
  if (engine.create_event(&event) != kOk) return nullptr;
  return {event, EventDeleter{&engine}};
}

namespace {

// Opens a gate of one device when work of another gets there, or is dropped because that one
// faulted.
class GateOpener {
 public:
  GateOpener(Engine& engine, Gate* gate) : engine_(&engine), gate_(gate) {}
  GateOpener(GateOpener&& other) noexcept
      : engine_(other.engine_), gate_(std::exchange(other.gate_, nullptr)) {}
  GateOpener(const GateOpener&) = delete;
  GateOpener& operator=(const GateOpener&) = delete;
  GateOpener& operator=(GateOpener&&) = delete;
  ~GateOpener() { (*this)(); }
  void operator()() {
    if (Gate* gate = std::exchange(gate_, nullptr)) engine_->destroy_gate(gate);
  }

 private:
  Engine* engine_;
  Gate* gate_;
};

// A wait on one device for an event of another: a gate here, opened there.
CUresult wait_across_devices(EventObject& event, Engine& engine, Queue* queue) {
  const QueueRef relay = temporary_queue(*event.context);
  if (relay == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Engine& source = *event.context->device->engine;
  Gate* gate = engine.create_gate();
  GateOpener opener(engine, gate);
  CUresult result = result_of(source.wait(relay.get(), event.native.get()));
  if (result == CUDA_SUCCESS) result = result_of(engine.wait_gate(queue, gate));
  if (result == CUDA_SUCCESS) result = result_of(source.work(relay.get(), std::move(opener), 0));
  return result;
}

// Every stream that belongs to a context, of a root context its green contexts' too.
std::vector<Stream*> streams_of(const Context& context) {
  std::vector<Stream*> streams(context.streams.begin(), context.streams.end());
  for (const Context* child : context.children)
    streams.insert(streams.end(), child->streams.begin(), child->streams.end());
  return streams;
}

int query_status(const EventObject& event) {
  if (event.shared == nullptr) return event.context->device->engine->query(event.native.get());
  const std::uint64_t recorded = cell(event.shared->recorded).load();
  return cell(event.shared->completed).load() >= recorded ? event.context->device->engine->fault()
                                                          : static_cast<int>(kNotReady);
}

// What a host-side look at an event must pass first.
CUresult admit_host_look(EventObject& event) {
  if (event.captured) return refuse_captured_event(event);
  if (const CUresult error = forbid_in_capture(nullptr); error != CUDA_SUCCESS) return error;
  return sticky_error(*event.context);
}

CUresult record(CUevent event_handle, CUstream stream_handle, bool external) {
  std::unique_lock lock(driver().mutex);
  EventObject* event = nullptr;
  Stream* stream = nullptr;
  if (const CUresult error = resolve_event(event_handle, &event); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = resolve_stream(stream_handle, &stream); error != CUDA_SUCCESS)
    return error;
  if (external && stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  // Streams of green contexts take the events of their primary context.
  if (event->context->root != stream->context->root) return CUDA_ERROR_INVALID_HANDLE;
  return enqueue(lock, *stream, EventRecordCommand{event, external});
}

}  // namespace

CUresult resolve_event(CUevent handle, EventObject** event) {
  EventObject* found = driver().find<EventObject>(handle, Kind::kEvent);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!found->context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *event = found;
  return CUDA_SUCCESS;
}

CUresult record_on_queue(EventObject& event, Engine& engine, Queue* queue) {
  if (driver().find<EventObject>(&event, Kind::kEvent) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  event.captured = false;
  event.recorded = true;
  if (event.shared == nullptr) return result_of(engine.record(queue, event.native.get()));
  const std::uint64_t generation = cell(event.shared->recorded).fetch_add(1) + 1;
  return result_of(engine.write_value(queue, &event.shared->completed, generation, Width::k64));
}

CUresult wait_on_queue(EventObject& event, Engine& engine, Queue* queue) {
  if (driver().find<EventObject>(&event, Kind::kEvent) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event.shared != nullptr) {
    const std::uint64_t generation = cell(event.shared->recorded).load();
    if (generation == 0) return CUDA_SUCCESS;
    return result_of(engine.wait_value(queue, &event.shared->completed, generation, Width::k64,
                                       Compare::kGreaterOrEqual));
  }
  if (event.context->device->engine.get() != &engine)
    return wait_across_devices(event, engine, queue);
  return result_of(engine.wait(queue, event.native.get()));
}

CUresult record_behind_context(Context& context, EventObject& event) {
  if (event.context->root != context.root) return CUDA_ERROR_INVALID_HANDLE;
  Engine& engine = *context.device->engine;
  const QueueRef relay = temporary_queue(context);
  if (relay == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  for (Stream* stream : streams_of(context)) {
    if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    // A record in an idle stream would only add edges to the default stream's implicit order.
    if (engine.last_ticket(stream->queue.get()) == 0 ||
        engine.query(stream->queue.get(), engine.last_ticket(stream->queue.get())) != kNotReady)
      continue;
    const auto tail = make_native(engine);
    if (tail == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    int status = engine.record(stream->queue.get(), tail.get());
    if (status == kOk) status = engine.wait(relay.get(), tail.get());
    if (status != kOk) return result_of(status);
  }
  return record_on_queue(event, engine, relay.get());
}

CUresult wait_before_context(Context& context, EventObject& event) {
  for (Stream* stream : streams_of(context)) {
    if (stream->capture != nullptr) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (const CUresult error = wait_on_queue(event, *context.device->engine, stream->queue.get());
        error != CUDA_SUCCESS)
      return error;
  }
  return CUDA_SUCCESS;
}

CUresult come_behind(Stream& after, Stream& before) {
  auto made = std::make_unique<EventObject>();
  made->context = before.context->root;
  made->flags = CU_EVENT_DISABLE_TIMING;
  made->native = make_native(before.engine());
  if (made->native == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  EventObject* event = driver().own(std::move(made), Kind::kEvent);
  CUresult result = record_on_queue(*event, before.engine(), before.queue.get());
  if (result == CUDA_SUCCESS) result = wait_on_queue(*event, after.engine(), after.queue.get());
  driver().release(event);
  return result;
}

// ---------------------------------------------------------------------------------- entry points

CUresult api::cuEventCreate(CUevent* handle, unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (handle == nullptr || (flags & ~kEventFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool shared = (flags & CU_EVENT_INTERPROCESS) != 0;
  if (shared && (flags & CU_EVENT_DISABLE_TIMING) == 0) return CUDA_ERROR_INVALID_VALUE;
  auto event = std::make_unique<EventObject>();
  // An event made under a green context belongs to the address space, as its stream's peers do.
  event->context = context->root;
  event->flags = flags;
  event->native = make_native(*context->device->engine);
  if (event->native == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (shared) {
    if (const CUresult error = make_shared_page(*event, driver().next_id++); error != CUDA_SUCCESS)
      return error;
  }
  *handle = reinterpret_cast<CUevent>(driver().own(std::move(event), Kind::kEvent));
  return CUDA_SUCCESS;
}

CUresult api::cuEventDestroy_v2(CUevent handle) {
  const std::lock_guard lock(driver().mutex);
  EventObject* event = driver().find<EventObject>(handle, Kind::kEvent);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (event->owns_name) shm_unlink(event->shared_name.c_str());
  const CUresult answer = sticky_error(*event->context);
  driver().release(event);
  return answer;
}

CUresult api::cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, false); }

CUresult api::cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  return record(event, stream, (flags & CU_EVENT_RECORD_EXTERNAL) != 0);
}

CUresult api::cuStreamWaitEvent(CUstream stream_handle, CUevent event_handle, unsigned flags) {
  if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::unique_lock lock(driver().mutex);
  EventObject* event = nullptr;
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(stream_handle, &stream); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = resolve_event(event_handle, &event); error != CUDA_SUCCESS)
    return error;
  const bool external = (flags & CU_EVENT_WAIT_EXTERNAL) != 0;
  if (external && stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (!external && event->captured) return join_capture(*stream, *event);
  return enqueue(lock, *stream, EventWaitCommand{event, external});
}

CUresult api::cuEventQuery(CUevent handle) {
  const std::lock_guard lock(driver().mutex);
  EventObject* event = nullptr;
  if (const CUresult error = resolve_event(handle, &event); error != CUDA_SUCCESS) return error;
  if (const CUresult error = admit_host_look(*event); error != CUDA_SUCCESS) return error;
  return result_of(query_status(*event));
}

CUresult api::cuEventSynchronize(CUevent handle) {
  EventObject snapshot;
  {
    const std::lock_guard lock(driver().mutex);
    EventObject* event = nullptr;
    if (const CUresult error = resolve_event(handle, &event); error != CUDA_SUCCESS) return error;
    if (const CUresult error = admit_host_look(*event); error != CUDA_SUCCESS) return error;
    snapshot.context = event->context;
    snapshot.native = event->native;
    snapshot.shared = event->shared;
  }
  Engine& engine = *snapshot.context->device->engine;
  if (snapshot.shared != nullptr) {
    const std::uint64_t recorded = cell(snapshot.shared->recorded).load();
    return result_of(wait_until([&] {
      return cell(snapshot.shared->completed).load() >= recorded ? static_cast<int>(engine.fault())
                                                                 : static_cast<int>(kNotReady);
    }));
  }
  if (engine.clock() == Clock::kReal) return result_of(engine.synchronize(snapshot.native.get()));
  return result_of(wait_until([&] { return engine.query(snapshot.native.get()); }));
}

CUresult api::cuEventElapsedTime(float* milliseconds, CUevent start_handle, CUevent end_handle) {
  const std::lock_guard lock(driver().mutex);
  EventObject* start = nullptr;
  EventObject* end = nullptr;
  if (const CUresult error = resolve_event(start_handle, &start); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = resolve_event(end_handle, &end); error != CUDA_SUCCESS) return error;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0 || !start->recorded ||
      !end->recorded || start->context->device != end->context->device)
    return CUDA_ERROR_INVALID_HANDLE;
  const Engine& engine = *start->context->device->engine;
  Nanoseconds from = 0, to = 0;
  int status = engine.event_time(start->native.get(), &from);
  if (status == kOk) status = engine.event_time(end->native.get(), &to);
  if (status == kInvalidArgument) return CUDA_ERROR_INVALID_HANDLE;
  if (status != kOk) return result_of(status);
  *milliseconds = static_cast<float>((static_cast<double>(to) - static_cast<double>(from)) / 1e6);
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------ between processes

CUresult api::cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
  const std::lock_guard lock(driver().mutex);
  EventObject* event = nullptr;
  if (const CUresult error = resolve_event(event_handle, &event); error != CUDA_SUCCESS)
    return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (event->shared == nullptr || event->shared_name.size() >= sizeof handle->reserved)
    return CUDA_ERROR_INVALID_HANDLE;
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, event->shared_name.data(), event->shared_name.size());
  return CUDA_SUCCESS;
}

CUresult api::cuIpcOpenEventHandle(CUevent* handle, CUipcEventHandle exported) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t length = strnlen(exported.reserved, sizeof exported.reserved);
  const std::string name(exported.reserved, length);
  if (!name.starts_with("/vitamin-soft-event-")) return CUDA_ERROR_INVALID_HANDLE;
  auto event = std::make_unique<EventObject>();
  event->context = context->root;
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->shared_name = name;
  event->shared = map_page(name, false);
  if (event->shared == nullptr) return CUDA_ERROR_MAP_FAILED;
  event->native = make_native(*context->device->engine);
  if (event->native == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUevent>(driver().own(std::move(event), Kind::kEvent));
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
