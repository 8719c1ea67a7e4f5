// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <vector>

#include "hal/file_memory.h"
#include "hal/fnv1a.h"

namespace vitamin::runtime {
namespace {

using hal::Errc;

constexpr std::string_view kMagic = "vitamin-profile";
constexpr double kLongestNs = 1e15;

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// 17 digits: reads back as the same number.
std::string exact(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

std::string times(const ProfileCell& cell) {
  std::string text = " count " + std::to_string(cell.count) + " mean " + exact(cell.mean_ns) +
                     " m2 " + exact(cell.m2);
  for (std::uint32_t i = 0; i < cell.kept; ++i)
    text += (i == 0 ? " some " : " ") + exact(static_cast<double>(cell.some[i]));
  return text + "\n";
}

// The words of a line; the rest of the line behind "name" or "model" is one word.
class Words {
 public:
  explicit Words(std::string_view line) : line_(line) {}
  std::string_view next() {
    line_.remove_prefix(std::min(line_.find_first_not_of(' '), line_.size()));
    const std::size_t end = std::min(line_.find(' '), line_.size());
    const std::string_view word = line_.substr(0, end);
    line_.remove_prefix(end);
    return word;
  }
  std::string_view rest() {
    line_.remove_prefix(std::min(line_.find_first_not_of(' '), line_.size()));
    return line_;
  }
  template <class T>
  bool number(std::string_view label, T* value, [[maybe_unused]] int base = 10) {
    if (next() != label) return false;
    const std::string_view word = next();
    std::from_chars_result result{};
    if constexpr (std::is_floating_point_v<T>)
      result = std::from_chars(word.data(), word.data() + word.size(), *value);
    else
      result = std::from_chars(word.data(), word.data() + word.size(), *value, base);
    return !word.empty() && result.ec == std::errc() && result.ptr == word.data() + word.size();
  }

 private:
  std::string_view line_;
};

class Parser {
 public:
  bool line(std::string_view text) {
    if (text.starts_with("kernel ")) return kernel(Words(text));
    if (text.starts_with("width ")) return width(Words(text));
    if (text.starts_with("bracket ")) return bracket(Words(text));
    return false;
  }
  Profile profile;
  std::uint64_t kernels = 0;

 private:
  bool kernel(Words words) {
    std::uint64_t blocks = 0;
    std::uint32_t resident = 0;
    if (!words.number("kernel", &key_, 16) || !words.number("blocks", &blocks) ||
        !words.number("resident", &resident) || words.next() != "name")
      return false;
    profile.describe(key_, std::string(words.rest()), blocks, resident);
    ++kernels;
    return true;
  }
  bool width(Words words) {
    ProfileCell cell;
    if (kernels == 0 || !words.number("width", &cell.sms) || cell.sms == 0 || !times(words, cell) ||
        cell.mean_ns <= 0)
      return false;
    profile.merge(key_, cell);
    return true;
  }
  bool bracket(Words words) {
    ProfileCell cell;
    if (words.next() != "bracket" || !times(words, cell)) return false;
    profile.merge_bracket(cell);
    return true;
  }
  static bool times(Words& words, ProfileCell& cell) {
    if (!words.number("count", &cell.count) || !words.number("mean", &cell.mean_ns) ||
        !words.number("m2", &cell.m2))
      return false;
    if (cell.count == 0 || !(cell.mean_ns >= 0) || !(cell.m2 >= 0) || cell.mean_ns > kLongestNs)
      return false;
    std::string_view word = words.next();
    if (word.empty()) return true;
    if (word != "some") return false;
    for (word = words.next(); !word.empty(); word = words.next()) {
      if (cell.kept == std::min<std::uint64_t>(cell.count, ProfileCell::kMostKept)) return false;
      float& ns = cell.some[cell.kept++];
      const auto read = std::from_chars(word.data(), word.data() + word.size(), ns);
      if (read.ec != std::errc() || read.ptr != word.data() + word.size() || !(ns >= 0) ||
          ns > kLongestNs)
        return false;
    }
    return cell.kept > 0;
  }
  std::uint64_t key_ = 0;
};

tl::unexpected<hal::Error> corrupt(std::string what) {
  return hal::fail(Errc::kInvalidArgument, "the profile is corrupt (" + std::move(what) +
                                               "); remove the file, it will be learnt again");
}

}  // namespace

std::string format_profile(const Profile& profile, std::string_view model) {
  std::string text = std::string(kMagic) + " " + std::to_string(kProfileVersion) + "\nmodel " +
                     std::string(model) + "\n";
  if (profile.bracket().count > 0) text += "bracket" + times(profile.bracket());
  std::vector<std::uint64_t> keys;
  for (const auto& [key, kernel] : profile.kernels()) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  for (const std::uint64_t key : keys) {
    const KernelProfile& kernel = *profile.find(key);
    std::string name = kernel.name;
    std::replace(name.begin(), name.end(), '\n', ' ');
    text += "kernel " + hexadecimal(key) + " blocks " + std::to_string(kernel.blocks) +
            " resident " + std::to_string(kernel.resident) + " name " + name + "\n";
    for (const ProfileCell& cell : kernel.cells)
      text += "width " + std::to_string(cell.sms) + times(cell);
  }
  return text + "end " + std::to_string(keys.size()) + " checksum " +
         hexadecimal(hal::fnv1a(text)) + "\n";
}

hal::Result<Profile> parse_profile(std::string_view text, std::string_view model,
                                   std::string* found) {
  const std::string_view first = text.substr(0, text.find('\n'));
  unsigned version = 0;
  if (!first.starts_with(kMagic))
    return hal::fail(Errc::kInvalidArgument,
                     "this is not a profile of Vitamin (its first line "
                     "does not begin with 'vitamin-profile')");
  if (!Words(first).number(kMagic, &version)) return corrupt("no version in its first line");
  if (version > kProfileVersion)
    return hal::fail(Errc::kUnsupported, "the profile is of a newer Vitamin (version " +
                                             std::to_string(version) + ", this one reads up to " +
                                             std::to_string(kProfileVersion) +
                                             "); update Vitamin or name another file");
  if (version == 0) return corrupt("version 0");
  const std::size_t end = text.rfind("\nend ");
  std::uint64_t kernels = 0, checksum = 0;
  if (end == text.npos) return corrupt("it has no last line: it was cut short");
  Words last(text.substr(end + 1, text.find('\n', end + 1) - end - 1));
  if (!last.number("end", &kernels) || !last.number("checksum", &checksum, 16))
    return corrupt("its last line cannot be read");
  if (hal::fnv1a(text.substr(0, end + 1)) != checksum) return corrupt("its checksum is wrong");

  Parser parser;
  std::string of;
  std::size_t number = 2;
  for (std::size_t at = first.size() + 1; at <= end; ++number) {
    const std::size_t stop = text.find('\n', at);
    const std::string_view line = text.substr(at, stop - at);
    at = stop + 1;
    if (line.starts_with("model "))
      of = line.substr(6);
    else if (!parser.line(line))
      return corrupt("line " + std::to_string(number));
  }
  if (parser.kernels != kernels) return corrupt("it does not hold as many kernels as it says");
  if (found != nullptr) *found = of;
  if (!model.empty() && of != model)
    return hal::fail(Errc::kInvalidArgument, "the profile is of another GPU (" + of + ", this is " +
                                                 std::string(model) + "); it is not used");
  return std::move(parser.profile);
}

std::string profile_path(std::string_view directory, std::string_view model) {
  std::string name;
  for (const char c : model) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (letter)
      name += c;
    else if (c >= 'A' && c <= 'Z')
      name += static_cast<char>(c - 'A' + 'a');
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  if (name.ends_with('-')) name.pop_back();
  return std::string(directory) + "/" + name + ".profile";
}

hal::Result<Profile> read_profile(const std::string& path, std::string_view model,
                                  std::string* found) {
  auto failed = [&](const std::string& why) {
    return hal::fail(Errc::kUnavailable, "profile " + path + ": " + why, errno);
  };
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return failed(errno == ENOENT ? "there is no such file; profiles are learnt by running jobs"
                                  : std::strerror(errno));
  std::string text;
  char buffer[65536];
  ssize_t got = 0;
  while ((got = ::read(file, buffer, sizeof buffer)) > 0)
    text.append(buffer, static_cast<std::size_t>(got));
  const int why = errno;
  ::close(file);
  if (got < 0) return failed(std::strerror(why));
  auto profile = parse_profile(text, model, found);
  if (!profile)
    return hal::fail(profile.error().code, "profile " + path + ": " + profile.error().message);
  return profile;
}

hal::Status write_profile(const std::string& path, const Profile& profile, std::string_view model) {
  const std::string text = format_profile(profile, model);
  const hal::FileSignalGuard guard;
  const std::string temporary = path + "." + std::to_string(::getpid());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  std::size_t written = 0;
  while (file >= 0 && written < text.size()) {
    const ssize_t n = ::write(file, text.data() + written, text.size() - written);
    if (n <= 0) break;
    written += static_cast<std::size_t>(n);
  }
  int why = errno;
  const bool closed = file >= 0 && ::close(file) == 0;
  if (written == text.size() && closed && ::rename(temporary.c_str(), path.c_str()) == 0) return {};
  if (written == text.size()) why = errno;
  if (file >= 0) ::unlink(temporary.c_str());
  return hal::fail(Errc::kUnavailable,
                   "profile " + path + " cannot be written: " + std::strerror(why), why);
}

}  // namespace vitamin::runtime
