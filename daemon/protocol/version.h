// SPDX-License-Identifier: Apache-2.0
//
// The version of the protocol between clients and the daemon. Major: layout or meaning of anything
// shared changed; peers refuse each other. Minor: something was added that the other may not know.
#pragma once

#include <cstdint>

namespace vitamin::protocol {

inline constexpr std::uint16_t kMajor = 1;
inline constexpr std::uint16_t kMinor = 10;

}  // namespace vitamin::protocol
