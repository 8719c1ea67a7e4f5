// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace vitamin::daemon {

// Serialises without throwing: bytes that are not UTF-8 (of paths, of system files) are replaced.
template <class Json>
std::string json_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace vitamin::daemon
