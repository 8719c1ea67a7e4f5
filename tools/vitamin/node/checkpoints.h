// SPDX-License-Identifier: Apache-2.0
//
// The checkpoint functions of NVIDIA's driver, of this machine.
//
// Source: CUDA Driver API, "CUDA Checkpointing" (CUDA 12.8, driver 570). Every call answers a
// CUresult. Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

#include "hal/result.h"

namespace vitamin::tools {

// CUresult.
inline constexpr int kOk = 0, kOutOfMemory = 2, kIllegalState = 401, kNotReady = 600,
                     kNotSupported = 801;
// CUprocessState.
enum class ProcessState : int { kRunning, kLocked, kParked, kFailed };

const char* text_of(ProcessState state);

class Checkpoints {
 public:
  // The error says why there are none, and what to do.
  static hal::Result<Checkpoints> load();

  std::optional<ProcessState> state(pid_t process) const {
    int state = 0;
    if (state_(process, &state) != 0) return std::nullopt;
    return static_cast<ProcessState>(state);
  }
  // kNotReady: its work did not end in this time, and it runs on.
  int lock(pid_t process, double seconds) const;
  int checkpoint(pid_t process) const { return checkpoint_(process, nullptr); }
  int restore(pid_t process) const { return restore_(process, nullptr); }
  int unlock(pid_t process) const { return unlock_(process, nullptr); }

  std::string name_of(int error) const;
  std::string now(pid_t process) const;  // its state as a clause

 private:
  void* library_ = nullptr;
  int (*init_)(unsigned) = nullptr;
  int (*state_)(int, int*) = nullptr;
  int (*lock_)(int, void*) = nullptr;
  int (*checkpoint_)(int, void*) = nullptr;
  int (*restore_)(int, void*) = nullptr;
  int (*unlock_)(int, void*) = nullptr;
  int (*name_)(int, const char**) = nullptr;
};

}  // namespace vitamin::tools
