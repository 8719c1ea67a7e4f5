// SPDX-License-Identifier: Apache-2.0
//
// Graphs whose executable runs on the partition of whatever queue it is launched to, as HIP's
// chains: nothing is made for parts, and the vendor orders their launches.
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "runtime/audit/audit.h"
#include "tests/runtime/graph_fixture.h"

namespace vitamin::tests {
namespace {

// Of a vendor whose executables run on any queue, and beside themselves.
class AnywhereOperation final : public runtime::GraphOperation {
 public:
  using GraphOperation::GraphOperation;
  std::unique_ptr<runtime::Operation> keep() const override {
    return std::make_unique<AnywhereOperation>(*this);
  }
  std::optional<hal::GraphShape> asked() const override { return chain(4).shape(); }

 private:
  hal::NativeStatus launch_own(void* native) noexcept override {
    return Executable::launch_on(native, 10'000);
  }
};

// A graph whose executable runs anywhere.
struct AnywhereFixture : GraphFixture {
  explicit AnywhereFixture(const FixtureOptions& options, unsigned nodes = 4)
      : GraphFixture(options) {
    anywhere_source->anywhere = true;
    anywhere_source->nodes = nodes;
    anywhere = std::make_shared<runtime::Graph>(anywhere_source);
  }
  ~AnywhereFixture() { context->forget(*anywhere); }
  void launch_anywhere(runtime::Stream& stream) {
    AnywhereOperation operation(anywhere);
    CHECK(context->launch_graph(stream, operation) == hal::kNativeOk);
  }
  std::shared_ptr<Source> anywhere_source = std::make_shared<Source>();
  std::shared_ptr<runtime::Graph> anywhere;
};

TEST_CASE("A graph that runs anywhere goes to each part that is granted, and none is made") {
  // With memory for an executable, and without enough for one.
  for (const std::uint64_t graph_bytes : {std::uint64_t{1} << 30, std::uint64_t{1}}) {
    CAPTURE(graph_bytes);
    AnywhereFixture f({.policy = "random", .graph_bytes = graph_bytes});
    runtime::Stream& stream = f.stream();
    for (int i = 0; i < 40; ++i) f.launch_anywhere(stream);
    f.context->change(
        *f.anywhere, [] { return hal::kNativeOk; },
        [](hal::NativeStatus) { return hal::Followed::kAnew; });
    for (int i = 0; i < 40; ++i) f.launch_anywhere(stream);
    CHECK(f.context->synchronize(stream) == hal::kNativeOk);
    CHECK(f.anywhere_source->looks == 2);
    CHECK(f.anywhere_source->makes == 0);
    CHECK(f.page.graphs.bound.get() + f.whole(runtime::stats::GraphReason::kPolicy) == 80);
    CHECK(f.page.graphs.moved.get() > 40);
    CHECK(f.page.graphs.made.get() == 0);
    CHECK(f.context->destroy(*f.anywhere, [] { return hal::kNativeOk; }) == hal::kNativeOk);
    CHECK(f.page.graphs.held.get() == 0);
    CHECK(f.page.graphs.held_bytes.get() == 0);
  }
}

TEST_CASE("Launches of a graph that runs anywhere wait for their own streams only") {
  for (const bool anywhere : {true, false}) {
    CAPTURE(anywhere);
    AnywhereFixture f({.policy = "static"});
    runtime::Stream &first = f.stream(), &second = f.stream();
    for (int i = 0; i < 10; ++i)
      for (runtime::Stream* stream : {&first, &second}) {
        if (anywhere)
          f.launch_anywhere(*stream);
        else
          CHECK(f.replay(*stream) == hal::kNativeOk);
      }
    for (runtime::Stream* stream : {&first, &second})
      CHECK(f.context->synchronize(*stream) == hal::kNativeOk);
    if (anywhere) CHECK(f.page.graphs.bound.get() == 20);
    CHECK((f.page.other.edges.get() == 0) == anywhere);
  }
}

TEST_CASE("Each node of a graph that runs anywhere has a place in its queue, up to half of these") {
  for (const unsigned nodes : {40U, 100'000U}) {
    CAPTURE(nodes);
    AnywhereFixture f({.policy = "static"}, nodes);
    runtime::Stream& stream = f.stream();
    const std::uint64_t places = std::min(nodes, f.context->device().info().queue_depth / 2);
    for (std::uint64_t launches = 1; launches < 4; ++launches) {
      f.launch_anywhere(stream);
      const std::uint64_t taken = stream.submitted.places;
      if (stream.deferral.operations.empty()) CHECK(taken >= launches * places);
    }
    CHECK(stream.deferral.operations.empty() == (nodes == 40));
    CHECK(f.context->synchronize(stream) == hal::kNativeOk);
    CHECK(f.page.graphs.bound.get() == 3);
  }
}

TEST_CASE("The audit finds a graph that runs anywhere on the part that was granted, unchanged") {
  std::string directory =
      (std::filesystem::temp_directory_path() / "vitamin-graph-XXXXXX").native();
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  {
    FixtureOptions options{.policy = "static"};
    options.audit = runtime::Audit::create(directory.c_str(), 0);
    REQUIRE(options.audit != nullptr);
    AnywhereFixture f(options);
    runtime::Stream& stream = f.stream();
    for (int i = 0; i < 10; ++i) f.launch_anywhere(stream);
    CHECK(f.context->synchronize(stream) == hal::kNativeOk);
    CHECK(f.page.graphs.bound.get() == 10);
    CHECK(options.audit->operations() == 10);
    CHECK(options.audit->changed() == 0);
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace vitamin::tests
