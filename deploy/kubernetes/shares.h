// SPDX-License-Identifier: Apache-2.0
//
// Shares of GPUs as Kubernetes counts devices: each GPU is `per_gpu` equal devices, named
// "<UUID>.<number>". Nothing here talks to anybody.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::kubernetes {

struct Gpu {
  std::string uuid;
  bool healthy = true;
  bool operator==(const Gpu&) const = default;
};

struct Share {
  std::string id;
  bool healthy = true;
};

// Of /proc/driver/nvidia/gpus, or a folder like it.
std::vector<std::string> nvidia_gpus(const std::string& folder);

std::vector<Share> shares_of(std::span<const Gpu> gpus, std::uint32_t per_gpu);

// Part before the last dot; empty: no such name.
std::string gpu_of(const std::string& id);

// Which `size` of `available` a container should get, `must` among them: all of one GPU if one has
// them, of those the one with the fewest left; else of as few GPUs as can be.
std::vector<std::string> preferred(std::vector<std::string> available,
                                   const std::vector<std::string>& must, std::size_t size);

// What a container was given.
struct Allocation {
  std::vector<std::string> gpus;  // UUIDs, each once
  std::uint32_t percent = 100;    // of each GPU: the least that it has of any of them
};
// Fails with a sentence for an unknown or unhealthy device.
hal::Result<Allocation> allocate(std::span<const std::string> ids, std::span<const Gpu> gpus,
                                 std::uint32_t per_gpu);

}  // namespace vitamin::kubernetes
