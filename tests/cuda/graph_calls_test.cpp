// SPDX-License-Identifier: Apache-2.0
//
// How many calls of the driver an executable of a graph for a part costs, over the software driver:
// launches of other threads may have to wait for each of them.
#include <dlfcn.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "backends/cuda/device.h"
#include "backends/cuda/graph.h"
#include "tests/libcuda/fixture.h"

namespace vitamin::tests {
namespace {

using namespace vitamin::libcuda_tests;  // NOLINT: the software driver as an application calls it

constexpr std::size_t kNodes = 20, kKernels = 2;

// Calls that are counted, by their place in kCounted.
constexpr std::array<const char*, 7> kCounted = {
    "cuGraphKernelNodeGetAttribute", "cuKernelGetParamInfo", "cuKernelGetName",
    "cuGraphNodeFindInClone",        "cuKernelGetFunction",  "cuGraphAddChildGraphNode",
    "cuGraphKernelNodeSetParams_v2"};
std::array<std::size_t, kCounted.size()> counts;
std::array<void*, kCounted.size()> real;
// The software driver tells attributes of any number. This one refuses those that it does not know,
// and each kernel node tells one of them all the same (0: none).
constexpr int kKnownAttributes = 16;
int told_besides = 0;

std::size_t count_of(const char* name) {
  for (std::size_t i = 0; i < kCounted.size(); ++i)
    if (std::string(kCounted[i]) == name) return counts[i];
  FAIL(name);
  return 0;
}

template <class Function>
struct Counted;
template <class... Arguments>
struct Counted<CUresult(Arguments...)> {
  template <std::size_t kAt>
  static CUresult call(Arguments... arguments) {
    ++counts[kAt];
    return reinterpret_cast<CUresult (*)(Arguments...)>(real[kAt])(arguments...);
  }
};

CUresult tell_attribute(CUgraphNode node, CUlaunchAttributeID id, CUlaunchAttributeValue* value) {
  const CUresult status =
      Counted<decltype(cuGraphKernelNodeGetAttribute)>::call<0>(node, id, value);
  const int number = static_cast<int>(id);
  return number > kKnownAttributes && number != told_besides ? CUDA_ERROR_INVALID_VALUE : status;
}

void* lookup(const char* name) {
  static const std::array<void*, kCounted.size()> counting = {
      reinterpret_cast<void*>(&tell_attribute),
      reinterpret_cast<void*>(&Counted<decltype(cuKernelGetParamInfo)>::call<1>),
      reinterpret_cast<void*>(&Counted<decltype(cuKernelGetName)>::call<2>),
      reinterpret_cast<void*>(&Counted<decltype(cuGraphNodeFindInClone)>::call<3>),
      reinterpret_cast<void*>(&Counted<decltype(cuKernelGetFunction)>::call<4>),
      reinterpret_cast<void*>(&Counted<decltype(cuGraphAddChildGraphNode)>::call<5>),
      reinterpret_cast<void*>(&Counted<decltype(cuGraphKernelNodeSetParams)>::call<6>)};
  for (std::size_t i = 0; i < kCounted.size(); ++i)
    if (std::string(kCounted[i]) == name) {
      real[i] = ::dlsym(RTLD_DEFAULT, name);
      return counting[i];
    }
  return ::dlsym(RTLD_DEFAULT, name);
}

std::uint64_t hash_of(const void* bytes, std::size_t count) {
  hal::ContentHash hash;
  hash.bytes(bytes, count);
  return hash.value();
}

// A captured graph of `append` and `add`, in turn, of which executables are made.
class Captured {
 public:
  Captured() {
    REQUIRE_OK(cuLibraryLoadData(&library_, kernel_image().data(), nullptr, nullptr, 0, nullptr,
                                 nullptr, 0));
    const auto api = cuda::Api::load(&lookup);
    REQUIRE(api.has_value());
    api_ = *api;
    auto device = cuda::open_device(api_, {.primary = primary_.get()});
    REQUIRE(device.has_value());
    device_ = std::move(*device);
    capture();
    follow(graph_);
    REQUIRE(look().has_value());
    counts = {};
  }
  ~Captured() {
    told_besides = 0;
    cuGraphDestroy(graph_);
  }
  CUgraph graph() const { return graph_; }
  cuda::RememberedGraph& source() { return *source_; }
  // Makes the source of executables that of another graph of the application.
  void follow(CUgraph graph) {
    auto source =
        cuda::RememberedGraph::clone(api_, graph, {.context = primary_.get(), .hash = &hash_of});
    REQUIRE(source.has_value());
    source_ = std::move(*source);
  }
  hal::Result<hal::GraphContents> look() { return source_->look(device_->inspector()); }
  // The first node, and what it is to be set to so that it appends `value`.
  CUgraphNode first_node() const {
    CUgraphNode node = nullptr;
    std::size_t count = 1;
    REQUIRE_OK(cuGraphGetNodes(graph_, &node, &count));
    return node;
  }
  CUDA_KERNEL_NODE_PARAMS appending(const std::uint32_t& value) {
    CUDA_KERNEL_NODE_PARAMS parameters{};
    REQUIRE_OK(cuGraphKernelNodeGetParams(first_node(), &parameters));
    log_ = words_.get();
    values_ = {&log_, const_cast<std::uint32_t*>(&value)};
    parameters.kernelParams = values_.data();
    return parameters;
  }
  hal::Followed set_first(std::uint32_t value) {
    counts = {};
    return source_->set_kernel(device_->inspector(), first_node(), appending(value));
  }
  // What it answered, of an executable on one unit.
  hal::Result<std::shared_ptr<hal::GraphExecutable>> make(unsigned unit) {
    counts = {};
    auto context = device_->create_context(hal::ComputeSet::range(unit, 1));
    REQUIRE(context.has_value());
    contexts_.push_back(std::move(*context));
    return source_->make(device_->inspector(), *contexts_.back(), nullptr, nullptr);
  }
  // The log after a launch of it: what `append` wrote.
  std::vector<std::uint32_t> run(hal::GraphExecutable& executable) {
    auto queue = contexts_.back()->create_queue(0);
    REQUIRE(queue.has_value());
    REQUIRE_OK(cuMemsetD32(words_.get(), 0, 600));
    REQUIRE_OK(cuCtxSynchronize());
    REQUIRE(executable.launch(**queue) == hal::kNativeOk);
    REQUIRE((*queue)->synchronize() == hal::kNativeOk);
    return words_.all();
  }

