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

// Cuts the text up to the separator off `text`, and the separator.
std::string_view cut(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

// The beginning of a line of /proc/PID/cgroup that all processes of its pod have, else all of its
// container; empty: in neither. Of nested pods and containers the outermost: the control groups
// below it may be of its own making.
std::string_view pod_or_container(std::string_view line) {
  const std::size_t colon = line.find(":/");
  if (colon == line.npos) return {};
  std::string_view container, path = line.substr(colon + 2);
  while (!path.empty()) {
    const std::string_view part = cut(path, '/');
    const std::string_view group(line.data(), part.data() + part.size() - line.data());
    if (!pod_uid(part).empty()) return group;
    if (container.empty() && !container_id(part).empty()) container = group;
  }
  return container;
}

// Whether the control group of a line of /proc/PID/cgroup is below that of another line.
bool is_below(std::string_view line, std::string_view group) {
  return !group.empty() && line.starts_with(group) &&
         (line.size() == group.size() || line[group.size()] == '/');
}

// The own control group is the root of a cgroup namespace, and the pod's is its parent.
bool is_of_parent(std::string_view line, std::string_view own) {
  if (!own.ends_with(":/") || !line.starts_with(own)) return false;
  line.remove_prefix(own.size());
  return cut(line, '/') == ".." && cut(line, '/') != "..";
}

}  // namespace

bool is_in_another_container(std::string_view peer, std::string_view own, bool in_pod) {
  while (!peer.empty()) {
    const std::string_view line = cut(peer, '\n');
    if (container_of(line).id.empty()) continue;
    bool mine = false;
    for (std::string_view left = own; !left.empty() && !mine;) {
      const std::string_view of = cut(left, '\n');
      mine = is_below(line, pod_or_container(of)) || (in_pod && is_of_parent(line, of));
    }
    if (!mine) return true;
  }
  return false;
}

Container container_of(std::string_view cgroup) {
  Container found;
  while (!cgroup.empty()) {
    const std::string_view line = cut(cgroup, '\n');
    const std::size_t colon = line.find(":/");
    if (colon == line.npos) continue;
    std::string_view path = line.substr(colon + 2);
    if (path.starts_with("user.slice")) continue;
    while (!path.empty()) {
      const std::string_view part = cut(path, '/');
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
