// SPDX-License-Identifier: Apache-2.0
//
// The kinds of problems, and how a line that tells of one ends. One list for all programs and the
// preloaded libraries: runtime/problem.def.
#pragma once

#include <cstdint>

namespace vitamin::runtime {

// The value is the number.
enum class Problem : std::uint16_t {
#define VITAMIN_PROBLEM(name, number, what) name = number,
#include "runtime/problem.def"
#undef VITAMIN_PROBLEM
};

struct ProblemFacts {
  Problem problem;
  const char* code;  // "VIT-101"
  const char* what;
};
inline constexpr ProblemFacts kProblems[] = {
#define VITAMIN_PROBLEM(name, number, what) {Problem::name, "VIT-" #number, what},
#include "runtime/problem.def"
#undef VITAMIN_PROBLEM
};

constexpr const char* code_of(Problem problem) {
  for (const ProblemFacts& facts : kProblems)
    if (facts.problem == problem) return facts.code;
  return "VIT-?";
}

}  // namespace vitamin::runtime
