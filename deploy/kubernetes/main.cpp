// SPDX-License-Identifier: Apache-2.0
//
// vitamin-k8s-plugin: shares of this node's GPUs as devices of Kubernetes.
#include <CLI/CLI.hpp>
#include <csignal>

#include "deploy/kubernetes/plugin.h"
#include "protocol/paths.h"

namespace {
vitamin::kubernetes::Plugin* running = nullptr;
void on_signal(int) { running->stop(); }
}  // namespace

int main(int argc, char** argv) {
  using namespace vitamin;
  kubernetes::Options options;
  options.socket = protocol::kSystemSocket;
  options.libraries = "/usr/lib/vitamin/preload";
  CLI::App app("Offers shares of this node's GPUs to the kubelet, as devices.",
               "vitamin-k8s-plugin");
  app.add_option("--resource", options.resource, "Its name for pods")->capture_default_str();
  app.add_option("--per-gpu", options.per_gpu, "Devices that each GPU is: 4 of 25 percent")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  app.add_option("--gpu", options.gpus, "UUID of a GPU (default: all of NVIDIA's here)");
  app.add_option("--kubelet", options.folder, "Folder of the kubelet's socket")
      ->capture_default_str();
  app.add_option("--socket", options.socket, "Where vitamind listens")->capture_default_str();
  app.add_option("--libraries", options.libraries, "Folder of the preloaded libraries")
      ->capture_default_str();
  app.add_option("--mps", options.mps, "Folder of MPS's pipes, for containers to use it");
  app.add_option("--cdi", options.cdi_gpu,
                 "Name devices to the container engine instead of mounting: nvidia.com/gpu");
  app.add_option("--every", options.every_ms, "Milliseconds between two looks at who is well")
      ->capture_default_str()
      ->check(CLI::Range(10, 60'000));
  CLI11_PARSE(app, argc, argv);
  for (const std::string& gpu : options.gpus)
    if (gpu.empty() || gpu.size() > 59) {
      std::fprintf(stderr, "vitamin-k8s-plugin: '%s' is no UUID of a GPU\n", gpu.c_str());
      return 1;
    }
  kubernetes::Plugin plugin(std::move(options));
  running = &plugin;
  std::signal(SIGTERM, &on_signal);
  std::signal(SIGINT, &on_signal);
  plugin.run();
  return 0;
}
