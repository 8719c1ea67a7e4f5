// SPDX-License-Identifier: Apache-2.0
//
// Trials with matched inputs: trial k of every treatment draws the same inputs, so that the bytes
// of its output may be compared between treatments, processes and machines of one kind.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/determinism/subjects.h"

namespace vitamin::determinism {

struct TrialOptions {
  Scale scale = Scale::kSmall;
  unsigned trials = 10;
  unsigned seed = 1;
  unsigned errors = 0;  // in how many trials, the first ones, the error is measured too
};

// One digest of the output's bytes for each trial, in the program's own structure.
std::vector<Digest> digests(Machine& machine, Subject& subject, const TrialOptions& options);

// The error of the program's own structure in each of the first `errors` trials: the largest
// distance of an element from the exact one (computed in double precision, here), as a share of the
// largest exact element.
std::vector<double> errors(Machine& machine, Subject& subject, const TrialOptions& options);

// One trial of a treatment that changes the launches.
struct TrialDrift {
  unsigned free = 0;           // SMs, as the treatment was told
  unsigned setting = 0;        // of the knob, or the number of atoms
  std::uint64_t elements = 0;  // that differ
  std::uint32_t max_ulps = 0;
  float max_abs = 0;
};

// What a treatment that changes the launches does to the bytes.
struct Drift {
  unsigned trials = 0;
  unsigned turned = 0;         // trials in which the treatment changed anything at all
  unsigned differing = 0;      // trials with any differing byte
  std::uint64_t elements = 0;  // of all outputs of all trials
  std::uint64_t differing_elements = 0;
  double mean_ulps = 0;  // over all elements
  std::uint32_t max_ulps = 0;
  float max_abs = 0;
  // As errors(): the largest of the program's own structure and of the changed one.
  double own_error = 0, error = 0;
  std::vector<TrialDrift> samples;
};

// For each trial: the program's structure, then the one that `free_processors(trial)` asks for.
Drift reshaped(Machine& machine, Subject& subject, const TrialOptions& options,
               const std::function<unsigned(unsigned)>& free_sms);
// For each trial: whole launches, then each grid in atoms that fill `free_processors(trial)` once.
Drift in_atoms(Machine& machine, Subject& subject, const TrialOptions& options,
               const std::function<unsigned(unsigned)>& free_sms);

// Number of trials whose digests differ.
unsigned differing(const std::vector<Digest>& a, const std::vector<Digest>& b);

}  // namespace vitamin::determinism
