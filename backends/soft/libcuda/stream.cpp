// SPDX-License-Identifier: Apache-2.0
//
// Streams: the application's, the two default streams, those of green contexts.

#include <algorithm>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/clock.h"
#include "backends/soft/libcuda/command.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/memory.h"

namespace vitamin::soft::driver {
namespace {

constexpr int kGreatestPriority = -5;

SyncClass sync_class(StreamClass kind) {
  switch (kind) {
    case StreamClass::kLegacy:
      return SyncClass::kLegacy;
    case StreamClass::kNonBlocking:
      return SyncClass::kNonBlocking;
    default:
      return SyncClass::kBlocking;
  }
}

CUresult per_thread_stream(Context& context, Stream** stream) {
  std::unique_ptr<Stream>& mine = context.per_thread[thread_state().serial];
  if (mine == nullptr) {
    if (const CUresult error =
            create_stream(context, StreamClass::kPerThread, CU_STREAM_DEFAULT, 0, &mine);
        error != CUDA_SUCCESS)
      return error;
    driver().forget(mine.get());  // reached by its number, never by its address
  }
  *stream = mine.get();
  return CUDA_SUCCESS;
}

CUresult publish(std::unique_ptr<Stream> stream, CUstream* handle) {
  *handle = reinterpret_cast<CUstream>(stream.release());
  return CUDA_SUCCESS;
}

CUresult create(CUstream* handle, unsigned flags, int priority) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (handle == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  std::unique_ptr<Stream> stream;
  const StreamClass kind =
      flags == CU_STREAM_NON_BLOCKING ? StreamClass::kNonBlocking : StreamClass::kBlocking;
  if (const CUresult error = create_stream(*context, kind, flags, priority, &stream);
      error != CUDA_SUCCESS)
    return error;
  return publish(std::move(stream), handle);
}

// Resolves a stream for a call that only looks at it.
template <class Look>
CUresult look_at(CUstream handle, Look look) {
  const std::lock_guard lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  return look(*stream);
}

bool is_stream_attribute(CUstreamAttrID attribute) {
  switch (attribute) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return true;
    default:
      return false;
  }
}

CUstreamAttrValue default_attribute(const Stream& stream, CUstreamAttrID attribute) {
  CUstreamAttrValue value{};
  if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY)
    value.syncPolicy = CU_SYNC_POLICY_AUTO;
  if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) value.priority = stream.priority;
  if (attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) value.memSyncDomainMap.remote = 1;
  return value;
}

}  // namespace

CUresult create_stream(Context& context, StreamClass kind, unsigned flags, int priority,
                       std::unique_ptr<Stream>* result) {
  Engine& engine = *context.device->engine;
  auto stream = std::make_unique<Stream>();
  stream->context = &context;
  stream->kind = kind;
  stream->id = driver().next_id++;
  stream->flags = flags;
  stream->priority = std::clamp(priority, kGreatestPriority, 0);
  QueueOptions options;
  options.sms = context.resource.sms;
  options.clusters = context.clusters;
  options.priority = stream->priority;
  options.sync = sync_class(kind);
  options.sync_group = context.sync_group;
  options.tag = stream->id;
  Queue* queue = nullptr;
  if (const CUresult error = result_of(engine.create_queue(options, &queue)); error != CUDA_SUCCESS)
    return error;
  stream->queue = QueueRef(queue, QueueDeleter{&engine});
  context.streams.insert(stream.get());
  driver().remember(stream.get(), Kind::kStream);
  *result = std::move(stream);
  return CUDA_SUCCESS;
}

CUresult legacy_stream(Context& context, Stream** stream) {
  if (context.legacy == nullptr) {
    if (const CUresult error =
            create_stream(context, StreamClass::kLegacy, CU_STREAM_DEFAULT, 0, &context.legacy);
        error != CUDA_SUCCESS)
      return error;
    driver().forget(context.legacy.get());
  }
  *stream = context.legacy.get();
  return CUDA_SUCCESS;
}

CUresult resolve_stream(CUstream handle, Stream** stream) {
  const bool per_thread =
      handle == CU_STREAM_PER_THREAD || (handle == nullptr && null_stream_is_per_thread());
  if (per_thread || handle == nullptr || handle == CU_STREAM_LEGACY) {
    Context* context = nullptr;
    if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
    return per_thread ? per_thread_stream(*context, stream) : legacy_stream(*context, stream);
  }
  Stream* found = driver().find<Stream>(handle, Kind::kStream);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!found->context->alive || found->queue == nullptr) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *stream = found;
  return sticky_error(*found->context);
}

CUresult api::cuStreamCreate(CUstream* handle, unsigned flags) { return create(handle, flags, 0); }

CUresult api::cuStreamCreateWithPriority(CUstream* handle, unsigned flags, int priority) {
  return create(handle, flags, priority);
}

