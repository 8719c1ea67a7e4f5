// SPDX-License-Identifier: Apache-2.0
//
// Initialisation, devices and what they say of themselves.

#include <pthread.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "backends/soft/libcuda/driver.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/memory.h"
#include "backends/soft/libcuda/trace.h"

namespace vitamin::soft::driver {
namespace {

constexpr char kDeviceName[] = "Vitamin Software GPU";
constexpr int kComputeMajor = 9;
constexpr int kComputeMinor = 0;
constexpr int kFirstBus = 0xa0;  // of PCI

CUuuid make_uuid(int device) {
  // Printed, this reads 56697461-6d69-6e00-5367-... : no hardware's.
  CUuuid uuid{};
  std::memcpy(uuid.bytes, "Vitamin\0Soft\0\0\0", sizeof uuid.bytes);
  uuid.bytes[15] = static_cast<char>(device);
  return uuid;
}

std::unique_ptr<Device> make_device(int ordinal, int number, const Settings& settings) {
  EngineOptions options;
  options.device = DeviceDescription::h200();
  options.device.name = kDeviceName;
  options.clock = settings.clock;
  options.seed = settings.seed + static_cast<std::uint64_t>(number);
  if (!settings.ledger.empty()) {
    options.ledger_path = settings.ledger;
    if (number > 0) options.ledger_path += "." + std::to_string(number);
  }
  auto engine = Engine::create(std::move(options));
  if (!engine) {
    std::fprintf(stderr, "software driver: device %d cannot be made: %s\n", number,
                 engine.error().message.c_str());
    return nullptr;
  }
  auto device = std::make_unique<Device>();
  device->ordinal = ordinal;
  device->number = number;
  device->engine = std::move(*engine);
  device->uuid = make_uuid(number);
  char bus_id[24];
  std::snprintf(bus_id, sizeof bus_id, "0000:%02x:00.0", kFirstBus + number);
  device->pci_bus_id = bus_id;
  return device;
}

Device* require_device(CUdevice ordinal) { return driver().device(ordinal); }

// The limits and abilities that do not depend on the engine's description. What is not listed here
// or below is an ability that this device does not have, or a texture size: 0.
struct FixedAttribute {
  CUdevice_attribute attribute;
  int value;
};
constexpr FixedAttribute kFixedAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 512},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 60 * 1024 * 1024},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kComputeMajor},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, kComputeMinor},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
};

// nullopt: a number that is no attribute.
std::optional<int> attribute_of(const Device& device, CUdevice_attribute attribute) {
  const DeviceDescription& about = device.engine->device();
  const SmLimits& sm = about.sm;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return static_cast<int>(sm.block_threads);
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
      return static_cast<int>(sm.registers);
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return static_cast<int>(about.sms());
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return kFirstBus + device.number;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return static_cast<int>(sm.threads);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      return static_cast<int>(sm.shared_bytes);
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      return static_cast<int>(sm.registers);
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return static_cast<int>(sm.block_shared_bytes);
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      return static_cast<int>(sm.reserved_shared_per_block);
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      return static_cast<int>(sm.blocks);
    default:
      break;
  }
  for (const FixedAttribute& fixed : kFixedAttributes)
    if (fixed.attribute == attribute) return fixed.value;
  if (attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX) return 0;
  return std::nullopt;
}

}  // namespace

CUresult api::cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Driver& self = driver();
  const std::lock_guard lock(self.mutex);
  if (self.initialised) return CUDA_SUCCESS;
  if (self.settings.devices.empty()) return CUDA_ERROR_NO_DEVICE;
  for (const int number : self.settings.devices) {
    auto device = make_device(static_cast<int>(self.devices.size()), number, self.settings);
    if (device == nullptr) {
      self.devices.clear();
      return CUDA_ERROR_SYSTEM_NOT_READY;
    }
    self.devices.push_back(std::move(device));
  }
  if (!self.settings.trace.empty()) {
    for (const auto& device : self.devices) start_trace(*device, self.settings.trace);
  }
  for (const auto& device : self.devices) make_default_pool(*device);
  if (self.settings.clock == Clock::kReal && !self.settings.mps_directory.empty()) {
    std::vector<Engine*> engines;
    for (const auto& device : self.devices) engines.push_back(device->engine.get());
    if (!MpsClient::join(self.settings.mps_directory, std::move(engines), self.mps)) {
      self.devices.clear();
      return CUDA_ERROR_MPS_SERVER_NOT_READY;
    }
    for (const auto& device : self.devices)
      if (const auto limit = self.settings.mps_memory.find(device->ordinal);
          self.mps != nullptr && limit != self.settings.mps_memory.end())
        device->engine->limit_memory(limit->second);
  }
  pthread_atfork(nullptr, nullptr, [] { driver().forked = true; });
  self.initialised.store(true, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult api::cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetCount(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(driver().devices.size());
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (require_device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  const Device* device = require_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(name, static_cast<std::size_t>(length), "%s", kDeviceName);
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) {
  const Device* device = require_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *uuid = device->uuid;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  const Device* device = require_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = device->engine->device().memory_bytes;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  const Device* device = require_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const std::optional<int> answer = attribute_of(*device, attribute);
  if (value == nullptr || !answer) return CUDA_ERROR_INVALID_VALUE;
  *value = *answer;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  if (require_device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *major = kComputeMajor;
  *minor = kComputeMinor;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetProperties(CUdevprop* properties, CUdevice ordinal) {
  const Device* device = require_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const SmLimits& sm = device->engine->device().sm;
  *properties = CUdevprop{};
  properties->maxThreadsPerBlock = static_cast<int>(sm.block_threads);
  const int block[3] = {1024, 1024, 64};
  const int grid[3] = {2147483647, 65535, 65535};
  std::copy_n(block, 3, properties->maxThreadsDim);
  std::copy_n(grid, 3, properties->maxGridSize);
  properties->sharedMemPerBlock = 49152;
  properties->totalConstantMemory = 65536;
  properties->SIMDWidth = 32;
  properties->memPitch = 2147483647;
  properties->regsPerBlock = static_cast<int>(sm.registers);
  properties->clockRate = 1000000;
  properties->textureAlign = 512;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetPCIBusId(char* bus_id, int length, CUdevice ordinal) {
  const Device* device = require_device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (bus_id == nullptr || length <= static_cast<int>(device->pci_bus_id.size()))
    return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(bus_id, device->pci_bus_id.c_str(), device->pci_bus_id.size() + 1);
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetByPCIBusId(CUdevice* ordinal, const char* bus_id) {
  if (ordinal == nullptr || bus_id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& device : driver().devices) {
    if (device->pci_bus_id != bus_id) continue;
    *ordinal = device->ordinal;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult api::cuDeviceCanAccessPeer(int* can, CUdevice from, CUdevice to) {
  if (require_device(from) == nullptr || require_device(to) == nullptr)
    return CUDA_ERROR_INVALID_DEVICE;
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *can = from != to ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from,
                                      CUdevice to) {
  if (require_device(from) == nullptr || require_device(to) == nullptr || from == to)
    return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
      *value = 1;
      return CUDA_SUCCESS;
    default:
      *value = 0;
      return CUDA_SUCCESS;
  }
}

CUresult api::cuProfilerInitialize(const char*, const char*, CUoutput_mode) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult api::cuProfilerStart() { return CUDA_SUCCESS; }
CUresult api::cuProfilerStop() { return CUDA_SUCCESS; }

}  // namespace vitamin::soft::driver
