// SPDX-License-Identifier: Apache-2.0
//
// Several devices in one process, and several processes on one device's memory. The kernels add
// integers, so a result is wrong exactly when an addition is lost, repeated or too early.
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "program.h"

namespace {

__global__ void add(int* values, int count, int by) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += by;
}
__global__ void add_other(int* values, const int* others, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += others[i];
}

// Runs long enough that work which does not wait for it reads the old values.
__global__ void set_late(int* values, int count, int to, int rounds) {
  int x = static_cast<int>(threadIdx.x);
  for (int i = 0; i < rounds; ++i) x = x * 1664525 + 1013904223;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += 64) values[i] = x == 12345 ? 0 : to;
}

constexpr int kCount = 1000;
dim3 blocks(int count) { return dim3(static_cast<unsigned>((count + 63) / 64)); }

bool all(const std::vector<int>& values, int wanted) {
  for (const int value : values)
    if (value != wanted) return false;
  return true;
}

// The objects of one device, made while it is current.
struct OnDevice {
  int device;
  hipStream_t stream = nullptr;
  hipEvent_t done = nullptr;
  int* values = nullptr;

  explicit OnDevice(int number) : device(number) {
    use();
    HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    HIP_OK(hipEventCreateWithFlags(&done, hipEventDisableTiming));
    HIP_OK(hipMalloc(&values, kCount * sizeof(int)));
    HIP_OK(hipMemset(values, 0, kCount * sizeof(int)));
    HIP_OK(hipDeviceSynchronize());
  }
  void use() const { HIP_OK(hipSetDevice(device)); }
  std::vector<int> host() const {
    use();
    HIP_OK(hipStreamSynchronize(stream));
    std::vector<int> copy(kCount);
    HIP_OK(hipMemcpy(copy.data(), values, kCount * sizeof(int), hipMemcpyDeviceToHost));
    return copy;
  }
};

std::vector<OnDevice> every_device() {
  int count = 0;
  HIP_OK(hipGetDeviceCount(&count));
  std::vector<OnDevice> devices;
  for (int device = 0; device < count; ++device) devices.emplace_back(device);
  return devices;
}

void alone_on_each() {
  std::vector<OnDevice> devices = every_device();
  for (int round = 0; round < 40; ++round)
    for (const OnDevice& each : devices) {
      each.use();
      add<<<blocks(kCount), 64, 0, each.stream>>>(each.values, kCount, each.device + 1);
    }
  bool right = devices.size() > 1;
  for (const OnDevice& each : devices) right = right && all(each.host(), 40 * (each.device + 1));
  report("every device adds for itself", right);
}

void threads_on_each() {
  std::vector<OnDevice> devices = every_device();
  std::vector<std::thread> threads;
  for (const OnDevice& each : devices)
    threads.emplace_back([&each] {
      each.use();  // the current device belongs to the thread
      for (int round = 0; round < 40; ++round)
        add<<<blocks(kCount), 64, 0, each.stream>>>(each.values, kCount, each.device + 1);
      HIP_OK(hipStreamSynchronize(each.stream));
    });
  for (std::thread& thread : threads) thread.join();
  bool right = devices.size() > 1;
  for (const OnDevice& each : devices) right = right && all(each.host(), 40 * (each.device + 1));
  report("a thread for each device", right);
}

// A value goes round: each device waits for the event of the one before, and adds to its numbers.
void events_between() {
  std::vector<OnDevice> devices = every_device();
  for (const OnDevice& each : devices)
    for (const OnDevice& other : devices)
      if (each.device != other.device) {
        each.use();
        HIP_OK(hipDeviceEnablePeerAccess(other.device, 0));
      }
  devices[0].use();
  add<<<blocks(kCount), 64, 0, devices[0].stream>>>(devices[0].values, kCount, 1);
  HIP_OK(hipEventRecord(devices[0].done, devices[0].stream));
  const std::size_t count = devices.size();
  int wanted = 1;
  std::vector<int> sums(count);
  sums[0] = 1;
  for (std::size_t step = 1; step <= 10; ++step) {
    const OnDevice &from = devices[(step - 1) % count], &to = devices[step % count];
    to.use();
    HIP_OK(hipStreamWaitEvent(to.stream, from.done, 0));
    add_other<<<blocks(kCount), 64, 0, to.stream>>>(to.values, from.values, kCount);
    HIP_OK(hipEventRecord(to.done, to.stream));
    wanted = sums[step % count] += sums[(step - 1) % count];
  }
  report("events and memory between devices", all(devices[10 % count].host(), wanted));
}

void copies_between() {
  std::vector<OnDevice> devices = every_device();
  const OnDevice &first = devices.front(), &last = devices.back();
  first.use();
  add<<<blocks(kCount), 64, 0, first.stream>>>(first.values, kCount, 7);
  HIP_OK(hipMemcpyPeerAsync(last.values, last.device, first.values, first.device,
                            kCount * sizeof(int), first.stream));
  HIP_OK(hipEventRecord(first.done, first.stream));
  last.use();
  HIP_OK(hipStreamWaitEvent(last.stream, first.done, 0));
  add<<<blocks(kCount), 64, 0, last.stream>>>(last.values, kCount, 1);
  report("a copy from device to device", all(last.host(), 8));
}

