// SPDX-License-Identifier: Apache-2.0
//
// What a pool of contexts costs: time, GPU memory, resident memory. --kind:
//
//   none    (default) nothing of its own: natively, and under `vitamin run`, whose pool is the
//           difference
//   green   --entries green contexts over unions of groups of 8 SMs, a stream each: a flat pool
//   mps     --entries contexts as `cuCtxCreate` makes them with an execution affinity, one for
//           each number of processors, a stream each: the paper's MPS-Pool. Needs MPS; makes as
//           many as the driver gives
//
// The driver's interface alone, so that it runs on the software device as far as that goes. Memory
// of the device is counted for all processes: nothing else may run.
#include <algorithm>
#include <cstring>

#include "driver.h"

namespace {

using bench::now_ns;

double resident_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::atof(line.c_str() + 6) / 1024;
  return 0;
}

std::string option(int argc, char** argv, const char* name, const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  return otherwise;
}

class Pool {
 public:
  explicit Pool(bench::Device& device) : d_(device) {}

  double used_mib() const {
    std::size_t free = 0, total = 0;
    BENCH_MUST(d_.cu.cuMemGetInfo(&free, &total));
    return static_cast<double>(total - free) / 1048576;
  }

  // Answers why there are not more; success: there are as many as were asked for.
  CUresult green(std::size_t entries) {
    const auto resource_of =
        d_.cu.find<decltype(&::cuDeviceGetDevResource)>("cuDeviceGetDevResource");
    const auto split =
        d_.cu.find<decltype(&::cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount");
    const auto describe =
        d_.cu.find<decltype(&::cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc");
    const auto create = d_.cu.find<decltype(&::cuGreenCtxCreate)>("cuGreenCtxCreate");
    const auto create_stream =
        d_.cu.find<decltype(&::cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate");
    CUdevResource all{}, rest{};
    unsigned count = 64;
    std::vector<CUdevResource> groups(count);
    BENCH_MUST(resource_of(d_.device, &all, CU_DEV_RESOURCE_TYPE_SM));
    BENCH_MUST(split(groups.data(), &count, &all, &rest, 0, 8));
    groups.resize(count);
    if (rest.sm.smCount > 0) groups.push_back(rest);
    for (const std::uint64_t set : sets(static_cast<unsigned>(groups.size()), entries)) {
      const std::uint64_t begin = now_ns();
      std::vector<CUdevResource> chosen;
      for (std::size_t i = 0; i < groups.size(); ++i)
        if (set >> i & 1) chosen.push_back(groups[i]);
      CUdevResourceDesc description = nullptr;
      CUgreenCtx context = nullptr;
      CUstream stream = nullptr;
      BENCH_MUST(describe(&description, chosen.data(), static_cast<unsigned>(chosen.size())));
      const CUresult status = create(&context, description, d_.device, CU_GREEN_CTX_DEFAULT_STREAM);
      if (status != CUDA_SUCCESS) return status;
      BENCH_MUST(create_stream(&stream, context, CU_STREAM_NON_BLOCKING, 0));
      each_ms.push_back(1e-6 * static_cast<double>(now_ns() - begin));
      streams_.push_back(stream);
    }
    return CUDA_SUCCESS;
  }

  CUresult mps(std::size_t entries) {
    using Create = CUresult (*)(CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice);
    const auto supports =
        d_.cu.find<decltype(&::cuDeviceGetExecAffinitySupport)>("cuDeviceGetExecAffinitySupport");
    const auto create = d_.cu.find<Create>("cuCtxCreate_v3");
    const auto pop = d_.cu.find<decltype(&::cuCtxPopCurrent)>("cuCtxPopCurrent_v2");
    int supported = 0;
    BENCH_MUST(supports(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, d_.device));
    if (supported == 0) bench::Driver::stop("no execution affinity: is MPS running?");
    const int processors = d_.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    for (std::size_t i = 0; i < entries; ++i) {
      const std::uint64_t begin = now_ns();
      CUexecAffinityParam share{};
      share.type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
      share.param.smCount.val =
          static_cast<unsigned>(std::max<int>(2, processors * static_cast<int>(i % 16 + 1) / 16));
      CUcontext context = nullptr;
      const CUresult status = create(&context, &share, 1, 0, d_.device);
      if (status != CUDA_SUCCESS) return status;
      d_.stream();
      BENCH_MUST(pop(&context));
      each_ms.push_back(1e-6 * static_cast<double>(now_ns() - begin));
    }
    return CUDA_SUCCESS;
  }

  // Every entry runs something; of MPS contexts, which would need the kernels each, none does.
  void touch() {
    streams_.push_back(d_.stream());
    const CUdeviceptr words = d_.words(streams_.size());
    for (std::size_t i = 0; i < streams_.size(); ++i)
      BENCH_MUST(d_.launch(d_.kernel("add_one"), streams_[i], 1, 32, words + 4 * i));
    for (const CUstream stream : streams_) BENCH_MUST(d_.cu.cuStreamSynchronize(stream));
    for (const std::uint32_t ran : d_.read(words, streams_.size()))
      if (ran != 1) bench::Driver::stop("an entry ran nothing");
  }

  std::vector<double> each_ms;

 private:
  // `count` different sets of units: buddies and complements first, as a pool has them, then arcs
  // of every length.
  static std::vector<std::uint64_t> sets(unsigned units, std::size_t count) {
    const std::uint64_t all = (std::uint64_t{1} << units) - 1;
    std::vector<std::uint64_t> result;
    const auto add = [&](std::uint64_t set) {
      if (set != 0 && result.size() < count &&
          std::find(result.begin(), result.end(), set) == result.end())
        result.push_back(set);
    };
    for (unsigned width = 1; width <= units; width *= 2)
      for (unsigned first = 0; first + width <= units; first += width) {
        const std::uint64_t set = ((std::uint64_t{1} << width) - 1) << first;
        add(set);
        add(all & ~set);
      }
    for (unsigned width = 1; width < units; ++width)
      for (unsigned first = 0; first < units; ++first) {
        std::uint64_t set = 0;
        for (unsigned i = 0; i < width; ++i) set |= std::uint64_t{1} << (first + i) % units;
        add(set);
      }
    return result;
  }

  bench::Device& d_;
  std::vector<CUstream> streams_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string kind = option(argc, argv, "--kind", "none");
  const auto entries =
      static_cast<std::size_t>(std::atol(option(argc, argv, "--entries", "0").c_str()));
  const std::uint64_t begin = now_ns();
  bench::Device device;
  Pool pool(device);
  pool.touch();
  const double first_use_ms = 1e-6 * static_cast<double>(now_ns() - begin);
  const double used_before = pool.used_mib(), resident_before = resident_mib();
  const std::uint64_t started = now_ns();
  CUresult refused = CUDA_SUCCESS;
  if (kind == "green")
    refused = pool.green(entries);
  else if (kind == "mps")
    refused = pool.mps(entries);
  else if (kind != "none")
    bench::Driver::stop("--kind is none, green or mps");
  const double pool_ms = 1e-6 * static_cast<double>(now_ns() - started);
  pool.touch();
  std::sort(pool.each_ms.begin(), pool.each_ms.end());
  const std::size_t made = pool.each_ms.size();
  std::printf(
      "{\"name\": \"pool\", \"kind\": \"%s\", \"asked\": %zu, \"entries\": %zu, \"refused\": %d, "
      "\"first_use_ms\": %.1f, \"used_mib\": %.1f, \"resident_mib\": %.1f, \"pool_ms\": %.1f, "
      "\"one_median_ms\": %.2f, \"pool_mib\": %.1f, \"pool_resident_mib\": %.1f}\n",
      kind.c_str(), entries, made, static_cast<int>(refused), first_use_ms, pool.used_mib(),
      resident_mib(), pool_ms, made == 0 ? 0 : pool.each_ms[made / 2],
      pool.used_mib() - used_before, resident_mib() - resident_before);
}
