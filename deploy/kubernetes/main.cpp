// SPDX-License-Identifier: Apache-2.0
//
// vitamin-k8s-plugin: shares of this node's GPUs as devices of Kubernetes.
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>

#include "daemon/config/command_line.h"
#include "daemon/protocol/paths.h"
#include "deploy/kubernetes/node_lock.h"
#include "deploy/kubernetes/plugin.h"

namespace {

namespace kubernetes = vitamin::kubernetes;

constexpr const char* kFooter = R"(
Examples:
  vitamin-k8s-plugin --per-gpu 4                    each GPU is four of vitamin.dev/share
  vitamin-k8s-plugin --gpu GPU-1=8 --gpu GPU-2=2 --resource vitamin.dev/percent-{percent}
)";

std::deque<kubernetes::Plugin> plugins;
std::atomic<bool> stopping = false;
void on_signal(int) {
  stopping = true;
  for (kubernetes::Plugin& plugin : plugins) plugin.stop();
}

void say(const std::string& line) {
  std::fprintf(stderr, "vitamin-k8s-plugin: %s\n", line.c_str());
}

int refuse(const std::string& why) {
  say(why);
  return 1;
}

// The file by which the container engine knows "vitamin.dev/share=all".
vitamin::hal::Status write_cdi(const std::string& directory,
                               const kubernetes::ContainerSettings& container) {
  const nlohmann::ordered_json specification = {
      {"cdiVersion", "0.3.0"},
      {"kind", "vitamin.dev/share"},
      {"devices",
       {{{"name", "all"},
         {"containerEdits", kubernetes::cdi_edits(kubernetes::container_needs(container))}}}}};
  return kubernetes::write_file(directory + "/vitamin.dev-share.json",
                                specification.dump(2) + "\n");
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what escapes ends the process with its text
int main(int argc, char** argv) {
  using namespace vitamin;
  kubernetes::Options options;
  std::vector<std::string> gpus;
  std::string cdi_directory;
  options.container.socket = protocol::kSystemSocket;
  options.container.libraries = "/usr/lib/vitamin/preload";
  CLI::App app("Offers shares of this node's GPUs to the kubelet, as devices.",
               "vitamin-k8s-plugin");
  app.footer(kFooter);
  app.add_option("--resource", options.resource,
                 "Name for pods; {percent} becomes the size of a share")
      ->capture_default_str();
  app.add_option("--per-gpu", options.shares, "Devices that each GPU is: 4 of 25 percent")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  app.add_option("--gpu", gpus, "UUID[=SHARES[@RESOURCE]] (default: all of NVIDIA's here)");
  app.add_option("--nvidia-gpus", options.nvidia_gpus,
                 "Where NVIDIA's driver lists this node's GPUs; others of --gpu are not offered")
      ->capture_default_str();
  app.add_option("--kubelet", options.directory, "Directory of the kubelet's socket")
      ->capture_default_str();
  app.add_option("--socket", options.container.socket, "Where vitamind listens")
      ->capture_default_str();
  app.add_option("--libraries", options.container.libraries, "Directory of the preloaded libraries")
      ->capture_default_str();
  app.add_option("--mps", options.container.mps,
                 "Directory of MPS's pipes, for containers to use it");
  app.add_option("--mps-shm", options.container.mps_shm,
                 "What MPS's server has as /dev/shm, for containers to have it too");
  app.add_option("--cdi", options.cdi_gpu,
                 "Name devices to the container engine instead of mounting: nvidia.com/gpu");
  app.add_option("--cdi-directory", cdi_directory,
                 "Where to write what vitamin.dev/share=all is, for --cdi");
  app.add_option("--pod-resources", options.pod_resources,
                 "The kubelet's socket that says what other plugins offer: such a GPU is not "
                 "offered a second time");
  app.add_option("--every", options.every_ms, "Milliseconds between two checks of all devices")
      ->capture_default_str()
      ->check(CLI::Range(10, 60'000));
  if (const auto ended = config::read_command_line(app, argc, argv, VITAMIN_VERSION)) return *ended;

  // Without --gpu the GPUs are found as they come; a name for them all stands for the resource.
  const std::vector<std::string> any = {"any"};
  const auto offers =
      kubernetes::offers_of(gpus.empty() ? any : gpus, options.shares, options.resource);
  if (!offers) return refuse(offers.error().message);
  for (const auto& [resource, offered] : *offers) options.own_resources.push_back(resource);
  for (const auto& [resource, offered] : *offers) {
    kubernetes::Options of_resource = options;
    of_resource.resource = resource;
    if (!gpus.empty()) of_resource.gpus = offered;
    plugins.emplace_back(std::move(of_resource));
  }
  std::signal(SIGTERM, &on_signal);
  std::signal(SIGINT, &on_signal);
  if (!kubernetes::serve_alone("vitamin-k8s-plugin", options.directory, stopping, &say)) return 0;
  if (!cdi_directory.empty())
    if (const auto written = write_cdi(cdi_directory, options.container); !written)
      return refuse(written.error().message);
  std::vector<std::jthread> threads;
  for (kubernetes::Plugin& plugin : plugins) threads.emplace_back([&plugin] { plugin.run(); });
  return 0;
}
