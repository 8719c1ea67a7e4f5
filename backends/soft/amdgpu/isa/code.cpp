// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/isa/code.h"

#include <algorithm>
#include <cstdio>

#include "backends/soft/amdgpu/isa/decoder.h"

namespace vitamin::soft::amdgpu::isa {
namespace {

// Bounds what is compared when a block is entered.
constexpr std::size_t kLongestBlock = 64;

}  // namespace

Block::Block(std::uint64_t pc, std::uint64_t available, Decoder& decoder) {
  std::uint64_t bytes = 0;
  do {
    instructions_.push_back(&decoder.decode(pc + bytes, available - bytes));
    bytes += instructions_.back()->size;
  } while (!instructions_.back()->ends_block && instructions_.size() < kLongestBlock &&
           bytes < available);
  const auto* const code = reinterpret_cast<const std::uint8_t*>(pc);
  bytes_.assign(code, code + std::min(bytes, available));
}

CodeRegion::CodeRegion(std::uint64_t begin, std::uint64_t bytes, Decoder& decoder)
    : begin_(begin),
      bytes_(bytes),
      decoder_(decoder),
      slots_(new std::atomic<const Block*>[bytes / 4 + 1]()) {}

const Block& CodeRegion::decode(std::uint64_t pc) {
  const std::lock_guard lock(mutex_);
  const Block& kept = blocks_.emplace_back(pc, begin_ + bytes_ - pc, decoder_);
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
