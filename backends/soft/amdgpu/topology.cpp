// SPDX-License-Identifier: Apache-2.0
//
// The machine as the runtime sees it: one CPU node, a node for each GPU, links between all of them.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "backends/soft/amdgpu/machine.h"
#include "backends/soft/amdgpu/thunk.h"

namespace vitamin::soft::amdgpu {
namespace {

constexpr HSAuint32 kFirstGpuProcessor = 0x80000000;           // numbers of processors on GPU nodes
constexpr HSAuint32 kProcessorsOfNode = 0x1000;                // more than any part has
constexpr HSAuint32 kLocation = 0x300, kNextLocation = 0x100;  // PCI bus in the upper byte

HSAuint32 first_processor(const Gpu& gpu) {
  return kFirstGpuProcessor + gpu.number * kProcessorsOfNode;
}

// Every node is linked with every other one, CPU or GPU.
HSAuint32 links() { return static_cast<HSAuint32>(machine().gpus.size()); }
constexpr HSAuint32 kDoorbell64 = 2;

void describe_cpu(HsaNodeProperties& node) {
  node.NumCPUCores = static_cast<HSAuint32>(::sysconf(_SC_NPROCESSORS_ONLN));
  node.NumMemoryBanks = 1;
  node.NumCaches = 2;
  node.NumIOLinks = links();
  node.DrmRenderMinor = -1;
}

void describe_gpu(const Part& part, const Gpu& gpu, HsaNodeProperties& node) {
  constexpr std::string_view kName = "Vitamin software AMD GPU";
  node.NumFComputeCores = part.cus() * part.simds_per_cu();
  node.NumMemoryBanks = 3;
  node.NumCaches = 2;
  node.NumIOLinks = links();
  node.FComputeIdLo = first_processor(gpu);
  node.MaxWavesPerSIMD = 8;
  node.LDSSizeInKB = 64;
  node.WaveFrontSize = part.wave_width;
  node.NumShaderBanks = part.engines * part.arrays_per_engine;
  node.NumArrays = part.arrays_per_engine;
  node.NumCUPerArray = part.cus_per_array;
  node.NumSIMDPerCU = part.simds_per_cu();
  node.MaxSlotsScratchCU = 32;
  node.EngineId.ui32.uCode = 60;
  node.EngineId.ui32.Major = part.major & 0x3f;
  node.EngineId.ui32.Minor = part.minor & 0xff;
  node.EngineId.ui32.Stepping = part.stepping & 0xff;
  node.uCodeEngineVersions.uCodeSDMA = 8;
  node.VendorId = 0x1002;
  node.DeviceId = part.device_id;
  node.LocationId = kLocation + gpu.number * kNextLocation;
  node.MaxEngineClockMhzFCompute = 1700;
  node.DrmRenderMinor = static_cast<HSAint32>(128 + gpu.number);
  node.LocalMemSize = kVideoBytes;
  for (std::size_t at = 0; at < kName.size(); ++at)
    node.MarketingName[at] = static_cast<HSAuint16>(kName[at]);
  std::strcpy(reinterpret_cast<char*>(node.AMDName), part.family);
  node.NumSdmaEngines = 2;
  node.NumSdmaQueuesPerEngine = 8;
  node.NumCpQueues = 24;
  node.NumGws = 64;
  node.UniqueID = 0x50f7 + gpu.number;
  node.Capability.ui32.QueueSizePowerOfTwo = 1;
  node.Capability.ui32.DoorbellType = kDoorbell64;
  node.VGPRSizePerCU = 512 << 10;
  node.SGPRSizePerCU = 16 << 10;
}

}  // namespace
}  // namespace vitamin::soft::amdgpu

using vitamin::soft::amdgpu::describe_cpu;
using vitamin::soft::amdgpu::describe_gpu;
using vitamin::soft::amdgpu::first_processor;
using vitamin::soft::amdgpu::Gpu;
using vitamin::soft::amdgpu::kCpuNode;
using vitamin::soft::amdgpu::kPrivateAperture;
using vitamin::soft::amdgpu::kSharedAperture;
using vitamin::soft::amdgpu::kSystemBytes;
using vitamin::soft::amdgpu::kVideoBytes;
using vitamin::soft::amdgpu::links;
using vitamin::soft::amdgpu::machine;
using vitamin::soft::amdgpu::now_ns;

