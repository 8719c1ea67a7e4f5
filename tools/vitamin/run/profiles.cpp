// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/run/profiles.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <cstdlib>
#include <map>

#include "daemon/protocol/fd.h"
#include "runtime/profile/file.h"

namespace vitamin::tools {

namespace fs = std::filesystem;

fs::path state_directory() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path directory;
  if (state != nullptr && *state == '/')
    directory = state;
  else if (home != nullptr && *home == '/')
    directory = fs::path(home) / ".local" / "state";
  else
    return {};
  directory /= "vitamin";
  std::error_code failed;
  fs::create_directories(directory, failed);
  return failed ? fs::path() : directory;
}

fs::path profiles_directory(const std::string& asked) {
  if (asked == "none") return {};
  if (!asked.empty()) return fs::absolute(asked);
  const fs::path state = state_directory();
  return state.empty() ? fs::path() : state / "profiles";
}

namespace {

Learnt keep(const std::string& model, const runtime::Profile& learnt, const fs::path& directory) {
  Learnt result{model, runtime::profile_path(directory.native(), model), 0, 0, {}};
  for (const auto& [key, kernel] : learnt.kernels()) {
    if (!kernel.cells.empty()) ++result.kernels;
    for (const runtime::ProfileCell& cell : kernel.cells) result.samples += cell.count;
  }
  runtime::Profile all = learnt;
  if (fs::exists(result.file)) {
    const auto before = runtime::read_profile(result.file, model);
    if (!before) {
      result.problem = before.error().message + "; what this run learnt is lost: remove the file";
      return result;
    }
    all.merge(*before);
  }
  if (const hal::Status written = runtime::write_profile(result.file, all, model); !written)
    result.problem = written.error().message;
  return result;
}

}  // namespace

std::vector<Learnt> keep_learnt(const fs::path& run_directory, const fs::path& directory) {
  std::map<std::string, runtime::Profile> models;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(run_directory, ignored)) {
    if (entry.path().extension() != ".profile") continue;
    std::string model;
    // One that is cut short is of a process that was killed while it wrote its first.
    if (const auto one = runtime::read_profile(entry.path(), "", &model)) models[model].merge(*one);
  }
  if (models.empty()) return {};
  fs::create_directories(directory, ignored);
  const protocol::Fd lock(
      ::open((directory / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (lock.get() >= 0) ::flock(lock.get(), LOCK_EX);
  std::vector<Learnt> result;
  for (const auto& [model, learnt] : models) result.push_back(keep(model, learnt, directory));
  return result;
}

}  // namespace vitamin::tools
