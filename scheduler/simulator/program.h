// SPDX-License-Identifier: Apache-2.0
//
// A program: the kernels of one prefill chunk, decode step or training step, in stream order, and
// how long each takes on any number of SMs.
//
// Threads: a ModelLibrary belongs to one thread; programs do not change once made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler/types.h"

namespace vitamin::sim {

// One kernel, by its time on the whole device.
struct ModelKernel {
  float ns = 0;       // on the whole device
  float latency = 0;  // of it, what no processor shortens
  float useful = 1;   // SMs beyond which it gets no faster
  float host_ns = 0;  // the host needs so long for each launch: the next starts no sooner
};

// The gap between two dependent kernels of one stream (h200.md: 1.57 to 1.63 us).
inline constexpr float kGapNs = 1600;

float kernel_ns(const ModelKernel& kernel, std::uint32_t sms, std::uint32_t all);

class Program {
 public:
  Program(std::uint64_t key, std::string name, scheduler::StepKind kind,
          std::vector<ModelKernel> kernels, double bytes, std::uint32_t sms);

  std::uint64_t key() const { return key_; }
  const std::string& name() const { return name_; }
  scheduler::StepKind kind() const { return kind_; }
  std::uint32_t kernels() const { return static_cast<std::uint32_t>(kernels_.size()); }
  std::uint32_t sms() const { return sms_; }  // of the whole device
  // End of each kernel, gaps included, on so many SMs, nanoseconds from the start. [0] = 0.
  const std::vector<double>& ends(std::uint32_t sms) const { return on(sms).ends; }
  double total_ns(std::uint32_t sms) const { return ends(sms).back(); }
  double whole_ns() const { return whole_ns_; }  // on the whole device
  // Share of the device's memory bandwidth that it uses while it runs alone on that width.
  double bandwidth(std::uint32_t sms) const { return on(sms).bandwidth; }
  // The host needs so long for each launch; 0: no time to speak of.
  double host_ns() const { return static_cast<double>(kernels_.front().host_ns); }
  // Share of the SMs that it keeps busy, on average, on the whole device.
  double occupancy() const { return occupancy_; }
  // How many times as long it takes on so many SMs when others are busy on `others` of them,
  // on average: a kernel that wants a share u of them finds that it has to share, block by block,
  // and takes 1 + u * others as long; the host's pace stays what it is.
  double stretch(std::uint32_t sms, double others) const;

 private:
  struct Width {
    std::vector<double> ends;  // empty: not computed yet
    double bandwidth = 0;
  };
  const Width& on(std::uint32_t sms) const {
    if (widths_[sms].ends.empty()) compute(sms);
    return widths_[sms];
  }
  void compute(std::uint32_t sms) const;

  std::uint64_t key_;
  std::string name_;
  scheduler::StepKind kind_;
  std::vector<ModelKernel> kernels_;
  double bytes_;
  std::uint32_t sms_;
  double whole_ns_ = 0, occupancy_ = 0;
  mutable std::vector<Width> widths_;  // by SMs
  mutable std::unordered_map<std::uint64_t, double> stretches_;
};

}  // namespace vitamin::sim
