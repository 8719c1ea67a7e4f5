// SPDX-License-Identifier: Apache-2.0
//
// Makes and destroys objects of one kind, again and again, and prints after each round what the
// process and the device hold:
//
//   flat_memory KIND OBJECTS ROUNDS AT_A_TIME
//     ->   "heap <bytes> resident <bytes> device <bytes> trimmed <bytes>" a round
//   flat_memory pool SCENARIO SEED
//     ->   the most that the device's pool held while memory was allocated and freed in stream
//     order
//
// Without arguments, the kinds. `heap`: what malloc() gave out and has not got back. `trimmed`: of
// the device, without what its pool keeps for allocations to come.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "session.h"

extern "C" [[gnu::weak]] std::size_t __sanitizer_get_current_allocated_bytes();

namespace {

std::size_t heap_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr)
    return __sanitizer_get_current_allocated_bytes();
  const struct mallinfo2 facts = ::mallinfo2();
  return facts.uordblks + facts.hblkhd;
}

std::size_t resident_bytes() {
  unsigned long total = 0, resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%lu %lu", &total, &resident) != 2) std::exit(3);
  std::fclose(file);
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::size_t device_bytes() {
  std::size_t free = 0, total = 0;
  check(cuMemGetInfo(&free, &total));
  return total - free;
}

void trim_pool(CUdevice device) {
  CUmemoryPool pool = nullptr;
  check(cuDeviceGetMemPool(&pool, device));
  check(cuMemPoolTrimTo(pool, 0));
}

// What a kind's objects are made in, and a stream on which something has run.
struct Place : Session {
  CUdeviceptr word = words(1);
  CUstream other = stream();
  std::string image = module_image("TEST_KERNELS");
  CUfunction add = kernel("add");

  void work(CUstream on) const { launch("add", on, word, Word{1}, Word{1}); }
  CUDA_KERNEL_NODE_PARAMS node() {
    CUDA_KERNEL_NODE_PARAMS node{};
    node.func = add;
    node.gridDimX = node.gridDimY = node.gridDimZ = 1;
    node.blockDimX = 32;
    node.blockDimY = node.blockDimZ = 1;
    node.kernelParams = arguments_;
    return node;
  }
  CUgraph graph() {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    const CUDA_KERNEL_NODE_PARAMS parameters = this->node();
    check(drv.cuGraphCreate(&graph, 0));
    check(drv.cuGraphAddKernelNode(&node, graph, nullptr, 0, &parameters));
    return graph;
  }

 private:
  Word value_ = 1, count_ = 1;
  void* arguments_[4] = {&word, &value_, &count_, nullptr};
};

using Destroy = std::function<void()>;
using Make = Destroy (*)(Place&);

Destroy stream(Place& place, unsigned flags, bool wait) {
  CUstream stream = place.stream(flags);
  place.work(stream);
  if (wait) check(drv.cuStreamSynchronize(stream));
  return [stream] { check(drv.cuStreamDestroy(stream)); };
}

Destroy event(Place& place, bool recorded_by_graph) {
  CUevent event = place.event(CU_EVENT_DEFAULT);
  place.work(place.other);
  check(drv.cuEventRecord(event, place.other));
  check(drv.cuStreamWaitEvent(nullptr, event, 0));
  if (recorded_by_graph) {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    check(drv.cuGraphCreate(&graph, 0));
    check(drv.cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
    check(drv.cuGraphDestroy(graph));
  }
  return [event] { check(drv.cuEventDestroy(event)); };
}

Destroy executable(Place& place, int launches) {
  CUgraph graph = place.graph();
  CUgraphExec executable = nullptr;
  check(drv.cuGraphInstantiate(&executable, graph, 0));
  check(drv.cuGraphDestroy(graph));
  for (int i = 0; i < launches; ++i) check(drv.cuGraphLaunch(executable, place.other));
  return [executable] { check(drv.cuGraphExecDestroy(executable)); };
}

Destroy captured(Place& place) {
  CUstream origin = place.stream();
  CUgraph graph = nullptr;
  check(drv.cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  place.work(origin);
  check(drv.cuStreamEndCapture(origin, &graph));
  return [graph, origin] {
    check(drv.cuGraphDestroy(graph));
    check(drv.cuStreamDestroy(origin));
  };
}

Destroy broken_capture(Place& place) {
  CUstream origin = place.stream();
  place.work(origin);
  check(drv.cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  place.work(origin);
  return [origin] { check(drv.cuStreamDestroy(origin)); };
}

Destroy module(Place& place) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  check(drv.cuModuleLoadData(&module, place.image.data()));
  check(drv.cuModuleGetFunction(&function, module, "add"));
  Word one = 1;
  void* arguments[] = {&place.word, &one, &one, nullptr};
  check(drv.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, place.other, arguments, nullptr));
  return [module] { check(drv.cuModuleUnload(module)); };
}

Destroy library(Place& place) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  check(drv.cuLibraryLoadData(&library, place.image.data(), nullptr, nullptr, 0, nullptr, nullptr,
                              0));
  check(drv.cuLibraryGetKernel(&kernel, library, "add"));
  Word one = 1;
  void* arguments[] = {&place.word, &one, &one, nullptr};
  check(drv.cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, place.other,
                           arguments, nullptr));
  // The driver keeps code until an unload finds the device with nothing to run.
  return [library, &place] {
    check(drv.cuStreamSynchronize(place.other));
    check(drv.cuLibraryUnload(library));
  };
}

