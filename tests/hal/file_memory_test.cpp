// SPDX-License-Identifier: Apache-2.0
//
// Files that find no room, or a limit, are errors and no signals.
#include "hal/file_memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

namespace vitamin::hal {
namespace {

constexpr std::size_t kBytes = 16 * kMemoryPage;

// A file in memory without a name.
int memory_file() { return ::memfd_create("test", MFD_CLOEXEC); }

// How a child ends that does this: its exit code, or minus the signal.
template <class Do>
int end_of_child(Do act) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(act());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void limit_files(rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST_CASE("a file that grows keeps what it held") {
  const int file = memory_file();
  auto* first = static_cast<unsigned char*>(grow_file(file, nullptr, 0, kBytes));
  REQUIRE(first != nullptr);
  first[kBytes - 1] = 7;
  auto* grown = static_cast<unsigned char*>(grow_file(file, first, kBytes, 4 * kBytes));
  REQUIRE(grown != nullptr);
  CHECK(grown[kBytes - 1] == 7);
  CHECK(grown[4 * kBytes - 1] == 0);
  grown[4 * kBytes - 1] = 8;
  unsigned char last = 0;
  CHECK(read_at(file, &last, 1, 4 * kBytes - 1));
  CHECK(last == 8);
  ::munmap(grown, 4 * kBytes);
  ::close(file);
}

TEST_CASE("a page that cannot be written is an error where it would have been a signal") {
  const int file = memory_file();
  REQUIRE(set_file_size(file, kBytes));
  void* const memory = map_file(file, 2 * kBytes, PROT_READ | PROT_WRITE);
  REQUIRE(memory != nullptr);
  SUBCASE("asked of the kernel at once") {
    CHECK(make_room(memory, kBytes));
    CHECK_FALSE(make_room(memory, 2 * kBytes));
  }
  SUBCASE("page by page, as on older kernels") {
    CHECK(make_room_of_fresh(memory, kBytes));
    CHECK_FALSE(make_room_of_fresh(memory, 2 * kBytes));
    const auto* const bytes = static_cast<const unsigned char*>(memory);
    for (std::size_t i = 0; i < kBytes; ++i) REQUIRE(bytes[i] == 0);
  }
  CHECK(errno == ENOSPC);
  ::munmap(memory, 2 * kBytes);
  ::close(file);
}

TEST_CASE("a file beyond the limit of the process is an error") {
  CHECK(end_of_child([] {
          limit_files(kMemoryPage);
          const int file = memory_file();
          if (set_file_size(file, kBytes) || errno != EFBIG) return 1;
          if (grow_file(file, nullptr, 0, kBytes) != nullptr || errno != EFBIG) return 2;
          // What the program does itself has its usual end.
          return ::ftruncate(file, kBytes) == 0 ? 3 : 4;
        }) == -SIGXFSZ);
}

TEST_CASE("a pipe without a reader is an error, and only while it is guarded") {
  CHECK(end_of_child([] {
          int ends[2];
          if (::pipe(ends) != 0) return 1;
          ::close(ends[0]);
          {
            const FileSignalGuard guard;
            if (::write(ends[1], "x", 1) >= 0 || errno != EPIPE) return 2;
          }
          return ::write(ends[1], "x", 1) >= 0 ? 3 : 4;
        }) == -SIGPIPE);
}

TEST_CASE("a guard leaves a signal that was pending before") {
  CHECK(end_of_child([] {
          sigset_t pipe{};
          sigemptyset(&pipe);
          sigaddset(&pipe, SIGPIPE);
          ::sigprocmask(SIG_BLOCK, &pipe, nullptr);
          ::raise(SIGPIPE);
          { const FileSignalGuard guard; }
          ::sigprocmask(SIG_UNBLOCK, &pipe, nullptr);
          return 1;
        }) == -SIGPIPE);
}

TEST_CASE("reading behind the end of a file is refused") {
  const int file = memory_file();
  REQUIRE(set_file_size(file, 10));
  char bytes[16];
  CHECK(read_at(file, bytes, 10));
  CHECK_FALSE(read_at(file, bytes, 11));
  CHECK(errno == 0);
  CHECK_FALSE(read_at(file, bytes, 1, 10));
  ::close(file);
}

}  // namespace
}  // namespace vitamin::hal
