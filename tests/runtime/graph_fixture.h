// SPDX-License-Identifier: Apache-2.0
//
// Graphs over the software device, with a vendor that is a stand-in.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "hal/graph.h"
#include "tests/runtime/fixture.h"
#include "tests/soft/kernels.h"

namespace vitamin::tests {
namespace {

using hal::GraphDescription;
using soft::vitamin_kernel_busy;

GraphDescription chain(unsigned nodes) {
  GraphDescription graph;
  for (std::uint32_t i = 0; i < nodes; ++i) {
    graph.nodes.push_back({100 + i, 200 + i, 300 + i});
    if (i > 0) graph.edges.push_back({i - 1, i, 0});
  }
  return graph;
}

// By its name a kernel that waits for other processes.
VITAMIN_KERNEL(ncclDevKernel_graph, unsigned* total) {
  VITAMIN_ONCE { vitamin::kernel::atomic_add(total, 1U); }
}

// Stands for the vendor's executable of one busy kernel.
class Executable final : public hal::GraphExecutable {
 public:
  Executable(std::atomic<unsigned>& alive, std::uint64_t ns) : alive_(alive), ns_(ns) { ++alive_; }
  ~Executable() override { --alive_; }
  hal::NativeStatus launch(hal::Queue& queue) noexcept override {
    // Through the native handle, as a graph is: the audit must not take it for a launch.
    return launch_on(queue.native(), ns_);
  }
  static hal::NativeStatus launch_on(void* native, std::uint64_t ns) {
    soft::Launch launch;
    launch.kernel = VITAMIN_SOFT_KERNEL(busy);
    launch.block = {32, 1, 1};
    launch.parameters = &ns;
    return engine->launch(static_cast<soft::Queue*>(native), launch);
  }
  static inline soft::Engine* engine = nullptr;

 private:
  std::atomic<unsigned>& alive_;
  std::uint64_t ns_;
};

class Source final : public hal::GraphSource {
 public:
  hal::Result<hal::GraphContents> look(hal::KernelInspector&) override {
    const InCall in_call(*this);
    ++looks;
    if (unknown) return hal::fail(hal::Errc::kBusy, "the application has to change it first");
    if (const auto now = std::exchange(looking, {})) now();
    hal::KernelLaunch launch;
    launch.kernel =
        collective ? VITAMIN_SOFT_KERNEL(ncclDevKernel_graph) : VITAMIN_SOFT_KERNEL(busy);
    launch.block = {32, 1, 1};
    return hal::GraphContents{chain(nodes).shape(), {launch}};
  }
  hal::Result<std::shared_ptr<hal::GraphExecutable>> make(
      hal::KernelInspector&, hal::PhysicalContext& part,
      std::shared_ptr<hal::GraphExecutable> older, hal::WaitsUntil waits) override {
    const InCall in_call(*this);
    if (busy && waits == nullptr)
      return hal::fail(hal::Errc::kBusy, "the application makes a call");
    while (stuck && waits != nullptr && !waits->load()) std::this_thread::yield();
    if (stuck) return hal::fail(hal::Errc::kBusy, "the application still makes its call");
    if (const auto now = std::exchange(meanwhile, {})) now();
    if (making)
      if (const hal::Status may = making(part); !may) return tl::unexpected(may.error());
    if (older != nullptr) {
      ++updates;
      return older;
    }
    ++makes;
    auto made = std::make_shared<Executable>(alive, 10'000);
    made->shape = chain(nodes - lost).shape();
    return made;
  }
  bool runs_anywhere() const override { return anywhere; }
  bool anywhere = false;  // before a graph is made of it
  unsigned nodes = 4, lost = 0;
  bool unknown = false;             // until the application changes it
  std::atomic<bool> busy{false};    // a call of the application is made ...
  std::atomic<bool> stuck{false};   // ... which does not end
  bool collective = false;          // it holds a kernel that waits for other processes
  std::function<void()> looking;    // called once, in the middle of look()
  std::function<void()> meanwhile;  // called once, in the middle of make()
  // Called by each make(), which answers its error.
  std::function<hal::Status(hal::PhysicalContext&)> making;
  unsigned looks = 0, makes = 0, updates = 0;
  std::atomic<unsigned> alive{0};       // threads of the application destroy executables, too
  std::atomic<bool> overlapped{false};  // two calls of it

 private:
  struct InCall {
    explicit InCall(Source& of) : source(of) {
      if (source.calls_++ != 0) source.overlapped = true;
    }
    ~InCall() { --source.calls_; }
    Source& source;
  };
  std::atomic<int> calls_{0};
};

class Operation final : public runtime::GraphOperation {
 public:
  using GraphOperation::GraphOperation;
  std::unique_ptr<runtime::Operation> keep() const override {
    return std::make_unique<Operation>(*this);
  }
  std::optional<hal::GraphShape> asked() const override { return chain(4).shape(); }

 private:
  // As every vendor's driver, it keeps one executable from running beside itself.
  hal::NativeStatus launch_own(void* native) noexcept override {
    auto* const queue = static_cast<soft::Queue*>(native);
    if (Executable::engine->wait(queue, newest) != 0) return hal::kNativeOk + 1;
    const hal::NativeStatus status = Executable::launch_on(native, 10'000);
    return Executable::engine->record(queue, newest) != 0 ? hal::kNativeOk + 1 : status;
  }

 public:
  static inline soft::Event* newest = nullptr;
};

struct GraphFixture : Fixture {
  explicit GraphFixture(const FixtureOptions& options) : Fixture(options) {
    Executable::engine = engine;
    REQUIRE(engine->create_event(&Operation::newest) == 0);
  }
  ~GraphFixture() { context->forget(*graph); }
  hal::NativeStatus replay(runtime::Stream& stream, const runtime::Advice* advice = nullptr) {
    Operation operation(graph, std::nullopt, advice);
    return context->launch_graph(stream, operation);
  }
  std::uint64_t whole(runtime::stats::GraphReason reason) const {
    return page.graph_whole[static_cast<unsigned>(reason)].get();
  }
  std::shared_ptr<Source> source = std::make_shared<Source>();
  std::shared_ptr<runtime::Graph> graph = std::make_shared<runtime::Graph>(source);
};

// Grants a part until it is revoked, or nothing.
class Parting final : public runtime::Arbiter {
 public:
  explicit Parting(const bool& grants) : grants_(grants) {}
  hal::ComputeSet barred(runtime::StreamId) const override { return {}; }
  runtime::GrantTerms grant(const runtime::ReadyOperation&,
                            std::span<const runtime::PartitionId> eligible) override {
    if (!grants_) return {runtime::kNoPartition, 0};
    return {eligible.front(), runtime::kUntilRevoked};
  }
  bool admits(runtime::PartitionId, runtime::StreamId) const override { return true; }
  void submitted(runtime::PartitionId, runtime::StreamId) override {}
  void ended(runtime::PartitionId, runtime::StreamId, std::uint32_t) override {}
  void release(runtime::PartitionId, runtime::StreamId) override {}
  bool streams_share() const override { return true; }

 private:
  const bool& grants_;
};

}  // namespace
}  // namespace vitamin::tests
