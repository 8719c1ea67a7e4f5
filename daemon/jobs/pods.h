// SPDX-License-Identifier: Apache-2.0
//
// Finds the container and the Kubernetes pod of a process by its control group, which the container
// engine made and the process cannot change. Names come from the links that the kubelet keeps in
// /var/log/containers: POD_NAMESPACE_CONTAINER-ID.log.
//
// Threads: any; no state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vitamin::daemon {

inline constexpr const char* kContainerLogs = "/var/log/containers";

struct Container {
  std::string id = {};   // 64 hexadecimal digits; empty: the process is in no container
  std::string pod = {};  // UID of the pod, with '-'; empty: in no pod
  // Empty: not known.
  std::string pod_namespace = {}, pod_name = {}, name = {};
};

// From the text of /proc/PID/cgroup, without names. Control groups below user.slice are ignored:
// users can make those.
Container container_of(std::string_view cgroup);

// Whether a process is in a container, but in none of this process's own pod; where this process is
// in no pod, but not in its own container. `peer`, `own`: the texts of /proc/PID/cgroup and
// /proc/self/cgroup as this process reads them, also from a cgroup namespace. `in_pod`: this
// process is a container of a pod.
bool is_in_another_container(std::string_view peer, std::string_view own, bool in_pod);

// Fills in the names. Reads the directory once, which takes a few microseconds for each entry.
void find_names(Container& container, const std::string& logs = kContainerLogs);

// The group number of a container, the same for each of its processes; never 0.
std::uint32_t group_of(const Container& container);

}  // namespace vitamin::daemon
