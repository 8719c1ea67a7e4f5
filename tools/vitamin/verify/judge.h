// SPDX-License-Identifier: Apache-2.0
//
// vitamin verify: what the runs of one command say together. Pure: nothing is started here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/vitamin/verify/runs.h"
#include "tools/vitamin/verify/scan.h"

namespace vitamin::tools {

// What is compared between two runs besides the exit code and the structure.
struct Checks {
  bool output = true;
  bool memory = false;  // digests of what copies brought to the host
  std::vector<std::string> files;
};

enum class Verdict {
  kDeterministic,  // deterministic under Vitamin
  kNotByItself,    // the command differs from itself when it runs alone
  kBroken,         // alone it equals itself; under Vitamin it does not: our bug
  kInconclusive,   // nothing was shown: it fails alone, nothing was compared, bound or moved
  kPartial,        // interrupted
};
const char* verdict_text(Verdict verdict);
const char* verdict_key(Verdict verdict);

// The first difference of two runs, in words, or nothing. `structure`: compare what was launched.
std::optional<std::string> difference(const Observation& a, const Observation& b,
                                      const Checks& checks);
std::optional<std::string> structure_difference(const Observation& a, const Observation& b);
// What the audit itself found wrong in one run.
std::optional<std::string> audit_finding(const Observation& run);

// "ended with exit code 5", after "it".
std::string end_of(const Observation& run);

struct Judgement {
  Verdict verdict = Verdict::kPartial;
  std::string reason;  // one line
  std::string advice;  // one line, or empty
  bool structure_compared = false;
  std::size_t judged_by = 0;  // the run whose finding gave the verdict, or 0
  bool compared = false;      // false: it did not come to that, `findings` are empty
  // For each run: what was wrong with it, or empty.
  std::vector<std::string> findings;
};

// What the audit found comes before everything else: it is ours, whatever the program does by
// itself. `runs`: native, exclusive, exclusive, then the schedules; fewer than `wanted`: partial,
// unless a bug was already seen. `controls`: more exclusive runs (audited), made before Vitamin is
// blamed for what only the audit sees; and more native runs, some beside the tenant, made when
// anything differed, runs alone with Vitamin among it: what differs there, too, is not Vitamin's
// doing. `scan`: the same for code that depends on the order of arrival or on its processor, where
// the audit is clean; where that code is unknown, so is whose doing it is.
Judgement judge(const std::vector<Observation>& runs, const std::vector<Observation>& controls,
                const Checks& checks, const ScanResult& scan, std::size_t wanted);
// The launched kernels of these runs, by name without their library.
std::set<std::string> launched_kernels(const std::vector<Observation>& runs);
// What the command's launched kernels do that lies outside the contract.
std::map<std::string, std::set<std::string>> outside_contract(const std::vector<Observation>& runs,
                                                              const ScanResult& scan);

}  // namespace vitamin::tools