CUresult api::cuGreenCtxStreamCreate(CUstream* handle, CUgreenCtx green_handle, unsigned flags,
                                     int priority) {
  const std::lock_guard lock(driver().mutex);
  const auto* green = driver().find<GreenContext>(green_handle, Kind::kGreenContext);
  if (green == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Context& context = *green->context;
  if (!context.alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (const CUresult error = sticky_error(context); error != CUDA_SUCCESS) return error;
  if (handle == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  std::unique_ptr<Stream> stream;
  if (const CUresult error =
          create_stream(context, StreamClass::kNonBlocking, flags, priority, &stream);
      error != CUDA_SUCCESS)
    return error;
  return publish(std::move(stream), handle);
}

// Returns at once: the queue is given back and what it holds is carried out.
CUresult api::cuStreamDestroy_v2(CUstream handle) {
  const std::lock_guard lock(driver().mutex);
  Stream* stream = driver().find<Stream>(handle, Kind::kStream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!stream->context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (stream->capture != nullptr) {
    (void)forbid_in_capture(stream);
    abandon_capture(*stream);
  }
  forget_pool_frees(*stream);
  const CUresult answer = sticky_error(*stream->context);
  stream->context->streams.erase(stream);
  driver().release(stream);
  return answer;
}

CUresult api::cuStreamQuery(CUstream handle) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (const CUresult error = forbid_in_capture(stream); error != CUDA_SUCCESS) return error;
  // A launch that waits for room holds the stream against those who ask about it.
  while (stream->waiting_for_room != 0) {
    driver().room.wait(lock);
    if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  }
  return result_of(stream_status(*stream));
}

CUresult api::cuStreamSynchronize(CUstream handle) {
  QueueRef queue;
  Device* device = nullptr;
  std::uint64_t work = 0;
  bool legacy = false;
  {
    const std::lock_guard lock(driver().mutex);
    Stream* stream = nullptr;
    if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
    if (const CUresult error = forbid_in_capture(stream); error != CUDA_SUCCESS) return error;
    queue = stream->queue;
    device = stream->context->device;
    work = stream->work_ticket;
    legacy = stream->kind == StreamClass::kLegacy;
  }
  Engine& engine = *device->engine;
  if (!legacy) {
    if (const CUresult error = wait_for_ticket(*device, queue, work); error != CUDA_SUCCESS)
      return error;
    const std::lock_guard lock(driver().mutex);
    Stream* stream = nullptr;
    // Records behind the last work fire with it, unless the legacy stream holds them.
    if (resolve_stream(handle, &stream) != CUDA_SUCCESS || stream_status(*stream) == kOk)
      return result_of(engine.fault());
  }
  if (engine.clock() == Clock::kReal) return result_of(engine.synchronize(queue.get()));
  return result_of(wait_until([&] { return engine.query(queue.get()); }));
}

// -------------------------------------------------------------------------------------- looking

CUresult api::cuStreamGetPriority(CUstream handle, int* priority) {
  return look_at(handle, [&](const Stream& stream) {
    if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream.priority;
    return CUDA_SUCCESS;
  });
}

CUresult api::cuStreamGetFlags(CUstream handle, unsigned* flags) {
  return look_at(handle, [&](const Stream& stream) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream.flags;
    return CUDA_SUCCESS;
  });
}

CUresult api::cuStreamGetId(CUstream handle, unsigned long long* id) {
  return look_at(handle, [&](const Stream& stream) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *id = stream.id;
    return CUDA_SUCCESS;
  });
}

CUresult api::cuStreamGetCtx(CUstream handle, CUcontext* context) {
  return look_at(handle, [&](const Stream& stream) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // For a stream of a green context: what cuCtxFromGreenCtx gives.
    *context = reinterpret_cast<CUcontext>(stream.context);
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12050
CUresult api::cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
  return look_at(handle, [&](const Stream& stream) {
    if (context == nullptr || green == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const bool is_green = stream.context->kind == ContextKind::kGreen;
    *context = reinterpret_cast<CUcontext>(stream.context->root);
    *green = is_green ? reinterpret_cast<CUgreenCtx>(stream.context->green) : nullptr;
    return CUDA_SUCCESS;
  });
}
#endif

CUresult api::cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
  return look_at(handle, [&](const Stream& stream) {
    if (green == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *green = reinterpret_cast<CUgreenCtx>(stream.context->green);
    return CUDA_SUCCESS;
  });
}

#if CUDA_VERSION >= 12080
CUresult api::cuStreamGetDevice(CUstream handle, CUdevice* device) {
  return look_at(handle, [&](const Stream& stream) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = stream.context->device->ordinal;
    return CUDA_SUCCESS;
  });
}
#endif

// ----------------------------------------------------------------------------------- attributes

CUresult api::cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                                   const CUstreamAttrValue* value) {
  return look_at(handle, [&](Stream& stream) {
    if (value == nullptr || !is_stream_attribute(attribute)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY)
      stream.priority = std::clamp(value->priority, kGreatestPriority, 0);
    stream.attributes[attribute] = *value;
    return CUDA_SUCCESS;
  });
}

CUresult api::cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute,
                                   CUstreamAttrValue* value) {
  return look_at(handle, [&](const Stream& stream) {
    if (value == nullptr || !is_stream_attribute(attribute)) return CUDA_ERROR_INVALID_VALUE;
    const auto found = stream.attributes.find(attribute);
    *value =
        found != stream.attributes.end() ? found->second : default_attribute(stream, attribute);
    return CUDA_SUCCESS;
  });
}

