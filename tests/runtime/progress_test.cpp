// SPDX-License-Identifier: Apache-2.0
//
// What an arbiter that wants reports is told of completions.
#include <doctest/doctest.h>

#include <array>
#include <atomic>

#include "backends/soft/kernel.h"
#include "tests/runtime/fixture.h"
#include "tests/time_limit.h"

namespace vitamin::tests {
namespace {

using runtime::PartitionId;
using runtime::StreamId;

VITAMIN_KERNEL_WITH((.block_ns = 5000), count_kernel, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}
VITAMIN_KERNEL(ncclDevKernel_AllReduce, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}
VITAMIN_WAITING_KERNEL(until_kernel, unsigned* flag) {
  VITAMIN_SPIN_UNTIL(vitamin::kernel::load_acquire(flag) != 0);
}

// Written by the runtime's thread.
struct Reports {
  std::atomic<bool> wanted = true;
  PartitionId granted = runtime::kWholeDevice;
  std::array<std::atomic<std::uint64_t>, runtime::kPartitionsMax> work{};
  std::atomic<std::uint64_t> launches = 0, busy_ns = 0, collectives = 0;
  std::atomic<bool> outstanding = false;
  std::atomic<std::uint64_t> asked = 0;  // how often the runtime asked whether they are wanted
};

class Reporting final : public runtime::Arbiter {
 public:
  explicit Reporting(Reports& reports) : reports_(reports) {}
  runtime::GrantTerms grant(const runtime::ReadyOperation&, std::span<const PartitionId>) override {
    return {reports_.granted, runtime::kUntilRevoked};
  }
  bool admits(PartitionId partition, StreamId) const override {
    return partition == reports_.granted;
  }
  void submitted(PartitionId, StreamId) override {}
  void ended(PartitionId, StreamId, std::uint32_t) override {}
  void release(PartitionId, StreamId) override {}
  bool streams_share() const override { return true; }
  hal::ComputeSet barred(StreamId) const override { return {}; }
  bool wants_service() const override { return true; }
  bool reports() const override {
    ++reports_.asked;
    return reports_.wanted;
  }
  void completed(PartitionId partition, StreamId, std::uint32_t launches,
                 std::uint64_t work) override {
    if (partition != runtime::kNoPartition) reports_.work[partition] += work;
    reports_.launches += launches;
  }
  void collective() override { ++reports_.collectives; }
  void busy(std::uint64_t ns) override { reports_.busy_ns += ns; }
  void set_busy(bool busy) override { reports_.outstanding = busy; }

 private:
  Reports& reports_;
};

struct ProgressFixture {
  explicit ProgressFixture(PartitionId granted = runtime::kWholeDevice)
      : f({.clock = soft::Clock::kReal,
           .make_arbiter = [this, granted](const hal::DeviceInfo&, runtime::PoolLimits&) {
             reports.granted = granted;
             return std::make_unique<Reporting>(reports);
           }}) {
    settle();
  }
  // The runtime has asked whether reports are wanted, and has gone by the answer: it asks twice
  // when it serves the arbiter.
  void settle() {
    const std::uint64_t asked = reports.asked;
    REQUIRE(test::eventually([&] { return reports.asked >= asked + 4; }));
  }
  void count(unsigned launches) {
    unsigned* address = &total;
    for (unsigned i = 0; i < launches; ++i)
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(count_kernel), {&address}) == 0);
  }
  bool reported(std::uint64_t launches) {
    return test::eventually([&] { return reports.launches >= launches; }) &&
           reports.launches == launches;
  }

  Reports reports;
  Fixture f;
  runtime::Stream& stream = f.stream();
  unsigned total = 0;
};

TEST_CASE("every launch is reported once on the partition where it ran") {
  for (const PartitionId granted : {runtime::kWholeDevice, PartitionId{3}}) {
    ProgressFixture p(granted);
    std::uint64_t launches = 0;
    for (const unsigned more : {1U, 7U, 450U}) {
      p.count(more);
      CHECK(p.f.context->synchronize(p.stream) == 0);
      CHECK(p.reported(launches += more));
    }
    CHECK(p.total == 458);
    CHECK(p.reports.work[granted] == 458);
    CHECK(test::eventually([&] { return p.reports.busy_ns > 0; }));
  }
}

