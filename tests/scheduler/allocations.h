// SPDX-License-Identifier: Apache-2.0
//
// Counts what a program allocates. Linking allocations.cpp replaces every operator new and delete:
// a pair of which one half is the library's is a mismatch, and AddressSanitizer ends the program.
#pragma once

#include <cstdint>

namespace vitamin::test {

// Since the program began, of all threads.
std::uint64_t allocations();

}  // namespace vitamin::test
