// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitamin::hip {

// A version of HIP as hipRuntimeGetVersion says it (5.2.3 of Debian: 50221153).
constexpr int hip_version(int major, int minor) { return major * 10'000'000 + minor * 100'000; }

}  // namespace vitamin::hip
