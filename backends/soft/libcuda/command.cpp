// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/command.h"

#include <cstring>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/events.h"

namespace vitamin::soft::driver {
namespace {

// A callback of the application may not call the driver.
class CallbackScope {
 public:
  CallbackScope() : outer_(std::exchange(thread_state().in_callback, true)) {}
  ~CallbackScope() { thread_state().in_callback = outer_; }
  CallbackScope(const CallbackScope&) = delete;
  CallbackScope& operator=(const CallbackScope&) = delete;

 private:
  bool outer_;
};

struct Submitter {
  Context& context;
  Queue* queue;

  Engine& engine() const { return *context.device->engine; }

  CUresult operator()(const KernelCommand& kernel) const {
    Launch launch;
    launch.kernel = kernel.descriptor;
    launch.grid = kernel.grid;
    launch.block = kernel.block;
    launch.dynamic_shared = kernel.shared;
    launch.cluster_blocks = kernel.cluster_blocks();
    launch.cooperative = kernel.cooperative;
    launch.parameters = kernel.parameters.data();
    launch.attributes = kernel.attributes.data();
    launch.attribute_bytes = kernel.attributes.size() * sizeof(CUlaunchAttribute);
    const CUresult launched = result_of(engine().launch(queue, launch));
    if (launched != CUDA_SUCCESS || kernel.completion == nullptr) return launched;
    return record_on_queue(*kernel.completion, engine(), queue);
  }
  CUresult operator()(const CopyCommand& copy) const {
    return result_of(engine().work(
        queue, [copy] { perform(copy); }, engine().device().copy_ns(copy.bytes())));
  }
  CUresult operator()(const FillCommand& fill) const {
    const std::size_t bytes = fill.width * fill.height * fill.element_bytes;
    return result_of(engine().work(
        queue, [fill] { perform(fill); }, engine().device().copy_ns(bytes)));
  }
  CUresult operator()(const HostCommand& host) const {
    return result_of(engine().host_function(queue, [host](Status) {
      const CallbackScope scope;
      host.function(host.data);
    }));
  }
  CUresult operator()(const CallbackCommand& callback) const {
    return result_of(engine().host_function(
        queue,
        [callback](Status status) {
          const CallbackScope scope;
          callback.function(callback.stream, result_of(status), callback.data);
        },
        true));
  }
  CUresult operator()(const ValueWaitCommand& wait) const {
    return result_of(
        engine().wait_value(queue, wait.address, wait.value, wait.width, wait.compare));
  }
  CUresult operator()(const ValueWriteCommand& write) const {
    return result_of(engine().write_value(queue, write.address, write.value, write.width));
  }
  CUresult operator()(const EventRecordCommand& record) const {
    return record_on_queue(*record.event, engine(), queue);
  }
  CUresult operator()(const EventWaitCommand& wait) const {
    return wait_on_queue(*wait.event, engine(), queue);
  }
  CUresult operator()(const EmptyCommand&) const { return result_of(engine().marker(queue)); }
  CUresult operator()(const ChildGraphCommand&) const { return CUDA_ERROR_UNKNOWN; }
};

bool stream_alive(const Stream& stream, const Context& context, const QueueRef& queue) {
  const auto has = [&](const Context& owner) {
    return owner.streams.contains(const_cast<Stream*>(&stream));
  };
  if (has(context)) return stream.queue == queue;
  for (const Context* child : context.children)
    if (has(*child)) return stream.queue == queue;
  return false;
}

// Blocks the caller while kStreamDepth operations of the stream are outstanding.
CUresult wait_for_room(std::unique_lock<std::mutex>& lock, Stream& stream) {
  const QueueRef queue = stream.queue;
  Device& device = *stream.context->device;
  const std::uint64_t last = device.engine->last_ticket(queue.get());
  if (last < kStreamDepth) return CUDA_SUCCESS;
  const std::uint64_t oldest = last - kStreamDepth + 1;
  if (device.engine->query(queue.get(), oldest) != kNotReady) return CUDA_SUCCESS;
  Context& root = *stream.context->root;
  ++stream.waiting_for_room;
  ++root.waiting_for_room;
  lock.unlock();
  const CUresult waited = wait_for_ticket(device, queue, oldest);
  lock.lock();
  --root.waiting_for_room;
  driver().room.notify_all();
  // The stream may have been destroyed by another thread meanwhile.
  if (stream_alive(stream, root, queue)) {
    --stream.waiting_for_room;
    return waited;
  }
  return CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult submit(Context& context, Queue* queue, const Command& command) {
  return std::visit(Submitter{context, queue}, command);
}

CUresult admit_to_stream(Stream& stream) {
  if (const CUresult error = sticky_error(*stream.context); error != CUDA_SUCCESS) return error;
  if (stream.kind == StreamClass::kLegacy) return refuse_implicit_dependency(*stream.context);
  return CUDA_SUCCESS;
}

CUresult enqueue(std::unique_lock<std::mutex>& lock, Stream& stream, Command command) {
  if (stream.capture != nullptr) return capture_command(stream, std::move(command));
  if (const CUresult error = admit_to_stream(stream); error != CUDA_SUCCESS) return error;
  if (const CUresult error = wait_for_room(lock, stream); error != CUDA_SUCCESS) return error;
  const CUresult submitted = submit(*stream.context, stream.queue.get(), command);
  const bool is_work = !std::holds_alternative<EventRecordCommand>(command);
  if (submitted == CUDA_SUCCESS && is_work)
    stream.work_ticket = stream.engine().last_ticket(stream.queue.get());
  return submitted;
}

void perform(const CopyCommand& copy) {
  for (std::size_t layer = 0; layer < copy.depth; ++layer) {
    for (std::size_t row = 0; row < copy.height; ++row) {
      std::memmove(copy.target + layer * copy.target_slice + row * copy.target_pitch,
                   copy.source + layer * copy.source_slice + row * copy.source_pitch, copy.width);
    }
  }
}

void perform(const FillCommand& fill) {
  for (std::size_t row = 0; row < fill.height; ++row) {
    unsigned char* at = fill.target + row * fill.pitch;
    for (std::size_t i = 0; i < fill.width; ++i)
      std::memcpy(at + i * fill.element_bytes, &fill.value, fill.element_bytes);
  }
}

}  // namespace vitamin::soft::driver
