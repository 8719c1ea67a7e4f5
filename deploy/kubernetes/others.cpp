// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/others.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>

#include "deploy/kubernetes/shares.h"
#include "pod_resources.grpc.pb.h"

namespace vitamin::kubernetes {
namespace {

constexpr int kLargestAnswer = 16 << 20;  // of a node with many pods

void limit(grpc::ClientContext& call) {
  call.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
}

}  // namespace

std::optional<PodResources> pod_resources(const std::string& socket,
                                          std::span<const std::string> own) {
  if (socket.empty()) return std::nullopt;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kLargestAnswer);
  const auto kubelet = v1::PodResourcesLister::NewStub(
      grpc::CreateCustomChannel("unix://" + socket, grpc::InsecureChannelCredentials(), arguments));
  v1::AllocatableResourcesResponse offered;
  v1::ListPodResourcesResponse pods;
  grpc::ClientContext first, second;
  limit(first);
  if (!kubelet->GetAllocatableResources(&first, v1::AllocatableResourcesRequest(), &offered).ok())
    return std::nullopt;
  limit(second);
  if (!kubelet->List(&second, v1::ListPodResourcesRequest(), &pods).ok()) return std::nullopt;
  PodResources known;
  const auto add = [&](const v1::ContainerDevices& devices, const std::string& note) {
    const std::string& resource = devices.resource_name();
    if (std::find(own.begin(), own.end(), resource) != own.end()) return;
    for (const std::string& id : devices.device_ids()) known.others.emplace(id, resource + note);
  };
  for (const v1::ContainerDevices& devices : offered.devices()) add(devices, "");
  for (const v1::PodResources& pod : pods.pod_resources()) {
    const std::string name = pod.namespace_() + "/" + pod.name();
    for (const v1::ContainerResources& container : pod.containers()) {
      for (const v1::ContainerDevices& devices : container.devices())
        add(devices, " (in use by pod " + name + ")");
      for (const v1::DynamicResource& claim : container.dynamic_resources())
        known.claims[{claim.claim_namespace(), claim.claim_name()}].insert(name);
    }
  }
  return known;
}

std::string offered_as(const OtherDevices& others, const std::string& uuid) {
  // Names of a GPU and of its parts begin with its UUID.
  for (auto device = others.lower_bound(uuid);
       device != others.end() && device->first.starts_with(uuid); ++device)
    if (is_of_gpu(device->first, uuid)) return device->second;
  return "";
}

}  // namespace vitamin::kubernetes
