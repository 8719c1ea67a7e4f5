// SPDX-License-Identifier: Apache-2.0
//
// Takes and gives device memory through every entry point that has some, as its standard input
// says, a line each; answers a line each. Sizes are bytes.
//
//   take KIND BYTES NAME   status of the call; what was got is kept under NAME
//   give NAME              status
//   info                   status, free and total memory as the driver says to this program
//   total                  status and cuDeviceTotalMem
//   native                 free memory as the driver says, asked past our library
//   unseen BYTES           status of an allocation past our library
//   sync                   status of cuCtxSynchronize
//   trim                   status of cuMemPoolTrimTo of the default pool
//   keep BYTES             sets the default pool's release threshold
//   context make|end|reset a context of its own, made current; destroyed; the primary one is reset
//   graph NAME build BYTES... status; a graph that allocates and frees each in turn. A size that
//                          begins with + is not freed
//   graph NAME capture BYTES  status; the same of a captured cuMemAllocAsync and cuMemFreeAsync
//   graph NAME launch|upload[_ptsz] STREAM  status, in stream 0 or 1
//   graph NAME end         status; the executable is destroyed
//   graph NAME free        status; what it left allocated is freed
//   graph trim             status of cuDeviceGraphMemTrim
//   graph reserved         bytes that the device has reserved for graphs
//   race THREADS ROUNDS KIND BYTES   threads take and give at once; how many were refused
//   cost ROUNDS KIND BYTES           nanoseconds for one taking and giving
//   ipc ...                          memory that processes share: shared_memory.cpp
//   fork COMMAND...        a child that was forked does that; what it answered
//   exec                   0, then this program again, in this process
//   kill                   by SIGKILL
#include <dlfcn.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "driver.h"

std::string shared_memory(std::istringstream& words);  // shared_memory.cpp

namespace {

constexpr std::size_t kRow = 512;

struct Held {
  std::function<CUresult()> give;
};
std::map<std::string, Held> held;
CUdevice device = 0;
CUcontext primary = nullptr;
CUcontext made = nullptr;

CUmemAllocationProp on_device(CUmemLocationType type = CU_MEM_LOCATION_TYPE_DEVICE) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {type, device};
  return properties;
}

CUDA_ARRAY3D_DESCRIPTOR words_in(std::size_t bytes) {
  CUDA_ARRAY3D_DESCRIPTOR array{};
  array.Width = kRow / 4;
  array.Height = bytes / kRow;
  array.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  array.NumChannels = 1;
  return array;
}

// A canary where the driver writes its answer: a refused call writes nothing there.
template <class T>
T canary() {
  T value;
  // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer is a value here
  std::memset(&value, 0x5a, sizeof value);
  return value;
}
template <class T>
CUresult checked(CUresult status, const T& value) {
  const T before = canary<T>();
  // NOLINTNEXTLINE(bugprone-sizeof-expression): a pointer is a value here
  if (status != CUDA_SUCCESS && std::memcmp(&value, &before, sizeof value) != 0)
    return CUDA_ERROR_UNKNOWN;
  return status;
}

template <class Take>
CUresult linear(Held& into, Take take) {
  auto address = canary<CUdeviceptr>();
  const CUresult status = checked(take(&address), address);
  into.give = [address] { return cuMemFree(address); };
  return status;
}
template <class Take>
CUresult array(Held& into, Take take) {
  auto handle = canary<CUarray>();
  const CUresult status = checked(take(&handle), handle);
  into.give = [handle] { return cuArrayDestroy(handle); };
  return status;
}
// From a pool, freed in stream order and by cuMemFree in turn.
template <class Take>
CUresult pooled(Held& into, Take take) {
  static std::atomic<int> number{0};
  CUdeviceptr address = 0;
  const CUresult status = take(&address);
  const bool in_order = number++ % 2 == 0;
  into.give = [address, in_order] {
    return in_order ? cuMemFreeAsync(address, nullptr) : cuMemFree(address);
  };
  return status;
}
CUresult mapped(Held& into, std::size_t bytes, bool release_first) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = on_device();
  if (const CUresult status = cuMemCreate(&handle, bytes, &properties, 0); status != CUDA_SUCCESS)
    return status;
  CUdeviceptr address = 0;
  check(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  check(cuMemMap(address, bytes, 0, handle, 0));
  if (release_first) {
    check(cuMemRelease(handle));
    // What NCCL does: the handle of the mapping is asked for again.
    check(cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address)));
  }
  into.give = [=] {
    check(cuMemRelease(handle));
    check(cuMemUnmap(address, bytes));
    return cuMemAddressFree(address, bytes);
  };
  return CUDA_SUCCESS;
}

