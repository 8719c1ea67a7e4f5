// SPDX-License-Identifier: Apache-2.0
#include "tools/demo/driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace vitamin::demo {
namespace {

[[noreturn]] void stop(const std::string& message) {
  std::fprintf(stderr, "demo: %s\n", message.c_str());
  std::exit(1);
}

constexpr int kVersion = 12040;  // of the entry points that are asked for

#define VITAMIN_DEMO_TEXT(name) #name
#define VITAMIN_DEMO_SYMBOL(name) VITAMIN_DEMO_TEXT(name)  // "cuMemAlloc_v2", as cuda.h maps it

}  // namespace

Device::Device(Door door) {
  load_driver(door);
  check(driver_.cuInit(0), "cuInit");
  CUdevice device = 0;
  check(driver_.cuDeviceGet(&device, 0), "cuDeviceGet");
  CUcontext context = nullptr;
  check(driver_.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  check(driver_.cuCtxSetCurrent(context), "cuCtxSetCurrent");
  load_module();
}

void Device::load_driver(Door door) {
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
  driver_.name = reinterpret_cast<decltype(driver_.name)>(find(VITAMIN_DEMO_SYMBOL(name), #name));
  VITAMIN_DEMO_CALLS(VITAMIN_DEMO_FIND)
#undef VITAMIN_DEMO_FIND
}

// The same kernels as GPU code and as a shared object for the software driver; the driver takes the
// one that it understands.
void Device::load_module() {
  namespace fs = std::filesystem;
  const fs::path folder =
      fs::read_symlink("/proc/self/exe").parent_path().parent_path() / "lib" / "vitamin" / "demo";
  CUresult status = CUDA_ERROR_FILE_NOT_FOUND;
  for (const char* name : {"kernels.fatbin", "kernels.so"}) {
    std::ifstream file(folder / name, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (bytes.empty()) continue;
    status = driver_.cuModuleLoadData(&module_, bytes.data());
    if (status == CUDA_SUCCESS) return;
  }
  check(status, "loading the kernels from " + folder.native());
}

CUfunction Device::kernel(const char* name) const {
  CUfunction function = nullptr;
  check(driver_.cuModuleGetFunction(&function, module_, name), name);
  return function;
}

void Device::check(CUresult status, const std::string& what) const {
  if (status == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (driver_.cuGetErrorName(status, &name) != CUDA_SUCCESS) name = "unknown error";
  stop(what + " failed: " + name + " (" + std::to_string(status) + ")");
}

CUdeviceptr Device::floats(std::size_t count) const {
  CUdeviceptr address = 0;
  check(driver_.cuMemAlloc(&address, count * sizeof(float)), "cuMemAlloc");
  return address;
}

std::uint64_t hash(const std::vector<float>& values) {
  std::uint64_t result = 0xcbf29ce484222325;
  for (const float value : values) {
    unsigned char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    for (const unsigned char byte : bytes) result = (result ^ byte) * 0x100000001b3;
  }
  return result;
}

unsigned count_argument(int argc, char** argv, unsigned preset) {
  if (argc < 2) return preset;
  char* end = nullptr;
  constexpr unsigned long kMost = 1'000'000;
  const unsigned long value = std::strtoul(argv[1], &end, 10);
  if (argc > 2 || *argv[1] == '\0' || *end != '\0' || value == 0 || value > kMost)
    stop(std::string("usage: ") + argv[0] + " [COUNT], COUNT from 1 to 1000000");
  return static_cast<unsigned>(value);
}

void print_result(const char* name, std::uint64_t hash, std::uint64_t launches, double seconds) {
  std::printf("%s: hash %016llx, %llu launches, %.3f seconds\n", name,
              static_cast<unsigned long long>(hash), static_cast<unsigned long long>(launches),
              seconds);
}

}  // namespace vitamin::demo
