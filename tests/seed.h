// SPDX-License-Identifier: Apache-2.0
//
// The seed of a random test. VITAMIN_TEST_SEED gives it. Without, it is the same in every run, so
// that no verdict of a change depends on luck; the long form (VITAMIN_TEST_LONG=1) draws a new one.
// The seed is always printed with how to repeat it, and a seed that found a defect becomes a case.
// The same for Python: tests/seed.py.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>

namespace vitamin::test {

// Whether the long form runs: more programs, new seeds.
inline bool long_form() {
  const char* set = std::getenv("VITAMIN_TEST_LONG");
  return set != nullptr && std::string_view(set) == "1";
}

// Whether a test of many combinations runs a few of them: with sanitizers, in the short form. The
// build without runs all.
inline bool takes_a_sample() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return !long_form();
#else
  return false;
#endif
}

// `usual`: the seed of the short form.
inline std::uint64_t seed(std::uint64_t usual = 1) {
  std::uint64_t value = usual;
  if (const char* set = std::getenv("VITAMIN_TEST_SEED"); set != nullptr && *set != '\0') {
    char* end = nullptr;
    value = std::strtoull(set, &end, 10);
    if (*end != '\0') {
      std::fprintf(stderr, "VITAMIN_TEST_SEED=%s is not a number\n", set);
      std::exit(2);
    }
  } else if (long_form()) {
    value = std::uint64_t{std::random_device()()} << 32 | std::random_device()();
  }
  const auto printed = static_cast<unsigned long long>(value);
  std::fprintf(stderr, "seed %llu, repeat with VITAMIN_TEST_SEED=%llu%s\n", printed, printed,
               long_form() ? " VITAMIN_TEST_LONG=1" : "");
  return value;
}

}  // namespace vitamin::test
