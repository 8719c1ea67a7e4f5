// SPDX-License-Identifier: Apache-2.0
//
// Device memory by the driver's interface alone, on a GPU and on the software device alike.
//
//   allocate cost             nanoseconds of an allocation and of a free, for each entry point
//   allocate grow BYTES PIECE CALL   takes pieces by CALL until BYTES are taken or one is refused,
//                             fills them, gives them back, does it again; what it saw, and a hash
//
// CALL: cuMemAlloc or cuMemAllocAsync.
#include <algorithm>
#include <cstring>

#include "driver.h"

namespace {

using bench::now_ns;

struct Calls {
  explicit Calls(const bench::Driver& driver)
      : free(driver.find<decltype(&::cuMemFree_v2)>("cuMemFree_v2")),
        allocate_async(driver.find<decltype(&::cuMemAllocAsync)>("cuMemAllocAsync")),
        free_async(driver.find<decltype(&::cuMemFreeAsync)>("cuMemFreeAsync")),
        pool(driver.find<decltype(&::cuDeviceGetDefaultMemPool)>("cuDeviceGetDefaultMemPool")),
        set_pool(driver.find<decltype(&::cuMemPoolSetAttribute)>("cuMemPoolSetAttribute")) {}
  decltype(&::cuMemFree_v2) free;
  decltype(&::cuMemAllocAsync) allocate_async;
  decltype(&::cuMemFreeAsync) free_async;
  decltype(&::cuDeviceGetDefaultMemPool) pool;
  decltype(&::cuMemPoolSetAttribute) set_pool;
};

std::uint64_t median(std::vector<std::uint64_t> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

template <class Take, class Give>
void time_pairs(const char* call, std::size_t bytes, Take take, Give give) {
  constexpr int kPairs = 2000, kWarm = 100;
  std::vector<std::uint64_t> taking, giving;
  for (int i = -kWarm; i < kPairs; ++i) {
    CUdeviceptr address = 0;
    const std::uint64_t begun = now_ns();
    BENCH_MUST(take(&address));
    const std::uint64_t taken = now_ns();
    BENCH_MUST(give(address));
    const std::uint64_t given = now_ns();
    if (i < 0) continue;
    taking.push_back(taken - begun);
    giving.push_back(given - taken);
  }
  std::printf("{\"call\": \"%s\", \"bytes\": %zu, \"allocate_ns\": %llu, \"free_ns\": %llu}\n",
              call, bytes, static_cast<unsigned long long>(median(taking)),
              static_cast<unsigned long long>(median(giving)));
}

void cost(const bench::Driver& cu, const Calls& calls, CUdevice device) {
  // The pool keeps what is freed, as allocators of frameworks set it.
  CUmemoryPool pool = nullptr;
  std::uint64_t keep = ~std::uint64_t{0};
  BENCH_MUST(calls.pool(&pool, device));
  BENCH_MUST(calls.set_pool(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
  for (const std::size_t bytes : {std::size_t{512}, std::size_t{2} << 20}) {
    time_pairs(
        "cuMemAlloc", bytes, [&](CUdeviceptr* at) { return cu.cuMemAlloc(at, bytes); },
        [&](CUdeviceptr at) { return calls.free(at); });
    time_pairs(
        "cuMemAllocAsync", bytes,
        [&](CUdeviceptr* at) { return calls.allocate_async(at, bytes, nullptr); },
        [&](CUdeviceptr at) { return calls.free_async(at, nullptr); });
  }
}

void grow(const bench::Driver& cu, const Calls& calls, std::size_t bytes, std::size_t piece,
          bool async) {
  constexpr std::size_t kWords = 1024;
  std::size_t lowest = ~std::size_t{0}, total = 0, free = 0, most = 0;
  CUresult refused = CUDA_SUCCESS;
  std::uint64_t hash = 14695981039346656037ULL;
  for (unsigned round = 0; round < 2; ++round) {
    std::vector<CUdeviceptr> pieces;
    while (pieces.size() * piece < bytes) {
      CUdeviceptr address = 0;
      const CUresult taken =
          async ? calls.allocate_async(&address, piece, nullptr) : cu.cuMemAlloc(&address, piece);
      if (taken != CUDA_SUCCESS) {
        refused = taken;
        break;
      }
      pieces.push_back(address);
      BENCH_MUST(cu.cuMemGetInfo(&free, &total));
      lowest = std::min(lowest, free);
    }
    most = std::max(most, pieces.size() * piece);
    std::vector<std::uint32_t> words(kWords);
    // Of the first piece, which every run gets.
    BENCH_MUST(cu.cuMemsetD32(pieces.at(0), 0x9e3779b9U + round, kWords));
    BENCH_MUST(cu.cuMemcpyDtoH(words.data(), pieces.at(0), kWords * sizeof words[0]));
    for (const std::uint32_t word : words) hash = (hash ^ word) * 1099511628211ULL;
    for (const CUdeviceptr address : pieces)
      BENCH_MUST(async ? calls.free_async(address, nullptr) : calls.free(address));
    BENCH_MUST(cu.cuCtxSynchronize());
  }
  std::printf("{\"total\": %zu, \"used\": %zu, \"taken\": %zu, \"refused\": %d}\n", total,
              total - lowest, most, static_cast<int>(refused));
  std::printf("{\"name\": \"first piece\", \"hash\": \"%016llx\"}\n",
              static_cast<unsigned long long>(hash));
}

}  // namespace

int main(int argc, char** argv) {
  bench::Device device;
  const Calls calls(device.cu);
  if (argc == 2 && std::strcmp(argv[1], "cost") == 0) {
    cost(device.cu, calls, device.device);
  } else if (argc == 5 && std::strcmp(argv[1], "grow") == 0) {
    grow(device.cu, calls, std::strtoull(argv[2], nullptr, 10), std::strtoull(argv[3], nullptr, 10),
         std::strcmp(argv[4], "cuMemAllocAsync") == 0);
  } else {
    std::fprintf(stderr, "usage: allocate cost | grow BYTES PIECE CALL\n");
    return 2;
  }
}
