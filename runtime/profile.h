// SPDX-License-Identifier: Apache-2.0
//
// How long a launch takes on how many processors: T(kernel and launch configuration, processors).
//
// Bits do not depend on the width, so widths may be explored on live jobs. What was measured is
// kept as it is; between and beyond, a model fills in:
//
//     T(m) = a + b / m                      a: latency, memory; b: work that more processors share
//     T(m) = a + c * waves(m)               where the grid is known: blocks run in waves of
//     waves(m) = ceil(blocks / (r * m))     m processors with r resident blocks each
//
// fitted to the measured widths by least squares of the relative errors, a, b, c >= 0.
//
// Threads: a Profile is a plain value, one writer. ProfileLearner is what a launch path feeds: any
// number of threads, no lock, no allocation.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace vitamin::runtime {

// Of one width. Welford's mean and sum of squared differences.
struct ProfileCell {
  std::uint32_t processors = 0;
  std::uint64_t count = 0;
  double mean_ns = 0;
  double m2 = 0;
  void add(double ns);
  void merge(const ProfileCell& other);
  double relative_error() const;  // of the mean: standard error / mean
};

struct KernelProfile {
  std::string name;                // for people; may be empty
  std::uint64_t blocks = 0;        // of the grid; 0: unknown
  std::uint32_t resident = 0;      // blocks of it that one processor holds; 0: unknown
  std::vector<ProfileCell> cells;  // by width, ascending
  std::uint64_t waves(std::uint32_t processors) const;  // 0: unknown
};

// Launches of whatever kernels that were timed on so many processors.
struct TimedLaunches {
  std::uint32_t processors = 0;
  std::uint64_t launches = 0;
  double mean_ns = 0;
  // The mean of what the same launches would last on the whole device, by how long each of their
  // kernels took the first few times: of other kernels both are others, of the same on fewer
  // processors only mean_ns.
  double whole_ns = 0;
};

// T(m) = latency + shared * x(m), x(m) = waves(m) where they are known, 1/m elsewhere.
struct ProfileFit {
  double latency_ns = 0;
  double shared = 0;
  bool staircase = false;
  unsigned widths = 0;  // how many were measured
  double at(const KernelProfile& kernel, std::uint32_t processors) const;
};
ProfileFit fit(const KernelProfile& kernel);

// A width with fewer samples is worth a measurement of its own.
constexpr std::uint64_t kFewSamples = 3;

struct Prediction {
  double ns = 0;          // 0: nothing is known
  double confidence = 0;  // 0 to 1; a measured width with many samples that agree is near 1
  bool measured = false;
};

class Profile {
 public:
  // `key`: ReadyOperation::kernel.
  void add(std::uint64_t key, std::uint32_t processors, double ns);
  // Beyond `most` launches of a width the older ones fade.
  void merge(std::uint64_t key, const ProfileCell& cell, std::uint64_t most = ~0ULL);
  void merge(const Profile& other);
  void forget(std::uint64_t key);
  void describe(std::uint64_t key, std::string name, std::uint64_t blocks, std::uint32_t resident);
  Prediction predict(std::uint64_t key, std::uint32_t processors) const;
  const KernelProfile* find(std::uint64_t key) const;
  const std::unordered_map<std::uint64_t, KernelProfile>& kernels() const { return kernels_; }
  // Changes with every change: what a policy derived from an older version may be outdated.
  std::uint64_t version() const { return version_; }

 private:
  std::unordered_map<std::uint64_t, KernelProfile> kernels_;
  std::uint64_t version_ = 1;
};

// Collects timings of live launches: 4,096 pairs of (kernel, width), then it is full and counts
// what it had to drop. A sample costs two atomic additions to a line of its own.
class ProfileLearner {
 public:
  ProfileLearner();
  // Any thread. Times far above what the pair took so far (a preempted or shared launch) are left
  // out and counted.
  void add(std::uint64_t key, std::uint32_t processors, std::uint64_t ns);
  // One thread at a time: moves what was collected since the last call into the profile. Samples
  // that arrive meanwhile are in this harvest or in the next.
  void harvest(Profile& profile);
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  std::uint64_t outliers() const { return outliers_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kSlots = 4096;  // a power of two
  static constexpr unsigned kProbes = 16;
  struct Slot {
    std::atomic<std::uint64_t> key{0};  // of the pair, mixed; 0: free
    std::atomic<std::uint64_t> kernel{0};
    std::atomic<std::uint32_t> processors{0};
    std::atomic<std::uint32_t> usual_ns{0};
    // Count in the upper 16 bits, sum in the lower 48, so that one addition keeps both together.
    std::atomic<std::uint64_t> sum{0};
    std::atomic<std::uint64_t> squares{0};  // of microseconds, scaled by 2^10
  };
  std::unique_ptr<std::array<Slot, kSlots>> slots_;
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<std::uint64_t> outliers_{0};
};

}  // namespace vitamin::runtime
