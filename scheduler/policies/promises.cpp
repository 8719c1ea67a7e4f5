// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/promises.h"

namespace vitamin::scheduler {

void promises_of(const AllocationPolicy* policy, std::vector<Promise>& out) {
  constexpr std::uint64_t kAsAlone = 1000;  // slo.h: a bound below a microsecond
  out.clear();
  if (const auto* const keeps = dynamic_cast<const SloPolicy*>(policy)) keeps->promises(out);
  std::erase_if(out, [](const Promise& promise) { return promise.bound_ns < kAsAlone; });
}

}  // namespace vitamin::scheduler
