// SPDX-License-Identifier: Apache-2.0
//
// One arbiter for each device of a machine, whoever's it is: an exclusive lock on a file that is
// named after the device's UUID. The kernel drops it with the process; given back, the file goes.
#pragma once

#include <string>

#include "hal/result.h"
#include "protocol/fd.h"

namespace vitamin::daemon {

class DeviceLock {
 public:
  // The error names who holds it.
  static hal::Result<DeviceLock> take(const std::string& directory, const std::string& uuid);

  DeviceLock() = default;  // of nothing
  DeviceLock(DeviceLock&&) = default;
  DeviceLock& operator=(DeviceLock&& other) noexcept;
  ~DeviceLock() { release(); }

  void release();

 private:
  DeviceLock(std::string path, protocol::Fd file)
      : path_(std::move(path)), file_(std::move(file)) {}
  bool is_at_path() const;

  std::string path_;
  protocol::Fd file_;
};

}  // namespace vitamin::daemon
