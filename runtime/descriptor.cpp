// SPDX-License-Identifier: Apache-2.0
#include "runtime/descriptor.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <vector>

namespace vitamin::runtime {
namespace {

class KeptLaunch final : public LaunchOperation {
 public:
  KeptLaunch(hal::KernelInspector& inspector, const hal::KernelLaunch& launch, const Advice* advice)
      : LaunchOperation(inspector, launch_, advice != nullptr ? &advice_ : nullptr),
        launch_(launch),
        advice_(advice != nullptr ? *advice : Advice()) {
    const auto* records = static_cast<const std::byte*>(launch.attributes.records);
    attributes_.assign(records,
                       records + launch.attributes.count * inspector.attribute_record_bytes());
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
    const PackedParameters packed = packed_parameters(launch_.extra);
    if (packed.bytes == nullptr || packed.size == nullptr || *packed.size > most) return false;
    size_ = *packed.size;
    const auto* bytes = static_cast<const std::byte*>(packed.bytes);
    buffer_.assign(bytes, bytes + size_);
    pointers_ = {reinterpret_cast<void*>(kPackedPointer), buffer_.data(),
                 reinterpret_cast<void*>(kPackedSize), &size_, packed.end_mark};
    launch_.extra = pointers_.data();
    return true;
  }

  std::unique_ptr<Operation> keep() const override { return nullptr; }  // already kept

 private:
  hal::KernelLaunch launch_;
  Advice advice_;
  // Parameters are at most 64-byte aligned (CUtensorMap); std::byte vectors from the global
  // allocator are 16-byte aligned, which is enough: the driver copies byte-wise.
  std::vector<std::byte> buffer_;
  std::vector<std::byte> attributes_;
  std::vector<void*> pointers_;
  std::size_t size_ = 0;
};

}  // namespace

PackedParameters packed_parameters(void* const* list) {
  PackedParameters packed;
  for (;; list += 2) {
    const auto key = reinterpret_cast<std::uintptr_t>(list[0]);
    if (key == kPackedPointer) {
      packed.bytes = list[1];
    } else if (key == kPackedSize) {
      packed.size = static_cast<const std::size_t*>(list[1]);
    } else {
      packed.end_mark = list[0];
      return packed;
    }
  }
}

std::unique_ptr<Operation> LaunchOperation::keep() const {
  auto kept = std::make_unique<KeptLaunch>(inspector_, *launch_, advice_);
  const hal::Result<hal::KernelLayout> layout = inspector_.layout(launch_->kernel);
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
