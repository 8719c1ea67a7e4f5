// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string_view>

#include "hal/read_file.h"

namespace vitamin::soft::driver {
namespace {

[[noreturn]] void refuse(const char* variable, std::string_view value, const char* wanted) {
  std::fprintf(stderr, "software driver: %s=%.*s is not understood; it takes %s\n", variable,
               static_cast<int>(value.size()), value.data(), wanted);
  std::exit(2);
}

template <class T>
std::optional<T> number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

// Which of the machine's `count` devices the process sees, in its order. CUDA_VISIBLE_DEVICES is a
// list of their numbers, cut, as NVIDIA's driver does, at the first word that names none.
std::vector<int> visible_devices(const char* list, int count) {
  std::vector<int> visible;
  if (list == nullptr) {
    for (int device = 0; device < count; ++device) visible.push_back(device);
    return visible;
  }
  std::string_view rest = list;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const auto device = number<int>(rest.substr(0, comma));
    if (!device || *device < 0 || *device >= count) break;
    visible.push_back(*device);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return visible;
}

// "cuLaunchKernel@3=719": the third call; "@3+": from the third on; "@3-5": these. "=20ms": a pause
// instead of an error.
std::optional<ScriptedFault> parse_fault(std::string_view text) {
  const std::size_t at = text.find('@');
  const std::size_t equals = text.find('=', at == std::string_view::npos ? 0 : at);
  if (at == std::string_view::npos || equals == std::string_view::npos) return std::nullopt;
  ScriptedFault fault;
  fault.entry = std::string(text.substr(0, at));
  std::string_view calls = text.substr(at + 1, equals - at - 1);
  const bool open_ended = calls.ends_with('+');
  if (open_ended) calls.remove_suffix(1);
  const std::size_t dash = calls.find('-');
  const auto first = number<std::uint64_t>(calls.substr(0, dash));
  const auto last =
      dash == std::string_view::npos ? first : number<std::uint64_t>(calls.substr(dash + 1));
  std::string_view what = text.substr(equals + 1);
  const bool pauses = what.ends_with("ms");
  if (pauses) what.remove_suffix(2);
  const auto error = number<std::uint16_t>(what);
  if (!first || !last || !error || *first == 0 || *last < *first) return std::nullopt;
  fault.first = *first;
  fault.last = open_ended ? std::numeric_limits<std::uint64_t>::max() : *last;
  fault.error = pauses ? CUDA_SUCCESS : static_cast<CUresult>(*error);
  if (pauses) fault.pause_ms = *error;
  return fault;
}

std::vector<ScriptedFault> parse_faults(const std::string& value) {
  std::string script = value;
  if (value.starts_with('/') || value.starts_with('.')) {
    const auto text = hal::read_file(value);
    if (!text) refuse("VITAMIN_SOFT_FAULTS", value, "a script or a readable file");
    script = *text;
  }
  std::vector<ScriptedFault> faults;
  std::string word;
  for (const char c : script + ";") {
    if (c != ';' && c != '\n' && c != ',') {
      if (std::isspace(static_cast<unsigned char>(c)) == 0) word += c;
      continue;
    }
    if (word.empty()) continue;
    const auto fault = parse_fault(word);
    if (!fault) refuse("VITAMIN_SOFT_FAULTS", word, "entries such as cuLaunchKernel@3=719");
    faults.push_back(*fault);
    word.clear();
  }
  return faults;
}

// "0=1G,1=512MB". What NVIDIA's does with anything else is not known here.
std::map<int, std::size_t> parse_limits(const std::string& value) {
  std::map<int, std::size_t> limits;
  for (std::size_t at = 0; at < value.size();) {
    const std::size_t end = std::min(value.find(',', at), value.size());
    const std::string_view entry = std::string_view(value).substr(at, end - at);
    const std::size_t equals = entry.find('='), unit = entry.find_first_of("GM");
    std::optional<int> device;
    std::optional<std::size_t> count;
    if (equals < unit && unit < entry.size()) {
      device = number<int>(entry.substr(0, equals));
      count = number<std::size_t>(entry.substr(equals + 1, unit - equals - 1));
    }
    if (!device || !count)
      refuse("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", value, "entries such as 0=1G or 0=512M");
    limits[*device] = *count << (entry[unit] == 'G' ? 30 : 20);
    at = end + 1;
  }
  return limits;
}

}  // namespace

Settings Settings::from_environment() {
  Settings settings;
  int devices = 1;
  if (const std::string value = variable("VITAMIN_SOFT_DEVICES"); !value.empty()) {
    const auto count = number<int>(value);
    if (!count || *count < 0 || *count > 16) refuse("VITAMIN_SOFT_DEVICES", value, "0 to 16");
    devices = *count;
  }
  settings.devices = visible_devices(std::getenv("CUDA_VISIBLE_DEVICES"), devices);
  if (const std::string value = variable("VITAMIN_SOFT_CLOCK"); !value.empty() && value != "real") {
    constexpr std::string_view kPrefix = "virtual:";
    const auto seed = value.starts_with(kPrefix)
                          ? number<std::uint64_t>(std::string_view(value).substr(kPrefix.size()))
                          : std::nullopt;
    if (!seed) refuse("VITAMIN_SOFT_CLOCK", value, "\"real\" or \"virtual:SEED\"");
    settings.clock = Clock::kVirtual;
    settings.seed = *seed;
  }
  if (const std::string value = variable("VITAMIN_SOFT_DEADLOCK_MS"); !value.empty()) {
    const auto milliseconds = number<std::uint32_t>(value);
    if (!milliseconds) refuse("VITAMIN_SOFT_DEADLOCK_MS", value, "a number of milliseconds");
    settings.deadlock_ms = *milliseconds;
  }
  settings.ledger = variable("VITAMIN_SOFT_LEDGER");
  settings.mps_directory = variable("CUDA_MPS_PIPE_DIRECTORY");
  settings.mps_memory = parse_limits(variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"));
  settings.trace = variable("VITAMIN_SOFT_TRACE");
  settings.faults = parse_faults(variable("VITAMIN_SOFT_FAULTS"));
  return settings;
}

}  // namespace vitamin::soft::driver