// A version of an entry point that cuda.h names no more, or only for other programs.
template <class... Args>
CUresult call(const char* name, Args... args) {
  auto* const entry = reinterpret_cast<CUresult (*)(Args...)>(dlsym(RTLD_DEFAULT, name));
  return entry != nullptr ? entry(args...) : CUDA_ERROR_NOT_FOUND;
}

// The first versions, with sizes and addresses of 32 bits.
CUresult take_v1(const std::string& kind, std::size_t bytes) {
  const auto rows = static_cast<unsigned>(bytes / kRow);
  unsigned address = 0, pitch = 0;
  CUarray array = nullptr;
  struct {
    unsigned width, height;
    CUarray_format format;
    unsigned channels;
  } flat{kRow / 4, rows, CU_AD_FORMAT_FLOAT, 1};
  struct {
    unsigned width, height, depth;
    CUarray_format format;
    unsigned channels, flags;
  } box{kRow / 4, rows, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  if (kind == "cuMemAlloc_v1") return call("cuMemAlloc", &address, static_cast<unsigned>(bytes));
  if (kind == "cuMemAllocPitch_v1")
    return call("cuMemAllocPitch", &address, &pitch, unsigned{kRow}, rows, 4U);
  if (kind == "cuArrayCreate_v1") return call("cuArrayCreate", &array, &flat);
  return call("cuArray3DCreate", &array, &box);
}

CUmemoryPool own_pool() {
  static CUmemoryPool pool = [] {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemoryPool made_pool = nullptr;
    check(cuMemPoolCreate(&made_pool, &properties));
    return made_pool;
  }();
  return pool;
}

CUresult take_pooled(const std::string& kind, std::size_t bytes, Held& into) {
  if (kind == "cuMemAllocAsync")
    return pooled(into, [&](CUdeviceptr* at) { return cuMemAllocAsync(at, bytes, nullptr); });
  if (kind == "cuMemAllocFromPoolAsync")
    return pooled(into, [&](CUdeviceptr* at) {
      return cuMemAllocFromPoolAsync(at, bytes, own_pool(), nullptr);
    });
  if (kind == "cuMemAllocAsync_ptsz")
    return pooled(
        into, [&](CUdeviceptr* at) { return call("cuMemAllocAsync_ptsz", at, bytes, CUstream{}); });
  if (kind == "cuMemAllocFromPoolAsync_ptsz")
    return pooled(into, [&](CUdeviceptr* at) {
      return call("cuMemAllocFromPoolAsync_ptsz", at, bytes, own_pool(), CUstream{});
    });
  // "other": from the pool of device 1, in a stream of device 0
  CUmemoryPool pool = nullptr;
  check(cuDeviceGetDefaultMemPool(&pool, 1));
  return pooled(into,
                [&](CUdeviceptr* at) { return cuMemAllocFromPoolAsync(at, bytes, pool, nullptr); });
}

CUresult take(const std::string& kind, std::size_t bytes, Held& into) {
  if (kind == "cuMemAlloc")
    return linear(into, [&](CUdeviceptr* at) { return cuMemAlloc(at, bytes); });
  if (kind == "cuMemAllocManaged")
    return linear(
        into, [&](CUdeviceptr* at) { return cuMemAllocManaged(at, bytes, CU_MEM_ATTACH_GLOBAL); });
  if (kind == "cuMemAllocPitch")
    return linear(into, [&](CUdeviceptr* at) {
      std::size_t pitch = 0;
      // Rows that are one byte short: the driver rounds them up.
      return cuMemAllocPitch(at, &pitch, kRow - 1, bytes / kRow, 4);
    });
  if (kind == "cuArrayCreate")
    return array(into, [&](CUarray* handle) {
      const CUDA_ARRAY_DESCRIPTOR flat{kRow / 4, bytes / kRow, CU_AD_FORMAT_FLOAT, 1};
      return cuArrayCreate(handle, &flat);
    });
  if (kind == "cuArray3DCreate")
    return array(into, [&](CUarray* handle) {
      const CUDA_ARRAY3D_DESCRIPTOR box = words_in(bytes);
      return cuArray3DCreate(handle, &box);
    });
  if (kind == "cuMipmappedArrayCreate") {
    auto handle = canary<CUmipmappedArray>();
    const CUDA_ARRAY3D_DESCRIPTOR box = words_in(bytes);
    const CUresult status = checked(cuMipmappedArrayCreate(&handle, &box, 1), handle);
    into.give = [handle] { return cuMipmappedArrayDestroy(handle); };
    return status;
  }
  if (kind == "cuMemCreate") {
    auto handle = canary<CUmemGenericAllocationHandle>();
    const CUmemAllocationProp properties = on_device();
    const CUresult status = checked(cuMemCreate(&handle, bytes, &properties, 0), handle);
    into.give = [handle] { return cuMemRelease(handle); };
    return status;
  }
  if (kind == "cuMemMap") return mapped(into, bytes, false);
  if (kind == "cuMemRetainAllocationHandle") return mapped(into, bytes, true);
  if (kind.ends_with("Async") || kind.ends_with("_ptsz") || kind == "other")
    return take_pooled(kind, bytes, into);
  if (kind.ends_with("_v1")) return take_v1(kind, bytes);
  if (kind == "BC1")  // half a byte an element
    return array(into, [&](CUarray* handle) {
      CUDA_ARRAY3D_DESCRIPTOR box = words_in(bytes);
      box.Width = 2 * kRow;
      box.Format = static_cast<CUarray_format>(0x91);
      box.NumChannels = 4;
      return cuArray3DCreate(handle, &box);
    });
  if (kind == "cuMemAllocHost") {  // no memory of the device
    void* address = nullptr;
    const CUresult status = cuMemAllocHost(&address, bytes);
    into.give = [address] { return cuMemFreeHost(address); };
    return status;
  }
  if (kind == "cuMemPoolCreate") {  // a pool of its own, destroyed before its memory is freed
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    CUmemoryPool pool = nullptr;
    check(cuMemPoolCreate(&pool, &properties));
    CUdeviceptr address = 0;
    const CUresult status = cuMemAllocFromPoolAsync(&address, bytes, pool, nullptr);
    check(cuMemPoolDestroy(pool));
    into.give = [address] { return cuMemFree(address); };
    return status;
  }
  std::printf("unknown kind %s\n", kind.c_str());
  std::exit(3);
}

int race(unsigned threads, unsigned rounds, const std::string& kind, std::size_t bytes) {
  std::atomic<int> refused{0}, wrong{0};
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; ++i)
    all.emplace_back([&] {
      check(cuCtxSetCurrent(primary));
      for (unsigned round = 0; round < rounds; ++round) {
        Held one;
        const CUresult status = take(kind, bytes, one);
        if (status == CUDA_ERROR_OUT_OF_MEMORY)
          ++refused;
        else if (status != CUDA_SUCCESS || one.give() != CUDA_SUCCESS)
          ++wrong;
      }
    });
  for (std::thread& thread : all) thread.join();
  return wrong != 0 ? -1 : refused.load();
}

