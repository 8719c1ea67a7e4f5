// SPDX-License-Identifier: Apache-2.0
#include "daemon/config/value.h"

#include <array>
#include <charconv>

namespace vitamin::config {
namespace {

struct Unit {
  const char* name;
  std::uint64_t ns;
};
constexpr std::array kUnits = {Unit{"ns", 1},
                               Unit{"µs", 1'000},
                               Unit{"us", 1'000},
                               Unit{"ms", 1'000'000},
                               Unit{"s", 1'000'000'000},
                               Unit{"min", 60'000'000'000},
                               Unit{"h", 3'600'000'000'000}};

}  // namespace

std::string SettingPlace::text() const {
  if (line == 0) return source;
  return source + ":" + std::to_string(line) + ":" + std::to_string(column);
}

std::optional<std::uint64_t> duration_ns(std::string_view text) {
  constexpr double kLongest = 1e18;
  double number = 0;
  const auto [unit, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return std::nullopt;
  const std::string_view suffix = text.substr(static_cast<std::size_t>(unit - text.data()));
  if (suffix.empty() && number == 0) return 0;
  for (const Unit& known : kUnits) {
    const double ns = number * static_cast<double>(known.ns);
    if (suffix == known.name && ns <= kLongest) return static_cast<std::uint64_t>(ns);
  }
  return std::nullopt;
}

std::string duration_text(std::uint64_t ns) {
  std::string best = std::to_string(ns) + "ns";
  for (const Unit& unit : kUnits)
    if (ns > 0 && ns % unit.ns == 0) best = std::to_string(ns / unit.ns) + unit.name;
  return ns == 0 ? "0s" : best;
}

namespace {

struct Size {
  const char* name;
  std::uint64_t bytes;
};
// No "G" alone: 10^9 bytes to Kubernetes, 2^30 to Slurm. memory_text() writes the last of equal
// ones.
constexpr std::array kSizes = {Size{"B", 1},
                               Size{"kB", 1'000},
                               Size{"KB", 1'000},
                               Size{"MB", 1'000'000},
                               Size{"GB", 1'000'000'000},
                               Size{"TB", 1'000'000'000'000},
                               Size{"Ki", 1ULL << 10},
                               Size{"KiB", 1ULL << 10},
                               Size{"Mi", 1ULL << 20},
                               Size{"MiB", 1ULL << 20},
                               Size{"Gi", 1ULL << 30},
                               Size{"GiB", 1ULL << 30},
                               Size{"Ti", 1ULL << 40},
                               Size{"TiB", 1ULL << 40}};

}  // namespace

std::optional<MemoryBound> memory_bound(std::string_view text) {
  // What a ledger counts (daemon/protocol/quota_ledger.h).
  constexpr double kMost = 256.0 * (1ULL << 40);
  double number = 0;
  const auto [unit, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !(number > 0)) return std::nullopt;
  const std::string_view suffix = text.substr(static_cast<std::size_t>(unit - text.data()));
  if (suffix == "%") {
    const auto percent = static_cast<std::uint32_t>(number <= 100 ? number : 0);
    if (percent < 1 || percent != number) return std::nullopt;
    return MemoryBound{0, percent};
  }
  for (const Size& known : kSizes) {
    const double bytes = number * static_cast<double>(known.bytes);
    if (suffix == known.name && bytes >= 1 && bytes < kMost)
      return MemoryBound{static_cast<std::uint64_t>(bytes), 0};
  }
  return std::nullopt;
}

std::string memory_text(const MemoryBound& bound) {
  if (bound.percent != 0) return std::to_string(bound.percent) + "%";
  Size best = kSizes.front();
  for (const Size& size : kSizes)
    if (bound.bytes % size.bytes == 0 && size.bytes >= best.bytes) best = size;
  return std::to_string(bound.bytes / best.bytes) + best.name;
}

std::string toml_text(std::string_view text) {
  constexpr const char* kDigits = "0123456789ABCDEF";
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      result += "\\u00";
      result += kDigits[byte >> 4];
      result += kDigits[byte & 15];
    } else {
      result += c;
    }
  }
  return result + '"';
}

}  // namespace vitamin::config
