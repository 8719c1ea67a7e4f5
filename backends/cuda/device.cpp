// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/device.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "backends/cuda/green_context.h"
#include "backends/cuda/status.h"
#include "hal/residency.h"

namespace vitamin::cuda {
namespace {

using hal::NativeStatus;

// Clusters of this many blocks run on any union of units of a co-scheduled split; the next size,
// 16, runs on none (measured on an H200; cuDNN uses it).
constexpr std::uint32_t kClusterBlocksMax = 8;

class CudaDevice final : public hal::Device {
 public:
  CudaDevice(const Api& api, const DeviceOptions& options) : api_(api), options_(options) {}
  hal::Status open();

  const hal::DeviceInfo& info() const noexcept override { return info_; }
  hal::Result<std::unique_ptr<hal::PhysicalContext>> create_context(hal::ComputeSet set) override;
  std::unique_ptr<hal::Queue> adopt_queue(void* native_stream) override;
  hal::Result<std::unique_ptr<hal::Queue>> create_whole_queue(int priority) override;
  hal::Result<hal::Event> create_event() override { return make_event(CU_EVENT_DISABLE_TIMING); }
  hal::Result<hal::Event> create_timed_event() override { return make_event(CU_EVENT_DEFAULT); }
  void destroy_event(hal::Event event) noexcept override {
    api_.cuEventDestroy_v2(static_cast<CUevent>(event.native));
  }
  NativeStatus query(hal::Event event) noexcept override {
    return api_.cuEventQuery(static_cast<CUevent>(event.native));
  }
  NativeStatus synchronize(hal::Event event) noexcept override {
    return api_.cuEventSynchronize(static_cast<CUevent>(event.native));
  }
  NativeStatus elapsed(hal::Event from, hal::Event to, double& ns) noexcept override {
    float milliseconds = 0;
    const CUresult status = api_.cuEventElapsedTime(
        &milliseconds, static_cast<CUevent>(from.native), static_cast<CUevent>(to.native));
    ns = static_cast<double>(milliseconds) * 1e6;
    return status;
  }
  hal::Result<hal::KernelLayout> kernel_layout(hal::KernelHandle kernel) override;
  std::string kernel_name(hal::KernelHandle kernel) override;
  std::string kernel_origin(hal::KernelHandle kernel) override;
  std::uint32_t processors_needed(const hal::KernelLaunch& launch, bool resident) override;
  std::uint32_t resident_blocks(const hal::KernelLaunch& launch) override;
  NativeStatus validate(const hal::KernelLaunch& launch) noexcept override;
  std::uint64_t free_bytes() noexcept override {
    const CurrentContext current(api_, options_.primary);
    std::size_t free = 0, total = 0;
    return api_.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
  }
  hal::Outcome classify(NativeStatus status) const noexcept override {
    return cuda::classify(status);
  }
  NativeStatus not_ready() const noexcept override { return CUDA_ERROR_NOT_READY; }
  NativeStatus out_of_memory() const noexcept override { return CUDA_ERROR_OUT_OF_MEMORY; }
  void attach_thread() noexcept override;
  void enter_internal() noexcept override;
  void leave_internal() noexcept override;

 private:
  static bool may_be_refused(const CUlaunchAttribute& record);
  CUresult check_clusters(CUfunction function, const hal::KernelLaunch& launch);
  hal::Status split();
  hal::Result<hal::Event> make_event(unsigned flags);
  // The CUfunction of a CUfunction or CUkernel, as the occupancy and attribute calls want it.
  CUfunction function_of(hal::KernelHandle kernel);
  int function_attribute(CUfunction function, CUfunction_attribute attribute, int otherwise);

