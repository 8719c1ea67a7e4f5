// SPDX-License-Identifier: Apache-2.0
//
// Functions that came after HIP 5.2, asked for by name, as a program does that was written for a
// newer runtime. `synchronous_copies` needs the runtime of tests/interpose_hip/newer_runtime.c,
// whose arrays are memory of the host.
#include <dlfcn.h>

#include "program.h"

namespace {

template <class Function>
Function* found(const char* name) {
  auto* const function = reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
  if (function == nullptr) {
    std::printf("the runtime has no %s\n", name);
    std::exit(2);
  }
  return function;
}

__global__ void work_then_set(int* value, int rounds, int result) {
  int x = result;
  for (int i = 0; i < rounds; ++i) x = x * 1664525 + 1013904223;
  *value = x == 12345 ? -1 : result;
}
__global__ void add(int* value, int by) { atomicAdd(value, by); }

// More than are submitted at once.
void launch_many(int* value, int last) {
  constexpr int kLaunches = 40, kRounds = 20'000;
  for (int i = kLaunches - 1; i >= 0; --i) work_then_set<<<1, 1>>>(value, kRounds, last + i);
}

// Copies without a stream follow what the NULL stream holds.
void synchronous_copies() {
  DeviceArray<int> value(std::vector<int>(1)), other(std::vector<int>(1));
  int host = 0, second = 5;
  auto* const host_array = reinterpret_cast<hipArray*>(&host);
  auto* const second_array = reinterpret_cast<hipArray*>(&second);
  const auto to_array =
      found<hipError_t(hipArray*, std::size_t, void*, std::size_t)>("hipMemcpyDtoA");
  const auto from_array =
      found<hipError_t(void*, hipArray*, std::size_t, std::size_t)>("hipMemcpyAtoD");
  launch_many(value.data(), 7);
  HIP_OK(to_array(host_array, 0, value.data(), sizeof host));
  report("a copy to an array has what the kernels before it wrote", host == 7);
  launch_many(value.data(), 8);
  HIP_OK(from_array(value.data(), second_array, 0, sizeof second));
  report("a copy from an array comes after the kernels before it", value.host()[0] == 5);
}

void capture_to_graph() {
  const auto begin =
      found<hipError_t(hipStream_t, hipGraph_t, const hipGraphNode_t*, const void*, std::size_t,
                       hipStreamCaptureMode)>("hipStreamBeginCaptureToGraph");
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  DeviceArray<int> value(std::vector<int>(1));
  hipGraph_t graph = nullptr;
  HIP_OK(hipGraphCreate(&graph, 0));
  HIP_OK(begin(stream, graph, nullptr, nullptr, 0, hipStreamCaptureModeGlobal));
  for (int i = 0; i < 2; ++i) add<<<1, 64, 0, stream>>>(value.data(), 1);
  HIP_OK(hipStreamEndCapture(stream, &graph));
  hipGraphExec_t ready = nullptr;
  HIP_OK(hipGraphInstantiate(&ready, graph, nullptr, nullptr, 0));
  HIP_OK(hipGraphLaunch(ready, stream));
  HIP_OK(hipStreamSynchronize(stream));
  report("what was captured runs when the graph is launched", value.host()[0] == 128);
}

// Launches and fills by addresses that the runtime itself gave are bound as those by name.
void proc_address() {
  const auto ask =
      found<hipError_t(const char*, void**, int, std::uint64_t, void*)>("hipGetProcAddress");
  void *launch_address = nullptr, *fill_address = nullptr;
  int launch_status = -1, fill_status = -1;
  HIP_OK(ask("hipLaunchKernel", &launch_address, 502, 0, &launch_status));
  HIP_OK(ask("hipMemsetAsync", &fill_address, 502, 0, &fill_status));
  const auto launch = reinterpret_cast<decltype(&hipLaunchKernel)>(launch_address);
  const auto fill = reinterpret_cast<decltype(&hipMemsetAsync)>(fill_address);
  if (launch == nullptr || fill == nullptr) return report("addresses by the runtime", false);
  DeviceArray<int> value(std::vector<int>(1));
  int* where = value.data();
  int by = 1;
  void* arguments[] = {&where, &by};
  hipStream_t stream = nullptr;
  HIP_OK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
  HIP_OK(fill(where, 1, sizeof(int), stream));
  for (int i = 0; i < 10; ++i)
    HIP_OK(launch(reinterpret_cast<const void*>(add), dim3(1), dim3(64), arguments, 0, stream));
  HIP_OK(hipStreamSynchronize(stream));
  report("entry points that the runtime was asked for", value.host()[0] == 0x01010101 + 640);
}

// rocBLAS launches by this name.
void launches_by_c_name() {
  const auto launch =
      found<hipError_t(hipFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       std::size_t, hipStream_t, void**, void**, hipEvent_t, hipEvent_t, unsigned)>(
          "hipExtModuleLaunchKernel");
  hipModule_t module = nullptr;
  hipFunction_t scale = nullptr;
  HIP_OK(hipModuleLoad(&module, std::getenv("MODULE_FILE")));
  HIP_OK(hipModuleGetFunction(&scale, module, "scale"));
  DeviceArray<float> values(std::vector<float>(1000, 1.0f));
  float* where = values.data();
  float by = 2.0f;
  int size = 1000;
  void* arguments[] = {&where, &by, &size};
  for (int i = 0; i < 10; ++i)
    HIP_OK(launch(scale, 8 * 128, 1, 1, 128, 1, 1, 0, nullptr, arguments, nullptr, nullptr, nullptr,
                  0));
  report("a copy has what launches by the C name wrote",
         values.host() == std::vector<float>(1000, 1024.0f));
  HIP_OK(hipModuleUnload(module));
}

}  // namespace

int main(int count, char** arguments) {
  return run_checks({{"synchronous_copies", synchronous_copies},
                     {"capture_to_graph", capture_to_graph},
                     {"proc_address", proc_address},
                     {"launches_by_c_name", launches_by_c_name}},
                    count, arguments);
}
