// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/probe.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tools/vitamin/interrupts.h"
#include "tools/vitamin/node/symbol.h"

namespace vitamin::tools {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceFacts, name, uuid, processors, major, minor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DriverFacts, answered, path, load_error, version, green_contexts,
                                   init_status, init_error, devices)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(HipFacts, answered, path, load_error, version, software, status,
                                   error, devices)

namespace {

using nlohmann::json;

// The few calls of the driver's C ABI that are needed here; every handle is an int or a pointer, so
// no vendor header is. Attribute numbers: CUdevice_attribute in cuda.h.
constexpr int kMultiprocessorCount = 16;
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;
constexpr int kNoDevice = 100;
constexpr int kStubLibrary = 34;

std::string uuid_text(const std::array<unsigned char, 16>& bytes) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

DeviceFacts ask_device(void* library, int device) {
  DeviceFacts facts;
  std::array<char, 256> name{};
  if (auto f = symbol<int (*)(char*, int, int)>(library, "cuDeviceGetName"))
    if (f(name.data(), static_cast<int>(name.size()) - 1, device) == 0) facts.name = name.data();
  std::array<unsigned char, 16> uuid{};
  auto get_uuid = symbol<int (*)(unsigned char*, int)>(library, "cuDeviceGetUuid_v2");
  if (get_uuid == nullptr)
    get_uuid = symbol<int (*)(unsigned char*, int)>(library, "cuDeviceGetUuid");
  if (get_uuid != nullptr && get_uuid(uuid.data(), device) == 0) facts.uuid = uuid_text(uuid);
  if (auto f = symbol<int (*)(int*, int, int)>(library, "cuDeviceGetAttribute")) {
    f(&facts.processors, kMultiprocessorCount, device);
    f(&facts.major, kComputeMajor, device);
    f(&facts.minor, kComputeMinor, device);
  }
  return facts;
}

DriverFacts ask_driver() {
  DriverFacts facts;
  facts.answered = true;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    facts.load_error = ::dlerror();
    return facts;
  }
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) facts.path = map->l_name;
  if (auto f = symbol<int (*)(int*)>(library, "cuDriverGetVersion")) f(&facts.version);
  facts.green_contexts = ::dlsym(library, "cuGreenCtxCreate") != nullptr;
  auto init = symbol<int (*)(unsigned)>(library, "cuInit");
  facts.init_status = init == nullptr ? kStubLibrary : init(0);
  if (facts.init_status != 0) {
    const char* error = nullptr;
    if (auto f = symbol<int (*)(int, const char**)>(library, "cuGetErrorName"))
      f(facts.init_status, &error);
    facts.init_error = error != nullptr ? error : "unknown";
    return facts;
  }
  int count = 0;
  if (auto f = symbol<int (*)(int*)>(library, "cuDeviceGetCount")) f(&count);
  for (int device = 0; device < count; ++device)
    facts.devices.push_back(ask_device(library, device));
  return facts;
}

HipFacts ask_hip() {
  HipFacts facts;
  facts.answered = true;
  void* library = nullptr;
  for (const char* name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"})
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    facts.load_error = ::dlerror();
    return facts;
  }
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) facts.path = map->l_name;
  if (auto f = symbol<int (*)(int*)>(library, "hipRuntimeGetVersion")) f(&facts.version);
  int count = 0;
  if (auto f = symbol<int (*)(int*)>(library, "hipGetDeviceCount")) facts.status = f(&count);
  if (auto f = symbol<const char* (*)(int)>(library, "hipGetErrorName"))
    facts.error = f(facts.status);
  auto get_name = symbol<int (*)(char*, int, int)>(library, "hipDeviceGetName");
  for (int device = 0; facts.status == 0 && device < count; ++device) {
    std::array<char, 256> name{};
    if (get_name != nullptr) get_name(name.data(), static_cast<int>(name.size()) - 1, device);
    facts.devices.emplace_back(name.data());
  }
  // The stand-in answers without the kernel driver's device.
  facts.software = !facts.devices.empty() && ::access("/dev/kfd", F_OK) != 0;
  return facts;
}

// Everything that `file` delivers until its other end closes or the time is over.
bool read_all(int file, std::chrono::seconds limit, std::string& text) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    pollfd waited{file, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waited, 1, static_cast<int>(left.count())) <= 0) return false;
    const ssize_t n = ::read(file, buffer.data(), buffer.size());
    if (n <= 0) return n == 0;
    text.append(buffer.data(), static_cast<std::size_t>(n));
  }
}

