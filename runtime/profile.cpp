// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile.h"

#include <algorithm>
#include <cmath>

namespace vitamin::runtime {
namespace {

// What a launch costs at least however many processors share its work, where nothing was measured
// that would tell: the shortest kernels of real programs (p10 of 1.0 to 1.2 us on an H200).
constexpr double kLatencyNs = 1'500;
// So many samples say half of what can be known of a width.
constexpr double kKnown = 3;

std::uint64_t mixed(std::uint64_t key, std::uint32_t processors) {
  std::uint64_t z = key ^ (std::uint64_t{processors} * 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return z == 0 ? 1 : z;
}

double x_of(const KernelProfile& kernel, bool staircase, std::uint32_t processors) {
  return staircase ? static_cast<double>(kernel.waves(processors)) : 1.0 / processors;
}

}  // namespace

void ProfileCell::add(double ns) { merge({processors, 1, ns, 0}); }

void ProfileCell::merge(const ProfileCell& other) {
  if (other.count == 0) return;
  const double n = static_cast<double>(count), m = static_cast<double>(other.count);
  const double difference = other.mean_ns - mean_ns;
  mean_ns += difference * m / (n + m);
  m2 += other.m2 + difference * difference * n * m / (n + m);
  count += other.count;
}

double ProfileCell::relative_error() const {
  if (count < 2 || mean_ns <= 0) return 1;
  const double n = static_cast<double>(count);
  return std::sqrt(m2 / (n - 1) / n) / mean_ns;
}

std::uint64_t KernelProfile::waves(std::uint32_t processors) const {
  if (blocks == 0 || resident == 0 || processors == 0) return 0;
  const std::uint64_t wave = std::uint64_t{resident} * processors;
  return (blocks + wave - 1) / wave;
}

double ProfileFit::at(const KernelProfile& kernel, std::uint32_t processors) const {
  return latency_ns + shared * x_of(kernel, staircase, processors);
}

ProfileFit fit(const KernelProfile& kernel) {
  ProfileFit result;
  result.staircase = kernel.blocks > 0 && kernel.resident > 0;
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const ProfileCell& cell : kernel.cells) {
    if (cell.count == 0) continue;
    // Times err by a share of themselves, and what is wanted is a share, too: so residuals count
    // relative to the time, else the narrow widths, where everything takes longest, decide alone.
    // From a few samples on a width is known; more must not drown the other widths.
    const double x = x_of(kernel, result.staircase, cell.processors);
    const double y = std::max(1.0, cell.mean_ns), n = static_cast<double>(cell.count);
    const double weight = n / (n + kKnown) / (y * y);
    w += weight, wx += weight * x, wy += weight * y;
    wxx += weight * x * x, wxy += weight * x * y;
    ++result.widths;
  }
  if (result.widths == 0) return result;
  const double spread = w * wxx - wx * wx;
  // Widths that are nearly the same differ by noise more than by their processors.
  constexpr double kApart = 0.01;
  if (result.widths > 1 && spread > kApart * w * wxx) {
    result.shared = (w * wxy - wx * wy) / spread;
    result.latency_ns = (wy - result.shared * wx) / w;
    if (result.shared < 0) result.shared = 0, result.latency_ns = wy / w;
    if (result.latency_ns < 0) result.latency_ns = 0, result.shared = wxy / wxx;
    return result;
  }
  // One point (or one wave everywhere): all but a usual latency is taken to be shared work.
  result.latency_ns = std::min(kLatencyNs, wy / w / 2);
  result.shared = (wy / w - result.latency_ns) * w / wx;
  return result;
}

void Profile::add(std::uint64_t key, std::uint32_t processors, double ns) {
  merge(key, {processors, 1, ns, 0});
}

void Profile::merge(std::uint64_t key, const ProfileCell& cell, std::uint64_t most) {
  if (cell.processors == 0 || cell.count == 0) return;
  std::vector<ProfileCell>& cells = kernels_[key].cells;
  const auto at =
      std::lower_bound(cells.begin(), cells.end(), cell.processors,
                       [](const ProfileCell& c, std::uint32_t p) { return c.processors < p; });
  ProfileCell& kept = at != cells.end() && at->processors == cell.processors
                          ? *at
                          : *cells.insert(at, {cell.processors});
  kept.merge(cell);
  if (kept.count > most) {
    kept.m2 *= static_cast<double>(most) / static_cast<double>(kept.count);
    kept.count = most;
  }
  ++version_;
}

void Profile::merge(const Profile& other) {
  for (const auto& [key, kernel] : other.kernels_) {
    if (!kernel.name.empty() || kernel.blocks > 0)
      describe(key, kernel.name, kernel.blocks, kernel.resident);
    for (const ProfileCell& cell : kernel.cells) merge(key, cell);
  }
}

void Profile::forget(std::uint64_t key) {
  if (kernels_.erase(key) > 0) ++version_;
}

void Profile::describe(std::uint64_t key, std::string name, std::uint64_t blocks,
                       std::uint32_t resident) {
  KernelProfile& kernel = kernels_[key];
  kernel.name = std::move(name);
  kernel.blocks = blocks;
  kernel.resident = resident;
  ++version_;
}

const KernelProfile* Profile::find(std::uint64_t key) const {
  const auto found = kernels_.find(key);
  return found == kernels_.end() ? nullptr : &found->second;
}

Prediction Profile::predict(std::uint64_t key, std::uint32_t processors) const {
  const KernelProfile* kernel = find(key);
  if (kernel == nullptr || processors == 0) return {};
  for (const ProfileCell& cell : kernel->cells)
    if (cell.processors == processors && cell.count > 0) {
      const double n = static_cast<double>(cell.count);
      return {cell.mean_ns, n / (n + kKnown) / (1 + 10 * cell.relative_error()), true};
    }
  const ProfileFit model = fit(*kernel);
  if (model.widths == 0) return {};
  // Never as sure as a measurement: the more widths the model rests on, the surer.
  const double confidence = 0.6 * (1 - 1.0 / (1 + model.widths));
  return {model.at(*kernel, processors), confidence, false};
}

ProfileLearner::ProfileLearner() : slots_(std::make_unique<std::array<Slot, kSlots>>()) {}

void ProfileLearner::add(std::uint64_t kernel, std::uint32_t processors, std::uint64_t ns) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const std::uint64_t key = mixed(kernel, processors);
  for (unsigned probe = 0; probe < kProbes; ++probe) {
    Slot& slot = (*slots_)[(key + probe) & (kSlots - 1)];
    std::uint64_t found = slot.key.load(std::memory_order_acquire);
    if (found == 0) {
      slot.key.compare_exchange_strong(found, key, std::memory_order_acq_rel);
      if (found == 0) {
        slot.kernel.store(kernel, kRelaxed);
        slot.processors.store(processors, std::memory_order_release);
        found = key;
      }
    }
    if (found != key) continue;
    const std::uint64_t usual = slot.usual_ns.load(kRelaxed);
    if (ns >= (1ULL << 32) || (usual > 0 && ns > 8 * usual)) {
      outliers_.fetch_add(1, kRelaxed);
      // What was thought usual may itself have been unusual: it rises until it is believed.
      if (usual > 0)
        slot.usual_ns.store(
            static_cast<std::uint32_t>(std::min<std::uint64_t>(usual + usual / 4 + 1, ~0U)),
            kRelaxed);
      return;
    }
    slot.usual_ns.store(static_cast<std::uint32_t>(usual == 0 ? ns : (7 * usual + ns) / 8 + 1),
                        kRelaxed);
    const double us = static_cast<double>(ns) / 1000;
    // A slot that nobody harvests stops counting before its 16 bits of count overflow.
    if (slot.sum.load(kRelaxed) >> 48 >= 0xff00 ||
        (slot.sum.load(kRelaxed) & 0xffff'ffff'ffffULL) >= 1ULL << 47) {
      dropped_.fetch_add(1, kRelaxed);
      return;
    }
    slot.sum.fetch_add((1ULL << 48) + ns, kRelaxed);
    slot.squares.fetch_add(static_cast<std::uint64_t>(us * us * 1024), kRelaxed);
    return;
  }
  dropped_.fetch_add(1, kRelaxed);
}

void ProfileLearner::harvest(Profile& profile) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  for (Slot& slot : *slots_) {
    const std::uint32_t processors = slot.processors.load(std::memory_order_acquire);
    if (slot.key.load(kRelaxed) == 0 || processors == 0) continue;
    const std::uint64_t sum = slot.sum.exchange(0, kRelaxed);
    const double squares = static_cast<double>(slot.squares.exchange(0, kRelaxed)) / 1024 * 1e6;
    const std::uint64_t count = sum >> 48;
    if (count == 0) continue;
    ProfileCell cell{processors, count, 0, 0};
    const double n = static_cast<double>(count);
    cell.mean_ns = static_cast<double>(sum & 0xffff'ffff'ffffULL) / n;
    cell.m2 = std::max(0.0, squares - n * cell.mean_ns * cell.mean_ns);
    profile.merge(slot.kernel.load(kRelaxed), cell);
  }
}

}  // namespace vitamin::runtime
