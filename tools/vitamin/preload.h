// SPDX-License-Identifier: Apache-2.0
//
// The preloaded libraries, one a vendor: where they are, whether the loader takes them, and what
// LD_PRELOAD becomes. All that there are go into every program: a library does nothing until its
// vendor's runtime is used, and which one that will be cannot be known before.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hal/result.h"

namespace vitamin::tools {

using Libraries = std::vector<std::filesystem::path>;

// Beside this program: libvitamin_cuda.so and libvitamin_hip.so, relative to /proc/self/exe in
// ../lib/vitamin/preload of an installed tree, else in ../lib of a build directory; those that were
// built. Never empty: where none was, the first is named, for check_preload to complain of.
Libraries preload_libraries();

// Starts this program again with the libraries preloaded and looks whether they are really there.
// Fails with a sentence that says why not. Costs a few milliseconds.
hal::Status check_preload(const Libraries& libraries);

// Paths of the libraries that LD_PRELOAD can hold: the loader splits at spaces and colons, so that
// a library below such a directory is named by a link in `directory`.
Libraries preloadable(Libraries libraries, const std::filesystem::path& directory);

// LD_PRELOAD with the libraries first and what the user had after them, each only once.
std::string preload_variable(const Libraries& libraries, const char* inherited);

// The other end of check_preload: exit code of the process that was started again.
inline constexpr const char* kPreloadCheckVerb = "__preload-check";
int answer_preload_check(const char* library);

}  // namespace vitamin::tools
