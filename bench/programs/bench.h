// SPDX-License-Identifier: Apache-2.0
//
// What the GPU programs of the evaluation share: error checks that end the program with one line,
// the driver's entry points (looked up, never linked), clocks, memory, order statistics, hashes and
// the JSON lines that the scripts read.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace bench {

[[noreturn]] inline void die(const char* what, const char* why, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, why);
  std::exit(1);
}

inline const char* reason(cudaError_t code) { return cudaGetErrorString(code); }
inline const char* reason(CUresult code) {
  static thread_local char text[32];
  std::snprintf(text, sizeof text, "CUresult %d", static_cast<int>(code));
  return text;
}

// Any status enumeration whose success is 0.
#define BENCH_CHECK(call)                                                              \
  do {                                                                                 \
    const auto bench_status = (call);                                                  \
    if (static_cast<int>(bench_status) != 0)                                           \
      ::bench::die(#call, ::bench::text_of(bench_status).c_str(), __FILE__, __LINE__); \
  } while (0)

template <class Status>
std::string text_of(Status status) {
  if constexpr (std::is_same_v<Status, cudaError_t> || std::is_same_v<Status, CUresult>)
    return reason(status);
  else
    return "status " + std::to_string(static_cast<int>(status));
}

// The driver's function of this name and version, through the runtime's lookup: the same door that
// libraries use.
template <class Function>
Function* driver_function(const char* name, unsigned version) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  BENCH_CHECK(cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found));
  if (address == nullptr) die(name, "the driver has no such function", __FILE__, __LINE__);
  return reinterpret_cast<Function*>(address);
}
#define BENCH_DRIVER(name, version) ::bench::driver_function<decltype(::name)>(#name, version)

inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

// Order statistics of a sample; sorts it.
struct Order {
  std::vector<double> sorted;
  explicit Order(std::vector<double> sample) : sorted(std::move(sample)) {
    std::sort(sorted.begin(), sorted.end());
  }
  double at(double fraction) const {
    if (sorted.empty()) return 0;
    const double place = fraction * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<std::size_t>(place);
    const std::size_t high = std::min(low + 1, sorted.size() - 1);
    const double share = place - static_cast<double>(low);
    return sorted[low] * (1 - share) + sorted[high] * share;
  }
  double median() const { return at(0.5); }
};

// FNV-1a over bytes.
class Hash {
 public:
  void add(const void* bytes, std::size_t count) {
    const auto* p = static_cast<const unsigned char*>(bytes);
    for (std::size_t i = 0; i < count; ++i) value_ = (value_ ^ p[i]) * 0x100000001b3ULL;
  }
  std::string text() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value_));
    return text;
  }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

// Of bytes of the device.
inline std::string hash_of(const void* device, std::size_t bytes) {
  BENCH_CHECK(cudaDeviceSynchronize());
  std::vector<unsigned char> host(bytes);
  BENCH_CHECK(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
  Hash hash;
  hash.add(host.data(), bytes);
  return hash.text();
}

// {"name": "...", "hash": "..."}: one result, its bytes read back from the device.
inline void tell_bytes(const char* name, const void* device, std::size_t bytes) {
  std::printf("{\"name\": \"%s\", \"bytes\": %zu, \"hash\": \"%s\"}\n", name, bytes,
              hash_of(device, bytes).c_str());
  std::fflush(stdout);
}

// A deterministic filling: the i-th value of an xorshift sequence in [-1, 1).
inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ULL + 1;
  for (float& value : values) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    value = static_cast<float>(static_cast<double>(x >> 40) / 8388608.0 - 1.0);
  }
  return values;
}

// cudaMemcpy from pageable memory may return while the last of it is on its way to the device
// (CUDA Runtime API, "API synchronization behavior"), and a non-blocking stream does not wait for
// it: without the synchronisation the program would race with its own upload. Off only to show it.
inline bool settle_uploads = true;

template <class T>
T* device_copy(const std::vector<T>& host) {
  T* device = nullptr;
  BENCH_CHECK(cudaMalloc(&device, host.size() * sizeof(T)));
  BENCH_CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  if (settle_uploads) BENCH_CHECK(cudaDeviceSynchronize());
  return device;
}

template <class T>
T* device_zeros(std::size_t count) {
  T* device = nullptr;
  BENCH_CHECK(cudaMalloc(&device, count * sizeof(T)));
  BENCH_CHECK(cudaMemset(device, 0, count * sizeof(T)));  // asynchronous, as the upload above
  if (settle_uploads) BENCH_CHECK(cudaDeviceSynchronize());
  return device;
}

// "--name value" among the arguments.
inline const char* option(int argc, char** argv, const char* name, const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return argv[i + 1];
  return otherwise;
}
inline long number(int argc, char** argv, const char* name, long otherwise) {
  const char* text = option(argc, argv, name, nullptr);
  return text != nullptr ? std::atol(text) : otherwise;
}

// One word of pinned memory that streams wait for.
class Gate {
 public:
  Gate() {
    BENCH_CHECK(cudaHostAlloc(&word_, 64, cudaHostAllocMapped));
    *word_ = 0;
  }
  void hold(cudaStream_t stream) {
    static auto* wait = BENCH_DRIVER(cuStreamWaitValue32, 11070);
    void* device = nullptr;
    BENCH_CHECK(cudaHostGetDevicePointer(&device, word_, 0));
    BENCH_CHECK(wait(stream, reinterpret_cast<CUdeviceptr>(device), 1, CU_STREAM_WAIT_VALUE_GEQ));
  }
  void open() { __atomic_store_n(word_, 1, __ATOMIC_SEQ_CST); }
  bool is_open() const { return __atomic_load_n(word_, __ATOMIC_SEQ_CST) != 0; }

 private:
  std::uint32_t* word_ = nullptr;
};

// Of this process, resident; of the device, by all processes.
inline double resident_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmRSS:", 0) == 0) return std::atof(line.c_str() + 6) / 1024;
  return 0;
}

inline double used_mib() {
  std::size_t free = 0;
  std::size_t total = 0;
  BENCH_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<double>(total - free) / 1048576;
}

}  // namespace bench
