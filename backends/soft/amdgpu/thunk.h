// SPDX-License-Identifier: Apache-2.0
//
// What every file with entry points of the thunk needs. The entries are those that the runtime
// (ROCr 5.2 to 5.6) imports; exports.map lists them.
#pragma once

#include <hsakmt.h>

#define VITAMIN_THUNK extern "C" __attribute__((visibility("default"))) HSAKMT_STATUS

namespace vitamin::soft::amdgpu {

constexpr HSAuint32 kCpuNode = 0, kFirstGpuNode = 1;

// Apertures of flat addresses, one page of 4 GiB each.
constexpr HSAuint64 kSharedAperture = 0x1000000000000, kPrivateAperture = 0x2000000000000;

}  // namespace vitamin::soft::amdgpu
