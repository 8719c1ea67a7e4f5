// SPDX-License-Identifier: Apache-2.0
//
// hal::Device over the engine. A translation: nothing here has state of its own but handles.
#include "backends/soft/device.h"

#include <dlfcn.h>

#include <atomic>
#include <new>

namespace vitamin::soft {

namespace {

const KernelDescriptor* descriptor(hal::KernelHandle kernel) {
  return static_cast<const KernelDescriptor*>(kernel);
}
Event* event_of(hal::Event event) { return static_cast<Event*>(event.native); }
Index3 index3(const hal::Dim3& dim) { return Index3{dim.x, dim.y, dim.z}; }

hal::Errc errc(Status status) {
  switch (status) {
    case kOutOfMemory:
      return hal::Errc::kOutOfMemory;
    case kInvalidArgument:
    case kInvalidLaunch:
      return hal::Errc::kInvalidArgument;
    case kIllegalAddress:
    case kLaunchFailure:
      return hal::Errc::kDeviceLost;
    default:
      return hal::Errc::kInternal;
  }
}

tl::unexpected<hal::Error> failed(const char* what, Status status) {
  return hal::fail(errc(status), std::string(what) + " (" + status_name(status) + ")", status);
}

Launch translate(const hal::KernelLaunch& launch) {
  Launch result;
  result.kernel = descriptor(launch.kernel);
  result.grid = index3(launch.grid);
  result.block = index3(launch.block);
  result.dynamic_shared = launch.shared_bytes;
  result.cluster_blocks = launch.cluster_blocks;
  result.cooperative = launch.cooperative;
  result.attributes = launch.attributes.records;
  result.attribute_bytes = launch.attributes.count * sizeof(LaunchAttribute);
  result.form = static_cast<std::uint32_t>(launch.form);
  return result;
}

// The packed form of a launch's parameters: the caller's own buffer, or a copy of what its pointers
// show. Lives as long as the call.
class Packed {
 public:
  Status pack(const hal::KernelLaunch& launch) {
    const KernelDescriptor& kernel = *descriptor(launch.kernel);
    if (launch.arguments != nullptr && launch.extra != nullptr) return kInvalidArgument;
    if (launch.extra != nullptr) return take_extra(launch.extra, kernel);
    if (kernel.parameter_count == 0) return kOk;
    if (launch.arguments == nullptr) return kInvalidArgument;
    unsigned char* at = inline_;
    if (kernel.parameter_bytes > sizeof inline_) {
      heap_.reset(new (std::nothrow) unsigned char[kernel.parameter_bytes]);
      if (heap_ == nullptr) return kOutOfMemory;
      at = heap_.get();
    }
    // Padding is hashed too.
    std::memset(at, 0, kernel.parameter_bytes);
    for (std::uint32_t i = 0; i < kernel.parameter_count; ++i)
      std::memcpy(at + kernel.parameters[i].offset, launch.arguments[i], kernel.parameters[i].size);
    data_ = at;
    return kOk;
  }
  const void* data() const { return data_; }

 private:
  Status take_extra(void** extra, const KernelDescriptor& kernel) {
    std::size_t bytes = 0;
    for (; reinterpret_cast<std::uintptr_t>(extra[0]) != kExtraEnd; extra += 2) {
      const auto key = reinterpret_cast<std::uintptr_t>(extra[0]);
      if (key == kExtraBuffer)
        data_ = extra[1];
      else if (key == kExtraSize)
        bytes = *static_cast<const std::size_t*>(extra[1]);
      else
        return kInvalidArgument;
    }
    return bytes >= kernel.parameter_bytes && (data_ != nullptr || bytes == 0) ? kOk
                                                                               : kInvalidArgument;
  }

