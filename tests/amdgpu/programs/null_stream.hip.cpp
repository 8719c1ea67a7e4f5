// SPDX-License-Identifier: Apache-2.0
//
// Which waits and queries cover outstanding work of the NULL stream. The answers differ between
// versions of the runtime, so the program prints them and judges none of them.
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "program.h"

namespace {

// Runs until the host opens the gate, then writes a value that the host can read.
__global__ void hold(const int* gate, int* value) {
  while (__hip_atomic_load(gate, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM) == 0)
    __builtin_amdgcn_s_sleep(8);
  __hip_atomic_store(value, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
__global__ void set(int* value) {
  __hip_atomic_store(value, 1, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}

struct NamedStream {
  const char* name;
  hipStream_t stream;
};

hipStream_t created(unsigned flags) {
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, flags));
  return stream;
}

int* host_value() {
  int* value = nullptr;
  HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&value), sizeof *value, hipHostMallocCoherent));
  *value = 0;
  return value;
}

// A stream is busy from construction until open(). Every allocation is made before, because an
// allocation may wait for the device.
class Held {
 public:
  void launch(hipStream_t stream) {
    reset();
    hold<<<1, 1, 0, stream>>>(gate_, value_);
    HIP_OK(hipGetLastError());
  }
  void open() { __atomic_store_n(gate_, 1, __ATOMIC_RELEASE); }
  bool ended() const { return __atomic_load_n(value_, __ATOMIC_ACQUIRE) == 1; }

 private:
  void reset() {
    HIP_OK(hipDeviceSynchronize());
    *gate_ = *value_ = 0;
  }
  int* gate_ = host_value();
  int* value_ = host_value();
};

void print(const char* call, const char* of, const char* busy, const char* answer) {
  std::printf("%s of %s while %s is busy: %s\n", call, of, busy, answer);
}

void print_query(NamedStream of, const char* busy) {
  print("query", of.name, busy, hipGetErrorName(hipStreamQuery(of.stream)));
}

// A wait for an event that has ended is itself some work of the stream, for a moment, which is long
// on a busy machine. Few queries: ROCm 5.2.3 hangs where many are made behind a held kernel.
// `free`: nothing is outstanding that the stream waits for, so it is only a question of time.
hipError_t settled_query(hipStream_t stream, bool free) {
  hipError_t answer = hipErrorNotReady;
  for (const int pause_ms : {30, 120, 600, 3000, 12000}) {
    if (pause_ms > 120 && !free) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    answer = hipStreamQuery(stream);
    if (answer != hipErrorNotReady) break;
  }
  return answer;
}

constexpr auto kUntilAWaitBegan = std::chrono::milliseconds(50);

// Whether `wait` returns only when the kernel that `begin` launched has ended. Where `query`
// answers that there is nothing to wait for, the gate stays closed during the wait, which would
// hang if it waited all the same. Else another thread opens the gate; the kernel had not ended when
// a wait returned that did not cover it. No slow machine makes either answer another.
template <class Begin, class Query, class Wait>
bool covers(Held& held, Begin begin, Query query, Wait wait) {
  begin();
  const bool nothing = query() == hipSuccess;
  held.open();
  begin();
  std::thread opener;
  if (!nothing)
    opener = std::thread([&] {
      std::this_thread::sleep_for(kUntilAWaitBegan);
      held.open();
    });
  wait();
  const bool ended = held.ended();
  if (nothing) held.open();
  if (opener.joinable()) opener.join();
  HIP_OK(hipDeviceSynchronize());
  return ended;
}

const char* waits(bool covered) { return covered ? "waits for it" : "does not wait for it"; }

const std::vector<NamedStream>& streams() {
  static const std::vector<NamedStream> all = [] {
    hipStream_t prioritised = nullptr;
    int least = 0, greatest = 0;
    HIP_OK(hipDeviceGetStreamPriorityRange(&least, &greatest));
    HIP_OK(hipStreamCreateWithPriority(&prioritised, hipStreamDefault, greatest));
    return std::vector<NamedStream>{
        {"a blocking stream", created(hipStreamDefault)},
        {"a blocking stream with a priority", prioritised},
        {"a non-blocking stream", created(hipStreamNonBlocking)},
        {"the per-thread default stream", hipStreamPerThread},
        {"the NULL stream", nullptr},
    };
  }();
  return all;
}

