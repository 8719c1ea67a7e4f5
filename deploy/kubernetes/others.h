// SPDX-License-Identifier: Apache-2.0
//
// What the kubelet knows of the devices of other plugins, and of the claims of pods.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

namespace vitamin::kubernetes {

// Devices of a node's plugins, by their IDs: "nvidia.com/gpu" where that is offered,
// "nvidia.com/gpu (in use by pod team-a/train)" where only a pod still has it.
using OtherDevices = std::map<std::string, std::string>;

using ClaimName = std::pair<std::string, std::string>;  // namespace, name

struct PodResources {
  // Devices that pods have count too: the kubelet does not list those that are unhealthy or whose
  // plugin is not there.
  OtherDevices others;
  // Pods (NAMESPACE/NAME) that have each claim; of Kubernetes 1.34 and newer.
  std::map<ClaimName, std::set<std::string>> claims;
};

// `socket`: of the kubelet's pod resources; empty: there is none. `own`: resources to leave out.
// Nothing: the kubelet does not answer, as one before 1.28 does not.
std::optional<PodResources> pod_resources(const std::string& socket,
                                          std::span<const std::string> own);

// As what another plugin has the GPU; empty: none has it.
std::string offered_as(const OtherDevices& others, const std::string& uuid);

}  // namespace vitamin::kubernetes
