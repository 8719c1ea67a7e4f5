// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/entry.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <mutex>
#include <string_view>
#include <thread>

#include "backends/soft/ledger.h"
#include "backends/soft/libcuda/clock.h"
#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {
namespace {

struct CallState {
  EntryId entry = EntryId::kCount;
  bool per_thread = false;
};
thread_local CallState call_state;

// Answers without cuInit.
bool needs_no_initialisation(EntryId id) {
  switch (id) {
    case EntryId::cuInit:
    case EntryId::cuDriverGetVersion:
    case EntryId::cuGetErrorName:
    case EntryId::cuGetErrorString:
    case EntryId::cuGetProcAddress:
    case EntryId::cuGetProcAddress_v2:
    case EntryId::cuGetExportTable:
    case EntryId::cuProfilerInitialize:
    case EntryId::cuThreadExchangeStreamCaptureMode:
      return true;
    default:
      return false;
  }
}

// What ends a lock must not wait for it.
bool is_of_checkpoint(EntryId id) {
  return std::string_view(entry_info(id).base).starts_with("cuCheckpoint");
}

// Works on a device that has faulted: questions about devices, the thread's context stack, and what
// gives objects back.
bool works_after_fault(EntryId id) {
  const std::string_view name = entry_info(id).base;
  constexpr std::string_view kNames[] = {
      "cuCtxGetCurrent",   "cuCtxSetCurrent",    "cuCtxPushCurrent", "cuCtxPopCurrent",
      "cuCtxGetDevice",    "cuCtxDestroy",       "cuStreamDestroy",  "cuEventDestroy",
      "cuGreenCtxDestroy", "cuGraphExecDestroy", "cuGraphDestroy"};
  return name.starts_with("cuDevice") || name.starts_with("cuProfiler") ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

CUresult fault_of_current_device(EntryId id) {
  const auto& stack = thread_state().contexts;
  if (stack.empty()) return CUDA_SUCCESS;
  const CUresult fault = sticky_error(*stack.back());
  return fault != CUDA_SUCCESS && works_after_fault(id) ? CUDA_SUCCESS : fault;
}

CUresult scripted_fault(EntryId id) {
  Driver& self = driver();
  std::unique_lock lock(self.mutex);
  const EntryInfo& info = entry_info(id);
  for (ScriptedFault& fault : self.settings.faults) {
    if (fault.entry != info.symbol && fault.entry != info.base) continue;
    ++fault.calls;
    if (fault.calls < fault.first || fault.calls > fault.last) continue;
    if (fault.pause_ms == 0) return fault.error;
    const std::chrono::milliseconds pause(fault.pause_ms);
    lock.unlock();
    std::this_thread::sleep_for(pause);
    return CUDA_SUCCESS;
  }
  return CUDA_SUCCESS;
}

}  // namespace

ApiCall::ApiCall(EntryId id, bool per_thread) noexcept
    : id_(id), outer_id_(call_state.entry), outer_per_thread_(call_state.per_thread) {
  call_state = CallState{id, per_thread};
}

ApiCall::~ApiCall() {
  if (ledger_ != nullptr) ledger_->leave_call();
  call_state = CallState{outer_id_, outer_per_thread_};
}

CUresult ApiCall::admit() noexcept {
  Driver& self = driver();
  if (self.forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (!self.settings.faults.empty()) {
    if (const CUresult fault = scripted_fault(id_); fault != CUDA_SUCCESS) return fault;
  }
  if (needs_no_initialisation(id_)) return CUDA_SUCCESS;
  if (!self.initialised.load(std::memory_order_acquire)) return CUDA_ERROR_NOT_INITIALIZED;
  if (thread_state().in_callback) return CUDA_ERROR_NOT_PERMITTED;
  if (outer_id_ == EntryId::kCount && !is_of_checkpoint(id_) && !self.devices.empty()) {
    ledger_ = self.devices.front()->engine->ledger();
    if (ledger_ != nullptr) ledger_->enter_call();
  }
  step_virtual_clock();
  return fault_of_current_device(id_);
}

EntryId current_entry() noexcept { return call_state.entry; }
bool null_stream_is_per_thread() noexcept { return call_state.per_thread; }

}  // namespace vitamin::soft::driver
