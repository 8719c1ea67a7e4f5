// SPDX-License-Identifier: Apache-2.0
#include "daemon/jobs/pods.h"

#include <algorithm>
#include <filesystem>

#include "hal/fnv1a.h"

namespace vitamin::daemon {
namespace {

bool is_hexadecimal(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

constexpr std::size_t kIdLength = 64;

// "<id>", "cri-containerd-<id>.scope", "crio-<id>.scope", "docker-<id>.scope", "libpod-<id>".
std::string_view container_id(std::string_view part) {
  if (part.ends_with(".scope")) part.remove_suffix(std::string_view(".scope").size());
  if (part.size() < kIdLength) return {};
  const std::string_view id = part.substr(part.size() - kIdLength);
  const std::string_view engine = part.substr(0, part.size() - kIdLength);
  const bool known = engine.empty() || engine == "cri-containerd-" || engine == "crio-" ||
                     engine == "docker-" || engine == "libpod-";
  return known && std::all_of(id.begin(), id.end(), is_hexadecimal) ? id : std::string_view();
}

// "pod<uid>" or "kubepods-burstable-pod<uid>.slice", where systemd requires '_' for '-'.
std::string pod_uid(std::string_view part) {
  if (part.ends_with(".slice")) part.remove_suffix(std::string_view(".slice").size());
  constexpr std::string_view kPod = "pod";
  if (part.starts_with("kubepods-")) {
    const std::size_t at = part.rfind("-pod");
    if (at == part.npos) return {};
    part.remove_prefix(at + 1);
  }
  if (!part.starts_with(kPod)) return {};
  std::string uid(part.substr(kPod.size()));
  std::replace(uid.begin(), uid.end(), '_', '-');
  const bool plain =
      std::all_of(uid.begin(), uid.end(), [](char c) { return is_hexadecimal(c) || c == '-'; });
  return plain && uid.size() >= 32 ? uid : std::string();
}

}  // namespace

Container container_of(std::string_view cgroup) {
  Container found;
  while (!cgroup.empty()) {
    const std::size_t end = std::min(cgroup.find('\n'), cgroup.size());
    const std::string_view line = cgroup.substr(0, end);
    cgroup.remove_prefix(std::min(end + 1, cgroup.size()));
    const std::size_t colon = line.find(":/");
    if (colon == line.npos) continue;
    std::string_view path = line.substr(colon + 2);
    if (path.starts_with("user.slice")) continue;
    while (!path.empty()) {
      const std::size_t slash = std::min(path.find('/'), path.size());
      const std::string_view part = path.substr(0, slash);
      path.remove_prefix(std::min(slash + 1, path.size()));
      // The innermost of nested containers wins.
      if (const std::string uid = pod_uid(part); !uid.empty()) found.pod = uid;
      if (const std::string_view id = container_id(part); !id.empty()) found.id = id;
    }
    if (!found.id.empty()) break;
  }
  if (found.id.empty()) found.pod.clear();
  return found;
}

void find_names(Container& container, const std::string& logs) {
  if (container.id.empty()) return;
  const std::string end = "-" + container.id + ".log";
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(logs, none)) {
    const std::string file = entry.path().filename();
    if (!file.ends_with(end)) continue;
    // Names in Kubernetes contain no '_'.
    const std::size_t first = file.find('_'), second = file.find('_', first + 1);
    if (first == file.npos || second == file.npos) continue;
    container.pod_name = file.substr(0, first);
    container.pod_namespace = file.substr(first + 1, second - first - 1);
    container.name = file.substr(second + 1, file.size() - end.size() - second - 1);
    return;
  }
}

std::uint32_t group_of(const Container& container) {
  // Jobs and claims are counted from below.
  return hal::fnv1a_32(container.id) | 0x8000'0000;
}

}  // namespace vitamin::daemon
