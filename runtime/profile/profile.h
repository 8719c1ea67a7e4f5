// SPDX-License-Identifier: Apache-2.0
//
// How long a launch takes on how many SMs: T(kernel and launch configuration, SMs).
//
// Bits do not depend on the width, so widths may be explored on live jobs. What was measured is
// kept as it is; between and beyond, a model fills in:
//
//     T(m) = a + b / m                      a: latency, memory; b: work that more SMs share
//     T(m) = a + c * waves(m)               where the grid is known: blocks run in waves of
//     waves(m) = ceil(blocks / (r * m))     m SMs with r resident blocks each
//
// fitted to the measured widths by least squares of the relative errors, a, b, c >= 0.
//
// What is told of a width is what a launch takes when nothing disturbs it. A launch has a hard
// lower edge, and other clients of the device only add to it; found on an H200: beside another
// job a launch of 3 us is timed 1.1 us longer in the middle, but 3 us longer on average, and one in
// five hardly longer. So a few launches are kept as they were, and the lowest quarter of these
// counts: equally low whether a handful or thousands were timed. Means stay beside it, for what a
// program really waits.
//
// Threads: plain values, one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace vitamin::runtime {

// Of one width. Of all launches Welford's mean and sum of squared differences, and a few of them.
struct ProfileCell {
  static constexpr std::uint32_t kMostKept = 8;
  std::uint32_t sms = 0;
  std::uint64_t count = 0;
  double mean_ns = 0;
  double m2 = 0;
  std::uint32_t kept = 0;               // of `some`; 0: only the mean is known
  std::array<float, kMostKept> some{};  // nanoseconds, any launch as likely as any other
  void add(double ns);
  void merge(const ProfileCell& other);
  double relative_error() const;  // of the mean: standard error / mean
  // Most of what is known is a mean (of a file of version 1), and too few are kept to replace it.
  bool of_mean() const { return kept == 0 || (kept < kMostKept / 2 && count > kept); }
  // The mean of the lowest quarter of what was kept, of one launch at least; else of all launches.
  double undisturbed_ns() const;
};

struct KernelProfile {
  std::string name;                // for people; may be empty
  std::uint64_t blocks = 0;        // of the grid; 0: unknown
  std::uint32_t resident = 0;      // blocks of it that one SM holds at once; 0: unknown
  std::vector<ProfileCell> cells;  // by width, ascending
  std::uint64_t waves(std::uint32_t sms) const;  // 0: unknown
};

// Launches of whatever kernels that were timed on so many SMs.
struct TimedLaunches {
  std::uint32_t sms = 0;
  std::uint64_t launches = 0;
  double mean_ns = 0;
  // The mean of what the same launches would last on the whole device, by how long each of their
  // kernels took the first few times: of other kernels both are others, of the same on fewer
  // SMs only mean_ns.
  double whole_ns = 0;
};

// T(m) = latency + shared * x(m), x(m) = waves(m) where they are known, 1/m elsewhere.
struct ProfileFit {
  double latency_ns = 0;
  double shared = 0;
  bool staircase = false;
  unsigned widths = 0;  // how many were measured
  double at(const KernelProfile& kernel, std::uint32_t sms) const;
};
ProfileFit fit(const KernelProfile& kernel);

// A width with fewer samples is worth a measurement of its own.
constexpr std::uint64_t kFewSamples = 3;

struct Prediction {
  double ns = 0;          // undisturbed; 0: nothing is known
  double confidence = 0;  // 0 to 1; a measured width with many samples that agree is near 1
  bool measured = false;
};

class Profile {
 public:
  // `key`: ReadyOperation::kernel.
  void add(std::uint64_t key, std::uint32_t sms, double ns);
  // Beyond `most` launches of a width the older ones fade.
  void merge(std::uint64_t key, const ProfileCell& cell, std::uint64_t most = ~0ULL);
  void merge(const Profile& other);
  void forget(std::uint64_t key);
  // Two events with nothing between them: what timing took, which no cell holds any more.
  void add_bracket(double ns);
  void merge_bracket(const ProfileCell& cell) { bracket_.merge(cell); }
  const ProfileCell& bracket() const { return bracket_; }
  void describe(std::uint64_t key, std::string name, std::uint64_t blocks, std::uint32_t resident);
  Prediction predict(std::uint64_t key, std::uint32_t sms) const;
  const KernelProfile* find(std::uint64_t key) const;
  const std::unordered_map<std::uint64_t, KernelProfile>& kernels() const { return kernels_; }
  // Changes with every change: what a policy derived from an older version may be outdated.
  std::uint64_t version() const { return version_; }

 private:
  std::unordered_map<std::uint64_t, KernelProfile> kernels_;
  ProfileCell bracket_;  // of no width
  std::uint64_t version_ = 1;
};

// Holds timings of live launches until they are harvested: 4,096, then it drops and counts.
class ProfileLearner {
 public:
  ProfileLearner() { samples_.reserve(kSamples); }
  // Does not allocate.
  void add(std::uint64_t key, std::uint32_t sms, double ns);
  // Moves what was collected since the last call into the profile, less what the timing itself
  // took. Times far above what the pair took so far (a preempted launch) are left out and counted.
  void harvest(Profile& profile, double bracket_ns = 0);
  std::uint64_t dropped() const { return dropped_; }
  std::uint64_t outliers() const { return outliers_; }

 private:
  static constexpr std::size_t kSamples = 4096;
  struct Sample {
    std::uint64_t kernel = 0;
    double ns = 0;
    std::uint32_t sms = 0;
  };
  std::vector<Sample> samples_;
  std::unordered_map<std::uint64_t, double> usual_ns_;  // by kernel and width
  std::uint64_t dropped_ = 0, outliers_ = 0;
};

}  // namespace vitamin::runtime
