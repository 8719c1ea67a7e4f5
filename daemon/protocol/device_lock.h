// SPDX-License-Identifier: Apache-2.0
//
// Which processes place work on a GPU of this machine, across users: locks on a file that is named
// after the GPU's UUID, in a directory that all users share.
//
//   flock, exclusive               the one vitamind that arbitrates between processes
//   record lock on byte 0          the same vitamind, so that F_GETLK returns its process id
//   record lock on 1 + process id  each process that places its own work alone (`vitamin run`
//                                  without --daemon)
//
// The record locks are shared ones: they exclude no process, they are a list that the kernel keeps.
// It drops a process's locks at its end; a forked child has none.
//
// Limits: of a process of another container only its presence is known, not its id. A user who can
// open the file can take its locks without using the GPU. A process that closes descriptors that it
// does not own drops out of the list.
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
  std::vector<pid_t> alone;                // processes without vitamind; 32 at most
};

// "process 12", "a process of another container".
std::string name_of_process(pid_t process);

class DeviceLock {
 public:
  // For a vitamind. The error names the process that already arbitrates this GPU.
  static hal::Result<DeviceLock> between_processes(const std::string& directory,
                                                   const std::string& uuid);
  // For a process without vitamind: any number at once, also beside a vitamind. Keep it until the
  // process ends: closing any descriptor of the file drops all record locks of the process.
  static hal::Result<DeviceLock> alone(const std::string& directory, const std::string& uuid);

  DeviceLock() = default;  // holds no lock
  DeviceLock(DeviceLock&&) = default;
  DeviceLock& operator=(DeviceLock&& other) noexcept;
  ~DeviceLock() { release(); }

  DeviceUsers others() const;
  // A vitamind also removes the file, unless another process holds a lock on it.
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

// One entry for each GPU that a process has locked. The caller must hold no lock in `directory`.
struct DeviceUse {
  std::string name;  // the UUID; characters other than letters, digits and '-' are '_'
  DeviceUsers users;
};
std::vector<DeviceUse> device_use(const std::string& directory);

}  // namespace vitamin::protocol
