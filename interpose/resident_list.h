// SPDX-License-Identifier: Apache-2.0
//
// The file of kernels that need their whole grid resident (runtime/environment.h: kWideOnly): one
// name a line, '#' begins a comment. Users may edit it; processes of several runs add to it at
// once.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>

namespace vitamin::interpose {

// A file that is not there has none.
std::unordered_set<std::string> read_resident_list(const char* file);

// Adds the kernel unless the file has it. False: the file does not have it now.
bool add_to_resident_list(const char* file, std::string_view kernel);

}  // namespace vitamin::interpose
