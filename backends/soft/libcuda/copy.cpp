// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills, and when each lets the host go on (the driver API's "API synchronization
// behavior"):
//   from pageable memory   the source has been read when the call returns; a large one waits for
//                          its turn in the stream first: staging buffers are few
//   to pageable memory, host to host   the copy is done when the call returns
//   pinned, asynchronous   both sides are touched when the stream gets there
//   synchronous forms      done when the call returns; from pageable memory only staged, and from
//                          device to device not waited for

#include <algorithm>
#include <cstring>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/command.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/events.h"
#include "backends/soft/libcuda/memory.h"

namespace vitamin::soft::driver {
namespace {

// Up to this size a pageable source is staged at once, whatever is ahead in the stream.
constexpr std::size_t kStagedAtOnce = 64 * 1024;

enum class Form : std::uint8_t { kAsync, kSync };

template <class Pointer>
unsigned char* bytes_at(Pointer pointer) {
  return reinterpret_cast<unsigned char*>(
      const_cast<void*>(reinterpret_cast<const void*>(pointer)));
}

CopyCommand linear(const unsigned char* target, const unsigned char* source, std::size_t bytes) {
  CopyCommand copy;
  copy.target = const_cast<unsigned char*>(target);
  copy.source = source;
  copy.width = bytes;
  return copy;
}

// Reads the source now, packed row by row.
void stage(CopyCommand& copy) {
  auto bytes = std::make_shared<std::vector<unsigned char>>(copy.bytes());
  CopyCommand packing = copy;
  packing.target = bytes->data();
  packing.target_pitch = copy.width;
  packing.target_slice = copy.width * copy.height;
  perform(packing);
  copy.source = bytes->data();
  copy.source_pitch = packing.target_pitch;
  copy.source_slice = packing.target_slice;
  copy.staged = std::move(bytes);
}

// Waits, without the mutex, for everything that is in the stream now.
CUresult drain(std::unique_lock<std::mutex>& lock, const Stream& stream) {
  const QueueRef queue = stream.queue;
  Device& device = *stream.context->device;
  const std::uint64_t last = device.engine->last_ticket(queue.get());
  lock.unlock();
  const CUresult waited = wait_for_ticket(device, queue, last);
  lock.lock();
  return waited;
}

// On the legacy stream the turn of an operation comes after other streams' work too, which a
// ticket of its own says.
CUresult await_turn(std::unique_lock<std::mutex>& lock, Stream& stream) {
  if (const CUresult error = enqueue(lock, stream, EmptyCommand{}); error != CUDA_SUCCESS)
    return error;
  return drain(lock, stream);
}

CUresult enqueue_and_drain(std::unique_lock<std::mutex>& lock, Stream& stream, CopyCommand copy) {
  if (const CUresult error = enqueue(lock, stream, std::move(copy)); error != CUDA_SUCCESS)
    return error;
  return drain(lock, stream);
}

CUresult copy_outside_capture(std::unique_lock<std::mutex>& lock, Stream& stream, Form form,
                              CopyCommand copy) {
  const Place from = place_of(copy.source);
  const Place to = place_of(copy.target);
  if (from != Place::kDevice && to != Place::kDevice)
    return enqueue_and_drain(lock, stream, std::move(copy));
  if (to == Place::kPageable) return enqueue_and_drain(lock, stream, std::move(copy));
  if (from == Place::kPageable) {
    if (form == Form::kSync || copy.bytes() > kStagedAtOnce) {
      if (const CUresult error = await_turn(lock, stream); error != CUDA_SUCCESS) return error;
    }
    stage(copy);
    return enqueue(lock, stream, std::move(copy));
  }
  const bool waits = form == Form::kSync && (from != Place::kDevice || to != Place::kDevice);
  return waits ? enqueue_and_drain(lock, stream, std::move(copy))
               : enqueue(lock, stream, std::move(copy));
}

CUresult check_peer(CUcontext handle) {
  const std::lock_guard lock(driver().mutex);
  const Context* context = driver().find<Context>(handle, Kind::kContext);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// The legacy streams of the contexts whose memory a copy touches, but for its own.
CUresult other_legacy_streams(const Stream& stream, const CopyCommand& copy,
                              std::vector<Stream*>* others) {
  for (const unsigned char* side : {static_cast<const unsigned char*>(copy.target), copy.source}) {
    const MemoryAllocation* allocation = find_allocation(reinterpret_cast<std::uintptr_t>(side));
    if (allocation == nullptr || place_of(side) != Place::kDevice) continue;
    if (allocation->context->root == stream.context->root) continue;
    Stream* legacy = nullptr;
    if (const CUresult error = legacy_stream(*allocation->context->root, &legacy);
        error != CUDA_SUCCESS)
      return error;
    others->push_back(legacy);
  }
  return CUDA_SUCCESS;
}

// A copy on the legacy stream between two contexts is, as measured, an operation of both legacy
// streams: behind their blocking streams, before what follows there, with a place in each.
CUresult copy_on_stream(std::unique_lock<std::mutex>& lock, Stream& stream, Form form,
                        CopyCommand copy) {
  std::vector<Stream*> others;
  CUresult error = stream.kind == StreamClass::kLegacy ? other_legacy_streams(stream, copy, &others)
                                                       : CUDA_SUCCESS;
  for (Stream* other : others) {
    if (error == CUDA_SUCCESS) error = wait_for_place(lock, *other, 0);
    if (error == CUDA_SUCCESS) error = enqueue(lock, *other, EmptyCommand{});
    if (error == CUDA_SUCCESS) error = come_behind(stream, *other);
  }
  if (error == CUDA_SUCCESS) error = copy_outside_capture(lock, stream, form, std::move(copy));
  for (Stream* other : others) {
    if (error == CUDA_SUCCESS) error = come_behind(*other, stream);
    if (error == CUDA_SUCCESS) error = enqueue(lock, *other, EmptyCommand{});
    if (error == CUDA_SUCCESS) take_place(*other, 0);
  }
  return error;
}

CUresult run_copy(Form form, CUstream handle, CopyCommand copy) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (copy.bytes() == 0) return CUDA_SUCCESS;
  if (copy.target == nullptr || copy.source == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (form == Form::kSync) {
    if (const CUresult error = forbid_on_stream(*stream); error != CUDA_SUCCESS) return error;
  } else if (stream->capture != nullptr) {
    return enqueue(lock, *stream, std::move(copy));
  }
  return copy_on_stream(lock, *stream, form, std::move(copy));
}

// Checks of the HtoD, DtoH and DtoD forms: a device pointer must be one.
bool known(const unsigned char* address, std::size_t bytes) {
  const std::lock_guard lock(driver().mutex);
  return bytes == 0 || inside_allocation(address, bytes);
}

CUresult host_to_device(Form form, CUdeviceptr target, const void* source, std::size_t bytes,
                        CUstream stream) {
  if (!known(bytes_at(target), bytes)) return CUDA_ERROR_INVALID_VALUE;
  return run_copy(form, stream, linear(bytes_at(target), bytes_at(source), bytes));
}

CUresult device_to_host(Form form, void* target, CUdeviceptr source, std::size_t bytes,
                        CUstream stream) {
  if (!known(bytes_at(source), bytes)) return CUDA_ERROR_INVALID_VALUE;
  return run_copy(form, stream, linear(bytes_at(target), bytes_at(source), bytes));
}

CUresult device_to_device(Form form, CUdeviceptr target, CUdeviceptr source, std::size_t bytes,
                          CUstream stream) {
  if (!known(bytes_at(target), bytes) || !known(bytes_at(source), bytes))
    return CUDA_ERROR_INVALID_VALUE;
  return run_copy(form, stream, linear(bytes_at(target), bytes_at(source), bytes));
}

CUresult any_to_any(Form form, CUdeviceptr target, CUdeviceptr source, std::size_t bytes,
                    CUstream stream) {
  return run_copy(form, stream, linear(bytes_at(target), bytes_at(source), bytes));
}

// ---------------------------------------------------------------------------- boxes (2D and 3D)

// One side of a box: where its first byte is and how its rows and layers lie.
struct Side {
  unsigned char* base = nullptr;
  std::size_t pitch = 0, height = 0;
};

// Reads an array's object: the caller holds the mutex. A pitch of zero means rows without gaps.
CUresult make_side(CUmemorytype type, const void* host, CUdeviceptr device, CUarray array_handle,
                   std::size_t pitch, std::size_t height, std::size_t width, Side* side) {
  if (type == CU_MEMORYTYPE_ARRAY) {
    const Array* array = driver().find<Array>(array_handle, Kind::kArray);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *side = Side{array->data, array->row_bytes, array->rows};
    return CUDA_SUCCESS;
  }
  if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
    return CUDA_ERROR_INVALID_VALUE;
  *side = Side{type == CU_MEMORYTYPE_HOST ? bytes_at(host) : bytes_at(device),
               pitch != 0 ? pitch : width, height};
  return side->base == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// CUDA_MEMCPY2D, CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER name their members alike.
template <class Box>
CUresult box_command(const Box& box, std::size_t depth, std::size_t source_height,
                     std::size_t target_height, std::size_t source_z, std::size_t target_z,
                     CopyCommand* copy) {
  Side source, target;
  CUresult error = make_side(box.srcMemoryType, box.srcHost, box.srcDevice, box.srcArray,
                             box.srcPitch, source_height, box.WidthInBytes, &source);
  if (error == CUDA_SUCCESS)
    error = make_side(box.dstMemoryType, box.dstHost, box.dstDevice, box.dstArray, box.dstPitch,
                      target_height, box.WidthInBytes, &target);
  if (error != CUDA_SUCCESS) return error;
  if (source.pitch < box.WidthInBytes + box.srcXInBytes ||
      target.pitch < box.WidthInBytes + box.dstXInBytes)
    return CUDA_ERROR_INVALID_VALUE;
  copy->width = box.WidthInBytes;
  copy->height = box.Height;
  copy->depth = depth;
  copy->source_pitch = source.pitch;
  copy->target_pitch = target.pitch;
  copy->source_slice = source.pitch * (source.height != 0 ? source.height : box.Height);
  copy->target_slice = target.pitch * (target.height != 0 ? target.height : box.Height);
  copy->source =
      source.base + source_z * copy->source_slice + box.srcY * source.pitch + box.srcXInBytes;
  copy->target =
      target.base + target_z * copy->target_slice + box.dstY * target.pitch + box.dstXInBytes;
  return CUDA_SUCCESS;
}

CUresult run_2d(Form form, const CUDA_MEMCPY2D* box, CUstream stream) {
  if (box == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CopyCommand copy;
  {
    const std::lock_guard lock(driver().mutex);
    if (const CUresult error = box_command(*box, 1, 0, 0, 0, 0, &copy); error != CUDA_SUCCESS)
      return error;
  }
  return run_copy(form, stream, std::move(copy));
}

template <class Box>
CUresult run_3d(Form form, const Box* box, CUstream stream) {
  if (box == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CopyCommand copy;
  {
    const std::lock_guard lock(driver().mutex);
    if (const CUresult error = box_command(*box, box->Depth, box->srcHeight, box->dstHeight,
                                           box->srcZ, box->dstZ, &copy);
        error != CUDA_SUCCESS)
      return error;
  }
  return run_copy(form, stream, std::move(copy));
}

// The bytes of an array from an offset on, as the linear forms see them.
CUresult array_bytes(CUarray handle, std::size_t offset, std::size_t bytes,
                     unsigned char** address) {
  const std::lock_guard lock(driver().mutex);
  const Array* array = driver().find<Array>(handle, Kind::kArray);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *address = array->data + offset;
  return inside_allocation(*address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult to_array(Form form, CUarray array, std::size_t offset, const unsigned char* source,
                  std::size_t bytes, CUstream stream) {
  unsigned char* target = nullptr;
  if (const CUresult error = array_bytes(array, offset, bytes, &target); error != CUDA_SUCCESS)
    return error;
  return run_copy(form, stream, linear(target, source, bytes));
}

CUresult from_array(Form form, unsigned char* target, CUarray array, std::size_t offset,
                    std::size_t bytes, CUstream stream) {
  unsigned char* source = nullptr;
  if (const CUresult error = array_bytes(array, offset, bytes, &source); error != CUDA_SUCCESS)
    return error;
  return run_copy(form, stream, linear(target, source, bytes));
}

}  // namespace

CUresult copy_from_box(const CUDA_MEMCPY3D& box, CopyCommand* copy) {
  return box_command(box, box.Depth, box.srcHeight, box.dstHeight, box.srcZ, box.dstZ, copy);
}

// ---------------------------------------------------------------------------------- linear forms

CUresult api::cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return any_to_any(Form::kSync, target, source, bytes, nullptr);
}
CUresult api::cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return any_to_any(Form::kAsync, target, source, bytes, stream);
}
CUresult api::cuMemcpyHtoD_v2(CUdeviceptr target, const void* source, size_t bytes) {
  return host_to_device(Form::kSync, target, source, bytes, nullptr);
}
CUresult api::cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void* source, size_t bytes,
                                   CUstream stream) {
  return host_to_device(Form::kAsync, target, source, bytes, stream);
}
CUresult api::cuMemcpyDtoH_v2(void* target, CUdeviceptr source, size_t bytes) {
  return device_to_host(Form::kSync, target, source, bytes, nullptr);
}
CUresult api::cuMemcpyDtoHAsync_v2(void* target, CUdeviceptr source, size_t bytes,
                                   CUstream stream) {
  return device_to_host(Form::kAsync, target, source, bytes, stream);
}
CUresult api::cuMemcpyDtoD_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return device_to_device(Form::kSync, target, source, bytes, nullptr);
}
CUresult api::cuMemcpyDtoDAsync_v2(CUdeviceptr target, CUdeviceptr source, size_t bytes,
                                   CUstream stream) {
  return device_to_device(Form::kAsync, target, source, bytes, stream);
}
CUresult api::cuMemcpyPeer(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                           CUcontext source_context, size_t bytes) {
  for (CUcontext context : {target_context, source_context})
    if (const CUresult error = check_peer(context); error != CUDA_SUCCESS) return error;
  return device_to_device(Form::kSync, target, source, bytes, nullptr);
}
CUresult api::cuMemcpyPeerAsync(CUdeviceptr target, CUcontext target_context, CUdeviceptr source,
                                CUcontext source_context, size_t bytes, CUstream stream) {
  for (CUcontext context : {target_context, source_context})
    if (const CUresult error = check_peer(context); error != CUDA_SUCCESS) return error;
  return device_to_device(Form::kAsync, target, source, bytes, stream);
}

CUresult api::cuMemcpy2D_v2(const CUDA_MEMCPY2D* box) { return run_2d(Form::kSync, box, nullptr); }
CUresult api::cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* box) {
  return run_2d(Form::kSync, box, nullptr);
}
CUresult api::cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* box, CUstream stream) {
  return run_2d(Form::kAsync, box, stream);
}
CUresult api::cuMemcpy3D_v2(const CUDA_MEMCPY3D* box) { return run_3d(Form::kSync, box, nullptr); }
CUresult api::cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* box, CUstream stream) {
  return run_3d(Form::kAsync, box, stream);
}
CUresult api::cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* box) {
  return run_3d(Form::kSync, box, nullptr);
}
CUresult api::cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* box, CUstream stream) {
  return run_3d(Form::kAsync, box, stream);
}

