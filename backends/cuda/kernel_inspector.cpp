// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernel_inspector.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "backends/cuda/green_context.h"
#include "backends/cuda/status.h"
#include "hal/residency.h"

namespace vitamin::cuda {

using hal::NativeStatus;

namespace {
// Clusters of this many blocks run on any union of units of a co-scheduled split; the next size,
// 16, runs on none (measured on an H200; cuDNN uses it).
constexpr std::uint32_t kClusterBlocksMax = 8;
}  // namespace

hal::Result<hal::KernelLayout> KernelInspector::layout(hal::KernelHandle handle) {
  if (api_.cuKernelGetParamInfo == nullptr || api_.cuFuncGetParamInfo == nullptr)
    return hal::fail(hal::Errc::kUnsupported, "the driver has no parameter layouts (before 12.4)");
  // The driver calls the index out of range then (measured), which would read as no parameters.
  if (handle == nullptr) return hal::fail(hal::Errc::kInvalidArgument, "there is no kernel");
  void* const kernel = const_cast<void*>(handle);
  hal::KernelLayout layout;
  // There is no count: parameters are asked for until the index is out of range. The two sorts of
  // handle are told apart by the error 400 that each call answers for the other sort (measured).
  bool is_kernel = true;
  for (std::size_t index = 0;; ++index) {
    std::size_t offset = 0, size = 0;
    CUresult status = CUDA_ERROR_INVALID_HANDLE;
    if (is_kernel)
      status = api_.cuKernelGetParamInfo(static_cast<CUkernel>(kernel), index, &offset, &size);
    if (index == 0 && status == CUDA_ERROR_INVALID_HANDLE) is_kernel = false;
    if (!is_kernel)
      status = api_.cuFuncGetParamInfo(static_cast<CUfunction>(kernel), index, &offset, &size);
    if (status == CUDA_ERROR_INVALID_VALUE) return layout;
    if (status != CUDA_SUCCESS) return failed("a kernel's parameters are unknown", status);
    layout.parameters.push_back(
        {static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size)});
    layout.bytes = std::max(layout.bytes, static_cast<std::uint32_t>(offset + size));
  }
}

std::string KernelInspector::name(hal::KernelHandle handle) {
  void* const kernel = const_cast<void*>(handle);
  const char* name = nullptr;
  if (api_.cuKernelGetName != nullptr &&
      api_.cuKernelGetName(&name, static_cast<CUkernel>(kernel)) == CUDA_SUCCESS && name)
    return name;
  if (api_.cuFuncGetName != nullptr &&
      api_.cuFuncGetName(&name, static_cast<CUfunction>(kernel)) == CUDA_SUCCESS && name)
    return name;
  return "(unnamed kernel)";
}

std::string KernelInspector::origin(hal::KernelHandle handle) {
  if (options_.origin_of == nullptr) return "(unknown)";
  void* const kernel = const_cast<void*>(handle);
  CUlibrary library = nullptr;
  if (api_.cuKernelGetLibrary != nullptr &&
      api_.cuKernelGetLibrary(&library, static_cast<CUkernel>(kernel)) == CUDA_SUCCESS)
    return options_.origin_of(library);
  CUmodule module = nullptr;
  if (api_.cuFuncGetModule != nullptr &&
      api_.cuFuncGetModule(&module, static_cast<CUfunction>(kernel)) == CUDA_SUCCESS)
    return options_.origin_of(module);
  return "(unknown)";
}

CUfunction KernelInspector::function_of(hal::KernelHandle handle) {
  void* const kernel = const_cast<void*>(handle);
  CUfunction function = nullptr;
  const CurrentContext current(api_, options_.primary);
  if (api_.cuKernelGetFunction(&function, static_cast<CUkernel>(kernel)) == CUDA_SUCCESS)
    return function;
  return static_cast<CUfunction>(kernel);
}

int KernelInspector::function_attribute(CUfunction function, CUfunction_attribute attribute,
                                        int otherwise) {
  int value = otherwise;
  if (api_.cuFuncGetAttribute(&value, attribute, function) != CUDA_SUCCESS) return otherwise;
  return value;
}

std::uint32_t KernelInspector::resident_blocks(const hal::KernelLaunch& launch) {
  const CUfunction function = function_of(launch.kernel);
  int blocks = 0;
  const CurrentContext current(api_, options_.primary);
  const CUresult status = api_.cuOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, function, static_cast<int>(launch.block.volume()), launch.shared_bytes);
  return status == CUDA_SUCCESS ? static_cast<std::uint32_t>(std::max(0, blocks)) : 0;
}