// Every stream is asked while every other one is busy.
void queries() {
  Held held;
  for (const NamedStream& busy : streams()) {
    for (const NamedStream& asked : streams()) {
      held.launch(busy.stream);
      print_query(asked, busy.name);
      print_query(asked, busy.name);  // a query may leave a command behind
      held.open();
      HIP_OK(hipDeviceSynchronize());
      print_query(asked, "no stream");
    }
  }
}

bool stream_covers(Held& held, hipStream_t asked, const std::function<void()>& begin) {
  return covers(
      held, begin, [&] { return hipStreamQuery(asked); },
      [&] { HIP_OK(hipStreamSynchronize(asked)); });
}

void synchronisations() {
  Held held;
  for (const NamedStream& busy : streams()) {
    auto begin = [&] { held.launch(busy.stream); };
    for (const NamedStream& asked : streams())
      print("synchronisation", asked.name, busy.name,
            waits(stream_covers(held, asked.stream, begin)));
    const bool covered = covers(
        held, begin, [] { return hipErrorNotReady; }, [] { HIP_OK(hipDeviceSynchronize()); });
    print("synchronisation", "the device", busy.name, waits(covered));
  }
}

// Events that were recorded before the NULL stream became busy, and behind that.
void events() {
  Held held;
  hipEvent_t before = nullptr, after = nullptr;
  HIP_OK(hipEventCreate(&before));
  HIP_OK(hipEventCreate(&after));
  for (const NamedStream& on : streams()) {
    auto begin = [&] {
      HIP_OK(hipEventRecord(before, on.stream));
      HIP_OK(hipEventSynchronize(before));
      held.launch(nullptr);
      HIP_OK(hipEventRecord(after, on.stream));
      if (on.stream == streams()[2].stream) HIP_OK(hipEventSynchronize(after));
    };
    const std::string event = std::string("an event recorded on ") + on.name;
    const bool covered = covers(
        held, begin, [&] { return hipEventQuery(after); },
        [&] { HIP_OK(hipEventSynchronize(after)); });
    print("synchronisation", event.c_str(), "the NULL stream", waits(covered));
    begin();
    report("an event recorded before is complete", hipEventQuery(before) == hipSuccess);
    float milliseconds = -1;
    print("query", event.c_str(), "the NULL stream", hipGetErrorName(hipEventQuery(after)));
    print("elapsed time", event.c_str(), "the NULL stream",
          hipGetErrorName(hipEventElapsedTime(&milliseconds, before, after)));
    held.open();
    HIP_OK(hipEventSynchronize(after));
    HIP_OK(hipEventElapsedTime(&milliseconds, before, after));
    report("there is a time between two events", milliseconds >= 0);
  }
  HIP_OK(hipEventDestroy(before));
  HIP_OK(hipEventDestroy(after));
}

// Streams that wait for an event, when the NULL stream is busy and the event is complete or not.
void event_waits() {
  Held held;
  hipEvent_t event = nullptr;
  HIP_OK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
  const hipStream_t recording[] = {created(hipStreamDefault), created(hipStreamNonBlocking)};
  for (const hipStream_t recorded_on : recording) {
    for (const NamedStream& waiting : streams()) {
      auto begin = [&] {
        held.launch(nullptr);
        HIP_OK(hipEventRecord(event, recorded_on));
        if (recorded_on == recording[1]) HIP_OK(hipEventSynchronize(event));
        HIP_OK(hipStreamWaitEvent(waiting.stream, event, 0));
      };
      const bool free = recorded_on == recording[1] && waiting.stream == streams()[2].stream;
      begin();
      print("query behind a wait for an event", waiting.name, "the NULL stream",
            hipGetErrorName(settled_query(waiting.stream, free)));
      held.open();
      print("synchronisation behind a wait for an event", waiting.name, "the NULL stream",
            waits(stream_covers(held, waiting.stream, begin)));
    }
  }
  HIP_OK(hipEventDestroy(event));
}

