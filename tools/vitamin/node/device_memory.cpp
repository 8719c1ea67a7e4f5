// SPDX-License-Identifier: Apache-2.0
#include "tools/vitamin/node/device_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tools/vitamin/node/symbol.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

using nlohmann::json;

using NvmlDevice = void*;
constexpr int kNvmlOk = 0, kNvmlTooSmall = 7;
constexpr unsigned long long kNotAvailable = ~0ULL;
constexpr unsigned kNoInstance = ~0U;

// nvmlMemory_v2_t and nvmlProcessInfo_v2_t.
struct NvmlMemory {
  unsigned version = static_cast<unsigned>(sizeof(NvmlMemory)) | 2U << 24;
  unsigned long long total = 0, reserved = 0, free = 0, used = 0;
};
struct NvmlProcess {
  unsigned process = 0;
  unsigned long long bytes = 0;
  unsigned gpu_instance = 0, compute_instance = 0;
};

// The functions that are used, or none.
class Nvml {
 public:
  Nvml() : library_(::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    ready_ = find(init_, "nvmlInit_v2") && find(count_, "nvmlDeviceGetCount_v2") &&
             find(handle_, "nvmlDeviceGetHandleByIndex_v2") && find(uuid_, "nvmlDeviceGetUUID") &&
             find(memory_, "nvmlDeviceGetMemoryInfo_v2") &&
             find(processes_, "nvmlDeviceGetComputeRunningProcesses_v3") && init_() == kNvmlOk;
    find(clients_of_mps_, "nvmlDeviceGetMPSComputeRunningProcesses_v3");
  }

  // By UUID.
  std::map<std::string, NvmlDevice> devices() const {
    std::map<std::string, NvmlDevice> found;
    unsigned count = 0;
    if (!ready_ || count_(&count) != kNvmlOk) return found;
    for (unsigned i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      std::array<char, 96> uuid{};
      if (handle_(i, &device) == kNvmlOk &&
          uuid_(device, uuid.data(), static_cast<unsigned>(uuid.size())) == kNvmlOk)
        found[uuid.data()] = device;
    }
    return found;
  }
  std::optional<NvmlMemory> memory(NvmlDevice device) const {
    NvmlMemory memory;
    if (memory_(device, &memory) != kNvmlOk) return {};
    return memory;
  }
  std::vector<NvmlProcess> processes(NvmlDevice device) const { return list(processes_, device); }
  std::vector<NvmlProcess> clients_of_mps(NvmlDevice device) const {
    return clients_of_mps_ != nullptr ? list(clients_of_mps_, device) : std::vector<NvmlProcess>();
  }

 private:
  using List = int (*)(NvmlDevice, unsigned*, NvmlProcess*);
  static std::vector<NvmlProcess> list(List ask, NvmlDevice device) {
    std::vector<NvmlProcess> found(64);
    for (int attempt = 0; attempt < 3; ++attempt) {  // more may start meanwhile
      auto count = static_cast<unsigned>(found.size());
      const int answer = ask(device, &count, found.data());
      if (answer == kNvmlOk) {
        found.resize(std::min<std::size_t>(count, found.size()));
        return found;
      }
      if (answer != kNvmlTooSmall) break;
      found.resize(std::size_t{count} * 2);
    }
    return {};
  }
  template <class Function>
  bool find(Function& function, const char* name) {
    function = symbol<Function>(library_, name);
    return function != nullptr;
  }

  void* library_;
  bool ready_ = false;
  int (*init_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, NvmlDevice*) = nullptr;
  int (*uuid_)(NvmlDevice, char*, unsigned) = nullptr;
  int (*memory_)(NvmlDevice, NvmlMemory*) = nullptr;
  List processes_ = nullptr, clients_of_mps_ = nullptr;
};

// Opened once: `resume --timeout` asks again and again.
const Nvml& opened_nvml() {
  static const Nvml nvml;
  return nvml;
}

