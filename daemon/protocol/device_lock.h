// SPDX-License-Identifier: Apache-2.0
//
// Who decides where work runs on a GPU of this machine, whoever's process it is: locks on a file
// that is named after the GPU's UUID, in a folder that all users have.
//
//   flock, exclusive               one vitamind at most, which decides between processes
//   record lock on byte 0          the same vitamind, so that others can tell its process
//   record lock on 1 + process id  a process that decides for itself alone (`vitamin run` without
//                                  --daemon): as many as there are
//
// Record locks are shared ones: they keep nobody from anything, and tell who is there by the
// kernel's word. The kernel drops all of them with the process; a forked child has none.
//
// Limits: the process of another container is known to be there, not which it is. Whoever may own
// the file can claim to be there, and nothing else. A process that closes descriptors that are not
// its own is not seen any more.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "daemon/protocol/fd.h"
#include "hal/result.h"

namespace vitamin::protocol {

// Other processes, by id; 0: one of another container.
struct DeviceUsers {
  std::optional<pid_t> between_processes;  // the vitamind
  std::vector<pid_t> alone;                // those that decide for themselves; 32 at most
};

// "process 12", "a process of another container".
std::string name_of_process(pid_t process);

class DeviceLock {
 public:
  // To decide between processes. The error names who does so already.
  static hal::Result<DeviceLock> between_processes(const std::string& folder,
                                                   const std::string& uuid);
  // To decide for this process alone; others are no reason to refuse. To be kept until the process
  // ends: a process has its record locks through no more than one descriptor.
  static hal::Result<DeviceLock> alone(const std::string& folder, const std::string& uuid);

  DeviceLock() = default;  // of nothing
  DeviceLock(DeviceLock&&) = default;
  DeviceLock& operator=(DeviceLock&& other) noexcept;
  ~DeviceLock() { release(); }

  DeviceUsers others() const;
  // A vitamind's file goes when it is given back, unless somebody else is there.
  void release();

 private:
  explicit DeviceLock(std::string path) : path_(std::move(path)) {}
  hal::Status open();
  bool record(short type, off_t first, off_t count);
  bool is_at_path() const;

  std::string path_;
  Fd file_;
  bool removes_ = false;
};

// Of each GPU that somebody decides on, for one who only looks and has no lock there.
struct DeviceUse {
  std::string name;  // its UUID, where that is a name that a file can have
  DeviceUsers users;
};
std::vector<DeviceUse> device_use(const std::string& folder);

}  // namespace vitamin::protocol