// The waiting stream may share the NULL stream's hardware queue, where every packet is behind the
// held kernel; a wait for an event that has ended makes none.
void ended_events() {
  Held held;
  hipEvent_t event = nullptr;
  HIP_OK(hipEventCreateWithFlags(&event, hipEventDisableTiming));
  const hipStream_t waiting = streams()[2].stream, recorded_on = created(hipStreamNonBlocking);
  int ended = 0;
  for (int round = 0; round < 100; ++round) {
    held.launch(nullptr);
    HIP_OK(hipEventRecord(event, recorded_on));
    HIP_OK(hipEventSynchronize(event));
    HIP_OK(hipStreamWaitEvent(waiting, event, 0));
    HIP_OK(hipStreamSynchronize(waiting));
    ended += held.ended() ? 1 : 0;
    held.open();
  }
  HIP_OK(hipEventDestroy(event));
  report("no wait is made for an event that has ended", ended == 0);
}

// The device is waited for in between, so neither stream is behind the other's work.
void after_the_device() {
  int* const value = host_value();
  const hipStream_t blocking = created(hipStreamDefault);
  int ended = 0;
  for (int round = 0; round < 20; ++round) {
    for (const hipStream_t stream : {hipStream_t{}, blocking}) {
      *value = 0;
      set<<<1, 1, 0, stream>>>(value);
      HIP_OK(hipDeviceSynchronize());
      ended += *value;
    }
  }
  report("work before the device was waited for", ended == 40);
}

// The NULL stream waits for a blocking stream, and another blocking stream is asked.
void chains() {
  Held held;
  int* const value = host_value();
  const hipStream_t first = created(hipStreamDefault), second = created(hipStreamDefault);
  held.launch(first);
  print_query({"another blocking stream", second}, "a blocking stream");
  held.open();
  auto begin = [&] {
    held.launch(first);
    set<<<1, 1>>>(value);  // behind `first`
  };
  begin();
  print_query({"another blocking stream", second}, "the NULL stream behind a blocking stream");
  held.open();
  const bool covered = stream_covers(held, second, begin);
  print("synchronisation", "another blocking stream", "the NULL stream behind a blocking stream",
        waits(covered));
  // What the host reads behind the synchronisation of another stream.
  int read = 0;
  for (int round = 0; round < 100; ++round) {
    *value = 0;
    set<<<1, 1>>>(value);
    HIP_OK(hipStreamSynchronize(second));
    read += covered ? *value : 1;
    HIP_OK(hipDeviceSynchronize());
  }
  report("the host reads what the NULL stream wrote", read == 100);
}

// Each thread has its own default stream; the NULL stream is one for all of them.
void threads() {
  Held held;
  held.launch(nullptr);
  std::thread other([&] {
    print_query({"the default stream of another thread", hipStreamPerThread}, "the NULL stream");
    print_query({"the NULL stream on another thread", nullptr}, "the NULL stream");
    held.open();
    print("synchronisation", "the default stream of another thread", "the NULL stream",
          waits(stream_covers(held, hipStreamPerThread, [&] { held.launch(nullptr); })));
  });
  other.join();
}

using Calls = std::vector<std::pair<const char*, std::function<hipError_t()>>>;

void print_calls(const Calls& calls) {
  Held held;
  for (const auto& [name, call] : calls) {
    const bool covered = covers(
        held, [&] { held.launch(nullptr); }, [] { return hipErrorNotReady; },
        [&call = call] { HIP_OK(call()); });
    std::printf("%s while the NULL stream is busy: %s\n", name, waits(covered));
  }
}

constexpr std::size_t kRow = 256, kBytes = 16 * kRow;

