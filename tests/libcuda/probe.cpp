// SPDX-License-Identifier: Apache-2.0
//
// What process_test runs in processes of their own: one word says what to do, the answer is
// printed, numbers as the driver gave them.
#include <cuda.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

namespace {

void say(const char* what, CUresult result) {
  std::printf("%s %d\n", what, static_cast<int>(result));
}

struct Device {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  explicit Device(CUdevice ordinal = 0) {
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, ordinal) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS)
      std::exit(3);
    std::ifstream file(std::getenv("VITAMIN_TEST_KERNELS"), std::ios::binary);
    const std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
    if (cuModuleLoadData(&module, image.data()) != CUDA_SUCCESS) std::exit(3);
  }
  CUfunction operator[](const char* name) const {
    CUfunction function = nullptr;
    if (cuModuleGetFunction(&function, module, name) != CUDA_SUCCESS) std::exit(3);
    return function;
  }
};

int before_init() {
  CUdevice device;
  CUcontext context;
  CUdeviceptr memory;
  int count = 0, version = 0;
  say("cuDeviceGetCount", cuDeviceGetCount(&count));
  say("cuDeviceGet", cuDeviceGet(&device, 0));
  say("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
  say("cuMemAlloc", cuMemAlloc(&memory, 4));
  say("cuDriverGetVersion", cuDriverGetVersion(&version));
  say("cuInit(1)", cuInit(1));
  say("cuInit", cuInit(0));
  return 0;
}

int devices() {
  say("cuInit", cuInit(0));
  int count = 0;
  if (cuDeviceGetCount(&count) == CUDA_SUCCESS) std::printf("count %d\n", count);
  for (CUdevice device = 0; device < count; ++device) {
    CUuuid uuid{};
    int bus = 0;
    char address[16] = "";
    say("cuDeviceGetUuid", cuDeviceGetUuid(&uuid, device));
    say("cuDeviceGetAttribute", cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device));
    say("cuDeviceGetPCIBusId", cuDeviceGetPCIBusId(address, sizeof address, device));
    std::printf("device %d is %d on bus %x at %s\n", device, uuid.bytes[15], bus, address);
  }
  return 0;
}

int after_fork() {
  const Device device;
  std::fflush(stdout);
  if (const pid_t child = fork(); child == 0) {
    int count = 0;
    say("child cuDeviceGetCount", cuDeviceGetCount(&count));
    say("child cuInit", cuInit(0));
    std::fflush(stdout);
    _exit(0);
  } else {
    waitpid(child, nullptr, 0);
  }
  say("parent cuCtxSynchronize", cuCtxSynchronize());
  return 0;
}

// Three allocations and a launch, for scripted faults.
int calls() {
  const Device device;
  CUdeviceptr memory;
  for (int i = 0; i < 3; ++i) say("cuMemAlloc", cuMemAlloc(&memory, 4));
  say("cuLaunchKernel",
      cuLaunchKernel(device["nothing"], 2, 1, 1, 64, 1, 1, 0, nullptr, nullptr, nullptr));
  say("cuCtxSynchronize", cuCtxSynchronize());
  return 0;
}

int deadlock() {
  const Device device;
  std::uint32_t* word = nullptr;
  CUstream stream;
  cuMemHostAlloc(reinterpret_cast<void**>(&word), 4, 0);
  *word = 0;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuStreamWaitValue32(stream, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ);
  say("cuStreamSynchronize", cuStreamSynchronize(stream));
  return 0;
}

// Two streams append to a log; what the log says in the end depends on the virtual clock's seed.
int race() {
  const Device device;
  CUdeviceptr log;
  CUstream streams[2];
  cuMemAlloc(&log, 400);
  cuMemsetD32(log, 0, 100);
  cuCtxSynchronize();
  for (CUstream& stream : streams) cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  for (std::uint32_t i = 0; i < 40; ++i) {
    void* parameters[] = {&log, &i};
    cuLaunchKernel(device["append"], 1, 1, 1, 1, 1, 1, 0, streams[i % 2], parameters, nullptr);
  }
  say("cuCtxSynchronize", cuCtxSynchronize());
  for (int i = 1; i <= 40; ++i) std::printf("%u ", reinterpret_cast<std::uint32_t*>(log)[i]);
  std::printf("\n");
  return 0;
}

