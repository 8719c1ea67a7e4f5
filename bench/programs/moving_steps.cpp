// SPDX-License-Identifier: Apache-2.0
//
// Why a step of many short launches takes longer when each of them goes to other SMs than the one
// before. JSON lines.
//
//   moving_steps queues   natively: chains over 1, 2, 4 … 59 queues of green contexts
//   moving_steps beside   natively: steps beside a thread that makes one kind of call
//   moving_steps graphs   natively or behind `vitamin run`: steps before a graph is launched for
//   the
//                         first time, right behind that, and later
//
// A step: five copies to the device, 100 launches 5 µs apart, as an interpreter makes them, and a
// copy back that the host waits for. --small: as little of everything as shows that it works.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <utility>

#include "driver.h"

namespace {

using bench::now_ns;

constexpr std::size_t kWords = 128, kGraphNodes = 50, kQueues = 59;
constexpr int kLaunches = 100, kAttributes = 32;
constexpr std::uint64_t kBetweenLaunches = 5'000;

double at(std::vector<double> sample, double share) {
  if (sample.empty()) return 0;
  std::sort(sample.begin(), sample.end());
  return sample[static_cast<std::size_t>(share * static_cast<double>(sample.size() - 1))];
}

// One line: microseconds of what `name` and `more` say.
void tell(const char* measurement, const std::string& more, const std::vector<double>& us) {
  std::printf("{\"name\": \"%s\", %s, \"us\": %.2f, \"p90_us\": %.2f, \"count\": %zu}\n",
              measurement, more.c_str(), at(us, 0.5), at(us, 0.9), us.size());
  std::fflush(stdout);
}
std::string word(const char* key, const std::string& value) {
  return std::string("\"") + key + "\": \"" + value + "\"";
}
std::string number(const char* key, double value) {
  char text[64];
  std::snprintf(text, sizeof text, "\"%s\": %.6g", key, value);
  return text;
}

// The same numbers each time.
class Draw {
 public:
  std::size_t below(std::size_t count) {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<std::size_t>(state_ % count);
  }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::uint64_t state_ = 0x9e3779b97f4a7c15;
};

#define CALL(name) const decltype(&::name) name = d.cu.find<decltype(&::name)>(BENCH_SYMBOL(name))

// What the kinds of measurement share. Kernels are launched by handles of a library, as those of
// the CUDA runtime are.
struct Machine {
  Machine() {
    CALL(cuLibraryLoadData);
    CALL(cuLibraryGetKernel);
    CUlibrary library = nullptr;
    BENCH_MUST(bench::Device::offer_kernels([&](const void* image) {
      return cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    }));
    CUkernel found = nullptr;
    BENCH_MUST(cuLibraryGetKernel(&found, library, "add_one"));
    add_one = reinterpret_cast<CUfunction>(found);
    words = d.words(kWords);
    pinned = d.pinned<std::uint32_t>(kWords);
  }
  void launch(CUstream stream) const { BENCH_MUST(d.launch(add_one, stream, 4, 32, words)); }

  bench::Device d;
  CUfunction add_one = nullptr;
  CUdeviceptr words = 0;
  std::uint32_t* pinned = nullptr;
  std::vector<std::uint32_t> host = std::vector<std::uint32_t>(kWords);
  CALL(cuMemcpyHtoDAsync);
  CALL(cuMemcpyDtoHAsync);
  CALL(cuEventQuery);
};

// Queues of green contexts over unions of groups of 8 SMs.
class Queues {
 public:
  Queues(const Machine& machine, std::size_t count) : m_(machine), d(machine.d) {
    CALL(cuDeviceGetDevResource);
    CALL(cuDevSmResourceSplitByCount);
    CUdevResource all{}, rest{};
    unsigned groups = 64;
    groups_.resize(groups);
    BENCH_MUST(cuDeviceGetDevResource(d.device, &all, CU_DEV_RESOURCE_TYPE_SM));
    BENCH_MUST(cuDevSmResourceSplitByCount(groups_.data(), &groups, &all, &rest, 0, 8));
    groups_.resize(groups);
    for (std::size_t i = 0; i < count; ++i) add(i);
    for (std::size_t i = 0; i < kEvents; ++i) events_.push_back(d.event());
  }

