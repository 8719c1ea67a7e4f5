// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitamin::interpose {

// Names what the loaded driver exports that looks stream-ordered and has no row in the vendor's
// table of entry points, as a driver newer than the headers of this build may have. Once, with
// VITAMIN_DEBUG set or where the vendor knows that the driver is newer than the table.
void report_drift(bool driver_is_newer);

}  // namespace vitamin::interpose
