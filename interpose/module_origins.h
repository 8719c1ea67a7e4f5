// SPDX-License-Identifier: Apache-2.0
//
// Where the code of a module came from, for the coverage report.
#pragma once

#include <string>

namespace vitamin::interpose {

void note_origin(const void* module, const char* file);
// The shared object that `image` lies in, or "jit" for code that was made or read at run time.
void note_image(const void* module, const void* image);
void forget_origin(const void* module);
// "(unknown)" when it is unknown.
std::string origin_of(const void* module);
// The name of the shared object that an address lies in; null: none.
const char* object_of(const void* address);

}  // namespace vitamin::interpose