// A context of the application's own, with a stream and an event that were used there.
Destroy context(Place& place) {
  CUcontext context = nullptr;
  check(drv.cuCtxCreate(&context, nullptr, 0, place.device));
  CUstream stream = place.stream();
  CUevent event = place.event();
  check(drv.cuEventRecord(event, stream));
  check(drv.cuStreamSynchronize(stream));
  check(drv.cuEventDestroy(event));
  check(drv.cuStreamDestroy(stream));
  check(drv.cuCtxSetCurrent(place.context));
  return [context] { check(drv.cuCtxDestroy(context)); };
}

// Everything of the context goes with it.
Destroy primary_context(Place& place) {
  static int ordinal = 1;
  CUdevice device = 0;
  CUcontext context = nullptr;
  check(drv.cuDeviceGet(&device, ordinal));
  check(drv.cuDevicePrimaryCtxRetain(&context, device));
  check(drv.cuCtxSetCurrent(context));
  CUstream stream = place.stream();
  CUevent event = place.event();
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  check(drv.cuModuleLoadData(&module, place.image.data()));
  check(drv.cuModuleGetFunction(&function, module, "nothing"));
  for (CUstream on : {stream, CU_STREAM_PER_THREAD, CUstream()})
    check(drv.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, on, nullptr, nullptr));
  check(drv.cuEventRecord(event, stream));
  check(drv.cuCtxSynchronize());
  check(drv.cuCtxSetCurrent(place.context));
  return [device] { check(drv.cuDevicePrimaryCtxRelease(device)); };
}

// The default stream of a thread that ends.
Destroy thread(Place& place) {
  std::thread([&place] {
    check(drv.cuCtxSetCurrent(place.context));
    place.work(CU_STREAM_PER_THREAD);
    check(drv.cuStreamSynchronize(CU_STREAM_PER_THREAD));
  }).join();
  return [] {};
}

