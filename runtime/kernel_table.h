// SPDX-License-Identifier: Apache-2.0
//
// What is known about each kernel handle of the process: layout, name, where it came from, how wide
// it must run. Looked up on every launch, filled at the first.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hal/device.h"
#include "runtime/pool/layout.h"
#include "runtime/stats.h"

namespace vitamin::runtime {

struct Kernel {
  hal::KernelHandle handle = nullptr;
  std::string name;
  std::uint64_t traced = 0;     // its number in the trace; 0: none yet
  std::uint64_t name_hash = 0;  // what launch_key() wants
  stats::LibrarySlot* library = nullptr;
  // Waits for its own blocks (hand-written grid barrier, stream-K): its whole grid must be
  // resident.
  bool resident = false;
  // DispatchOptions::cautious, and it is not known whether it does so: a grid that the device holds
  // at once runs only where all of it is. Blocks of a larger one cannot wait for all others, on any
  // device; those that wait for some others only are not detected.
  bool assumed_resident = false;
  // Waits for kernels of other processes (kernel_names.h): runs on the program's own stream and
  // needs no grant.
  bool collective = false;
  // Partitions that refused a launch of it which we believed would fit: the remainder of a split
  // takes fewer clusters than its SMs promise.
  std::bitset<kPartitionsMax> refused;
  // Narrowest width at which a launch of it was seen to end: at that width and above it cannot
  // hang for want of SMs. ~0: never seen to end.
  std::uint32_t proven_sms = ~0U;
  std::uint64_t launches = 0;
  std::uint32_t work = 1;     // that a launch adds to its client's progress
  std::uint32_t places = 1;   // that a launch takes in a queue of the driver
  std::uint32_t holders = 0;  // KernelRefs

  // How many SMs this launch needs; asks the device once for each distinct configuration.
  std::uint32_t sms_needed(hal::Device& device, const hal::KernelLaunch& launch);
  // The same for an ordinary launch, if it was asked before; else 0.
  std::uint32_t known_sms(const hal::KernelLaunch& launch) const {
    const bool plain =
        !launch.cooperative && !resident && !assumed_resident && launch.cluster_blocks <= 1;
    return plain ? plain_sms_ : 0;
  }

 private:
  struct Need {
    std::uint64_t configuration;
    std::uint32_t sms;
  };
  std::vector<Need> needs_;
  // Of launches without cluster attribute and cooperation, which is nearly all; 0: not asked yet.
  std::uint32_t plain_sms_ = 0;
};

// Keeps a kernel while the device lock is dropped: its module may be unloaded.
class KernelRef {
 public:
  KernelRef() = default;
  explicit KernelRef(Kernel* kernel) : kernel_(kernel) {
    if (kernel_ != nullptr) ++kernel_->holders;
  }
  KernelRef(KernelRef&& other) noexcept : kernel_(std::exchange(other.kernel_, nullptr)) {}
  KernelRef& operator=(KernelRef other) noexcept {
    std::swap(kernel_, other.kernel_);
    return *this;
  }
  ~KernelRef() {
    if (kernel_ != nullptr) --kernel_->holders;
  }
  Kernel* get() const { return kernel_; }

 private:
  Kernel* kernel_ = nullptr;
};

class KernelTable {
 public:
  // `resident`: names of kernels known to wait for their own blocks; `collectives`: parts of the
  // names of those that wait for other processes, besides what kernel_names.h knows;
  // `cautious`: all others are assumed to wait for their own blocks, too.
  KernelTable(hal::Device& device, stats::DevicePage& page,
              std::unordered_set<std::string> resident, std::vector<std::string> collectives = {},
              bool cautious = false);
  Kernel& find(hal::KernelHandle handle) {
    const std::size_t home = slot_of(handle);
    for (std::size_t i = home;; i = (i + 1) & mask_) {
      Kernel* kernel = slots_[i].get();
      if (kernel == nullptr) return add(handle);
      if (kernel->handle == handle) return *kernel;
    }
  }
  // Handles may be given out again after a module was unloaded. Kernels without a KernelRef are
  // freed.
  void clear();
  // For the rest of this process; DispatchOptions::on_hang may remember it for later ones.
  void remember_resident(Kernel& kernel);
  bool is_resident(const std::string& name) const { return resident_.contains(name); }

 private:
  Kernel& add(hal::KernelHandle handle);
  std::size_t slot_of(hal::KernelHandle handle) const {
    const auto bits = reinterpret_cast<std::uintptr_t>(handle);
    return static_cast<std::size_t>((bits >> 4) * 0x9e3779b97f4a7c15ULL >> 32) & mask_;
  }

  hal::Device& device_;
  stats::DevicePage& page_;
  std::unordered_set<std::string> resident_;
  std::vector<std::string> collectives_;
  bool cautious_;
  std::vector<std::unique_ptr<Kernel>> slots_;    // open addressing, at most half full
  std::vector<std::unique_ptr<Kernel>> retired_;  // of unloaded modules, still held
  std::size_t mask_;
  std::size_t size_ = 0;
};

}  // namespace vitamin::runtime
