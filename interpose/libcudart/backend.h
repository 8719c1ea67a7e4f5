// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend on real driver functions, and what only the interposer can tell it: which
// captures are open and which library a kernel came from.
#pragma once

#include <memory>

#include "hal/device.h"
#include "interpose/libcudart/driver.h"

namespace vitamin::interpose {

// `primary` must be active; the pool's green contexts keep it so.
hal::Result<std::unique_ptr<hal::Device>> open_device(int ordinal, CUcontext primary);

// The driver's context of a pool entry.
CUcontext context_of_entry(hal::PhysicalContext& entry);

// Where the code of a CUmodule or CUlibrary came from.
void note_origin(const void* module_or_library, const char* origin);
// The shared object that `image` lies in, or "jit" for code that was made or read at run time.
void note_image(const void* module_or_library, const void* image);
void forget_origin(const void* module_or_library);

}  // namespace vitamin::interpose
