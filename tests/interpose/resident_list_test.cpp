// SPDX-License-Identifier: Apache-2.0
//
// The list of kernels that need their whole grid resident (interpose/resident_list.h): each name
// once, whichever processes add it.
#include "interpose/resident_list.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace vitamin::interpose {
namespace {

class ListFile {
 public:
  ListFile() {
    char name[] = "/tmp/vitamin-resident-XXXXXX";
    directory_ = ::mkdtemp(name);
    path_ = directory_ + "/list";
  }
  ~ListFile() {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
  }
  const char* path() const { return path_.c_str(); }
  void write(const std::string& text) const { std::ofstream(path_) << text; }
  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string directory_, path_;
};

TEST_CASE("a_kernel_is_in_the_list_once_however_often_it_is_added") {
  const ListFile list;
  CHECK(read_resident_list(list.path()).empty());
  for (int round = 0; round < 3; ++round)
    for (const char* kernel : {"barrier", "barrier_of_two"})
      CHECK(add_to_resident_list(list.path(), kernel));
  CHECK(list.text() == "barrier\nbarrier_of_two\n");
  CHECK(read_resident_list(list.path()).size() == 2);
}

TEST_CASE("what_a_user_wrote_is_kept_and_counts") {
  const ListFile list;
  list.write("# mine\nfirst\n\nlast");  // without an end of the line
  CHECK(add_to_resident_list(list.path(), "first"));
  CHECK(add_to_resident_list(list.path(), "last"));
  CHECK(list.text() == "# mine\nfirst\n\nlast");
  CHECK(add_to_resident_list(list.path(), "more"));
  CHECK(list.text() == "# mine\nfirst\n\nlast\nmore\n");
  CHECK(read_resident_list(list.path()).size() == 3);
}

TEST_CASE("a_name_that_no_line_can_hold_is_refused") {
  const ListFile list;
  for (const char* kernel : {"", "#comment", "two\nlines"})
    CHECK_FALSE(add_to_resident_list(list.path(), kernel));
  CHECK(list.text().empty());
}

TEST_CASE("a_file_without_room_for_the_name_stays_as_it_was") {
  const ListFile list;
  list.write("first\n");
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit limit{10, 10};  // bytes: room for the beginning of the name
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    ::_exit(add_to_resident_list(list.path(), "second_kernel") ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(list.text() == "first\n");
}

TEST_CASE("processes_that_add_the_same_kernels_at_once_add_each_once") {
  constexpr int kProcesses = 8, kKernels = 300;  // more than one read() takes
  const ListFile list;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    bool all = true;
    for (int kernel = 0; kernel < kKernels; ++kernel)
      all &= add_to_resident_list(list.path(), "a_kernel_with_number_" + std::to_string(kernel));
    ::_exit(all ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  std::istringstream lines(list.text());
  int count = 0;
  for (std::string line; std::getline(lines, line);) ++count;
  CHECK(count == kKernels);
  CHECK(read_resident_list(list.path()).size() == kKernels);
}

}  // namespace
}  // namespace vitamin::interpose
