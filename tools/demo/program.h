// SPDX-License-Identifier: Apache-2.0
//
// What the demo programs say and read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vitamin::demo {

// Ends the program.
[[noreturn]] void stop(const std::string& message);

// FNV-1a over the bytes of `values`: two runs agree exactly when their hashes do (for our purpose).
std::uint64_t hash(const std::vector<float>& values);

// A positive number from the command line, or `preset` without one.
unsigned count_argument(int argc, char** argv, unsigned preset);

// The line that scripts read: "<name>: hash <hex>, <n> launches, <s> seconds".
void print_result(const char* name, std::uint64_t hash, std::uint64_t launches, double seconds);

}  // namespace vitamin::demo
