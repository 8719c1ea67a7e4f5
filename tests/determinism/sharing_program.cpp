// SPDX-License-Identifier: Apache-2.0
//
// sharing LEDGER: what the processes that shared a software device through that file did to each
// other: the most of them on one SM, and for how many nanoseconds there was more than one.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "backends/soft/ledger.h"

int main(int argc, char** argv) {
  using namespace vitamin::soft;
  constexpr std::uint32_t kSms = 132;  // of the software driver's device
  const auto attached = ResidencyLedger::attach(argc > 1 ? argv[1] : "", kSms);
  if (!attached) {
    std::fprintf(stderr, "%s\n", attached.error().message.c_str());
    return 1;
  }
  ResidencyLedger& own = **attached;
  own.lock();
  const std::vector<SmSharing> all = own.sharing();
  own.unlock();
  std::uint32_t most = 0;
  std::uint64_t shared = 0;
  for (const SmSharing& sm : all) {
    most = std::max(most, sm.processes_max);
    shared += static_cast<std::uint64_t>(sm.shared_ns);
  }
  std::printf("%u %llu\n", most, static_cast<unsigned long long>(shared));
  return 0;
}
