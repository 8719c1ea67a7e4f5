// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/bundle.h"

#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/preload.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

using nlohmann::ordered_json;

constexpr const char* kLeftOut = "[left out]";
constexpr std::streamoff kLogBytes = 64 * 1024;
// The variables that steer a GPU runtime, the loader, or us. No other one is of interest.
constexpr const char* kVariables[] = {"VITAMIN", "CUDA", "NVIDIA", "HIP", "HSA",
                                      "ROC",     "ROCR", "GPU_",   "LD_"};

// Long enough, of letters and digits, both of them: a key, a token, a hash.
bool looks_secret(const std::string& word) {
  const auto any = [&](int (*is)(int)) {
    return std::any_of(word.begin(), word.end(),
                       [&](char c) { return is(static_cast<unsigned char>(c)) != 0; });
  };
  return word.size() >= 20 && any(&std::isdigit) && any(&std::isalpha);
}

// std::regex takes stack for each character of a match.
constexpr std::size_t kLineMax = 4096;

std::string clean_line(const std::string& line) {
  // It begins with the telling word, whatever of a name stands before it: a match that may begin
  // anywhere in a name would look at each pair of characters of a long one.
  static const std::regex named(
      "((?:secret|token|passw|passphrase|credential|api_?key|private_?key|auth|"
      "cookie)[A-Za-z0-9_.-]*[\"']?\\s*[=:]\\s*)"
      "(\"[^\"]*\"|'[^']*'|(?:bearer |basic )?[^\\s,;}]+)",
      std::regex::icase);
  static const std::regex address(R"((://)[^\s/@]+@)");
  static const std::regex word(R"([A-Za-z0-9_+=]{20,})");
  std::string clean = std::regex_replace(line, named, fmt::format("$1{}", kLeftOut));
  clean = std::regex_replace(clean, address, fmt::format("$1{}@", kLeftOut));
  std::string result;
  auto rest = clean.cbegin();
  for (std::sregex_iterator it(clean.begin(), clean.end(), word), end; it != end; ++it) {
    result.append(rest, (*it)[0].first);
    result += looks_secret(it->str()) ? std::string(kLeftOut) : it->str();
    rest = (*it)[0].second;
  }
  result.append(rest, clean.cend());
  const char* const home = std::getenv("HOME");
  if (home != nullptr && std::strlen(home) > 1)
    for (std::size_t at = 0; (at = result.find(home, at)) != result.npos;)
      result.replace(at, std::strlen(home), "~");
  return result;
}

// Every string in it.
ordered_json cleaned(ordered_json value) {
  if (value.is_string()) return without_secrets(value.get<std::string>());
  if (value.is_structured())
    for (auto& element : value) element = cleaned(std::move(element));
  return value;
}

ordered_json environment() {
  ordered_json kept = ordered_json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t mark = text.find('=');
    const bool wanted = std::any_of(std::begin(kVariables), std::end(kVariables),
                                    [&](const char* prefix) { return text.starts_with(prefix); });
    if (!wanted || mark == text.npos) continue;
    // As one text, so that a telling name takes its value with it.
    const std::string clean = without_secrets(text);
    const std::size_t at = clean.find('=');
    kept[text.substr(0, mark)] = at == clean.npos ? kLeftOut : clean.substr(at + 1);
  }
  return kept;
}

std::string first_line(const char* file, const char* begin) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(begin)) return line;
  return "";
}

std::string end_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) return "";
  const std::streamoff size = in.tellg();
  in.seekg(std::max<std::streamoff>(0, size - kLogBytes));
  std::string text(static_cast<std::size_t>(std::min(size, kLogBytes)), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  // Cut in the middle of a line: a piece of a secret may look like none.
  if (size > kLogBytes) text.erase(0, text.find('\n') + 1);
  return without_secrets(text);
}

// What vitamind wrote where systemd started it; empty: nothing, or there is no journal to read
// within ten seconds.
std::string journal() {
  FILE* const out = ::popen(
      "SYSTEMD_COLORS=0 timeout 10 journalctl --unit=vitamind --lines=500 --quiet --no-pager "
      "--output=short-iso </dev/null 2>/dev/null",
      "r");
  if (out == nullptr) return "";
  std::string text;
  char piece[4096];
  while (const std::size_t size = std::fread(piece, 1, sizeof piece, out)) text.append(piece, size);
  ::pclose(out);
  if (text.size() > kLogBytes) {
    text.erase(0, text.size() - kLogBytes);
    text.erase(0, text.find('\n') + 1);
  }
  return without_secrets(text);
}

}  // namespace

std::string without_secrets(const std::string& text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    result += clean_line(text.substr(at, std::min(end - at, kLineMax)));
    if (end < text.size()) result += '\n';
    at = end + 1;
  }
  return result;
}

bool write_bundle(const std::string& file, const ordered_json& found) {
  utsname kernel{};
  ::uname(&kernel);
  char now[32] = "";
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  std::strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", ::gmtime_r(&time, &parts));
  ordered_json bundle = {
      {"schema", 1},
      {"version", VITAMIN_VERSION},
      {"made", now},
      {"doctor", cleaned(found)},
      {"kernel", fmt::format("{} {}", kernel.sysname, kernel.release)},
      {"system", first_line("/etc/os-release", "PRETTY_NAME")},
      {"processor", first_line("/proc/cpuinfo", "model name")},
      {"memory", first_line("/proc/meminfo", "MemTotal")},
      {"driver", first_line("/proc/driver/nvidia/version", "NVRM")},
      {"environment", environment()},
  };
  const std::string socket = daemon_socket("");
  if (const auto status = ask_daemon(socket, "status"))
    bundle["vitamind"] = cleaned(ordered_json(*status));
  else
    bundle["vitamind"] = without_secrets(status.error().message);
  bundle["log"] = end_of(socket + ".log");
  bundle["journal"] = journal();

  std::ofstream out(file, std::ios::trunc);
  out << bundle.dump(2, ' ', false, ordered_json::error_handler_t::replace) << '\n';
  out.close();
  if (out) {
    say(fmt::format("{} is written; please look into it before you give it away.", file));
    return true;
  }
  say(Problem::kCannotWrite, fmt::format("cannot write '{}': {}.", file, std::strerror(errno)));
  return false;
}

}  // namespace vitamin::tools
