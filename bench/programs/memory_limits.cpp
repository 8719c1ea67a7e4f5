// SPDX-License-Identifier: Apache-2.0
//
// What two processes are told and get where their device memory is limited, by whatever limits it:
// a quota of Vitamin, MPS's own limit, or the device.
//
//   memory_limits MOST PIECE
//
// The neighbour, a process that is forked first, takes one piece. The program takes pieces by one
// entry point after the other until one is refused or it has MOST, and gives them back in between;
// while it has all that it gets by cuMemAlloc, the neighbour takes what it gets. One line each:
// free and total memory as told before, bytes taken, the code of the refusal (0: none), free memory
// as told then, whether the context is usable after it and whether earlier contents are intact.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "driver.h"

namespace {

constexpr std::uint32_t kMark = 0x9e3779b9;

struct Taken {
  std::size_t told_free = 0, told_total = 0, bytes = 0, left = 0;
  int refused = 0;
  bool usable = false, intact = false;
};

void print(const char* who, const char* step, const Taken& taken) {
  std::printf(
      "{\"who\": \"%s\", \"step\": \"%s\", \"told_free\": %zu, \"told_total\": %zu, \"taken\": "
      "%zu, \"refused\": %d, \"left\": %zu, \"usable\": %d, \"intact\": %d}\n",
      who, step, taken.told_free, taken.told_total, taken.bytes, taken.refused, taken.left,
      taken.usable ? 1 : 0, taken.intact ? 1 : 0);
  std::fflush(stdout);
}

// A piece of memory; `give` gives it back.
struct TakenPiece {
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
};

class Taker {
 public:
  Taker(std::size_t most, std::size_t piece) : most_(most), piece_(piece) {
    BENCH_MUST(cu_.cuMemAlloc(&marked_, piece_));
    BENCH_MUST(cu_.cuMemsetD32(marked_, kMark, 1));
    BENCH_MUST(cu_.cuCtxSynchronize());
  }

  // Keeps what it took until give_all().
  Taken take_all(const char* call) {
    Taken taken;
    BENCH_MUST(cu_.cuMemGetInfo(&taken.told_free, &taken.told_total));
    while ((held_.size() + 1) * piece_ <= most_) {
      TakenPiece piece;
      if (const CUresult status = take(call, &piece); status != CUDA_SUCCESS) {
        taken.refused = static_cast<int>(status);
        break;
      }
      held_.push_back(piece);
    }
    taken.bytes = held_.size() * piece_;
    std::size_t total = 0;
    BENCH_MUST(cu_.cuMemGetInfo(&taken.left, &total));
    taken.usable = cu_.cuCtxSynchronize() == CUDA_SUCCESS;
    taken.intact = read(marked_) == kMark;
    return taken;
  }
  void give_all(const char* call) {
    for (const TakenPiece& piece : held_) give(call, piece);
    held_.clear();
    BENCH_MUST(cu_.cuCtxSynchronize());
    CUmemoryPool pool = nullptr;
    BENCH_MUST(pool_(&pool, device_));
    BENCH_MUST(trim_(pool, 0));
  }

 private:
  struct PrimaryContext {
    explicit PrimaryContext(const bench::Driver& cu, CUdevice* device) {
      CUcontext context = nullptr;
      BENCH_MUST(cu.cuInit(0));
      BENCH_MUST(cu.cuDeviceGet(device, 0));
      BENCH_MUST(cu.cuDevicePrimaryCtxRetain(&context, *device));
      BENCH_MUST(cu.cuCtxSetCurrent(context));
    }
  };

  CUresult take(const char* call, TakenPiece* piece) {
    if (std::strcmp(call, "cuMemAlloc") == 0) return cu_.cuMemAlloc(&piece->address, piece_);
    if (std::strcmp(call, "cuMemAllocAsync") == 0)
      return allocate_async_(&piece->address, piece_, nullptr);
    if (std::strcmp(call, "cuMemAllocManaged") == 0)
      return allocate_managed_(&piece->address, piece_, CU_MEM_ATTACH_GLOBAL);
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
    return create_(&piece->handle, piece_, &properties, 0);
  }
  void give(const char* call, const TakenPiece& piece) {
    if (piece.handle != 0)
      BENCH_MUST(release_(piece.handle));
    else if (std::strcmp(call, "cuMemAllocAsync") == 0)
      BENCH_MUST(free_async_(piece.address, nullptr));
    else
      BENCH_MUST(free_(piece.address));
  }
  std::uint32_t read(CUdeviceptr address) {
    std::uint32_t word = 0;
    BENCH_MUST(cu_.cuMemcpyDtoH(&word, address, sizeof word));
    return word;
  }

  const std::size_t most_, piece_;
  const bench::Driver cu_;
  CUdevice device_ = 0;
  const PrimaryContext context_{cu_, &device_};
  std::vector<TakenPiece> held_;
  CUdeviceptr marked_ = 0;
#define MEMORY_CALL(member, name) \
  decltype(&::name) member = cu_.find<decltype(&::name)>(BENCH_SYMBOL(name))
  MEMORY_CALL(free_, cuMemFree);
  MEMORY_CALL(allocate_async_, cuMemAllocAsync);
  MEMORY_CALL(free_async_, cuMemFreeAsync);
  MEMORY_CALL(allocate_managed_, cuMemAllocManaged);
  MEMORY_CALL(create_, cuMemCreate);
  MEMORY_CALL(release_, cuMemRelease);
  MEMORY_CALL(pool_, cuDeviceGetDefaultMemPool);
  MEMORY_CALL(trim_, cuMemPoolTrimTo);
#undef MEMORY_CALL
};

// Takes what it gets for each byte that it reads, and answers what that was.
[[noreturn]] void be_neighbour(std::size_t most, std::size_t piece, int orders, int answers) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Taker process(most, piece);
  char order = 0;
  if (::write(answers, &order, 1) != 1) std::_Exit(1);
  while (::read(orders, &order, 1) == 1) {
    const Taken taken = process.take_all("cuMemAlloc");
    process.give_all("cuMemAlloc");
    if (::write(answers, &taken, sizeof taken) != sizeof taken) break;
  }
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t most = argc == 3 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const std::size_t piece = argc == 3 ? std::strtoull(argv[2], nullptr, 10) : 0;
  int orders[2], answers[2];
  if (piece == 0 || ::pipe(orders) != 0 || ::pipe(answers) != 0) {
    std::fprintf(stderr, "usage: memory_limits MOST PIECE\n");
    return 2;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(orders[1]);  // it ends when its parent closes its own
    be_neighbour(most, piece, orders[0], answers[1]);
  }
  ::close(answers[1]);
  char ready = 0;
  if (::read(answers[0], &ready, 1) != 1) bench::Driver::stop("the neighbour does not start");
  Taker process(most, piece);
  for (const char* call : {"cuMemAlloc", "cuMemAllocAsync", "cuMemCreate", "cuMemAllocManaged"}) {
    print("program", call, process.take_all(call));
    if (std::strcmp(call, "cuMemAlloc") == 0) {
      Taken taken;
      if (::write(orders[1], &ready, 1) != 1 ||
          ::read(answers[0], &taken, sizeof taken) != sizeof taken)
        bench::Driver::stop("the neighbour has ended");
      print("neighbour", "beside it", taken);
    }
    process.give_all(call);
  }
  ::close(orders[1]);
  ::waitpid(child, nullptr, 0);
  return 0;
}
