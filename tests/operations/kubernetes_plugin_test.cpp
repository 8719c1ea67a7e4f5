// SPDX-License-Identifier: Apache-2.0
//
// The device plugin, as its own process beside a real vitamind, and a kubelet that is played here.
#include <doctest/doctest.h>
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "device_plugin.grpc.pb.h"
#include "pod_resources.grpc.pb.h"
#include "tests/time_limit.h"

namespace {

using std::chrono::milliseconds;
const auto kPatience = vitamin::test::time_limit(std::chrono::seconds(30));

bool soon(const std::function<bool()>& true_now) {
  return vitamin::test::eventually(true_now, std::chrono::seconds(30));
}

class Process {
 public:
  explicit Process(std::vector<std::string> words) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    REQUIRE(::posix_spawn(&id_, words[0].c_str(), nullptr, nullptr, pointers.data(), environ) == 0);
  }
  ~Process() { end(SIGKILL); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  int end(int signal) {
    if (id_ == 0) return 0;
    ::kill(id_, signal);
    return wait();
  }
  pid_t id() const { return id_; }
  bool runs() { return ::waitpid(id_, nullptr, WNOHANG) == 0; }
  // As waitpid() says it.
  int wait() {
    int status = 0;
    ::waitpid(id_, &status, 0);
    id_ = 0;
    return status;
  }

 private:
  pid_t id_ = 0;
};

// Says what other plugins offer, and what pods have of it.
class PodResources final : public v1::PodResourcesLister::Service {
 public:
  void offer(const std::string& resource, std::vector<std::string> ids) {
    const std::lock_guard lock(mutex_);
    offered_[resource] = std::move(ids);
  }
  // "": none has any.
  void use(const std::string& pod, const std::string& resource = "", const std::string& id = "") {
    const std::lock_guard lock(mutex_);
    used_.Clear();
    if (pod.empty()) return;
    auto& resources = *used_.add_pod_resources();
    resources.set_namespace_("team-a");
    resources.set_name(pod);
    auto& devices = *resources.add_containers()->add_devices();
    devices.set_resource_name(resource);
    devices.add_device_ids(id);
  }

 private:
  grpc::Status List(grpc::ServerContext* /*call*/, const v1::ListPodResourcesRequest* /*request*/,
                    v1::ListPodResourcesResponse* answer) override {
    const std::lock_guard lock(mutex_);
    *answer = used_;
    return grpc::Status::OK;
  }
  grpc::Status GetAllocatableResources(grpc::ServerContext* /*call*/,
                                       const v1::AllocatableResourcesRequest* /*request*/,
                                       v1::AllocatableResourcesResponse* answer) override {
    const std::lock_guard lock(mutex_);
    for (const auto& [resource, ids] : offered_) {
      auto& devices = *answer->add_devices();
      devices.set_resource_name(resource);
      for (const std::string& id : ids) devices.add_device_ids(id);
    }
    return grpc::Status::OK;
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> offered_;
  v1::ListPodResourcesResponse used_;
};

// Takes registrations and, for the last, watches its devices.
class Kubelet final : public v1beta1::Registration::Service {
 public:
  explicit Kubelet(std::string directory) : directory_(std::move(directory)) { start(); }
  ~Kubelet() override { stop(); }

