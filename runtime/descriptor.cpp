// SPDX-License-Identifier: Apache-2.0
#include "runtime/descriptor.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

namespace vitamin::runtime {
namespace {

// The vendor's packed form: a list of (key, value) pairs. CUDA and HIP agree on two keys
// (CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE, HIP_LAUNCH_PARAM_*); anything else ends the list.
constexpr std::uintptr_t kBufferPointer = 1;
constexpr std::uintptr_t kBufferSize = 2;

class KeptLaunch final : public LaunchOperation {
 public:
  KeptLaunch(hal::Device& device, const hal::KernelLaunch& launch, const Advice* advice)
      : LaunchOperation(device, launch_, advice != nullptr ? &advice_ : nullptr),
        launch_(launch),
        advice_(advice != nullptr ? *advice : Advice()) {
    const auto* records = static_cast<const std::byte*>(launch.attributes.records);
    attributes_.assign(records, records + launch.attributes.count * kAttributeRecordBytes);
    launch_.attributes.records = attributes_.data();
    launch_.in_context = false;  // it may be made on any thread
  }

  bool copy_arguments(const hal::KernelLayout& layout) {
    buffer_.resize(layout.bytes);
    pointers_.resize(layout.parameters.size());
    for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
      const hal::KernelLayout::Parameter& parameter = layout.parameters[i];
      if (launch_.arguments[i] == nullptr) return false;
      std::byte* at = buffer_.data() + parameter.offset;
      std::memcpy(at, launch_.arguments[i], parameter.size);
      pointers_[i] = at;
    }
    launch_.arguments = pointers_.data();
    return true;
  }

  // Copies the buffer and the cell that holds its size: the caller owns both. False when the list
  // may be refused: that is for the call to tell.
  bool copy_extra(std::size_t most) {
    void* buffer = nullptr;
    void** pair = launch_.extra;
    for (;; pair += 2) {
      const auto key = reinterpret_cast<std::uintptr_t>(pair[0]);
      if (key == kBufferPointer) {
        buffer = pair[1];
      } else if (key == kBufferSize) {
        if (pair[1] == nullptr) return false;
        size_ = *static_cast<std::size_t*>(pair[1]);
      } else {
        break;  // the end mark, which the vendors do not agree on
      }
    }
    if (buffer == nullptr || size_ > most) return false;
    const auto* bytes = static_cast<const std::byte*>(buffer);
    buffer_.assign(bytes, bytes + size_);
    pointers_ = {reinterpret_cast<void*>(kBufferPointer), buffer_.data(),
                 reinterpret_cast<void*>(kBufferSize), &size_, pair[0]};
    launch_.extra = pointers_.data();
    return true;
  }

  std::unique_ptr<Operation> keep() const override { return nullptr; }  // already kept

 private:
  hal::KernelLaunch launch_;
  Advice advice_;
  // Parameters are at most 64-byte aligned (CUtensorMap); std::byte vectors from the global
  // allocator are 16-byte aligned, which matters to nobody: the driver copies byte-wise.
  std::vector<std::byte> buffer_;
  std::vector<std::byte> attributes_;
  std::vector<void*> pointers_;
  std::size_t size_ = 0;
};

}  // namespace

std::unique_ptr<Operation> LaunchOperation::keep() const {
  auto kept = std::make_unique<KeptLaunch>(device_, *launch_, advice_);
  const hal::Result<hal::KernelLayout> layout = device_.kernel_layout(launch_->kernel);
  if (launch_->extra != nullptr) {
    const std::size_t most = layout ? layout->bytes : std::numeric_limits<std::size_t>::max();
    return kept->copy_extra(most) ? std::move(kept) : nullptr;
  }
  if (!layout) return nullptr;
  // Missing arguments are for the call to refuse.
  if (launch_->arguments == nullptr && !layout->parameters.empty()) return nullptr;
  if (launch_->arguments != nullptr && !kept->copy_arguments(*layout)) return nullptr;
  return kept;
}

}  // namespace vitamin::runtime
