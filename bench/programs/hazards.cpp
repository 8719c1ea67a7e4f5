// SPDX-License-Identifier: Apache-2.0
//
// One hazard of sharing a device in space at a time: hazards NAME [REPEATS [SECONDS]]. Says what
// the driver answered, and whether the result is right, as one JSON line. An ordinary program:
// natively all of them end. One that has not after SECONDS says on standard error what it was
// doing, and goes on.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "driver.h"

namespace {

// What is being done, for the alarm's handler: words that last for ever, and how often so far.
volatile std::sig_atomic_t g_step = 0;
const char* volatile g_doing = "beginning";

void now(const char* doing, int step = 0) {
  g_step = 0;
  g_doing = doing;
  g_step = step;
}

void say_where(int) {
  char digits[12];
  std::size_t at = sizeof digits;
  int step = g_step;
  do digits[--at] = static_cast<char>('0' + step % 10);
  while ((step /= 10) > 0);
  const auto say = [](const char* text, std::size_t size) {
    if (::write(STDERR_FILENO, text, size) < 0) return;  // stderr is closed: nothing can be done
  };
  say("late while ", 11);
  say(g_doing, std::strlen(g_doing));
  say(", step ", 7);
  say(digits + at, sizeof digits - at);
  say("\n", 1);
}

struct Outcome {
  CUresult status = CUDA_SUCCESS;
  bool right = false;
  const char* note = "";
};

class Hazards {
 public:
  explicit Hazards(bench::Device& device) : d_(device) {}

  // As many blocks as the whole device holds, which wait for each other without saying so.
  Outcome barrier() { return meet_in_grid(false, blocks_of("grid_barrier")); }
  // The same, and the driver is told.
  Outcome cooperative() { return meet_in_grid(true, blocks_of("grid_barrier")); }
  // A cooperative grid that no device holds: natively refused.
  Outcome cooperative_too_large() {
    Outcome outcome = meet_in_grid(true, 64 * blocks_of("grid_barrier"));
    outcome.right = outcome.status == CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    outcome.note = "refused natively";
    return outcome;
  }

  // Blocks that wait for those behind them in the grid, as stream-K's do.
  Outcome stream_k() {
    const unsigned blocks = blocks_of("carry_over");
    const CUdeviceptr sums = d_.words(blocks), out = d_.words(blocks);
    const CUresult status =
        d_.launch(d_.kernel("carry_over"), stream_, blocks, kThreads, sums, out);
    if (status != CUDA_SUCCESS) return {status};
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    return {status, d_.read(out, 1)[0] == blocks * (blocks + 1) / 2};
  }

  Outcome persistent() {
    constexpr std::uint32_t kCount = 10'000;
    const CUdeviceptr next = d_.words(1), out = d_.words(kCount);
    const CUresult status = d_.launch(d_.kernel("persistent"), stream_, blocks_of("persistent"),
                                      kThreads, next, kCount, out);
    if (status != CUDA_SUCCESS) return {status};
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    return {status, sum(out, kCount) == kCount};
  }

