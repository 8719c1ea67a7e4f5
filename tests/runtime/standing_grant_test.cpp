// SPDX-License-Identifier: Apache-2.0
//
// What the answer of an arbiter means for as long as it stands.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/virtual_context.h"
#include "tests/runtime/fixture.h"

namespace vitamin::tests {
namespace {

VITAMIN_KERNEL_WITH((.block_ns = 5000), granted_kernel, unsigned* total, unsigned amount) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, amount); }
}

// Answers what it is told to, to one client that is alone.
class Answering final : public runtime::Arbiter {
 public:
  using Answer = std::function<runtime::GrantTerms(const runtime::ReadyOperation&,
                                                   std::span<const runtime::PartitionId>)>;
  using Hear = std::function<void(const runtime::ExpectedOperation&)>;
  Answering(Answer answer, Hear hear) : answer_(std::move(answer)), hear_(std::move(hear)) {}
  hal::ComputeSet barred(runtime::StreamId) const override { return {}; }
  runtime::GrantTerms grant(const runtime::ReadyOperation& operation,
                            std::span<const runtime::PartitionId> eligible) override {
    return answer_(operation, eligible);
  }
  bool admits(runtime::PartitionId, runtime::StreamId) const override { return true; }
  void submitted(runtime::PartitionId, runtime::StreamId) override {}
  void ended(runtime::PartitionId, runtime::StreamId, std::uint32_t) override {}
  void release(runtime::PartitionId, runtime::StreamId) override {}
  bool streams_share() const override { return true; }
  void expect(const runtime::ExpectedOperation& expected) override {
    if (hear_) hear_(expected);
  }

 private:
  Answer answer_;
  Hear hear_;
};
runtime::MakeArbiter answering(const Answering::Answer& answer, const Answering::Hear& hear = {}) {
  return [=](const hal::DeviceInfo&, runtime::PoolLimits&) {
    return std::make_unique<Answering>(answer, hear);
  };
}

// Whose answers say how far submission may run ahead while they stand.
TEST_CASE("A grant bounds what is submitted ahead, on parts and on the whole device") {
  const auto bounding = [](bool whole) {
    return [whole](const runtime::ReadyOperation&, std::span<const runtime::PartitionId> all) {
      return runtime::GrantTerms{whole ? runtime::kWholeDevice : all.front(),
                                 runtime::kUntilRevoked, 50'000};
    };
  };
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    Fixture f({.make_arbiter = answering(bounding(whole))});
    runtime::Stream& stream = f.stream();
    unsigned total = 0, one = 1;
    unsigned* address = &total;
    for (unsigned i = 0; i < 60; ++i)
      REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(granted_kernel), {&address, &one}) == 0);
    CHECK(f.context->synchronize(stream) == 0);
    CHECK(total == 60);
    std::ptrdiff_t most = 0;
    for (const Stay& stay : f.stays)
      most = std::max(most, std::count_if(f.stays.begin(), f.stays.end(), [&](const Stay& other) {
                        return other.enqueued <= stay.enqueued && other.end > stay.enqueued;
                      }));
    // A kernel of which nothing is known is taken to last 10 us; the first one is what asks.
    CHECK(most <= 6);
    CHECK(most >= 3);  // and no host waits for each of them
    CHECK(f.page.launches.deferred.get() > 30);
  }
}

// A standing grant is not asked for again, and what an engine says of its next step is heard all
// the same, once.
TEST_CASE("A step that begins while a grant stands is told once") {
  struct Heard {
    unsigned asked = 0;
    std::vector<std::uint64_t> told;  // deadlines
  };
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    Heard heard;
    const auto answer = [&](const runtime::ReadyOperation&,
                            std::span<const runtime::PartitionId> all) {
      ++heard.asked;
      return runtime::GrantTerms{whole ? runtime::kWholeDevice : all.front(),
                                 runtime::kUntilRevoked};
    };
    const auto hear = [&](const runtime::ExpectedOperation& expected) {
      heard.told.push_back(expected.deadline_ns);
    };
    Fixture f({.make_arbiter = answering(answer, hear)});
    runtime::Stream& stream = f.stream();
    unsigned total = 0, one = 1;
    unsigned* address = &total;
    const auto launch = [&](unsigned times) {
      for (unsigned i = 0; i < times; ++i)
        REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(granted_kernel), {&address, &one}) == 0);
    };
    const auto say = [&](std::uint64_t deadline_ns) {
      runtime::Advice advice;
      advice.kind = runtime::WorkKind::kDecode;
      advice.deadline_ns = deadline_ns;
      f.context->advise(stream, advice);
    };
    say(1'000'000);
    launch(5);
    const unsigned asked = heard.asked;
    CHECK(asked >= 1);
    CHECK(heard.told.empty());  // with the question
    say(2'000'000);
    launch(5);
    say(0);  // a range within it that knows of no deadline
    launch(3);
    say(3'000'000);
    launch(2);
    f.context->advise(stream, std::nullopt);
    launch(5);
    say(4'000'000);
    CHECK(f.context->synchronize(stream) == 0);  // nothing was launched under it
    CHECK(heard.asked == asked);
    CHECK(heard.told == std::vector<std::uint64_t>{2'000'000, 3'000'000});
    CHECK(total == 20);
  }
}