  unsigned char inline_[1024];
  std::unique_ptr<unsigned char[]> heap_;
  const void* data_ = nullptr;
};

class SoftQueue final : public hal::Queue {
 public:
  SoftQueue(Engine& engine, soft::Queue* queue, bool owned)
      : engine_(engine), queue_(queue), owned_(owned) {}
  ~SoftQueue() override {
    if (owned_) engine_.destroy_queue(queue_);
  }
  SoftQueue(const SoftQueue&) = delete;
  SoftQueue& operator=(const SoftQueue&) = delete;

  void* native() const noexcept override { return queue_; }
  hal::NativeStatus launch(const hal::KernelLaunch& launch) noexcept override {
    if (launch.kernel == nullptr) return kInvalidArgument;
    Packed parameters;
    const Status status = parameters.pack(launch);
    if (status != kOk) return status;
    Launch translated = translate(launch);
    translated.parameters = parameters.data();
    return engine_.launch(queue_, translated);
  }
  hal::NativeStatus record(hal::Event event) noexcept override {
    return engine_.record(queue_, event_of(event));
  }
  hal::NativeStatus wait(hal::Event event) noexcept override {
    return engine_.wait(queue_, event_of(event));
  }
  hal::NativeStatus query() noexcept override { return engine_.query(queue_); }
  hal::NativeStatus synchronize() noexcept override { return engine_.synchronize(queue_); }

 private:
  Engine& engine_;
  soft::Queue* queue_;
  bool owned_;
};

class SoftContext final : public hal::PhysicalContext {
 public:
  SoftContext(Engine& engine, std::shared_ptr<const ClusterRule> rule, hal::ComputeSet compute)
      : engine_(engine),
        rule_(std::move(rule)),
        compute_(compute),
        sms_(engine.device().units_of(compute.bits())) {}

  hal::ComputeSet compute() const noexcept override { return compute_; }
  std::uint32_t sms() const noexcept override { return sms_.count(); }
  hal::Result<std::unique_ptr<hal::Queue>> create_queue(int priority) override {
    QueueOptions options;
    options.sms = sms_;
    options.clusters = rule_;
    options.priority = priority;
    soft::Queue* queue = nullptr;
    const Status status = engine_.create_queue(options, &queue);
    if (status != kOk) return failed("a queue of a context cannot be created", status);
    return std::make_unique<SoftQueue>(engine_, queue, true);
  }

 private:
  Engine& engine_;
  std::shared_ptr<const ClusterRule> rule_;
  hal::ComputeSet compute_;
  SmSet sms_;
};

class SoftKernels final : public hal::KernelInspector {
 public:
  SoftKernels(const Engine& engine, const ClusterRule& unit_rule, const ClusterRule& whole_rule)
      : engine_(engine), unit_rule_(unit_rule), whole_rule_(whole_rule) {}

  hal::Result<hal::KernelLayout> layout(hal::KernelHandle kernel) override {
    if (kernel == nullptr)
      return hal::fail(hal::Errc::kInvalidArgument, "the kernel handle is null");
    const KernelDescriptor& from = *descriptor(kernel);
    hal::KernelLayout layout;
    for (std::uint32_t i = 0; i < from.parameter_count; ++i)
      layout.parameters.push_back({from.parameters[i].offset, from.parameters[i].size});
    layout.bytes = from.parameter_bytes;
    return layout;
  }
  std::string name(hal::KernelHandle kernel) override { return descriptor(kernel)->name; }
  std::string origin(hal::KernelHandle kernel) override {
    Dl_info info{};
    if (::dladdr(kernel, &info) == 0 || info.dli_fname == nullptr) return "unknown";
    const std::string path = info.dli_fname;
    return path.substr(path.find_last_of('/') + 1);
  }

