// SPDX-License-Identifier: Apache-2.0
#include "hal/read_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace vitamin::hal {
namespace {

TEST_CASE("a file is read whole, whatever its size") {
  char path[] = "/tmp/vitamin-read-file-XXXXXX";
  const int file = ::mkstemp(path);
  REQUIRE(file >= 0);
  std::string expected;
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 100'000}) {
    while (expected.size() < size) expected += static_cast<char>('a' + expected.size() % 26);
    REQUIRE(::pwrite(file, expected.data(), size, 0) == static_cast<ssize_t>(size));
    CHECK(read_file(path) == expected);
  }
  ::close(file);
  ::unlink(path);
}

TEST_CASE("a file that says nothing of its size is read whole") {
  CHECK(read_file("/proc/self/stat").value_or("").starts_with(std::to_string(::getpid())));
}

TEST_CASE("a file that cannot be opened or read is nothing, and no exception") {
  CHECK_FALSE(read_file("/proc/self/no-such-file"));
  CHECK(errno == ENOENT);
  // Opening a directory for reading succeeds, reading it fails, as with a file of a process that
  // ends in between.
  CHECK_FALSE(read_file("/proc/self"));
  CHECK(errno == EISDIR);
  CHECK_FALSE(read_file("/proc/self/mem"));
  CHECK(errno == EIO);
}

}  // namespace
}  // namespace vitamin::hal
