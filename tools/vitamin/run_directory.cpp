// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/run_directory.h"

#include <stdlib.h>

#include <system_error>

namespace vitamin::tools {

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
    std::string name = parent + "/vitamin-run-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) continue;
    path_ = name;
    return;
  }
}

void RunDirectory::remove() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  path_.clear();
}

}  // namespace vitamin::tools