// ---------------------------------------------------------------------------------------- arrays

CUresult api::cuMemcpyHtoA_v2(CUarray array, size_t offset, const void* source, size_t bytes) {
  return to_array(Form::kSync, array, offset, bytes_at(source), bytes, nullptr);
}
CUresult api::cuMemcpyHtoAAsync_v2(CUarray array, size_t offset, const void* source, size_t bytes,
                                   CUstream stream) {
  return to_array(Form::kAsync, array, offset, bytes_at(source), bytes, stream);
}
CUresult api::cuMemcpyDtoA_v2(CUarray array, size_t offset, CUdeviceptr source, size_t bytes) {
  if (!known(bytes_at(source), bytes)) return CUDA_ERROR_INVALID_VALUE;
  return to_array(Form::kSync, array, offset, bytes_at(source), bytes, nullptr);
}
CUresult api::cuMemcpyAtoH_v2(void* target, CUarray array, size_t offset, size_t bytes) {
  return from_array(Form::kSync, bytes_at(target), array, offset, bytes, nullptr);
}
CUresult api::cuMemcpyAtoHAsync_v2(void* target, CUarray array, size_t offset, size_t bytes,
                                   CUstream stream) {
  return from_array(Form::kAsync, bytes_at(target), array, offset, bytes, stream);
}
CUresult api::cuMemcpyAtoD_v2(CUdeviceptr target, CUarray array, size_t offset, size_t bytes) {
  if (!known(bytes_at(target), bytes)) return CUDA_ERROR_INVALID_VALUE;
  return from_array(Form::kSync, bytes_at(target), array, offset, bytes, nullptr);
}
CUresult api::cuMemcpyAtoA_v2(CUarray target, size_t target_offset, CUarray source,
                              size_t source_offset, size_t bytes) {
  unsigned char* from = nullptr;
  if (const CUresult error = array_bytes(source, source_offset, bytes, &from);
      error != CUDA_SUCCESS)
    return error;
  return to_array(Form::kSync, target, target_offset, from, bytes, nullptr);
}

