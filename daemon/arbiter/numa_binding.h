// SPDX-License-Identifier: Apache-2.0
//
// Binds vitamind's loop to processors of the NUMA node that most of its clients' GPUs are attached
// to, because every grant moves cache lines between the loop and a client.
//
// hwloc knows the node of a PCI device; the NVIDIA driver's list in /proc maps UUIDs to PCI
// addresses. If either cannot be read (in a sandbox), the loop is not bound. The loop is bound to
// processors that the process may use, and to no fewer than two: vitamind's other threads need one.
//
// Threads: one at a time; bind() acts on the calling thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct hwloc_topology;
struct hwloc_bitmap_s;

namespace vitamin::daemon {

class NumaBinding {
 public:
  // Reads this machine's topology; `synthetic` (tests): a topology in hwloc's notation
  // ("numa:2 core:4 pu:2").
  explicit NumaBinding(const std::string& synthetic = {});
  ~NumaBinding();
  NumaBinding(const NumaBinding&) = delete;
  NumaBinding& operator=(const NumaBinding&) = delete;

  std::size_t nodes() const;
  // The node of a PCI device, "0000:3b:00.0"; empty: unknown, or attached to several nodes.
  std::optional<unsigned> node_of(const std::string& pci) const;
  // The processors (the operating system's numbers), of those in `allowed`, on the node that most
  // of the GPUs are attached to; `nodes_of_gpus`: one node for each GPU. Empty: do not bind.
  std::vector<unsigned> choose(const std::vector<unsigned>& nodes_of_gpus,
                               const std::vector<unsigned>& allowed) const;
  // The processors that the calling thread may use.
  std::vector<unsigned> allowed() const;
  // Binds the calling thread. False: the system refused.
  bool bind(const std::vector<unsigned>& processors) const;

 private:
  hwloc_topology* topology_ = nullptr;
};

// Maps UUIDs to PCI addresses, from the driver's list below `directory`; empty: it cannot be read.
std::map<std::string, std::string> pci_of_gpus(
    const std::string& directory = "/proc/driver/nvidia/gpus");

}  // namespace vitamin::daemon
