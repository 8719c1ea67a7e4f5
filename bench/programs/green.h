// SPDX-License-Identifier: Apache-2.0
//
// Green contexts made by a program itself: the baselines that the evaluation compares with.
#pragma once

#include "bench.h"

namespace bench {

struct GreenStream {
  CUgreenCtx context = nullptr;
  cudaStream_t stream = nullptr;
};

// One split of device 0 into groups of 8 SMs and the rest, and contexts over unions of them.
class GreenDevice {
 public:
  GreenDevice() {
    BENCH_CHECK(cudaFree(nullptr));
    CUdevResource all{};
    CUdevResource rest{};
    unsigned count = 64;
    groups_.resize(count);
    BENCH_CHECK(get_resource_(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    BENCH_CHECK(split_(groups_.data(), &count, &all, &rest, 0, 8));
    groups_.resize(count);
    if (rest.sm.smCount > 0) groups_.push_back(rest);
  }

  unsigned units() const { return static_cast<unsigned>(groups_.size()); }

  GreenStream create(std::uint64_t set) const {
    std::vector<CUdevResource> chosen;
    for (unsigned i = 0; i < units(); ++i)
      if (set >> i & 1) chosen.push_back(groups_[i]);
    CUdevResourceDesc description = nullptr;
    GreenStream green;
    CUstream stream = nullptr;
    BENCH_CHECK(describe_(&description, chosen.data(), static_cast<unsigned>(chosen.size())));
    BENCH_CHECK(create_(&green.context, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    BENCH_CHECK(create_stream_(&stream, green.context, CU_STREAM_NON_BLOCKING, 0));
    green.stream = stream;
    return green;
  }

  void destroy(const GreenStream& green) const {
    BENCH_CHECK(cudaStreamDestroy(green.stream));
    BENCH_CHECK(destroy_(green.context));
  }

  // `count` different sets: buddies and complements first, as a pool has them, then arcs of every
  // length.
  std::vector<std::uint64_t> sets(std::size_t count) const {
    const unsigned n = units();
    const std::uint64_t all = (std::uint64_t{1} << n) - 1;
    std::vector<std::uint64_t> result;
    const auto add = [&](std::uint64_t set) {
      if (set != 0 && result.size() < count &&
          std::find(result.begin(), result.end(), set) == result.end())
        result.push_back(set);
    };
    for (unsigned width = 1; width <= n; width *= 2)
      for (unsigned first = 0; first + width <= n; first += width) {
        const std::uint64_t set = ((std::uint64_t{1} << width) - 1) << first;
        add(set);
        add(all & ~set);
      }
    for (unsigned width = 1; width < n; ++width)
      for (unsigned first = 0; first < n; ++first) {
        std::uint64_t set = 0;
        for (unsigned i = 0; i < width; ++i) set |= std::uint64_t{1} << (first + i) % n;
        add(set);
      }
    return result;
  }

 private:
  std::vector<CUdevResource> groups_;
  decltype(&::cuDeviceGetDevResource) get_resource_ = BENCH_DRIVER(cuDeviceGetDevResource, 12040);
  decltype(&::cuDevSmResourceSplitByCount) split_ =
      BENCH_DRIVER(cuDevSmResourceSplitByCount, 12040);
  decltype(&::cuDevResourceGenerateDesc) describe_ = BENCH_DRIVER(cuDevResourceGenerateDesc, 12040);
  decltype(&::cuGreenCtxCreate) create_ = BENCH_DRIVER(cuGreenCtxCreate, 12040);
  decltype(&::cuGreenCtxDestroy) destroy_ = BENCH_DRIVER(cuGreenCtxDestroy, 12040);
  decltype(&::cuGreenCtxStreamCreate) create_stream_ = BENCH_DRIVER(cuGreenCtxStreamCreate, 12050);
};

}  // namespace bench
