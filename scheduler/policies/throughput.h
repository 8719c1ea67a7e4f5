// SPDX-License-Identifier: Apache-2.0
//
// throughput: the configuration that the objective is measured to be highest in.
//
//   model=measured    (default) the estimator's choice among the candidates of Configurations
//   model=algorithm1  the paper's Algorithm 1 over the streams that wait or run
//                     (scheduler/policies/assignment.h), from times of single kernels
//
// Threads: as AllocationPolicy. The estimator and the kernels' times outlive the policy and are
// used under the same lock.
#pragma once

#include <cstdint>
#include <span>

#include "scheduler/estimator/estimator.h"
#include "scheduler/estimator/objective.h"
#include "scheduler/policies/kernel_curves.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

struct ThroughputOptions {
  enum class Model : std::uint8_t { kMeasured, kAlgorithm1 };
  Model model = Model::kMeasured;
  Objective objective;             // measured
  bool against_narrowest = false;  // algorithm1: P against the narrowest part, as the paper has it
};

// `profile`: times of kernels, for algorithm1; null: none are known.
Policy make_throughput(const ThroughputOptions& options, Estimator& estimator,
                       std::span<const Partition> pool, const runtime::Profile* profile = nullptr);

// Work that a client may have submitted and not complete while others share the device with it, so
// that a revocation takes no longer than this and a kernel (predicted, ns).
inline constexpr std::uint64_t kRunAheadNs = 2'000'000;

}  // namespace vitamin::scheduler
