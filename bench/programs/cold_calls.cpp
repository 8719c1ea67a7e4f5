// SPDX-License-Identifier: Apache-2.0
//
// What the calls of a host-bound program take when their code and data are in no cache: a line of
// JSON for each kind of call, with the nanoseconds warm and cold. Cold is what a framework's calls
// are that does its own work between two of them. Each is the lowest tenth of many, which a busy
// machine leaves alone.
#include <sys/mman.h>

#include <algorithm>
#include <string_view>

#include "driver.h"

namespace {

using bench::now_ns;

constexpr int kRounds = 60, kWarmRounds = 10;
constexpr int kKernelNodes = 16, kChildNodes = 4;

// Larger than the second-level caches and the tables of translations of a core.
class Cooler {
 public:
  Cooler() : data_(kDataBytes) {
    void* const pages =
        ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) bench::Driver::stop("no memory for code");
    ::madvise(pages, kPages * kPage, MADV_NOHUGEPAGE);
    code_ = static_cast<unsigned char*>(pages);
    for (std::size_t i = 0; i < kPages; ++i) *function(i) = 0xc3;  // ret
    if (::mprotect(pages, kPages * kPage, PROT_READ | PROT_EXEC) != 0)
      bench::Driver::stop("memory cannot be made executable");
  }
  void cool() {
    for (std::size_t i = 0; i < kDataBytes; i += kLine) ++data_[i];
    for (std::size_t i = 0; i < kPages; ++i) reinterpret_cast<void (*)()>(function(i))();
  }

 private:
  static constexpr std::size_t kDataBytes = 4 << 20, kPages = 3000, kPage = 4096, kLine = 64;
  unsigned char* function(std::size_t i) { return code_ + i * kPage + i * kLine % kPage; }
  std::vector<unsigned char> data_;
  unsigned char* code_;
};

void nothing(void*) {}

class Calls {
 public:
  explicit Calls(bench::Device& device)
      : d_(device),
        add_kernel_(find<decltype(&::cuGraphAddKernelNode)>("cuGraphAddKernelNode_v2")),
        add_child_(find<decltype(&::cuGraphAddChildGraphNode)>("cuGraphAddChildGraphNode")),
        set_kernel_(
            find<decltype(&::cuGraphExecKernelNodeSetParams)>("cuGraphExecKernelNodeSetParams_v2")),
        set_child_(find<decltype(&::cuGraphExecChildGraphNodeSetParams)>(
            "cuGraphExecChildGraphNodeSetParams")),
        create_(find<decltype(&::cuGraphCreate)>("cuGraphCreate")),
        launch_graph_(find<decltype(&::cuGraphLaunch)>("cuGraphLaunch")),
        copy_(find<decltype(&::cuMemcpyDtoHAsync)>("cuMemcpyDtoHAsync_v2")),
        host_(find<decltype(&::cuLaunchHostFunc)>("cuLaunchHostFunc")),
        kernel_(device.kernel("add_one")),
        stream_(device.stream()),
        event_(device.event()),
        words_(device.words(1)),
        back_(device.pinned<std::uint32_t>(1)) {
    parameters_.func = kernel_;
    parameters_.gridDimX = parameters_.gridDimY = parameters_.gridDimZ = 1;
    parameters_.blockDimX = parameters_.blockDimY = parameters_.blockDimZ = 1;
    parameters_.kernelParams = arguments_;
    make_graph();
  }

  // A round as XLA makes them: every node of a graph is set, and it is launched.
  void round() {
    for (const CUgraphNode node : kernels_)
      time("set kernel node", [&] { return set_kernel_(executable_, node, &parameters_); });
    for (std::size_t i = 0; i < children_.size(); ++i)
      time("set child graph node",
           [&] { return set_child_(executable_, children_[i], graphs_[i]); });
    time("launch graph", [&] { return launch_graph_(executable_, stream_); });
    for (int i = 0; i < 4; ++i) {
      time("launch kernel", [&] {
        return d_.cu.cuLaunchKernel(kernel_, 1, 1, 1, 1, 1, 1, 0, stream_, arguments_, nullptr);
      });
      time("record event", [&] { return d_.cu.cuEventRecord(event_, stream_); });
      time("copy to the host", [&] { return copy_(back_, words_, sizeof *back_, stream_); });
      time("host function", [&] { return host_(stream_, nothing, nullptr); });
    }
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
  }

