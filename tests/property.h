// SPDX-License-Identifier: Apache-2.0
//
// Properties that RapidCheck tries to falsify, under the seed of tests/seed.h.
#pragma once

#include <rapidcheck.h>

#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <string>

#include "tests/seed.h"

namespace vitamin::test {

// Whether nothing falsified `property`, under this run's seed and under each seed that once did.
// 100 examples each; the long form tries 1,000 of this run's seed, and what one behind the 100th
// falsifies becomes a test case of its own. RC_PARAMS sets other parameters of RapidCheck.
template <class Property>
bool holds(const Property& property, std::initializer_list<std::uint64_t> once_falsified = {}) {
  static const std::uint64_t this_run = [] {
    const std::uint64_t value = seed();
    const char* given = std::getenv("RC_PARAMS");
    const std::string params = "seed=" + std::to_string(value) +
                               (long_form() ? " max_success=1000 " : " ") +
                               (given != nullptr ? given : "");
    setenv("RC_PARAMS", params.c_str(), 1);  // read once, at the first check of the process
    return value;
  }();
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.seed = this_run;
  const auto passes = [&](std::uint64_t with, int examples) {
    params.seed = with, params.maxSuccess = examples;
    const auto result = rc::detail::checkTestable(property, rc::detail::TestMetadata(), params);
    rc::detail::printResultMessage(result, std::cerr);
    std::cerr << " (seed " << with << ")\n";
    return result.template is<rc::detail::SuccessResult>();
  };
  bool all = passes(this_run, params.maxSuccess);
  for (const std::uint64_t with : once_falsified)
    all = passes(with, rc::detail::TestParams().maxSuccess) && all;
  return all;
}

}  // namespace vitamin::test