// --------------------------------------------------------------------------------------- batches

#if CUDA_VERSION >= 12080
namespace {

// When a batched copy reads a source on the host, as measured: in stream order from pinned memory,
// and from pageable memory after having waited for its turn. During the call, when that is asked
// for: small pageable sources are staged, pinned ones waited for. The call never waits for a large
// pageable source.
CUresult batched_copy(std::unique_lock<std::mutex>& lock, Stream& stream, CopyCommand copy,
                      CUmemcpySrcAccessOrder order) {
  if (copy.bytes() == 0) return CUDA_SUCCESS;
  if (order == CU_MEMCPY_SRC_ACCESS_ORDER_INVALID || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY)
    return CUDA_ERROR_INVALID_VALUE;
  const Place from = place_of(copy.source);
  if (from == Place::kPageable) {
    if (order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM) {
      if (const CUresult error = await_turn(lock, stream); error != CUDA_SUCCESS) return error;
      stage(copy);
    } else if (copy.bytes() <= kStagedAtOnce) {
      stage(copy);
    }
  }
  if (from == Place::kPinned && order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)
    return enqueue_and_drain(lock, stream, std::move(copy));
  return enqueue(lock, stream, std::move(copy));
}

CUresult resolve_batch_stream(CUstream handle, Stream** stream) {
  // "hStream must not be legacy NULL stream."
  if (handle == CU_STREAM_LEGACY || (handle == nullptr && !null_stream_is_per_thread()))
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = resolve_stream(handle, stream); error != CUDA_SUCCESS) return error;
  return (*stream)->capture != nullptr ? refuse_in_capture(**stream) : CUDA_SUCCESS;
}

