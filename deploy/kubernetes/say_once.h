// SPDX-License-Identifier: Apache-2.0
//
// Log lines about conditions that are looked at again and again.
#pragma once

#include <functional>
#include <string>

namespace vitamin::kubernetes {

// Says a problem when it is another one than at the last call, and `well` when there is none any
// more. `told`: the last one, kept by the caller; empty: none.
inline void say_once(const std::function<void(const std::string&)>& say, std::string& told,
                     const std::string& problem, const std::string& well = "") {
  if (problem != told) say(problem.empty() ? well : problem);
  told = problem;
}

}  // namespace vitamin::kubernetes
