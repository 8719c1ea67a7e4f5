// SPDX-License-Identifier: Apache-2.0
#include "scheduler/estimator/estimate_store.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace vitamin::scheduler {
namespace {

constexpr std::size_t kProbes = 8;    // slots in which a key may be
constexpr std::size_t kCurves = 512;  // programs and phases with width curves

// A variance from few observations is drawn towards this one (a deviation of 0.1 for blocks of
// 0.1 s of recorded jobs) as if by so many of them.
constexpr double kVariance = 0.01, kBelief = 3;

// A program's rate alone is that of its newest second or two, in blocks of 0.1 s: programs begin
// with work of another kind (weights are read, kernels are chosen), which must not count for long.
constexpr double kAloneBlocks = 10;

// Of a program whose scaling is unknown.
constexpr double kSharedWork = 0.9;

double decay(std::uint64_t from_ns, std::uint64_t to_ns) {
  if (to_ns <= from_ns) return 1;
  return std::exp2(-static_cast<double>(to_ns - from_ns) / static_cast<double>(kHalfLifeNs));
}

std::uint64_t hash(const EstimateKey& key) {
  return mix(mix(key.program, key.configuration), key.workload ^
                                                      static_cast<std::uint64_t>(key.phase) << 8 ^
                                                      static_cast<std::uint64_t>(key.what));
}

}  // namespace

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t z = a * 0x9e3779b97f4a7c15ULL + b + 0x7f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double Estimate::error() const {
  if (n_eff <= 0) return 1e9;
  const double pooled = (kBelief * kVariance + n_eff * variance) / (kBelief + n_eff);
  return std::sqrt(pooled / n_eff);
}

EstimateStore::EstimateStore(std::size_t capacity)
    : capacity_(std::bit_ceil(std::max(capacity, kProbes))), curves_(kCurves) {}

EstimateStore::Slot& EstimateStore::place(const EstimateKey& key) {
  if (slots_.empty()) slots_.resize(capacity_);
  const std::size_t mask = slots_.size() - 1, start = hash(key) & mask;
  Slot* oldest = nullptr;
  for (std::size_t i = 0; i < kProbes; ++i) {
    Slot& slot = slots_[(start + i) & mask];
    if (slot.used && slot.key == key) return slot;
    const bool older = oldest != nullptr && oldest->used &&
                       (!slot.used || slot.estimate.updated_ns < oldest->estimate.updated_ns);
    if (oldest == nullptr || older) oldest = &slot;
  }
  *oldest = {key, {}, true};
  return *oldest;
}

const Estimate* EstimateStore::find(const EstimateKey& key) const {
  if (slots_.empty()) return nullptr;
  const std::size_t mask = slots_.size() - 1, start = hash(key) & mask;
  for (std::size_t i = 0; i < kProbes; ++i) {
    const Slot& slot = slots_[(start + i) & mask];
    if (slot.used && slot.key == key) return &slot.estimate;
  }
  return nullptr;
}

void EstimateStore::add(const EstimateKey& key, double log_value, double weight,
                        std::uint64_t now_ns) {
  if (!std::isfinite(log_value) || !(weight > 0)) return;
  Estimate& estimate = place(key).estimate;
  estimate.n_eff *= decay(estimate.updated_ns, now_ns);
  if (key.what == Quantity::kRate && key.configuration == kByItself)
    estimate.n_eff = std::min(estimate.n_eff, kAloneBlocks);
  estimate.n_eff += weight;
  const double step = weight / estimate.n_eff, away = log_value - estimate.log_mean;
  estimate.log_mean += step * away;
  estimate.variance = (1 - step) * (estimate.variance + step * away * away);
  estimate.updated_ns = std::max(estimate.updated_ns, now_ns);
  if (key.what == Quantity::kWidth) add_width(key, log_value, weight, now_ns);
}

const EstimateStore::Curve* EstimateStore::curve(ProgramHash program, StepKind phase) const {
  const std::size_t start = mix(program, static_cast<std::uint64_t>(phase)) % curves_.size();
  for (std::size_t i = 0; i < kProbes; ++i) {
    const Curve& curve = curves_[(start + i) % curves_.size()];
    if (curve.used && curve.program == program && curve.phase == phase) return &curve;
  }
  return nullptr;
}

void EstimateStore::add_width(const EstimateKey& key, double log_speed, double weight,
                              std::uint64_t now_ns) {
  if (key.configuration == 0) return;
  const std::size_t start =
      mix(key.program, static_cast<std::uint64_t>(key.phase)) % curves_.size();
  Curve* into = &curves_[start];
  for (std::size_t i = 0; i < kProbes; ++i) {
    Curve& curve = curves_[(start + i) % curves_.size()];
    if (curve.used && curve.program == key.program && curve.phase == key.phase) {
      into = &curve;
      break;
    }
    if (into->used && (!curve.used || curve.updated_ns < into->updated_ns)) into = &curve;
  }
  if (!into->used || into->program != key.program || into->phase != key.phase)
    *into = {key.program, key.phase, true, 0, 0, 0, 0, 0, now_ns};
  const double fade = decay(into->updated_ns, now_ns);
  into->updated_ns = std::max(into->updated_ns, now_ns);
  for (double* sum : {&into->n, &into->x, &into->xx, &into->y, &into->xy}) *sum *= fade;
  // Errors are relative to the time: weigh by 1 / time squared.
  const double x = 1 / static_cast<double>(key.configuration), y = std::exp(-log_speed);
  const double w = weight / (y * y);
  into->n += w, into->x += w * x, into->xx += w * x * x, into->y += w * y, into->xy += w * x * y;
}

double EstimateStore::log_width(ProgramHash program, StepKind phase, std::uint32_t sms,
                                std::uint32_t whole) const {
  if (sms >= whole || sms == 0) return 0;
  const EstimateKey key{program, sms, 0, phase, Quantity::kWidth};
  if (const Estimate* measured = find(key); measured != nullptr && measured->n_eff >= 2)
    return std::min(0.0, measured->log_mean);
  const double x = 1 / static_cast<double>(sms), least = 1 / static_cast<double>(whole);
  if (const Curve* const known = curve(program, phase); known != nullptr && known->n > 0) {
    // The time of 1 at the whole device is known exactly: the line passes through it, and only the
    // shared part b is fitted. a + b = 1, T(x) = 1 + b * (x / least - 1).
    const double n = known->n, u = known->x / least - n;
    const double uu = known->xx / (least * least) - 2 * known->x / least + n;
    const double uy = known->xy / least - known->y - u;
    if (uu > 0) return -std::log1p(std::clamp(uy / uu, 0.0, 1.0) * (x / least - 1));
  }
  return -std::log1p(kSharedWork * (x / least - 1));
}

void EstimateStore::save(std::vector<EstimateRecord>& out) const {
  for (const Slot& slot : slots_)
    if (slot.used) out.push_back({slot.key, slot.estimate});
}

void EstimateStore::load(std::span<const EstimateRecord> records) {
  for (const EstimateRecord& record : records) {
    const Estimate& from = record.estimate;
    if (!std::isfinite(from.log_mean) || !(from.variance >= 0) || !(from.n_eff > 0) ||
        from.n_eff > 1e9)
      continue;
    Estimate& estimate = place(record.key).estimate;
    estimate = from;
    estimate.updated_ns = 0;  // of another process's clock
    if (record.key.what == Quantity::kWidth) add_width(record.key, from.log_mean, from.n_eff, 0);
  }
}

std::size_t EstimateStore::size() const {
  return static_cast<std::size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.used; }));
}

}  // namespace vitamin::scheduler