  CUgreenCtx context(std::size_t i) const { return contexts_[i]; }

  // The next kernel of a chain: on one of the first `among` queues, behind the one before.
  void launch(std::size_t among) {
    const std::size_t next = among > 1 ? draw_.below(among) : 0;
    if (next != last_ && launched_ > 0)
      BENCH_MUST(d.cu.cuStreamWaitEvent(streams_[next], newest(1), 0));
    m_.launch(streams_[next]);
    last_ = next;
    BENCH_MUST(d.cu.cuEventRecord(events_[launched_++ % kEvents], streams_[next]));
  }
  // Until at most so many kernels have not ended.
  void wait_for_all_but(std::size_t unfinished) {
    if (launched_ <= unfinished) return;
    while (m_.cuEventQuery(newest(unfinished + 1)) == CUDA_ERROR_NOT_READY) continue;
  }
  CUstream newest_stream() const { return streams_[last_]; }

 private:
  static constexpr std::size_t kEvents = 1024;  // as many as a queue takes
  CUevent newest(std::size_t back) const { return events_[(launched_ - back) % kEvents]; }
  // Runs of groups of every length that is a power of two, then of others.
  void add(std::size_t i) {
    CALL(cuDevResourceGenerateDesc);
    CALL(cuGreenCtxCreate);
    CALL(cuGreenCtxStreamCreate);
    const std::size_t length = std::size_t{1} << i % 4;
    std::vector<CUdevResource> chosen;
    for (std::size_t group = 0; group < std::min(length, groups_.size()); ++group)
      chosen.push_back(groups_[(i + group) % groups_.size()]);
    CUdevResourceDesc description = nullptr;
    CUgreenCtx context = nullptr;
    CUstream stream = nullptr;
    BENCH_MUST(cuDevResourceGenerateDesc(&description, chosen.data(),
                                         static_cast<unsigned>(chosen.size())));
    BENCH_MUST(cuGreenCtxCreate(&context, description, d.device, CU_GREEN_CTX_DEFAULT_STREAM));
    BENCH_MUST(cuGreenCtxStreamCreate(&stream, context, CU_STREAM_NON_BLOCKING, 0));
    contexts_.push_back(context);
    streams_.push_back(stream);
  }

