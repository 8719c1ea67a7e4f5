// SPDX-License-Identifier: Apache-2.0
//
// Takes and gives device memory through every entry point of HIP that has some, as its standard
// input says, a line each; answers a line each. Sizes are bytes.
//
//   take KIND BYTES NAME  status of the call; what was got is kept under NAME
//   give NAME             status
//   info                  status, free and total memory as hipMemGetInfo says
//   total                 hipDeviceTotalMem and the properties' totalGlobalMem
//   sync                  status of hipDeviceSynchronize
//   kill                  by SIGKILL
#include <csignal>
#include <iostream>
#include <sstream>

#include "program.h"

namespace {

constexpr std::size_t kRow = 1024;
constexpr std::size_t kArrayRow = 16384;  // arrays have few rows

using Give = std::function<hipError_t()>;
std::map<std::string, Give> held;

hipError_t linear(const std::string& kind, std::size_t bytes, Give& give) {
  void* address = nullptr;
  std::size_t pitch = 0;
  hipPitchedPtr box{};
  hipError_t status = hipErrorInvalidValue;
  if (kind == "hipMalloc") status = hipMalloc(&address, bytes);
  if (kind == "hipExtMallocWithFlags") status = hipExtMallocWithFlags(&address, bytes, 0);
  if (kind == "hipMallocManaged") status = hipMallocManaged(&address, bytes, hipMemAttachGlobal);
  if (kind == "hipMallocPitch") status = hipMallocPitch(&address, &pitch, kRow, bytes / kRow);
  if (kind == "hipMemAllocPitch")
    status = hipMemAllocPitch(&address, &pitch, kRow, bytes / kRow, 4);
  if (kind == "hipMalloc3D") {
    status = hipMalloc3D(&box, {kRow, bytes / kRow / 2, 2});
    address = box.ptr;
  }
  give = [address] { return hipFree(address); };
  return status;
}

// A GPU without texture units refuses these.
hipError_t array(const std::string& kind, std::size_t bytes, Give& give) {
  hipArray* handle = nullptr;
  const hipChannelFormatDesc words{32, 0, 0, 0, hipChannelFormatKindFloat};
  const std::size_t width = kArrayRow / 4, height = bytes / kArrayRow;
  hipError_t status = hipErrorInvalidValue;
  if (kind == "hipMallocArray") status = hipMallocArray(&handle, &words, width, height, 0);
  if (kind == "hipMalloc3DArray")
    status = hipMalloc3DArray(&handle, &words, {width, height / 2, 2}, 0);
  if (kind == "hipArrayCreate") {
    const HIP_ARRAY_DESCRIPTOR flat{width, height, HIP_AD_FORMAT_FLOAT, 1};
    status = hipArrayCreate(&handle, &flat);
  }
  if (kind == "hipArray3DCreate") {
    const HIP_ARRAY3D_DESCRIPTOR deep{width, height / 2, 2, HIP_AD_FORMAT_FLOAT, 1, 0};
    status = hipArray3DCreate(&handle, &deep);
  }
  give = [handle] { return hipFreeArray(handle); };
  return status;
}

hipError_t pooled(const std::string& kind, std::size_t bytes, Give& give) {
  static hipMemPool_t pool = [] {
    hipMemPoolProps properties{};
    properties.allocType = hipMemAllocationTypePinned;
    properties.location = {hipMemLocationTypeDevice, 0};
    hipMemPool_t made = nullptr;
    HIP_OK(hipMemPoolCreate(&made, &properties));
    return made;
  }();
  void* address = nullptr;
  const hipError_t status = kind == "hipMallocAsync"
                                ? hipMallocAsync(&address, bytes, nullptr)
                                : hipMallocFromPoolAsync(&address, bytes, pool, nullptr);
  give = [address] { return hipFreeAsync(address, nullptr); };
  return status;
}

hipError_t physical(std::size_t bytes, Give& give) {
  hipMemAllocationProp properties{};
  properties.type = hipMemAllocationTypePinned;
  properties.location = {hipMemLocationTypeDevice, 0};
  hipMemGenericAllocationHandle_t handle = nullptr;
  const hipError_t status = hipMemCreate(&handle, bytes, &properties, 0);
  give = [handle] { return hipMemRelease(handle); };
  return status;
}

hipError_t take(const std::string& kind, std::size_t bytes, Give& give) {
  if (kind == "hipHostMalloc") {  // no memory of the device
    void* address = nullptr;
    const hipError_t status = hipHostMalloc(&address, bytes, 0);
    give = [address] { return hipHostFree(address); };
    return status;
  }
  if (kind == "hipMemCreate") return physical(bytes, give);
  if (kind.find("Async") != std::string::npos) return pooled(kind, bytes, give);
  if (kind.find("Array") != std::string::npos) return array(kind, bytes, give);
  return linear(kind, bytes, give);
}

std::string obey(const std::string& line) {
  std::istringstream words(line);
  std::string verb, kind, name;
  std::size_t bytes = 0;
  words >> verb;
  if (verb == "take") {
    words >> kind >> bytes >> name;
    Give give;
    const hipError_t status = take(kind, bytes, give);
    if (status == hipSuccess) held[name] = give;
    return std::to_string(status);
  }
  if (verb == "give") {
    words >> name;
    if (held.count(name) == 0) return "nothing is held";
    const hipError_t status = held.at(name)();
    held.erase(name);
    return std::to_string(status);
  }
  if (verb == "info") {
    std::size_t available = 0, total = 0;
    const hipError_t status = hipMemGetInfo(&available, &total);
    return std::to_string(status) + " " + std::to_string(available) + " " + std::to_string(total);
  }
  if (verb == "total") {
    hipDeviceProp_t properties{};
    HIP_OK(hipDeviceTotalMem(&bytes, 0));
    HIP_OK(hipGetDeviceProperties(&properties, 0));
    return std::to_string(bytes) + " " + std::to_string(properties.totalGlobalMem);
  }
  if (verb == "sync") return std::to_string(hipDeviceSynchronize());
  if (verb == "kill") std::raise(SIGKILL);
  return "unknown command";
}

}  // namespace

int main() {
  HIP_OK(hipSetDevice(0));
  for (std::string line; std::getline(std::cin, line);) {
    std::puts(obey(line).c_str());
    std::fflush(stdout);
  }
}
