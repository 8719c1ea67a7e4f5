// SPDX-License-Identifier: Apache-2.0
//
// A process without vitamind whose placement policy fails: what is reported is what happens.
#include "daemon/client/local_arbiter.h"

#include <doctest/doctest.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace vitamin::client {
namespace {

const hal::DeviceInfo kOneDevice{hal::Vendor::kSoftware, "d", "GPU-0", 16, {4, 4, 4, 4}, 1000};

// Fails at every second launch, from the first one on.
class FailsAtTimes final : public scheduler::PlacementPolicy {
 public:
  explicit FailsAtTimes(int& asked) : asked_(asked) {}
  scheduler::Placement place(const scheduler::PlacementRequest&,
                             std::span<const runtime::PartitionId> eligible) override {
    if (asked_++ % 2 == 0) throw std::runtime_error("out of luck");
    return {eligible.front(), 1};
  }

 private:
  int& asked_;
};

std::vector<std::string> lines;

}  // namespace

TEST_CASE("a placement policy that fails is reported once, with what decides then") {
  for (const bool isolated : {false, true}) {
    CAPTURE(isolated);
    lines.clear();
    int asked = 0;
    const runtime::PoolLayout layout = runtime::PoolLayout::build(kOneDevice);
    LocalArbiter arbiter(layout, [](const char* line) { lines.emplace_back(line); });
    scheduler::Policy policy;
    policy.description.name = "fails";
    policy.description.isolate_streams = isolated;
    policy.placement = std::make_unique<FailsAtTimes>(asked);
    arbiter.use(std::move(policy));

    std::vector<runtime::PartitionId> eligible;
    for (const runtime::Partition& partition : layout.partitions())
      if (!partition.whole()) eligible.push_back(partition.id);
    eligible.push_back(runtime::kWholeDevice);
    runtime::ReadyOperation operation;
    CHECK(arbiter.grant(operation, eligible).partition == runtime::kWholeDevice);
    const runtime::PartitionId next = arbiter.grant(operation, eligible).partition;
    CHECK(arbiter.grant(operation, eligible).partition == runtime::kWholeDevice);

    REQUIRE(lines.size() == 1);
    CHECK(lines[0].starts_with("policy fails: place() failed: out of luck; "));
    const bool says_fifo = lines[0].ends_with("; fifo decides from now on");
    CHECK(says_fifo == !isolated);
    CHECK(asked == (isolated ? 3 : 1));
    CHECK(next == (isolated ? eligible.front() : runtime::kWholeDevice));
  }
}

}  // namespace vitamin::client
