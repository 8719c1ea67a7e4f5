// SPDX-License-Identifier: Apache-2.0
//
// Where daemons listen when nobody says otherwise.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace vitamin::protocol {

inline constexpr const char* kSystemSocket = "/run/vitamin/vitamind.sock";

// The user's own daemon: in $XDG_RUNTIME_DIR/vitamin, or a folder of theirs in /tmp.
inline std::string user_socket() {
  const char* const runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime != '\0')
    return std::string(runtime) + "/vitamin/vitamind.sock";
  return "/tmp/vitamin-" + std::to_string(::getuid()) + "/vitamind.sock";
}

}  // namespace vitamin::protocol