CUresult run_batch(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes, size_t count,
                   CUmemcpyAttributes* attributes, size_t* first_of_attribute,
                   size_t attribute_count, size_t* failed, CUstream handle) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (failed != nullptr) *failed = SIZE_MAX;
  if (const CUresult error = resolve_batch_stream(handle, &stream); error != CUDA_SUCCESS)
    return error;
  if (count == 0 || targets == nullptr || sources == nullptr || sizes == nullptr ||
      attributes == nullptr || first_of_attribute == nullptr || attribute_count == 0 ||
      attribute_count > count || first_of_attribute[0] != 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::size_t attribute = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (attribute + 1 < attribute_count && first_of_attribute[attribute + 1] == i) ++attribute;
    const CUresult error =
        batched_copy(lock, *stream, linear(bytes_at(targets[i]), bytes_at(sources[i]), sizes[i]),
                     attributes[attribute].srcAccessOrder);
    if (error == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return error;
  }
  return CUDA_SUCCESS;
}

CUresult operand_of(const CUmemcpy3DOperand& operand, const CUextent3D& extent,
                    unsigned char** base, std::size_t* pitch, std::size_t* slice) {
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_NOT_SUPPORTED;
  *base = bytes_at(operand.op.ptr.ptr);
  *pitch = operand.op.ptr.rowLength != 0 ? operand.op.ptr.rowLength : extent.width;
  *slice = *pitch * (operand.op.ptr.layerHeight != 0 ? operand.op.ptr.layerHeight : extent.height);
  return CUDA_SUCCESS;
}

