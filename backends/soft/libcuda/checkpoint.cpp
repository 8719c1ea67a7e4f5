// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of processes, this one or another: the device memory goes to the host and back. All
// memory is host memory, so nothing is copied; what moves is the account of it in the ledger, which
// both processes must have (VITAMIN_SOFT_LEDGER).
//
// A process has one row in the ledger of each device that it sees, all of the same state. Its calls
// wait at the first of them (ApiCall::admit).

#include <chrono>
#include <thread>
#include <vector>

#include "backends/soft/ledger.h"
#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"

namespace vitamin::soft::driver {
#if CUDA_VERSION >= 12080
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct CheckpointedOn {
  ResidencyLedger* ledger;
  std::size_t limit;
};

// The devices of this process that `pid` uses, too; INVALID_VALUE: none.
CUresult devices_of(int pid, std::vector<CheckpointedOn>* devices, ProcessState* state) {
  for (const auto& device : driver().devices) {
    ResidencyLedger* const ledger = device->engine->ledger();
    if (ledger == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    const auto found = ledger->state_of(pid);
    if (!found) continue;
    *state = *found;
    devices->push_back({ledger, device->engine->device().memory_bytes});
  }
  return devices->empty() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult devices_in_state(int pid, ProcessState wanted, std::vector<CheckpointedOn>* devices) {
  ProcessState state{};
  const CUresult error = devices_of(pid, devices, &state);
  if (error != CUDA_SUCCESS) return error;
  return state == wanted ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

void set_state(const std::vector<CheckpointedOn>& devices, int pid, ProcessState state) {
  for (const CheckpointedOn& device : devices) device.ledger->set_state(pid, state);
}

}  // namespace

CUresult api::cuCheckpointProcessGetState(int pid, CUprocessState* state) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CheckpointedOn> devices;
  ProcessState found{};
  const CUresult error = devices_of(pid, &devices, &found);
  if (error == CUDA_SUCCESS) *state = static_cast<CUprocessState>(found);
  return error;
}

CUresult api::cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  std::vector<CheckpointedOn> devices;
  if (const CUresult error = devices_in_state(pid, ProcessState::kRunning, &devices);
      error != CUDA_SUCCESS)
    return error;
  set_state(devices, pid, ProcessState::kLocked);
  const unsigned limit = args != nullptr ? args->timeoutMs : 0;
  const auto end = steady_clock::now() + milliseconds(limit);
  const auto is_busy = [&] {
    for (const CheckpointedOn& device : devices)
      if (device.ledger->is_busy(pid)) return true;
    return false;
  };
  while (is_busy()) {
    if (limit != 0 && steady_clock::now() >= end) {
      set_state(devices, pid, ProcessState::kRunning);
      return CUDA_ERROR_NOT_READY;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return CUDA_SUCCESS;
}

CUresult api::cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs*) {
  std::vector<CheckpointedOn> devices;
  if (const CUresult error = devices_in_state(pid, ProcessState::kLocked, &devices);
      error != CUDA_SUCCESS)
    return error;
  // Before driver 610 no checkpoint carries memory that processes share.
  for (const CheckpointedOn& device : devices)
    if (device.ledger->is_shared(pid)) return CUDA_ERROR_NOT_SUPPORTED;
  for (const CheckpointedOn& device : devices) device.ledger->move_to_host(pid);
  set_state(devices, pid, ProcessState::kParked);
  return CUDA_SUCCESS;
}

// On another device: not modelled.
CUresult api::cuCheckpointProcessRestore(int pid, [[maybe_unused]] CUcheckpointRestoreArgs* args) {
  std::vector<CheckpointedOn> devices;
  if (const CUresult error = devices_in_state(pid, ProcessState::kParked, &devices);
      error != CUDA_SUCCESS)
    return error;
#if CUDA_VERSION >= 13000
  if (args != nullptr && args->gpuPairsCount != 0) return CUDA_ERROR_NOT_SUPPORTED;
#endif
  for (const CheckpointedOn& device : devices)
    if (!device.ledger->fits_back(pid, device.limit)) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const CheckpointedOn& device : devices) device.ledger->move_to_device(pid);
  set_state(devices, pid, ProcessState::kLocked);
  return CUDA_SUCCESS;
}

CUresult api::cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs*) {
  std::vector<CheckpointedOn> devices;
  if (const CUresult error = devices_in_state(pid, ProcessState::kLocked, &devices);
      error != CUDA_SUCCESS)
    return error;
  set_state(devices, pid, ProcessState::kRunning);
  return CUDA_SUCCESS;
}

#endif
}  // namespace vitamin::soft::driver
