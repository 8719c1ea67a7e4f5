// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <set>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

TEST_CASE("two loads of one image have two sets of variables") {
  const Primary primary;
  const Kernels first, second;
  const DeviceWords seen(2);
  REQUIRE_OK(launch(first["add_to_module_counter"], nullptr, {}, seen.get(), 10u));
  REQUIRE_OK(launch(second["add_to_module_counter"], nullptr, {}, seen.get() + 4, 100u));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(seen.now(0), 15);
  CHECK_EQ(seen.now(1), 105);
  CUdeviceptr counter;
  std::size_t bytes;
  REQUIRE_OK(cuModuleGetGlobal(&counter, &bytes, first.module(), "module_counter"));
  CHECK_EQ(bytes, 4);
  std::uint32_t value = 0;
  REQUIRE_OK(cuMemcpyDtoH(&value, counter, 4));
  CHECK_EQ(value, 15);
  CHECK_RESULT(cuModuleGetGlobal(&counter, &bytes, first.module(), "no_such_variable"),
               CUDA_ERROR_NOT_FOUND);
}

TEST_CASE("what is no image for this device is refused with the reason") {
  const Primary primary;
  CUmodule module;
  CHECK_RESULT(cuModuleLoadData(&module, ".version 8.0\n.target sm_90\n"),
               CUDA_ERROR_NO_BINARY_FOR_GPU);
  std::vector<char> image = kernel_image();
  image[18] = static_cast<char>(190);  // e_machine of a cubin
  image[19] = 0;
  CHECK_RESULT(cuModuleLoadData(&module, image.data()), CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK_RESULT(cuModuleLoad(&module, "/no/such/file"), CUDA_ERROR_FILE_NOT_FOUND);
  CHECK_RESULT(cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a module and a function that is not in it") {
  const Primary primary;
  const Kernels kernels;
  CUfunction function;
  CHECK_RESULT(cuModuleGetFunction(&function, kernels.module(), "no_such_kernel"),
               CUDA_ERROR_NOT_FOUND);
  CUmodule module;
  REQUIRE_OK(cuFuncGetModule(&module, kernels["fill"]));
  CHECK_EQ(module, kernels.module());
  const char* name;
  REQUIRE_OK(cuFuncGetName(&name, kernels["fill"]));
  CHECK_EQ(std::string(name), "fill");
  unsigned count;
  REQUIRE_OK(cuModuleGetFunctionCount(&count, kernels.module()));
  std::vector<CUfunction> functions(count);
  REQUIRE_OK(cuModuleEnumerateFunctions(functions.data(), count, kernels.module()));
  const std::set<CUfunction> all(functions.begin(), functions.end());
  CHECK_EQ(all.size(), count);
  CHECK(all.contains(kernels["fill"]));
}

struct LibraryFixture {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  LibraryFixture() {
    REQUIRE_OK(cuLibraryLoadData(&library, kernel_image().data(), nullptr, nullptr, 0, nullptr,
                                 nullptr, 0));
    REQUIRE_OK(cuLibraryGetKernel(&kernel, library, "fill"));
  }
  ~LibraryFixture() { cuLibraryUnload(library); }
};

TEST_CASE("a library loads without a context, and its kernels launch like functions") {
  REQUIRE_OK(cuInit(0));
  const LibraryFixture fixture;
  const Primary primary;
  const DeviceWords words(1);
  REQUIRE_OK(
      launch(reinterpret_cast<CUfunction>(fixture.kernel), nullptr, {}, words.get(), 3u, 1u));
  CUfunction function;
  REQUIRE_OK(cuKernelGetFunction(&function, fixture.kernel));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(words.now(), 3);
  REQUIRE_OK(launch(function, nullptr, {}, words.get(), 4u, 1u));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(words.now(), 4);
}

TEST_CASE("parameter queries answer each only for their own sort of handle") {
  const Primary primary;
  const Kernels kernels;
  const LibraryFixture fixture;
  CUfunction function = kernels["parameters"];
  std::size_t offset, size;
  CHECK_RESULT(cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), 0, &offset, &size),
               CUDA_ERROR_INVALID_HANDLE);
  CHECK_RESULT(cuFuncGetParamInfo(reinterpret_cast<CUfunction>(fixture.kernel), 0, &offset, &size),
               CUDA_ERROR_INVALID_HANDLE);
  const std::vector<std::pair<std::size_t, std::size_t>> layout{
      {0, 8}, {8, 1}, {16, 8}, {24, 24}, {48, 1}};
  for (std::size_t i = 0; i < layout.size(); ++i) {
    CAPTURE(i);
    REQUIRE_OK(cuFuncGetParamInfo(function, i, &offset, &size));
    CHECK_EQ(offset, layout[i].first);
    CHECK_EQ(size, layout[i].second);
  }
  CHECK_RESULT(cuFuncGetParamInfo(function, layout.size(), &offset, &size),
               CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("function attributes are remembered and bounded") {
  const Primary primary;
  const Kernels kernels;
  CUfunction function = kernels["shared_sum"];
  int value = 0;
  REQUIRE_OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
  CHECK_EQ(value, 49152);
  REQUIRE_OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100000));
  REQUIRE_OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
  CHECK_EQ(value, 100000);
  CHECK_RESULT(
      cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300000),
      CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 8),
               CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("unloading a module waits for its kernels") {
  const Primary primary;
  const DeviceWords words(1);
  CUmodule module;
  CUfunction function;
  REQUIRE_OK(cuModuleLoadData(&module, kernel_image().data()));
  REQUIRE_OK(cuModuleGetFunction(&function, module, "slow_add"));
  REQUIRE_OK(launch(function, nullptr, {}, words.get(), 1u, std::uint64_t{3'000'000}));
  REQUIRE_OK(cuModuleUnload(module));
  CHECK_EQ(words.now(), 1);
  CHECK_RESULT(launch(function, nullptr, {}, words.get(), 1u, std::uint64_t{0}),
               CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
}  // namespace vitamin::libcuda_tests
