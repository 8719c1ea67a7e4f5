// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel_table.h"

#include <algorithm>

#include "runtime/kernel_names.h"
#include "runtime/profile/profiler.h"

namespace vitamin::runtime {
namespace {

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash * 0xff51afd7ed558ccdULL;
}

}  // namespace

std::uint32_t Kernel::sms_needed(hal::Device& device, const hal::KernelLaunch& launch) {
  const bool needs_all_blocks = launch.cooperative || resident;
  const bool plain = !needs_all_blocks && !assumed_resident && launch.cluster_blocks <= 1;
  if (plain && plain_sms_ != 0) return plain_sms_;
  std::uint64_t configuration = mix(launch.cluster_blocks, launch.shared_bytes);
  configuration = mix(configuration, launch.block.volume());
  if (needs_all_blocks || assumed_resident)
    configuration = mix(configuration, launch.grid.volume() * 2 + (needs_all_blocks ? 1 : 0));
  for (const Need& need : needs_)
    if (need.configuration == configuration) return need.sms;
  std::uint32_t sms = device.inspector().sms_needed(launch, resident || assumed_resident);
  if (assumed_resident && !needs_all_blocks && sms > device.info().sms &&
      device.inspector().resident_blocks(launch) != 0)
    sms = device.inspector().sms_needed(launch, false);
  // A program with ever new shapes of one cooperative kernel must not grow this without bound.
  if (needs_.size() >= 64) needs_.clear();
  needs_.push_back({configuration, sms});
  if (plain) plain_sms_ = sms;
  return sms;
}

KernelTable::KernelTable(hal::Device& device, stats::DevicePage& page,
                         std::unordered_set<std::string> resident,
                         std::vector<std::string> collectives, bool cautious)
    : device_(device),
      page_(page),
      resident_(std::move(resident)),
      collectives_(std::move(collectives)),
      cautious_(cautious),
      slots_(4096),
      mask_(4095) {}

Kernel& KernelTable::add(hal::KernelHandle handle) {
  if (2 * ++size_ > slots_.size()) {
    std::vector<std::unique_ptr<Kernel>> old(2 * slots_.size());
    old.swap(slots_);
    mask_ = slots_.size() - 1;
    for (std::unique_ptr<Kernel>& kernel : old) {
      if (!kernel) continue;
      std::size_t i = slot_of(kernel->handle);
      while (slots_[i]) i = (i + 1) & mask_;
      slots_[i] = std::move(kernel);
    }
  }
  auto kernel = std::make_unique<Kernel>();
  kernel->handle = handle;
  kernel->name = device_.inspector().name(handle);
  kernel->name_hash = name_hash(kernel->name);
  kernel->library = &page_.library(device_.inspector().origin(handle).c_str());
  kernel->collective =
      names_collective(kernel->name) ||
      std::any_of(collectives_.begin(), collectives_.end(), [&](const std::string& part) {
        return kernel->name.find(part) != std::string::npos;
      });
  kernel->resident = resident_.contains(kernel->name) || names_resident(kernel->name);
  kernel->assumed_resident = cautious_ && !kernel->collective;
  if (const std::uint32_t bytes = device_.info().parameter_bytes_of_place; bytes != 0)
    if (const hal::Result<hal::KernelLayout> layout = device_.inspector().layout(handle))
      kernel->places = std::max(1U, (layout->bytes + bytes - 1) / bytes);
  std::size_t i = slot_of(handle);
  while (slots_[i]) i = (i + 1) & mask_;
  slots_[i] = std::move(kernel);
  return *slots_[i];
}

void KernelTable::clear() {
  for (std::unique_ptr<Kernel>& kernel : slots_)
    if (kernel) retired_.push_back(std::move(kernel));
  size_ = 0;
  std::erase_if(retired_, [](const auto& kernel) { return kernel->holders == 0; });
}

void KernelTable::remember_resident(Kernel& kernel) {
  kernel.resident = true;
  resident_.insert(kernel.name);
}

}  // namespace vitamin::runtime
