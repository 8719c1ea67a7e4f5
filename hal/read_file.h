// SPDX-License-Identifier: Apache-2.0
//
// Reads a whole file without exceptions. std::istreambuf_iterator throws out of any stream when a
// read fails, and files below /proc fail (ESRCH) when their process ends between open and read.
// tests/tidy lets product code read whole files by this function only.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>

namespace vitamin::hal {

// The bytes of a file of any kind; nothing when it cannot be opened or read to its end, with the
// reason in errno. Any thread.
inline std::optional<std::string> read_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string bytes;
  std::size_t used = 0;
  for (;;) {
    if (bytes.size() == used) bytes.resize(used == 0 ? 4096 : 2 * used);
    const ssize_t read = ::read(file, bytes.data() + used, bytes.size() - used);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) {
      const int reason = errno;
      ::close(file);
      errno = reason;
      if (read < 0) return std::nullopt;
      bytes.resize(used);
      return bytes;
    }
    used += static_cast<std::size_t>(read);
  }
}

}  // namespace vitamin::hal
