// SPDX-License-Identifier: Apache-2.0
//
// Modules and libraries: shared objects made with backends/soft/kernel.h.
#pragma once

#include "backends/soft/libcuda/driver.h"

namespace vitamin::soft::driver {

// A kernel that a launch or a query names, whichever of the two sorts of handle it is.
Function* find_function(const void* handle, bool* is_kernel_handle);

// The limit on dynamic shared memory of a launch of this function.
std::uint32_t dynamic_shared_limit(const Function& function);
// Whether clusters of more than 8 blocks were allowed for it.
bool non_portable_clusters_allowed(const Function& function);

void unload_context_modules(Context& context);

}  // namespace vitamin::soft::driver
