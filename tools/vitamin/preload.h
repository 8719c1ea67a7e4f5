// SPDX-License-Identifier: Apache-2.0
//
// The preloaded library: where it is, whether the loader takes it, and what LD_PRELOAD becomes.
#pragma once

#include <filesystem>
#include <string>

#include "hal/result.h"

namespace vitamin::tools {

// Beside this program: ../lib/libvitamin_cuda.so relative to /proc/self/exe, in a build folder and
// in an installed tree alike.
std::filesystem::path preload_library();

// Starts this program again with the library preloaded and looks whether it is really there. Fails
// with a sentence that says why not. Costs a few milliseconds.
hal::Status check_preload(const std::filesystem::path& library);

// A path of the library that LD_PRELOAD can hold: the loader splits at spaces and colons, so that a
// library below such a folder is named by a link in `directory`.
std::filesystem::path preloadable(const std::filesystem::path& library,
                                  const std::filesystem::path& directory);

// LD_PRELOAD with the library first and what the user had after it, the library only once.
std::string preload_variable(const std::filesystem::path& library, const char* inherited);

// The other end of check_preload: exit code of the process that was started again.
inline constexpr const char* kPreloadCheckVerb = "__preload-check";
int answer_preload_check(const char* library);

}  // namespace vitamin::tools
