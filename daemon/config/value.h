// SPDX-License-Identifier: Apache-2.0
//
// The value of a setting before it is written to the Configuration, and where it was set.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace vitamin::config {

// Where a setting was made. `line` and `column` count from 1; 0: not in a file.
struct SettingPlace {
  std::string source;  // a file, "the environment variable ...", "the command line", "built in"
  std::uint32_t line = 0;
  std::uint32_t column = 0;

  std::string text() const;  // "vitamin.toml:3:8"
};

using Texts = std::vector<std::string>;
using TextTable = std::map<std::string, std::string>;
// Durations are nanoseconds and choices are their index: integers, both.
using Value = std::variant<bool, std::int64_t, std::string, Texts, TextTable>;

// "4ms", "1.5s", "2h" in nanoseconds; 0 needs no unit. Nothing: not a duration, or longer than 30
// years.
std::optional<std::uint64_t> duration_ns(std::string_view text);
// The shortest text of this duration.
std::string duration_text(std::uint64_t ns);

// A bound on device memory: bytes, or percent of each device.
struct MemoryBound {
  std::uint64_t bytes = 0;
  std::uint32_t percent = 0;
  bool operator==(const MemoryBound&) const = default;
};
// "40GiB" or "40Gi" (2^30 bytes), "40GB" (10^9 bytes), "1.5TiB" or "50%". Nothing: none of these,
// or a bound of 0.
std::optional<MemoryBound> memory_bound(std::string_view text);
// What a message says of a text that is none.
inline constexpr const char* kNoMemoryBound =
    "is no size: write 40GiB or 40Gi (2^30 bytes), 40GB (10^9 bytes) or 1% to 100% of each device";
// The shortest text of this bound.
std::string memory_text(const MemoryBound& bound);

// As TOML: "a \"word\"".
std::string toml_text(std::string_view text);

}  // namespace vitamin::config