VITAMIN_THUNK hsaKmtGetVersion(HsaVersionInfo* version) {
  version->KernelInterfaceMajorVersion = 1;
  version->KernelInterfaceMinorVersion = 11;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtAcquireSystemProperties(HsaSystemProperties* properties) {
  std::memset(properties, 0, sizeof *properties);
  properties->NumNodes = 1 + static_cast<HSAuint32>(machine().gpus.size());
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtReleaseSystemProperties() { return HSAKMT_STATUS_SUCCESS; }

VITAMIN_THUNK hsaKmtGetNodeProperties(HSAuint32 node, HsaNodeProperties* properties) {
  std::memset(properties, 0, sizeof *properties);
  const Gpu* const gpu = machine().gpu_of_node(node);
  if (node == kCpuNode)
    describe_cpu(*properties);
  else if (gpu != nullptr)
    describe_gpu(machine().part, *gpu, *properties);
  else
    return HSAKMT_STATUS_INVALID_NODE_UNIT;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtGetNodeMemoryProperties(HSAuint32 node, HSAuint32 count,
                                            HsaMemoryProperties* banks) {
  std::memset(banks, 0, sizeof *banks * count);
  for (HSAuint32 at = 0; at < count; ++at) {
    HsaMemoryProperties& bank = banks[at];
    bank.Width = 4096;
    bank.MemoryClockMax = 1600;
    bank.HeapType = node == kCpuNode ? HSA_HEAPTYPE_SYSTEM : HSA_HEAPTYPE_FRAME_BUFFER_PUBLIC;
    bank.SizeInBytes = node == kCpuNode ? kSystemBytes : kVideoBytes;
    if (node == kCpuNode || at == 0) continue;
    bank.HeapType = at == 1 ? HSA_HEAPTYPE_GPU_LDS : HSA_HEAPTYPE_GPU_SCRATCH;
    bank.SizeInBytes = at == 1 ? 64 << 10 : 4ull << 30;
    bank.VirtualBaseAddress = at == 1 ? kSharedAperture : kPrivateAperture;
  }
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtGetNodeCacheProperties(HSAuint32 node, HSAuint32, HSAuint32 count,
                                           HsaCacheProperties* caches) {
  std::memset(caches, 0, sizeof *caches * count);
  const Gpu* const gpu = machine().gpu_of_node(node);
  for (HSAuint32 at = 0; at < count; ++at) {
    HsaCacheProperties& cache = caches[at];
    cache.ProcessorIdLow = gpu == nullptr ? 0 : first_processor(*gpu);
    cache.CacheLevel = at + 1;
    cache.CacheSize = at == 0 ? 16 : 8192;  // KiB
    cache.CacheLineSize = 64;
    cache.CacheType.ui32.Data = 1;
    if (gpu == nullptr)
      cache.CacheType.ui32.CPU = 1;
    else
      cache.CacheType.ui32.HSACU = 1;
  }
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtGetNodeIoLinkProperties(HSAuint32 node, HSAuint32 count,
                                            HsaIoLinkProperties* list) {
  std::memset(list, 0, sizeof *list * count);
  for (HSAuint32 at = 0; at < std::min(count, links()); ++at) {
    const HSAuint32 to = at < node ? at : at + 1;  // all but itself
    list[at].IoLinkType = HSA_IOLINKTYPE_PCIEXPRESS;
    list[at].NodeFrom = node;
    list[at].NodeTo = to;
    list[at].Weight = node == kCpuNode || to == kCpuNode ? 20 : 40;
    list[at].Flags.LinkProperty = 1;
  }
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtGetClockCounters(HSAuint32, HsaClockCounters* counters) {
  const HSAuint64 now = now_ns();
  counters->GPUClockCounter = counters->CPUClockCounter = counters->SystemClockCounter = now;
  counters->SystemClockFrequencyHz = 1'000'000'000;
  return HSAKMT_STATUS_SUCCESS;
}

VITAMIN_THUNK hsaKmtGetTileConfig(HSAuint32, HsaGpuTileConfig* config) {
  config->NumTileConfigs = config->NumMacroTileConfigs = 0;
  config->GbAddrConfig = 0x2a114042;
  return HSAKMT_STATUS_SUCCESS;
}