// --- graphs --------------------------------------------------------------------------------------

struct BuiltGraph {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  std::vector<CUdeviceptr> left;  // allocated, not freed by the graph
};
std::map<std::string, BuiltGraph> graphs;

CUstream stream_of_graphs(int number) {
  static std::vector<CUstream> streams = [] {
    std::vector<CUstream> all(2);
    for (CUstream& stream : all) check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return all;
  }();
  return streams.at(static_cast<std::size_t>(number));
}

// An allocation, a fill of it and its end, one behind the other.
CUresult add_allocation(BuiltGraph& built, std::size_t bytes, bool free, CUgraphNode& last) {
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  parameters.bytesize = bytes;
  CUgraphNode node = nullptr;
  if (const CUresult status =
          cuGraphAddMemAllocNode(&node, built.graph, last != nullptr ? &last : nullptr,
                                 last != nullptr ? 1 : 0, &parameters);
      status != CUDA_SUCCESS)
    return status;
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = parameters.dptr;
  fill.elementSize = 4;
  fill.width = 64;
  fill.height = 1;
  CUgraphNode filled = nullptr;
  if (const CUresult status = cuGraphAddMemsetNode(&filled, built.graph, &node, 1, &fill, primary);
      status != CUDA_SUCCESS)
    return status;
  last = filled;
  if (!free) {
    built.left.push_back(parameters.dptr);
    return CUDA_SUCCESS;
  }
  CUgraphNode freed = nullptr;
  const CUresult status = cuGraphAddMemFreeNode(&freed, built.graph, &filled, 1, parameters.dptr);
  last = freed;
  return status;
}

