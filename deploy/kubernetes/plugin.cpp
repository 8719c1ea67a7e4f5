// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/plugin.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "runtime/environment.h"
#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/preload.h"

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

}  // namespace

Plugin::Plugin(Options options) : options_(std::move(options)) { look(); }

// --- what the kubelet calls ------------------------------------------------------------------

grpc::Status Plugin::GetDevicePluginOptions(grpc::ServerContext* /*call*/,
                                            const v1beta1::Empty* /*request*/,
                                            v1beta1::DevicePluginOptions* answer) {
  answer->set_get_preferred_allocation_available(true);
  return grpc::Status::OK;
}

grpc::Status Plugin::ListAndWatch(grpc::ServerContext* call, const v1beta1::Empty* /*request*/,
                                  grpc::ServerWriter<v1beta1::ListAndWatchResponse>* writer) {
  std::vector<Gpu> sent = {{"none was sent", false}};
  while (!call->IsCancelled()) {
    v1beta1::ListAndWatchResponse response;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, milliseconds(200), [&] { return !serving_ || sent != gpus_; });
      if (!serving_) break;
      if (sent == gpus_) continue;
      sent = gpus_;
    }
    for (const Share& share : shares_of(sent, options_.per_gpu)) {
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
  const std::vector<Gpu> known = gpus();
  for (const auto& container : request->container_requests()) {
    const std::vector<std::string> ids(container.devices_ids().begin(),
                                       container.devices_ids().end());
    const auto allocation = allocate(ids, known, options_.per_gpu);
    if (!allocation) return {grpc::StatusCode::FAILED_PRECONDITION, allocation.error().message};
    fill(*allocation, *answer->add_container_responses());
  }
  return grpc::Status::OK;
}

void Plugin::fill(const Allocation& allocation,
                  v1beta1::ContainerAllocateResponse& container) const {
  namespace names = runtime::environment;
  auto& variables = *container.mutable_envs();
  variables[names::kShare] = std::to_string(allocation.percent);
  if (!options_.cdi_gpu.empty()) {
    container.add_cdi_devices()->set_name("vitamin.dev/share=all");
    for (const std::string& gpu : allocation.gpus)
      container.add_cdi_devices()->set_name(options_.cdi_gpu + "=" + gpu);
    return;
  }
  std::string visible;
  for (const std::string& gpu : allocation.gpus) visible += (visible.empty() ? "" : ",") + gpu;
  variables["NVIDIA_VISIBLE_DEVICES"] = visible;  // of NVIDIA's container runtime
  variables[names::kDaemon] = options_.socket;
  tools::Libraries libraries;
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(options_.libraries, unreadable))
    if (entry.path().extension() == ".so") libraries.push_back(entry.path());
  std::sort(libraries.begin(), libraries.end());
  variables["LD_PRELOAD"] = tools::preload_variable(libraries, nullptr);
  std::vector<std::string> folders = {std::filesystem::path(options_.socket).parent_path(),
                                      options_.libraries};
  if (!options_.mps.empty()) {
    folders.push_back(options_.mps);
    variables["CUDA_MPS_PIPE_DIRECTORY"] = options_.mps;
  }
  for (const std::string& folder : folders) {
    v1beta1::Mount& mount = *container.add_mounts();
    mount.set_host_path(folder);
    mount.set_container_path(folder);
    mount.set_read_only(true);
  }
}

// --- what the plugin does --------------------------------------------------------------------

std::vector<Gpu> Plugin::gpus() {
  const std::lock_guard lock(mutex_);
  return gpus_;
}

// A GPU is healthy when vitamind answers and takes clients on it, as far as it knows it.
void Plugin::look() {
  const auto found =
      options_.gpus.empty() ? nvidia_gpus("/proc/driver/nvidia/gpus") : options_.gpus;
  const auto status = tools::ask_daemon(options_.socket, "status");
  std::vector<Gpu> now;
  for (const std::string& uuid : found) {
    bool healthy = status.has_value();
    if (healthy)
      for (const auto& device : (*status)["devices"])
        if (device["uuid"] == uuid && device["drained"] == true) healthy = false;
    now.push_back({uuid, healthy});
  }
  const std::lock_guard lock(mutex_);
  // One that is gone stays, unhealthy: the kubelet still counts on it.
  for (const Gpu& before : gpus_)
    if (std::none_of(now.begin(), now.end(),
                     [&](const Gpu& gpu) { return gpu.uuid == before.uuid; }))
      now.push_back({before.uuid, false});
  const std::string problem = status ? "" : status.error().message;
  if (problem != told_) say(problem.empty() ? "vitamind answers" : problem + ": all unhealthy");
  told_ = problem;
  if (now == gpus_) return;
  gpus_ = std::move(now);
  changed_.notify_all();
}

bool Plugin::register_once() {
  const auto channel = grpc::CreateChannel("unix://" + options_.folder + "/kubelet.sock",
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
  const std::string socket = options_.folder + "/" + name_;
  const std::string kubelet = options_.folder + "/kubelet.sock";
  const auto kubelet_is = identity(kubelet);
  if (kubelet_is.first == 0) {
    std::this_thread::sleep_for(milliseconds(options_.every_ms));
    return;
  }
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