CUresult run_3d_batch(size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, size_t* failed,
                      unsigned long long flags, CUstream handle) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (failed != nullptr) *failed = SIZE_MAX;
  if (const CUresult error = resolve_batch_stream(handle, &stream); error != CUDA_SUCCESS)
    return error;
  if (count == 0 || operations == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const CUDA_MEMCPY3D_BATCH_OP& operation = operations[i];
    CopyCommand copy;
    unsigned char* source = nullptr;
    CUresult error = operand_of(operation.src, operation.extent, &source, &copy.source_pitch,
                                &copy.source_slice);
    if (error == CUDA_SUCCESS)
      error = operand_of(operation.dst, operation.extent, &copy.target, &copy.target_pitch,
                         &copy.target_slice);
    copy.source = source;
    copy.width = operation.extent.width;
    copy.height = operation.extent.height;
    copy.depth = operation.extent.depth;
    if (error == CUDA_SUCCESS)
      error = batched_copy(lock, *stream, std::move(copy), operation.srcAccessOrder);
    if (error == CUDA_SUCCESS) continue;
    if (failed != nullptr) *failed = i;
    return error;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult api::cuMemcpyBatchAsync(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes,
                                 size_t count, CUmemcpyAttributes* attributes,
                                 size_t* first_of_attribute, size_t attribute_count, size_t* failed,
                                 CUstream stream) {
  return run_batch(targets, sources, sizes, count, attributes, first_of_attribute, attribute_count,
                   failed, stream);
}

CUresult api::cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP* operations, size_t* failed,
                                   unsigned long long flags, CUstream stream) {
  return run_3d_batch(count, operations, failed, flags, stream);
}
#endif

