// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/device.h"

#include <array>
#include <cstdio>
#include <vector>

#include "backends/cuda/green_context.h"
#include "backends/cuda/kernel_inspector.h"
#include "backends/cuda/status.h"

namespace vitamin::cuda {
namespace {

using hal::NativeStatus;

class CudaDevice final : public hal::Device {
 public:
  CudaDevice(const Api& api, const DeviceOptions& options)
      : api_(api), options_(options), inspector_(api_, options_, info_) {}
  hal::Status open();

  const hal::DeviceInfo& info() const noexcept override { return info_; }
  hal::KernelInspector& inspector() noexcept override { return inspector_; }
  const hal::ErrorClassifier& errors() const noexcept override { return errors_; }
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
  std::uint64_t free_bytes() noexcept override {
    const CurrentContext current(api_, options_.primary);
    std::size_t free = 0, total = 0;
    return api_.cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS ? free : 0;
  }
  void attach_thread() noexcept override;
  void enter_internal() noexcept override;
  void leave_internal() noexcept override;

 private:
  hal::Status split();
  hal::Result<hal::Event> make_event(unsigned flags);

  const Api api_;
  const DeviceOptions options_;
  hal::DeviceInfo info_;
  std::vector<CUdevResource> units_;
  KernelInspector inspector_;
  ErrorClassifier errors_;
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
  info_.sms = all.sm.smCount;

  const unsigned flags =
      options_.ignore_coscheduling ? unsigned{CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING} : 0U;
  unsigned wanted = options_.unit_sms != 0 ? options_.unit_sms : 8U;
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
  for (const CUdevResource& unit : units_) info_.sms_per_unit.push_back(unit.sm.smCount);
  return {};
}

hal::Result<std::unique_ptr<hal::PhysicalContext>> CudaDevice::create_context(hal::ComputeSet set) {
  std::vector<CUdevResource> resources;
  for (unsigned unit = 0; unit < info_.units(); ++unit)
    if (set.has(unit)) resources.push_back(units_[unit]);
  if (resources.empty() || (set - hal::ComputeSet::range(0, info_.units())).count() != 0)
    return hal::fail(hal::Errc::kInvalidArgument, "the compute set names no unit of this device");
  return GreenContext::create(api_, options_.ordinal, set, info_.sms_of(set), std::move(resources));
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

CUcontext context_of(hal::PhysicalContext& partition) {
  return static_cast<GreenContext&>(partition).context();
}

}  // namespace vitamin::cuda
