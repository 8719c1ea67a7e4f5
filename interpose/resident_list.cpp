// SPDX-License-Identifier: Apache-2.0
#include "interpose/resident_list.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "hal/file_memory.h"

namespace vitamin::interpose {
namespace {

// The descriptor of an open file, locked. A child of fork() has the descriptor, too, and would keep
// the lock: it is given back, not left to the last close(). Where the file system has no locks two
// processes may add the same name, which does no harm.
class LockedFile {
 public:
  explicit LockedFile(int file) : file_(file) {
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~LockedFile() {
    ::flock(file_, LOCK_UN);
    ::close(file_);
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

 private:
  int file_;
};

bool is_name(std::string_view kernel) {
  return !kernel.empty() && kernel.front() != '#' && kernel.find('\n') == std::string_view::npos;
}

std::unordered_set<std::string> names_in(std::istream& lines) {
  std::unordered_set<std::string> names;
  for (std::string name; std::getline(lines, name);)
    if (is_name(name)) names.insert(name);
  return names;
}

// False: it cannot be read, and nothing is known about its contents.
bool read_all(int file, std::string& text) {
  char part[4096];
  ssize_t n = 0;
  while ((n = ::pread(file, part, sizeof part, static_cast<off_t>(text.size()))) != 0) {
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) text.append(part, static_cast<std::size_t>(n));
  }
  return true;
}

}  // namespace

std::unordered_set<std::string> read_resident_list(const char* file) {
  std::ifstream lines(file);
  return names_in(lines);
}

bool add_to_resident_list(const char* file, std::string_view kernel) {
  if (!is_name(kernel)) return false;
  const hal::FileSignalGuard guard;
  const int opened = ::open(file, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (opened < 0) return false;
  const LockedFile locked(opened);
  std::string text;
  if (!read_all(opened, text)) return false;
  std::istringstream lines(text);
  if (names_in(lines).contains(std::string(kernel))) return true;
  std::string line(kernel);
  line += '\n';
  // A user's last line may have no end.
  if (!text.empty() && text.back() != '\n') line.insert(0, 1, '\n');
  const ssize_t written = ::write(opened, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return true;
  // The beginning of a name is the name of another kernel.
  if (written > 0) hal::set_file_size(opened, text.size());
  return false;
}

}  // namespace vitamin::interpose