  const Machine& m_;
  const bench::Device& d;
  Draw draw_;
  std::vector<CUdevResource> groups_;
  std::vector<CUgreenCtx> contexts_;
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
  std::size_t last_ = 0, launched_ = 0;
};

void pause_until(std::uint64_t ns) {
  while (now_ns() < ns) continue;
}

// Microseconds of a step on `stream`.
double step(Machine& m, CUstream stream) {
  const std::uint64_t begin = now_ns();
  for (int i = 0; i < 5; ++i)
    BENCH_MUST(m.cuMemcpyHtoDAsync(m.words, m.pinned, kWords * sizeof(std::uint32_t), stream));
  for (int i = 0; i < kLaunches; ++i) {
    const std::uint64_t next = now_ns() + kBetweenLaunches;
    m.launch(stream);
    pause_until(next);
  }
  BENCH_MUST(m.cuMemcpyDtoHAsync(m.host.data(), m.words, kWords * sizeof(std::uint32_t), stream));
  BENCH_MUST(m.d.cu.cuStreamSynchronize(stream));
  return 1e-3 * static_cast<double>(now_ns() - begin);
}

// The same launches, each on one of `among` queues.
double step_over(Machine& m, Queues& queues, std::size_t among) {
  const std::uint64_t begin = now_ns();
  for (int i = 0; i < kLaunches; ++i) {
    const std::uint64_t next = now_ns() + kBetweenLaunches;
    queues.launch(among);
    pause_until(next);
  }
  CUstream const stream = queues.newest_stream();
  BENCH_MUST(m.cuMemcpyDtoHAsync(m.host.data(), m.words, kWords * sizeof(std::uint32_t), stream));
  BENCH_MUST(m.d.cu.cuStreamSynchronize(stream));
  return 1e-3 * static_cast<double>(now_ns() - begin);
}

// --- queues --------------------------------------------------------------------------------------

// Microseconds of each kernel of chains, submitted as fast as the host can: as many ahead as there
// are, or ten at most (DispatchOptions::ahead_of_move).
void measure_queues(bool small) {
  Machine m;
  Queues queues(m, kQueues);
  struct Arm {
    std::size_t among, unfinished;
    std::vector<double> us;
  };
  std::vector<Arm> arms;
  for (const std::size_t among : {1UL, 2UL, 4UL, 8UL, 16UL, 32UL, kQueues})
    for (const std::size_t unfinished : {10UL, 1000UL}) arms.push_back({among, unfinished, {}});
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < arms.size(); ++i) order.push_back(i);
  Draw draw;
  const int rounds = small ? 2 : 25, kernels = small ? 20 : 300;
  for (int round = -2; round < rounds; ++round) {
    draw.shuffle(order);
    for (const std::size_t i : order) {
      const std::uint64_t begin = now_ns();
      for (int k = 0; k < kernels; ++k) {
        if (arms[i].unfinished < 1000) queues.wait_for_all_but(arms[i].unfinished - 1);
        queues.launch(arms[i].among);
      }
      queues.wait_for_all_but(0);
      const double us = 1e-3 * static_cast<double>(now_ns() - begin) / kernels;
      if (round >= 0) arms[i].us.push_back(us);
    }
  }
  for (const Arm& arm : arms)
    tell("queues",
         number("queues", static_cast<double>(arm.among)) + ", " +
             (arm.unfinished < 1000 ? word("ahead", "ten") : word("ahead", "all")),
         arm.us);
}

// --- beside --------------------------------------------------------------------------------------

// A graph of kernels on one stream, as the application captures it.
class CapturedGraph {
 public:
  explicit CapturedGraph(const Machine& m) : d(m.d) {
    CUstream const stream = d.stream();
    BENCH_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (std::size_t i = 0; i < kGraphNodes; ++i) m.launch(stream);
    BENCH_MUST(cuStreamEndCapture(stream, &graph));
    BENCH_MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    nodes.resize(kGraphNodes);
    std::size_t count = kGraphNodes;
    BENCH_MUST(cuGraphGetNodes(graph, nodes.data(), &count));
  }
  void launch(CUstream stream) const { BENCH_MUST(cuGraphLaunch(executable, stream)); }

  const bench::Device& d;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  std::vector<CUgraphNode> nodes;
  CALL(cuStreamBeginCapture);
  CALL(cuStreamEndCapture);
  CALL(cuGraphInstantiateWithFlags);
  CALL(cuGraphGetNodes);
  CALL(cuGraphLaunch);
};

// A thread that makes calls of one kind, over and over: those by which executables and queues are
// made for partitions.
class Beside {
 public:
  using Kind = std::pair<const char*, std::function<void()>>;
  Beside(const CapturedGraph& graph, const Queues& queues)
      : g_(graph), d(graph.d), queues_(queues) {
    kinds = {{"nothing", [] { std::this_thread::sleep_for(std::chrono::microseconds(50)); }},
             {"attributes of nodes", [this] { ask_attributes(); }},
             {"parameters of nodes", [this] { set_parameters(); }},
             {"executables", [this] { make_executable(); }},
             {"free memory", [this] { ask_memory(); }},
             {"streams", [this] { make_stream(); }}};
    thread_ = std::thread([this] { run(); });
  }
  ~Beside() {
    chosen_ = -1;
    thread_.join();
  }
  void choose(int kind) {
    chosen_ = kind;
    while (doing_ != kind) std::this_thread::yield();
  }
  std::uint64_t calls() const { return calls_; }