#if CUDA_VERSION >= 13000
CUresult api::cuMemcpyBatchAsync_v2(CUdeviceptr* targets, CUdeviceptr* sources, size_t* sizes,
                                    size_t count, CUmemcpyAttributes* attributes,
                                    size_t* first_of_attribute, size_t attribute_count,
                                    CUstream stream) {
  return run_batch(targets, sources, sizes, count, attributes, first_of_attribute, attribute_count,
                   nullptr, stream);
}

CUresult api::cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* operations,
                                      unsigned long long flags, CUstream stream) {
  return run_3d_batch(count, operations, nullptr, flags, stream);
}
#endif

// ----------------------------------------------------------------------------------------- fills

namespace {

CUresult run_fill(Form form, CUstream handle, CUdeviceptr target, std::size_t pitch,
                  std::uint32_t value, std::uint32_t element, std::size_t width,
                  std::size_t height) {
  std::unique_lock lock(driver().mutex);
  Stream* stream = nullptr;
  if (const CUresult error = resolve_stream(handle, &stream); error != CUDA_SUCCESS) return error;
  if (width == 0 || height == 0) return CUDA_SUCCESS;
  const std::size_t row = width * element;
  if (target % element != 0 || (height > 1 && (pitch < row || pitch % element != 0)))
    return CUDA_ERROR_INVALID_VALUE;
  if (!inside_allocation(bytes_at(target), (height - 1) * pitch + row))
    return CUDA_ERROR_INVALID_VALUE;
  if (form == Form::kSync) {
    if (const CUresult error = forbid_on_stream(*stream); error != CUDA_SUCCESS) return error;
  }
  const bool pinned = place_of(bytes_at(target)) == Place::kPinned;
  if (const CUresult error = enqueue(
          lock, *stream, FillCommand{bytes_at(target), pitch, value, element, width, height});
      error != CUDA_SUCCESS)
    return error;
  // The synchronous forms are asynchronous to the host, except on pinned memory.
  return form == Form::kSync && pinned ? drain(lock, *stream) : CUDA_SUCCESS;
}

}  // namespace