// A wait on one device for work of another.
int across() {
  const Device first(0);
  CUevent event;
  CUstream stream;
  CUdeviceptr words;
  cuMemAlloc(&words, 8);
  cuMemsetD32(words, 0, 2);
  cuCtxSynchronize();
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  std::uint32_t value = 5, one = 1;
  std::uint64_t ns = 3'000'000;
  void* slow[] = {&words, &value, &ns};
  cuLaunchKernel(first["slow_add"], 1, 1, 1, 1, 1, 1, 0, stream, slow, nullptr);
  cuEventRecord(event, stream);
  const Device second(1);
  CUstream other;
  cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
  say("cuStreamWaitEvent", cuStreamWaitEvent(other, event, 0));
  CUdeviceptr target = words + 4;
  void* copy[] = {&target, &words, &one};
  cuLaunchKernel(second["copy"], 1, 1, 1, 1, 1, 1, 0, other, copy, nullptr);
  say("cuEventRecord", cuEventRecord(event, other));
  say("cuStreamSynchronize", cuStreamSynchronize(other));
  std::printf("seen %u\n", reinterpret_cast<std::uint32_t*>(words)[1]);
  return 0;
}

// A synchronous copy between two devices, behind work of blocking streams of both, and work
// that comes behind it.
int peers() {
  const Device first(0);
  CUdeviceptr words, read;
  CUstream stream, other, later;
  std::uint32_t value = 5, one = 1;
  std::uint64_t ns = 20'000'000;
  CUcontext first_context, second_context;
  cuCtxGetCurrent(&first_context);
  cuMemAlloc(&words, 8);
  cuMemsetD32(words, 0, 2);
  cuCtxSynchronize();
  cuStreamCreate(&stream, CU_STREAM_DEFAULT);
  void* slow[] = {&words, &value, &ns};
  const Device second(1);
  cuCtxGetCurrent(&second_context);
  CUdeviceptr target;
  cuMemAlloc(&target, 8);
  cuMemAlloc(&read, 8);
  cuMemsetD32(target, 0, 2);
  cuMemsetD32(read, 0, 2);
  cuCtxSynchronize();
  cuStreamCreate(&other, CU_STREAM_DEFAULT);
  cuStreamCreate(&later, CU_STREAM_DEFAULT);
  void* beside[] = {&target, &value, &ns};
  cuLaunchKernel(second["slow_add"], 1, 1, 1, 1, 1, 1, 0, other, beside, nullptr);
  cuCtxSetCurrent(first_context);
  cuLaunchKernel(first["slow_add"], 1, 1, 1, 1, 1, 1, 0, stream, slow, nullptr);
  say("cuMemcpyPeer", cuMemcpyPeer(target, second_context, words, first_context, 4));
  value = 100;
  cuLaunchKernel(first["slow_add"], 1, 1, 1, 1, 1, 1, 0, stream, slow, nullptr);
  cuCtxSetCurrent(second_context);
  void* copy[] = {&read, &target, &one};
  cuLaunchKernel(second["copy"], 1, 1, 1, 1, 1, 1, 0, later, copy, nullptr);
  say("cuStreamSynchronize", cuStreamSynchronize(later));
  cuCtxSynchronize();
  std::printf("copied %u, read behind it %u\n", reinterpret_cast<std::uint32_t*>(target)[0],
              reinterpret_cast<std::uint32_t*>(read)[0]);
  say("no context", cuMemcpyPeer(target, nullptr, words, first_context, 4));
  return 0;
}

