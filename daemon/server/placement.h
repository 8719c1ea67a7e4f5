// SPDX-License-Identifier: Apache-2.0
//
// Where vitamind's loop runs: on processors of the NUMA node that the GPUs of its clients are next
// to, since every grant is a cache line that goes between the loop and them.
//
// The node of a GPU is known from the operating system's list of PCI devices (hwloc); which one a
// UUID is, from the driver's own list in /proc. Where either cannot be read (a sandbox), the loop
// stays where the scheduler of the operating system puts it. Never beyond the processors that the
// process was given, and never fewer than two of them: its helpers need one, too.
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

class Placement {
 public:
  // Of this machine; `synthetic`: of another one, as hwloc describes it ("numa:2 core:4 pu:2").
  explicit Placement(const std::string& synthetic = {});
  ~Placement();
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  std::size_t nodes() const;
  // Of a PCI device, "0000:3b:00.0"; nothing: unknown, or next to all of them.
  std::optional<unsigned> node_of(const std::string& pci) const;
  // Processors, by the operating system's numbers, next to most of the GPUs, given the node of
  // each; empty: no reason to move. `allowed`: those that may be used.
  std::vector<unsigned> choose(const std::vector<unsigned>& nodes_of_gpus,
                               const std::vector<unsigned>& allowed) const;
  // Those that the calling thread may use.
  std::vector<unsigned> allowed() const;
  // The calling thread runs there from now on. False: the system refused.
  bool bind(const std::vector<unsigned>& processors) const;

 private:
  hwloc_topology* topology_ = nullptr;
};

// UUID to PCI address, from the driver's list below `directory`; empty where it cannot be read.
std::map<std::string, std::string> pci_of_gpus(
    const std::string& directory = "/proc/driver/nvidia/gpus");

}  // namespace vitamin::daemon
