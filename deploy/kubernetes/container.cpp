// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/container.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/environment.h"
#include "tools/vitamin/preload.h"

namespace vitamin::kubernetes {

using nlohmann::ordered_json;

ContainerNeeds container_needs(const ContainerSettings& settings) {
  namespace names = runtime::environment;
  tools::Libraries libraries;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(settings.libraries, unreadable))
    if (entry.path().extension() == ".so") libraries.push_back(entry.path());
  std::sort(libraries.begin(), libraries.end());
  ContainerNeeds needs;
  needs.environment[names::kDaemon] = settings.socket;
  needs.environment["LD_PRELOAD"] = tools::preload_variable(libraries, nullptr);
  const std::string directory = std::filesystem::path(settings.socket).parent_path();
  needs.mounts = {{directory, directory}, {settings.libraries, settings.libraries}};
  if (!settings.mps.empty()) {
    needs.environment["CUDA_MPS_PIPE_DIRECTORY"] = settings.mps;
    needs.mounts.push_back({settings.mps, settings.mps});
  }
  if (!settings.mps_shm.empty()) needs.mounts.push_back({settings.mps_shm, "/dev/shm", false});
  return needs;
}

hal::Status check_mps(const ContainerSettings& settings) {
  std::error_code error;
  if (settings.mps.empty() || std::filesystem::exists(settings.mps + "/control", error)) return {};
  return hal::fail(hal::Errc::kUnavailable,
                   "no MPS runs at " + settings.mps + ". Start it, or do without --mps");
}

ordered_json cdi_edits(const ContainerNeeds& needs) {
  ordered_json variables = ordered_json::array(), mounts = ordered_json::array();
  for (const auto& [name, value] : needs.environment) variables.push_back(name + "=" + value);
  for (const ContainerMount& mount : needs.mounts) {
    const char* const mode = mount.read_only ? "ro" : "rw";
    mounts.push_back({{"hostPath", mount.host},
                      {"containerPath", mount.container},
                      {"options", {mode, "nosuid", "nodev", "rbind", "rprivate"}}});
  }
  ordered_json edits;
  if (!variables.empty()) edits["env"] = variables;
  if (!mounts.empty()) edits["mounts"] = mounts;
  return edits;
}

hal::Status write_file(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(fresh, path, error);
  if (file && !error) return {};
  const std::string why = error ? error.message() : std::strerror(errno);
  std::filesystem::remove(fresh, error);
  return hal::fail(hal::Errc::kUnavailable, "cannot write " + path + ": " + why);
}

}  // namespace vitamin::kubernetes
