// SPDX-License-Identifier: Apache-2.0
//
// The arguments of a kernel node, copied: what a caller or the driver hands out is theirs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "hal/device.h"

namespace vitamin::cuda {

class CopiedArguments {
 public:
  // Once. `given`: an address for each parameter of the kernel.
  hal::Status copy(hal::KernelInspector& inspector, const void* kernel, void** given) {
    return copy(inspector.layout(kernel), given);
  }
  hal::Status copy(const hal::Result<hal::KernelLayout>& layout, void** given) {
    if (!layout) return tl::unexpected(layout.error());
    bytes_.resize(layout->bytes);
    for (const hal::KernelLayout::Parameter& parameter : layout->parameters) {
      std::byte* const at = bytes_.data() + parameter.offset;
      std::memcpy(at, given[pointers_.size()], parameter.size);
      pointers_.push_back(at);
      sizes_.push_back(parameter.size);
    }
    pointers_.push_back(nullptr);  // so that there is an address for a kernel without any
    return {};
  }
  // Other values for the same kernel, into the same places.
  void copy_again(void** given) {
    for (std::size_t i = 0; i < sizes_.size(); ++i) std::memcpy(pointers_[i], given[i], sizes_[i]);
  }
  // As a node takes them. Valid as long as this, also after it was moved.
  void** pointers() { return pointers_.data(); }

 private:
  std::vector<std::byte> bytes_;
  std::vector<void*> pointers_;
  std::vector<std::uint32_t> sizes_;
};

}  // namespace vitamin::cuda