  Outcome clusters(unsigned size) {
    constexpr unsigned kBlocks = 64;
    const CUfunction kernel = d_.kernel("cluster_rank");
    if (size > 8)
      BENCH_MUST(
          d_.cu.cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    CUdeviceptr out = d_.words(kBlocks);
    CUlaunchAttribute attribute{};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {size, 1, 1};
    CUlaunchConfig config{};
    config.gridDimX = kBlocks;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = kThreads;
    config.hStream = stream_;
    config.attrs = &attribute;
    config.numAttrs = 1;
    void* parameters[] = {&out};
    const CUresult status = d_.cu.cuLaunchKernelEx(&config, kernel, parameters, nullptr);
    if (status != CUDA_SUCCESS) return {status};
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    const auto ranks = d_.read(out, kBlocks);
    bool right = true;
    for (unsigned i = 0; i < kBlocks; ++i) right = right && ranks[i] == i % size + 1;
    return {status, right};
  }

  // Launches behind a word that the host writes later; another stream must not wait for it. One
  // other stream for all repeats: of more streams than the device has connections, some share one
  // with the held stream, and then a program that waits for them hangs natively.
  Outcome host_gated() {
    auto* gate = d_.pinned<std::uint32_t>(16);
    const CUdeviceptr held = d_.words(1), free = d_.words(1), before = d_.words(1);
    // Code is loaded at a kernel's first launch, and loading may wait for all that was submitted.
    now("launching what is not held");
    BENCH_MUST(d_.launch(d_.kernel("add_one"), stream_, 1, kThreads, before));
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    now("submitting the wait");
    BENCH_MUST(d_.cu.cuStreamWaitValue32(stream_, reinterpret_cast<CUdeviceptr>(gate), 1,
                                         CU_STREAM_WAIT_VALUE_GEQ));
    for (int i = 0; i < 900; ++i) {
      now("launching behind the wait", i);
      BENCH_MUST(d_.launch(d_.kernel("add_one"), stream_, 1, kThreads, held));
    }
    for (int i = 0; i < 100; ++i) {
      now("launching into the other stream", i);
      BENCH_MUST(d_.launch(d_.kernel("add_one"), other_, 1, kThreads, free));
    }
    now("waiting for the other stream");
    BENCH_MUST(d_.cu.cuStreamSynchronize(other_));
    __atomic_store_n(gate, 1, __ATOMIC_SEQ_CST);
    now("waiting for what was held");
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    return {CUDA_SUCCESS, d_.read(held, 1)[0] == 900 && d_.read(free, 1)[0] == 100};
  }

  // A kernel that waits for one of another stream, launched after it: both must run at once, as a
  // collective's do.
  Outcome meeting_streams() {
    const CUdeviceptr words = d_.words(64), out = d_.words(64);
    const CUdeviceptr mine = words, theirs = words + 128;
    const CUfunction kernel = d_.kernel("meet");
    CUresult status = d_.launch(kernel, stream_, 1, kThreads, mine, theirs, out);
    if (status == CUDA_SUCCESS)
      status = d_.launch(kernel, other_, 1, kThreads, theirs, mine, out + 128);
    if (status != CUDA_SUCCESS) return {status};
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    BENCH_MUST(d_.cu.cuStreamSynchronize(other_));
    return {status, d_.read(out, 1)[0] == 1 && d_.read(out + 128, 1)[0] == 1};
  }

  // A kernel's own fault: the next call says so.
  Outcome fault() {
    BENCH_MUST(d_.launch(d_.kernel("fault"), stream_, 1, kThreads, CUdeviceptr{0}));
    const CUresult status = d_.cu.cuStreamSynchronize(stream_);
    return {status, status != CUDA_SUCCESS, "the next call answers an error natively"};
  }

 private:
  static constexpr unsigned kThreads = 1024;

  // Twice as many as one block for each processor, when that many fit.
  unsigned blocks_of(const char* name) {
    int each = 0;
    BENCH_MUST(d_.cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(&each, d_.kernel(name),
                                                                 static_cast<int>(kThreads), 0));
    return static_cast<unsigned>(each * d_.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  }

  Outcome meet_in_grid(bool told, unsigned blocks) {
    const CUfunction kernel = d_.kernel("grid_barrier");
    CUdeviceptr arrived = d_.words(1), out = d_.words(blocks);
    void* parameters[] = {&arrived, &out};
    const CUresult status = told ? d_.cu.cuLaunchCooperativeKernel(kernel, blocks, 1, 1, kThreads,
                                                                   1, 1, 0, stream_, parameters)
                                 : d_.launch(kernel, stream_, blocks, kThreads, arrived, out);
    if (status != CUDA_SUCCESS) return {status};
    BENCH_MUST(d_.cu.cuStreamSynchronize(stream_));
    return {status, sum(out, blocks) == blocks};
  }

  std::uint64_t sum(CUdeviceptr words, std::size_t count) {
    std::uint64_t total = 0;
    for (const std::uint32_t word : d_.read(words, count)) total += word;
    return total;
  }

  bench::Device& d_;
  CUstream stream_ = d_.stream(), other_ = d_.stream();
};

using Hazard = Outcome (*)(Hazards&);
const std::map<std::string, Hazard> kHazards = {
    {"barrier", [](Hazards& h) { return h.barrier(); }},
    {"cooperative", [](Hazards& h) { return h.cooperative(); }},
    {"cooperative_too_large", [](Hazards& h) { return h.cooperative_too_large(); }},
    {"stream_k", [](Hazards& h) { return h.stream_k(); }},
    {"persistent", [](Hazards& h) { return h.persistent(); }},
    {"clusters_2", [](Hazards& h) { return h.clusters(2); }},
    {"clusters_8", [](Hazards& h) { return h.clusters(8); }},
    {"clusters_16", [](Hazards& h) { return h.clusters(16); }},
    {"host_gated", [](Hazards& h) { return h.host_gated(); }},
    {"meeting_streams", [](Hazards& h) { return h.meeting_streams(); }},
    {"fault", [](Hazards& h) { return h.fault(); }},
};

}  // namespace

int main(int argc, char** argv) {
  const auto hazard = argc > 1 ? kHazards.find(argv[1]) : kHazards.end();
  if (hazard == kHazards.end()) {
    std::fprintf(stderr, "usage: hazards NAME [REPEATS [SECONDS]], NAME of:");
    for (const auto& [name, run] : kHazards) std::fprintf(stderr, " %s", name.c_str());
    std::fprintf(stderr, "\n");
    return 2;
  }
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 20;
  std::signal(SIGALRM, &say_where);
  if (argc > 3) ::alarm(static_cast<unsigned>(std::max(1, std::atoi(argv[3]))));
  bench::Device device;
  Hazards hazards(device);
  int right = 0, done = 0;
  Outcome outcome;
  for (; done < repeats; ++done) {
    outcome = hazard->second(hazards);
    right += outcome.right ? 1 : 0;
    if (std::strcmp(argv[1], "fault") == 0) {
      ++done;
      break;
    }
  }
  std::printf(
      "{\"hazard\": \"%s\", \"repeats\": %d, \"right\": %d, \"status\": %d, \"note\": \"%s\"}\n",
      argv[1], done, right, static_cast<int>(outcome.status), outcome.note);
  return right == done ? 0 : 1;
}
