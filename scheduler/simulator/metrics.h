// SPDX-License-Identifier: Apache-2.0
//
// What is reported of a simulation. Definitions: README.md of this directory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace vitamin::sim {

// Counts by logarithm: quantiles within 1 %.
class Histogram {
 public:
  void add(double value);
  void merge(const Histogram& other);
  double quantile(double q) const;
  std::uint64_t count() const { return count_; }
  // (value, share of samples up to it), a point for each filled bucket.
  std::vector<std::pair<double, double>> cdf() const;

 private:
  static constexpr int kBuckets = 2400;
  std::array<std::uint64_t, kBuckets> buckets_{};
  std::uint64_t count_ = 0;
};

// Milliseconds; negative: never.
struct RequestTimes {
  double ttft_ms = -1;
  double tpot_ms = -1;  // of a request of two tokens or more
  bool finished = false;
  std::uint32_t output_tokens = 0;
};

struct Quantiles {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0;
};
// Linear interpolation between order statistics; zeros for no samples.
Quantiles quantiles(std::vector<double> samples);

struct TrainingResult {
  std::string name;
  double steps_per_s = 0;
  double alone_steps_per_s = 0;
};

struct LatencyTargets {
  double ttft_ms = 500;  // MLPerf inference, Llama-3.1-8B interactive
  double tpot_ms = 30;
};

struct Violations {
  double ttft = 0, tpot = 0;  // shares of the requests (TPOT: of those that have one)
  double goodput_per_s = 0;   // requests that meet both
};

struct SimulatedRun {
  std::string policy;
  double simulated_s = 0;
  std::vector<RequestTimes> requests;
  Histogram itl_ms;
  std::vector<TrainingResult> training;
  std::uint64_t operations = 0, decisions = 0;
  // Of the scheduler: calls of the policy; grants, and those of another partition than the client's
  // grant before; revocations; starving streams served; policies that were replaced by fifo.
  std::uint64_t plans = 0, grants = 0, moves = 0, revoked = 0, starving = 0, faults = 0;
  std::uint64_t asked = 0;  // calls of the policy, those for a placement, too
  double deciding_s = 0;    // in the scheduler: from the time of some of its decisions
  double wall_s = 0;
  // SMs in use by role (prefill, decode, best effort), for each of `occupancy_bin_s`.
  double occupancy_bin_s = 0;
  std::vector<std::array<double, 3>> occupancy;
  std::map<std::uint32_t, double> width_s;  // device time by the width of the partition
  std::string message;                      // why the policy was replaced
  double fault_s = -1;                      // when it was first; negative: it was not

  Violations violations(const LatencyTargets& slo) const;
  Quantiles ttft() const;
  Quantiles tpot() const;
  Quantiles latency() const;           // to the last token, of those that were finished
  double training_normalised() const;  // sum over jobs of steps/s against alone
  void merge(const SimulatedRun& other);
};

}  // namespace vitamin::sim
