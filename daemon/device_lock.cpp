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

hal::Result<protocol::Fd> lock_device(const std::string& directory, const std::string& uuid) {
  std::string name;
  for (const char c : uuid)
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ? c : '_';
  const std::string path = directory + "/vitamin-" + name + ".lock";
  // Another user's file must be opened without O_CREAT (fs.protected_regular), and for reading:
  // flock() wants no more.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW;
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
  return file;
}

}  // namespace vitamin::daemon
