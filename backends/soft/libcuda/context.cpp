// SPDX-License-Identifier: Apache-2.0
//
// Contexts: primary, created, and those of green contexts; the stack of each thread; limits.

#include <algorithm>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/events.h"
#include "backends/soft/libcuda/green.h"
#include "backends/soft/libcuda/memory.h"
#include "backends/soft/libcuda/modules.h"

namespace vitamin::soft::driver {
namespace {

constexpr unsigned kContextFlags = CU_CTX_FLAGS_MASK;
constexpr int kGreatestPriority = -5;

ContextSettings default_settings() {
  ContextSettings settings;
  settings.limits[CU_LIMIT_STACK_SIZE] = 1024;
  settings.limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 7 << 20;
  settings.limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
  settings.limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  settings.limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  settings.limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
  return settings;
}

CUcontext handle_of(Context* context) { return reinterpret_cast<CUcontext>(context); }

// Frees everything that belongs to a context and nothing that may be asked about later. The caller
// holds the mutex and has waited for the context's work.
void empty_context(Context& context) {
  for (Stream* stream : context.streams) {
    stream->queue.reset();
    if (stream->capture != nullptr) abandon_capture(*stream);
    stream->capture.reset();
  }
  context.streams.clear();
  context.per_thread.clear();
  context.legacy.reset();
  context.captures.clear();
  if (context.kind == ContextKind::kGreen) return;
  for (Context* child : context.children) {
    empty_context(*child);
    bury_green_context(*child);
  }
  context.children.clear();
  context.peers.clear();
  free_context_memory(context);
  unload_context_modules(context);
}

void drop_from_this_thread(Context& context) {
  auto& stack = thread_state().contexts;
  if (!stack.empty() && stack.back() == &context) stack.pop_back();
}

CUresult create_regular(CUcontext* handle, unsigned flags, CUdevice ordinal) {
  Driver& self = driver();
  const std::lock_guard lock(self.mutex);
  Device* device = self.device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (handle == nullptr || (flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  Context& context = make_context(*device, ContextKind::kRegular, flags);
  thread_state().contexts.push_back(&context);
  *handle = handle_of(&context);
  return CUDA_SUCCESS;
}

// Waits for a context's work, then empties it. A faulted context is emptied all the same.
void drain_and_empty(Context& context) {
  std::vector<std::uint32_t> groups;
  {
    const std::lock_guard lock(driver().mutex);
    groups = context.kind == ContextKind::kGreen ? std::vector{context.sync_group}
                                                 : family_groups(context);
  }
  (void)wait_for_groups(*context.device, groups);
  const std::lock_guard lock(driver().mutex);
  empty_context(context);
}

CUresult synchronize(CUcontext handle) {
  Device* device = nullptr;
  std::vector<std::uint32_t> groups;
  {
    const std::lock_guard lock(driver().mutex);
    Context* context = nullptr;
    if (const CUresult error = resolve_context(handle, &context); error != CUDA_SUCCESS)
      return error;
    if (const CUresult error = forbid_while_capturing(*context); error != CUDA_SUCCESS)
      return error;
    device = context->device;
    groups = context->kind == ContextKind::kGreen ? std::vector{context->sync_group}
                                                  : family_groups(*context);
  }
  return wait_for_groups(*device, groups);
}

}  // namespace

void bury_green_context(Context& context) {
  context.alive = false;
  context.resource = {};
  context.clusters.reset();
  driver().buried.push_back(&context);
}

namespace {

constexpr std::size_t kRemembered = 256;

// One that was destroyed long ago and has no streams, or a new one.
Context& unused_context(ContextKind kind) {
  Driver& self = driver();
  if (kind == ContextKind::kGreen && self.buried.size() > kRemembered &&
      self.buried.front()->streams.empty()) {
    Context& again = *self.buried.front();
    self.buried.pop_front();
    self.release(again.green);
    const std::uint32_t group = again.sync_group;
    again = {};
    again.sync_group = group;
    return again;
  }
  auto made = std::make_unique<Context>();
  Context& context = *made;
  context.sync_group = self.next_sync_group++;
  self.remember(&context, Kind::kContext);
  self.contexts.push_back(std::move(made));
  return context;
}

}  // namespace

Context& make_context(Device& device, ContextKind kind, unsigned flags) {
  Driver& self = driver();
  Context& context = unused_context(kind);
  context.device = &device;
  context.kind = kind;
  context.root = &context;
  context.alive = true;
  context.flags = flags;
  context.api_version = kind == ContextKind::kRegular ? 3020 : 13000;
  context.id = self.next_id++;
  context.settings = default_settings();
  context.resource = whole_device(device);
  return context;
}

CUresult retain_primary(Device& device) {
  if (device.primary == nullptr) {
    device.primary = &make_context(device, ContextKind::kPrimary, device.primary_flags);
  } else if (!device.primary->alive) {
    device.primary->alive = true;
    device.primary->flags = device.primary_flags;
    device.primary->settings = default_settings();
  }
  ++device.primary_retained;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------ primary contexts

CUresult api::cuDevicePrimaryCtxRetain(CUcontext* handle, CUdevice ordinal) {
  const std::lock_guard lock(driver().mutex);
  Device* device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = retain_primary(*device); error != CUDA_SUCCESS) return error;
  *handle = handle_of(device->primary);
  return CUDA_SUCCESS;
}

CUresult api::cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  Device* device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  {
    const std::lock_guard lock(driver().mutex);
    if (device->primary_retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (device->primary_retained > 1) {
      --device->primary_retained;
      return CUDA_SUCCESS;
    }
  }
  drain_and_empty(*device->primary);
  const std::lock_guard lock(driver().mutex);
  if (--device->primary_retained == 0) device->primary->alive = false;
  return CUDA_SUCCESS;
}

CUresult api::cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  Device* device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  {
    const std::lock_guard lock(driver().mutex);
    if (device->primary == nullptr || !device->primary->alive) return CUDA_SUCCESS;
  }
  drain_and_empty(*device->primary);
  device->engine->clear_fault();
  const std::lock_guard lock(driver().mutex);
  device->primary->settings = default_settings();
  return CUDA_SUCCESS;
}

CUresult api::cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) {
  const std::lock_guard lock(driver().mutex);
  const Device* device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = device->primary_flags;
  *active = device->primary != nullptr && device->primary->alive ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult api::cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Device* device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if ((flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  device->primary_flags = flags;
  if (device->primary != nullptr && device->primary->alive) device->primary->flags = flags;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------ created contexts

CUresult api::cuCtxCreate_v2(CUcontext* handle, unsigned flags, CUdevice ordinal) {
  return create_regular(handle, flags, ordinal);
}

CUresult api::cuCtxCreate_v3(CUcontext* handle, CUexecAffinityParam*, int parameters,
                             unsigned flags, CUdevice ordinal) {
  // Execution affinity needs MPS, which this device does not have.
  if (parameters != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return create_regular(handle, flags, ordinal);
}

#if CUDA_VERSION >= 12050
CUresult api::cuCtxCreate_v4(CUcontext* handle, CUctxCreateParams* parameters, unsigned flags,
                             CUdevice ordinal) {
  if (parameters != nullptr &&
      (parameters->numExecAffinityParams != 0 || parameters->cigParams != nullptr))
    return CUDA_ERROR_NOT_SUPPORTED;
  return create_regular(handle, flags, ordinal);
}
#endif

CUresult api::cuCtxDestroy_v2(CUcontext handle) {
  Context* context;
  {
    const std::lock_guard lock(driver().mutex);
    context = driver().find<Context>(handle, Kind::kContext);
    if (context == nullptr || context->kind != ContextKind::kRegular)
      return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  // Measured: it waits for streams of the primary context, too.
  std::vector<std::uint32_t> groups;
  {
    const std::lock_guard lock(driver().mutex);
    const Context* primary = context->device->primary;
    if (primary != nullptr && primary->alive) groups = family_groups(*primary);
  }
  (void)wait_for_groups(*context->device, groups);
  drain_and_empty(*context);
  const std::lock_guard lock(driver().mutex);
  context->alive = false;
  drop_from_this_thread(*context);
  return CUDA_SUCCESS;
}

// --------------------------------------------------------------------------- the thread's stack

CUresult api::cuCtxSetCurrent(CUcontext handle) {
  const std::lock_guard lock(driver().mutex);
  auto& stack = thread_state().contexts;
  if (handle == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  Context* context = driver().find<Context>(handle, Kind::kContext);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (stack.empty()) {
    stack.push_back(context);
  } else {
    stack.back() = context;
  }
  return CUDA_SUCCESS;
}

CUresult api::cuCtxPushCurrent_v2(CUcontext handle) {
  const std::lock_guard lock(driver().mutex);
  Context* context = driver().find<Context>(handle, Kind::kContext);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  thread_state().contexts.push_back(context);
  return CUDA_SUCCESS;
}

CUresult api::cuCtxPopCurrent_v2(CUcontext* handle) {
  const std::lock_guard lock(driver().mutex);
  auto& stack = thread_state().contexts;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = handle_of(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetCurrent(CUcontext* handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& stack = thread_state().contexts;
  *handle = stack.empty() ? nullptr : handle_of(stack.back());
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetDevice(CUdevice* ordinal) {
  if (ordinal == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto& stack = thread_state().contexts;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *ordinal = stack.back()->device->ordinal;
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
CUresult api::cuCtxGetDevice_v2(CUdevice* ordinal, CUcontext handle) {
  if (handle == nullptr) return cuCtxGetDevice(ordinal);
  const std::lock_guard lock(driver().mutex);
  const Context* context = driver().find<Context>(handle, Kind::kContext);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (ordinal == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *ordinal = context->device->ordinal;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxSynchronize_v2(CUcontext handle) { return synchronize(handle); }
#endif

CUresult api::cuCtxSynchronize() { return synchronize(nullptr); }

// ------------------------------------------------------------------------------------ properties

CUresult api::cuCtxGetId(CUcontext handle, unsigned long long* id) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = resolve_context(handle, &context); error != CUDA_SUCCESS) return error;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = resolve_context(handle, &context); error != CUDA_SUCCESS) return error;
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = context->api_version;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetFlags(unsigned* flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *flags = context->flags;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxSetFlags(unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if ((flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxSetLimit(CUlimit limit, size_t value) {
  Context* context = nullptr;
  std::vector<std::uint32_t> groups;
  {
    const std::lock_guard lock(driver().mutex);
    if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
    if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
    // Device-side synchronisation left with cc 9.0, the graphics limits never applied.
    if (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH || limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
      return CUDA_ERROR_UNSUPPORTED_LIMIT;
    // Measured: another stack is given out when nothing runs; the other limits need no waiting.
    if (limit == CU_LIMIT_STACK_SIZE && context->root->settings.limits[limit] != value)
      groups = family_groups(*context->root);
  }
  if (const CUresult error = wait_for_groups(*context->device, groups); error != CUDA_SUCCESS)
    return error;
  const std::lock_guard lock(driver().mutex);
  context->root->settings.limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetLimit(size_t* value, CUlimit limit) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (value == nullptr || limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (limit > CU_LIMIT_PERSISTING_L2_CACHE_SIZE) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = context->root->settings.limits[limit];
  return CUDA_SUCCESS;
}

CUresult api::cuCtxSetCacheConfig(CUfunc_cache config) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
    return CUDA_ERROR_INVALID_VALUE;
  context->settings.cache = config;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetCacheConfig(CUfunc_cache* config) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = context->settings.cache;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxSetSharedMemConfig(CUsharedconfig config) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE ||
      config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE)
    return CUDA_ERROR_INVALID_VALUE;
  context->settings.shared = config;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetSharedMemConfig(CUsharedconfig* config) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *config = context->settings.shared;
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------ peer access

CUresult api::cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned flags) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  Context* peer = driver().find<Context>(peer_handle, Kind::kContext);
  if (peer == nullptr || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer->device == context->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult api::cuCtxDisablePeerAccess(CUcontext peer_handle) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = current_context(&context); error != CUDA_SUCCESS) return error;
  Context* peer = driver().find<Context>(peer_handle, Kind::kContext);
  if (peer == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return context->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

// -------------------------------------------------------------- events over a whole context

#if CUDA_VERSION >= 12050
CUresult api::cuCtxRecordEvent(CUcontext handle, CUevent event_handle) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  EventObject* event = nullptr;
  if (const CUresult error = resolve_context(handle, &context); error != CUDA_SUCCESS) return error;
  if (const CUresult error = resolve_event(event_handle, &event); error != CUDA_SUCCESS)
    return error;
  return record_behind_context(*context, *event);
}

CUresult api::cuCtxWaitEvent(CUcontext handle, CUevent event_handle) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  EventObject* event = nullptr;
  if (const CUresult error = resolve_context(handle, &context); error != CUDA_SUCCESS) return error;
  if (const CUresult error = resolve_event(event_handle, &event); error != CUDA_SUCCESS)
    return error;
  return wait_before_context(*context, *event);
}
#endif

}  // namespace vitamin::soft::driver
