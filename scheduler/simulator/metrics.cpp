// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/metrics.h"

#include <algorithm>
#include <cmath>

namespace vitamin::sim {

namespace {
// 1e-3 ms and up, 1 % a bucket.
constexpr double kLeast = 1e-3;
const double kStep = std::log(1.01);
}  // namespace

void Histogram::add(double value) {
  const double at = std::log(std::max(value, kLeast) / kLeast) / kStep;
  ++buckets_[static_cast<std::size_t>(std::min(at, static_cast<double>(kBuckets - 1)))];
  ++count_;
}

void Histogram::merge(const Histogram& other) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
}

double Histogram::quantile(double q) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<std::uint64_t>(q * static_cast<double>(count_ - 1));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    seen += buckets_[i];
    if (seen > rank) return kLeast * std::exp(kStep * (static_cast<double>(i) + 0.5));
  }
  return 0;
}

std::vector<std::pair<double, double>> Histogram::cdf() const {
  std::vector<std::pair<double, double>> points;
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i] == 0) continue;
    seen += buckets_[i];
    points.emplace_back(kLeast * std::exp(kStep * (static_cast<double>(i) + 0.5)),
                        static_cast<double>(seen) / static_cast<double>(count_));
  }
  return points;
}

Quantiles quantiles(std::vector<double> samples) {
  Quantiles result;
  if (samples.empty()) return result;
  std::sort(samples.begin(), samples.end());
  for (const double sample : samples) result.mean += sample;
  result.mean /= static_cast<double>(samples.size());
  auto at = [&](double q) {
    const double rank = q * static_cast<double>(samples.size() - 1);
    const auto below = static_cast<std::size_t>(rank);
    const std::size_t above = std::min(below + 1, samples.size() - 1);
    return samples[below] + (rank - static_cast<double>(below)) * (samples[above] - samples[below]);
  };
  result.p50 = at(0.5);
  result.p90 = at(0.9);
  result.p95 = at(0.95);
  result.p99 = at(0.99);
  return result;
}

Violations SimulatedRun::violations(const LatencyTargets& slo) const {
  std::uint64_t ttft = 0, tpot = 0, with_tpot = 0, good = 0;
  for (const RequestTimes& request : requests) {
    const bool late_first = request.ttft_ms < 0 || request.ttft_ms > slo.ttft_ms;
    const bool several = request.output_tokens > 1;
    const bool slow = several && (!request.finished || request.tpot_ms > slo.tpot_ms);
    ttft += late_first ? 1 : 0;
    with_tpot += several ? 1 : 0;
    tpot += slow ? 1 : 0;
    good += late_first || slow || !request.finished ? 0 : 1;
  }
  auto share = [](std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  return {share(ttft, requests.size()), share(tpot, with_tpot),
          simulated_s > 0 ? static_cast<double>(good) / simulated_s : 0};
}

Quantiles SimulatedRun::ttft() const {
  std::vector<double> samples;
  for (const RequestTimes& request : requests)
    if (request.ttft_ms >= 0) samples.push_back(request.ttft_ms);
  return quantiles(std::move(samples));
}

Quantiles SimulatedRun::tpot() const {
  std::vector<double> samples;
  for (const RequestTimes& request : requests)
    if (request.finished && request.output_tokens > 1) samples.push_back(request.tpot_ms);
  return quantiles(std::move(samples));
}

Quantiles SimulatedRun::latency() const {
  std::vector<double> samples;
  for (const RequestTimes& request : requests)
    if (request.finished)
      samples.push_back(request.ttft_ms +
                        std::max(0.0, request.tpot_ms) * (std::max(1U, request.output_tokens) - 1));
  return quantiles(std::move(samples));
}

double SimulatedRun::training_normalised() const {
  double sum = 0;
  for (const TrainingResult& job : training) sum += job.steps_per_s / job.alone_steps_per_s;
  return sum;
}

void SimulatedRun::merge(const SimulatedRun& other) {
  policy = other.policy;
  simulated_s = std::max(simulated_s, other.simulated_s);
  requests.insert(requests.end(), other.requests.begin(), other.requests.end());
  itl_ms.merge(other.itl_ms);
  training.insert(training.end(), other.training.begin(), other.training.end());
  operations += other.operations;
  decisions += other.decisions;
  plans += other.plans;
  asked += other.asked;
  grants += other.grants;
  moves += other.moves;
  revoked += other.revoked;
  starving += other.starving;
  faults += other.faults;
  deciding_s += other.deciding_s;
  occupancy_bin_s = other.occupancy_bin_s;
  occupancy.resize(std::max(occupancy.size(), other.occupancy.size()));
  for (std::size_t i = 0; i < other.occupancy.size(); ++i)
    for (std::size_t role = 0; role < 3; ++role) occupancy[i][role] += other.occupancy[i][role];
  for (const auto& [width, seconds] : other.width_s) width_s[width] += seconds;
  if (message.empty()) message = other.message;
  if (fault_s < 0 || (other.fault_s >= 0 && other.fault_s < fault_s)) fault_s = other.fault_s;
}

}  // namespace vitamin::sim