CUresult capture_allocation(BuiltGraph& built, std::size_t bytes) {
  CUstream stream = stream_of_graphs(0);
  CUdeviceptr address = 0;
  check(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUresult status = cuMemAllocAsync(&address, bytes, stream);
  if (status == CUDA_SUCCESS) status = cuMemsetD32Async(address, 1, 64, stream);
  if (status == CUDA_SUCCESS) status = cuMemFreeAsync(address, stream);
  check(cuStreamEndCapture(stream, &built.graph));
  return status;
}

CUresult build_graph(BuiltGraph& built, std::istringstream& words) {
  check(cuGraphCreate(&built.graph, 0));
  CUgraphNode last = nullptr;
  for (std::string size; words >> size;) {
    const bool free = size[0] != '+';
    if (const CUresult status = add_allocation(built, std::stoull(size), free, last);
        status != CUDA_SUCCESS)
      return status;
  }
  return CUDA_SUCCESS;
}

std::string number(CUresult status) { return std::to_string(static_cast<int>(status)); }

std::string graph(std::istringstream& words) {
  std::string name, verb;
  words >> name;
  if (name == "trim") return number(cuDeviceGraphMemTrim(device));
  if (name == "reserved") {
    cuuint64_t reserved = 0;
    check(cuDeviceGetGraphMemAttribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
    return std::to_string(reserved);
  }
  words >> verb;
  BuiltGraph& built = graphs[name];
  std::size_t bytes = 0;
  int stream = 0;
  if (verb == "build" || verb == "capture") {
    CUresult status = CUDA_SUCCESS;
    if (verb == "build") {
      status = build_graph(built, words);
    } else {
      words >> bytes;
      status = capture_allocation(built, bytes);
    }
    if (status == CUDA_SUCCESS) status = cuGraphInstantiate(&built.executable, built.graph, 0);
    return number(status);
  }
  if (verb == "end") {
    const CUresult status = cuGraphExecDestroy(built.executable);
    check(cuGraphDestroy(built.graph));
    return number(status);
  }
  if (verb == "free") {
    for (const CUdeviceptr address : built.left)
      if (const CUresult status = cuMemFreeAsync(address, nullptr); status != CUDA_SUCCESS)
        return number(status);
    return number(CUDA_SUCCESS);
  }
  words >> stream;
  if (verb.ends_with("_ptsz"))
    return number(call(verb == "upload_ptsz" ? "cuGraphUpload_ptsz" : "cuGraphLaunch_ptsz",
                       built.executable, stream_of_graphs(stream)));
  return number(verb == "upload" ? cuGraphUpload(built.executable, stream_of_graphs(stream))
                                 : cuGraphLaunch(built.executable, stream_of_graphs(stream)));
}

// An entry point as the driver's own table of symbols has it: neither the dynamic linker nor dlsym
// is asked, since the preloaded library stands before the driver in both.
void* past_us(std::string_view name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return nullptr;
  const auto& loaded = *static_cast<const link_map*>(driver);
  const ElfW(Sym)* symbols = nullptr;
  const char* names = nullptr;
  const std::uint32_t* hashes = nullptr;  // DT_GNU_HASH
  for (const ElfW(Dyn)* entry = loaded.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto* const address = reinterpret_cast<const void*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SYMTAB) symbols = static_cast<const ElfW(Sym)*>(address);
    if (entry->d_tag == DT_STRTAB) names = static_cast<const char*>(address);
    if (entry->d_tag == DT_GNU_HASH) hashes = static_cast<const std::uint32_t*>(address);
  }
  dlclose(driver);
  if (symbols == nullptr || names == nullptr || hashes == nullptr) return nullptr;
  const std::uint32_t bucket_count = hashes[0], first = hashes[1], filter_words = hashes[2];
  const std::uint32_t* const buckets = hashes + 4 + filter_words * (sizeof(ElfW(Addr)) / 4);
  const std::uint32_t* const chains = buckets + bucket_count;
  for (std::uint32_t bucket = 0; bucket < bucket_count; ++bucket)
    for (std::uint32_t index = buckets[bucket]; index >= first; ++index) {
      const ElfW(Sym)& symbol = symbols[index];
      if (names + symbol.st_name == name) {
        void* const found = reinterpret_cast<void*>(loaded.l_addr + symbol.st_value);
        return ELF64_ST_TYPE(symbol.st_info) == STT_GNU_IFUNC
                   ? reinterpret_cast<void* (*)()>(found)()
                   : found;
      }
      if ((chains[index - first] & 1U) != 0) break;
    }
  return nullptr;
}
std::size_t native_free() {
  auto* const ask =
      reinterpret_cast<CUresult (*)(std::size_t*, std::size_t*)>(past_us("cuMemGetInfo_v2"));
  std::size_t available = 0, total = 0;
  return ask != nullptr && ask(&available, &total) == CUDA_SUCCESS ? available : 0;
}
CUresult native_take(std::size_t bytes) {
  auto* const take =
      reinterpret_cast<CUresult (*)(CUdeviceptr*, std::size_t)>(past_us("cuMemAlloc_v2"));
  CUdeviceptr address = 0;
  return take != nullptr ? take(&address, bytes) : CUDA_ERROR_UNKNOWN;
}

// The default pool, and contexts.
std::string managed(const std::string& verb, std::istringstream& words) {
  std::string name;
  std::size_t bytes = 0;
  if (verb != "context") {
    CUmemoryPool pool = nullptr;
    check(cuDeviceGetDefaultMemPool(&pool, device));
    if (verb == "trim") return number(cuMemPoolTrimTo(pool, 0));
    words >> bytes;
    return number(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes));
  }
  words >> name;
  if (name == "reset") {
    held.clear();
    return number(cuDevicePrimaryCtxReset(device));
  }
  if (name == "end") {
    held.clear();
    const CUresult status = cuCtxDestroy(made);
    check(cuCtxSetCurrent(primary));
    return number(status);
  }
#if CUDA_VERSION >= 13000
  return number(cuCtxCreate(&made, nullptr, 0, device));
#else
  return number(cuCtxCreate(&made, 0, device));
#endif
}

