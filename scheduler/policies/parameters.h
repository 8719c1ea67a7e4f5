// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a policy's specification, as text; each is taken once, and one that is not
// taken is an error.
#pragma once

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "hal/compute_set.h"

namespace vitamin::scheduler {

class Parameters {
 public:
  // "a=1,b=2". A name without '=' has the value "1".
  static Parameters parse(std::string_view text);

  // Sets *value when the parameter was given; a value that is no number in [low, high] is an error.
  void number(const std::string& name, std::uint32_t low, std::uint32_t high, std::uint32_t* value);
  // Sets *value to the index of the word among those that are known.
  void word(const std::string& name, std::initializer_list<std::string_view> known,
            std::size_t* value);
  // Units: "0-7", "0-3+8-11", "5".
  void units(const std::string& name, hal::ComputeSet* value);
  // The first thing that was wrong, or empty. Unused parameters are wrong.
  std::string error() const;

 private:
  std::optional<std::string> take(const std::string& name);
  std::map<std::string, std::string> values_;
  std::string error_;
};

}  // namespace vitamin::scheduler