  std::vector<Kind> kinds;

 private:
  void run() {
    CUcontext context = nullptr;
    BENCH_MUST(d.cu.cuDevicePrimaryCtxRetain(&context, d.device));
    BENCH_MUST(d.cu.cuCtxSetCurrent(context));
    for (int kind = chosen_; kind >= 0; kind = chosen_) {
      doing_ = kind;
      kinds[static_cast<std::size_t>(kind)].second();
    }
  }
  void ask_attributes() {
    for (const CUgraphNode node : g_.nodes)
      for (int id = 1; id < kAttributes; ++id) {
        CUlaunchAttributeValue value{};
        static_cast<void>(
            cuGraphKernelNodeGetAttribute(node, static_cast<CUlaunchAttributeID>(id), &value));
        ++calls_;
      }
  }
  void set_parameters() {
    for (const CUgraphNode node : g_.nodes) {
      CUDA_KERNEL_NODE_PARAMS parameters{};
      BENCH_MUST(cuGraphKernelNodeGetParams(node, &parameters));
      BENCH_MUST(cuGraphKernelNodeSetParams(node, &parameters));
      calls_ += 2;
    }
  }
  void make_executable() {
    CUgraph clone = nullptr;
    CUgraphExec executable = nullptr;
    BENCH_MUST(cuGraphClone(&clone, g_.graph));
    BENCH_MUST(g_.cuGraphInstantiateWithFlags(&executable, clone, 0));
    BENCH_MUST(cuGraphExecDestroy(executable));
    BENCH_MUST(cuGraphDestroy(clone));
    calls_ += 4;
  }
  void ask_memory() {
    std::size_t free = 0, total = 0;
    BENCH_MUST(d.cu.cuMemGetInfo(&free, &total));
    ++calls_;
  }
  void make_stream() {
    CUstream stream = nullptr;
    BENCH_MUST(cuGreenCtxStreamCreate(&stream, queues_.context(0), CU_STREAM_NON_BLOCKING, 0));
    BENCH_MUST(cuStreamDestroy(stream));
    calls_ += 2;
  }

  const CapturedGraph& g_;
  const bench::Device& d;
  const Queues& queues_;
  CALL(cuGraphKernelNodeGetAttribute);
  CALL(cuGraphKernelNodeGetParams);
  CALL(cuGraphKernelNodeSetParams);
  CALL(cuGraphClone);
  CALL(cuGraphDestroy);
  CALL(cuGraphExecDestroy);
  CALL(cuGreenCtxStreamCreate);
  CALL(cuStreamDestroy);
  std::atomic<int> chosen_{0}, doing_{0};
  std::atomic<std::uint64_t> calls_{0};
  std::thread thread_;
};

void measure_beside(bool small) {
  Machine m;
  Queues queues(m, kQueues);
  const CapturedGraph graph(m);
  CUstream const stream = m.d.stream();
  Beside beside(graph, queues);
  struct Arm {
    std::vector<double> one, many;
    std::uint64_t calls = 0, ns = 0;
  };
  std::vector<Arm> arms(beside.kinds.size());
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < arms.size(); ++i) order.push_back(i);
  Draw draw;
  for (int round = small ? 0 : -2; round < (small ? 2 : 20); ++round) {
    draw.shuffle(order);
    for (const std::size_t i : order) {
      beside.choose(static_cast<int>(i));
      const std::uint64_t calls = beside.calls(), begin = now_ns();
      for (int repeat = 0; repeat < (small ? 1 : 4); ++repeat) {
        const double one = step(m, stream), many = step_over(m, queues, kQueues);
        if (round < 0) continue;
        arms[i].one.push_back(one);
        arms[i].many.push_back(many);
      }
      arms[i].calls += beside.calls() - calls;
      arms[i].ns += now_ns() - begin;
    }
  }
  for (std::size_t i = 0; i < arms.size(); ++i) {
    const double per_ms =
        1e6 * static_cast<double>(arms[i].calls) / static_cast<double>(arms[i].ns);
    const std::string what =
        word("beside", beside.kinds[i].first) + ", " + number("calls_per_ms", per_ms) + ", ";
    tell("beside", what + number("queues", 1), arms[i].one);
    tell("beside", what + number("queues", kQueues), arms[i].many);
  }
}

