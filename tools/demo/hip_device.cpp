// SPDX-License-Identifier: Apache-2.0
//
// The HIP runtime, as hipcc links it into a program; the kernels are the program's own.
#include <hip/hip_runtime.h>

#include <cstring>
#include <string>

#include "tools/demo/device.h"
#include "tools/demo/kernels.cpp"
#include "tools/demo/program.h"

namespace vitamin::demo {
namespace {

struct NamedKernel {
  const char* name;
  const void* stub;
};
#define VITAMIN_DEMO_KERNEL(name)                 \
  NamedKernel {                                   \
#name, reinterpret_cast < const void*>(&name) \
  }
const NamedKernel kKernels[] = {
    VITAMIN_DEMO_KERNEL(make_values),     VITAMIN_DEMO_KERNEL(layer),
    VITAMIN_DEMO_KERNEL(loss_gradient),   VITAMIN_DEMO_KERNEL(reduce),
    VITAMIN_DEMO_KERNEL(weight_gradient), VITAMIN_DEMO_KERNEL(input_gradient),
    VITAMIN_DEMO_KERNEL(descend),         VITAMIN_DEMO_KERNEL(blend),
};

hipStream_t native(Stream stream) { return reinterpret_cast<hipStream_t>(stream); }
hipEvent_t native(Event event) { return reinterpret_cast<hipEvent_t>(event); }

void check(hipError_t status, const char* what) {
  if (status == hipSuccess) return;
  stop(std::string(what) + " failed: " + hipGetErrorName(status) + " (" + std::to_string(status) +
       ")");
}

}  // namespace

struct DemoDevice::Vendor {};

DemoDevice::DemoDevice(Door) { check(hipSetDevice(0), "choosing the first device"); }

DemoDevice::~DemoDevice() = default;

Kernel DemoDevice::kernel(const char* name) const {
  for (const NamedKernel& kernel : kKernels)
    if (std::strcmp(kernel.name, name) == 0) return static_cast<Kernel>(kernel.stub);
  stop(std::string("there is no kernel ") + name + ".");
}

Stream DemoDevice::stream(bool blocking) const {
  hipStream_t made = nullptr;
  check(hipStreamCreateWithFlags(&made, blocking ? hipStreamDefault : hipStreamNonBlocking),
        "making a stream");
  return reinterpret_cast<Stream>(made);
}

Event DemoDevice::event() const {
  hipEvent_t made = nullptr;
  check(hipEventCreateWithFlags(&made, hipEventDisableTiming), "making an event");
  return reinterpret_cast<Event>(made);
}

float* DemoDevice::floats(std::size_t count) const {
  void* address = nullptr;
  check(hipMalloc(&address, count * sizeof(float)), "hipMalloc");
  return static_cast<float*>(address);
}

float* DemoDevice::pinned(std::size_t count) const {
  void* address = nullptr;
  check(hipHostMalloc(&address, count * sizeof(float), hipHostMallocDefault), "hipHostMalloc");
  return static_cast<float*>(address);
}

void DemoDevice::launch_blocks(Kernel kernel, unsigned blocks, Stream stream,
                               void** arguments) const {
  check(hipLaunchKernel(static_cast<const void*>(kernel), dim3(blocks), dim3(kThreads), arguments,
                        0, native(stream)),
        "a launch");
}

void DemoDevice::clear(float* to, std::size_t count, Stream stream) const {
  check(hipMemsetAsync(to, 0, count * sizeof(float), native(stream)), "a fill");
}

void DemoDevice::copy_in(float* to, const float* pinned, std::size_t count, Stream stream) const {
  check(hipMemcpyAsync(to, pinned, count * sizeof(float), hipMemcpyHostToDevice, native(stream)),
        "a copy to the device");
}

void DemoDevice::copy_out(float* pinned, const float* from, std::size_t count,
                          Stream stream) const {
  check(hipMemcpyAsync(pinned, from, count * sizeof(float), hipMemcpyDeviceToHost, native(stream)),
        "a copy from the device");
}

void DemoDevice::record(Event event, Stream stream) const {
  check(hipEventRecord(native(event), native(stream)), "recording an event");
}

void DemoDevice::wait(Stream stream, Event event) const {
  check(hipStreamWaitEvent(native(stream), native(event), 0), "a wait");
}

void DemoDevice::read(float* to, const float* from, std::size_t count) const {
  check(hipMemcpy(to, from, count * sizeof(float), hipMemcpyDeviceToHost), "a copy");
}

void DemoDevice::synchronize(Stream stream) const {
  check(hipStreamSynchronize(native(stream)), "waiting for a stream");
}

void DemoDevice::synchronize() const { check(hipDeviceSynchronize(), "waiting for the device"); }

}  // namespace vitamin::demo
