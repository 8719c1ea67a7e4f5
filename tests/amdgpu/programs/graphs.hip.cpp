// SPDX-License-Identifier: Apache-2.0
//
// Graphs: with and without branches, built and captured, changed between launches, among launches
// of streams. Each step multiplies before it adds, so the order of all of them is in the result.
// Kernels of branches and of chains have names of their own, by which the GPU's trace tells them.
#include "program.h"

namespace {

constexpr unsigned kPrime = 1'000'003;

// One block each: every thread has a value of its own.
__global__ void chain_step(unsigned* values, unsigned add) {
  unsigned& value = values[threadIdx.x];
  value = value * kPrime + add + threadIdx.x;
}
__global__ void other_step(unsigned* values, unsigned add) {
  unsigned& value = values[threadIdx.x];
  value = (value ^ add) * kPrime;
}
__global__ void branch_step(unsigned* values, unsigned add) {
  unsigned& value = values[threadIdx.x];
  value = value * kPrime + add;
}
__global__ void stream_step(unsigned* values, unsigned add) {
  unsigned& value = values[threadIdx.x];
  value = (value + add) * kPrime;
}
__global__ void fold(unsigned* sums, const unsigned* values) {
  unsigned& sum = sums[threadIdx.x];
  sum = sum * kPrime + values[threadIdx.x];
}
// Ends when as many launches of it as `all` are there.
__global__ void meet(unsigned* arrived, unsigned all) {
  if (threadIdx.x == 0) {
    atomicAdd(arrived, 1U);
    while (atomicAdd(arrived, 0U) < all) __builtin_amdgcn_s_sleep(1);
  }
}

constexpr unsigned kThreads = 64;
using Values = DeviceArray<unsigned>;

unsigned stepped(unsigned value, unsigned thread, unsigned add) {
  return value * kPrime + add + thread;
}

hipStream_t free_stream() {
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  return stream;
}

// Where a graph is launched that needs no other stream.
hipStream_t launch_stream() { return test_stream() != nullptr ? test_stream() : free_stream(); }

hipGraph_t new_graph() {
  hipGraph_t graph = nullptr;
  HIP_OK(hipGraphCreate(&graph, 0));
  return graph;
}

hipGraphExec_t ready(hipGraph_t graph) {
  hipGraphExec_t executable = nullptr;
  HIP_OK(hipGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
  return executable;
}

using Step = void (*)(unsigned*, unsigned);

struct KernelNode {
  KernelNode(Step step, unsigned* where, unsigned what) : values(where), add(what) {
    parameters.func = reinterpret_cast<void*>(step);
    parameters.gridDim = dim3(1);
    parameters.blockDim = dim3(kThreads);
    parameters.kernelParams = arguments;
  }
  KernelNode(const KernelNode&) = delete;
  hipGraphNode_t in(hipGraph_t graph, const std::vector<hipGraphNode_t>& behind) {
    hipGraphNode_t node = nullptr;
    HIP_OK(hipGraphAddKernelNode(&node, graph, behind.data(), behind.size(), &parameters));
    return node;
  }
  unsigned* values;
  unsigned add;
  void* arguments[2] = {&values, &add};
  hipKernelNodeParams parameters{};
};
hipGraphNode_t add_kernel(hipGraph_t graph, Step step, const Values& values, unsigned add,
                          const std::vector<hipGraphNode_t>& behind = {}) {
  return KernelNode(step, values.data(), add).in(graph, behind);
}

hipMemsetParams fill_of(unsigned* where, unsigned value) {
  hipMemsetParams fill{};
  fill.dst = where;
  fill.elementSize = sizeof(unsigned);
  fill.value = value;
  fill.width = kThreads;
  fill.height = 1;
  return fill;
}

std::vector<unsigned> zeros() { return std::vector<unsigned>(kThreads); }

void told(const char* what, const Values& values, const std::vector<unsigned>& expected) {
  HIP_OK(hipDeviceSynchronize());
  const std::vector<unsigned> host = values.host();
  report(what, host == expected, bits_of(host));
}

// A chain that was captured and one that was built from its end, among launches of two streams
// that wait for each other.
void chains() {
  constexpr unsigned kRounds = 20;
  Values values(zeros());
  const hipStream_t stream = free_stream(), other = free_stream();
  hipEvent_t done = nullptr;
  HIP_OK(hipEventCreateWithFlags(&done, hipEventDisableTiming));
  hipGraph_t captured = nullptr;
  HIP_OK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
  for (unsigned add = 1; add < 4; ++add) chain_step<<<1, kThreads, 0, stream>>>(values.data(), add);
  HIP_OK(hipStreamEndCapture(stream, &captured));
  const hipGraph_t built = new_graph();
  const hipGraphNode_t last = add_kernel(built, chain_step, values, 8);
  const hipGraphNode_t middle = add_kernel(built, chain_step, values, 7);
  const hipGraphNode_t first = add_kernel(built, chain_step, values, 6);
  hipGraphNode_t empty = nullptr;
  HIP_OK(hipGraphAddEmptyNode(&empty, built, &first, 1));
  HIP_OK(hipGraphAddDependencies(built, &empty, &middle, 1));
  HIP_OK(hipGraphAddDependencies(built, &middle, &last, 1));
  const hipGraphExec_t one = ready(captured), two = ready(built);
  HIP_OK(hipGraphDestroy(captured));  // the executable keeps what it needs
  for (unsigned i = 0; i < kRounds; ++i) {
    stream_step<<<1, kThreads, 0, stream>>>(values.data(), i);
    HIP_OK(hipGraphLaunch(one, stream));
    HIP_OK(hipEventRecord(done, stream));
    HIP_OK(hipStreamWaitEvent(other, done, 0));
    HIP_OK(hipGraphLaunch(two, other));
    stream_step<<<1, kThreads, 0, other>>>(values.data(), 2 * i);
    HIP_OK(hipEventRecord(done, other));
    HIP_OK(hipStreamWaitEvent(stream, done, 0));
  }
  std::vector<unsigned> expected = zeros();
  for (unsigned i = 0; i < kRounds; ++i)
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      unsigned& value = expected[thread];
      value = (value + i) * kPrime;
      for (const unsigned add : {1U, 2U, 3U, 6U, 7U, 8U}) value = stepped(value, thread, add);
      value = (value + 2 * i) * kPrime;
    }
  told("chains among launches of two streams", values, expected);
  HIP_OK(hipGraphExecDestroy(one));
  HIP_OK(hipGraphExecDestroy(two));
}

// A fill, and a graph inside the graph, each a chain.
void nested() {
  constexpr unsigned kRounds = 10;
  Values values(zeros());
  const hipGraph_t graph = new_graph(), child = new_graph();
  const hipGraphNode_t inner = add_kernel(child, chain_step, values, 2);
  add_kernel(child, chain_step, values, 3, {inner});
  const hipMemsetParams fill = fill_of(values.data(), 41);
  hipGraphNode_t filled = nullptr, nested = nullptr;
  HIP_OK(hipGraphAddMemsetNode(&filled, graph, nullptr, 0, &fill));
  const hipGraphNode_t before = add_kernel(graph, chain_step, values, 1, {filled});
  HIP_OK(hipGraphAddChildGraphNode(&nested, graph, &before, 1, child));
  add_kernel(graph, chain_step, values, 4, {nested});
  const hipGraphExec_t executable = ready(graph);
  const hipStream_t stream = launch_stream();
  for (unsigned i = 0; i < kRounds; ++i) HIP_OK(hipGraphLaunch(executable, stream));
  std::vector<unsigned> expected(kThreads, 41);
  for (unsigned thread = 0; thread < kThreads; ++thread)
    for (unsigned add = 1; add < 5; ++add)
      expected[thread] = stepped(expected[thread], thread, add);
  told("a fill and a graph inside a chain", values, expected);
  HIP_OK(hipGraphExecDestroy(executable));
}

// Changed while earlier launches may not have begun: those do what they were launched to do.
void changes() {
  Values values(zeros()), sums(zeros());
  const hipGraph_t graph = new_graph(), later = new_graph();
  const hipMemsetParams fill = fill_of(values.data(), 5), other_fill = fill_of(values.data(), 6);
  hipGraphNode_t filled = nullptr, filled_later = nullptr;
  HIP_OK(hipGraphAddMemsetNode(&filled, graph, nullptr, 0, &fill));
  const hipGraphNode_t node = add_kernel(graph, chain_step, values, 1, {filled});
  HIP_OK(hipGraphAddMemsetNode(&filled_later, later, nullptr, 0, &other_fill));
  add_kernel(later, other_step, values, 9, {filled_later});
  const hipGraphExec_t executable = ready(graph);
  const hipStream_t stream = launch_stream();
  std::vector<unsigned> expected = zeros();
  const auto launch = [&](auto result) {
    HIP_OK(hipGraphLaunch(executable, stream));
    fold<<<1, kThreads, 0, stream>>>(sums.data(), values.data());
    for (unsigned thread = 0; thread < kThreads; ++thread)
      expected[thread] = expected[thread] * kPrime + result(thread);
  };
  for (unsigned i = 0; i < 10; ++i) {
    launch([](unsigned thread) { return stepped(5, thread, 1); });
    KernelNode set(i % 2 == 0 ? other_step : chain_step, values.data(), 7 + i);
    HIP_OK(hipGraphExecKernelNodeSetParams(executable, node, &set.parameters));
    launch([&](unsigned thread) {
      return i % 2 == 0 ? (5 ^ (7 + i)) * kPrime : stepped(5, thread, 7 + i);
    });
    KernelNode refused(chain_step, values.data(), 1);
    refused.parameters.blockDim = dim3(4096);
    report("a block that is too large is refused",
           hipGraphExecKernelNodeSetParams(executable, node, &refused.parameters) != hipSuccess);
    hipGraphNode_t wrong = nullptr;
    hipGraphExecUpdateResult result = hipGraphExecUpdateSuccess;
    HIP_OK(hipGraphExecUpdate(executable, later, &wrong, &result));
    launch([](unsigned) { return (6 ^ 9) * kPrime; });
    HIP_OK(hipGraphExecUpdate(executable, graph, &wrong, &result));
  }
  told("a chain that is changed between launches", sums, expected);
  HIP_OK(hipGraphExecDestroy(executable));
}

// Two kernels behind one: the runtime runs one of them on a stream of its own.
void branches() {
  Values values(zeros()), others(zeros());
  const hipGraph_t graph = new_graph();
  const hipGraphNode_t root = add_kernel(graph, branch_step, values, 1);
  add_kernel(graph, branch_step, values, 2, {root});
  add_kernel(graph, branch_step, others, 3, {root});
  const hipGraphExec_t executable = ready(graph);
  const hipStream_t stream = launch_stream();
  for (unsigned i = 0; i < 10; ++i) HIP_OK(hipGraphLaunch(executable, stream));
  unsigned value = 0, other = 0;
  for (unsigned i = 0; i < 10; ++i) {
    value = (value * kPrime + 1) * kPrime + 2;
    other = other * kPrime + 3;
  }
  told("branches", values, std::vector<unsigned>(kThreads, value));
  told("branches beside them", others, std::vector<unsigned>(kThreads, other));
  HIP_OK(hipGraphExecDestroy(executable));
}

// What ten launches of branch_step by 1 make of zeros.
std::vector<unsigned> after_ten_steps() {
  unsigned value = 0;
  for (unsigned i = 0; i < 10; ++i) value = value * kPrime + 1;
  return std::vector<unsigned>(kThreads, value);
}

void copies() {
  Values values(zeros()), copied(zeros());
  const hipGraph_t graph = new_graph();
  const hipGraphNode_t root = add_kernel(graph, branch_step, values, 1);
  hipGraphNode_t copy = nullptr;
  HIP_OK(hipGraphAddMemcpyNode1D(&copy, graph, &root, 1, copied.data(), values.data(),
                                 kThreads * sizeof(unsigned), hipMemcpyDeviceToDevice));
  const hipGraphExec_t executable = ready(graph);
  const hipStream_t stream = launch_stream();
  for (unsigned i = 0; i < 10; ++i) HIP_OK(hipGraphLaunch(executable, stream));
  told("a copy in a graph", copied, after_ten_steps());
  HIP_OK(hipGraphExecDestroy(executable));
}

// On a stream with a mask of the program's own.
void own_mask() {
  Values values(zeros());
  hipStream_t stream = nullptr;
  const auto mask = mask_of(16, 24);
  HIP_OK(
      hipExtStreamCreateWithCUMask(&stream, static_cast<std::uint32_t>(mask.size()), mask.data()));
  const hipGraph_t graph = new_graph();
  add_kernel(graph, branch_step, values, 1);
  const hipGraphExec_t executable = ready(graph);
  for (unsigned i = 0; i < 10; ++i) HIP_OK(hipGraphLaunch(executable, stream));
  told("a chain on a mask of the program's own", values, after_ten_steps());
  HIP_OK(hipGraphExecDestroy(executable));
}

// Natively two launches of one executable run at the same time.
void beside_itself() {
  Values arrived(zeros());
  const hipGraph_t graph = new_graph();
  add_kernel(graph, meet, arrived, 2);
  const hipGraphExec_t executable = ready(graph);
  for (const hipStream_t stream : {free_stream(), free_stream()})
    HIP_OK(hipGraphLaunch(executable, stream));
  std::vector<unsigned> expected = zeros();
  expected[0] = 2;
  told("two launches of one graph meet", arrived, expected);
  HIP_OK(hipGraphExecDestroy(executable));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"chains", chains},
                     {"nested", nested},
                     {"changes", changes},
                     {"branches", branches},
                     {"copies", copies},
                     {"own_mask", own_mask},
                     {"beside_itself", beside_itself}},
                    count, arguments);
}
