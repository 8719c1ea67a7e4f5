// SPDX-License-Identifier: Apache-2.0
//
// Which container, and which pod of Kubernetes, a process is of: by its control group, which the
// container engine made and the process cannot change. Names come from the links that the kubelet
// keeps in /var/log/containers: POD_NAMESPACE_CONTAINER-ID.log.
//
// Threads: any; no state.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vitamin::daemon {

inline constexpr const char* kContainerLogs = "/var/log/containers";

struct Container {
  std::string id = {};   // 64 hexadecimal digits; empty: the process is of none
  std::string pod = {};  // UID of the pod, with '-'; empty: no pod of Kubernetes
  // Empty: not known.
  std::string pod_namespace = {}, pod_name = {}, name = {};
};

// Of the text of /proc/PID/cgroup, without names. Control groups below user.slice are not believed:
// users may make those.
Container container_of(std::string_view cgroup);

// Fills in the names. Reads the directory once: a few microseconds for each of its entries.
void find_names(Container& container, const std::string& logs = kContainerLogs);

// Of clients that share one bound: the same number for each process of a container. Never 0.
std::uint32_t group_of(const Container& container);

}  // namespace vitamin::daemon
