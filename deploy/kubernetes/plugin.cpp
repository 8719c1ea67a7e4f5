// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/plugin.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "deploy/kubernetes/say_once.h"
#include "runtime/environment.h"
#include "tools/vitamin/daemon_client.h"

namespace vitamin::kubernetes {
namespace {

using std::chrono::milliseconds;

// Which file is there, and since when: another one of the same name is another number.
std::pair<ino_t, std::int64_t> identity(const std::string& path) {
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return {0, 0};
  return {facts.st_ino, facts.st_ctim.tv_sec * 1'000'000'000 + facts.st_ctim.tv_nsec};
}

void say(const std::string& line) {
  std::fprintf(stderr, "vitamin-k8s-plugin: %s\n", line.c_str());
}

// Each resource has a socket of its own in the kubelet's directory.
std::string socket_name(const std::string& resource) {
  std::string name = resource == Options().resource ? "vitamin" : "vitamin-" + resource;
  std::replace(name.begin(), name.end(), '/', '-');
  return name + ".sock";
}

}  // namespace

Plugin::Plugin(Options options)
    : options_(std::move(options)), name_(socket_name(options_.resource)) {
  look();
}

// --- what the kubelet calls ------------------------------------------------------------------

grpc::Status Plugin::GetDevicePluginOptions(grpc::ServerContext* /*call*/,
                                            const v1beta1::Empty* /*request*/,
                                            v1beta1::DevicePluginOptions* answer) {
  answer->set_get_preferred_allocation_available(true);
  return grpc::Status::OK;
}

grpc::Status Plugin::ListAndWatch(grpc::ServerContext* call, const v1beta1::Empty* /*request*/,
                                  grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) {
  std::vector<NodeGpu> sent = {{.uuid = "none was sent"}};
  while (!call->IsCancelled()) {
    v1beta1::ListAndWatchResponse response;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, milliseconds(200), [&] { return !serving_ || sent != gpus_; });
      if (!serving_) break;
      if (sent == gpus_) continue;
      sent = gpus_;
    }
    for (const Share& share : shares_of(sent)) {
      v1beta1::Device& device = *response.add_devices();
      device.set_id(share.id);
      device.set_health(share.healthy ? "Healthy" : "Unhealthy");
    }
    if (!writer->Write(response)) break;
  }
  return grpc::Status::OK;
}

grpc::Status Plugin::GetPreferredAllocation(grpc::ServerContext* /*call*/,
                                            const v1beta1::PreferredAllocationRequest* request,
                                            v1beta1::PreferredAllocationResponse* answer) {
  for (const auto& container : request->container_requests()) {
    const auto chosen = preferred(
        {container.available_deviceids().begin(), container.available_deviceids().end()},
        {container.must_include_deviceids().begin(), container.must_include_deviceids().end()},
        static_cast<std::size_t>(std::max(container.allocation_size(), 0)));
    auto& response = *answer->add_container_responses();
    for (const std::string& id : chosen) response.add_deviceids(id);
  }
  return grpc::Status::OK;
}

grpc::Status Plugin::Allocate(grpc::ServerContext* /*call*/,
                              const v1beta1::AllocateRequest* request,
                              v1beta1::AllocateResponse* answer) {
  look();  // what was healthy a second ago
  const std::vector<NodeGpu> known = gpus();
  for (const auto& container : request->container_requests()) {
    const std::vector<std::string> ids(container.devices_ids().begin(),
                                       container.devices_ids().end());
    const auto allocation = allocate(ids, known);
    if (!allocation) return {grpc::StatusCode::FAILED_PRECONDITION, allocation.error().message};
    fill(*allocation, *answer->add_container_responses());
  }
  return grpc::Status::OK;
}

void Plugin::fill(const ContainerShare& allocation,
                  v1beta1::ContainerAllocateResponse& container) const {
  namespace names = runtime::environment;
  auto& variables = *container.mutable_envs();
  variables[names::kShare] = std::to_string(allocation.percent);
  if (const std::string code = absence(); !code.empty()) variables[names::kAbsent] = code;
  if (!options_.cdi_gpu.empty()) {
    container.add_cdi_devices()->set_name("vitamin.dev/share=all");
    for (const std::string& gpu : allocation.gpus)
      container.add_cdi_devices()->set_name(options_.cdi_gpu + "=" + gpu);
    return;
  }
  std::string visible;
  for (const std::string& gpu : allocation.gpus) visible += (visible.empty() ? "" : ",") + gpu;
  variables["NVIDIA_VISIBLE_DEVICES"] = visible;  // of NVIDIA's container runtime
  const ContainerNeeds needs = container_needs(options_.container);
  for (const auto& [name, value] : needs.environment) variables[name] = value;
  for (const ContainerMount& needed : needs.mounts) {
    v1beta1::Mount& mount = *container.add_mounts();
    mount.set_host_path(needed.host);
    mount.set_container_path(needed.container);
    mount.set_read_only(needed.read_only);
  }
}

// --- what the plugin does --------------------------------------------------------------------

std::vector<NodeGpu> Plugin::gpus() {
  const std::lock_guard lock(mutex_);
  return gpus_;
}

