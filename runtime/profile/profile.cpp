// SPDX-License-Identifier: Apache-2.0
#include "runtime/profile/profile.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace vitamin::runtime {
namespace {

// What a launch costs at least however many SMs share its work, where nothing was measured
// that would tell: the shortest kernels of real programs (p10 of 1.0 to 1.2 us on an H200).
constexpr double kLatencyNs = 1'500;
// So many samples say half of what can be known of a width.
constexpr double kKnown = 3;
// How far the launches of one width differ, as a rule: by a share of themselves and, the short
// ones, by what the ends of a timing differ.
constexpr double kDiffer = 0.1, kDifferNs = 1'000;
// A model through fewer widths says nothing of how well it fits.
constexpr unsigned kFits = 4;

std::uint64_t mixed(std::uint64_t key, std::uint64_t with) {
  std::uint64_t z = key ^ (with * 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  z ^= z >> 31;
  return z == 0 ? 1 : z;
}

double x_of(const KernelProfile& kernel, bool staircase, std::uint32_t sms) {
  return staircase ? static_cast<double>(kernel.waves(sms)) : 1.0 / sms;
}

}  // namespace

void ProfileCell::add(double ns) {
  ProfileCell one{sms, 1, ns, 0};
  one.kept = 1;
  one.some[0] = static_cast<float>(ns);
  merge(one);
}

void ProfileCell::merge(const ProfileCell& other) {
  if (other.count == 0) return;
  const double n = static_cast<double>(count), m = static_cast<double>(other.count);
  const double difference = other.mean_ns - mean_ns;
  mean_ns += difference * m / (n + m);
  m2 += other.m2 + difference * difference * n * m / (n + m);
  count += other.count;
  if (kept + other.kept <= kMostKept) {
    std::copy_n(other.some.begin(), other.kept, some.begin() + kept);
    kept += other.kept;
    return;
  }
  // Drawn from both without putting back, each side as likely as it has launches. No generator: the
  // same launches give the same profile.
  std::array<float, kMostKept> mine = some, others = other.some;
  std::uint32_t left = kept, left_of_others = other.kept;
  std::uint64_t random = mixed(count, std::bit_cast<std::uint64_t>(mean_ns));
  for (float& ns : some) {
    random = mixed(random, 1);
    const bool from_others =
        left == 0 ||
        (left_of_others > 0 && static_cast<double>(random >> 11) * 0x1p-53 * (n + m) < m);
    random = mixed(random, 2);
    std::array<float, kMostKept>& from = from_others ? others : mine;
    std::uint32_t& size = from_others ? left_of_others : left;
    const std::size_t at = random % size;
    ns = from[at];
    from[at] = from[--size];
  }
  kept = kMostKept;
}

double ProfileCell::undisturbed_ns() const {
  if (of_mean()) return mean_ns;
  std::array<float, kMostKept> sorted = some;
  const std::uint32_t lowest = std::max(1U, kept / 4);
  std::partial_sort(sorted.begin(), sorted.begin() + lowest, sorted.begin() + kept);
  return std::accumulate(sorted.begin(), sorted.begin() + lowest, 0.0) / lowest;
}

double ProfileCell::relative_error() const {
  if (count < 2 || mean_ns <= 0) return 1;
  const double n = static_cast<double>(count);
  return std::sqrt(m2 / (n - 1) / n) / mean_ns;
}

std::uint64_t KernelProfile::waves(std::uint32_t sms) const {
  if (blocks == 0 || resident == 0 || sms == 0) return 0;
  const std::uint64_t wave = std::uint64_t{resident} * sms;
  return (blocks + wave - 1) / wave;
}

double ProfileFit::at(const KernelProfile& kernel, std::uint32_t sms) const {
  return latency_ns + shared * x_of(kernel, staircase, sms);
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
    const double x = x_of(kernel, result.staircase, cell.sms);
    const double y = std::max(1.0, cell.undisturbed_ns()), n = static_cast<double>(cell.count);
    const double weight = n / (n + kKnown) / (y * y);
    w += weight, wx += weight * x, wy += weight * y;
    wxx += weight * x * x, wxy += weight * x * y;
    ++result.widths;
  }
  if (result.widths == 0) return result;
  const double spread = w * wxx - wx * wx;
  // Widths that are nearly the same differ by noise more than by their SMs.
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

void Profile::add(std::uint64_t key, std::uint32_t sms, double ns) {
  ProfileCell one{sms};
  one.add(ns);
  merge(key, one);
}

void Profile::add_bracket(double ns) { bracket_.add(ns); }

void Profile::merge(std::uint64_t key, const ProfileCell& cell, std::uint64_t most) {
  if (cell.sms == 0 || cell.count == 0) return;
  std::vector<ProfileCell>& cells = kernels_[key].cells;
  const auto at = std::lower_bound(cells.begin(), cells.end(), cell.sms,
                                   [](const ProfileCell& c, std::uint32_t p) { return c.sms < p; });
  ProfileCell& kept =
      at != cells.end() && at->sms == cell.sms ? *at : *cells.insert(at, {cell.sms});
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
  bracket_.merge(other.bracket_);
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

namespace {

// Of a width that was measured a few times, by how far that can be trusted and how well the model
// fits this kernel's other widths (the mean of both, weighed by the inverse of their variances).
double weighed(const KernelProfile& kernel, const ProfileCell& cell) {
  const double ns = std::max(1.0, cell.undisturbed_ns());
  const std::uint64_t behind = cell.of_mean() ? cell.count : cell.kept;
  if (behind >= ProfileCell::kMostKept || kernel.cells.size() < kFits) return ns;
  const ProfileFit model = fit(kernel);
  double weight = 0, squares = 0;
  for (const ProfileCell& other : kernel.cells) {
    if (other.count == 0) continue;
    const double n = static_cast<double>(other.count);
    const double off = other.undisturbed_ns() / std::max(1.0, model.at(kernel, other.sms)) - 1;
    weight += n / (n + kKnown);
    squares += n / (n + kKnown) * off * off;
  }
  if (model.widths < kFits) return ns;
  const double of_model = squares / weight * model.widths / (model.widths - 2);
  const double of_cell =
      (kDiffer * kDiffer + (kDifferNs / ns) * (kDifferNs / ns)) / static_cast<double>(behind);
  const double share = of_model / (of_model + of_cell);
  return share * ns + (1 - share) * model.at(kernel, cell.sms);
}

}  // namespace

Prediction Profile::predict(std::uint64_t key, std::uint32_t sms) const {
  const KernelProfile* kernel = find(key);
  if (kernel == nullptr || sms == 0) return {};
  for (const ProfileCell& cell : kernel->cells)
    if (cell.sms == sms && cell.count > 0) {
      const double n = static_cast<double>(cell.count);
      return {weighed(*kernel, cell), n / (n + kKnown) / (1 + 10 * cell.relative_error()), true};
    }
  const ProfileFit model = fit(*kernel);
  if (model.widths == 0) return {};
  // Never as sure as a measurement: the more widths the model rests on, the surer.
  const double confidence = 0.6 * (1 - 1.0 / (1 + model.widths));
  return {model.at(*kernel, sms), confidence, false};
}

void ProfileLearner::add(std::uint64_t kernel, std::uint32_t sms, double ns) {
  if (samples_.size() == kSamples)
    ++dropped_;
  else
    samples_.push_back({kernel, ns, sms});
}

void ProfileLearner::harvest(Profile& profile, double bracket_ns) {
  constexpr double kFar = 8;
  for (const Sample& sample : samples_) {
    const double ns = std::max(1.0, sample.ns - bracket_ns);
    double& usual = usual_ns_.try_emplace(mixed(sample.kernel, sample.sms), ns).first->second;
    if (ns > kFar * usual) {
      ++outliers_;
      usual += usual / 4 + 1;  // it may itself have been unusual: it rises until it is believed
      continue;
    }
    usual += (ns - usual) / 8;
    profile.add(sample.kernel, sample.sms, ns);
  }
  samples_.clear();
}

}  // namespace vitamin::runtime
