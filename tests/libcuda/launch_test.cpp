// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

struct Odd {
  char a;
  double b;
  short c;
};

TEST_CASE("parameters arrive by pointers and packed, and both at once are refused") {
  const Primary primary;
  const Kernels kernels;
  CUfunction function = kernels["parameters"];
  const DeviceWords words(12);
  CUdeviceptr out = words.get();
  char small = 1;
  double wide = 2;
  Odd odd{3, 4, 5};
  std::uint8_t last = 6;
  void* pointers[] = {&out, &small, &wide, &odd, &last};
  REQUIRE_OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers, nullptr));
  REQUIRE_OK(cuCtxSynchronize());
  const auto* seen = reinterpret_cast<const std::uint64_t*>(words.get());
  for (std::uint64_t i = 0; i < 6; ++i) CHECK_EQ(seen[i], i + 1);

  struct Packed {
    CUdeviceptr out;
    char small;
    double wide;
    Odd odd;
    std::uint8_t last;
  } packed{out, 11, 12, {13, 14, 15}, 16};
  const std::size_t exact = offsetof(Packed, last) + 1;
  std::size_t size = exact;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  {
    const Stream stream;
    Gate gate(stream);
    REQUIRE_OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, extra));
    packed = {};  // copied by the call
    size = 0;
    gate.open();
    REQUIRE_OK(cuStreamSynchronize(stream));
  }
  for (std::uint64_t i = 0; i < 6; ++i) CHECK_EQ(seen[i], i + 11);
  size = exact + 1;
  CHECK_RESULT(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
               CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  size = exact;
  CHECK_RESULT(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers, extra),
               CUDA_ERROR_INVALID_VALUE);
  void* empty[] = {CU_LAUNCH_PARAM_END};
  CHECK_RESULT(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, pointers, empty),
               CUDA_SUCCESS);
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE("an impossible launch is refused by the call and leaves nothing behind") {
  const Primary primary;
  const Kernels kernels;
  CUfunction function = kernels["nothing"];
  const auto attempt = [&](unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned block_z,
                           unsigned shared) {
    return cuLaunchKernel(function, grid_x, grid_y, 1, block_x, 1, block_z, shared, nullptr,
                          nullptr, nullptr);
  };
  CHECK_RESULT(attempt(1, 1, 2048, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(attempt(1, 1, 512, 4, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(attempt(1, 1, 1, 65, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(attempt(0, 1, 32, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(attempt(1, 65536, 32, 1, 0), CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(attempt(1, 1, 32, 1, 49153), CUDA_ERROR_INVALID_VALUE);
  CHECK_RESULT(cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
               CUDA_ERROR_INVALID_HANDLE);
  CHECK_RESULT(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_CASE("dynamic shared memory beyond 48 KiB needs the function's consent") {
  const Primary primary;
  const Kernels kernels;
  const DeviceWords out(1);
  CUfunction function = kernels["shared_sum"];
  CHECK_RESULT(launch(function, nullptr, {1, 64, 60000}, out.get()), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000));
  REQUIRE_OK(launch(function, nullptr, {1, 64, 60000}, out.get()));
  REQUIRE_OK(cuCtxSynchronize());
  CHECK_EQ(out.now(), 63 * 32);
}

CUresult launch_cluster(CUfunction function, CUstream stream, unsigned grid, unsigned cluster,
                        CUdeviceptr out) {
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = cluster;
  attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
  CUlaunchConfig config{};
  config.gridDimX = grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* parameters[] = {&out};
  return cuLaunchKernelEx(&config, function, parameters, nullptr);
}

TEST_CASE("clusters run where they fit and are refused by the call where they do not") {
  const Primary primary;
  const Kernels kernels;
  const Split split, pairs(8, kIgnoreCoscheduling);
  const Green eight({split.groups[2]}), rest({split.rest}),
      loose({pairs.groups[0], pairs.groups[1]});
  const DeviceWords ranks(32);
  CUfunction function = kernels["cluster_ranks"];
  const auto check = [&](CUstream stream, unsigned cluster) {
    CAPTURE(cluster);
    REQUIRE_OK(launch_cluster(function, stream, 16, cluster, ranks.get()));
    REQUIRE_OK(cuCtxSynchronize());
    for (unsigned i = 0; i < 16; ++i) CHECK_EQ(ranks.now(i), i % cluster);
  };
  for (const unsigned cluster : {2u, 4u, 8u}) {
    check(nullptr, cluster);
    check(eight.stream(), cluster);
  }
  // What a split leaves over are pairs.
  check(rest.stream(), 2);
  CHECK_RESULT(launch_cluster(function, rest.stream(), 16, 4, ranks.get()),
               CUDA_ERROR_INVALID_CLUSTER_SIZE);
  REQUIRE_OK(launch_cluster(function, loose.stream(), 16, 2, ranks.get()));
  CHECK_RESULT(launch_cluster(function, loose.stream(), 16, 4, ranks.get()),
               CUDA_ERROR_INVALID_CLUSTER_SIZE);
  // Sixteen needs the function's consent, and the whole device.
  CHECK_RESULT(launch_cluster(function, nullptr, 16, 16, ranks.get()),
               CUDA_ERROR_INVALID_CLUSTER_SIZE);
  REQUIRE_OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  REQUIRE_OK(launch_cluster(function, nullptr, 16, 16, ranks.get()));
  CHECK_RESULT(launch_cluster(function, eight.stream(), 16, 16, ranks.get()),
               CUDA_ERROR_INVALID_CLUSTER_SIZE);
  CHECK_RESULT(launch_cluster(function, nullptr, 15, 2, ranks.get()),
               CUDA_ERROR_INVALID_CLUSTER_SIZE);
  REQUIRE_OK(cuCtxSynchronize());
}

TEST_CASE("a cooperative grid must be resident at once") {
  const Primary primary;
  const Kernels kernels;
  const Split split;
  std::vector<CUdevResource> all = split.groups;
  all.push_back(split.rest);
  const Green narrow({split.groups[0]}), full(all);
  CUfunction function = kernels["grid_barrier"];
  const DeviceWords arrived(1), out(264);
  CUdeviceptr arrived_at = arrived.get(), out_at = out.get();
  void* parameters[] = {&arrived_at, &out_at};
  const auto attempt = [&](CUstream stream, unsigned blocks) {
    return cuLaunchCooperativeKernel(function, blocks, 1, 1, 1024, 1, 1, 0, stream, parameters);
  };
  // Two blocks of 1,024 threads to an SM.
  CHECK_RESULT(attempt(narrow.stream(), 17), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  CHECK_RESULT(attempt(nullptr, 265), CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  REQUIRE_OK(attempt(narrow.stream(), 16));
  REQUIRE_OK(cuStreamSynchronize(narrow.stream()));
  REQUIRE_OK(cuMemsetD32(arrived_at, 0, 1));
  REQUIRE_OK(cuCtxSynchronize());
  REQUIRE_OK(attempt(full.stream(), 264));
  REQUIRE_OK(cuStreamSynchronize(full.stream()));
  CHECK_EQ(out.now(263), 1);
}

TEST_CASE("a launch's completion event happens with the launch") {
  const Primary primary;
  const Kernels kernels;
  const DeviceWords words(1);
  const Stream stream(CU_STREAM_NON_BLOCKING), other(CU_STREAM_NON_BLOCKING);
  const Event event, timed(CU_EVENT_DEFAULT);
  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT;
  attribute.value.launchCompletionEvent.event = event;
  CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream, &attribute, 1};
  CUdeviceptr at = words.get();
  std::uint32_t value = 5;
  std::uint64_t ns = 1'000'000;
  void* parameters[] = {&at, &value, &ns};
  REQUIRE_OK(cuLaunchKernelEx(&config, kernels["slow_add"], parameters, nullptr));
  REQUIRE_OK(cuStreamWaitEvent(other, event, 0));
  REQUIRE_OK(launch(kernels["add"], other, {}, at, 10u, 1u));
  REQUIRE_OK(cuStreamSynchronize(other));
  CHECK_EQ(words.now(), 15);
  attribute.value.launchCompletionEvent.event = timed;
  CHECK_RESULT(cuLaunchKernelEx(&config, kernels["slow_add"], parameters, nullptr),
               CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("hints and programmatic serialisation are accepted and change no result") {
  const Primary primary;
  const Kernels kernels;
  const DeviceWords words(1);
  const Stream stream;
  CUlaunchAttribute attributes[3] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attributes[0].value.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  attributes[1].value.priority = -1;
  attributes[2].id = CU_LAUNCH_ATTRIBUTE_IGNORE;
  CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream, attributes, 3};
  CUdeviceptr at = words.get();
  std::uint32_t value = 1, count = 1;
  void* parameters[] = {&at, &value, &count};
  for (int i = 0; i < 10; ++i)
    REQUIRE_OK(cuLaunchKernelEx(&config, kernels["add"], parameters, nullptr));
  REQUIRE_OK(cuStreamSynchronize(stream));
  CHECK_EQ(words.now(), 10);
}

TEST_CASE("occupancy answers for the partition under a green context") {
  const Primary primary;
  const Kernels kernels;
  const Split split;
  const Green green({split.groups[0], split.groups[1]});
  CUfunction function = kernels["nothing"];
  int blocks = 0, min_grid = 0, block = 0;
  REQUIRE_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 1024, 0));
  CHECK_EQ(blocks, 2);
  REQUIRE_OK(cuOccupancyMaxPotentialBlockSize(&min_grid, &block, function, nullptr, 0, 0));
  CHECK_EQ(block, 1024);
  CHECK_EQ(min_grid, 264);
  REQUIRE_OK(cuCtxPushCurrent(green.context()));
  REQUIRE_OK(cuOccupancyMaxPotentialBlockSize(&min_grid, &block, function, nullptr, 0, 0));
  CHECK_EQ(min_grid, 32);
  REQUIRE_OK(cuCtxPopCurrent(nullptr));

  CUlaunchAttribute attribute{};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim.x = 8;
  attribute.value.clusterDim.y = attribute.value.clusterDim.z = 1;
  CUlaunchConfig config{8, 1, 1, 1024, 1, 1, 0, green.stream(), &attribute, 1};
  int clusters = 0, size = 0;
  REQUIRE_OK(cuOccupancyMaxActiveClusters(&clusters, function, &config));
  CHECK_EQ(clusters, 4);
  REQUIRE_OK(cuOccupancyMaxPotentialClusterSize(&size, function, &config));
  CHECK_EQ(size, 8);
}

TEST_CASE("a kernel's fault is the answer of every later call on the device") {
  const Primary primary;
  const Kernels kernels;
  const DeviceWords words(1);
  const Stream stream(CU_STREAM_NON_BLOCKING), other(CU_STREAM_NON_BLOCKING);
  const Event event;
  CUfunction nothing = kernels["nothing"];
  REQUIRE_OK(launch(kernels["fault"], stream, {}, words.get()));
  CHECK_RESULT(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_RESULT(cuStreamQuery(other), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_RESULT(cuEventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_RESULT(launch(nothing, other, {}), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr memory;
  CHECK_RESULT(cuMemAlloc(&memory, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE_OK(cuDevicePrimaryCtxReset(0));
}

TEST_CASE("a trap is a launch failure") {
  const Primary primary;
  const Kernels kernels;
  const DeviceWords words(1);
  REQUIRE_OK(launch(kernels["trap"], nullptr, {}, words.get()));
  CHECK_RESULT(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
  REQUIRE_OK(cuDevicePrimaryCtxReset(0));
}

TEST_CASE("a function of one context cannot run in a stream of another, a kernel can") {
  const Primary primary;
  const Kernels kernels;
  CUfunction function = kernels["nothing"];
  CUlibrary library;
  CUkernel kernel;
  REQUIRE_OK(
      cuLibraryLoadData(&library, kernel_image().data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  REQUIRE_OK(cuLibraryGetKernel(&kernel, library, "nothing"));
  CUcontext other = nullptr;
  REQUIRE_OK(create_context(&other));
  CHECK_RESULT(launch(function, nullptr, {}), CUDA_ERROR_INVALID_HANDLE);
  REQUIRE_OK(launch(reinterpret_cast<CUfunction>(kernel), nullptr, {}));
  REQUIRE_OK(cuCtxDestroy(other));
  REQUIRE_OK(cuLibraryUnload(library));
}

}  // namespace
}  // namespace vitamin::libcuda_tests
