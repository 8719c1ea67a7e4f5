// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/command.h"

#include <cstring>
#include <optional>

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
  CUresult operator()(const GraphAllocCommand&) const { return result_of(engine().marker(queue)); }
  CUresult operator()(const GraphFreeCommand&) const { return result_of(engine().marker(queue)); }
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

// What the command takes of a stream's room; nothing: no place.
std::optional<std::size_t> parameter_bytes_of(const Command& command) {
  if (const auto* kernel = std::get_if<KernelCommand>(&command)) return kernel->parameters.size();
  const bool takes_place = std::holds_alternative<CopyCommand>(command) ||
                           std::holds_alternative<FillCommand>(command) ||
                           std::holds_alternative<ValueWaitCommand>(command) ||
                           std::holds_alternative<ValueWriteCommand>(command);
  return takes_place ? std::optional<std::size_t>(0) : std::nullopt;
}

// Whether the oldest place was free again.
bool drop_oldest_place(Stream& stream) {
  if (stream.places.empty()) return false;
  const Stream::Place oldest = stream.places.front();
  if (stream.engine().query(stream.queue.get(), oldest.ticket) == kNotReady) return false;
  stream.parameter_bytes -= oldest.parameter_bytes;
  stream.places.pop_front();
  return true;
}

}  // namespace

CUresult wait_for_place(std::unique_lock<std::mutex>& lock, Stream& stream,
                        std::size_t parameter_bytes) {
  const QueueRef queue = stream.queue;
  Device& device = *stream.context->device;
  Context& root = *stream.context->root;
  while (stream.places.size() >= kStreamPlaces ||
         stream.parameter_bytes + parameter_bytes > kStreamParameterBytes) {
    if (drop_oldest_place(stream)) continue;
    const std::uint64_t oldest = stream.places.front().ticket;
    ++stream.waiting_for_room;
    ++root.waiting_for_room;
    lock.unlock();
    const CUresult waited = wait_for_ticket(device, queue, oldest);
    lock.lock();
    --root.waiting_for_room;
    driver().room.notify_all();
    // The stream may have been destroyed by another thread meanwhile.
    if (!stream_alive(stream, root, queue)) return CUDA_ERROR_INVALID_HANDLE;
    --stream.waiting_for_room;
    if (waited != CUDA_SUCCESS) return waited;
  }
  return CUDA_SUCCESS;
}

void take_place(Stream& stream, std::size_t parameter_bytes) {
  // Those that are done go as others come.
  static_cast<void>(drop_oldest_place(stream) && drop_oldest_place(stream));
  stream.places.push_back({stream.engine().last_ticket(stream.queue.get()), parameter_bytes});
  stream.parameter_bytes += parameter_bytes;
}

CUresult submit(Context& context, Queue* queue, const Command& command) {
  return std::visit(Submitter{context, queue}, command);
}

CUresult admit_to_stream(Stream& stream) {
  if (const CUresult error = sticky_error(*stream.context); error != CUDA_SUCCESS) return error;
  if (stream.kind == StreamClass::kLegacy) return refuse_implicit_dependency(*stream.context);
  return CUDA_SUCCESS;
}

namespace {

CUresult submit_to_stream(Stream& stream, const Command& command) {
  const CUresult submitted = submit(*stream.context, stream.queue.get(), command);
  const bool is_work = !std::holds_alternative<EventRecordCommand>(command);
  if (submitted == CUDA_SUCCESS && is_work)
    stream.work_ticket = stream.engine().last_ticket(stream.queue.get());
  return submitted;
}

}  // namespace

CUresult enqueue(std::unique_lock<std::mutex>& lock, Stream& stream, Command command) {
  if (stream.capture != nullptr) return capture_command(stream, std::move(command));
  if (const CUresult error = admit_to_stream(stream); error != CUDA_SUCCESS) return error;
  const std::optional<std::size_t> bytes = parameter_bytes_of(command);
  if (bytes)
    if (const CUresult error = wait_for_place(lock, stream, *bytes); error != CUDA_SUCCESS)
      return error;
  const CUresult submitted = submit_to_stream(stream, command);
  if (submitted == CUDA_SUCCESS && bytes) take_place(stream, *bytes);
  return submitted;
}

CUresult enqueue_batch(std::unique_lock<std::mutex>& lock, Stream& stream,
                       std::vector<Command> commands) {
  if (commands.empty()) return CUDA_SUCCESS;
  if (stream.capture != nullptr) {
    for (Command& command : commands)
      if (const CUresult error = capture_command(stream, std::move(command)); error != CUDA_SUCCESS)
        return error;
    return CUDA_SUCCESS;
  }
  if (const CUresult error = admit_to_stream(stream); error != CUDA_SUCCESS) return error;
  if (const CUresult error = wait_for_place(lock, stream, 0); error != CUDA_SUCCESS) return error;
  for (const Command& command : commands)
    if (const CUresult error = submit_to_stream(stream, command); error != CUDA_SUCCESS)
      return error;
  take_place(stream, 0);
  return CUDA_SUCCESS;
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
