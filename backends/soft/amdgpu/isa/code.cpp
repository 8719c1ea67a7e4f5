// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/isa/code.h"

#include <cstdio>

#include "backends/soft/amdgpu/isa/decoder.h"

namespace vitamin::soft::amdgpu::isa {
CodeRegion::CodeRegion(std::uint64_t begin, std::uint64_t bytes, Decoder& decoder)
    : begin_(begin),
      bytes_(bytes),
      decoder_(decoder),
      slots_(new std::atomic<const Instruction*>[bytes / 4 + 1]()) {}

const Instruction& CodeRegion::decode(std::uint64_t pc) {
  Instruction fresh = decoder_.decode(pc, begin_ + bytes_ - pc);
  const std::lock_guard lock(mutex_);
  const Instruction& kept = decoded_.emplace_back(std::move(fresh));
  slots_[(pc - begin_) / 4].store(&kept, std::memory_order_release);
  return kept;
}

CodeCache::CodeCache(const char* processor, bool preserves_halves,
                     std::function<Extent(std::uint64_t)> extent_of)
    : decoder_(std::make_unique<Decoder>(processor, preserves_halves)),
      extent_of_(std::move(extent_of)) {}

CodeCache::~CodeCache() = default;

CodeRegion& CodeCache::region_of(std::uint64_t pc) {
  const std::lock_guard lock(mutex_);
  auto found = regions_.upper_bound(pc);
  if (found != regions_.begin() && (--found)->second->contains(pc)) return *found->second;
  const Extent extent = extent_of_(pc);
  if (extent.bytes == 0 || pc % 4 != 0) {
    char text[80];
    std::snprintf(text, sizeof text, "a wave jumped to %#llx, which holds no code",
                  static_cast<unsigned long long>(pc));
    throw Fault(text);
  }
  auto& region = regions_[extent.begin];
  region = std::make_unique<CodeRegion>(extent.begin, extent.bytes, *decoder_);
  return *region;
}

void CodeCache::forget(std::uint64_t begin) {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(begin);
  if (found == regions_.end()) return;
  retired_.push_back(
      std::move(found->second));  // a wave of a program with a bug may still be there
  regions_.erase(found);
}

}  // namespace vitamin::soft::amdgpu::isa
