// SPDX-License-Identifier: Apache-2.0
//
// Who decides on a device: locks of several processes on one file. Others are forked children,
// because a process does not see record locks of its own.
#include "daemon/protocol/device_lock.h"

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace {

using vitamin::protocol::device_use;
using vitamin::protocol::DeviceLock;
using vitamin::protocol::DeviceUsers;

constexpr const char* kGpu = "GPU-a/b";

struct Folder {
  Folder() { path = ::mkdtemp(name); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file() const { return path + "/vitamin-GPU-a_b.lock"; }
  bool empty() const { return std::filesystem::is_empty(path); }
  char name[32] = "/tmp/vitamin-lock-XXXXXX";
  std::string path;
};

// Another process, which has done `what` when this is made, and lives until it is ended.
class Other {
 public:
  explicit Other(const std::function<void()>& what) {
    int done[2], end[2];
    REQUIRE(::pipe(done) == 0);
    REQUIRE(::pipe(end) == 0);
    id = ::fork();
    if (id == 0) {
      ::close(end[1]);
      what();
      char byte = 0;
      if (::write(done[1], &byte, 1) == 1) static_cast<void>(::read(end[0], &byte, 1));
      ::_exit(0);
    }
    ::close(done[1]), ::close(end[0]);
    char byte = 0;
    CHECK(::read(done[0], &byte, 1) == 1);
    ::close(done[0]);
    end_ = end[1];
  }
  ~Other() { end(); }
  void end() {
    if (end_ < 0) return;
    ::close(end_);
    end_ = -1;
    ::waitpid(id, nullptr, 0);
  }
  pid_t id = 0;

 private:
  int end_ = -1;
};

// In a process of its own, which leaves what it has to the kernel.
Other alone(const Folder& folder) {
  return Other([&] {
    auto lock = DeviceLock::alone(folder.path, kGpu);
    if (!lock) ::_exit(1);
    static_cast<void>(new DeviceLock(std::move(*lock)));
  });
}
Other daemon(const Folder& folder) {
  return Other([&] {
    auto lock = DeviceLock::between_processes(folder.path, kGpu);
    if (!lock) ::_exit(1);
    static_cast<void>(new DeviceLock(std::move(*lock)));
  });
}

bool same(const std::vector<pid_t>& found, std::vector<pid_t> expected) {
  std::sort(expected.begin(), expected.end());
  return found == expected;
}

}  // namespace

TEST_CASE("one vitamind a device; the second is told of the process that is there") {
  const Folder folder;
  Other first = daemon(folder);
  const auto second = DeviceLock::between_processes(folder.path, kGpu);
  REQUIRE(!second);
  CHECK(second.error().message.find("process " + std::to_string(first.id)) != std::string::npos);
  CHECK(second.error().message.find(folder.file()) != std::string::npos);
  CHECK(DeviceLock::between_processes(folder.path, "GPU-other"));
  first.end();
  CHECK(DeviceLock::between_processes(folder.path, kGpu));
}

TEST_CASE("processes that decide alone are refused by nobody and see who was there") {
  const Folder folder;
  const Other vitamind = daemon(folder), one = alone(folder);
  Other two = alone(folder);
  const auto mine = DeviceLock::alone(folder.path, kGpu);
  REQUIRE(mine);
  CHECK(mine->others().between_processes == vitamind.id);
  CHECK(same(mine->others().alone, {one.id, two.id}));
  two.end();
  CHECK(same(mine->others().alone, {one.id}));
}

TEST_CASE("a vitamind that comes later starts, and sees them") {
  const Folder folder;
  const Other one = alone(folder), two = alone(folder);
  const auto lock = DeviceLock::between_processes(folder.path, kGpu);
  REQUIRE(lock);
  CHECK(!lock->others().between_processes);
  CHECK(same(lock->others().alone, {one.id, two.id}));
}

TEST_CASE("the file goes with the vitamind that gives it back, and with nobody's lock") {
  const Folder folder;
  {
    const auto lock = DeviceLock::between_processes(folder.path, kGpu);
    CHECK(!folder.empty());
  }
  CHECK(folder.empty());
  Other process = alone(folder);
  DeviceLock::between_processes(folder.path, kGpu)->release();
  CHECK(!folder.empty());  // else who comes next would not see that process
  CHECK(same(DeviceLock::between_processes(folder.path, kGpu)->others().alone, {process.id}));
  process.end();
  DeviceLock::between_processes(folder.path, kGpu)->release();
  CHECK(folder.empty());
}

TEST_CASE("another user's file may be one that can only be read") {
  if (::geteuid() != 0) return;
  const Folder folder;
  REQUIRE(::chmod(folder.path.c_str(), 01777) == 0);
  const mode_t before = ::umask(077);  // it is for all users, whatever this says
  const auto mine = DeviceLock::alone(folder.path, kGpu);
  ::umask(before);
  REQUIRE(mine);
  constexpr uid_t kNobody = 65534;
  const Other theirs([&] {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(1);
    auto lock = DeviceLock::between_processes(folder.path, kGpu);
    if (!lock || !same(lock->others().alone, {::getppid()})) ::_exit(1);
    static_cast<void>(new DeviceLock(std::move(*lock)));
  });
  CHECK(mine->others().between_processes == theirs.id);
}

TEST_CASE("a forked child is nobody's neighbour, and leaves its parent's place alone") {
  const Folder folder;
  const auto mine = DeviceLock::alone(folder.path, kGpu);
  REQUIRE(mine);
  const int child = ::fork();
  if (child == 0) {  // it has the descriptor, and closes it when it ends
    const auto seen = device_use(folder.path);
    ::_exit(seen.size() == 1 && same(seen[0].users.alone, {::getppid()}) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  const Other late([&] {
    const auto lock = DeviceLock::alone(folder.path, kGpu);
    if (!lock || !same(lock->others().alone, {::getppid()})) ::_exit(1);
  });
}

TEST_CASE("who only looks sees every device that somebody decides on, and takes nothing") {
  const Folder folder;
  std::filesystem::create_directory(folder.path + "/vitamin-folder.lock");
  REQUIRE(::mkfifo((folder.path + "/vitamin-fifo.lock").c_str(), 0666) == 0);
  CHECK(device_use(folder.path).empty());
  CHECK(device_use(folder.path + "/none").empty());
  const Other vitamind = daemon(folder), process = alone(folder);
  const auto all = device_use(folder.path);
  REQUIRE(all.size() == 1);
  CHECK(all[0].name == "GPU-a_b");
  CHECK(all[0].users.between_processes == vitamind.id);
  CHECK(same(all[0].users.alone, {process.id}));
}

TEST_CASE("what is no file, or cannot be used, is an error and nothing to wait for") {
  const Folder folder;
  const auto refused = [&] {
    const auto between = DeviceLock::between_processes(folder.path, kGpu);
    const auto by_itself = DeviceLock::alone(folder.path, kGpu);
    struct stat facts {};  // and it is still there
    return !between && !by_itself && ::lstat(folder.file().c_str(), &facts) == 0 &&
           between.error().message.find("cannot be made") != std::string::npos;
  };
  REQUIRE(::mkfifo(folder.file().c_str(), 0666) == 0);
  CHECK(refused());
  std::filesystem::remove(folder.file());
  REQUIRE(::symlink("/etc/passwd", folder.file().c_str()) == 0);
  CHECK(refused());
  std::filesystem::remove(folder.file());
  std::filesystem::create_directory(folder.file());
  CHECK(refused());
  CHECK(!DeviceLock::alone(folder.path + "/none", kGpu));
}

TEST_CASE("somebody who holds the whole file, or much of it, costs a bounded look") {
  const Folder folder;
  const auto hold = [&](short type, bool all) {
    const int file = ::open(folder.file().c_str(), O_RDWR | O_CREAT, 0666);
    for (off_t at = 1; at < (all ? 2 : 4000); at += 2) {
      struct flock lock {};
      lock.l_type = type;
      lock.l_start = all ? 0 : at;
      lock.l_len = all ? 0 : 1;
      if (::fcntl(file, F_SETLK, &lock) != 0) ::_exit(1);
    }
  };
  {
    const Other whole([&] { hold(F_WRLCK, true); });
    CHECK(DeviceLock::between_processes(folder.path, kGpu));  // flock is what counts
    CHECK(!DeviceLock::alone(folder.path, kGpu));
  }
  const Other many([&] { hold(F_RDLCK, false); });
  const auto mine = DeviceLock::alone(folder.path, kGpu);
  REQUIRE(mine);
  const DeviceUsers others = mine->others();
  CHECK(!others.between_processes);
  CHECK(others.alone.size() <= 32);
  CHECK(!others.alone.empty());
}

TEST_CASE("any number of processes come and go at once, and nobody who is there is overlooked") {
  const Folder folder;
  std::vector<pid_t> children;
  for (int n = 0; n < 4; ++n) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0; i < 300; ++i) {
        // Each vitamind that gives back removes the file, if nobody is there.
        auto lock = n < 2 ? DeviceLock::between_processes(folder.path, kGpu)
                          : DeviceLock::alone(folder.path, kGpu);
        if (!lock && n < 2) continue;  // the other vitamind
        if (!lock) ::_exit(1);
        struct stat facts {};
        if (::stat(folder.file().c_str(), &facts) != 0) ::_exit(2);  // removed under its feet
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WEXITSTATUS(status) == 0);
  }
}
