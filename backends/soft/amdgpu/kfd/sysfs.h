// SPDX-License-Identifier: Apache-2.0
//
// /sys/devices/virtual/kfd/kfd/topology and what else of sysfs says that the driver is there, and
// /dev/dri as a directory.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/soft/amdgpu/settings.h"

namespace vitamin::soft::amdgpu::kfd {

struct SysfsFile {
  std::string path;  // from /sys, or dev/dri/…: a name of a device file, without contents
  std::string text;
};

// A CPU node, a node for each GPU, and a link from every node to every other one.
std::vector<SysfsFile> sysfs_files(const Settings& settings);

// Where a path leads: for what the driver shows in sysfs, and for /dev/dri on a machine that has no
// such directory, into a directory of temporary files, else to itself. The directory is made at the
// first use and stays: processes of one user with the same settings share it (TMPDIR,
// vitamin-kfd-<user>-<hash of its contents>).
std::string redirected(std::string_view path);

}  // namespace vitamin::soft::amdgpu::kfd
