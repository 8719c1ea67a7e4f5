// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/program.h"

#include <algorithm>
#include <cmath>

#include "scheduler/simulator/workloads.h"

namespace vitamin::sim {

float kernel_ns(const ModelKernel& kernel, std::uint32_t sms, std::uint32_t all) {
  const float useful = std::min(kernel.useful, static_cast<float>(all));
  const float m = static_cast<float>(sms);
  if (m >= useful) return kernel.ns;
  return kernel.latency + (kernel.ns - kernel.latency) * useful / m;
}

Program::Program(std::uint64_t key, std::string name, scheduler::StepKind kind,
                 std::vector<ModelKernel> kernels, double bytes, std::uint32_t sms)
    : key_(key),
      name_(std::move(name)),
      kind_(kind),
      kernels_(std::move(kernels)),
      bytes_(bytes),
      sms_(sms),
      widths_(sms + 1) {
  double busy = 0;
  for (const ModelKernel& kernel : kernels_)
    busy +=
        static_cast<double>(kernel.ns * std::min(1.0F, kernel.useful / static_cast<float>(sms)));
  whole_ns_ = total_ns(sms);
  occupancy_ = busy / whole_ns_;
}

void Program::compute(std::uint32_t sms) const {
  std::vector<double>& ends = widths_[sms].ends;
  ends.reserve(kernels_.size() + 1);
  double time = 0;
  ends.push_back(0);
  for (const ModelKernel& kernel : kernels_) {
    const float device = kernel_ns(kernel, sms, sms_) + kGapNs;
    time += static_cast<double>(std::max(device, kernel.host_ns));
    ends.push_back(time);
  }
  widths_[sms].bandwidth = bytes_ / (time * 1e-9) / kBandwidth;
}

double Program::stretch(std::uint32_t sms, double others) const {
  constexpr double kGrid = 64;  // as fine as it needs to be
  const auto step = static_cast<std::uint64_t>(std::llround(others * kGrid));
  if (step == 0) return 1;
  const auto [at, fresh] = stretches_.try_emplace(step << 32 | sms);
  if (!fresh) return at->second;
  const double met = static_cast<double>(step) / kGrid;
  double time = 0;
  for (const ModelKernel& kernel : kernels_) {
    const double wants =
        std::min(1.0, static_cast<double>(kernel.useful) / static_cast<double>(sms));
    const double device = static_cast<double>(kernel_ns(kernel, sms, sms_)) * (1 + wants * met) +
                          static_cast<double>(kGapNs);
    time += std::max(device, static_cast<double>(kernel.host_ns));
  }
  return at->second = time / total_ns(sms);
}

}  // namespace vitamin::sim
