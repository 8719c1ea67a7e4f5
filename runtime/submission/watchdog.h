// SPDX-License-Identifier: Apache-2.0
//
// Watchdog: names kernels that run for too long on a part of the device. A kernel whose blocks wait
// for each other without saying so ends only where all of them fit (KernelTable). A kernel that
// ended on a width once is not watched there again; one that runs only where all of its blocks fit
// is not watched.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "runtime/graph.h"
#include "runtime/submission/core.h"

namespace vitamin::runtime {

class Watchdog {
 public:
  explicit Watchdog(Core& core) : core_(core) { watched_.reserve(kMost); }

  // Whether a launch of the kernel on so many SMs is to be watched.
  bool wants(const Kernel& kernel, std::uint32_t sms) const {
    return !kernel.resident && kernel.proven_sms > sms && watched_.size() < kMost;
  }
  // It was launched on `sms`; `marker` is behind it. `graph`: whose kernel it is; null: it
  // is of the table.
  void watch(Kernel& kernel, std::uint32_t sms, std::uint64_t predicted_ns, MarkerRef marker,
             std::shared_ptr<Graph> graph = nullptr);
  bool watches() const { return !watched_.empty(); }
  // Looks at all of them.
  void check();

 private:
  static constexpr std::size_t kMost = 256;
  struct Watched {
    Kernel* kernel;
    std::uint32_t sms;
    std::uint64_t predicted_ns;
    MarkerRef marker;
    std::chrono::steady_clock::time_point since;
    bool named;
    std::shared_ptr<Graph> graph;  // whose the kernel is; null: the table's,
    KernelRef held;                // which keeps it
  };

  Core& core_;
  std::vector<Watched> watched_;  // in the order of submission
};

}  // namespace vitamin::runtime
