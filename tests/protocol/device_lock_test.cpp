// SPDX-License-Identifier: Apache-2.0
//
// Device locks of several processes on one file. The other processes are forked children, because a
// process does not see record locks of its own.
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

#include "tests/time_limit.h"

namespace {

using vitamin::protocol::device_use;
using vitamin::protocol::DeviceLock;
using vitamin::protocol::DeviceUsers;

constexpr const char* kGpu = "GPU-a/b";

struct TemporaryDirectory {
  TemporaryDirectory() { path = ::mkdtemp(name); }
  ~TemporaryDirectory() { std::filesystem::remove_all(path); }
  std::string file() const { return path + "/vitamin-GPU-a_b.lock"; }
  bool empty() const { return std::filesystem::is_empty(path); }
  char name[32] = "/tmp/vitamin-lock-XXXXXX";
  std::string path;
};

// A child process. The constructor returns when the child has done `what`; the child lives until
// end().
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

// A child that takes the lock and never releases it: the kernel does when the child ends.
Other alone(const TemporaryDirectory& directory) {
  return Other([&] {
    auto lock = DeviceLock::alone(directory.path, kGpu);
    if (!lock) ::_exit(1);
    static_cast<void>(new DeviceLock(std::move(*lock)));
  });
}
Other daemon(const TemporaryDirectory& directory) {
  return Other([&] {
    auto lock = DeviceLock::between_processes(directory.path, kGpu);
    if (!lock) ::_exit(1);
    static_cast<void>(new DeviceLock(std::move(*lock)));
  });
}

bool same(const std::vector<pid_t>& found, std::vector<pid_t> expected) {
  std::sort(expected.begin(), expected.end());
  return found == expected;
}

}  // namespace

TEST_CASE("a second vitamind on a device is refused, and the error names the first one's process") {
  const TemporaryDirectory directory;
  Other first = daemon(directory);
  const auto second = DeviceLock::between_processes(directory.path, kGpu);
  REQUIRE(!second);
  CHECK(second.error().message.find("process " + std::to_string(first.id)) != std::string::npos);
  CHECK(second.error().message.find(directory.file()) != std::string::npos);
  CHECK(DeviceLock::between_processes(directory.path, "GPU-other"));
  first.end();
  CHECK(DeviceLock::between_processes(directory.path, kGpu));
}

TEST_CASE("a process without vitamind is never refused, and sees the processes that hold locks") {
  const TemporaryDirectory directory;
  const Other vitamind = daemon(directory), one = alone(directory);
  Other two = alone(directory);
  const auto mine = DeviceLock::alone(directory.path, kGpu);
  REQUIRE(mine);
  CHECK(mine->others().between_processes == vitamind.id);
  CHECK(same(mine->others().alone, {one.id, two.id}));
  two.end();
  CHECK(same(mine->others().alone, {one.id}));
}

TEST_CASE("a vitamind that starts after processes without one gets its lock, and sees them") {
  const TemporaryDirectory directory;
  const Other one = alone(directory), two = alone(directory);
  const auto lock = DeviceLock::between_processes(directory.path, kGpu);
  REQUIRE(lock);
  CHECK(!lock->others().between_processes);
  CHECK(same(lock->others().alone, {one.id, two.id}));
}

TEST_CASE("a vitamind that releases its lock removes the file if no process holds another") {
  const TemporaryDirectory directory;
  {
    const auto lock = DeviceLock::between_processes(directory.path, kGpu);
    CHECK(!directory.empty());
  }
  CHECK(directory.empty());
  Other process = alone(directory);
  DeviceLock::between_processes(directory.path, kGpu)->release();
  CHECK(!directory.empty());  // otherwise the next vitamind would not see that process
  CHECK(same(DeviceLock::between_processes(directory.path, kGpu)->others().alone, {process.id}));
  process.end();
  DeviceLock::between_processes(directory.path, kGpu)->release();
  CHECK(directory.empty());
}

TEST_CASE("a lock file of another user that is only readable can be locked") {
  if (::geteuid() != 0) return;
  const TemporaryDirectory directory;
  REQUIRE(::chmod(directory.path.c_str(), 01777) == 0);
  const mode_t before = ::umask(077);  // the file is readable for all users all the same
  const auto mine = DeviceLock::alone(directory.path, kGpu);
  ::umask(before);
  REQUIRE(mine);
  constexpr uid_t kNobody = 65534;
  const Other theirs([&] {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(1);
    auto lock = DeviceLock::between_processes(directory.path, kGpu);
    if (!lock || !same(lock->others().alone, {::getppid()})) ::_exit(1);
    static_cast<void>(new DeviceLock(std::move(*lock)));
  });
  CHECK(mine->others().between_processes == theirs.id);
}