template <class Facts>
Facts probe(Facts (*ask)()) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {};
  const pid_t child = ::fork();
  if (child < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return {};
  }
  if (child == 0) {
    forget_interrupts();
    ::close(ends[0]);
    const std::string text = json(ask()).dump();
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    // _exit: the driver's exit handlers are not wanted here.
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  const bool complete = read_all(ends[0], std::chrono::seconds(kProbeSeconds), text);
  ::close(ends[0]);
  if (!complete) ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  const json parsed = json::parse(text, nullptr, false);
  return parsed.is_object() ? parsed.get<Facts>() : Facts{};
}

}  // namespace

DriverFacts probe_driver() { return probe(&ask_driver); }
HipFacts probe_hip() { return probe(&ask_hip); }

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string hip_version_text(int version) {
  return fmt::format("{}.{}", version / 10'000'000, version / 100'000 % 100);
}

std::optional<std::string> problem(const DriverFacts& facts) {
  if (!facts.answered)
    return fmt::format(
        "the CUDA driver crashed or gave no answer within {} s: look at "
        "`nvidia-smi` and the kernel log, then restart the machine's driver.",
        kProbeSeconds);
  if (facts.path.empty())
    return fmt::format(
        "no NVIDIA driver was found ({}): install driver 550 or newer, or put the "
        "directory of the software driver into LD_LIBRARY_PATH.",
        facts.load_error);
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool hidden =
      facts.init_status == kNoDevice || (facts.init_status == 0 && facts.devices.empty());
  if (hidden && visible != nullptr)
    return fmt::format(
        "CUDA_VISIBLE_DEVICES is '{}', which hides every device: unset it or name a "
        "device that `nvidia-smi -L` lists.",
        visible);
  if (hidden)
    return fmt::format(
        "the driver ({}) sees no device: check `nvidia-smi` and that /dev/nvidia* "
        "may be opened by this user.",
        facts.path);
  if (facts.version < kOldestDriver)
    return fmt::format(
        "the driver ({}) supports CUDA {}; {} (driver 550) or newer is needed to "
        "divide a device: update the driver.",
        facts.path, version_text(facts.version), version_text(kOldestDriver));
  if (facts.init_status != 0)
    return fmt::format("the driver ({}) refuses to start: {} ({}). `nvidia-smi` may say more.",
                       facts.path, facts.init_error, facts.init_status);
  if (!facts.green_contexts)
    return fmt::format(
        "the driver ({}) has no green contexts (cuGreenCtxCreate): driver 550 or "
        "newer is needed.",
        facts.path);
  return std::nullopt;
}

std::optional<std::string> problem(const HipFacts& facts) {
  if (!facts.answered)
    return fmt::format(
        "the HIP runtime crashed or gave no answer within {} s: look at the kernel "
        "log.",
        kProbeSeconds);
  if (facts.path.empty())
    return fmt::format("no HIP runtime was found ({}): install ROCm 5.2 or newer.",
                       facts.load_error);
  if (facts.version < kOldestHip)
    return fmt::format(
        "the HIP runtime ({}) is HIP {}; {} or newer is needed to divide a device: "
        "update ROCm.",
        facts.path, hip_version_text(facts.version), hip_version_text(kOldestHip));
  for (const char* name : {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"})
    if (const char* visible = std::getenv(name); facts.devices.empty() && visible != nullptr)
      return fmt::format(
          "the HIP runtime ({}) sees no device ({}); {} is '{}': unset it or name a device that "
          "`rocminfo` lists.",
          facts.path, facts.error, name, visible);
  if (facts.devices.empty())
    return fmt::format(
        "the HIP runtime ({}) sees no device ({}): check that /dev/kfd exists and "
        "may be opened by this user.",
        facts.path, facts.error);
  return std::nullopt;
}

std::optional<std::string> no_device(bool asked) {
  const DriverFacts cuda = probe_driver();
  const auto nvidia = problem(cuda);
  const HipFacts hip = probe_hip();
  const auto amd = problem(hip);
  if (nvidia && amd)  // what is not installed is not worth a word beside what is
    return hip.path.empty() ? nvidia : fmt::format("{} And {}", *nvidia, *amd);
  if (!asked) return std::nullopt;
  if (nvidia && !cuda.path.empty()) return nvidia;
  if (amd && !hip.path.empty()) return amd;
  return std::nullopt;
}

}  // namespace vitamin::tools
