// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/device.h"

#include <algorithm>
#include <utility>

#include "backends/hip/green_split.h"
#include "backends/hip/kernel_inspector.h"
#include "backends/hip/mask_plan.h"
#include "backends/hip/shape.h"
#include "backends/hip/status.h"
#include "backends/hip/stream_queue.h"

namespace vitamin::hip {
namespace {

using hal::NativeStatus;

// Compute queues that all processes together may hold. A GPU has 24 hardware queues for all, one of
// RDNA 2 or 3 has eight; more queues than that take turns. Linux: kfd_device_queue_manager.c,
// get_cp_queues_num; amdgpu_amdkfd.c, amdgpu_amdkfd_device_init. Measured on an MI250: 21
// (mpirun_check.sh).
constexpr unsigned kQueuesOfCdna = 20, kQueuesOfRdna = 8;

class HipDevice final : public hal::Device {
 public:
  HipDevice(const Api& api, const DeviceOptions& options)
      : api_(api),
        options_(options),
        queues_(api_, options_.ordinal, options_.notice),
        inspector_(api_, options_.ordinal, info_) {}
  hal::Status open();

  const hal::DeviceInfo& info() const noexcept override { return info_; }
  hal::KernelInspector& inspector() noexcept override { return inspector_; }
  const hal::ErrorClassifier& errors() const noexcept override { return errors_; }
  hal::Result<std::unique_ptr<hal::PhysicalContext>> create_context(hal::ComputeSet set) override;
  std::unique_ptr<hal::Queue> adopt_queue(void* native_stream) override {
    return std::make_unique<StreamQueue>(api_, options_.ordinal,
                                         static_cast<hipStream_t>(native_stream),
                                         StreamQueue::Ownership::kBorrowed, stream_ticket());
  }
  std::uint32_t pool_queues_now() override {
    if (queues_.ledger() == nullptr) return info_.pool_queues_max;
    const std::uint32_t share = queues_.ledger()->limit();
    if (share == 0) static_cast<void>(queues_.none_left());
    return std::min(info_.pool_queues_max, share);
  }
  hal::Result<std::unique_ptr<hal::Queue>> create_whole_queue(int priority) override;
  hal::Result<hal::Event> create_event() override { return make_event(hipEventDisableTiming); }
  hal::Result<hal::Event> create_timed_event() override { return make_event(hipEventDefault); }
  void destroy_event(hal::Event event) noexcept override {
    static_cast<void>(api_.hipEventDestroy(static_cast<hipEvent_t>(event.native)));
  }
  NativeStatus query(hal::Event event) noexcept override {
    return api_.hipEventQuery(static_cast<hipEvent_t>(event.native));
  }
  NativeStatus synchronize(hal::Event event) noexcept override {
    return api_.hipEventSynchronize(static_cast<hipEvent_t>(event.native));
  }
  NativeStatus elapsed(hal::Event from, hal::Event to, double& ns) noexcept override {
    float milliseconds = 0;
    const hipError_t status = api_.hipEventElapsedTime(
        &milliseconds, static_cast<hipEvent_t>(from.native), static_cast<hipEvent_t>(to.native));
    ns = static_cast<double>(milliseconds) * 1e6;
    return status;
  }
  std::uint64_t free_bytes() noexcept override {
    const CurrentDevice current(api_, options_.ordinal);
    std::size_t free = 0, total = 0;
    return api_.hipMemGetInfo(&free, &total) == hipSuccess ? free : 0;
  }
  void attach_thread() noexcept override;
  void enter_internal() noexcept override;
  void leave_internal() noexcept override;

 private:
  int attribute(hipDeviceAttribute_t which) const {
    int value = 0;
    return api_.hipDeviceGetAttribute(&value, which, options_.ordinal) == hipSuccess ? value : 0;
  }
  void plan_units();
  hal::Result<hal::Event> make_event(unsigned flags);
  void share_queues(unsigned plain, unsigned queues);
  QueueLedger::Ticket stream_ticket() const {
    return queues_.ledger() != nullptr ? queues_.ledger()->stream() : nullptr;
  }
  void tell(const std::string& sentence) const {
    if (options_.notice != nullptr) options_.notice(sentence.c_str());
  }