  void begin(Cooler* cooler) {
    cooler_ = cooler;
    for (Kind& kind : kinds_) kind.times.clear();
  }
  // The lowest tenth of each kind, in the order in which round() has them.
  struct Kind {
    const char* name;
    std::vector<std::uint64_t> times;
    std::uint64_t lowest_tenth() {
      const auto at = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 10);
      std::nth_element(times.begin(), at, times.end());
      return *at;
    }
  };
  std::vector<Kind>& kinds() { return kinds_; }

 private:
  template <class Function>
  Function find(const char* name) const {
    return d_.cu.find<Function>(name);
  }

  void make_graph() {
    const auto instantiate =
        find<decltype(&::cuGraphInstantiateWithFlags)>("cuGraphInstantiateWithFlags");
    CUgraph graph = nullptr;
    CUgraphNode last = nullptr;
    BENCH_MUST(create_(&graph, 0));
    for (int i = 0; i < kKernelNodes; ++i) {
      CUgraphNode node = nullptr;
      BENCH_MUST(add_kernel_(&node, graph, &last, i == 0 ? 0 : 1, &parameters_));
      kernels_.push_back(last = node);
    }
    for (int i = 0; i < kChildNodes; ++i) {
      CUgraph child = nullptr;
      CUgraphNode node = nullptr, inside = nullptr;
      BENCH_MUST(create_(&child, 0));
      BENCH_MUST(add_kernel_(&inside, child, nullptr, 0, &parameters_));
      BENCH_MUST(add_child_(&node, graph, &last, 1, child));
      graphs_.push_back(child);
      children_.push_back(last = node);
    }
    BENCH_MUST(instantiate(&executable_, graph, 0));
  }

  template <class Call>
  void time(const char* name, Call call) {
    auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& known) {
      return known.name == std::string_view(name);
    });
    if (kind == kinds_.end()) kind = kinds_.insert(kind, {name, {}});
    if (cooler_ != nullptr) cooler_->cool();
    const std::uint64_t begun = now_ns();
    const CUresult answer = call();
    const std::uint64_t ended = now_ns();
    bench::check_at(answer, name, 0);
    kind->times.push_back(ended - begun);
  }

  bench::Device& d_;
  decltype(&::cuGraphAddKernelNode) add_kernel_;
  decltype(&::cuGraphAddChildGraphNode) add_child_;
  decltype(&::cuGraphExecKernelNodeSetParams) set_kernel_;
  decltype(&::cuGraphExecChildGraphNodeSetParams) set_child_;
  decltype(&::cuGraphCreate) create_;
  decltype(&::cuGraphLaunch) launch_graph_;
  decltype(&::cuMemcpyDtoHAsync) copy_;
  decltype(&::cuLaunchHostFunc) host_;
  CUfunction kernel_;
  CUstream stream_;
  CUevent event_;
  CUdeviceptr words_;
  std::uint32_t* back_;
  void* arguments_[1] = {&words_};
  CUDA_KERNEL_NODE_PARAMS parameters_{};
  std::vector<CUgraphNode> kernels_, children_;
  std::vector<CUgraph> graphs_;
  CUgraphExec executable_ = nullptr;
  Cooler* cooler_ = nullptr;
  std::vector<Kind> kinds_;
};

std::vector<std::uint64_t> measure(Calls& calls, Cooler* cooler) {
  calls.begin(cooler);
  for (int i = 0; i < kRounds; ++i) calls.round();
  std::vector<std::uint64_t> times;
  for (Calls::Kind& kind : calls.kinds()) times.push_back(kind.lowest_tenth());
  return times;
}

}  // namespace

int main() {
  bench::Device device;
  Calls calls(device);
  Cooler cooler;
  for (int i = 0; i < kWarmRounds; ++i) calls.round();
  const std::vector<std::uint64_t> warm = measure(calls, nullptr), cold = measure(calls, &cooler);
  for (std::size_t i = 0; i < warm.size(); ++i)
    std::printf("{\"call\": \"%s\", \"warm_ns\": %llu, \"cold_ns\": %llu}\n", calls.kinds()[i].name,
                static_cast<unsigned long long>(warm[i]), static_cast<unsigned long long>(cold[i]));
}
