// SPDX-License-Identifier: Apache-2.0
#include "daemon/device_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>

namespace vitamin::daemon {

hal::Result<DeviceLock> DeviceLock::take(const std::string& directory, const std::string& uuid) {
  std::string name;
  for (const char c : uuid)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ? c : '_';
  const std::string path = directory + "/vitamin-" + name + ".lock";
  // Another user's file must be opened without O_CREAT (fs.protected_regular), and for reading:
  // flock() wants no more.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
  for (;;) {
    protocol::Fd file(::open(path.c_str(), kFlags));
    if (!file) file.reset(::open(path.c_str(), kFlags | O_CREAT, 0644));
    if (!file)
      return hal::fail(
          hal::Errc::kUnavailable,
          "the lock of the device cannot be made (" + path + ": " + std::strerror(errno) + ")",
          errno);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      struct stat facts {};
      ::fstat(file.get(), &facts);
      return hal::fail(hal::Errc::kUnavailable,
                       "another vitamind arbitrates device " + uuid + " (lock " + path +
                           ", made by user " + std::to_string(facts.st_uid) +
                           "): end it, or connect to it with VITAMIN_DAEMON=SOCKET");
    }
    DeviceLock lock(path, std::move(file));
    // Else whoever had it gave it back, and its file with it, since we opened that.
    if (lock.is_at_path()) return lock;
  }
}

bool DeviceLock::is_at_path() const {
  struct stat there {
  }, ours{};
  return ::lstat(path_.c_str(), &there) == 0 && ::fstat(file_.get(), &ours) == 0 &&
         there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

DeviceLock& DeviceLock::operator=(DeviceLock&& other) noexcept {
  release();
  path_ = std::move(other.path_);
  file_ = std::move(other.file_);
  return *this;
}

void DeviceLock::release() {
  if (file_ && is_at_path()) ::unlink(path_.c_str());
  file_.reset();
}

}  // namespace vitamin::daemon
