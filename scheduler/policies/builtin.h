// SPDX-License-Identifier: Apache-2.0
//
// The makers of the built-in policies, one file each.
#pragma once

#include "scheduler/policy.h"

namespace vitamin::scheduler {

// Every client shares the whole device: a job that is alone loses nothing. The policy that takes
// the place of one that failed.
Policy make_fifo();

}  // namespace vitamin::scheduler
