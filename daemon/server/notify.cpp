// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "daemon/protocol/fd.h"

namespace vitamin::daemon {

void notify(std::string_view state) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  if (path == nullptr || std::strlen(path) >= sizeof address.sun_path) return;
  address.sun_family = AF_UNIX;
  const std::size_t length = std::strlen(path);
  std::memcpy(address.sun_path, path, length);
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract name
  const protocol::Fd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
           reinterpret_cast<const sockaddr*>(&address),
           static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length));
}

std::optional<std::chrono::microseconds> watchdog_interval() {
  const char* const interval = std::getenv("WATCHDOG_USEC");
  const char* const process = std::getenv("WATCHDOG_PID");
  if (interval == nullptr) return std::nullopt;
  if (process != nullptr && std::strtol(process, nullptr, 10) != ::getpid()) return std::nullopt;
  const long value = std::strtol(interval, nullptr, 10);
  if (value <= 0) return std::nullopt;
  return std::chrono::microseconds(value);
}

}  // namespace vitamin::daemon
