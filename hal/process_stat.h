// SPDX-License-Identifier: Apache-2.0
//
// What tells a process from a later one of the same number. Allocates nothing. Any thread.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace vitamin::hal {

// Of /proc/PID/stat (proc_pid_stat(5)).
struct ProcessStat {
  char state = 0;           // 'Z' and 'X': it has ended
  std::uint64_t start = 0;  // in clock ticks since the machine started
};

// Nothing: there is no such process, or it cannot be seen.
inline std::optional<ProcessStat> process_stat(pid_t process) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(process));
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  char text[1024];
  const ssize_t length = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (length <= 0) return std::nullopt;
  text[length] = '\0';
  // The name may hold anything; behind its end the state is the 3rd field and the start the 22nd.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || std::strlen(at) < 3) return std::nullopt;
  ProcessStat stat;
  stat.state = at[2];
  for (int field = 2; field < 22 && at != nullptr; ++field) at = std::strchr(at + 1, ' ');
  if (at == nullptr) return std::nullopt;
  stat.start = std::strtoull(at + 1, nullptr, 10);
  return stat;
}

}  // namespace vitamin::hal
