// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/run/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <iterator>
#include <memory>
#include <string_view>
#include <system_error>

#include "hal/file_memory.h"
#include "hal/read_file.h"
#include "runtime/stats.h"

namespace vitamin::tools {

namespace fs = std::filesystem;
using protocol::Fd;

namespace {

constexpr std::string_view kPrefix = "vitamin-run-";

Fd open_directory(const std::string& path) {
  return Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Ours, and not a directory that has taken its name since.
bool is_at(const std::string& path, const Fd& directory) {
  struct stat there {
  }, opened{};
  return ::lstat(path.c_str(), &there) == 0 && ::fstat(directory.get(), &opened) == 0 &&
         there.st_dev == opened.st_dev && there.st_ino == opened.st_ino &&
         opened.st_uid == ::geteuid();
}

bool has_room(const fs::path& directory) {
  const fs::path probe = directory / "room";
  const Fd file(::open(probe.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return false;
  void* const memory = hal::grow_file(file.get(), nullptr, 0, sizeof(runtime::stats::ProcessPage));
  if (memory != nullptr) ::munmap(memory, sizeof(runtime::stats::ProcessPage));
  ::unlink(probe.c_str());
  return memory != nullptr;
}

// What is in it goes by way of the descriptor, wherever the path leads meanwhile.
void remove_directory(const std::string& path, const Fd& directory) {
  const std::string inside = "/proc/self/fd/" + std::to_string(directory.get()) + "/.";
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(inside, ignored))
    fs::remove_all(entry.path(), ignored);
  ::rmdir(path.c_str());
}

// Leaves those paths that no process of this user names.
void erase_named(std::vector<std::string>& paths) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", ignored)) {
    struct stat owner {};
    if (std::isdigit(static_cast<unsigned char>(entry.path().filename().native().front())) == 0 ||
        ::stat(entry.path().c_str(), &owner) != 0 || owner.st_uid != ::geteuid())
      continue;
    const std::string text = hal::read_file(entry.path() / "environ").value_or("") +
                             hal::read_file(entry.path() / "cmdline").value_or("");
    std::erase_if(paths, [&](const std::string& path) { return text.find(path) != text.npos; });
    if (paths.empty()) return;
  }
}

void remove_abandoned(const std::string& parent) {
  std::vector<std::string> paths;
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(parent.c_str()), &::closedir);
  if (entries == nullptr) return;
  while (const dirent* const entry = ::readdir(entries.get()))
    if (std::string_view(entry->d_name).starts_with(kPrefix)) {
      std::string path = parent + '/' + entry->d_name;
      const Fd directory = open_directory(path);
      // Seen without a lock now, it is looked at more closely below.
      if (directory && is_at(path, directory) && ::flock(directory.get(), LOCK_EX | LOCK_NB) == 0)
        paths.push_back(std::move(path));
    }
  if (!paths.empty()) erase_named(paths);
  for (const std::string& path : paths) {
    const Fd directory = open_directory(path);
    if (directory && ::flock(directory.get(), LOCK_EX | LOCK_NB) == 0 && is_at(path, directory))
      remove_directory(path, directory);
  }
}

}  // namespace

std::vector<std::string> run_directory_parents() {
  std::vector<std::string> parents;
  for (const char* variable : {"XDG_RUNTIME_DIR", "", "TMPDIR"}) {
    const char* value = *variable == '\0' ? "/dev/shm" : ::getenv(variable);
    if (value != nullptr && *value == '/') parents.emplace_back(value);
  }
  parents.emplace_back("/tmp");
  return parents;
}

RunDirectory::RunDirectory(Where where) {
  std::vector<std::string> parents = run_directory_parents();
  if (where == Where::kDisk)  // the parents in memory come first
    std::erase_if(parents, [](const std::string& parent) {
      const char* runtime = ::getenv("XDG_RUNTIME_DIR");
      return parent == "/dev/shm" || (runtime != nullptr && parent == runtime);
    });
  for (const std::string& parent : parents) {
    remove_abandoned(parent);
    if (make_in(parent, true)) return;
  }
  // Without a report the command runs all the same.
  for (const std::string& parent : parents)
    if (make_in(parent, false)) return;
}

bool RunDirectory::make_in(const std::string& parent, bool with_room) {
  constexpr int kTries = 100;
  for (int tries = 0; tries < kTries; ++tries) {
    std::string path = parent + '/' + std::string(kPrefix) + "XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return false;
    Fd directory = open_directory(path);
    // Until it is locked it looks abandoned, and may be gone. A file system without locks is one
    // where no other run takes it for abandoned either.
    const bool locked = directory && ::flock(directory.get(), LOCK_EX | LOCK_NB) == 0;
    if (!directory) ::rmdir(path.c_str());
    if (!directory || (!locked && errno == EWOULDBLOCK) || !is_at(path, directory)) continue;
    if (with_room && !has_room(path)) {
      remove_directory(path, directory);
      return false;
    }
    path_ = path;
    lock_ = std::move(directory);
    return true;
  }
  return false;
}

void RunDirectory::remove() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
  path_.clear();
  lock_.reset();
}

}  // namespace vitamin::tools