// Without a stream, while the first device is current: what the last one's default stream writes is
// there before it is copied to the host. (From device to device ROCm 5.2.3 may copy before.)
void copies_without_a_stream() {
  constexpr int kTimes = 200;
  std::vector<OnDevice> devices = every_device();
  const OnDevice &first = devices.front(), &last = devices.back();
  std::vector<int> read(kCount);
  last.use();
  for (int i = 0; i < kTimes; ++i) add<<<blocks(kCount), 64>>>(last.values, kCount, 1);
  first.use();
  HIP_OK(hipMemcpy(read.data(), last.values, kCount * sizeof(int), hipMemcpyDeviceToHost));
  report("a copy from another device", all(read, kTimes));
}

void launch_over_all() {
  std::vector<OnDevice> devices = every_device();
  int count = kCount, by = 5;
  std::vector<hipLaunchParams> launches;
  std::vector<std::vector<void*>> arguments;
  for (OnDevice& each : devices) arguments.push_back({&each.values, &count, &by});
  for (std::size_t i = 0; i < devices.size(); ++i)
    launches.push_back({reinterpret_cast<void*>(add), blocks(kCount), dim3(64), arguments[i].data(),
                        0, devices[i].stream});
  HIP_OK(hipExtLaunchMultiKernelMultiDevice(launches.data(), static_cast<int>(launches.size()), 0));
  bool right = devices.size() > 1;
  for (const OnDevice& each : devices) right = right && all(each.host(), 5);
  report("one launch over all devices", right);
}

// --- several processes ---------------------------------------------------------------------------

constexpr int kLarge = 1 << 20;  // an allocation of its own; kCount is a piece of a larger one

struct Handles {
  hipIpcMemHandle_t small, large;
  hipIpcEventHandle_t set;
  bool waits;
};

// The process that imports the handles: `several importer`, which reads them from standard input.
void importer() {
  Handles handles;
  if (::read(STDIN_FILENO, &handles, sizeof handles) != sizeof handles) std::_Exit(4);
  int *small = nullptr, *large = nullptr;
  HIP_OK(hipIpcOpenMemHandle(reinterpret_cast<void**>(&small), handles.small,
                             hipIpcMemLazyEnablePeerAccess));
  HIP_OK(hipIpcOpenMemHandle(reinterpret_cast<void**>(&large), handles.large,
                             hipIpcMemLazyEnablePeerAccess));
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  hipEvent_t set = nullptr;
  if (handles.waits) {
    HIP_OK(hipIpcOpenEventHandle(&set, handles.set));
    HIP_OK(hipStreamWaitEvent(stream, set, 0));
  }
  for (int round = 0; round < 10; ++round) {
    add<<<blocks(kCount), 64, 0, stream>>>(small, kCount, 2);
    add<<<blocks(kLarge), 64, 0, stream>>>(large, kLarge, 3);
  }
  HIP_OK(hipStreamSynchronize(stream));
  HIP_OK(hipIpcCloseMemHandle(small));
  HIP_OK(hipIpcCloseMemHandle(large));
  if (set != nullptr) HIP_OK(hipEventDestroy(set));
}

int run_importer(const Handles& handles) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  char name[] = "several", check[] = "importer";
  char* arguments[] = {name, check, nullptr};
  pid_t child = 0;
  if (::posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, environ) != 0)
    return -1;
  ::close(ends[0]);
  const bool sent = ::write(ends[1], &handles, sizeof handles) == sizeof handles;
  ::close(ends[1]);
  int status = -1;
  ::waitpid(child, &status, 0);
  return sent ? status : -1;
}

// The small array is a piece of a block that the runtime shares whole.
void shared(bool by_event, const char* what) {
  DeviceArray<int> before(kCount), small(std::vector<int>(kCount, 1)),
      large(std::vector<int>(kLarge, 1));
  Handles handles{};
  handles.waits = by_event;
  HIP_OK(hipIpcGetMemHandle(&handles.small, small.data()));
  HIP_OK(hipIpcGetMemHandle(&handles.large, large.data()));
  hipStream_t stream = nullptr;
  hipEvent_t set = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  HIP_OK(hipEventCreateWithFlags(&set, hipEventDisableTiming | hipEventInterprocess));
  HIP_OK(hipIpcGetEventHandle(&handles.set, set));
  set_late<<<1, 64, 0, stream>>>(small.data(), kCount, 7, by_event ? 4'000'000 : 1);
  HIP_OK(hipEventRecord(set, stream));
  if (!by_event) HIP_OK(hipEventSynchronize(set));
  const int status = run_importer(handles);
  add<<<blocks(kCount), 64, 0, stream>>>(small.data(), kCount, 100);
  HIP_OK(hipStreamSynchronize(stream));
  report(what, status == 0 && all(small.host(), 7 + 20 + 100) && all(large.host(), 1 + 30));
}

void memory_of_two_processes() { shared(false, "memory that two processes add to"); }
void event_of_two_processes() { shared(true, "an event that another process waits for"); }

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"alone_on_each", alone_on_each},
                     {"threads_on_each", threads_on_each},
                     {"events_between", events_between},
                     {"copies_between", copies_between},
                     {"copies_without_a_stream", copies_without_a_stream},
                     {"launch_over_all", launch_over_all},
                     {"importer", importer},
                     {"memory_of_two_processes", memory_of_two_processes},
                     {"event_of_two_processes", event_of_two_processes}},
                    count, arguments);
}