// --- graphs --------------------------------------------------------------------------------------

// Other launches on a stream of its own, each waited for, by another thread.
void run_other_thread(const Machine& m, double seconds) {
  std::thread([&] {
    CUcontext context = nullptr;
    BENCH_MUST(m.d.cu.cuDevicePrimaryCtxRetain(&context, m.d.device));
    BENCH_MUST(m.d.cu.cuCtxSetCurrent(context));
    CUstream const stream = m.d.stream();
    CUevent const event = m.d.event();
    CUfunction const occupy = m.d.kernel("occupy");
    CUdeviceptr const span = m.d.words(4);
    const std::uint64_t end = now_ns() + static_cast<std::uint64_t>(1e9 * seconds);
    while (now_ns() < end) {
      BENCH_MUST(m.d.launch(occupy, stream, 1, 32, span, std::uint64_t{1'000'000}));
      BENCH_MUST(m.d.cu.cuEventRecord(event, stream));
      BENCH_MUST(m.d.cu.cuEventSynchronize(event));
    }
  }).join();
}

void measure_graphs(bool small) {
  Machine m;
  CUstream const stream = CU_STREAM_LEGACY;  // as PyTorch does
  const auto steps = [&](const char* when, double seconds) {
    std::vector<double> us;
    const std::uint64_t begin = now_ns();
    const auto ns = static_cast<std::uint64_t>((small ? 0.1 : 1.0) * 1e9 * seconds);
    while (us.empty() || now_ns() - begin < ns) us.push_back(step(m, stream));
    tell("graphs", word("when", when), us);
  };
  steps("first steps", 0.2);
  steps("before", 0.3);
  run_other_thread(m, small ? 0.02 : 0.2);
  steps("behind another thread", 0.3);
  const CapturedGraph graph(m);
  steps("behind a capture", 0.3);
  std::vector<double> launches;
  for (int i = 0; i < (small ? 20 : 300); ++i) {
    const std::uint64_t begin = now_ns();
    graph.launch(stream);
    launches.push_back(1e-3 * static_cast<double>(now_ns() - begin));
    BENCH_MUST(m.d.cu.cuStreamSynchronize(stream));
  }
  tell("graphs", word("when", "launches of the graph"), launches);
  constexpr std::array<std::pair<const char*, double>, 6> kBehind = {{{"0 to 0.05 s", 0.05},
                                                                      {"0.05 to 0.1 s", 0.05},
                                                                      {"0.1 to 0.2 s", 0.1},
                                                                      {"0.2 to 0.4 s", 0.2},
                                                                      {"0.4 to 0.8 s", 0.4},
                                                                      {"0.8 to 1.6 s", 0.8}}};
  for (const auto& [when, seconds] : kBehind) steps(when, seconds);
}

}  // namespace

int main(int argc, char** argv) {
  const std::span<char* const> words(argv, static_cast<std::size_t>(argc));
  const std::string what = argc > 1 ? words[1] : "";
  const bool small = argc > 2 && std::strcmp(words[2], "--small") == 0;
  if (what == "queues")
    measure_queues(small);
  else if (what == "beside")
    measure_beside(small);
  else if (what == "graphs")
    measure_graphs(small);
  else
    bench::Driver::stop("usage: moving_steps queues | beside | graphs [--small]");
  std::fflush(stdout);
  std::_Exit(0);  // the device's memory goes with the process
}
