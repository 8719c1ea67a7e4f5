// SPDX-License-Identifier: Apache-2.0
//
// Functions of a vendor's library that is opened when it is asked.
#pragma once

#include <dlfcn.h>

namespace vitamin::tools {

// Null: the library does not have it. `Function`: a pointer to a function of its type.
template <class Function>
Function symbol(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace vitamin::tools