  std::uint32_t sms_needed(const hal::KernelLaunch& launch, bool resident) override {
    const Launch translated = translate(launch);
    const std::uint32_t whole_only = engine_.device().sms() + 1;
    const std::uint32_t each = engine_.blocks_per_sm(*translated.kernel, translated.block.volume(),
                                                     translated.dynamic_shared);
    const std::uint32_t cluster = translated.cluster_blocks;
    if (each == 0 || cluster > unit_rule_.max_blocks) return whole_only;
    std::uint64_t needed = (cluster + each - 1) / each;
    if (launch.cooperative || resident) {
      const std::uint64_t blocks = translated.grid.volume();
      const std::uint64_t all =
          cluster > 1 ? std::uint64_t{cluster} * engine_.max_active_clusters(engine_.device().all(),
                                                                             unit_rule_, translated)
                      : std::uint64_t{each} * engine_.device().sms();
      if (blocks > all) return whole_only;
      // With clusters a unit's odd SMs stay empty, so ask for the share of the whole.
      needed = (blocks * engine_.device().sms() + all - 1) / all;
    }
    return static_cast<std::uint32_t>(needed);
  }
  std::uint32_t resident_blocks(const hal::KernelLaunch& launch) override {
    const Launch translated = translate(launch);
    return engine_.blocks_per_sm(*translated.kernel, translated.block.volume(),
                                 translated.dynamic_shared);
  }
  hal::NativeStatus validate(const hal::KernelLaunch& launch) noexcept override {
    return engine_.check_launch(engine_.device().all(), whole_rule_, translate(launch));
  }
  std::size_t attribute_record_bytes() const noexcept override { return sizeof(LaunchAttribute); }

 private:
  const Engine& engine_;
  const ClusterRule& unit_rule_;
  const ClusterRule& whole_rule_;
};

class SoftErrors final : public hal::ErrorClassifier {
 public:
  hal::Outcome classify(hal::NativeStatus status) const noexcept override {
    switch (status) {
      case kOk:
        return hal::Outcome::kOk;
      case kNotReady:
        return hal::Outcome::kNotReady;
      case kCooperativeTooLarge:
      case kClusterTooLarge:
        return hal::Outcome::kPartitionRefused;
      default:
        return hal::Outcome::kError;
    }
  }
  hal::NativeStatus not_ready() const noexcept override { return kNotReady; }
  hal::NativeStatus out_of_memory() const noexcept override { return kOutOfMemory; }
};

class SoftDevice final : public Device {
 public:
  explicit SoftDevice(std::unique_ptr<Engine> engine)
      : engine_(std::move(engine)),
        unit_rule_(std::make_shared<const ClusterRule>(engine_->device().unit_rule())),
        whole_rule_(std::make_shared<const ClusterRule>(engine_->device().whole_rule())),
        inspector_(*engine_, *unit_rule_, *whole_rule_) {
    const DeviceDescription& device = engine_->device();
    info_.vendor = hal::Vendor::kSoftware;
    info_.name = device.name;
    info_.uuid = device.uuid;
    info_.sms = device.sms();
    info_.sms_per_unit = device.unit_sms;
    info_.pool_queues_max = device.pool_queues_max;
  }

  Status make_legacy_stream() { return make_stream(SyncClass::kLegacy, 0, &legacy_); }

  const hal::DeviceInfo& info() const noexcept override { return info_; }
  hal::KernelInspector& inspector() noexcept override { return inspector_; }
  const hal::ErrorClassifier& errors() const noexcept override { return errors_; }
  Engine& engine() noexcept override { return *engine_; }

  hal::Result<std::unique_ptr<hal::PhysicalContext>> create_context(
      hal::ComputeSet compute) override {
    if (compute.empty() || !hal::ComputeSet::range(0, info_.units()).contains(compute))
      return hal::fail(hal::Errc::kInvalidArgument, "a context needs units of this device (bits " +
                                                        std::to_string(compute.bits()) +
                                                        ", units " + std::to_string(info_.units()) +
                                                        ")");
    return std::make_unique<SoftContext>(*engine_, unit_rule_, compute);
  }
  std::unique_ptr<hal::Queue> adopt_queue(void* native_stream) override {
    return std::make_unique<SoftQueue>(*engine_, static_cast<soft::Queue*>(native_stream), false);
  }
  hal::Result<std::unique_ptr<hal::Queue>> create_whole_queue(int priority) override {
    soft::Queue* queue = nullptr;
    const Status status = make_stream(SyncClass::kBlocking, priority, &queue);
    if (status != kOk) return failed("a queue of the whole device cannot be created", status);
    return std::make_unique<SoftQueue>(*engine_, queue, true);
  }