Destroy green_context(Place& place) {
  CUdevResource all{}, part{}, rest{};
  unsigned groups = 1;
  check(cuDeviceGetDevResource(place.device, &all, CU_DEV_RESOURCE_TYPE_SM));
  check(cuDevSmResourceSplitByCount(&part, &groups, &all, &rest, 0, 16));
  CUdevResourceDesc description{};
  CUgreenCtx green = nullptr;
  CUstream stream = nullptr;
  check(cuDevResourceGenerateDesc(&description, &part, 1));
  check(cuGreenCtxCreate(&green, description, place.device, CU_GREEN_CTX_DEFAULT_STREAM));
  check(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  place.work(stream);
  check(drv.cuStreamSynchronize(stream));
  check(drv.cuStreamDestroy(stream));
  return [green] { check(cuGreenCtxDestroy(green)); };
}

Destroy host_memory(Place&) {
  void* memory = nullptr;
  check(drv.cuMemAllocHost(&memory, 4096));
  return [memory] { check(drv.cuMemFreeHost(memory)); };
}

Destroy registered_memory(Place&) {
  void* memory = std::aligned_alloc(4096, 4096);
  check(cuMemHostRegister(memory, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
  return [memory] {
    check(cuMemHostUnregister(memory));
    std::free(memory);
  };
}

Destroy device_memory(Place&) {
  CUdeviceptr memory = 0;
  check(drv.cuMemAlloc(&memory, 4096));
  return [memory] { check(drv.cuMemFree(memory)); };
}

Destroy pool_memory(Place& place) {
  CUdeviceptr memory = 0;
  check(drv.cuMemAllocAsync(&memory, 4096, place.other));
  place.launch("add", place.other, memory, Word{1}, Word{1});
  return [memory, &place] { check(drv.cuMemFreeAsync(memory, place.other)); };
}

Destroy pool_memory_freed_at_once(Place& place) {
  CUdeviceptr memory = 0;
  check(drv.cuMemAllocAsync(&memory, 4096, place.other));
  check(drv.cuStreamSynchronize(place.other));
  return [memory] { check(drv.cuMemFree(memory)); };
}

// The stream that allocates does nothing else.
Destroy pool_memory_used_elsewhere(Place& place) {
  static const CUstream allocating = place.stream(CU_STREAM_DEFAULT);
  CUdeviceptr memory = 0;
  check(drv.cuMemAllocAsync(&memory, 4096, allocating));
  place.launch("add", nullptr, memory, Word{1}, Word{1});
  return [memory] { check(drv.cuMemFreeAsync(memory, nullptr)); };
}

Destroy memory_pool(Place& place) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = place.device;
  CUmemoryPool pool = nullptr;
  CUdeviceptr memory = 0;
  check(cuMemPoolCreate(&pool, &properties));
  check(cuMemAllocFromPoolAsync(&memory, 4096, pool, place.other));
  place.launch("add", place.other, memory, Word{1}, Word{1});
  check(drv.cuMemFreeAsync(memory, place.other));
  check(drv.cuStreamSynchronize(place.other));
  return [pool] { check(cuMemPoolDestroy(pool)); };
}

Destroy host_function(Place& place) {
  check(drv.cuLaunchHostFunc(
      place.other, [](void*) {}, nullptr));
  place.work(place.other);
  return [&place] { check(drv.cuStreamSynchronize(place.other)); };
}

const std::map<std::string, Make> kKinds = {
    {"streams", [](Place& place) { return stream(place, CU_STREAM_NON_BLOCKING, true); }},
    {"blocking_streams", [](Place& place) { return stream(place, CU_STREAM_DEFAULT, true); }},
    {"busy_streams", [](Place& place) { return stream(place, CU_STREAM_NON_BLOCKING, false); }},
    {"busy_blocking_streams", [](Place& place) { return stream(place, CU_STREAM_DEFAULT, false); }},
    {"events", [](Place& place) { return event(place, false); }},
    {"events_in_graphs", [](Place& place) { return event(place, true); }},
    {"graphs",
     [](Place& place) -> Destroy {
       CUgraph graph = place.graph();
       return [graph] { check(drv.cuGraphDestroy(graph)); };
     }},
    {"executables", [](Place& place) { return executable(place, 1); }},
    {"bound_executables", [](Place& place) { return executable(place, 4); }},
    {"captures", &captured},
    {"broken_captures", &broken_capture},
    {"modules", &module},
    {"libraries", &library},
    {"contexts", &context},
    {"primary_contexts", &primary_context},
    {"threads", &thread},
    {"green_contexts", &green_context},
    {"host_memory", &host_memory},
    {"registered_memory", &registered_memory},
    {"device_memory", &device_memory},
    {"pool_memory", &pool_memory},
    {"pool_memory_freed_at_once", &pool_memory_freed_at_once},
    {"memory_pools", &memory_pool},
    {"pool_memory_used_elsewhere", &pool_memory_used_elsewhere},
    {"host_functions", &host_function},
    // For the test of the test: one that leaks.
    {"leaks",
     [](Place&) -> Destroy {
       static std::vector<void*> held;
       held.push_back(std::malloc(64));
       return [] {};
     }},
};

// --- memory in stream order
// --------------------------------------------------------------------

// Each owner of a block writes its number there, and reads it back much later.
class Owners {
 public:
  Owners(Place& place, CUstream stream, std::size_t most)
      : place_(place), stream_(stream), most_(most), seen_(place.words(most)) {}
  CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr block = 0;
    check(drv.cuMemAllocAsync(&block, bytes, stream_));
    place_.launch("fill", stream_, block, ++owners_, Word{1});
    return block;
  }
  void free(CUdeviceptr block) {
    place_.launch("slow_copy", stream_, seen_ + freed_++ * sizeof(Word), block, Word{1},
                  kMillisecond / 2);
    check(drv.cuMemFreeAsync(block, stream_));
  }
  bool all() const { return owners_ == most_; }
  std::size_t owners() const { return owners_; }
  std::vector<Word> seen() const { return place_.read(seen_, freed_); }

 private:
  Place& place_;
  CUstream stream_;
  std::size_t most_;
  CUdeviceptr seen_;
  Word owners_ = 0;
  std::size_t freed_ = 0;
};

constexpr std::size_t kMiB = 1 << 20;

void one_size(Owners& owners, std::mt19937&) {
  while (!owners.all()) owners.free(owners.allocate(16 * kMiB));
}

void many_sizes(Owners& owners, std::mt19937& random) {
  std::vector<CUdeviceptr> live;
  while (!owners.all() || !live.empty()) {
    const bool frees = !live.empty() && (live.size() == 4 || owners.all() || random() % 2 == 0);
    if (!frees) {
      live.push_back(owners.allocate((1 + random() % 8) * kMiB / 2));
      continue;
    }
    std::swap(live[random() % live.size()], live.back());
    owners.free(live.back());
    live.pop_back();
  }
}

// Prints what each owner found in its block, and the most that the pool held. `gated`: nothing runs
// before every call was made.
void pool_scenario(const std::string& name, unsigned seed) {
  Place place;
  CUstream stream = place.stream();
  const bool gated = name.ends_with("_behind_a_gate");
  // A stream takes a thousand operations before a call waits for room, which there never is behind
  // a gate.
  Owners owners(place, stream, gated ? 100 : 300);
  std::mt19937 random(seed);
  std::atomic<bool> open{false};
  if (gated)
    check(drv.cuLaunchHostFunc(
        stream,
        [](void* gate) {
          while (!static_cast<std::atomic<bool>*>(gate)->load())
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        &open));
  (name.starts_with("one_size") ? one_size : many_sizes)(owners, random);
  open = true;
  check(drv.cuStreamSynchronize(stream));
  std::uint64_t digest = 0;
  for (const Word seen : owners.seen()) digest = digest * 31 + seen;
  CUmemoryPool pool = nullptr;
  cuuint64_t most = 0;
  check(cuDeviceGetMemPool(&pool, place.device));
  check(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &most));
  std::printf("%zu owners found %llu\n%llu\n", owners.owners(),
              static_cast<unsigned long long>(digest), static_cast<unsigned long long>(most));
}

}  // namespace