std::string Plugin::absence() const {
  const std::lock_guard lock(mutex_);
  return absence_;
}

// Those to offer that are in this machine: the nodes of a pool name their GPUs in one list. The
// mutex is held.
std::vector<NodeGpu> Plugin::gpus_here() {
  const NvidiaGpus present = nvidia_gpus(options_.nvidia_gpus);
  std::vector<NodeGpu> here;
  if (options_.gpus.empty())
    for (const std::string& uuid : present.uuids)
      here.push_back({.uuid = uuid, .shares = options_.shares});
  for (const NodeGpu& gpu : options_.gpus)
    if (is_here(gpu.uuid, present))
      here.push_back(gpu);
    else if (absent_.insert(gpu.uuid).second)
      say(gpu.uuid + " is not offered: this node has no such GPU in " + options_.nvidia_gpus);
  return here;
}

// A GPU is healthy when vitamind answers and takes clients on it, as far as it knows it.
void Plugin::look() {
  auto status = tools::ask_daemon(options_.container.socket, "status");
  if (const auto mps = check_mps(options_.container); status && !mps)
    status = tl::unexpected(mps.error());
  const std::lock_guard lock(mutex_);
  if (status) absence_ = tools::absence_code(*status);
  std::vector<NodeGpu> now = gpus_here();
  for (NodeGpu& gpu : now) {
    gpu.healthy = status.has_value();
    if (status)
      for (const auto& device : (*status)["devices"])
        if (device["uuid"] == gpu.uuid && device["drained"] == true) gpu.healthy = false;
    gpu.offered_as = offered_as(others_, gpu.uuid);
  }
  // One that is gone stays, unhealthy: the kubelet still counts on it.
  for (const NodeGpu& before : gpus_) {
    const auto known = std::find_if(now.begin(), now.end(),
                                    [&](const NodeGpu& gpu) { return gpu.uuid == before.uuid; });
    if (known == now.end()) {
      now.push_back(before);
      now.back().healthy = false;
    } else if (known->offered_as != before.offered_as) {
      say_offered(*known);
    }
  }
  say_once(&say, told_, status ? "" : status.error().message + ": all unhealthy", "all is well");
  if (now == gpus_) return;
  gpus_ = std::move(now);
  changed_.notify_all();
}

void Plugin::say_offered(const NodeGpu& gpu) const {
  if (gpu.offered_as.empty())
    say(gpu.uuid + " is offered as " + options_.resource + " again");
  else
    say(gpu.uuid + " is also offered as " + gpu.offered_as + ", so not as " + options_.resource +
        ". Take it away from one of the two plugins");
}

// A kubelet that does not answer (before 1.28, or not mounted) leaves what was known.
void Plugin::ask_what_others_offer() {
  auto known = pod_resources(options_.pod_resources, options_.own_resources);
  if (!known) return;
  const std::lock_guard lock(mutex_);
  others_ = std::move(known->others);
}

bool Plugin::register_once() {
  const auto channel = grpc::CreateChannel("unix://" + options_.directory + "/kubelet.sock",
                                           grpc::InsecureChannelCredentials());
  const auto kubelet = v1beta1::Registration::NewStub(channel);
  v1beta1::RegisterRequest request;
  request.set_version("v1beta1");
  request.set_endpoint(name_);
  request.set_resource_name(options_.resource);
  request.mutable_options()->set_get_preferred_allocation_available(true);
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  v1beta1::Empty empty;
  const grpc::Status answer = kubelet->Register(&call, request, &empty);
  say(answer.ok()
          ? "registered " + options_.resource
          : "the kubelet does not register " + options_.resource + ": " + answer.error_message());
  return answer.ok();
}

// One life of the kubelet.
void Plugin::serve() {
  const std::string socket = options_.directory + "/" + name_;
  const std::string kubelet = options_.directory + "/kubelet.sock";
  const auto kubelet_is = identity(kubelet);
  if (kubelet_is.first == 0) {
    std::this_thread::sleep_for(milliseconds(options_.every_ms));
    return;
  }
  ask_what_others_offer();
  look();
  ::unlink(socket.c_str());
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix://" + socket, grpc::InsecureServerCredentials());
  builder.RegisterService(this);
  {
    const std::lock_guard lock(mutex_);
    serving_ = true;
  }
  const auto server = builder.BuildAndStart();
  if (server == nullptr) {
    say("cannot listen at " + socket);
    std::this_thread::sleep_for(milliseconds(options_.every_ms));
    return;
  }
  const auto socket_is = identity(socket);
  const bool registered = register_once();
  do {
    std::this_thread::sleep_for(milliseconds(options_.every_ms));
    ask_what_others_offer();
    look();
  } while (registered && !stopping_ && identity(kubelet) == kubelet_is &&
           identity(socket) == socket_is);
  {
    const std::lock_guard lock(mutex_);
    serving_ = false;
    changed_.notify_all();
  }
  server->Shutdown(std::chrono::system_clock::now() + milliseconds(500));
}

void Plugin::run() {
  while (!stopping_) serve();
}

}  // namespace vitamin::kubernetes