  void start() {
    ::unlink((directory_ + "/kubelet.sock").c_str());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix://" + directory_ + "/kubelet.sock",
                             grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    builder.RegisterService(&others);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  void stop() {
    if (server_ == nullptr) return;
    server_->Shutdown();
    server_.reset();
  }
  // As the kubelet does: whatever lies in its directory goes.
  void restart() {
    stop();
    for (const auto& file : std::filesystem::directory_iterator(directory_))
      if (file.is_socket()) std::filesystem::remove(file);
    start();
  }

  std::size_t registrations() {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }
  v1beta1::RegisterRequest last() {
    const std::lock_guard lock(mutex_);
    return requests_.back();
  }
  std::unique_ptr<v1beta1::DevicePlugin::Stub> plugin() { return plugin_at(last().endpoint()); }
  std::unique_ptr<v1beta1::DevicePlugin::Stub> plugin_at(const std::string& endpoint) {
    return v1beta1::DevicePlugin::NewStub(grpc::CreateChannel(
        "unix://" + directory_ + "/" + endpoint, grpc::InsecureChannelCredentials()));
  }
  // Endpoints of the plugins, by resource.
  std::map<std::string, std::string> endpoints() {
    const std::lock_guard lock(mutex_);
    std::map<std::string, std::string> all;
    for (const auto& request : requests_) all[request.resource_name()] = request.endpoint();
    return all;
  }

  PodResources others;

 private:
  grpc::Status Register(grpc::ServerContext* /*call*/, const v1beta1::RegisterRequest* request,
                        v1beta1::Empty* /*answer*/) override {
    const std::lock_guard lock(mutex_);
    requests_.push_back(*request);
    return grpc::Status::OK;
  }

  const std::string directory_;
  std::mutex mutex_;
  std::vector<v1beta1::RegisterRequest> requests_;
  std::unique_ptr<grpc::Server> server_;
};

struct Node {
  // `more`: options of the plugin.
  explicit Node(const std::vector<std::string>& more = {}) {
    REQUIRE(::mkdtemp(directory.data()) != nullptr);
    kubelet = std::make_unique<Kubelet>(directory);
    start_daemon();
    words = {build + "/bin/vitamin-k8s-plugin",
             "--kubelet",
             directory,
             "--socket",
             socket(),
             "--gpu",
             "GPU-1",
             "--gpu",
             "GPU-2",
             "--per-gpu",
             "4",
             "--every",
             "20",
             "--libraries",
             build + "/lib",
             "--nvidia-gpus",
             "here/gpus"};
    words.insert(words.end(), more.begin(), more.end());
    for (std::string& word : words)  // "here": the node's directory, which has a random name
      if (word.starts_with("here/")) word = directory + word.substr(4);
    start_plugin();
  }
  ~Node() {
    plugin.reset();
    kubelet.reset();
    daemon.reset();
    std::filesystem::remove_all(directory);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  std::string socket() const { return directory + "/daemon/vitamind"; }
  std::string log_of(const std::string& name) const { return directory + "/" + name + ".log"; }
  // As NVIDIA's driver does.
  void list_gpu(const std::string& uuid) const {
    const std::string gpu = directory + "/gpus/" + uuid;
    std::filesystem::create_directories(gpu);
    std::ofstream(gpu + "/information") << "GPU UUID: \t " << uuid << "\n";
  }
  // Until it has registered.
  void start_plugin() {
    const std::size_t before = kubelet->registrations();
    plugin = std::make_unique<Process>(with_log("plugin"));
    REQUIRE(soon([&] { return kubelet->registrations() > before; }));
  }
  // The plugin's command line, with its stderr in the log of that name.
  std::vector<std::string> with_log(const std::string& name) const {
    std::vector<std::string> command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>> " + log_of(name)};
    command.insert(command.end(), words.begin(), words.end());
    return command;
  }
  // Lines of that log that have this part.
  std::size_t lines(const std::string& part, const std::string& log = "plugin") const {
    std::size_t count = 0;
    std::ifstream file(log_of(log));
    for (std::string line; std::getline(file, line);) count += line.find(part) != line.npos;
    return count;
  }
  // `more`: options of vitamind.
  void start_daemon(const std::vector<std::string>& more = {}) {
    std::vector<std::string> command = {build + "/bin/vitamind", "--socket", socket(),
                                        "--lock-directory",      directory,  "--quiet"};
    command.insert(command.end(), more.begin(), more.end());
    daemon = std::make_unique<Process>(command);
    REQUIRE(soon([&] { return std::filesystem::exists(socket()); }));
  }

  std::string build = ::getenv("BUILD");
  std::string directory = "/tmp/vitamin-kubelet-XXXXXX";
  std::vector<std::string> words;  // the plugin's command line
  std::unique_ptr<Kubelet> kubelet;
  std::unique_ptr<Process> daemon, plugin;
};

grpc::Status allocate(Node& node, const std::vector<std::string>& ids,
                      v1beta1::AllocateResponse& answer) {
  v1beta1::AllocateRequest request;
  auto& container = *request.add_container_requests();
  for (const std::string& id : ids) container.add_devices_ids(id);
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + kPatience);
  return node.kubelet->plugin()->Allocate(&call, request, &answer);
}

// Reads the stream until so many devices, of all, are healthy.
bool sees_healthy(grpc::ClientReader<v1beta1::ListAndWatchResponse>& reader, int wanted,
                  int all = 8) {
  v1beta1::ListAndWatchResponse response;
  while (reader.Read(&response)) {
    int healthy = 0;
    for (const auto& device : response.devices()) healthy += device.health() == "Healthy" ? 1 : 0;
    CHECK(response.devices_size() == all);
    if (healthy == wanted) return true;
  }
  return false;
}

TEST_CASE("a container is told that it may not run without vitamind") {
  Node node;
  node.daemon.reset();
  node.start_daemon({"--set", "failure.absent=closed"});
  v1beta1::AllocateResponse answer;
  REQUIRE(soon([&] { return allocate(node, {"GPU-1.0"}, answer).ok(); }));
  REQUIRE(answer.container_responses_size() == 1);
  CHECK(answer.container_responses(0).envs().at("VITAMIN_ABSENT") == "75");
}

TEST_CASE("the plugin registers and gives a container what it needs") {
  Node node;
  CHECK(node.kubelet->last().version() == "v1beta1");
  CHECK(node.kubelet->last().resource_name() == "vitamin.dev/share");
  CHECK(node.kubelet->last().options().get_preferred_allocation_available());
  v1beta1::AllocateResponse answer;
  REQUIRE(soon([&] { return allocate(node, {"GPU-1.0", "GPU-1.3"}, answer).ok(); }));
  REQUIRE(answer.container_responses_size() == 1);
  const auto& container = answer.container_responses(0);
  CHECK(container.envs().at("VITAMIN_SHARE") == "50");
  CHECK(container.envs().at("VITAMIN_DAEMON") == node.socket());
  CHECK(!container.envs().contains("VITAMIN_ABSENT"));
  CHECK(container.envs().at("NVIDIA_VISIBLE_DEVICES") == "GPU-1");
  CHECK(container.envs().at("LD_PRELOAD").find("libvitamin_") != std::string::npos);
  REQUIRE(container.mounts_size() == 2);
  CHECK(container.mounts(0).host_path() == node.directory + "/daemon");
  CHECK(container.mounts(0).read_only());

  const grpc::Status refused = allocate(node, {"GPU-3.0"}, answer);
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(refused.error_message() == "there is no device GPU-3.0");

  v1beta1::PreferredAllocationRequest wish;
  auto& wanted = *wish.add_container_requests();
  for (const char* id : {"GPU-1.0", "GPU-2.0", "GPU-2.1"}) wanted.add_available_deviceids(id);
  wanted.set_allocation_size(2);
  v1beta1::PreferredAllocationResponse chosen;
  grpc::ClientContext call;
  REQUIRE(node.kubelet->plugin()->GetPreferredAllocation(&call, wish, &chosen).ok());
  REQUIRE(chosen.container_responses(0).deviceids_size() == 2);
  CHECK(chosen.container_responses(0).deviceids(0) == "GPU-2.0");
}

TEST_CASE("an engine with CDI gets device names instead of mounts") {
  Node node({"--cdi", "nvidia.com/gpu"});
  v1beta1::AllocateResponse answer;
  REQUIRE(soon([&] { return allocate(node, {"GPU-1.0", "GPU-2.1"}, answer).ok(); }));
  const auto& container = answer.container_responses(0);
  CHECK(container.mounts_size() == 0);
  CHECK(container.envs().size() == 1);
  CHECK(container.envs().at("VITAMIN_SHARE") == "25");
  REQUIRE(container.cdi_devices_size() == 3);
  CHECK(container.cdi_devices(0).name() == "vitamin.dev/share=all");
  CHECK(container.cdi_devices(1).name() == "nvidia.com/gpu=GPU-1");
  CHECK(container.cdi_devices(2).name() == "nvidia.com/gpu=GPU-2");
}

TEST_CASE("containers get MPS's pipes and its shared memory") {
  Node node({"--mps", "here/mps", "--mps-shm", "/run/vitamin-mps/shm"});
  const std::string mps = node.directory + "/mps";
  v1beta1::AllocateResponse answer;
  CHECK(allocate(node, {"GPU-1.0"}, answer).error_message().find("or no MPS runs") !=
        std::string::npos);
  std::this_thread::sleep_for(milliseconds(200));  // ten looks
  CHECK(node.lines("no MPS runs at " + mps) == 1);
  std::filesystem::create_directory(mps);
  std::ofstream control(mps + "/control");
  REQUIRE(soon([&] { return allocate(node, {"GPU-1.0"}, answer).ok(); }));
  const auto& container = answer.container_responses(0);
  CHECK(container.envs().at("CUDA_MPS_PIPE_DIRECTORY") == mps);
  REQUIRE(container.mounts_size() == 4);
  CHECK(container.mounts(2).host_path() == mps);
  CHECK(container.mounts(3).host_path() == "/run/vitamin-mps/shm");
  CHECK(container.mounts(3).container_path() == "/dev/shm");
  CHECK_FALSE(container.mounts(3).read_only());
}

TEST_CASE("GPUs with different numbers of shares are different resources of one plugin") {
  Node node(
      {"--gpu", "GPU-3=2", "--gpu", "GPU-4=8", "--resource", "vitamin.dev/percent-{percent}"});
  REQUIRE(soon([&] { return node.kubelet->endpoints().size() == 3; }));
  const auto endpoints = node.kubelet->endpoints();
  for (const char* name : {"vitamin.dev/percent-25", "vitamin.dev/percent-50"})
    REQUIRE(endpoints.contains(name));
  const auto half = node.kubelet->plugin_at(endpoints.at("vitamin.dev/percent-50"));
  v1beta1::AllocateRequest request;
  request.add_container_requests()->add_devices_ids("GPU-3.1");
  v1beta1::AllocateResponse answer;
  grpc::ClientContext call;
  REQUIRE(half->Allocate(&call, request, &answer).ok());
  CHECK(answer.container_responses(0).envs().at("VITAMIN_SHARE") == "50");
  request.mutable_container_requests(0)->add_devices_ids("GPU-1.0");
  grpc::ClientContext other;
  CHECK(half->Allocate(&other, request, &answer).error_message() == "there is no device GPU-1.0");
}

TEST_CASE("a GPU that the node does not have is not offered") {
  Node node;
  node.plugin->end(SIGKILL);
  node.list_gpu("GPU-1");
  node.start_plugin();
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1beta1::Empty empty;
  const auto plugin = node.kubelet->plugin();
  const auto reader = plugin->ListAndWatch(&call, empty);
  CHECK(sees_healthy(*reader, 4, 4));
  v1beta1::AllocateResponse answer;
  CHECK(allocate(node, {"GPU-2.0"}, answer).error_message() == "there is no device GPU-2.0");
  CHECK(allocate(node, {"GPU-1.0"}, answer).ok());
  call.TryCancel();
}

TEST_CASE("a GPU that NVIDIA's plugin offers too is offered once") {
  Node node({"--pod-resources", "here/kubelet.sock"});
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1beta1::Empty empty;
  const auto plugin = node.kubelet->plugin();
  const auto reader = plugin->ListAndWatch(&call, empty);
  CHECK(sees_healthy(*reader, 8));
  node.kubelet->others.offer("vitamin.dev/share", {"GPU-1.0", "GPU-2.0"});  // its own
  node.kubelet->others.offer("nvidia.com/gpu", {"GPU-1::0", "GPU-1::1"});
  CHECK(sees_healthy(*reader, 4));
  v1beta1::AllocateResponse answer;
  CHECK(allocate(node, {"GPU-1.0"}, answer).error_message() ==
        "device GPU-1.0 is unhealthy: its GPU is also offered as nvidia.com/gpu");
  CHECK(allocate(node, {"GPU-2.0"}, answer).ok());
  CHECK(node.lines("GPU-1 is also offered as nvidia.com/gpu, so not as vitamin.dev/share") == 1);
  // NVIDIA's plugin is restarted, or takes the GPU for faulty, while a pod has a replica.
  node.kubelet->others.use("train", "nvidia.com/gpu", "GPU-1::0");
  node.kubelet->others.offer("nvidia.com/gpu", {});
  CHECK(soon([&] {
    return allocate(node, {"GPU-1.0"}, answer).error_message() ==
           "device GPU-1.0 is unhealthy: its GPU is also offered as nvidia.com/gpu (in use by pod "
           "team-a/train)";
  }));
  std::this_thread::sleep_for(milliseconds(200));
  CHECK_FALSE(allocate(node, {"GPU-1.0"}, answer).ok());
  CHECK(node.lines("is also offered as nvidia.com/gpu (in use by pod team-a/train), so") == 1);
  CHECK(node.lines("is also offered as") == 2);
  node.kubelet->others.use("tune", "vitamin.dev/share", "GPU-1.0");  // its own
  CHECK(sees_healthy(*reader, 8));
  call.TryCancel();
}

TEST_CASE("devices are unhealthy while no vitamind answers") {
  Node node;
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + kPatience);
  v1beta1::Empty empty;
  const auto plugin = node.kubelet->plugin();
  const auto reader = plugin->ListAndWatch(&call, empty);
  CHECK(sees_healthy(*reader, 8));
  node.daemon->end(SIGKILL);
  CHECK(sees_healthy(*reader, 0));
  v1beta1::AllocateResponse answer;
  const grpc::Status refused = allocate(node, {"GPU-1.0"}, answer);
  CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK(refused.error_message().find("GPU-1.0 is unhealthy") != std::string::npos);
  node.start_daemon();
  CHECK(sees_healthy(*reader, 8));
  CHECK(allocate(node, {"GPU-1.0"}, answer).ok());
  call.TryCancel();
}

TEST_CASE("a drained GPU's devices are unhealthy, and no other's") {
  Node node;
  // vitamind knows a GPU from its clients.
  ::setenv("MEMBER_DEVICE", "GPU-1", 1);
  Process member({node.build + "/tests/daemon/daemon_member", node.socket(), "hold"});
  const auto tell = [&](const char* verb) {
    Process tool({node.build + "/bin/vitamin", verb, "GPU-1", "--socket", node.socket()});
    return tool.wait() == 0;
  };
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + 2 * kPatience);
  v1beta1::Empty empty;
  const auto plugin = node.kubelet->plugin();
  const auto reader = plugin->ListAndWatch(&call, empty);
  CHECK(sees_healthy(*reader, 8));
  REQUIRE(soon([&] { return tell("drain"); }));
  CHECK(sees_healthy(*reader, 4));
  v1beta1::AllocateResponse answer;
  CHECK_FALSE(allocate(node, {"GPU-1.0"}, answer).ok());
  CHECK(allocate(node, {"GPU-2.0"}, answer).ok());
  REQUIRE(tell("resume"));
  CHECK(sees_healthy(*reader, 8));
  call.TryCancel();
}

TEST_CASE("a kubelet that was restarted is registered with again") {
  Node node;
  for (std::size_t i = 1; i <= 3; ++i) {
    node.kubelet->restart();
    REQUIRE(soon([&] { return node.kubelet->registrations() > i; }));
    v1beta1::AllocateResponse answer;
    CHECK(soon([&] { return allocate(node, {"GPU-1.0"}, answer).ok(); }));
  }
  const int status = node.plugin->end(SIGTERM);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a plugin that is killed and started again gives the same, and clients go on") {
  Node node;
  ::setenv("MEMBER_DEVICE", "GPU-1", 1);
  Process member({node.build + "/tests/daemon/daemon_member", node.socket(), "hold"});
  v1beta1::AllocateResponse before, after;
  REQUIRE(soon([&] { return allocate(node, {"GPU-1.0", "GPU-1.1"}, before).ok(); }));
  for (int round = 0; round < 3; ++round) {
    node.plugin->end(SIGKILL);
    node.start_plugin();
    REQUIRE(soon([&] { return allocate(node, {"GPU-1.0", "GPU-1.1"}, after).ok(); }));
    CHECK(google::protobuf::util::MessageDifferencer::Equals(after, before));
  }
  CHECK(member.runs());
  // vitamind still has the client: it knows a GPU from its clients only.
  Process drain({node.build + "/bin/vitamin", "drain", "GPU-1", "--socket", node.socket()});
  CHECK(drain.wait() == 0);
}

TEST_CASE("of two plugins of a node one registers, and the other when that one ends") {
  Node node;
  const std::size_t before = node.kubelet->registrations();
  Process second(node.with_log("second"));
  const std::string waits = "another vitamin-k8s-plugin (";
  REQUIRE(soon([&] { return node.lines(waits, "second") == 1; }));
  CHECK(node.lines("process " + std::to_string(node.plugin->id()) + ") serves " + node.directory,
                   "second") == 1);
  node.kubelet->restart();
  REQUIRE(soon([&] { return node.kubelet->registrations() > before; }));
  std::this_thread::sleep_for(milliseconds(500));
  CHECK(node.kubelet->registrations() == before + 1);  // of the first, with the new kubelet
  node.plugin->end(SIGKILL);
  REQUIRE(soon([&] { return node.kubelet->registrations() == before + 2; }));
  v1beta1::AllocateResponse answer;
  CHECK(soon([&] { return allocate(node, {"GPU-1.0"}, answer).ok(); }));
  CHECK(node.lines(waits, "second") == 1);
  // One that waits can be told to end.
  Process third(node.with_log("third"));
  REQUIRE(soon([&] { return node.lines(waits, "third") == 1; }));
  CHECK(third.end(SIGTERM) == 0);
  CHECK(second.runs());
}

TEST_CASE("a plugin that starts before the kubelet waits for it") {
  Node node;
  node.kubelet->stop();
  std::filesystem::remove(node.directory + "/kubelet.sock");
  std::this_thread::sleep_for(milliseconds(100));
  const std::size_t before = node.kubelet->registrations();
  node.kubelet->start();
  CHECK(soon([&] { return node.kubelet->registrations() > before; }));
}

}  // namespace
