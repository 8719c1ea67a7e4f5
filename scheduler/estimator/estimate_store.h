// SPDX-License-Identifier: Apache-2.0
//
// All that is learned of programs, in one structure: their progress in a configuration beside
// others, how they scale with the width, what a neighbor costs them, how long their steps take.
//
// A key that was seen too little is answered by a model (predict()): the program's own width curve
// T(m) = a + b/m, fitted to profiles and blocks, times the slowdowns that its neighbors are known
// to cause. Keys name programs and not clients, and sets of units and not partitions: what was
// learned outlives processes, the daemon, and a change of the pool, on one GPU model.
//
// Times are workload time: they advance while what the key is about runs, so a program that was
// away for a day is remembered as it was.
//
// Threads: one at a time. Allocates in its constructor, save() and load() only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/types.h"

namespace vitamin::scheduler {

// Of a program, class and GPU model; the caller hashes them. Equal for equal programs.
using ProgramHash = std::uint64_t;

enum class Quantity : std::uint8_t {
  kRate,    // log(work per busy ns), in a configuration of a workload mix; kByItself: alone
  kWidth,   // log(speed) on `configuration` SMs with exclusive use
  kBeside,  // log(speed) on a whole device that is shared with the program `configuration`
  kStep,    // log(ns) of a step alone on the whole device, by the work that it did beside others
  kBusy,    // log(ns) of a busy period alone on the whole device
  kStepByClock,    // log(ns) of a step that nothing ran beside
  kStepAfterRest,  // the same, but that what others had submitted while it rested drained first
  kCountError,     // of such a step: |work counted / work done - 1|, no logarithm
};
inline constexpr std::uint64_t kByItself = 0;

struct EstimateKey {
  ProgramHash program = 0;
  std::uint64_t configuration = kByItself;
  std::uint64_t workload = 0;
  StepKind phase = StepKind::kUnknown;
  Quantity what = Quantity::kRate;
  friend bool operator==(const EstimateKey&, const EstimateKey&) = default;
};

struct Estimate {
  double log_mean = 0;
  double variance = 0;  // of one observation
  double n_eff = 0;     // observations, as far as they still count
  std::uint64_t updated_ns = 0;
  double error() const;  // of log_mean; large for few observations
};

struct EstimateRecord {  // plain values, for a file
  EstimateKey key;
  Estimate estimate;
};

// Half of what was learned counts no more after so much time in its workload mix: jobs change what
// they do within minutes (epochs, prompts), and 30 s of blocks of 0.25 s are 120 observations.
inline constexpr std::uint64_t kHalfLifeNs = 30'000'000'000;

// Combines hashes, in order.
std::uint64_t mix(std::uint64_t a, std::uint64_t b);

class EstimateStore {
 public:
  // `capacity`: keys, rounded up to a power of two. When full, the key of a probed few that was
  // updated longest ago is replaced. Memory is taken with the first key.
  explicit EstimateStore(std::size_t capacity = 8192);

  // `weight`: 1 for a block or step, more for a summary of several.
  void add(const EstimateKey& key, double log_value, double weight, std::uint64_t now_ns);
  const Estimate* find(const EstimateKey& key) const;

  // log(speed) of a program with exclusive use of `sms` of `whole` SMs. From measured widths, or
  // where there are none, nine tenths of the work shared by the SMs and a tenth not.
  double log_width(ProgramHash program, StepKind phase, std::uint32_t sms,
                   std::uint32_t whole) const;

  void save(std::vector<EstimateRecord>& out) const;  // appends
  void load(std::span<const EstimateRecord> records);
  std::size_t size() const;

 private:
  struct Slot {
    EstimateKey key;
    Estimate estimate;
    bool used = false;
  };
  // Widths of one program, for the fit: kept beside the keys since a hash table cannot list them.
  struct Curve {
    ProgramHash program = 0;
    StepKind phase = StepKind::kUnknown;
    bool used = false;
    // Sums for weighted least squares of T(m)/T(whole) = a + b * whole/m, errors relative.
    double n = 0, x = 0, xx = 0, y = 0, xy = 0;
    std::uint64_t updated_ns = 0;
  };
  Slot& place(const EstimateKey& key);
  void add_width(const EstimateKey& key, double log_speed, double weight, std::uint64_t now_ns);
  const Curve* curve(ProgramHash program, StepKind phase) const;

  std::size_t capacity_;
  std::vector<Slot> slots_;  // empty, or of capacity_
  std::vector<Curve> curves_;
};

}  // namespace vitamin::scheduler
