// SPDX-License-Identifier: Apache-2.0
//
// A kernel that does nothing and one that faults, for end_to_end_test.py.
#include "backends/soft/kernel.h"

VITAMIN_KERNEL(well, unsigned* count) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(count, 1u); }
}

VITAMIN_KERNEL(ill, unsigned* /*count*/) {
  VITAMIN_ONCE { VITAMIN_ILLEGAL_ADDRESS(); }
}