// Records an interprocess event that another process waits for.
int shared_event() {
  const Device device;
  CUevent event;
  cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  CUipcEventHandle handle;
  say("cuIpcGetEventHandle", cuIpcGetEventHandle(&handle, event));
  CUstream stream;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  std::uint64_t ns = 50'000'000;
  void* parameters[] = {&ns};
  cuLaunchKernel(device["busy"], 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  cuEventRecord(event, stream);
  setenv("VITAMIN_PROBE_HANDLE", handle.reserved, 1);
  std::fflush(stdout);
  const int status = std::system("$VITAMIN_PROBE opened_event");
  cuStreamSynchronize(stream);
  cuEventDestroy(event);
  return WEXITSTATUS(status);
}

int opened_event() {
  const Device device;
  CUipcEventHandle handle{};
  std::strncpy(handle.reserved, std::getenv("VITAMIN_PROBE_HANDLE"), sizeof handle.reserved - 1);
  CUevent event;
  say("cuIpcOpenEventHandle", cuIpcOpenEventHandle(&event, handle));
  say("cuEventSynchronize", cuEventSynchronize(event));
  say("cuEventQuery", cuEventQuery(event));
  return 0;
}

constexpr std::size_t kShared = 3'000'000;  // bytes; no multiple of a page

std::string hex(const CUipcMemHandle& handle) {
  std::string text;
  char digits[3];
  for (const char byte : handle.reserved) {
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

CUipcMemHandle handle_of(const std::string& text) {
  CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return handle;
}

std::uint32_t word_at(CUdeviceptr address) {
  std::uint32_t word = 0;
  cuMemcpyDtoH(&word, address, sizeof word);
  return word;
}

int ask_peer(const CUipcMemHandle& handle, const char* action) {
  setenv("VITAMIN_PROBE_HANDLE", hex(handle).c_str(), 1);
  std::fflush(stdout);
  return WEXITSTATUS(std::system((std::string("$VITAMIN_PROBE ") + action).c_str()));
}

// Shares memory with another process, then frees it.
int shared_memory() {
  const Device device;
  CUipcMemHandle handle{}, again{};
  CUdeviceptr memory = 0, pooled = 0, opened = 0;
  void* host = nullptr;
  cuMemAlloc(&memory, kShared);
  cuMemAllocAsync(&pooled, 4096, nullptr);
  cuMemAllocHost(&host, 4096);
  cuMemsetD32(memory, 7, kShared / 4);
  cuCtxSynchronize();
  say("of a pool", cuIpcGetMemHandle(&handle, pooled));
  say("of the host", cuIpcGetMemHandle(&handle, reinterpret_cast<CUdeviceptr>(host)));
  say("of nothing", cuIpcGetMemHandle(&handle, 0));
  say("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, memory));
  say("again", cuIpcGetMemHandle(&again, memory + 512));
  say("the same handle", hex(handle) == hex(again) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
  say("in its own process",
      cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  const int status = ask_peer(handle, "opened_memory");
  std::printf("written by the peer: %u\n", word_at(memory));
  say("cuMemFree", cuMemFree(memory));
  cuMemAlloc(&memory, kShared);
  cuIpcGetMemHandle(&again, memory);
  say("another handle", hex(handle) != hex(again) ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
  return status + ask_peer(handle, "freed_memory");
}

int opened_memory() {
  const Device device;
  const CUipcMemHandle handle = handle_of(std::getenv("VITAMIN_PROBE_HANDLE"));
  CUdeviceptr memory = 0, again = 0, base = 0;
  std::size_t bytes = 0, before = 0, after = 0, total = 0;
  cuMemGetInfo(&before, &total);
  say("without flags", cuIpcOpenMemHandle(&memory, handle, 0));
  say("no handle", cuIpcOpenMemHandle(&memory, CUipcMemHandle{}, 1));
  say("cuIpcOpenMemHandle", cuIpcOpenMemHandle(&memory, handle, 1));
  say("again", cuIpcOpenMemHandle(&again, handle, 1));
  cuMemGetInfo(&after, &total);
  cuMemGetAddressRange(&base, &bytes, memory + 1);
  std::printf("same address %d, its base %d, %zu bytes, costs %zu, holds %u\n", memory == again,
              memory == base, bytes, before - after, word_at(memory + kShared - 4));
  say("cuMemFree", cuMemFree(memory));
  cuMemsetD32(memory, 9, 1);
  for (int i = 0; i < 3; ++i) say("cuIpcCloseMemHandle", cuIpcCloseMemHandle(memory));
  return 0;
}

int freed_memory() {
  const Device device;
  CUdeviceptr memory = 0;
  say("freed", cuIpcOpenMemHandle(&memory, handle_of(std::getenv("VITAMIN_PROBE_HANDLE")), 1));
  return 0;
}

struct Action {
  const char* name;
  int (*run)();
};
constexpr Action kActions[] = {
    {"before_init", before_init},
    {"devices", devices},
    {"after_fork", after_fork},
    {"calls", calls},
    {"deadlock", deadlock},
    {"race", race},
    {"across", across},
    {"peers", peers},
    {"shared_event", shared_event},
    {"opened_event", opened_event},
    {"shared_memory", shared_memory},
    {"opened_memory", opened_memory},
    {"freed_memory", freed_memory},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Action& action : kActions)
    if (argc == 2 && std::strcmp(argv[1], action.name) == 0) return action.run();
  return 2;
}
