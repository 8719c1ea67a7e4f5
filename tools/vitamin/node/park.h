// SPDX-License-Identifier: Apache-2.0
//
// vitamin park, resume: the device memory of an idle process goes to host memory and back, at the
// same addresses, by the checkpoint functions of NVIDIA's driver.
//
//   running ── Lock ──▶ locked ── Checkpoint ──▶ parked ── Restore ──▶ locked ── Unlock ──▶ running
//
// A step that fails is undone, so that the process runs, or stays parked, as before; the line about
// it says which. What the driver is known not to carry is refused before anything is locked.
//
// Source: CUDA Driver API, "CUDA Checkpointing" (CUDA 12.8, driver 570). Threads: one at a time.
#pragma once

#include <string>

namespace vitamin::tools {

extern const char* const kParkFooter;
extern const char* const kResumeFooter;

struct ParkOptions {
  std::string which;   // a process id, or a job, pod or program among vitamind's clients
  std::string socket;  // empty: as for `vitamin run --daemon`
  // park: how long work that is outstanding may take. resume: how long to wait for free memory.
  double seconds = 0;
  bool json = false;
};

// Answer exit codes: 0, kExitLater (it may succeed later), kExitFailed.
int park(const ParkOptions& options);
int unpark(const ParkOptions& options);

// Whether `vitamin resume WHICH` means a device: all, an index or a UUID. A small number is the
// index of a device unless that process is parked.
bool names_device(const ParkOptions& options);

}  // namespace vitamin::tools
