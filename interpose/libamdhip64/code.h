// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the process: one record for each handle that a launch may name (the address of a
// host stub, or a hipFunction_t), with what its code object says about its parameters.
//
// Threads: any. Records live for ever: a launch that names one may still be deferred.
#pragma once

#include "backends/hip/kernel.h"

namespace vitamin::interpose {

// Never null. What was not seen being registered has no name of ours and no layout.
const hip::Kernel* kernel_of_stub(const void* stub);
const hip::Kernel* kernel_of_function(hipFunction_t function);
// Null: no stub was registered at this address.
const hip::Kernel* kernel_of_registered_stub(const void* address);

}  // namespace vitamin::interpose
