// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitamin::interpose {

// With VITAMIN_DEBUG set: names what the loaded driver exports that looks stream-ordered and has no
// row in the vendor's table of entry points, as a driver newer than the headers of this build may
// have. Once.
void report_drift();

}  // namespace vitamin::interpose
