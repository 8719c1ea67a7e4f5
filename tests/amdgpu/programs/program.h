// SPDX-License-Identifier: Apache-2.0
//
// What the HIP programs of these tests share: named checks chosen on the command line, a stream
// with or without a CU mask, bits of results as one number.
#pragma once

#include <hip/hip_runtime.h>

#include <hip/hip_ext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#define HIP_OK(call)                                                                        \
  do {                                                                                      \
    const hipError_t error_ = (call);                                                       \
    if (error_ != hipSuccess) {                                                             \
      std::printf("%s:%d: %s -> %s\n", __FILE__, __LINE__, #call, hipGetErrorName(error_)); \
      std::fflush(stdout);                                                                  \
      std::_Exit(3);                                                                        \
    }                                                                                       \
  } while (0)

// The same of a library's call, which succeeds with `success`.
#define STATUS_OK(call, success)                                                              \
  do {                                                                                        \
    const auto status_ = (call);                                                              \
    if (status_ != (success)) {                                                               \
      std::printf("%s:%d: %s -> %d\n", __FILE__, __LINE__, #call, static_cast<int>(status_)); \
      std::fflush(stdout);                                                                    \
      std::_Exit(3);                                                                          \
    }                                                                                         \
  } while (0)

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    HIP_OK(hipMalloc(&data_, count * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    HIP_OK(hipMemcpy(data_, host.data(), count_ * sizeof(T), hipMemcpyHostToDevice));
  }
  ~DeviceArray() { static_cast<void>(hipFree(data_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::vector<T> host() const {
    std::vector<T> copy(count_);
    HIP_OK(hipMemcpy(copy.data(), data_, count_ * sizeof(T), hipMemcpyDeviceToHost));
    return copy;
  }

 private:
  T* data_ = nullptr;
  std::size_t count_;
};

inline std::vector<std::uint32_t> mask_of(unsigned first, unsigned count) {
  std::vector<std::uint32_t> mask(std::max(4u, (first + count + 31) / 32));
  for (unsigned bit = first; bit < first + count; ++bit) mask[bit / 32] |= 1u << (bit % 32);
  return mask;
}

// The stream that checks launch on: "--mask=FIRST,COUNT" makes it a CU-masked one.
inline hipStream_t& test_stream() {
  static hipStream_t stream = nullptr;
  return stream;
}

template <class T>
std::uint64_t bits_of(const std::vector<T>& values) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (std::size_t at = 0; at < values.size() * sizeof(T); ++at)
    hash = (hash ^ bytes[at]) * 0x100000001b3;
  return hash;
}

inline unsigned& failures() {
  static unsigned count = 0;
  return count;
}

// One line a fact: what was checked, whether it holds, the bits of the result.
inline void report(const std::string& what, bool holds, std::uint64_t bits = 0) {
  std::printf("%s %s %016llx\n", holds ? "ok" : "WRONG", what.c_str(),
              static_cast<unsigned long long>(bits));
  if (!holds) ++failures();
}

// Numbers without a library: the same in every run.
inline std::vector<float> numbers(std::size_t count, std::uint32_t seed, float scale = 1.0f) {
  std::vector<float> values(count);
  for (float& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = scale * (static_cast<float>(seed >> 8) / 8388608.0f - 1.0f);
  }
  return values;
}

using Checks = std::map<std::string, std::function<void()>>;

inline int run_checks(const Checks& checks, int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that it is seen where a check hangs
  std::vector<std::string> wanted;
  for (int at = 1; at < count; ++at) {
    unsigned first = 0, cus = 0;
    if (std::sscanf(arguments[at], "--mask=%u,%u", &first, &cus) == 2) {
      const auto mask = mask_of(first, cus);
      HIP_OK(hipExtStreamCreateWithCUMask(&test_stream(), static_cast<std::uint32_t>(mask.size()),
                                          mask.data()));
    } else {
      wanted.push_back(arguments[at]);
    }
  }
  if (wanted.empty())
    for (const auto& [name, check] : checks) wanted.push_back(name);
  for (const std::string& name : wanted) {
    const auto found = checks.find(name);
    if (found == checks.end()) {
      std::printf("no check is called %s\n", name.c_str());
      return 2;
    }
    found->second();
  }
  std::fflush(stdout);
  return failures() == 0 ? 0 : 1;
}
