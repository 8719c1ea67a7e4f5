// SPDX-License-Identifier: Apache-2.0
//
// The private directory of one run: its statistics pages, gone at the end.
//
// A directory belongs to the process that holds flock() on it, which the kernel drops with the
// process however it ends. A run that makes one first removes those of this user beside it that
// belong to no process any more and that none names in its environment or command line: a program
// may outlive the `vitamin run` that started it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "daemon/protocol/fd.h"

namespace vitamin::tools {

// Where such directories are made, best first. In memory where possible: the pages are shared
// mappings, and a disk would be asked to keep up with counters.
std::vector<std::string> run_directory_parents();

class RunDirectory {
 public:
  // kDisk: for what may become large; $TMPDIR or /tmp.
  enum class Where : bool { kMemory, kDisk };
  // In the first parent that has room for a statistics page, else in the first that takes a
  // directory; path() is empty when none does.
  explicit RunDirectory(Where where = Where::kMemory);
  ~RunDirectory() { remove(); }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  void remove();
  const std::filesystem::path& path() const { return path_; }

 private:
  bool make_in(const std::string& parent, bool with_room);

  std::filesystem::path path_;
  protocol::Fd lock_;
};

}  // namespace vitamin::tools
