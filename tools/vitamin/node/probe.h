// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA driver and the HIP runtime of this machine say about themselves.
//
// They are asked in a child process: loading it starts threads, and a broken one may crash or
// hang, neither of which may happen to `vitamin run`.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace vitamin::tools {

struct DeviceFacts {
  std::string name;
  std::string uuid;  // "GPU-…"
  int processors = 0;
  int major = 0, minor = 0;  // compute capability
};

struct DriverFacts {
  bool answered = false;   // false: the probe crashed or took longer than kProbeSeconds
  std::string path;        // of libcuda.so.1; empty: not found
  std::string load_error;  // the loader's words
  int version = 0;         // 12040 is CUDA 12.4
  bool green_contexts = false;
  int init_status = 0;     // cuInit's answer
  std::string init_error;  // its name: "CUDA_ERROR_NO_DEVICE"
  std::vector<DeviceFacts> devices;
};

inline constexpr int kProbeSeconds = 30;
inline constexpr int kOldestDriver = 12040;
inline constexpr int kOldestHip = 50'200'000;

DriverFacts probe_driver();

struct HipFacts {
  bool answered = false;
  std::string path;  // of libamdhip64.so.7, .6 or .5; empty: not found
  std::string load_error;
  int version = 0;                   // 50221153 is HIP 5.2
  bool software = false;             // the stand-in for the kernel driver, not a GPU
  int status = 0;                    // hipGetDeviceCount's answer
  std::string error;                 // its name
  std::vector<std::string> devices;  // names
};
HipFacts probe_hip();

// One line: what is wrong and what to do; nothing when a device can be used.
std::optional<std::string> problem(const DriverFacts& facts);
std::optional<std::string> problem(const HipFacts& facts);
// The same for the machine: nothing when a device of any vendor can be used. `asked`: some program
// did ask a runtime for one, so that an installed runtime without a device is what is wrong, though
// the other vendor's has one.
std::optional<std::string> no_device(bool asked);

// "12.4", "5.2"
std::string version_text(int version);
std::string hip_version_text(int version);

}  // namespace vitamin::tools
