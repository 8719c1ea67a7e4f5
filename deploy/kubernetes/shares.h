// SPDX-License-Identifier: Apache-2.0
//
// Shares of GPUs as Kubernetes counts devices: each GPU is a number of equal devices, named
// "<UUID>.<number>". No I/O but nvidia_gpus(). Thread-safe: no state.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::kubernetes {

struct NodeGpu {
  std::string uuid;
  std::uint32_t shares = 4;  // 1 to 100
  bool healthy = true;
  std::string offered_as = {};  // by another plugin (others.h); empty: only here
  bool operator==(const NodeGpu&) const = default;
};

struct Share {
  std::string id;
  bool healthy = true;
};

inline constexpr const char* kNvidiaGpus = "/proc/driver/nvidia/gpus";

// GPUs that NVIDIA's driver lists.
struct NvidiaGpus {
  std::vector<std::string> uuids;  // sorted
  // No other is in the machine: the driver is loaded and has read the UUID of each. Without
  // persistence mode it may read one at the first use only, and lists "GPU-????" until then.
  bool complete = false;
};
// Reads kNvidiaGpus, or a directory like it.
NvidiaGpus nvidia_gpus(const std::string& directory);

// Whether a GPU of that UUID may be one of this machine: no complete list lacks it. MIG devices are
// in no list.
bool is_here(const std::string& uuid, const NvidiaGpus& present);

// Which GPUs are offered under which extended resource.
using Offers = std::map<std::string, std::vector<NodeGpu>>;
// `texts`: "UUID", "UUID=SHARES" or "UUID=SHARES@RESOURCE"; what a text leaves out is `shares` and
// `resource`. "{percent}" in a resource becomes the size of a share, so that a unit of the resource
// is the same everywhere and a quota can count it. Error: a text that is none of these, a GPU
// named twice, or a resource that is no qualified name.
hal::Result<Offers> offers_of(std::span<const std::string> texts, std::uint32_t shares,
                              const std::string& resource);

std::vector<Share> shares_of(std::span<const NodeGpu> gpus);

// Part before the last dot; empty: no such name.
std::string gpu_of(const std::string& id);

// Whether another plugin's device of that name is (a part of) the GPU: its UUID, alone or followed
// by what NVIDIA's plugin appends for a replica ("::0") or what this one does (".0").
bool is_of_gpu(const std::string& device, const std::string& uuid);

// Which `size` of `available` a container should get, `must` among them: all of one GPU if one has
// them, of those the one with the fewest left; else of as few GPUs as can be.
std::vector<std::string> preferred(std::vector<std::string> available,
                                   const std::vector<std::string>& must, std::size_t size);

// What a container was given.
struct ContainerShare {
  std::vector<std::string> gpus;  // UUIDs, each once
  std::uint32_t percent = 100;    // of each GPU: the least that it has of any of them
};
// Fails with a sentence for an unknown or unhealthy device.
hal::Result<ContainerShare> allocate(std::span<const std::string> ids,
                                     std::span<const NodeGpu> gpus);

}  // namespace vitamin::kubernetes
