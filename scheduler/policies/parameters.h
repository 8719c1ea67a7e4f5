// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a policy's specification, as text; each is taken once, and one that is not
// taken, or that the policy does not describe, is an error.
#pragma once

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hal/compute_set.h"
#include "scheduler/policy.h"

namespace vitamin::scheduler {

// "0-3+8-15", as Parameters::units() reads them.
std::string units_text(hal::ComputeSet units);

class Parameters {
 public:
  // "a=1,b=2". A name without '=' has the value "1".
  static Parameters parse(std::string_view text);

  // Sets *value when the parameter was given; a value that is no number in [low, high] is an error.
  void number(const std::string& name, std::uint32_t low, std::uint32_t high, std::uint32_t* value);
  // Sets *value when the parameter was given, as 1 or true, 0 or false.
  void flag(const std::string& name, bool* value);
  // Sets *value to the index of the word among those that are known.
  void word(const std::string& name, std::initializer_list<std::string_view> known,
            std::size_t* value);
  // Sets *ns when the parameter was given; a value that is no whole number with a unit ("250us",
  // "2ms", "1s"), or is not in [1 us, 1000 s], is an error.
  void duration(const std::string& name, std::uint64_t* ns);
  // Units: "0-7", "0-3+8-15", "5".
  void units(const std::string& name, hal::ComputeSet* value);
  bool given(const std::string& name) const;
  // What is wrong about parameters that are valid each: one line that says what to do.
  void refuse(std::string why);
  // The first thing that was wrong, or empty. `described`: a policy's parameters, which
  // vitamin.toml accepts and `vitamin policy list` prints. One that was given and is not among
  // them is wrong although its maker takes it, as is one that is among them and was not taken: so
  // the two lists of a policy cannot differ.
  std::string error(std::span<const Parameter> described) const;

 private:
  std::optional<std::string> take(const std::string& name);
  std::vector<std::string> given_;
  std::map<std::string, std::string> values_;  // not taken yet
  std::string error_;
};

}  // namespace vitamin::scheduler
