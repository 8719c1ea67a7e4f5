// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/occupancy.h"

#include <cstdio>
#include <cstdlib>

namespace vitamin::soft::amdgpu {
namespace {

constexpr SmUsage kResident{.threads = 0, .blocks = 1, .shared_bytes = 0, .registers = 0};

}  // namespace

Occupancy::Occupancy(const std::string& path, std::uint32_t cus) {
  if (path.empty()) return;
  auto ledger = ResidencyLedger::attach(path, cus);
  if (ledger) {
    ledger_ = std::move(*ledger);
    return;
  }
  std::fprintf(stderr, "software AMD GPU: VITAMIN_SOFT_AMDGPU_LEDGER: %s\n",
               ledger.error().message.c_str());
  std::_Exit(2);
}

void Occupancy::enter(const std::vector<unsigned>& cus) {
  if (ledger_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  ledger_->lock();
  for (const unsigned cu : cus) ledger_->take(cu, kResident);
  ledger_->unlock();
}

void Occupancy::leave(const std::vector<unsigned>& cus) {
  if (ledger_ == nullptr) return;
  const std::lock_guard lock(mutex_);
  ledger_->lock();
  for (const unsigned cu : cus) ledger_->release(cu, kResident);
  ledger_->unlock();
}

std::uint32_t Occupancy::shared_cus() const {
  if (ledger_ == nullptr) return 0;
  const std::lock_guard lock(mutex_);
  ledger_->lock();
  std::uint32_t shared = 0;
  for (const SmSharing& cu : ledger_->sharing()) shared += cu.processes_max >= 2 ? 1 : 0;
  ledger_->unlock();
  return shared;
}

}  // namespace vitamin::soft::amdgpu