  const Api api_;
  const DeviceOptions options_;
  hal::DeviceInfo info_;
  std::vector<CUdevResource> units_;
};

hal::Status CudaDevice::open() {
  info_.vendor = hal::Vendor::kNvidia;
  // Of an H200 (bench/results/green/queue_depths.txt): 1,018 to 1,021 launches, copies and fills
  // fit a stream, and 734 launches with 4,000 bytes of parameters; records and waits take no place.
  info_.queue_depth = 1018;
  info_.queue_depth_measured = true;
  info_.markers_take_places = false;
  info_.parameter_bytes_of_place = 734 * 4000 / 1020;
  char name[256] = "";
  if (const CUresult status = api_.cuDeviceGetName(name, sizeof name, options_.ordinal);
      status != CUDA_SUCCESS)
    return failed("the device cannot be asked for its name", status);
  info_.name = name;
  CUuuid uuid{};
  if (api_.cuDeviceGetUuid_v2(&uuid, options_.ordinal) == CUDA_SUCCESS) {
    char text[48];
    const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
    std::snprintf(text, sizeof text,
                  "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                  b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                  b[14], b[15]);
    info_.uuid = text;
  }
  return split();
}

hal::Status CudaDevice::split() {
  CUdevResource all{};
  CUresult status = api_.cuDeviceGetDevResource(options_.ordinal, &all, CU_DEV_RESOURCE_TYPE_SM);
  if (status != CUDA_SUCCESS) return failed("the device's SMs cannot be asked for", status);
  info_.processors = all.sm.smCount;

  const unsigned flags =
      options_.ignore_coscheduling ? unsigned{CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING} : 0U;
  unsigned wanted = options_.unit_processors != 0 ? options_.unit_processors : 8U;
  for (;; wanted *= 2) {
    // One unit may be the remainder, so a set holds at most 63 groups besides.
    std::array<CUdevResource, hal::ComputeSet::kMaxUnits> groups{};
    CUdevResource rest{};
    unsigned count = all.sm.smCount / wanted;
    if (count >= groups.size()) continue;
    status = api_.cuDevSmResourceSplitByCount(groups.data(), &count, &all, &rest, flags, wanted);
    if (status != CUDA_SUCCESS) return failed("the device's SMs cannot be split", status);
    units_.assign(groups.begin(), groups.begin() + count);
    if (rest.type == CU_DEV_RESOURCE_TYPE_SM && rest.sm.smCount > 0) units_.push_back(rest);
    break;
  }
  for (const CUdevResource& unit : units_) info_.processors_per_unit.push_back(unit.sm.smCount);
  return {};
}

hal::Result<std::unique_ptr<hal::PhysicalContext>> CudaDevice::create_context(hal::ComputeSet set) {
  std::vector<CUdevResource> resources;
  for (unsigned unit = 0; unit < info_.units(); ++unit)
    if (set.has(unit)) resources.push_back(units_[unit]);
  if (resources.empty() || (set - hal::ComputeSet::range(0, info_.units())).count() != 0)
    return hal::fail(hal::Errc::kInvalidArgument, "the compute set names no unit of this device");
  return GreenContext::create(api_, options_.ordinal, set, info_.processors_of(set),
                              std::move(resources));
}

std::unique_ptr<hal::Queue> CudaDevice::adopt_queue(void* native_stream) {
  if (native_stream == nullptr || native_stream == CU_STREAM_LEGACY)
    return std::make_unique<LegacyQueue>(api_, options_.primary);
  return std::make_unique<StreamQueue>(api_, static_cast<CUstream>(native_stream),
                                       StreamQueue::Ownership::kBorrowed);
}

hal::Result<std::unique_ptr<hal::Queue>> CudaDevice::create_whole_queue(int priority) {
  const CurrentContext current(api_, options_.primary);
  CUstream stream = nullptr;
  const CUresult status = api_.cuStreamCreateWithPriority(&stream, CU_STREAM_DEFAULT, priority);
  if (status != CUDA_SUCCESS) return failed("a stream cannot be created", status);
  return std::make_unique<StreamQueue>(api_, stream, StreamQueue::Ownership::kOwned);
}

hal::Result<hal::Event> CudaDevice::make_event(unsigned flags) {
  const CurrentContext current(api_, options_.primary);
  CUevent event = nullptr;
  const CUresult status = api_.cuEventCreate(&event, flags);
  if (status != CUDA_SUCCESS) return failed("an event cannot be created", status);
  return hal::Event{event};
}

// --- kernels ---------------------------------------------------------------------------------

hal::Result<hal::KernelLayout> CudaDevice::kernel_layout(hal::KernelHandle handle) {
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

std::string CudaDevice::kernel_name(hal::KernelHandle handle) {
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

std::string CudaDevice::kernel_origin(hal::KernelHandle handle) {
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

CUfunction CudaDevice::function_of(hal::KernelHandle handle) {
  void* const kernel = const_cast<void*>(handle);
  CUfunction function = nullptr;
  const CurrentContext current(api_, options_.primary);
  if (api_.cuKernelGetFunction(&function, static_cast<CUkernel>(kernel)) == CUDA_SUCCESS)
    return function;
  return static_cast<CUfunction>(kernel);
}

int CudaDevice::function_attribute(CUfunction function, CUfunction_attribute attribute,
                                   int otherwise) {
  int value = otherwise;
  if (api_.cuFuncGetAttribute(&value, attribute, function) != CUDA_SUCCESS) return otherwise;
  return value;
}

std::uint32_t CudaDevice::resident_blocks(const hal::KernelLaunch& launch) {
  const CUfunction function = function_of(launch.kernel);
  int blocks = 0;
  const CurrentContext current(api_, options_.primary);
  const CUresult status = api_.cuOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, function, static_cast<int>(launch.block.volume()), launch.shared_bytes);
  return status == CUDA_SUCCESS ? static_cast<std::uint32_t>(std::max(0, blocks)) : 0;
}

std::uint32_t CudaDevice::processors_needed(const hal::KernelLaunch& launch, bool resident) {
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
  if (cluster > kClusterBlocksMax) needed = info_.processors + 1;
  if (cluster > 2 && options_.ignore_coscheduling) needed = info_.processors + 1;
  if (launch.cooperative || resident)
    needed = std::max(
        needed, hal::processors_to_hold(info_, launch.grid.volume(), resident_blocks(launch)));
  return needed;
}

NativeStatus CudaDevice::validate(const hal::KernelLaunch& launch) noexcept {
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
    if (g.volume() > blocks * info_.processors) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

// Whether a launch may be refused for this attribute alone, in ways that validate() does not
// follow.
bool CudaDevice::may_be_refused(const CUlaunchAttribute& record) {
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
CUresult CudaDevice::check_clusters(CUfunction function, const hal::KernelLaunch& launch) {
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

// --- threads ---------------------------------------------------------------------------------

namespace {
constinit thread_local hal::ThreadCaptureMode<CUstreamCaptureMode> capture_mode;

auto exchange_by(const Api& api) {
  return [&api](CUstreamCaptureMode* mode) {
    return api.cuThreadExchangeStreamCaptureMode(mode) == CUDA_SUCCESS;
  };
}
}  // namespace

void CudaDevice::attach_thread() noexcept {
  api_.cuCtxSetCurrent(options_.primary);
  capture_mode.relax_for_good(CU_STREAM_CAPTURE_MODE_RELAXED, exchange_by(api_));
}

void CudaDevice::enter_internal() noexcept {
  capture_mode.enter(options_.open_captures, CU_STREAM_CAPTURE_MODE_RELAXED, exchange_by(api_));
}

void CudaDevice::leave_internal() noexcept { capture_mode.leave(exchange_by(api_)); }

}  // namespace

hal::Result<std::unique_ptr<hal::Device>> open_device(const Api& api,
                                                      const DeviceOptions& options) {
  auto device = std::make_unique<CudaDevice>(api, options);
  if (const hal::Status status = device->open(); !status) return tl::unexpected(status.error());
  return device;
}

CUcontext context_of(hal::PhysicalContext& entry) {
  return static_cast<GreenContext&>(entry).context();
}

}  // namespace vitamin::cuda