std::uint32_t KernelInspector::sms_needed(const hal::KernelLaunch& launch, bool resident) {
  const CUfunction function = function_of(launch.kernel);
  std::uint32_t cluster = launch.cluster_blocks;
  // A cluster that was fixed when the kernel was compiled needs no launch attribute.
  if (cluster <= 1) {
    const int width = function_attribute(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 0);
    const int height = function_attribute(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, 0);
    const int depth = function_attribute(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, 0);
    if (width > 0)
      cluster = static_cast<std::uint32_t>(width * std::max(1, height) * std::max(1, depth));
  }
  std::uint32_t needed = std::max(1U, cluster);
  if (cluster > kClusterBlocksMax) needed = info_.sms + 1;
  if (cluster > 2 && options_.ignore_coscheduling) needed = info_.sms + 1;
  if (launch.cooperative || resident)
    needed =
        std::max(needed, hal::sms_to_hold(info_, launch.grid.volume(), resident_blocks(launch)));
  return needed;
}

NativeStatus KernelInspector::validate(const hal::KernelLaunch& launch) noexcept {
  if (launch.kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (launch.arguments != nullptr && launch.extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  const hal::Dim3 g = launch.grid, b = launch.block;
  constexpr std::uint32_t kGridX = 0x7fffffff, kGridYZ = 65535, kBlockXY = 1024, kBlockZ = 64;
  if (g.volume() == 0 || b.volume() == 0 || g.x > kGridX || g.y > kGridYZ || g.z > kGridYZ ||
      b.x > kBlockXY || b.y > kBlockXY || b.z > kBlockZ)
    return CUDA_ERROR_INVALID_VALUE;
  const CUfunction function = function_of(launch.kernel);
  const int threads = function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024);
  const int shared =
      function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 30);
  if (b.volume() > static_cast<std::uint64_t>(threads)) return CUDA_ERROR_INVALID_VALUE;
  // Of a cooperative grid whose blocks need too much none fits (launch_errors_behind_a_gate.trace).
  if (launch.shared_bytes > static_cast<std::uint32_t>(shared))
    return launch.cooperative ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_ERROR_INVALID_VALUE;
  const auto* records = static_cast<const CUlaunchAttribute*>(launch.attributes.records);
  const std::span attributes(records, launch.attributes.count);
  if (std::any_of(attributes.begin(), attributes.end(),
                  [](const CUlaunchAttribute& record) { return may_be_refused(record); }))
    return hal::kOnlyTheCallTells;
  if (const CUresult status = check_clusters(function, launch); status != CUDA_SUCCESS)
    return status;
  if (launch.cooperative) {
    const std::uint64_t blocks = resident_blocks(launch);
    if (blocks == 0) return hal::kOnlyTheCallTells;
    if (g.volume() > blocks * info_.sms) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

// Whether a launch may be refused for this attribute alone, in ways that validate() does not
// follow.
bool KernelInspector::may_be_refused(const CUlaunchAttribute& record) {
  // Numbers: a value that cuda.h does not name is no value of its enumeration.
  const auto number = [](const auto& field) {
    int value = 0;
    std::memcpy(&value, &field, sizeof value);
    return value;
  };
  switch (number(record.id)) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
      return false;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
      const auto& cluster = record.value.clusterDim;
      return cluster.x == 0 || cluster.y == 0 || cluster.z == 0;
    }
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      return static_cast<unsigned>(number(record.value.clusterSchedulingPolicyPreference)) >
             CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      return static_cast<unsigned>(number(record.value.memSyncDomain)) >
             CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE;
    default:
      return true;
  }
}

// Occupancy answers what the launch would: the same errors, and none at once is a refusal
// (bench/results/differential/clusters.trace).
CUresult KernelInspector::check_clusters(CUfunction function, const hal::KernelLaunch& launch) {
  const int required = function_attribute(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 0);
  if (launch.cluster_blocks <= 1 && required <= 0) return CUDA_SUCCESS;
  auto* records = static_cast<CUlaunchAttribute*>(const_cast<void*>(launch.attributes.records));
  for (std::uint32_t i = 0; i < launch.attributes.count; ++i) {
    if (records[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& cluster = records[i].value.clusterDim;
    if (launch.grid.x % cluster.x != 0 || launch.grid.y % cluster.y != 0 ||
        launch.grid.z % cluster.z != 0)
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  CUlaunchConfig config{};
  config.gridDimX = launch.grid.x;
  config.gridDimY = launch.grid.y;
  config.gridDimZ = launch.grid.z;
  config.blockDimX = launch.block.x;
  config.blockDimY = launch.block.y;
  config.blockDimZ = launch.block.z;
  config.sharedMemBytes = launch.shared_bytes;
  config.hStream = CU_STREAM_LEGACY;  // of the primary context: the whole device
  config.attrs = records;
  config.numAttrs = launch.attributes.count;
  const CurrentContext current(api_, options_.primary);
  int clusters = 0;
  const CUresult status = api_.cuOccupancyMaxActiveClusters(&clusters, function, &config);
  if (status != CUDA_SUCCESS) return status;
  return clusters > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}

}  // namespace vitamin::cuda
