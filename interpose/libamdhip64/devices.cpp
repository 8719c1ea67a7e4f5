// SPDX-License-Identifier: Apache-2.0
//
// Devices and what belongs to one: its managed context, its streams, events of other processes.
#include <algorithm>
#include <cstdlib>

#include "backends/hip/device.h"
#include "interpose/call_wrappers.h"
#include "interpose/libamdhip64/manual_overrides.h"
#include "interpose/libamdhip64/version_rules.h"
#include "interpose/unknown_entry_points.h"
#include "runtime/environment.h"

namespace vitamin::interpose {

namespace stats = runtime::stats;

namespace {

[[gnu::constructor]] void begin() { loaded("libvitamin_hip.so"); }

// Functions of the runtime never move, so one table serves every device.
const hal::Result<hip::Api>& runtime_api() {
  static const auto* const api = new hal::Result<hip::Api>(hip::Api::load(&real_function));
  return *api;
}

// A device whose context could not be made: asked once.
constinit std::atomic<bool> refused[kMaxContexts]{};

Context* context_of(int device) {
  if (device < 0 || device >= kMaxContexts) return nullptr;
  if (Context* context = context_of_device[device].load(std::memory_order_acquire)) return context;
  if (refused[device].load(std::memory_order_acquire)) return nullptr;
  start_managing();  // before the lock: a child that is forked meanwhile must not wait for it
  std::unique_lock lock(registry_mutex());
  if (Context* context = context_of_device[device].load(std::memory_order_acquire)) return context;
  if (refused[device].load(std::memory_order_acquire)) return nullptr;
  const ReentrancyGuard ours;
  int count = 0;
  note_runtime(VITAMIN_REAL(hipGetDeviceCount)(&count));
  // A device that is not there is the runtime's to refuse, in every call.
  if (device >= count) return nullptr;
  Context* context = make_context(lock, device, device);
  if (context == nullptr) refused[device].store(true, std::memory_order_release);
  return context;
}

int current_device() {
  int device = -1;
  return VITAMIN_REAL(hipGetDevice)(&device) == hipSuccess ? device : -1;
}

}  // namespace

void note_runtime(hipError_t answer) {
  stats::ProcessPage& process = page();
  process.reach(stats::Stage::kDriver);
  process.init_status.store(answer, std::memory_order_relaxed);
  if (answer != hipSuccess) return;
  process.reach(stats::Stage::kReady);
  report_drift(newer_than_known());
}

hipMemPool_t pool_of(const Context& context, hipStream_t) {
  hipMemPool_t pool = nullptr;
  auto* const ask = VITAMIN_REAL(hipDeviceGetMemPool);
  return ask != nullptr && ask(&pool, context.handle) == hipSuccess ? pool : nullptr;
}

const hip::Api* runtime_functions() {
  const hal::Result<hip::Api>& api = runtime_api();
  return api ? &*api : nullptr;
}

Context* current_context() { return context_of(current_device()); }

Context* known_current_context() {
  const int device = current_device();
  if (device < 0 || device >= kMaxContexts) return nullptr;
  return context_of_device[device].load(std::memory_order_acquire);
}

hal::Result<std::unique_ptr<hal::Device>> open_device(int ordinal, int) {
  const hal::Result<hip::Api>& api = runtime_api();
  if (!api) return tl::unexpected(api.error());
  hip::DeviceOptions options;
  options.ordinal = ordinal;
  options.open_captures = &open_captures;
  options.lock_directory = lock_directory();
  options.notice = [](const char* sentence) { warn(Problem::kDeviceNotice, "%s", sentence); };
  return hip::open_device(*api, options);
}

hal::Result<hipStream_t> legacy_stream(int device) {
  const CurrentContext current(device);
  hipStream_t stream = nullptr;
  const hipError_t status = VITAMIN_REAL(hipStreamCreateWithFlags)(&stream, hipStreamNonBlocking);
  if (status != hipSuccess)
    return hal::fail(hal::Errc::kUnavailable,
                     "the stream that stands for the default stream cannot be created",
                     static_cast<int>(status));
  return stream;
}

std::optional<StreamFacts> stream_facts(hipStream_t stream) {
  unsigned flags = 0;
  if (VITAMIN_REAL(hipStreamGetFlags)(stream, &flags) != hipSuccess) return std::nullopt;
  StreamFacts facts;
  facts.context = context_of(VITAMIN_REAL(hipGetStreamDeviceId)(stream));
  if (facts.context == nullptr) return facts;
  static_cast<void>(VITAMIN_REAL(hipStreamGetPriority)(stream, &facts.priority));
  if ((flags & hipStreamNonBlocking) != 0) facts.kind = runtime::StreamKind::kNonBlocking;
  return facts;
}

int native_current_context() { return current_device(); }

int context_of_stream(hipStream_t stream) {
  return stream == nullptr || stream == hipStreamPerThread
             ? current_device()
             : static_cast<int>(VITAMIN_REAL(hipGetStreamDeviceId)(stream));
}

void reset_settings(Context&, const StreamRecord&) {}  // this runtime's streams have none

bool captures(hipStream_t stream) {
  hipStreamCaptureStatus status = hipStreamCaptureStatusNone;
  return VITAMIN_REAL(hipStreamIsCapturing)(stream, &status) == hipSuccess &&
         status != hipStreamCaptureStatusNone;
}

hipError_t synchronize_natively(hipStream_t stream) {
  return VITAMIN_REAL(hipStreamSynchronize)(stream);
}

hipError_t wait_for_all(const Context& context) {
  const CurrentContext current(context.handle);
  return VITAMIN_REAL(hipDeviceSynchronize)();
}

void CurrentContext::enter(int wanted) {
  before_ = current_device();
  entered_ = before_ != wanted && VITAMIN_REAL(hipSetDevice)(wanted) == hipSuccess;
}
void CurrentContext::leave() { static_cast<void>(VITAMIN_REAL(hipSetDevice)(before_)); }

// --- copies --------------------------------------------------------------------------------------

namespace {

enum class Memory : std::uint8_t { kPageable, kHost, kDevice, kManaged };

// The structure begins with the type and the device in every version, and is 40 bytes long in all
// of them up to 7. The call for one attribute would do, but 5.2.3 crashes in it when it does not
// know the address.
struct PointerAttributes {
  int type = -1;
  int device = -1;
  unsigned char rest[120] = {};
};

// `on` becomes the device that has the memory; it stays as it is for pageable memory.
Memory memory_at(const void* address, int& on) {
  PointerAttributes attributes;
  if (address == nullptr ||
      VITAMIN_REAL(hipPointerGetAttributes)(reinterpret_cast<hipPointerAttribute_t*>(&attributes),
                                            address) != hipSuccess)
    return Memory::kPageable;
  on = attributes.device;
  const int type = attributes.type;
  if (!memory_types_renumbered())
    return type == 0 ? Memory::kHost : type == 1 ? Memory::kDevice : Memory::kManaged;
  constexpr Memory kTypes[] = {Memory::kPageable, Memory::kHost, Memory::kDevice};
  return type >= 0 && type < 3 ? kTypes[type] : Memory::kManaged;
}

struct Range {
  std::uintptr_t start = 0;  // 0: of no allocation that the runtime knows
  std::size_t bytes = 0;
};

Range range_of(const void* address) {
  hipDeviceptr_t start = nullptr;
  std::size_t bytes = 0;
  auto* const ask = VITAMIN_REAL(hipMemGetAddressRange);
  if (address == nullptr || ask == nullptr ||
      ask(&start, &bytes, const_cast<void*>(address)) != hipSuccess)
    return {};
  return {reinterpret_cast<std::uintptr_t>(start), bytes};
}

constexpr std::size_t kMostOnAxis = std::size_t{1} << 20;  // so that no volume overflows

}  // namespace

Context* owner_of(const void* address) {
  PointerAttributes attributes;
  if (address == nullptr ||
      VITAMIN_REAL(hipPointerGetAttributes)(reinterpret_cast<hipPointerAttribute_t*>(&attributes),
                                            address) != hipSuccess ||
      attributes.device < 0 || attributes.device >= kMaxContexts)
    return nullptr;
  return context_of_device[attributes.device].load(std::memory_order_acquire);
}

bool covers(const void* address, std::size_t bytes) {
  const Range range = range_of(address);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return range.start != 0 && at >= range.start && bytes <= range.bytes &&
         at - range.start <= range.bytes - bytes;
}

bool begins_at(const void* address) {
  return address != nullptr && range_of(address).start == reinterpret_cast<std::uintptr_t>(address);
}

bool value_wait_accepted(const void* address, std::size_t size, unsigned flags) {
  return flags <= hipStreamWaitValueNor && covers_rows(address, 0, size, 1, 1);
}

bool covers_rows(const void* address, std::size_t pitch, std::size_t element, std::size_t width,
                 std::size_t height) {
  constexpr std::size_t kMostOfRow = std::size_t{1} << 40;  // so that its bytes do not overflow
  if (width == 0 || height == 0 || width > kMostOfRow) return false;
  const std::size_t row = width * element;
  if (reinterpret_cast<std::uintptr_t>(address) % element != 0) return false;
  if (height == 1) return covers(address, std::max(pitch, row));
  if (pitch > kMostOnAxis || height > kMostOnAxis || pitch < row) return false;
  return covers(address, pitch * height);
}

bool covers_box(const hipPitchedPtr& memory, const hipExtent& extent) {
  for (const std::size_t size : {memory.pitch, memory.ysize, extent.depth})
    if (size == 0 || size > kMostOnAxis) return false;
  if (extent.width == 0 || extent.height == 0) return false;
  if (extent.width > memory.pitch || extent.height > memory.ysize) return false;
  return covers(memory.ptr, memory.pitch * memory.ysize * extent.depth);
}

void CopySides::pointer(const void* address) {
  int on = -1;
  const Memory memory = memory_at(address, on);
  pageable = pageable || memory == Memory::kPageable;
  const bool on_device = memory == Memory::kDevice || memory == Memory::kManaged;
  host_ = host_ || !on_device;
  device = device || on_device;
  shared_or_array_ = shared_or_array_ || memory == Memory::kManaged;
  if (!on_device || on == current_device()) return;
  shared_or_array_ = true;
  elsewhere[elsewhere[0] >= 0 ? 1 : 0] = on;
}

void CopySides::side(hipMemoryType type, const void* host, const void* on_device) {
  const bool unified = static_cast<int>(type) == 4 || type == hipMemoryTypeUnified;
  // Both numberings know "array" as neither host nor linear device memory; the pointers tell.
  if (host != nullptr && !unified) return pointer(host);
  if (on_device != nullptr) return pointer(on_device);
  array();
}

std::size_t bytes_of(const HIP_MEMCPY3D& copy) {
  return memory_types_renumbered() ? sizeof(WideMemcpy3D) : sizeof copy;
}

void CopySides::look(const HIP_MEMCPY3D* copy) {
  if (bytes_of(*copy) == sizeof *copy) {
    side(copy->srcMemoryType, copy->srcHost, copy->srcDevice);
    side(copy->dstMemoryType, copy->dstHost, copy->dstDevice);
  } else {
    const auto* const wide = reinterpret_cast<const WideMemcpy3D*>(copy);
    for (const WideMemcpy3D::Side& each : {wide->source, wide->destination})
      side(each.type, each.host, each.device);
  }
}

// --- events and streams --------------------------------------------------------------------------

hipError_t event_create_plain(EntryPoint<hipError_t(hipEvent_t*)> entry, hipEvent_t* event) {
  const hipError_t answer = entry.real(event);
  if (answer == hipSuccess) announce_event(*event, 0);
  return answer;
}

namespace {

// An event that a launch records is that kernel's own completion, of which the runtime takes notice
// on a thread of its own: with a marker of ours behind the kernel, that may be after the stream was
// seen to be complete. Then it is only a matter of time, and is waited for.
bool complete_but_unnoticed(hipError_t answer, hipEvent_t handle) {
  if (answer != hipErrorNotReady || handle == nullptr) return false;
  const StreamRecord* stream = find_event(handle).launched_on.load(std::memory_order_relaxed);
  if (stream == nullptr || stream->context == nullptr) return false;
  return stream->context->virtual_context->query(*stream->stream) == hipSuccess &&
         VITAMIN_REAL(hipEventSynchronize)(handle) == hipSuccess;
}

}  // namespace

hipError_t launched_event_query(EntryPoint<decltype(::hipEventQuery)> entry, hipEvent_t event) {
  const hipError_t answer = event_query(entry, event);
  return complete_but_unnoticed(answer, event) ? event_query(entry, event) : answer;
}

hipError_t launched_event_elapsed_time(EntryPoint<decltype(::hipEventElapsedTime)> entry,
                                       float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  const hipError_t answer = event_elapsed_time(entry, milliseconds, start, stop);
  const bool start_late = complete_but_unnoticed(answer, start);
  const bool stop_late = complete_but_unnoticed(answer, stop);
  return start_late || stop_late ? event_elapsed_time(entry, milliseconds, start, stop) : answer;
}

hipError_t event_open(EntryPoint<decltype(::hipIpcOpenEventHandle)> entry, hipEvent_t* event,
                      hipIpcEventHandle_t handle) {
  const hipError_t answer = entry.real(event, handle);
  if (answer == hipSuccess) event_opened(*event);
  return answer;
}

hipError_t stream_create_plain(EntryPoint<hipError_t(hipStream_t*)> entry, hipStream_t* stream) {
  return stream_created(entry.real(stream), stream);
}

hipError_t stream_create_masked(EntryPoint<decltype(::hipExtStreamCreateWithCUMask)> entry,
                                hipStream_t* stream, std::uint32_t words,
                                const std::uint32_t* mask) {
  const hipError_t answer = stream_created(entry.real(stream, words, mask), stream);
  if (answer == hipSuccess) announce_confined(*stream);
  return answer;
}

// --- the device ----------------------------------------------------------------------------------

hipError_t device_count(EntryPoint<hipError_t(int*)> entry, int* count) {
  const hipError_t answer = entry.real(count);
  note_runtime(answer);
  return answer;
}

namespace {
// Notes that the work of the NULL stream and of the blocking streams has ended. Else the next work
// of one would be put behind that of another by a marker of ours, and a query of a blocking stream,
// which covers the NULL stream, would answer for a moment that the marker is outstanding.
hipError_t note_that_all_ended(Context& context) {
  if (!blocking_covers_legacy() || captures_open()) return hipSuccess;
  const ReentrancyGuard ours;
  const hipError_t answer = result(context.virtual_context->query(*context.legacy.stream));
  return answer == kNotReady ? hipSuccess : answer;  // another thread has launched more
}
}  // namespace

hipError_t device_synchronize(EntryPoint<hipError_t()> entry) {
  Context* const context = current_context();
  const hipError_t answer =
      await_deferred_then(context, [&] { return hal::NativeStatus(entry.real()); });
  return answer == hipSuccess && context != nullptr ? note_that_all_ended(*context) : answer;
}

hipError_t device_reset(EntryPoint<hipError_t()> entry) {
  finish_work(current_device(), Deferred::kFlush);
  tear_down(current_device());
  return entry.real();
}

hipError_t primary_reset(EntryPoint<hipError_t(hipDevice_t)> entry, hipDevice_t device) {
  finish_work(device, Deferred::kFlush);
  tear_down(device);
  return entry.real(device);
}

}  // namespace vitamin::interpose
