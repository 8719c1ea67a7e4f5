// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "daemon/protocol/fd.h"

namespace vitamin::daemon {

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

namespace {

constexpr std::string_view kClientFault = "encountered a fatal GPU error";
constexpr std::string_view kServerFault = "is handling a fatal GPU error";
constexpr std::string_view kList = "have a sticky error set";

bool contains(std::string_view line, std::string_view words) {
  return line.find(words) != line.npos;
}

// "[... Server 40287] text": both, or nothing.
std::optional<std::pair<std::string_view, std::string_view>> server_and_text(
    std::string_view line) {
  constexpr std::string_view kBefore = " Server ";
  const std::size_t end = line.find("] ");
  const std::size_t begin = line.find(kBefore);
  if (!line.starts_with('[') || end == line.npos || begin > end) return std::nullopt;
  const std::size_t number = begin + kBefore.size();
  const std::string_view server = line.substr(number, end - number);
  if (!is_number(server)) return std::nullopt;
  return std::pair(server, line.substr(end + 2));
}

}  // namespace

MpsLog::MpsLog(std::string path) : path_(std::move(path)) {
  struct stat facts {};
  if (::stat(path_.c_str(), &facts) != 0) return;
  file_ = facts.st_ino;
  read_ = facts.st_size;
}

// Only this user can write the directory, so only the size of the file is checked.
std::string MpsLog::appended() {
  struct stat facts {};
  if (::stat(path_.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return {};
  if (facts.st_ino != file_ || facts.st_size < read_) {
    file_ = facts.st_ino;
    read_ = 0;
    rest_.clear();
  }
  if (facts.st_size == read_) return {};
  const protocol::Fd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return {};
  constexpr auto kMost = static_cast<off_t>(kMostRead);
  if (facts.st_size - read_ > kMost) {
    read_ = facts.st_size - kMost;
    rest_.clear();
  }
  std::string text(static_cast<std::size_t>(facts.st_size - read_), '\0');
  const ssize_t length = ::pread(file.get(), text.data(), text.size(), read_);
  text.resize(length > 0 ? static_cast<std::size_t>(length) : 0);
  read_ += static_cast<off_t>(text.size());
  return text;
}

std::vector<MpsFault> MpsLog::read_new() {
  std::vector<MpsFault> faults;
  const std::string text = rest_ + appended();
  std::string_view left = text;
  for (std::size_t end; (end = left.find('\n')) != left.npos; left.remove_prefix(end + 1))
    take(left.substr(0, end), faults);
  rest_ = left.substr(0, std::min(left.size(), kMostRead));
  if (open_ && std::exchange(late_, true)) finish(faults);
  return faults;
}

void MpsLog::take(std::string_view line, std::vector<MpsFault>& faults) {
  const auto parts = server_and_text(line);
  if (!parts) return;
  const auto [server, text] = *parts;
  if (open_ && open_->server == server && lists_) {
    if (is_number(text)) {
      open_->affected.emplace_back(text);
      return;
    }
    finish(faults);
  }
  if (contains(text, kClientFault) || contains(text, kServerFault)) {
    if (open_ && open_->server != server) finish(faults);
    // One fault may be reported for several clients.
    if (!open_) open_ = MpsFault{std::string(server), {}};
  } else if (open_ && open_->server == server && contains(text, kList)) {
    lists_ = true;
  }
}

void MpsLog::finish(std::vector<MpsFault>& faults) {
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): called while a fault is open
  faults.push_back(std::move(*open_));
  open_.reset();
  lists_ = late_ = false;
}

}  // namespace vitamin::daemon