 private:
  void capture() {
    REQUIRE_OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (std::uint32_t i = 0; i < kNodes; ++i) {
      CUkernel kernel = nullptr;
      REQUIRE_OK(cuLibraryGetKernel(&kernel, library_, i % kKernels == 0 ? "append" : "add"));
      const CUdeviceptr words = words_.get() + (i % kKernels == 0 ? 0 : 400);
      const auto function = reinterpret_cast<CUfunction>(kernel);
      if (i % kKernels == 0)
        REQUIRE_OK(launch(function, stream_, {}, words, i + 1));
      else
        REQUIRE_OK(launch(function, stream_, {}, words, i + 1, std::uint32_t{10}));
    }
    REQUIRE_OK(cuStreamEndCapture(stream_, &graph_));
  }

  Primary primary_;
  CUlibrary library_ = nullptr;
  DeviceWords words_{600};
  Stream stream_{CU_STREAM_NON_BLOCKING};
  CUdeviceptr log_ = 0;
  std::array<void*, 2> values_{};
  CUgraph graph_ = nullptr;
  cuda::Api api_;
  std::unique_ptr<hal::Device> device_;
  std::vector<std::unique_ptr<hal::PhysicalContext>> contexts_;
  std::shared_ptr<cuda::RememberedGraph> source_;
};

TEST_CASE("An executable asks of each kernel once, and of nodes what the graph's nodes tell") {
  Captured graph;
  const auto first = graph.make(0);
  REQUIRE(first.has_value());
  CHECK(count_of("cuGraphKernelNodeGetAttribute") == kNodes * (cuda::kAttributes - 1));
  const std::vector<std::uint32_t> expected = graph.run(**first);
  CHECK(expected[0] == kNodes / kKernels);
  for (const unsigned unit : {1U, 2U}) {
    const auto further = graph.make(unit);
    REQUIRE(further.has_value());
    CHECK((*further)->shape == (*first)->shape);
    CHECK(count_of("cuGraphKernelNodeGetAttribute") == kNodes * kKnownAttributes);
    CHECK(count_of("cuKernelGetName") == kKernels);
    CHECK(count_of("cuKernelGetFunction") <= kKernels);
    CHECK(count_of("cuKernelGetParamInfo") == (2 + 1) + (3 + 1));  // and the one behind the last
    CHECK(count_of("cuGraphNodeFindInClone") == 0);
    CHECK(graph.run(**further) == expected);
  }
}

TEST_CASE("A kernel that is set again before anything reads the graph costs no call") {
  Captured graph;
  CHECK(graph.set_first(50) == hal::Followed::kNodes);
  CHECK(count_of("cuKernelGetParamInfo") == 3);  // and the one behind the last
  for (const std::uint32_t value : {60U, 70U}) {
    CHECK(graph.set_first(value) == hal::Followed::kNodes);
    CHECK(counts == decltype(counts){});
  }
  const auto made = graph.make(0);
  REQUIRE(made.has_value());
  CHECK(graph.run(**made)[1] == 70);
}

TEST_CASE("A child graph that is set again is left out until it is set behind a read") {
  Captured inner;
  CUgraph outer = nullptr;
  CUgraphNode node = nullptr;
  REQUIRE_OK(cuGraphCreate(&outer, 0));
  REQUIRE_OK(cuGraphAddChildGraphNode(&node, outer, nullptr, 0, inner.graph()));
  inner.follow(outer);
  const auto calls_to_set = [&](std::uint32_t value) {
    const CUDA_KERNEL_NODE_PARAMS parameters = inner.appending(value);
    REQUIRE_OK(cuGraphKernelNodeSetParams(inner.first_node(), &parameters));
    counts = {};
    CHECK(inner.source().set_child(node, inner.graph()) == hal::Followed::kNodes);
    return count_of("cuGraphAddChildGraphNode");
  };
  CHECK(calls_to_set(50) == 1);
  for (const std::uint32_t value : {60U, 70U}) CHECK(calls_to_set(value) == 0);
  for (int i = 0; i < 2; ++i) {
    const auto unknown = inner.look();
    REQUIRE_FALSE(unknown.has_value());
    CHECK(unknown.error().code == hal::Errc::kBusy);
  }
  for (const std::uint32_t value : {80U, 90U}) {
    CHECK(calls_to_set(value) == 1);
    REQUIRE(inner.look().has_value());
    const auto made = inner.make(value / 10);
    REQUIRE(made.has_value());
    CHECK(inner.run(**made)[1] == value);
  }
  cuGraphDestroy(outer);
}

TEST_CASE("An attribute that the nodes of a part tell, and those of the graph do not, is found") {
  Captured graph;
  told_besides = cuda::kAttributes - 1;
  const auto refused = graph.make(0);
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().code == hal::Errc::kInternal);
  told_besides = 0;
  CHECK(graph.make(1).has_value());
}

}  // namespace
}  // namespace vitamin::tests