TEST_CASE("a forked child holds no lock, and its end does not drop its parent's") {
  const TemporaryDirectory directory;
  const auto mine = DeviceLock::alone(directory.path, kGpu);
  REQUIRE(mine);
  const int child = ::fork();
  if (child == 0) {  // it has the descriptor, and closes it when it ends
    const auto seen = device_use(directory.path);
    ::_exit(seen.size() == 1 && same(seen[0].users.alone, {::getppid()}) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  const Other late([&] {
    const auto lock = DeviceLock::alone(directory.path, kGpu);
    if (!lock || !same(lock->others().alone, {::getppid()})) ::_exit(1);
  });
}

TEST_CASE("device_use() lists every locked device and ignores what is no regular file") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory.path + "/vitamin-directory.lock");
  REQUIRE(::mkfifo((directory.path + "/vitamin-fifo.lock").c_str(), 0666) == 0);
  CHECK(device_use(directory.path).empty());
  CHECK(device_use(directory.path + "/none").empty());
  const Other vitamind = daemon(directory), process = alone(directory);
  const auto all = device_use(directory.path);
  REQUIRE(all.size() == 1);
  CHECK(all[0].name == "GPU-a_b");
  CHECK(all[0].users.between_processes == vitamind.id);
  CHECK(same(all[0].users.alone, {process.id}));
}

TEST_CASE("a FIFO, link or directory at the lock's path is an error at once, and stays there") {
  const TemporaryDirectory directory;
  const auto refused = [&] {
    const auto between = DeviceLock::between_processes(directory.path, kGpu);
    const auto by_itself = DeviceLock::alone(directory.path, kGpu);
    struct stat facts {};
    return !between && !by_itself && ::lstat(directory.file().c_str(), &facts) == 0 &&
           between.error().message.find("cannot be made") != std::string::npos;
  };
  REQUIRE(::mkfifo(directory.file().c_str(), 0666) == 0);
  CHECK(refused());
  std::filesystem::remove(directory.file());
  REQUIRE(::symlink("/etc/passwd", directory.file().c_str()) == 0);
  CHECK(refused());
  std::filesystem::remove(directory.file());
  std::filesystem::create_directory(directory.file());
  CHECK(refused());
  CHECK(!DeviceLock::alone(directory.path + "/none", kGpu));
}

TEST_CASE("a process that locks the whole file or many bytes of it costs a bounded search") {
  const TemporaryDirectory directory;
  const auto hold = [&](short type, bool all) {
    const int file = ::open(directory.file().c_str(), O_RDWR | O_CREAT, 0666);
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
    CHECK(DeviceLock::between_processes(directory.path, kGpu));  // flock() decides
    CHECK(!DeviceLock::alone(directory.path, kGpu));
  }
  const Other many([&] { hold(F_RDLCK, false); });
  const auto mine = DeviceLock::alone(directory.path, kGpu);
  REQUIRE(mine);
  const DeviceUsers others = mine->others();
  CHECK(!others.between_processes);
  CHECK(others.alone.size() <= 32);
  CHECK(!others.alone.empty());
}

TEST_CASE("the file of a process that holds its lock is never removed while others come and go") {
  const TemporaryDirectory directory;
  std::vector<pid_t> children;
  for (int n = 0; n < 4; ++n) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0; i < 300; ++i) {
        // A vitamind that releases its lock removes the file if no other process holds one.
        auto lock = n < 2 ? DeviceLock::between_processes(directory.path, kGpu)
                          : DeviceLock::alone(directory.path, kGpu);
        if (!lock && n < 2) continue;  // the other vitamind
        // One that removes the file has all of it locked, and may be preempted then for longer than
        // alone() tries.
        if (!lock && !vitamin::test::eventually([&] {
              lock = DeviceLock::alone(directory.path, kGpu);
              return lock.has_value();
            }))
          ::_exit(1);
        struct stat facts {};
        if (::stat(directory.file().c_str(), &facts) != 0) ::_exit(2);  // removed under its feet
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
