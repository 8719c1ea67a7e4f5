// SPDX-License-Identifier: Apache-2.0
//
// fault_program KERNELS COUNT NAME: launches kernel "well" COUNT times and kernel NAME once, then
// synchronises. Prints what each of the last calls answered, and ends with 0 if all is well, with
// 42 when the device reports a fault.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace {

void* library;

template <class Function>
Function find(const char* name) {
  const auto function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    std::fprintf(stderr, "no %s\n", name);
    std::exit(2);
  }
  return function;
}

void need(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s: %d\n", what, static_cast<int>(status));
  std::exit(3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  library = ::dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return 4;
  need(find<decltype(&cuInit)>("cuInit")(0), "cuInit");
  CUcontext context = nullptr;
  need(find<decltype(&cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(&context, 0),
       "retain");
  need(find<decltype(&cuCtxSetCurrent)>("cuCtxSetCurrent")(context), "set current");
  std::ifstream file(argv[1], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  CUmodule module = nullptr;
  need(find<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module, bytes.data()), "load");
  CUdeviceptr count = 0;
  need(find<decltype(&cuMemAlloc)>("cuMemAlloc_v2")(&count, sizeof(unsigned)), "allocate");
  const auto launch = find<decltype(&cuLaunchKernel)>("cuLaunchKernel");
  const auto synchronize = find<decltype(&cuCtxSynchronize)>("cuCtxSynchronize");
  const auto kernel = [&](const char* name) {
    CUfunction function = nullptr;
    const auto get = find<decltype(&cuModuleGetFunction)>("cuModuleGetFunction");
    need(get(&function, module, name), name);
    return function;
  };
  // Looked up before anything may fault: afterwards every call answers with the fault.
  const CUfunction well = kernel("well"), last = kernel(argv[3]);
  const auto run = [&](CUfunction function) {
    void* arguments[] = {&count};
    return launch(function, 4, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr);
  };
  for (int i = std::atoi(argv[2]); i > 0; --i) need(run(well), "launch");
  std::printf("launch %d\n", static_cast<int>(run(last)));
  const CUresult end = synchronize();
  std::printf("synchronize %d\n", static_cast<int>(end));
  std::printf("launch %d\n", static_cast<int>(run(well)));
  return end == CUDA_SUCCESS ? 0 : 42;
}