// Copies and fills without a stream: some return before the work ahead of them has ended.
void calls() {
  char *device = nullptr, *other = nullptr, *locked = nullptr, *managed = nullptr;
  HIP_OK(hipMalloc(reinterpret_cast<void**>(&device), kBytes));
  HIP_OK(hipMalloc(reinterpret_cast<void**>(&other), kBytes));
  HIP_OK(hipHostMalloc(reinterpret_cast<void**>(&locked), kBytes));
  HIP_OK(hipMallocManaged(reinterpret_cast<void**>(&managed), kBytes));
  std::vector<char> pageable(kBytes);
  const hipPitchedPtr box = make_hipPitchedPtr(device, kRow, kRow, 16);
  HIP_MEMCPY3D described{};
  described.srcMemoryType = described.dstMemoryType = hipMemoryTypeDevice;
  described.srcDevice = other;
  described.dstDevice = device;
  described.srcPitch = described.dstPitch = kRow;
  described.srcHeight = described.dstHeight = 8;
  described.WidthInBytes = 64;
  described.Height = 4;
  described.Depth = 2;
  print_calls(
      {{"a fill of the device", [&] { return hipMemset(device, 1, kBytes); }},
       {"a fill of rows", [&] { return hipMemset2D(device, kRow, 1, 64, 4); }},
       {"a fill of a box", [&] { return hipMemset3D(box, 1, make_hipExtent(64, 4, 1)); }},
       {"a fill of words", [&] { return hipMemsetD32(device, 1, 64); }},
       {"a fill of page-locked memory", [&] { return hipMemset(locked, 1, kBytes); }},
       {"a fill of managed memory", [&] { return hipMemset(managed, 1, kBytes); }},
       {"a copy within the device", [&] { return hipMemcpyDtoD(device, other, kBytes); }},
       {"a copy that finds its kind",
        [&] { return hipMemcpy(device, other, kBytes, hipMemcpyDefault); }},
       {"a copy of rows within the device",
        [&] { return hipMemcpy2D(device, kRow, other, kRow, 64, 4, hipMemcpyDeviceToDevice); }},
       {"a copy of a box that is described", [&] { return hipDrvMemcpy3D(&described); }},
       {"a copy of rows to page-locked memory",
        [&] { return hipMemcpy2D(locked, kRow, other, kRow, 64, 4, hipMemcpyDefault); }},
       {"a copy from page-locked memory", [&] { return hipMemcpyHtoD(device, locked, kBytes); }},
       {"a copy to page-locked memory", [&] { return hipMemcpyDtoH(locked, device, kBytes); }},
       {"a copy from pageable memory",
        [&] { return hipMemcpyHtoD(device, pageable.data(), kBytes); }},
       {"a copy to managed memory",
        [&] { return hipMemcpy(managed, device, kBytes, hipMemcpyDefault); }},
       {"a copy from managed memory",
        [&] { return hipMemcpy(device, managed, kBytes, hipMemcpyDefault); }}});
  HIP_OK(hipFree(managed));
  HIP_OK(hipHostFree(locked));
  HIP_OK(hipFree(other));
  HIP_OK(hipFree(device));
}

// The same with arrays, which some parts do not have.
void array_calls() {
  char* device = nullptr;
  HIP_OK(hipMalloc(reinterpret_cast<void**>(&device), kBytes));
  hipArray* array = nullptr;
  const hipChannelFormatDesc format = hipCreateChannelDesc<int>();
  HIP_OK(hipMallocArray(&array, &format, kRow / 4, 16, 0));
  print_calls(
      {{"a copy to an array",
        [&] {
          return hipMemcpy2DToArray(array, 0, 0, device, kRow, 64, 4, hipMemcpyDeviceToDevice);
        }},
       {"a copy from an array", [&] {
          return hipMemcpy2DFromArray(device, kRow, array, 0, 0, 64, 4, hipMemcpyDeviceToDevice);
        }}});
  HIP_OK(hipFreeArray(array));
  HIP_OK(hipFree(device));
}

// A stream with a CU mask of the program's own has no flags.
void masked() {
  Held held;
  const auto mask = mask_of(0, 24);
  hipStream_t stream = nullptr;
  HIP_OK(
      hipExtStreamCreateWithCUMask(&stream, static_cast<std::uint32_t>(mask.size()), mask.data()));
  held.launch(nullptr);
  print_query({"a stream with a CU mask", stream}, "the NULL stream");
  held.open();
  print("synchronisation", "a stream with a CU mask", "the NULL stream",
        waits(stream_covers(held, stream, [&] { held.launch(nullptr); })));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"queries", queries},
                     {"synchronisations", synchronisations},
                     {"events", events},
                     {"event_waits", event_waits},
                     {"ended_events", ended_events},
                     {"after_the_device", after_the_device},
                     {"chains", chains},
                     {"threads", threads},
                     {"masked", masked},
                     {"calls", calls},
                     {"array_calls", array_calls}},
                    count, arguments);
}