TEST_CASE("An answer for so many launches stands for one iteration at most, and its end is told") {
  struct Heard {
    unsigned asked = 0, ends = 0;
  };
  for (const std::uint32_t launches : {1U << 30, runtime::kUntilRevoked})
    for (const bool told : {false, true}) {
      CAPTURE(told);
      CAPTURE(launches);
      Heard heard;
      const auto answer = [&](const runtime::ReadyOperation& operation,
                              std::span<const runtime::PartitionId> all) {
        ++heard.asked;
        heard.ends += operation.iteration_end ? 1 : 0;
        return runtime::GrantTerms{all.front(), launches};
      };
      Fixture f({.make_arbiter = answering(answer)});
      runtime::Stream& stream = f.stream();
      unsigned total = 0, one = 1;
      unsigned* address = &total;
      constexpr unsigned kIterations = 10;
      for (unsigned iteration = 0; iteration < kIterations; ++iteration) {
        for (unsigned i = 0; i < 20; ++i)
          REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(granted_kernel), {&address, &one}) == 0);
        if (told) f.context->iteration_ends(stream);
      }
      CHECK(f.context->synchronize(stream) == 0);
      CHECK(total == 20 * kIterations);
      const bool ends = told && launches != runtime::kUntilRevoked;
      CHECK(heard.asked == (ends ? kIterations : 1));
      CHECK(heard.ends == (ends ? kIterations - 1 : 0));
    }
}

// An arbiter elsewhere may be sent nothing: a grant that stood has answered, or the ring was full.
TEST_CASE("What the arbiter did not hear of a step is said again") {
  std::vector<bool> ends;
  std::vector<std::uint64_t> deadlines, told;
  bool hears = false, grants = true;
  const auto answer = [&](const runtime::ReadyOperation& operation,
                          std::span<const runtime::PartitionId> all) {
    ends.push_back(operation.iteration_end);
    deadlines.push_back(operation.deadline_ns);
    runtime::GrantTerms terms = runtime::GrantTerms::none();
    if (grants) terms = {all.front(), 1};
    terms.heard = hears;
    return terms;
  };
  const auto hear = [&](const runtime::ExpectedOperation& expected) {
    told.push_back(expected.deadline_ns);
  };
  Fixture f({.make_arbiter = answering(answer, hear)});
  runtime::Stream& stream = f.stream();
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  const auto launch = [&] {
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(granted_kernel), {&address, &one}) == 0);
  };
  launch();
  f.context->iteration_ends(stream);
  launch();
  hears = true;
  launch();
  launch();
  CHECK(ends == std::vector<bool>{false, true, true, false});
  hears = grants = false;
  runtime::Advice advice;
  advice.deadline_ns = 1'000'000;
  f.context->advise(stream, advice);
  launch();  // deferred
  CHECK(told.empty());
  grants = true;
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(deadlines.back() == 1'000'000);
  CHECK(told == std::vector<std::uint64_t>{1'000'000});  // with the first grant
  CHECK(total == 5);
}

// Elsewhere it would run on the whole device, where no grant counts it.
TEST_CASE("A flushed launch whose grant is used up stays on its partition") {
  unsigned asked = 0;
  const auto answer = [&](const runtime::ReadyOperation&,
                          std::span<const runtime::PartitionId> all) {
    if (asked++ != 0) return runtime::GrantTerms::none();
    return runtime::GrantTerms{all.front(), 20};
  };
  Fixture f({.make_arbiter = answering(answer)});
  runtime::Stream& stream = f.stream();
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  for (unsigned i = 0; i < 22; ++i)
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(granted_kernel), {&address, &one}) == 0);
  CHECK(stream.deferral.operations.size() == 2);
  auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, runtime::Keep::kNo);
  REQUIRE(f.context->bridge(stream, nothing) == 0);
  CHECK(stream.deferral.operations.empty());
  CHECK(f.page.whole[static_cast<unsigned>(runtime::stats::WholeReason::kFlushed)].get() == 0);
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(total == 22);
}

// The report names what the launches waited for.
TEST_CASE(
    "Launches that are flushed while they wait for a grant are not reported as behind the host") {
  const auto none = [](const runtime::ReadyOperation&, std::span<const runtime::PartitionId>) {
    return runtime::GrantTerms{runtime::kNoPartition, 0};
  };
  Fixture f({.make_arbiter = answering(none)});
  runtime::Stream& stream = f.stream();
  unsigned total = 0, one = 1;
  unsigned* address = &total;
  for (unsigned i = 0; i < 3; ++i)
    REQUIRE(f.launch(stream, VITAMIN_SOFT_KERNEL(granted_kernel), {&address, &one}) == 0);
  auto nothing = runtime::call([](void*) { return hal::kNativeOk; }, runtime::Keep::kNo);
  REQUIRE(f.context->bridge(stream, nothing) == 0);
  CHECK(f.context->synchronize(stream) == 0);
  CHECK(total == 3);
  const auto whole = [&](runtime::stats::WholeReason reason) {
    return f.page.whole[static_cast<unsigned>(reason)].get();
  };
  CHECK(whole(runtime::stats::WholeReason::kFlushed) == 3);
  CHECK(whole(runtime::stats::WholeReason::kHostWait) == 0);
}

}  // namespace
}  // namespace vitamin::tests