int main(int count, char** words) {
  if (count == 4 && std::string(words[1]) == "pool") {
    reach_driver();
    pool_scenario(words[2], static_cast<unsigned>(std::atoi(words[3])));
    return 0;
  }
  const auto kind = kKinds.find(count == 5 ? words[1] : "");
  if (kind == kKinds.end()) {
    for (const auto& [name, make] : kKinds) std::printf("%s\n", name.c_str());
    return 64;
  }
  reach_driver();
  Place place;
  const int objects = std::atoi(words[2]);
  const std::size_t at_a_time = std::strtoul(words[4], nullptr, 10);
  std::vector<Destroy> live;
  live.reserve(at_a_time);
  for (int round = 0; round < std::atoi(words[3]); ++round) {
    for (int i = 0; i < objects; ++i) {
      // However slow this machine is, not more than 8 objects have work that has not ended.
      if (i % 8 == 0) check(drv.cuCtxSynchronize());
      live.push_back(kind->second(place));
      if (live.size() < at_a_time && i + 1 < objects) continue;
      for (const Destroy& destroy : live) destroy();
      live.clear();
    }
    check(drv.cuCtxSynchronize());
    // The next object finds what has ended by now.
    for (int i = 0; i < 4; ++i) kind->second(place)();
    check(drv.cuCtxSynchronize());
    ::malloc_trim(0);
    std::printf("heap %zu resident %zu device %zu ", heap_bytes(), resident_bytes(),
                device_bytes());
    trim_pool(place.device);
    std::printf("trimmed %zu\n", device_bytes());
    std::fflush(stdout);
  }
  return 0;
}
