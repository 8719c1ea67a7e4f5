// SPDX-License-Identifier: Apache-2.0
//
// Making a KernelCommand from what a launch or a graph node says.
#pragma once

#include "backends/soft/libcuda/command.h"

namespace vitamin::soft::driver {

struct LaunchShape {
  Index3 grid, block;
  std::uint32_t shared = 0;
};

// Copies the parameters, from either form, into the layout of the kernel.
CUresult pack_parameters(const KernelDescriptor& descriptor, void** parameters, void** extra,
                         std::vector<unsigned char>* packed);

// Checks and copies everything that does not depend on where the kernel will run.
CUresult make_kernel(const void* handle, const LaunchShape& shape,
                     const CUlaunchAttribute* attributes, unsigned attribute_count,
                     bool cooperative, void** parameters, void** extra, bool capturing,
                     KernelCommand* kernel);

// Gives a kernel one more attribute, or another value of one that it has.
CUresult set_kernel_attribute(KernelCommand& kernel, const CUlaunchAttribute& attribute,
                              bool capturing);

// Whether the kernel can run in this context: 720 and 912 when its SMs are too few.
CUresult check_placement(const KernelCommand& kernel, const Context& context);

}  // namespace vitamin::soft::driver