  const Api api_;
  const DeviceOptions options_;
  hal::DeviceInfo info_;
  MaskPlan plan_;                    // of no units: the pool has none
  std::optional<GreenSplit> split_;  // none: partitions are CU-masked streams
  PoolQueues queues_;
  KernelInspector inspector_;
  ErrorClassifier errors_;
};

hal::Status HipDevice::open() {
  info_.vendor = hal::Vendor::kAmd;
  char name[256] = "";
  if (const hipError_t status = api_.hipDeviceGetName(name, sizeof name, options_.ordinal);
      status != hipSuccess)
    return failed("the device cannot be asked for its name", status);
  info_.name = name;
  char address[32] = "";
  if (api_.hipDeviceGetPCIBusId(address, sizeof address, options_.ordinal) == hipSuccess)
    info_.uuid = address;
  const int sms = attribute(hipDeviceAttributeMultiprocessorCount);
  if (sms <= 0)
    return hal::fail(hal::Errc::kInternal, "the device does not say how many CUs it has");
  info_.sms = static_cast<std::uint32_t>(sms);
  info_.pool_priorities = false;
  info_.driver_orders_legacy_stream = false;
  plan_units();
  return {};
}

// A device that cannot be divided is one unit: its launches stay on the application's streams.
void HipDevice::plan_units() {
  const QueueLimits limits = limits_of(options_.settings, options_.queue_budget);
  for (const std::string& notice : limits.notices) tell(notice);
  info_.pool_queues_max = limits.slots;
  info_.sms_per_unit = {info_.sms};
  if (limits.confined) return;
  const std::optional<DeviceShape> shape = shape_of(api_, options_.ordinal);
  share_queues(limits.plain, shape && shape->pairs ? kQueuesOfRdna : kQueuesOfCdna);
  if (!shape)
    return tell(
        "The HSA runtime does not tell the device's shader engines; launches are not moved.");
  hal::Result<MaskPlan> plan = MaskPlan::make(*shape, api_.version);
  if (!plan) return tell("Launches are not moved: " + plan.error().message + ".");
  plan_ = std::move(*plan);
  info_.sms_per_unit = plan_.sms_per_unit();
  hal::Result<GreenSplit> split = GreenSplit::make(api_, options_.ordinal, plan_);
  if (split)
    split_ = std::move(*split);
  else if (split.error().code != hal::Errc::kUnavailable)
    tell("HIP's execution contexts are not used, CU-masked streams are: " + split.error().message +
         ".");
  info_.pool_priorities = split_.has_value();
}

void HipDevice::share_queues(unsigned plain, unsigned queues) {
  if (options_.lock_directory.empty()) return;
  auto ledger = QueueLedger::open(options_.lock_directory, info_.uuid, queues, plain);
  if (!ledger)
    return tell(ledger.error().message + ": each process holds its " +
                std::to_string(info_.pool_queues_max) + ", whatever others hold.");
  queues_.share(std::move(*ledger));
}

hal::Result<std::unique_ptr<hal::PhysicalContext>> HipDevice::create_context(hal::ComputeSet set) {
  if (plan_.units() == 0)
    return hal::fail(hal::Errc::kUnsupported, "the device is not divided into units");
  if (set.empty() || !hal::ComputeSet::range(0, plan_.units()).contains(set))
    return hal::fail(hal::Errc::kInvalidArgument,
                     "the compute set names no unit of this device, or others besides (bits " +
                         std::to_string(set.bits()) + ", units " + std::to_string(plan_.units()) +
                         ")");
  if (split_) return std::make_unique<GreenContext>(api_, set, info_.sms_of(set), queues_, *split_);
  return std::make_unique<MaskedContext>(api_, set, info_.sms_of(set), queues_, plan_.mask(set));
}

hal::Result<std::unique_ptr<hal::Queue>> HipDevice::create_whole_queue(int priority) {
  const CurrentDevice current(api_, options_.ordinal);
  hipStream_t stream = nullptr;
  const hipError_t status = api_.hipStreamCreateWithPriority(&stream, hipStreamDefault, priority);
  if (status != hipSuccess) return failed("a stream cannot be created", status);
  return std::make_unique<StreamQueue>(api_, options_.ordinal, stream,
                                       StreamQueue::Ownership::kOwned, stream_ticket());
}

hal::Result<hal::Event> HipDevice::make_event(unsigned flags) {
  const CurrentDevice current(api_, options_.ordinal);
  hipEvent_t event = nullptr;
  const hipError_t status = api_.hipEventCreateWithFlags(&event, flags);
  if (status != hipSuccess) return failed("an event cannot be created", status);
  return hal::Event{event};
}

// --- threads ---------------------------------------------------------------------------------

namespace {
constinit thread_local hal::ThreadCaptureMode<hipStreamCaptureMode> capture_mode;

auto exchange_by(const Api& api) {
  return [&api](hipStreamCaptureMode* mode) {
    return api.hipThreadExchangeStreamCaptureMode != nullptr &&
           api.hipThreadExchangeStreamCaptureMode(mode) == hipSuccess;
  };
}
}  // namespace

void HipDevice::attach_thread() noexcept {
  static_cast<void>(api_.hipSetDevice(options_.ordinal));
  capture_mode.relax_for_good(hipStreamCaptureModeRelaxed, exchange_by(api_));
}

void HipDevice::enter_internal() noexcept {
  capture_mode.enter(options_.open_captures, hipStreamCaptureModeRelaxed, exchange_by(api_));
}

void HipDevice::leave_internal() noexcept { capture_mode.leave(exchange_by(api_)); }

}  // namespace

hal::Result<std::unique_ptr<hal::Device>> open_device(const Api& api,
                                                      const DeviceOptions& options) {
  auto device = std::make_unique<HipDevice>(api, options);
  if (const hal::Status status = device->open(); !status) return tl::unexpected(status.error());
  return device;
}

}  // namespace vitamin::hip
