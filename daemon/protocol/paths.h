// SPDX-License-Identifier: Apache-2.0
//
// Default paths of vitamind's socket.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace vitamin::protocol {

inline constexpr const char* kSystemSocket = "/run/vitamin/vitamind.sock";

// A user's own vitamind: below $XDG_RUNTIME_DIR/vitamin, else below /tmp/vitamin-UID.
inline std::string user_socket() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != '\0')
    return std::string(runtime) + "/vitamin/vitamind.sock";
  return "/tmp/vitamin-" + std::to_string(::getuid()) + "/vitamind.sock";
}

}  // namespace vitamin::protocol
