// SPDX-License-Identifier: Apache-2.0
//
// What a person who misspelt a name most likely meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vitamin::scheduler {

// Of the candidates the one that is at most a third of the word away, counting swapped neighbours
// as one ("radnom"); or nothing.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "; did you mean 'random'?" or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace vitamin::scheduler
