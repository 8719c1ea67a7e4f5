// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/checkpoints.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "tools/vitamin/node/probe.h"
#include "tools/vitamin/node/symbol.h"

namespace vitamin::tools {
namespace {

constexpr int kFirstVersion = 12080;

// Arguments of Lock; those of the other steps are absent.
struct LockArguments {
  unsigned timeout_ms = 0, reserved = 0;
  std::uint64_t more[7] = {};
};

template <class Function>
bool find(void* library, Function& function, const char* name) {
  function = symbol<Function>(library, name);
  return function != nullptr;
}

}  // namespace

const char* text_of(ProcessState state) {
  switch (state) {
    case ProcessState::kRunning:
      return "it runs on";
    case ProcessState::kLocked:
      return "it is locked: its calls wait. `vitamin resume` unlocks it";
    case ProcessState::kParked:
      return "it stays parked";
    case ProcessState::kFailed:
      return "the driver could not undo it: the process must be ended and started again";
  }
  return "its state is not known";
}

hal::Result<Checkpoints> Checkpoints::load() {
  // This process neither joins MPS nor hides a device.
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent", 1);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  Checkpoints self;
  self.library_ = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (self.library_ == nullptr)
    return hal::fail(hal::Errc::kUnavailable,
                     fmt::format("NVIDIA's driver cannot be loaded ({}), and no other has "
                                 "checkpoints: run it where the process runs",
                                 ::dlerror()));
  int version = 0;
  if (const auto ask = symbol<int (*)(int*)>(self.library_, "cuDriverGetVersion")) ask(&version);
  const bool all = find(self.library_, self.init_, "cuInit") &&
                   find(self.library_, self.state_, "cuCheckpointProcessGetState") &&
                   find(self.library_, self.lock_, "cuCheckpointProcessLock") &&
                   find(self.library_, self.checkpoint_, "cuCheckpointProcessCheckpoint") &&
                   find(self.library_, self.restore_, "cuCheckpointProcessRestore") &&
                   find(self.library_, self.unlock_, "cuCheckpointProcessUnlock");
  if (!all || version < kFirstVersion)
    return hal::fail(hal::Errc::kUnavailable,
                     fmt::format("this needs a driver of CUDA 12.8 (570) or later, and this one "
                                 "has CUDA {}: update it",
                                 version_text(version)));
  self.name_ = symbol<int (*)(int, const char**)>(self.library_, "cuGetErrorName");
  if (const int error = self.init_(0); error != kOk)
    return hal::fail(hal::Errc::kUnavailable,
                     fmt::format("the driver cannot be used ({}): `vitamin doctor` says why",
                                 self.name_of(error)));
  return self;
}

int Checkpoints::lock(pid_t process, double seconds) const {
  LockArguments arguments;
  arguments.timeout_ms = static_cast<unsigned>(std::clamp(1e3 * seconds, 1.0, 4e9));
  return lock_(process, &arguments);
}

std::string Checkpoints::name_of(int error) const {
  const char* name = nullptr;
  if (name_ != nullptr) name_(error, &name);
  return name != nullptr ? name : fmt::format("error {}", error);
}

std::string Checkpoints::now(pid_t process) const {
  const auto found = state(process);
  return found ? text_of(*found) : "its state is not known";
}

}  // namespace vitamin::tools
