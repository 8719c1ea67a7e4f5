// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver: a table filled at start, nothing linked. The two programs find the driver by the
// two ways that real programs use, dlsym and cuGetProcAddress.
#include <cuda.h>
#include <dlfcn.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tools/demo/device.h"
#include "tools/demo/program.h"

namespace vitamin::demo {
namespace {

// clang-format off
#define VITAMIN_DEMO_CALLS(X) \
  X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) \
  X(cuCtxSynchronize) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuMemAlloc) \
  X(cuMemAllocHost) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoH) \
  X(cuMemsetD32Async) X(cuLaunchKernel) X(cuStreamCreate) X(cuStreamSynchronize) \
  X(cuStreamWaitEvent) X(cuEventCreate) X(cuEventRecord)
// clang-format on

#define VITAMIN_DEMO_TEXT(name) #name
#define VITAMIN_DEMO_SYMBOL(name) VITAMIN_DEMO_TEXT(name)  // "cuMemAlloc_v2", as cuda.h maps it

constexpr int kVersion = 12040;  // of the entry points that are asked for

CUstream native(Stream stream) { return reinterpret_cast<CUstream>(stream); }
CUevent native(Event event) { return reinterpret_cast<CUevent>(event); }
CUdeviceptr native(const float* address) { return reinterpret_cast<CUdeviceptr>(address); }

}  // namespace

struct DemoDevice::Vendor {
#define VITAMIN_DEMO_MEMBER(name) decltype(&::name) name = nullptr;
  VITAMIN_DEMO_CALLS(VITAMIN_DEMO_MEMBER)
#undef VITAMIN_DEMO_MEMBER
  CUmodule module = nullptr;

  void find_functions(Door door);
  void load_module();
  void check(CUresult status, const std::string& what) const {
    if (status == CUDA_SUCCESS) return;
    const char* name = nullptr;
    if (cuGetErrorName(status, &name) != CUDA_SUCCESS) name = "unknown error";
    stop(what + " failed: " + name + " (" + std::to_string(status) + ")");
  }
};

void DemoDevice::Vendor::find_functions(Door door) {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) stop(::dlerror());
  using GetProcAddress =
      CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  const auto get = reinterpret_cast<GetProcAddress>(::dlsym(library, "cuGetProcAddress_v2"));
  if (get == nullptr) stop("the driver has no cuGetProcAddress_v2: it is older than CUDA 12.");
  const auto find = [&](const char* symbol, const char* base) -> void* {
    void* address = nullptr;
    if (door == Door::kSymbol)
      address = ::dlsym(library, symbol);
    else if (get(base, &address, kVersion, CU_GET_PROC_ADDRESS_DEFAULT, nullptr) != CUDA_SUCCESS)
      address = nullptr;
    if (address == nullptr) stop(std::string("the driver has no ") + symbol + ".");
    return address;
  };
#define VITAMIN_DEMO_FIND(name) \
  name = reinterpret_cast<decltype(name)>(find(VITAMIN_DEMO_SYMBOL(name), #name));
  VITAMIN_DEMO_CALLS(VITAMIN_DEMO_FIND)
#undef VITAMIN_DEMO_FIND
}

// The same kernels as GPU code and as a shared object for the software driver; the driver takes the
// one that it understands.
void DemoDevice::Vendor::load_module() {
  namespace fs = std::filesystem;
  const fs::path directory =
      fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" / "vitamin" / "demo";
  CUresult status = CUDA_ERROR_FILE_NOT_FOUND;
  for (const char* name : {"kernels.fatbin", "kernels.so"}) {
    std::ifstream file(directory / name, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (bytes.empty()) continue;
    status = cuModuleLoadData(&module, bytes.data());
    if (status == CUDA_SUCCESS) return;
  }
  check(status, "loading the kernels from " + directory.native());
}

DemoDevice::DemoDevice(Door door) : vendor_(std::make_unique<Vendor>()) {
  Vendor& cu = *vendor_;
  cu.find_functions(door);
  cu.check(cu.cuInit(0), "cuInit");
  CUdevice device = 0;
  cu.check(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
  CUcontext context = nullptr;
  cu.check(cu.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  cu.check(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  cu.load_module();
}

DemoDevice::~DemoDevice() = default;

Kernel DemoDevice::kernel(const char* name) const {
  CUfunction function = nullptr;
  vendor_->check(vendor_->cuModuleGetFunction(&function, vendor_->module, name), name);
  return reinterpret_cast<Kernel>(function);
}

Stream DemoDevice::stream(bool blocking) const {
  CUstream made = nullptr;
  vendor_->check(
      vendor_->cuStreamCreate(&made, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING),
      "making a stream");
  return reinterpret_cast<Stream>(made);
}

Event DemoDevice::event() const {
  CUevent made = nullptr;
  vendor_->check(vendor_->cuEventCreate(&made, CU_EVENT_DISABLE_TIMING), "making an event");
  return reinterpret_cast<Event>(made);
}

float* DemoDevice::floats(std::size_t count) const {
  CUdeviceptr address = 0;
  vendor_->check(vendor_->cuMemAlloc(&address, count * sizeof(float)), "cuMemAlloc");
  return reinterpret_cast<float*>(address);
}

float* DemoDevice::pinned(std::size_t count) const {
  void* address = nullptr;
  vendor_->check(vendor_->cuMemAllocHost(&address, count * sizeof(float)), "cuMemAllocHost");
  return static_cast<float*>(address);
}

void DemoDevice::launch_blocks(Kernel kernel, unsigned blocks, Stream stream,
                               void** arguments) const {
  const auto function = reinterpret_cast<CUfunction>(const_cast<KernelHandle*>(kernel));
  vendor_->check(vendor_->cuLaunchKernel(function, blocks, 1, 1, kThreads, 1, 1, 0, native(stream),
                                         arguments, nullptr),
                 "a launch");
}

void DemoDevice::clear(float* to, std::size_t count, Stream stream) const {
  vendor_->check(vendor_->cuMemsetD32Async(native(to), 0, count, native(stream)), "a fill");
}

void DemoDevice::copy_in(float* to, const float* pinned, std::size_t count, Stream stream) const {
  vendor_->check(
      vendor_->cuMemcpyHtoDAsync(native(to), pinned, count * sizeof(float), native(stream)),
      "a copy to the device");
}

void DemoDevice::copy_out(float* pinned, const float* from, std::size_t count,
                          Stream stream) const {
  vendor_->check(
      vendor_->cuMemcpyDtoHAsync(pinned, native(from), count * sizeof(float), native(stream)),
      "a copy from the device");
}

void DemoDevice::record(Event event, Stream stream) const {
  vendor_->check(vendor_->cuEventRecord(native(event), native(stream)), "recording an event");
}

void DemoDevice::wait(Stream stream, Event event) const {
  vendor_->check(vendor_->cuStreamWaitEvent(native(stream), native(event), 0), "a wait");
}

void DemoDevice::read(float* to, const float* from, std::size_t count) const {
  vendor_->check(vendor_->cuMemcpyDtoH(to, native(from), count * sizeof(float)), "a copy");
}

void DemoDevice::synchronize(Stream stream) const {
  vendor_->check(vendor_->cuStreamSynchronize(native(stream)), "waiting for a stream");
}

void DemoDevice::synchronize() const {
  vendor_->check(vendor_->cuCtxSynchronize(), "waiting for the device");
}

}  // namespace vitamin::demo
