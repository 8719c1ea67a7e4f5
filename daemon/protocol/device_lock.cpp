// SPDX-License-Identifier: Apache-2.0
#include "daemon/protocol/device_lock.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>

namespace vitamin::protocol {

namespace {

constexpr std::string_view kPrefix = "vitamin-", kSuffix = ".lock";
// Opening must not block on a FIFO of that name, nor follow a link.
constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
constexpr off_t kBetween = 0, kAlone = 1, kToTheEnd = 0;
// A process that removes the file locks all of it, for some microseconds unless it is preempted.
constexpr int kTries = 100;
constexpr timespec kPause{0, 200'000};
// A process may hold locks on any number of bytes: bounds the list and the F_GETLK calls.
constexpr std::size_t kMost = 32, kQuestions = 4 * kMost;

std::string path_in(const std::string& directory, const std::string& uuid) {
  std::string path = directory + '/';
  path += kPrefix;
  for (const char c : uuid)
    path += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' ? c : '_';
  return path.append(kSuffix);
}

struct flock piece(short type, off_t first, off_t count) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = first;
  lock.l_len = count;
  return lock;
}

// A lock of another process in [first, end); end 0: of any in the rest of the file.
std::optional<struct flock> lock_of_others(int file, off_t first, off_t end) {
  struct flock found = piece(F_WRLCK, first, end == 0 ? kToTheEnd : end - first);
  if (::fcntl(file, F_GETLK, &found) != 0 || found.l_type == F_UNLCK) return std::nullopt;
  return found;
}

// F_GETLK returns one lock of a range; the others lie on either side of it.
DeviceUsers users_of(int file) {
  DeviceUsers users;
  if (const auto between = lock_of_others(file, kBetween, kBetween + 1))
    users.between_processes = std::max(between->l_pid, 0);
  std::vector<std::pair<off_t, off_t>> left{{kAlone, 0}};
  std::size_t questions = 0;
  while (!left.empty() && users.alone.size() < kMost && questions++ < kQuestions) {
    const auto [first, end] = left.back();
    left.pop_back();
    const auto found = lock_of_others(file, first, end);
    if (!found) continue;
    users.alone.push_back(std::max(found->l_pid, 0));
    if (found->l_start > first) left.emplace_back(first, found->l_start);
    const off_t behind = found->l_start + found->l_len;
    if (found->l_len != kToTheEnd && (end == 0 || behind < end)) left.emplace_back(behind, end);
  }
  std::sort(users.alone.begin(), users.alone.end());
  return users;
}

}  // namespace

std::string name_of_process(pid_t process) {
  return process > 0 ? "process " + std::to_string(process) : "a process of another container";
}

// Another user's file must be opened without O_CREAT (fs.protected_regular), and perhaps for
// reading: neither flock() nor a shared record lock wants more.
hal::Status DeviceLock::open() {
  file_.reset(::open(path_.c_str(), O_RDWR | kFlags));
  if (!file_) file_.reset(::open(path_.c_str(), O_RDONLY | kFlags));
  if (!file_ && errno == ENOENT) {
    file_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | kFlags, 0644));
    if (file_) static_cast<void>(::fchmod(file_.get(), 0644));  // readable with any umask
  }
  struct stat facts {};
  if (file_ && ::fstat(file_.get(), &facts) == 0 && S_ISREG(facts.st_mode)) return {};
  const int error = file_ ? EINVAL : errno;
  file_.reset();  // not a lock file of ours: never remove it
  return hal::fail(
      hal::Errc::kUnavailable,
      "the lock of the device cannot be made (" + path_ + ": " + std::strerror(error) + ")", error);
}

bool DeviceLock::record(short type, off_t first, off_t count) {
  struct flock lock = piece(type, first, count);
  return ::fcntl(file_.get(), F_SETLK, &lock) == 0;
}

hal::Result<DeviceLock> DeviceLock::between_processes(const std::string& directory,
                                                      const std::string& uuid) {
  DeviceLock lock(path_in(directory, uuid));
  for (int tries = 0; tries < kTries; ++tries) {
    if (auto opened = lock.open(); !opened) {
      if (opened.error().native == EEXIST) continue;  // another process has just created it
      return tl::unexpected(opened.error());
    }
    if (::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0) break;
    // flock() has decided; the record lock only lets others find the process id.
    static_cast<void>(lock.record(F_RDLCK, kBetween, 1));
    // Otherwise the previous holder has released the lock and removed the file since open().
    lock.removes_ = lock.is_at_path();
    if (lock.removes_) return lock;
  }
  struct stat facts {};
  ::fstat(lock.file_.get(), &facts);
  const auto holder = users_of(lock.file_.get()).between_processes;
  lock.file_.reset();  // held by another process: release() must not remove it
  return hal::fail(hal::Errc::kUnavailable,
                   "another vitamind arbitrates device " + uuid + " (" +
                       name_of_process(holder.value_or(0)) + ", lock " + lock.path_ +
                       ", made by user " + std::to_string(facts.st_uid) +
                       "): end it, or connect to it with VITAMIN_DAEMON=SOCKET");
}

hal::Result<DeviceLock> DeviceLock::alone(const std::string& directory, const std::string& uuid) {
  DeviceLock lock(path_in(directory, uuid));
  for (int tries = 0; tries < kTries; ++tries) {
    if (tries > 0) ::nanosleep(&kPause, nullptr);
    if (auto opened = lock.open(); !opened) {
      if (opened.error().native == EEXIST) continue;
      return tl::unexpected(opened.error());
    }
    // Processes of two containers may have the same id: both get the shared lock.
    if (lock.record(F_RDLCK, kAlone + ::getpid(), 1) && lock.is_at_path()) return lock;
    lock.file_.reset();  // another process is removing the file
  }
  return hal::fail(hal::Errc::kUnavailable, "the lock of the device is held whole: " + lock.path_);
}

DeviceUsers DeviceLock::others() const { return file_ ? users_of(file_.get()) : DeviceUsers(); }

bool DeviceLock::is_at_path() const {
  struct stat there {
  }, ours{};
  return ::lstat(path_.c_str(), &there) == 0 && ::fstat(file_.get(), &ours) == 0 &&
         there.st_dev == ours.st_dev && there.st_ino == ours.st_ino;
}

DeviceLock& DeviceLock::operator=(DeviceLock&& other) noexcept {
  release();
  path_ = std::move(other.path_);
  file_ = std::move(other.file_);
  removes_ = other.removes_;
  return *this;
}

// Locks all of the file before it removes it, so that no process locks a file that is removed.
void DeviceLock::release() {
  if (file_ && removes_ && record(F_WRLCK, 0, kToTheEnd) && is_at_path()) ::unlink(path_.c_str());
  file_.reset();
}

std::vector<DeviceUse> device_use(const std::string& directory) {
  std::vector<DeviceUse> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> files(::opendir(directory.c_str()), &::closedir);
  if (files == nullptr) return all;
  while (const dirent* const file = ::readdir(files.get())) {
    const std::string_view name = file->d_name;
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const Fd opened(::openat(::dirfd(files.get()), file->d_name, O_RDONLY | kFlags));
    if (!opened) continue;
    DeviceUsers users = users_of(opened.get());
    if (!users.between_processes && users.alone.empty()) continue;
    all.push_back(
        {std::string(name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size())),
         std::move(users)});
  }
  return all;
}

}  // namespace vitamin::protocol
