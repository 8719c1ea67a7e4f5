// SPDX-License-Identifier: Apache-2.0
//
// What a loaded code object says about a kernel: its name and the layout of its arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/soft/amdgpu/memory.h"

namespace vitamin::soft::amdgpu {

struct KernelArgument {
  std::uint32_t offset = 0, bytes = 0;
  bool pointer = false;  // an address: differs between runs of one program
  bool hidden = false;   // the runtime's own
};

struct KernelInfo {
  std::string name = "?";
  std::uint32_t kernarg_bytes = 0;
  bool has_arguments = false;  // the code object described them
  std::vector<KernelArgument> arguments;
};

class KernelInfos {
 public:
  // Reads the code object again at each call: another one may lie at the same address by now.
  KernelInfo read(const Memory& memory, std::uint64_t descriptor) const;
};

}  // namespace vitamin::soft::amdgpu
