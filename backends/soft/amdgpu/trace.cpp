// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/trace.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace vitamin::soft::amdgpu {

PacketLog::PacketLog(const std::string& path) {
  if (path.empty()) return;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file_ >= 0) return;
  std::fprintf(stderr, "software AMD GPU: VITAMIN_SOFT_AMDGPU_TRACE=%s cannot be written\n",
               path.c_str());
  std::_Exit(2);
}

void PacketLog::line(const char* format, ...) {
  if (!on()) return;
  char text[4096];
  std::va_list arguments;
  va_start(arguments, format);
  const int written = std::vsnprintf(text, sizeof text - 1, format, arguments);
  va_end(arguments);
  if (written < 0) return;
  std::size_t length = static_cast<std::size_t>(written);
  if (length > sizeof text - 2) length = sizeof text - 2;
  text[length++] = '\n';
  // One write, so that the kernel appends it as one piece.
  if (::write(file_, text, length) < 0) file_ = -1;
}

}  // namespace vitamin::soft::amdgpu
