// SPDX-License-Identifier: Apache-2.0
//
// Where the parameters of AMD kernels lie: read from the metadata of code objects (LLVM, "User
// Guide for AMDGPU Backend", sections "Code Object Metadata" and "Clang Offload Bundler"). Pure:
// bytes in, layouts out; nothing is believed of what the bytes say about their own sizes.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>

#include "hal/operation.h"

namespace vitamin::interpose {

using KernelLayouts = std::map<std::string, hal::KernelLayout, std::less<>>;

enum class CodeKind : std::uint8_t {
  kUnknown,
  kElf,
  kBundle,            // __CLANG_OFFLOAD_BUNDLE__
  kCompressedBundle,  // CCOB: not supported, its kernels have no layout
};
CodeKind kind_of(std::span<const std::byte> image);

// Adds the explicit parameters of every kernel in a code object, or in all code objects of a
// bundle, by the kernel's name. False: something in it could not be read; what could be is there.
bool read_layouts(std::span<const std::byte> image, KernelLayouts& layouts);

// How many bytes there are from `image` on, as its own headers say: for images that calls hand over
// without a size. 0: unknown kind. Reads headers only, as the runtime does.
std::size_t extent_of(const std::byte* image);

}  // namespace vitamin::interpose