// Bytes that are charged to quotas of the device, by process. A process in several groups has the
// same in each.
std::map<std::int64_t, std::uint64_t> charged_on(const json& status, const std::string& uuid) {
  std::map<std::int64_t, std::uint64_t> charged;
  for (const json& group : status.value("memory", json::array())) {
    if (group.value("device", "") != uuid) continue;
    for (const json& member : group.value("members", json::array())) {
      std::uint64_t& bytes = charged[member.value("process", std::int64_t{0})];
      bytes = std::max(bytes, member.value("used", std::uint64_t{0}));
    }
  }
  return charged;
}

}  // namespace

std::string program_of(std::int64_t process) {
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  std::getline(file, name);
  return name;
}

json device_memory(const json& status) {
  std::set<std::string> asked;  // a device may have several views
  for (const json& device : status.value("devices", json::array()))
    asked.insert(device.value("uuid", ""));
  for (const json& group : status.value("memory", json::array()))
    asked.insert(group.value("device", ""));
  json all = json::array();
  if (asked.empty()) return all;
  const Nvml& nvml = opened_nvml();
  for (const auto& [uuid, device] : nvml.devices()) {
    const auto memory = nvml.memory(device);
    if (!asked.contains(uuid) || !memory) continue;
    const auto charged = charged_on(status, uuid);
    std::vector<NvmlProcess> processes = nvml.processes(device);
    std::sort(processes.begin(), processes.end(), [](const NvmlProcess& a, const NvmlProcess& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.process < b.process;
    });
    json listed = json::array();
    for (const NvmlProcess& each : processes) {
      const auto known = charged.find(each.process);
      listed.push_back({{"process", each.process},
                        {"program", program_of(each.process)},
                        {"bytes", each.bytes != kNotAvailable ? json(each.bytes) : json()},
                        {"charged_bytes", known != charged.end() ? json(known->second) : json()}});
    }
    all.push_back({{"device", uuid},
                   {"total_bytes", memory->total},
                   {"used_bytes", memory->used},
                   {"processes", std::move(listed)}});
  }
  return all;
}

std::vector<ProcessMemory> memory_of_process(pid_t process) {
  std::vector<ProcessMemory> found;
  const Nvml& nvml = opened_nvml();
  for (const auto& [uuid, device] : nvml.devices()) {
    const auto add = [&, device_uuid = &uuid](const std::vector<NvmlProcess>& all, bool mps) {
      for (const NvmlProcess& each : all) {
        if (each.process != static_cast<unsigned>(process)) continue;
        ProcessMemory memory{*device_uuid, std::nullopt, mps, each.gpu_instance != kNoInstance};
        if (each.bytes != kNotAvailable) memory.bytes = each.bytes;
        found.push_back(std::move(memory));
      }
    };
    add(nvml.clients_of_mps(device), true);
    if (found.empty() || found.back().device != uuid) add(nvml.processes(device), false);
  }
  return found;
}

std::optional<std::uint64_t> free_device_memory(const std::string& uuid) {
  const Nvml& nvml = opened_nvml();
  const auto devices = nvml.devices();
  const auto device = devices.find(uuid);
  if (device == devices.end()) return std::nullopt;
  const auto memory = nvml.memory(device->second);
  return memory ? std::optional<std::uint64_t>(memory->free) : std::nullopt;
}

std::string device_memory_text(const json& memory) {
  std::string text;
  for (const json& device : memory) {
    text += fmt::format("memory of {}: {} of {} in use\n", device["device"].get<std::string>(),
                        bytes(device["used_bytes"]), bytes(device["total_bytes"]));
    for (const json& each : device["processes"]) {
      const json& has = each["bytes"];
      const json& charged = each["charged_bytes"];
      const std::string program = each["program"];
      text += fmt::format(
          "  process {}{}: {}, {}\n", each["process"].get<std::int64_t>(),
          program.empty() ? "" : " (" + program + ")",
          has.is_null() ? "NVML does not say how much" : bytes(has),
          charged.is_null() ? "no quota" : bytes(charged) + " of it charged to its quota");
    }
  }
  return text.empty() ? text : text + "\n";
}

}  // namespace vitamin::tools
