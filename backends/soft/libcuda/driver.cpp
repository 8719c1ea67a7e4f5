// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/driver.h"

#include <pthread.h>
#include <unistd.h>

#include "backends/soft/libcuda/clock.h"
#include "backends/soft/libcuda/entry.h"

namespace vitamin::soft::driver {

Driver& driver() {
  static Driver* const instance = [] {
    auto* made = new Driver;
    made->settings = Settings::from_environment();
    return made;
  }();
  return *instance;
}

ThreadState::ThreadState() {
  static std::atomic<std::uint64_t> next{1};
  serial = next.fetch_add(1, std::memory_order_relaxed);
}

// The thread's own default streams end with it; what they still hold is carried out.
ThreadState::~ThreadState() {
  Driver& self = driver();
  if (self.forked || !self.initialised) return;
  const std::lock_guard lock(self.mutex);
  for (const auto& context : self.contexts) {
    const auto found = context->per_thread.find(serial);
    if (found == context->per_thread.end()) continue;
    context->streams.erase(found->second.get());
    context->per_thread.erase(found);
  }
}

ThreadState& thread_state() {
  // Programs call the driver from static destructors, which run after those of thread-local
  // objects: the first thread's state is never destroyed.
  thread_local const bool first = ::gettid() == ::getpid();
  if (first) {
    static auto* const state = new ThreadState;
    return *state;
  }
  thread_local ThreadState state;
  return state;
}

CUresult result_of(int status) {
  switch (status) {
    case kOk:
      return CUDA_SUCCESS;
    case kNotReady:
      return CUDA_ERROR_NOT_READY;
    case kInvalidArgument:
      return CUDA_ERROR_INVALID_VALUE;
    case kOutOfMemory:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case kInvalidLaunch:
      return CUDA_ERROR_INVALID_VALUE;
    case kCooperativeTooLarge:
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    case kClusterTooLarge:
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    case kIllegalAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case kLaunchFailure:
      return CUDA_ERROR_LAUNCH_FAILED;
    case kUnsupported:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_UNKNOWN;
  }
}

CUresult sticky_error(const Context& context) { return result_of(context.device->engine->fault()); }

CUresult current_context(Context** context) {
  ThreadState& thread = thread_state();
  if (thread.contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  Context* current = thread.contexts.back();
  if (!current->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = current;
  return sticky_error(*current);
}

CUresult resolve_context(CUcontext handle, Context** context) {
  if (handle == nullptr) return current_context(context);
  Context* found = driver().find<Context>(handle, Kind::kContext);
  if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!found->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *context = found;
  return sticky_error(*found);
}

int stream_status(const Stream& stream) {
  Engine& engine = stream.engine();
  const int status = engine.query(stream.queue.get());
  if (status != kNotReady || stream.kind == StreamClass::kLegacy) return status;
  if (stream.work_ticket != 0 && engine.query(stream.queue.get(), stream.work_ticket) == kNotReady)
    return kNotReady;
  // Only records are left. Do they wait for the legacy stream?
  const Stream* legacy = stream.context->legacy.get();
  if (!stream.blocking() || legacy == nullptr) return kNotReady;
  const std::uint64_t last = engine.last_ticket(legacy->queue.get());
  const bool held = last != 0 && engine.query(legacy->queue.get(), last) == kNotReady;
  return held ? static_cast<int>(engine.fault()) : static_cast<int>(kNotReady);
}

CUresult wait_for_ticket(Device& device, const QueueRef& queue, std::uint64_t ticket) {
  Engine& engine = *device.engine;
  if (ticket == 0) return result_of(engine.fault());
  if (engine.clock() == Clock::kReal) return result_of(engine.synchronize(queue.get(), ticket));
  return result_of(wait_until([&] { return engine.query(queue.get(), ticket); }));
}

CUresult wait_for_groups(Device& device, const std::vector<std::uint32_t>& groups) {
  Engine& engine = *device.engine;
  for (const std::uint32_t group : groups) {
    const int status = engine.clock() == Clock::kReal
                           ? engine.synchronize_group(group)
                           : wait_until([&] { return engine.query_group(group); });
    if (status != kOk) return result_of(status);
  }
  return CUDA_SUCCESS;
}

std::vector<std::uint32_t> family_groups(const Context& root) {
  std::vector<std::uint32_t> groups{root.sync_group};
  for (const Context* child : root.children)
    if (child->alive) groups.push_back(child->sync_group);
  return groups;
}

MemoryAllocation* find_allocation(std::uintptr_t address) {
  auto& allocations = driver().allocations;
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  MemoryAllocation& candidate = std::prev(next)->second;
  return address - candidate.base < candidate.bytes ? &candidate : nullptr;
}

}  // namespace vitamin::soft::driver
