// SPDX-License-Identifier: Apache-2.0
//
// What a container needs to share a GPU: the directory of vitamind's socket, that of the preloaded
// libraries, their variables, and with MPS its pipes and shared memory. No privileges. The device
// plugin says it to the kubelet, the DRA driver writes it as a CDI specification.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::kubernetes {

struct ContainerSettings {
  std::string socket;     // of vitamind
  std::string libraries;  // directory of the preloaded libraries, on the node and in containers
  std::string mps;        // directory of MPS's pipes; empty: none
  std::string mps_shm;    // what MPS's server has as /dev/shm; empty: the container keeps its own
};

struct ContainerMount {
  std::string host, container;
  bool read_only = true;
};

struct ContainerNeeds {
  std::map<std::string, std::string> environment;
  std::vector<ContainerMount> mounts;
};

// Reads the directory of the libraries: those that are there now.
ContainerNeeds container_needs(const ContainerSettings& settings);

// Error: MPS is asked for and its control daemon has no pipe there, so that containers would fail
// at their first call of CUDA.
hal::Status check_mps(const ContainerSettings& settings);

// As "containerEdits" of a CDI specification.
nlohmann::ordered_json cdi_edits(const ContainerNeeds& needs);

// Replaces a file whole, so that no reader sees half of it. Error: why not.
hal::Status write_file(const std::string& path, const std::string& text);

}  // namespace vitamin::kubernetes
