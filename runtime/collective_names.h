// SPDX-License-Identifier: Apache-2.0
//
// Which kernels wait for kernels of other processes, by their names. Two jobs on the same GPUs wait
// for each other if such a kernel needs a grant: on one GPU the first job has it, on another the
// second. So these kernels need none (docs/multi-gpu.md).
#pragma once

#include <string_view>

namespace vitamin::runtime {

// `name`: as the driver gives it, mangled or not. Any thread. A kernel that is named without reason
// keeps its bits and may run on the whole device; one that is missed can stall its job, until
// collectives.kernels names it.
bool names_collective(std::string_view name);

}  // namespace vitamin::runtime