std::string obey(const std::string& line, char** argv);

std::string forked(const std::string& command, char** argv) {
  int ends[2];
  if (::pipe(ends) != 0) std::exit(4);
  std::fflush(stdout);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string answer = obey(command, argv);
    if (::write(ends[1], answer.data(), answer.size()) < 0) ::_exit(1);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string answer(256, '\0');
  const ssize_t length = ::read(ends[0], answer.data(), answer.size());
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  answer.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return answer;
}

std::string obey(const std::string& line, char** argv) {
  std::istringstream words(line);
  std::string verb, kind, name;
  std::size_t bytes = 0;
  words >> verb;
  if (verb == "take") {
    words >> kind >> bytes >> name;
    Held one;
    const CUresult status = take(kind, bytes, one);
    if (status == CUDA_SUCCESS) held[name] = one;
    return number(status);
  }
  if (verb == "give") {
    words >> name;
    const CUresult status = held.at(name).give();
    held.erase(name);
    return number(status);
  }
  if (verb == "info") {
    std::size_t available = 0, total = 0;
    const CUresult status = cuMemGetInfo(&available, &total);
    return number(status) + " " + std::to_string(available) + " " + std::to_string(total);
  }
  if (verb == "total") {
    const CUresult status = cuDeviceTotalMem(&bytes, device);
    return number(status) + " " + std::to_string(bytes);
  }
  if (verb == "graph") return graph(words);
  if (verb == "native") return std::to_string(native_free());
  if (verb == "unseen") {
    words >> bytes;
    return number(native_take(bytes));
  }
  if (verb == "sync") return number(cuCtxSynchronize());
  if (verb == "trim" || verb == "keep" || verb == "context") return managed(verb, words);
  if (verb == "race") {
    unsigned threads = 0, rounds = 0;
    words >> threads >> rounds >> kind >> bytes;
    return std::to_string(race(threads, rounds, kind, bytes));
  }
  if (verb == "cost") {
    unsigned rounds = 0;
    words >> rounds >> kind >> bytes;
    const auto began = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < rounds; ++i) {
      Held one;
      check(take(kind, bytes, one));
      check(one.give());
    }
    const auto took = std::chrono::steady_clock::now() - began;
    return std::to_string(std::chrono::nanoseconds(took).count() / rounds);
  }
  if (verb == "ipc") return shared_memory(words);
  if (verb == "fork") return forked(line.substr(5), argv);
  if (verb == "exec") {
    std::puts("0");  // read before the next line is written: that one is the next program's
    std::fflush(stdout);
    ::execv("/proc/self/exe", argv);
  }
  if (verb == "kill") ::raise(SIGKILL);
  return "unknown command";
}

}  // namespace

int main(int, char** argv) {
  check(cuInit(0));
  check(cuDeviceGet(&device, 0));
  check(cuDevicePrimaryCtxRetain(&primary, device));
  check(cuCtxSetCurrent(primary));
  for (std::string line; std::getline(std::cin, line);) {
    std::puts(obey(line, argv).c_str());
    std::fflush(stdout);
  }
}
