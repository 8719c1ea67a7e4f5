// SPDX-License-Identifier: Apache-2.0
//
// The private folder of one run: its statistics pages, gone at the end.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vitamin::tools {

// Where such folders are made, best first. In memory where possible: the pages are shared mappings,
// and a disk would be asked to keep up with counters.
std::vector<std::string> run_directory_parents();

class RunDirectory {
 public:
  // kDisk: for what may become large; $TMPDIR or /tmp.
  enum class Where : bool { kMemory, kDisk };
  explicit RunDirectory(Where where = Where::kMemory);  // path() is empty when no parent took it
  ~RunDirectory() { remove(); }
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  void remove();
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace vitamin::tools
