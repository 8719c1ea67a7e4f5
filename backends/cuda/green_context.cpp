// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/green_context.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <type_traits>

#include "backends/cuda/status.h"

namespace vitamin::cuda {
namespace {

using hal::NativeStatus;

CUevent event_of(hal::Event event) { return static_cast<CUevent>(event.native); }

// The kernel handle of the HAL is an identity; the driver takes CUfunction and CUkernel alike.
CUfunction function_of(const hal::KernelLaunch& launch) {
  return static_cast<CUfunction>(const_cast<void*>(launch.kernel));
}

// Attributes as they go to the driver: the application's, less programmatic serialisation where the
// kernel directly ahead on the queue is not the one that the application put ahead of it.
class Attributes {
 public:
  explicit Attributes(const hal::KernelLaunch& launch) {
    const std::span given(static_cast<const CUlaunchAttribute*>(launch.attributes.records),
                          launch.attributes.count);
    const bool drop =
        !launch.programmatic && std::any_of(given.begin(), given.end(), is_programmatic);
    const bool add_cooperative = launch.form == hal::LaunchForm::kCooperative;
    if (!drop && !add_cooperative) {
      attributes_ = given;
      return;
    }
    // Attributes have at most one record a kind; more than fits cannot have come from cuda.h.
    for (const CUlaunchAttribute& attribute : given)
      if (!(drop && is_programmatic(attribute)) && count_ + 1 < room_.size())
        room_[count_++] = attribute;
    if (add_cooperative) {
      room_[count_].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      room_[count_++].value.cooperative = 1;
    }
    attributes_ = {room_.data(), count_};
  }
  // The driver reads the array only; its type has no const.
  CUlaunchAttribute* data() const { return const_cast<CUlaunchAttribute*>(attributes_.data()); }
  unsigned count() const { return static_cast<unsigned>(attributes_.size()); }

 private:
  // An application may pass any number as the identifier. A C++ enumeration cannot hold every
  // number, so the identifier is read as the integer that it is in C.
  static bool is_programmatic(const CUlaunchAttribute& attribute) {
    std::underlying_type_t<CUlaunchAttributeID> id;
    static_assert(sizeof id == sizeof attribute.id);
    std::memcpy(&id, &attribute.id, sizeof id);
    return id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  }
  std::array<CUlaunchAttribute, 48> room_;
  std::size_t count_ = 0;
  std::span<const CUlaunchAttribute> attributes_;
};

}  // namespace

StreamQueue::~StreamQueue() {
  if (owned_) api_.cuStreamDestroy_v2(stream_);
}

NativeStatus StreamQueue::launch(const hal::KernelLaunch& l) noexcept {
  const CUfunction function = function_of(l);
  if (l.attributes.count == 0 && l.form == hal::LaunchForm::kPlain)
    return api_.cuLaunchKernel(function, l.grid.x, l.grid.y, l.grid.z, l.block.x, l.block.y,
                               l.block.z, l.shared_bytes, stream_, l.arguments, l.extra);
  if (l.attributes.count == 0 && l.form == hal::LaunchForm::kCooperative)
    return api_.cuLaunchCooperativeKernel(function, l.grid.x, l.grid.y, l.grid.z, l.block.x,
                                          l.block.y, l.block.z, l.shared_bytes, stream_,
                                          l.arguments);
  const Attributes attributes(l);
  CUlaunchConfig config{};
  config.gridDimX = l.grid.x;
  config.gridDimY = l.grid.y;
  config.gridDimZ = l.grid.z;
  config.blockDimX = l.block.x;
  config.blockDimY = l.block.y;
  config.blockDimZ = l.block.z;
  config.sharedMemBytes = l.shared_bytes;
  config.hStream = stream_;
  config.attrs = attributes.data();
  config.numAttrs = attributes.count();
  return api_.cuLaunchKernelEx(&config, function, l.arguments, l.extra);
}

NativeStatus StreamQueue::record(hal::Event event) noexcept {
  return api_.cuEventRecord(event_of(event), stream_);
}
NativeStatus StreamQueue::wait(hal::Event event) noexcept {
  return api_.cuStreamWaitEvent(stream_, event_of(event), 0);
}
NativeStatus StreamQueue::query() noexcept { return api_.cuStreamQuery(stream_); }
NativeStatus StreamQueue::synchronize() noexcept { return api_.cuStreamSynchronize(stream_); }

NativeStatus LegacyQueue::launch(const hal::KernelLaunch& launch) noexcept {
  if (launch.in_context) return StreamQueue::launch(launch);
  const CurrentContext current(api_, context_);
  return StreamQueue::launch(launch);
}
NativeStatus LegacyQueue::record(hal::Event event) noexcept {
  const CurrentContext current(api_, context_);
  return StreamQueue::record(event);
}
NativeStatus LegacyQueue::wait(hal::Event event) noexcept {
  const CurrentContext current(api_, context_);
  return StreamQueue::wait(event);
}
NativeStatus LegacyQueue::query() noexcept {
  const CurrentContext current(api_, context_);
  return StreamQueue::query();
}
NativeStatus LegacyQueue::synchronize() noexcept {
  const CurrentContext current(api_, context_);
  return StreamQueue::synchronize();
}

hal::Result<std::unique_ptr<hal::PhysicalContext>> GreenContext::create(
    const Api& api, CUdevice device, hal::ComputeSet compute, std::uint32_t sms,
    std::vector<CUdevResource> resources) {
  CUdevResourceDesc description = nullptr;
  CUresult status = api.cuDevResourceGenerateDesc(&description, resources.data(),
                                                  static_cast<unsigned>(resources.size()));
  if (status != CUDA_SUCCESS) return failed("the resource descriptor is refused", status);
  CUgreenCtx green = nullptr;
  // The flag is mandatory up to driver 13.3 and makes no stream visible to the application.
  status = api.cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
  if (status != CUDA_SUCCESS) return failed("a green context cannot be created", status);
  CUcontext context = nullptr;
  status = api.cuCtxFromGreenCtx(&context, green);
  if (status != CUDA_SUCCESS) {
    api.cuGreenCtxDestroy(green);
    return failed("a green context has no context handle", status);
  }
  return std::unique_ptr<hal::PhysicalContext>(new GreenContext(api, green, context, compute, sms));
}

GreenContext::~GreenContext() {
  if (capture_stream_ != nullptr) api_.cuStreamDestroy_v2(capture_stream_);
  api_.cuGreenCtxDestroy(green_);
}

hal::Result<CUstream> GreenContext::capture_stream() {
  if (capture_stream_ != nullptr) return capture_stream_;
  const CUresult status =
      api_.cuGreenCtxStreamCreate(&capture_stream_, green_, CU_STREAM_NON_BLOCKING, 0);
  if (status != CUDA_SUCCESS)
    return failed("a stream of a green context cannot be created", status);
  return capture_stream_;
}

hal::Result<std::unique_ptr<hal::Queue>> GreenContext::create_queue(int priority) {
  CUstream stream = nullptr;
  const CUresult status =
      api_.cuGreenCtxStreamCreate(&stream, green_, CU_STREAM_NON_BLOCKING, priority);
  if (status != CUDA_SUCCESS)
    return failed("a stream of a green context cannot be created", status);
  return std::make_unique<StreamQueue>(api_, stream, StreamQueue::Ownership::kOwned);
}

}  // namespace vitamin::cuda
