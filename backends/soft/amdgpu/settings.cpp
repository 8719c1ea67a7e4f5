// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

namespace vitamin::soft::amdgpu {
namespace {

[[noreturn]] void refuse(const char* variable, std::string_view value, const std::string& wanted) {
  std::fprintf(stderr, "software AMD GPU: %s=%.*s is not understood; it takes %s\n", variable,
               static_cast<int>(value.size()), value.data(), wanted.c_str());
  std::_Exit(2);  // the runtime's threads may live already; their destructors must not run
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<FaultPoint> fault_point(std::string_view name) {
  if (name == "create_queue") return FaultPoint::kCreateQueue;
  if (name == "set_mask") return FaultPoint::kSetMask;
  if (name == "empty_mask") return FaultPoint::kEmptyMask;
  if (name == "device_lost") return FaultPoint::kDeviceLost;
  return std::nullopt;
}

// "create_queue@3": the third one; "@3+": from the third on; "@3-5": these.
std::optional<ScriptedFault> parse_fault(std::string_view text) {
  const std::size_t at = text.find('@');
  const auto point = fault_point(text.substr(0, at));
  if (!point || at == std::string_view::npos) return std::nullopt;
  std::string_view calls = text.substr(at + 1);
  const bool onwards = calls.ends_with('+');
  if (onwards) calls.remove_suffix(1);
  const std::size_t dash = calls.find('-');
  const auto first = number(calls.substr(0, dash));
  auto last = dash == std::string_view::npos ? first : number(calls.substr(dash + 1));
  if (onwards) last = std::numeric_limits<std::uint64_t>::max();
  if (!first || *first == 0 || !last || *last < *first) return std::nullopt;
  return ScriptedFault{*point, *first, *last};
}

std::string part_names() {
  std::string names;
  for (const Part& part : known_parts())
    names += (names.empty() ? "" : ", ") + std::string(part.name);
  return names;
}

std::vector<ScriptedFault> parse_faults(const char* name) {
  const std::string value = variable(name);
  std::vector<ScriptedFault> faults;
  for (std::string_view rest = value; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const auto fault = parse_fault(rest.substr(0, comma));
    if (!fault)
      refuse(name, value,
             "a list of create_queue@N, set_mask@N, empty_mask@N, device_lost@N (N+: from N on, "
             "N-M: these)");
    faults.push_back(*fault);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return faults;
}

}  // namespace

Settings read_settings() {
  Settings settings;
  const std::string part = variable("VITAMIN_SOFT_AMDGPU");
  settings.part = part.empty() ? &known_parts().front() : find_part(part);
  if (settings.part == nullptr)
    refuse("VITAMIN_SOFT_AMDGPU", part,
           "one part, which all GPUs of the process are: " + part_names());
  const std::string count = variable("VITAMIN_SOFT_AMDGPU_COUNT");
  const auto gpus = count.empty() ? std::optional<std::uint64_t>(1) : number(count);
  if (!gpus || *gpus < 1 || *gpus > kGpusMax)
    refuse("VITAMIN_SOFT_AMDGPU_COUNT", count, "1 to " + std::to_string(kGpusMax));
  settings.gpus = static_cast<unsigned>(*gpus);
  settings.trace = variable("VITAMIN_SOFT_AMDGPU_TRACE");
  settings.ledger = variable("VITAMIN_SOFT_AMDGPU_LEDGER");
  settings.faults = parse_faults("VITAMIN_SOFT_AMDGPU_FAULTS");
  const std::string hold = variable("VITAMIN_SOFT_AMDGPU_HOLD_US");
  const auto hold_us = hold.empty() ? std::optional<std::uint64_t>(0) : number(hold);
  if (!hold_us) refuse("VITAMIN_SOFT_AMDGPU_HOLD_US", hold, "microseconds");
  settings.hold_us = *hold_us;
  settings.verbose = variable("VITAMIN_SOFT_AMDGPU_LOG") == "1";
  return settings;
}

}  // namespace vitamin::soft::amdgpu
