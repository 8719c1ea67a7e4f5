// SPDX-License-Identifier: Apache-2.0
//
// vitamin-dra-driver: this node's GPUs as devices of resource.k8s.io/v1 that claims share.
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdlib>

#include "daemon/config/command_line.h"
#include "daemon/protocol/paths.h"
#include "deploy/kubernetes/dra/driver.h"
#include "deploy/kubernetes/node_lock.h"

namespace {

std::atomic<vitamin::kubernetes::DraDriver*> running = nullptr;
std::atomic<bool> stopping = false;
void on_signal(int) {
  stopping = true;
  if (vitamin::kubernetes::DraDriver* const driver = running) driver->stop();
}

void say(const std::string& line) {
  std::fprintf(stderr, "vitamin-dra-driver: %s\n", line.c_str());
}

int refuse(const std::string& why) {
  std::fprintf(stderr, "vitamin-dra-driver: %s. See `vitamin-dra-driver --help`. [%s]\n",
               why.c_str(), vitamin::runtime::code_of(vitamin::runtime::Problem::kUsage));
  return 1;
}

}  // namespace

// NOLINTNEXTLINE(bugprone-exception-escape): what escapes ends the process with its text
int main(int argc, char** argv) {
  using namespace vitamin;
  kubernetes::DriverOptions options;
  std::vector<std::string> gpus;
  std::string memory;
  options.container.socket = protocol::kSystemSocket;
  options.container.libraries = "/usr/lib/vitamin/preload";
  options.api = kubernetes::ApiServer::in_cluster();
  if (const char* const node = std::getenv("NODE_NAME")) options.node = node;
  CLI::App app("Publishes this node's GPUs for claims that share them, and prepares the claims.",
               "vitamin-dra-driver");
  app.add_option("--node", options.node, "Name of this node ($NODE_NAME)");
  app.add_option("--gpu", gpus, "UUID[=MEMORY] (default: all of NVIDIA's here): GPU-1=141Gi");
  app.add_option("--gpu-memory", memory, "Memory of each GPU for which --gpu does not say it");
  app.add_option("--nvidia-gpus", options.nvidia_gpus,
                 "Where NVIDIA's driver lists this node's GPUs; others of --gpu are not published")
      ->capture_default_str();
  app.add_option("--registry", options.registry, "Directory where the kubelet looks for plugins")
      ->capture_default_str();
  app.add_option("--directory", options.directory,
                 "Directory of the socket and of what is prepared")
      ->capture_default_str();
  app.add_option("--cdi-directory", options.cdi_directory, "Where the container engine reads CDI")
      ->capture_default_str();
  app.add_option("--gpu-kind", options.gpu_kind, "CDI kind of the vendor's GPUs; empty: none")
      ->capture_default_str();
  app.add_option("--config", options.config, "vitamin.toml, whose classes claims may name");
  app.add_option("--socket", options.container.socket, "Where vitamind listens")
      ->capture_default_str();
  app.add_option("--libraries", options.container.libraries, "Directory of the preloaded libraries")
      ->capture_default_str();
  app.add_option("--mps", options.container.mps,
                 "Directory of MPS's pipes, for containers to use it");
  app.add_option("--mps-shm", options.container.mps_shm,
                 "What MPS's server has as /dev/shm, for containers to have it too");
  app.add_option("--api-server", options.api.url, "URL (default: that of the cluster it runs in)");
  app.add_option("--token", options.api.token_file, "File of the service account's token");
  app.add_option("--ca", options.api.ca_file, "File of the API server's certificate authority");
  app.add_option("--pod-resources", options.pod_resources,
                 "The kubelet's socket that says what device plugins offer: such a GPU is not "
                 "published");
  app.add_option("--every", options.every_ms, "Milliseconds between two checks of all GPUs")
      ->capture_default_str()
      ->check(CLI::Range(10, 60'000));
  app.add_option("--api-every", options.api_every_ms,
                 "Milliseconds between two reads of slices and claims while nothing changes here")
      ->capture_default_str()
      ->check(CLI::Range(10, 3'600'000));
  if (const auto ended = config::read_command_line(app, argc, argv, VITAMIN_VERSION)) return *ended;
  if (options.node.empty()) return refuse("which node is this? Give --node or NODE_NAME");
  if (options.api.url.empty())
    return refuse("this is no pod of a cluster: where is the API server? Give --api-server");
  for (const std::string& text : gpus) {
    const auto gpu = kubernetes::claimable_gpu(text);
    if (!gpu) return refuse(gpu.error().message);
    options.gpus.push_back(*gpu);
  }
  if (!memory.empty()) {
    const auto bytes = kubernetes::gpu_memory(memory);
    if (!bytes) return refuse("--gpu-memory: " + bytes.error().message);
    options.gpu_memory = *bytes;
  }
  std::signal(SIGTERM, &on_signal);
  std::signal(SIGINT, &on_signal);
  // Before the driver reads what was prepared: until then another one may prepare claims.
  if (!kubernetes::serve_alone("vitamin-dra-driver", options.directory, stopping, &say)) return 0;
  kubernetes::DraDriver driver(std::move(options));
  running = &driver;
  if (stopping) driver.stop();
  if (const auto ran = driver.run(); !ran) {
    say(ran.error().message);
    return 1;
  }
  return 0;
}
