// SPDX-License-Identifier: Apache-2.0
//
// More batches of a stream are outstanding than Completion closes freely.
#include <doctest/doctest.h>

#include <map>

#include "backends/soft/kernel.h"
#include "tests/runtime/fixture.h"

namespace vitamin::tests {
namespace {

VITAMIN_KERNEL(count_batches_kernel, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}

struct Counts {
  std::map<runtime::PartitionId, std::uint64_t> submitted, ended;
};

// Grants the narrowest partition until further notice.
class Narrow final : public runtime::Arbiter {
 public:
  explicit Narrow(Counts& counts) : counts_(counts) {}
  runtime::GrantTerms grant(const runtime::ReadyOperation&,
                            std::span<const runtime::PartitionId> eligible) override {
    return {eligible.front(), runtime::kUntilRevoked};
  }
  bool admits(runtime::PartitionId, runtime::StreamId) const override { return true; }
  void submitted(runtime::PartitionId partition, runtime::StreamId) override {
    ++counts_.submitted[partition];
  }
  void ended(runtime::PartitionId partition, runtime::StreamId, std::uint32_t operations) override {
    if (operations > 0) counts_.ended[partition] += operations;
  }
  void release(runtime::PartitionId, runtime::StreamId) override {}
  bool streams_share() const override { return true; }
  hal::ComputeSet barred(runtime::StreamId) const override { return {}; }

 private:
  Counts& counts_;
};

TEST_CASE("work ends on its partition however many batches are outstanding") {
  Counts counts;
  unsigned total = 0;
  unsigned* address = &total;
  FixtureOptions options;
  options.markers_take_places = false;  // else the queue is full before
  options.make_arbiter = [&](const hal::DeviceInfo&, runtime::PoolLimits&) {
    return std::make_unique<Narrow>(counts);
  };
  Fixture f(options);
  runtime::Stream& stream = f.stream();
  const auto add = [&] {
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(count_batches_kernel), {&address}) == 0);
  };
  // The clock of the device stands still while nothing is waited for. Each record ends a batch.
  add();
  soft::Event* native = nullptr;
  REQUIRE(f.engine->create_event(&native) == soft::kOk);
  runtime::EventState event;
  auto record = runtime::call(
      [&](void* q) { return f.engine->record(static_cast<soft::Queue*>(q), native); });
  for (int i = 0; i < 1'200; ++i) REQUIRE(f.context->record(stream, event, record) == 0);
  add();
  SUBCASE("a call that goes to the whole device") {
    auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, runtime::Keep::kNo);
    REQUIRE(f.context->bridge(stream, nothing) == 0);
  }
  SUBCASE("a capture, before which only a marker says where the tail is") {
    auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, runtime::Keep::kNo);
    REQUIRE(f.context->begin_capture(stream, nothing) == 0);
  }
  CHECK(counts.submitted.size() == 1);
  CHECK(counts.submitted.begin()->second == 2);
  CHECK(counts.submitted.begin()->first != runtime::kWholeDevice);
  CHECK(counts.ended.empty());
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(total == 2);
  CHECK(counts.ended == counts.submitted);
  f.context->forget(event);
}

}  // namespace
}  // namespace vitamin::tests
