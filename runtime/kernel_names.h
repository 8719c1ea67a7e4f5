// SPDX-License-Identifier: Apache-2.0
//
// What is known of kernels by their names. Names are as the driver gives them, mangled or not. Any
// thread.
#pragma once

#include <string_view>

namespace vitamin::runtime {

// Whether it waits for kernels of other processes. Two jobs on the same GPUs wait for each other if
// such a kernel needs a grant: on one GPU the first job has it, on another the second. So these
// kernels need none (docs/multi-gpu.md). A kernel that is named without reason keeps its bits and
// may run on the whole device; one that is missed can stall its job, until collectives.kernels
// names it.
bool names_collective(std::string_view name);

// Whether its blocks wait for each other, so that all of them must be resident at once, though it
// is not launched as cooperative. One that is missed is found by the watchdog, after it has hung
// once.
bool names_resident(std::string_view name);

}  // namespace vitamin::runtime