CUresult api::cuStreamCopyAttributes(CUstream target_handle, CUstream source_handle) {
  const std::lock_guard lock(driver().mutex);
  Stream* target = nullptr;
  Stream* source = nullptr;
  if (const CUresult error = resolve_stream(target_handle, &target); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = resolve_stream(source_handle, &source); error != CUDA_SUCCESS)
    return error;
  target->attributes = source->attributes;
  return CUDA_SUCCESS;
}

// --------------------------------------------------------------------------- host functions

CUresult api::cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(lock, *stream, HostCommand{function, data});
}

CUresult api::cuStreamAddCallback(CUstream handle, CUstreamCallback function, void* data,
                                  unsigned flags) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (function == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return enqueue(lock, *stream, CallbackCommand{function, handle, data});
}

// --------------------------------------------------------------------------- memory operations

namespace {

CUresult make_wait(CUdeviceptr address, std::uint64_t value, Width width, unsigned flags,
                   Command* command) {
  const unsigned alignment = width == Width::k32 ? 4 : 8;
  const unsigned comparison = flags & ~unsigned{CU_STREAM_WAIT_VALUE_FLUSH};
  if (address == 0 || address % alignment != 0 || comparison > CU_STREAM_WAIT_VALUE_NOR)
    return CUDA_ERROR_INVALID_VALUE;
  // Remote writes are not modelled, so there is nothing to flush; the device says so too.
  if ((flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (find_allocation(static_cast<std::uintptr_t>(address)) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  static constexpr Compare kComparisons[] = {Compare::kGreaterOrEqual, Compare::kEqual,
                                             Compare::kAnd, Compare::kNor};
  *command = ValueWaitCommand{reinterpret_cast<const void*>(address), value, width,
                              kComparisons[comparison]};
  return CUDA_SUCCESS;
}

CUresult make_write(CUdeviceptr address, std::uint64_t value, Width width, unsigned flags,
                    Command* command) {
  const unsigned alignment = width == Width::k32 ? 4 : 8;
  if (address == 0 || address % alignment != 0 ||
      (flags & ~unsigned{CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER}) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (find_allocation(static_cast<std::uintptr_t>(address)) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  *command = ValueWriteCommand{reinterpret_cast<void*>(address), value, width};
  return CUDA_SUCCESS;
}

template <class Make>
CUresult enqueue_one(CUstream handle, Make make) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  Command command;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (const CUresult error = make(&command); error != CUDA_SUCCESS) return error;
  return enqueue(lock, *stream, std::move(command));
}

CUresult make_batched(const CUstreamBatchMemOpParams& parameters, Command* command) {
  switch (parameters.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return make_wait(parameters.waitValue.address, parameters.waitValue.value, Width::k32,
                       parameters.waitValue.flags, command);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return make_wait(parameters.waitValue.address, parameters.waitValue.value64, Width::k64,
                       parameters.waitValue.flags, command);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return make_write(parameters.writeValue.address, parameters.writeValue.value, Width::k32,
                        parameters.writeValue.flags, command);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return make_write(parameters.writeValue.address, parameters.writeValue.value64, Width::k64,
                        parameters.writeValue.flags, command);
    case CU_STREAM_MEM_OP_BARRIER:
      *command = EmptyCommand{};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

CUresult api::cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                     unsigned flags) {
  return enqueue_one(stream, [&](Command* command) {
    return make_wait(address, value, Width::k32, flags, command);
  });
}

CUresult api::cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                     unsigned flags) {
  return enqueue_one(stream, [&](Command* command) {
    return make_wait(address, value, Width::k64, flags, command);
  });
}

CUresult api::cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                      unsigned flags) {
  return enqueue_one(stream, [&](Command* command) {
    return make_write(address, value, Width::k32, flags, command);
  });
}

CUresult api::cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                      unsigned flags) {
  return enqueue_one(stream, [&](Command* command) {
    return make_write(address, value, Width::k64, flags, command);
  });
}

CUresult api::cuStreamBatchMemOp_v2(CUstream handle, unsigned count,
                                    CUstreamBatchMemOpParams* parameters, unsigned flags) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (count >= 256 || (count != 0 && parameters == nullptr) || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  // All or nothing: a bad element must not leave its predecessors in the stream.
  std::vector<Command> commands(count);
  for (unsigned i = 0; i < count; ++i) {
    if (const CUresult error = make_batched(parameters[i], &commands[i]); error != CUDA_SUCCESS)
      return error;
  }
  return enqueue_batch(lock, *stream, std::move(commands));
}

}  // namespace vitamin::soft::driver