  hal::Result<void*> create_stream(SyncClass sync, int priority) override {
    soft::Queue* queue = nullptr;
    const Status status = make_stream(sync, priority, &queue);
    if (status != kOk) return failed("a stream cannot be created", status);
    return queue;
  }
  void destroy_stream(void* native_stream) noexcept override {
    engine_->destroy_queue(static_cast<soft::Queue*>(native_stream));
  }
  void* legacy_stream() noexcept override { return legacy_; }

  hal::Result<hal::Event> create_event() override {
    soft::Event* event = nullptr;
    const Status status = engine_->create_event(&event);
    if (status != kOk) return failed("an event cannot be created", status);
    return hal::Event{event};
  }
  hal::Result<hal::Event> create_timed_event() override { return create_event(); }
  hal::NativeStatus elapsed(hal::Event from, hal::Event to, double& ns) noexcept override {
    Nanoseconds begin = 0, end = 0;
    if (const Status status = engine_->event_time(event_of(from), &begin); status != kOk)
      return status;
    const Status status = engine_->event_time(event_of(to), &end);
    ns = static_cast<double>(end) - static_cast<double>(begin);
    return status;
  }
  void destroy_event(hal::Event event) noexcept override {
    engine_->destroy_event(event_of(event));
  }
  hal::NativeStatus query(hal::Event event) noexcept override {
    const Status status = engine_->query(event_of(event));
    queries_.fetch_add(1, std::memory_order_relaxed);
    if (status == kNotReady) outstanding_.fetch_add(1, std::memory_order_relaxed);
    return status;
  }
  void keep_places_from_markers() noexcept override { info_.markers_take_places = false; }
  EventQueries event_queries() const noexcept override {
    return {queries_.load(std::memory_order_relaxed), outstanding_.load(std::memory_order_relaxed)};
  }
  hal::NativeStatus synchronize(hal::Event event) noexcept override {
    return engine_->synchronize(event_of(event));
  }

  // The software device has no captures, so no call of it is ever unsafe.
  void enter_internal() noexcept override {}
  void leave_internal() noexcept override {}

 private:
  Status make_stream(SyncClass sync, int priority, soft::Queue** queue) {
    QueueOptions options;
    options.sms = engine_->device().all();
    options.clusters = whole_rule_;
    options.priority = priority;
    options.sync = sync;
    return engine_->create_queue(options, queue);
  }

  std::unique_ptr<Engine> engine_;
  std::atomic<std::uint64_t> queries_{0}, outstanding_{0};
  std::shared_ptr<const ClusterRule> unit_rule_, whole_rule_;
  SoftKernels inspector_;
  SoftErrors errors_;
  hal::DeviceInfo info_;
  soft::Queue* legacy_ = nullptr;
};

}  // namespace

hal::Result<std::unique_ptr<Device>> open_device(EngineOptions options) {
  auto engine = Engine::create(std::move(options));
  if (!engine) return tl::unexpected(engine.error());
  if ((*engine)->device().units() > hal::ComputeSet::kMaxUnits)
    return hal::fail(hal::Errc::kUnsupported,
                     "a device has at most " + std::to_string(hal::ComputeSet::kMaxUnits) +
                         " units here (" + std::to_string((*engine)->device().units()) + ")");
  auto device = std::make_unique<SoftDevice>(std::move(*engine));
  const Status status = device->make_legacy_stream();
  if (status != kOk) return failed("the legacy default stream cannot be created", status);
  return device;
}

}  // namespace vitamin::soft
