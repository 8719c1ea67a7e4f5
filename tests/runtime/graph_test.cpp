// SPDX-License-Identifier: Apache-2.0
//
// Graphs as one operation: what describes them, where they go, what is kept for them, and that the
// audit sees an executable that is not the application's graph. The vendor is a stand-in.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "runtime/audit/audit.h"
#include "tests/runtime/graph_fixture.h"
#include "tests/runtime/leases.h"

namespace vitamin::tests {
namespace {

using hal::GraphDescription;
using soft::vitamin_kernel_busy;

TEST_CASE("A graph's shape is that of its nodes and edges, in whatever order they are listed") {
  const GraphDescription graph = chain(6);
  GraphDescription other = graph;
  // The same graph, told backwards.
  std::reverse(other.nodes.begin(), other.nodes.end());
  for (GraphDescription::Edge& edge : other.edges) edge = {5 - edge.from, 5 - edge.to, edge.data};
  std::reverse(other.edges.begin(), other.edges.end());
  CHECK(other.shape() == graph.shape());
  CHECK(graph.shape().nodes == 6);
  CHECK(graph.shape().edges == 5);
}

TEST_CASE("Every mistake in a graph changes its shape") {
  const hal::GraphShape shape = chain(6).shape();
  GraphDescription lost = chain(5);
  CHECK(lost.shape() != shape);
  GraphDescription changed = chain(6);
  changed.nodes[3].exact ^= 1;  // one bit of an argument
  CHECK(changed.shape() != shape);
  CHECK(changed.shape().structure == shape.structure);
  GraphDescription no_edge = chain(6);
  no_edge.edges.pop_back();
  CHECK(no_edge.shape() != shape);
  GraphDescription other_edge = chain(6);
  other_edge.edges.back().from = 2;  // as many edges, another order
  CHECK(other_edge.shape() != shape);
  GraphDescription programmatic = chain(6);
  programmatic.edges[2].data = 1;
  CHECK(programmatic.shape() != shape);
  GraphDescription swapped = chain(6);
  std::swap(swapped.nodes[1], swapped.nodes[2]);
  CHECK(swapped.shape() != shape);
}

TEST_CASE("A graph goes where the policy says from its first launch on") {
  GraphFixture f({.policy = "static"});
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 10; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
  CHECK(f.source->looks == 1);
  CHECK(f.source->makes == 1);
  CHECK(f.page.other.graph_launches.get() == 10);
  CHECK(f.page.graphs.bound.get() == 10);
  CHECK(f.page.other.graphs_timed.get() == 0);  // only what ran without a grant
}

TEST_CASE("A graph is neither looked at nor made where the policy grants the whole device") {
  GraphFixture f({.policy = "fifo"});
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 10; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
  CHECK(f.source->looks == 0);
  CHECK(f.source->makes == 0);
  CHECK(f.page.graphs.bound.get() == 0);
}

TEST_CASE("A graph counts under a lease of the whole device once it is known to end by itself") {
  for (const bool counts_outstanding : {true, false})
    for (const bool collective : {false, true}) {
      CAPTURE(counts_outstanding);
      CAPTURE(collective);
      Leases leases;
      leases.counts_outstanding = counts_outstanding;
      leases.brief = !collective;
      GraphFixture f({.make_arbiter = Leasing::maker(leases)});
      f.source->collective = collective;
      runtime::Stream& stream = f.stream();
      for (int i = 0; i < 10; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
      CHECK(f.source->looks == (counts_outstanding ? 1 : 0));
      CHECK(f.source->makes == 0);
      const std::uint64_t counted = counts_outstanding && !collective ? 10 : 0;
      CHECK(leases.submitted == counted);
      CHECK(f.context->synchronize(stream) == hal::kNativeOk);
      CHECK(leases.ended == counted);
      CHECK(f.page.other.graph_launches.get() == 10);
    }
}

TEST_CASE("A graph that was changed counts under a lease of the whole device as before") {
  using hal::Followed;
  // Any; too little for one executable; none: the graph stays where natively it runs.
  for (const std::uint64_t graph_bytes :
       {std::uint64_t{1} << 30, std::uint64_t{10'000}, std::uint64_t{0}})
    for (const Followed followed : {Followed::kNodes, Followed::kAnew})
      for (const bool collective : {false, true}) {
        CAPTURE(graph_bytes);
        CAPTURE(followed == Followed::kAnew);
        CAPTURE(collective);
        Leases leases;
        GraphFixture f({.graph_bytes = graph_bytes, .make_arbiter = Leasing::maker(leases)});
        f.source->collective = collective;
        runtime::Stream& stream = f.stream();
        std::uint64_t ns = 10'000;
        CHECK(f.launch(stream, VITAMIN_SOFT_KERNEL(busy), {&ns}) == hal::kNativeOk);
        CHECK(leases.submitted == 1);
        for (int i = 0; i < 5; ++i) {
          CHECK(f.replay(stream) == hal::kNativeOk);
          CHECK(f.replay(stream) == hal::kNativeOk);
          f.context->change(
              *f.graph, [] { return hal::kNativeOk; }, [&](hal::NativeStatus) { return followed; });
        }
        CHECK(leases.submitted == (collective ? 1 : 11));
        CHECK(f.source->looks == 5);
        CHECK(f.source->makes == 0);
        CHECK(f.context->synchronize(stream) == hal::kNativeOk);
        CHECK(leases.ended == leases.submitted);
      }
}

TEST_CASE("A graph that too little memory kept goes to parts when a smaller one replaces it") {
  GraphFixture f({.policy = "static", .graph_bytes = 40'000});
  f.source->nodes = 100;
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 3; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.whole(runtime::stats::GraphReason::kMemory) == 3);
  f.source->nodes = 4;
  f.context->change(
      *f.graph, [] { return hal::kNativeOk; },
      [](hal::NativeStatus) { return hal::Followed::kAnew; });
  for (int i = 0; i < 3; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.whole(runtime::stats::GraphReason::kFresh) == 1);
  CHECK(f.page.graphs.bound.get() == 2);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

TEST_CASE("A graph whose executable would have to wait runs on the whole device until it is made") {
  GraphFixture f({.policy = "static"});
  f.source->busy = true;
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 10; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
  CHECK(f.source->makes == 1);
  CHECK(f.whole(runtime::stats::GraphReason::kNotMade) == 1);
  CHECK(f.page.graphs.bound.get() == 9);
}

TEST_CASE("A graph that changes before every launch stays, and goes again when it does not") {
  GraphFixture f({.policy = "static"});
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 10; ++i) {
    CHECK(f.replay(stream) == hal::kNativeOk);
    const auto changed = f.context->change(
        *f.graph, [] { return hal::kNativeOk; },
        [](hal::NativeStatus) { return hal::Followed::kAnew; });
    CHECK(changed == hal::kNativeOk);
  }
  CHECK(f.source->looks == 1);
  CHECK(f.source->makes == 1);
  CHECK(f.page.graphs.bound.get() == 1);
  CHECK(f.whole(runtime::stats::GraphReason::kFresh) == 9);
  for (int i = 0; i < 3; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.source->looks == 2);
  CHECK(f.source->updates == 1);
  CHECK(f.page.graphs.bound.get() == 3);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

TEST_CASE("A graph whose nodes change before every launch goes from its first launch on") {
  GraphFixture f({.policy = "static"});
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 10; ++i) {
    f.context->change(
        *f.graph, [] { return hal::kNativeOk; },
        [](hal::NativeStatus) { return hal::Followed::kNodes; });
    CHECK(f.replay(stream) == hal::kNativeOk);
  }
  CHECK(f.source->makes == 1);
  CHECK(f.source->updates == 9);
  CHECK(f.page.graphs.bound.get() == 10);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

TEST_CASE("A launch that is deferred has its graph made ready before") {
  GraphFixture f({.policy = "static"});
  const auto other = std::make_shared<runtime::Graph>(std::make_shared<Source>());
  runtime::Stream &first = f.stream(), &held = f.stream();
  Operation operation(other);
  CHECK(f.context->launch_graph(first, operation) == hal::kNativeOk);
  soft::Gate* gate = f.hold(held);
  CHECK(f.replay(held) == hal::kNativeOk);
  CHECK(held.deferral.operations.size() == 1);
  CHECK(f.source->looks == 1);
  CHECK(f.source->makes == 1);
  f.engine->open_gate(gate);
  for (runtime::Stream* stream : {&first, &held})
    CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
  CHECK(f.page.graphs.bound.get() == 2);
  f.context->forget(*other);
}

TEST_CASE("A graph behind a launch that waits for a grant is made ready for the part used last") {
  bool grants = true;
  GraphFixture f({.make_arbiter = [&](const hal::DeviceInfo&, runtime::PoolLimits&) {
    return std::make_unique<Parting>(grants);
  }});
  runtime::Stream &first = f.stream(), &waits = f.stream();
  std::uint64_t ns = 10'000;
  CHECK(f.launch(first, VITAMIN_SOFT_KERNEL(busy), {&ns}) == hal::kNativeOk);
  grants = false;
  CHECK(f.launch(waits, VITAMIN_SOFT_KERNEL(busy), {&ns}) == hal::kNativeOk);
  CHECK(f.replay(waits) == hal::kNativeOk);
  CHECK(waits.deferral.operations.size() == 2);
  CHECK(f.source->looks == 1);
  CHECK(f.source->makes == 1);
  grants = true;
  for (runtime::Stream* stream : {&first, &waits})
    CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
  CHECK(f.page.graphs.bound.get() == 1);
}

TEST_CASE("A graph waits for a grant unless its kernels wait for other processes") {
  for (const bool collective : {false, true}) {
    CAPTURE(collective);
    bool grants = true;
    GraphFixture f({.make_arbiter = [&](const hal::DeviceInfo&, runtime::PoolLimits&) {
      return std::make_unique<Parting>(grants);
    }});
    f.source->collective = collective;
    runtime::Stream &first = f.stream(), &waits = f.stream();
    std::uint64_t ns = 10'000;
    CHECK(f.launch(first, VITAMIN_SOFT_KERNEL(busy), {&ns}) == hal::kNativeOk);
    grants = false;
    for (int i = 0; i < 4; ++i) CHECK(f.replay(waits) == hal::kNativeOk);
    CHECK(f.source->looks == 1);
    CHECK(waits.deferral.operations.size() == (collective ? 0 : 4));
    CHECK(f.page.other.graph_launches.get() == (collective ? 4 : 0));
    // What the application changes is changed behind the launches before.
    f.context->change(
        *f.graph, [] { return hal::kNativeOk; },
        [](hal::NativeStatus) { return hal::Followed::kNodes; });
    CHECK(f.page.other.graph_launches.get() == 4);
    for (int i = 0; i < 4; ++i) CHECK(f.replay(waits) == hal::kNativeOk);
    CHECK(f.source->looks == (collective ? 1 : 2));
    grants = true;
    for (runtime::Stream* stream : {&first, &waits})
      CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
    CHECK(f.page.other.graph_launches.get() == 8);
    CHECK(f.page.graphs.bound.get() == (collective ? 0 : 4));
    CHECK(f.whole(runtime::stats::GraphReason::kNoGrant) == 0);
  }
}

// Grants one partition until it is revoked, and keeps the deadlines of the steps that it is told
// of.
class Hearing final : public runtime::Arbiter {
 public:
  Hearing(bool whole, std::vector<std::uint64_t>& told) : whole_(whole), told_(told) {}
  hal::ComputeSet barred(runtime::StreamId) const override { return {}; }
  runtime::GrantTerms grant(const runtime::ReadyOperation& operation,
                            std::span<const runtime::PartitionId> eligible) override {
    runtime::GrantTerms terms{whole_ ? runtime::kWholeDevice : eligible.front(),
                              runtime::kUntilRevoked};
    terms.heard = operation.deadline_ns != 0;
    if (terms.heard) told_.push_back(operation.deadline_ns);
    return terms;
  }
  bool admits(runtime::PartitionId, runtime::StreamId) const override { return true; }
  void submitted(runtime::PartitionId, runtime::StreamId) override {}
  void ended(runtime::PartitionId, runtime::StreamId, std::uint32_t) override {}
  void release(runtime::PartitionId, runtime::StreamId) override {}
  bool streams_share() const override { return true; }
  void expect(const runtime::ExpectedOperation& expected) override {
    told_.push_back(expected.deadline_ns);
  }

 private:
  const bool whole_;
  std::vector<std::uint64_t>& told_;
};

TEST_CASE("A step whose launches are graphs is announced as one of kernels is, once") {
  for (const bool whole : {false, true})
    for (const bool stays : {false, true}) {
      CAPTURE(whole);
      CAPTURE(stays);
      std::vector<std::uint64_t> told;
      GraphFixture f({.graph_bytes = stays ? 0 : std::size_t{1} << 30,
                      .make_arbiter = [&](const hal::DeviceInfo&, runtime::PoolLimits&) {
                        return std::make_unique<Hearing>(whole, told);
                      }});
      runtime::Stream& stream = f.stream();
      runtime::Advice step{.kind = runtime::WorkKind::kDecode};
      for (const std::uint64_t deadline : {1'000, 1'000, 2'000, 3'000, 3'000}) {
        step.deadline_ns = deadline;
        REQUIRE(f.replay(stream, &step) == 0);
      }
      REQUIRE(f.replay(stream) == 0);  // of no step
      step.deadline_ns = 4'000;
      auto unfollowed = runtime::call([](void*) { return hal::kNativeOk; }, runtime::Keep::kNo);
      REQUIRE(f.context->bridge_graph(stream, unfollowed, runtime::CallKind::kWork,
                                      runtime::stats::GraphReason::kNodes, &step) == 0);
      CHECK(f.context->synchronize(stream) == 0);
      CHECK(told == std::vector<std::uint64_t>{1'000, 2'000, 3'000, 4'000});
    }
}

TEST_CASE("What a capture submits at once goes where it would go anyway") {
  GraphFixture f({.policy = "random"});
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 40; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(stream.deferral.operations.size() > 10);
  auto begin = runtime::call([](void*) { return hal::kNativeOk; });
  CHECK(f.context->begin_capture(stream, begin) == hal::kNativeOk);
  CHECK(stream.deferral.operations.empty());
  CHECK(f.whole(runtime::stats::GraphReason::kHostWait) == 0);
  CHECK(f.page.graphs.bound.get() + f.whole(runtime::stats::GraphReason::kPolicy) == 40);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

TEST_CASE("Executables are brought up to date, and gone when the graph is") {
  GraphFixture f({.policy = "static"});
  runtime::Stream& stream = f.stream();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
    f.context->change(
        *f.graph, [] { return hal::kNativeOk; },
        [](hal::NativeStatus) { return hal::Followed::kAnew; });
  }
  CHECK(f.source->makes == 1);
  CHECK(f.source->updates == 2);
  CHECK(f.source->alive == 1);
  CHECK(f.context->destroy(*f.graph, [] { return hal::kNativeOk; }) == hal::kNativeOk);
  CHECK(f.source->alive == 0);
  CHECK(f.page.graphs.held.get() == 0);
  CHECK(f.page.graphs.held_bytes.get() == 0);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

TEST_CASE("A change that is not followed keeps the graph on the whole device") {
  GraphFixture f({.policy = "static"});
  runtime::Stream& stream = f.stream();
  for (int i = 0; i < 5; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  const std::uint64_t bound = f.page.graphs.bound.get();
  CHECK(bound > 0);
  f.context->change(
      *f.graph, [] { return hal::kNativeOk; },
      [](hal::NativeStatus) { return hal::Followed::kNot; });
  for (int i = 0; i < 5; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.page.graphs.bound.get() == bound);
  CHECK(f.whole(runtime::stats::GraphReason::kUnfollowed) == 5);
  // Changes of single nodes do not tell what else it holds.
  const auto change = [&](hal::Followed followed) {
    f.context->change(
        *f.graph, [] { return hal::kNativeOk; }, [&](hal::NativeStatus) { return followed; });
  };
  for (const hal::Followed followed : {hal::Followed::kNodes, hal::Followed::kAnew}) {
    change(followed);
    for (int i = 0; i < 5; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  }
  CHECK(f.page.graphs.bound.get() == bound);
  CHECK(f.whole(runtime::stats::GraphReason::kUnfollowed) == 15);
  change(hal::Followed::kReplaced);
  for (int i = 0; i < 5; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.page.graphs.bound.get() == bound + 4);
  change(hal::Followed::kNot);
  CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.whole(runtime::stats::GraphReason::kUnfollowed) == 16);
  change(hal::Followed::kReplacedAlike);
  for (int i = 0; i < 5; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.page.graphs.bound.get() == bound + 9);
  CHECK(f.whole(runtime::stats::GraphReason::kUnfollowed) == 16);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

TEST_CASE("A graph that is unknown until it is changed again is on the whole device until then") {
  GraphFixture f({.policy = "static"});
  runtime::Stream& stream = f.stream();
  const auto change = [&] {
    f.context->change(
        *f.graph, [] { return hal::kNativeOk; },
        [](hal::NativeStatus) { return hal::Followed::kNodes; });
  };
  for (int i = 0; i < 3; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  const std::uint64_t bound = f.page.graphs.bound.get();
  CHECK(bound > 0);
  f.source->unknown = true;
  change();
  const unsigned looks = f.source->looks;
  for (int i = 0; i < 3; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.source->looks == looks + 1);
  CHECK(f.page.graphs.bound.get() == bound);
  CHECK(f.whole(runtime::stats::GraphReason::kFresh) == 3);
  f.source->unknown = false;
  for (int i = 0; i < 3; ++i) {
    change();
    CHECK(f.replay(stream) == hal::kNativeOk);
  }
  CHECK(f.page.graphs.bound.get() >= bound + 2);  // the first one comes behind the program's own
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
}

TEST_CASE("Launches of one graph from two streams come one behind the other") {
  GraphFixture f({.policy = "random"});
  runtime::Stream* streams[] = {&f.stream(), &f.stream()};
  for (int i = 0; i < 40; ++i) CHECK(f.replay(*streams[i % 2]) == hal::kNativeOk);
  for (runtime::Stream* stream : streams) CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
  CHECK(f.page.graphs.bound.get() > 10);
  REQUIRE(f.stays.size() == 40);
  for (std::size_t i = 1; i < f.stays.size(); ++i) CHECK(f.stays[i].start >= f.stays[i - 1].end);
}

TEST_CASE("A launch that waits for its turn holds back the next one of the same graph") {
  GraphFixture f({.policy = "static"});
  runtime::Stream &held = f.stream(), &other = f.stream();
  soft::Gate* gate = f.hold(held);
  CHECK(f.replay(held) == hal::kNativeOk);
  CHECK(f.replay(other) == hal::kNativeOk);
  for (int i = 0; i < 1000; ++i) f.engine->advance();
  CHECK(f.context->query(other) == f.context->device().errors().not_ready());
  CHECK(f.stays.empty());
  f.engine->open_gate(gate);
  for (runtime::Stream* stream : {&held, &other})
    CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
  REQUIRE(f.stays.size() == 2);
  CHECK(f.stays[1].start >= f.stays[0].end);
}

TEST_CASE("Launches behind a gate on a shared whole device come one behind the other, undeferred") {
  GraphFixture f({.policy = "fifo"});
  runtime::Stream &held = f.stream(), &other = f.stream();
  for (int i = 0; i < 3; ++i)  // until it is settled
    for (runtime::Stream* stream : {&held, &other}) CHECK(f.replay(*stream) == hal::kNativeOk);
  for (runtime::Stream* stream : {&held, &other})
    CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
  f.stays.clear();
  soft::Gate* gate = f.hold(held);
  for (runtime::Stream* stream : {&held, &other, &held, &other})
    CHECK(f.replay(*stream) == hal::kNativeOk);
  CHECK(f.page.other.graph_launches.get() == 10);
  for (int i = 0; i < 1000; ++i) f.engine->advance();
  CHECK(f.stays.empty());
  f.engine->open_gate(gate);
  for (runtime::Stream* stream : {&held, &other})
    CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
  CHECK(f.page.graphs.deferred.get() == 0);
  REQUIRE(f.stays.size() == 4);
  for (std::size_t i = 1; i < f.stays.size(); ++i) CHECK(f.stays[i].start >= f.stays[i - 1].end);
}

TEST_CASE("An executable that goes to make room while it is brought up to date is kept then") {
  // Enough for one executable of four nodes.
  GraphFixture f({.policy = "static", .graph_bytes = 40'000});
  const auto other = std::make_shared<runtime::Graph>(std::make_shared<Source>());
  runtime::Stream& stream = f.stream();
  CHECK(f.replay(stream) == hal::kNativeOk);
  f.context->change(
      *f.graph, [] { return hal::kNativeOk; },
      [](hal::NativeStatus) { return hal::Followed::kAnew; });
  // Unsettled: the first launch after a change stays.
  CHECK(f.replay(stream) == hal::kNativeOk);
  f.source->meanwhile = [&] {
    Operation operation(other);
    CHECK(f.context->launch_graph(stream, operation) == hal::kNativeOk);
    CHECK(f.page.graphs.evicted.get() == 1);
  };
  CHECK(f.replay(stream) == hal::kNativeOk);
  CHECK(f.source->updates == 1);
  CHECK(f.page.graphs.bound.get() == 3);
  CHECK(f.page.graphs.made.get() == 3);  // that one twice
  CHECK(f.page.graphs.evicted.get() == 2);
  CHECK(f.page.graphs.held.get() == 1);
  CHECK(f.page.graphs.held_bytes.get() <= 40'000);
  CHECK(f.context->synchronize(stream) == hal::kNativeOk);
  f.context->forget(*other);
}

std::pair<std::uint64_t, std::uint64_t> audited(unsigned lost) {
  std::string directory =
      (std::filesystem::temp_directory_path() / "vitamin-graph-XXXXXX").native();
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  std::pair<std::uint64_t, std::uint64_t> found;
  {
    FixtureOptions options{.policy = "static"};
    options.audit = runtime::Audit::create(directory.c_str(), 0);
    REQUIRE(options.audit != nullptr);
    GraphFixture f(options);
    f.source->lost = lost;
    runtime::Stream& stream = f.stream();
    for (int i = 0; i < 10; ++i) CHECK(f.replay(stream) == hal::kNativeOk);
    CHECK(f.context->synchronize(stream) == hal::kNativeOk);
    CHECK(f.page.graphs.bound.get() == 10);
    found = {options.audit->operations(), options.audit->changed()};
  }
  std::filesystem::remove_all(directory);
  return found;
}

TEST_CASE("The audit finds an executable that lost a node") {
  CHECK(audited(0) == std::pair<std::uint64_t, std::uint64_t>(10, 0));
  CHECK(audited(1) == std::pair<std::uint64_t, std::uint64_t>(10, 10));
}

VITAMIN_KERNEL(add_kernel, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}

TEST_CASE("Changing or destroying a graph submits its own deferred launches and no others") {
  GraphFixture f({});
  runtime::Stream& replayed = f.stream();
  runtime::Stream& other = f.stream();
  soft::Gate* gates[] = {f.hold(replayed), f.hold(other)};
  unsigned total = 0;
  unsigned* address = &total;
  const auto change = [&] {
    return f.context->change(
        *f.graph, [] { return hal::kNativeOk; },
        [](hal::NativeStatus) { return hal::Followed::kAnew; });
  };
  const auto destroy = [&] { return f.context->destroy(*f.graph, [] { return hal::kNativeOk; }); };
  for (unsigned i = 0; i < 5; ++i)
    REQUIRE(f.launch(other, VITAMIN_SOFT_KERNEL(add_kernel), {&address}) == 0);
  CHECK(change() == 0);
  CHECK(other.deferral.operations.size() == 5);

  REQUIRE(f.launch(replayed, VITAMIN_SOFT_KERNEL(add_kernel), {&address}) == 0);
  REQUIRE(f.replay(replayed) == 0);
  REQUIRE(f.launch(replayed, VITAMIN_SOFT_KERNEL(add_kernel), {&address}) == 0);
  CHECK(replayed.deferral.operations.size() == 3);
  CHECK(change() == 0);
  CHECK(replayed.deferral.operations.size() == 1);
  CHECK(other.deferral.operations.size() == 5);
  REQUIRE(f.replay(replayed) == 0);
  CHECK(destroy() == 0);
  CHECK(replayed.deferral.operations.empty());
  CHECK(other.deferral.operations.size() == 5);
  for (soft::Gate* gate : gates) f.engine->open_gate(gate);
  CHECK(f.context->synchronize(replayed) == 0);
  CHECK(f.context->synchronize(other) == 0);
  CHECK(total == 7);
}

TEST_CASE("A launch does not wait for a gate that was closed behind what it comes behind") {
  GraphFixture f({});
  runtime::Stream& first = f.stream();
  runtime::Stream& second = f.stream();
  soft::Gate* before = f.hold(first);
  REQUIRE(f.replay(first) == 0);
  REQUIRE(f.replay(second) == 0);  // behind the launch of the same executable
  soft::Gate* behind = f.hold(first);
  CHECK(second.deferral.operations.size() == 1);
  f.engine->open_gate(before);
  CHECK(f.context->synchronize(second) == 0);  // hangs if it does
  f.engine->open_gate(behind);
  CHECK(f.context->synchronize(first) == 0);
}

}  // namespace
}  // namespace vitamin::tests