CUresult api::cuMemsetD8_v2(CUdeviceptr target, unsigned char value, size_t count) {
  return run_fill(Form::kSync, nullptr, target, 0, value, 1, count, 1);
}
CUresult api::cuMemsetD16_v2(CUdeviceptr target, unsigned short value, size_t count) {
  return run_fill(Form::kSync, nullptr, target, 0, value, 2, count, 1);
}
CUresult api::cuMemsetD32_v2(CUdeviceptr target, unsigned value, size_t count) {
  return run_fill(Form::kSync, nullptr, target, 0, value, 4, count, 1);
}
CUresult api::cuMemsetD2D8_v2(CUdeviceptr target, size_t pitch, unsigned char value, size_t width,
                              size_t height) {
  return run_fill(Form::kSync, nullptr, target, pitch, value, 1, width, height);
}
CUresult api::cuMemsetD2D16_v2(CUdeviceptr target, size_t pitch, unsigned short value, size_t width,
                               size_t height) {
  return run_fill(Form::kSync, nullptr, target, pitch, value, 2, width, height);
}
CUresult api::cuMemsetD2D32_v2(CUdeviceptr target, size_t pitch, unsigned value, size_t width,
                               size_t height) {
  return run_fill(Form::kSync, nullptr, target, pitch, value, 4, width, height);
}
CUresult api::cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count,
                              CUstream stream) {
  return run_fill(Form::kAsync, stream, target, 0, value, 1, count, 1);
}
CUresult api::cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count,
                               CUstream stream) {
  return run_fill(Form::kAsync, stream, target, 0, value, 2, count, 1);
}
CUresult api::cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
  return run_fill(Form::kAsync, stream, target, 0, value, 4, count, 1);
}
CUresult api::cuMemsetD2D8Async(CUdeviceptr target, size_t pitch, unsigned char value, size_t width,
                                size_t height, CUstream stream) {
  return run_fill(Form::kAsync, stream, target, pitch, value, 1, width, height);
}
CUresult api::cuMemsetD2D16Async(CUdeviceptr target, size_t pitch, unsigned short value,
                                 size_t width, size_t height, CUstream stream) {
  return run_fill(Form::kAsync, stream, target, pitch, value, 2, width, height);
}
CUresult api::cuMemsetD2D32Async(CUdeviceptr target, size_t pitch, unsigned value, size_t width,
                                 size_t height, CUstream stream) {
  return run_fill(Form::kAsync, stream, target, pitch, value, 4, width, height);
}

}  // namespace vitamin::soft::driver