TEST_CASE("launches of collectives are told, and no others") {
  ProgressFixture p(PartitionId{3});
  unsigned* address = &p.total;
  p.count(4);
  CHECK(p.reports.collectives == 0);
  for (int i = 0; i < 2; ++i)
    REQUIRE(p.f.launch(p.stream, VITAMIN_SOFT_KERNEL(ncclDevKernel_AllReduce), {&address}) == 0);
  p.count(4);
  CHECK(p.f.context->synchronize(p.stream) == 0);
  CHECK(p.reports.collectives == 2);
  CHECK(p.total == 10);
  // A collective runs on the whole device although a partition is granted.
  CHECK(p.f.page.whole[static_cast<unsigned>(runtime::stats::WholeReason::kCollective)].get() == 2);
}

TEST_CASE("launches that have not ended are not reported") {
  ProgressFixture p;
  unsigned flag = 0;
  unsigned* address = &flag;
  p.count(3);
  REQUIRE(p.f.launch(p.stream, VITAMIN_SOFT_KERNEL(until_kernel), {&address}) == 0);
  p.count(5);
  const std::uint64_t busy_ns = p.reports.busy_ns;
  CHECK(test::eventually([&] { return p.reports.busy_ns > busy_ns + 5'000'000; }));
  CHECK(p.reports.launches <= 3);
  std::atomic_ref(flag).store(1);
  CHECK(p.f.context->synchronize(p.stream) == 0);
  CHECK(p.reported(9));
}

TEST_CASE("what waits for the host is busy time and no launch") {
  ProgressFixture p;
  soft::Gate* const gate = p.f.hold(p.stream);
  CHECK(test::eventually([&] { return p.reports.busy_ns > 1'000'000; }));
  p.f.engine->open_gate(gate);
  CHECK(p.f.context->synchronize(p.stream) == 0);
  CHECK(p.reports.launches == 0);
}

// No call waits between the launches, so that each follows the one before on the same queue.
TEST_CASE("work is outstanding from its launch to its end, whichever way it was launched") {
  ProgressFixture p;
  unsigned flags[3] = {};
  std::uint64_t launches = 0;
  for (unsigned& flag : flags) {
    p.count(2);
    CHECK(p.reported(launches += 2));
    CHECK(test::eventually([&] { return !p.reports.outstanding; }));
    unsigned* address = &flag;
    REQUIRE(p.f.launch(p.stream, VITAMIN_SOFT_KERNEL(until_kernel), {&address}) == 0);
    CHECK(test::eventually([&] { return p.reports.outstanding.load(); }));
    std::atomic_ref(flag).store(1);
    CHECK(p.reported(++launches));
    CHECK(test::eventually([&] { return !p.reports.outstanding; }));
  }
  CHECK(p.f.context->synchronize(p.stream) == 0);
}

TEST_CASE("who wants no reports any more is told that nothing is outstanding") {
  ProgressFixture p;
  soft::Gate* const gate = p.f.hold(p.stream);
  CHECK(test::eventually([&] { return p.reports.outstanding.load(); }));
  p.reports.wanted = false;
  CHECK(test::eventually([&] { return !p.reports.outstanding; }));
  p.f.engine->open_gate(gate);
  CHECK(p.f.context->synchronize(p.stream) == 0);
}

TEST_CASE("nothing is reported that is not wanted") {
  ProgressFixture p;
  p.reports.wanted = false;
  p.settle();
  p.count(20);
  CHECK(p.f.context->synchronize(p.stream) == 0);
  CHECK(p.reports.launches == 0);
  CHECK(p.reports.busy_ns == 0);
  p.reports.wanted = true;
  p.settle();
  p.count(20);
  CHECK(p.f.context->synchronize(p.stream) == 0);
  CHECK(p.reported(20));
}

}  // namespace
}  // namespace vitamin::tests
