// SPDX-License-Identifier: Apache-2.0
//
// The runtime API, section by section; built with the static and the shared runtime and for the
// per-thread default stream. `--section NAME` runs one, otherwise all run.
#include <cooperative_groups.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "bench.h"

namespace cg = cooperative_groups;

namespace {

constexpr unsigned kCount = 1 << 18;

// Not commutative, so that the order of two kernels over the same data shows in the result.
__global__ void step(float* data, float factor, float offset, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = data[i] * factor + offset;
}

__global__ void combine(float* to, const float* from, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) to[i] = to[i] * 0.5f + from[i];
}

__global__ void cooperative_prefix(float* data, unsigned count) {
  cg::grid_group grid = cg::this_grid();
  for (unsigned stride = 1; stride < count; stride *= 2) {
    float next = 0;
    const unsigned i = static_cast<unsigned>(grid.thread_rank());
    if (i < count) next = data[i] + (i >= stride ? data[i - stride] : 0);
    grid.sync();
    if (i < count) data[i] = next;
    grid.sync();
  }
}

__global__ void cluster_sums(const float* data, float* sums) {
  cg::cluster_group cluster = cg::this_cluster();
  __shared__ float part;
  if (threadIdx.x == 0) {
    part = 0;
    for (unsigned i = 0; i < 64; ++i) part += data[blockIdx.x * 64 + i];
  }
  cluster.sync();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
      sum += *cluster.map_shared_rank(&part, rank);
    sums[blockIdx.x] = sum + static_cast<float>(cluster.block_rank());
  }
  cluster.sync();
}

void launch_step(float* data, float factor, float offset, cudaStream_t stream) {
  step<<<kCount / 256, 256, 0, stream>>>(data, factor, offset, kCount);
  BENCH_CHECK(cudaGetLastError());
}

// Kernels of the default, blocking and non-blocking streams over the same data.
void default_streams() {
  float* data = bench::device_copy(bench::random_floats(kCount, 1));
  float* other = bench::device_copy(bench::random_floats(kCount, 2));
  cudaStream_t blocking = nullptr;
  cudaStream_t second = nullptr;
  cudaStream_t free = nullptr;
  BENCH_CHECK(cudaStreamCreate(&blocking));
  BENCH_CHECK(cudaStreamCreate(&second));
  BENCH_CHECK(cudaStreamCreateWithFlags(&free, cudaStreamNonBlocking));
  // cudaStreamLegacy, so that the order is defined in every build of this program.
  for (int i = 0; i < 60; ++i) {
    launch_step(data, 0.9f, 0.1f, blocking);
    launch_step(data, 1.1f, -0.2f, cudaStreamLegacy);
    launch_step(data, 0.95f, 0.3f, second);
    launch_step(data, 1.05f, 0.01f, cudaStreamLegacy);
    launch_step(other, 0.99f, 0.5f, free);
  }
  bench::tell_bytes("legacy and blocking streams", data, kCount * sizeof(float));
  bench::tell_bytes("non-blocking stream", other, kCount * sizeof(float));
  for (int i = 0; i < 60; ++i) launch_step(data, 0.9f, static_cast<float>(i), nullptr);
  bench::tell_bytes("the default stream of this build", data, kCount * sizeof(float));
}

void threads() {
  constexpr int kThreads = 4;
  std::vector<float*> data;
  for (int i = 0; i < kThreads; ++i)
    data.push_back(
        bench::device_copy(bench::random_floats(kCount, 10 + static_cast<std::uint64_t>(i))));
  std::vector<std::thread> users;
  for (int t = 0; t < kThreads; ++t)
    users.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i)
        launch_step(data[static_cast<std::size_t>(t)], 0.9f, static_cast<float>(i),
                    cudaStreamPerThread);
      BENCH_CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    });
  for (std::thread& user : users) user.join();
  for (float* d : data) bench::tell_bytes("per-thread default stream", d, kCount * sizeof(float));
}

// A diamond of streams joined by events that are recorded again and again.
void events() {
  float* left = bench::device_copy(bench::random_floats(kCount, 3));
  float* right = bench::device_copy(bench::random_floats(kCount, 4));
  cudaStream_t streams[3];
  for (cudaStream_t& stream : streams)
    BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaEvent_t event = nullptr;
  cudaEvent_t back = nullptr;
  BENCH_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  BENCH_CHECK(cudaEventCreateWithFlags(&back, cudaEventDisableTiming));
  for (int i = 0; i < 80; ++i) {
    launch_step(left, 0.9f, static_cast<float>(i), streams[0]);
    BENCH_CHECK(cudaEventRecord(event, streams[0]));
    BENCH_CHECK(cudaStreamWaitEvent(streams[1], event, 0));
    combine<<<kCount / 256, 256, 0, streams[1]>>>(right, left, kCount);
    BENCH_CHECK(cudaEventRecord(event, streams[1]));
    BENCH_CHECK(cudaStreamWaitEvent(streams[2], event, 0));
    combine<<<kCount / 256, 256, 0, streams[2]>>>(left, right, kCount);
    BENCH_CHECK(cudaEventRecord(back, streams[2]));
    BENCH_CHECK(cudaStreamWaitEvent(streams[0], back, 0));
  }
  BENCH_CHECK(cudaGetLastError());
  bench::tell_bytes("event chain", left, kCount * sizeof(float));
}

// Host buffers that are reused as soon as the calls allow it.
void copies() {
  float* data = bench::device_zeros<float>(kCount);
  auto* sum = bench::device_zeros<float>(kCount);
  std::vector<float> pageable(kCount);
  float* pinned = nullptr;
  BENCH_CHECK(cudaMallocHost(&pinned, kCount * sizeof(float)));
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < 20; ++i) {
    for (unsigned j = 0; j < kCount; ++j)
      pageable[j] = static_cast<float>(i * 7 + static_cast<int>(j % 13));
    BENCH_CHECK(cudaMemcpyAsync(data, pageable.data(), kCount * sizeof(float),
                                cudaMemcpyHostToDevice, stream));
    std::fill(pageable.begin(), pageable.end(), -1.0f);
    combine<<<kCount / 256, 256, 0, stream>>>(sum, data, kCount);
    BENCH_CHECK(cudaMemsetAsync(data, i, kCount, stream));
    BENCH_CHECK(
        cudaMemcpyAsync(pinned, sum, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream));
    BENCH_CHECK(cudaStreamSynchronize(stream));
    for (unsigned j = 0; j < kCount; ++j) pinned[j] *= 0.5f;
    BENCH_CHECK(
        cudaMemcpyAsync(data, pinned, kCount * sizeof(float), cudaMemcpyHostToDevice, stream));
    combine<<<kCount / 256, 256, 0, stream>>>(sum, data, kCount);
    BENCH_CHECK(
        cudaMemcpy2DAsync(data, 512, sum, 1024, 512, 256, cudaMemcpyDeviceToDevice, stream));
    combine<<<kCount / 256, 256, 0, stream>>>(sum, data, kCount);
    BENCH_CHECK(cudaStreamSynchronize(stream));
  }
  BENCH_CHECK(cudaGetLastError());
  bench::tell_bytes("copies", sum, kCount * sizeof(float));
}

void host_functions() {
  float* data = bench::device_copy(bench::random_floats(kCount, 5));
  float* pinned = nullptr;
  BENCH_CHECK(cudaMallocHost(&pinned, 64 * sizeof(float)));
  std::memset(pinned, 0, 64 * sizeof(float));
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < 30; ++i) {
    launch_step(data, 0.9f, 1.0f, stream);
    BENCH_CHECK(cudaMemcpyAsync(pinned, data, 64 * sizeof(float), cudaMemcpyDeviceToHost, stream));
    BENCH_CHECK(cudaLaunchHostFunc(
        stream,
        [](void* values) {
          for (int j = 0; j < 64; ++j) static_cast<float*>(values)[j] += 2.0f;
        },
        pinned));
    BENCH_CHECK(cudaMemcpyAsync(data, pinned, 64 * sizeof(float), cudaMemcpyHostToDevice, stream));
  }
  bench::tell_bytes("host functions", data, kCount * sizeof(float));
}

void malloc_async() {
  float* result = bench::device_zeros<float>(kCount);
  cudaStream_t stream = nullptr;
  cudaStream_t other = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  BENCH_CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  cudaEvent_t event = nullptr;
  BENCH_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  // Freed memory is handed out again at once: a kernel that ran late would read the next owner's.
  for (int i = 0; i < 200; ++i) {
    float* scratch = nullptr;
    BENCH_CHECK(cudaMallocAsync(&scratch, kCount * sizeof(float), stream));
    BENCH_CHECK(cudaMemsetAsync(scratch, i, kCount * sizeof(float), stream));
    launch_step(scratch, 0.0f, static_cast<float>(i), stream);
    if (i % 3 == 0) {
      BENCH_CHECK(cudaEventRecord(event, stream));
      BENCH_CHECK(cudaStreamWaitEvent(other, event, 0));
      combine<<<kCount / 256, 256, 0, other>>>(result, scratch, kCount);
      BENCH_CHECK(cudaFreeAsync(scratch, other));
      BENCH_CHECK(cudaEventRecord(event, other));
      BENCH_CHECK(cudaStreamWaitEvent(stream, event, 0));
    } else {
      combine<<<kCount / 256, 256, 0, stream>>>(result, scratch, kCount);
      BENCH_CHECK(cudaFreeAsync(scratch, stream));
    }
  }
  BENCH_CHECK(cudaGetLastError());
  bench::tell_bytes("cudaMallocAsync", result, kCount * sizeof(float));
}

void cooperative() {
  int blocks = 0;
  cudaDeviceProp properties{};
  BENCH_CHECK(cudaGetDeviceProperties(&properties, 0));
  BENCH_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, cooperative_prefix, 256, 0));
  unsigned whole = static_cast<unsigned>(blocks * properties.multiProcessorCount);
  for (unsigned grid : {8u, 32u, 132u, whole}) {
    unsigned count = grid * 256;
    float* data = bench::device_copy(bench::random_floats(count, 6));
    void* parameters[] = {&data, &count};
    for (int i = 0; i < 5; ++i)
      BENCH_CHECK(cudaLaunchCooperativeKernel(cooperative_prefix, dim3(grid), dim3(256), parameters,
                                              0, nullptr));
    const std::string name = "cooperative grid of " + std::to_string(grid);
    bench::tell_bytes(name.c_str(), data, count * sizeof(float));
  }
}

void clusters() {
  BENCH_CHECK(
      cudaFuncSetAttribute(cluster_sums, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  float* data = bench::device_copy(bench::random_floats(64 * 1024, 7));
  auto* sums = bench::device_zeros<float>(1024);
  for (const unsigned size : {1u, 2u, 4u, 8u, 16u}) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = size;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1024);
    config.blockDim = dim3(32);
    config.attrs = &attribute;
    config.numAttrs = 1;
    for (int i = 0; i < 20; ++i)
      BENCH_CHECK(cudaLaunchKernelEx(&config, cluster_sums, static_cast<const float*>(data), sums));
    const std::string name = "clusters of " + std::to_string(size);
    bench::tell_bytes(name.c_str(), sums, 1024 * sizeof(float));
  }
}

void graphs() {
  float* data = bench::device_copy(bench::random_floats(kCount, 8));
  cudaStream_t stream = nullptr;
  BENCH_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  launch_step(data, 0.5f, 1.0f, stream);  // pending while the capture begins
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  BENCH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < 20; ++i) launch_step(data, 0.9f, static_cast<float>(i), stream);
  BENCH_CHECK(cudaStreamEndCapture(stream, &graph));
  BENCH_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < 10; ++i) {
    BENCH_CHECK(cudaGraphLaunch(executable, stream));
    launch_step(data, 1.01f, 0.25f, stream);
  }
  bench::tell_bytes("graph between kernels", data, kCount * sizeof(float));
  for (int i = 0; i < 5; ++i) {
    BENCH_CHECK(cudaGraphLaunch(executable, cudaStreamLegacy));
    launch_step(data, 1.01f, 0.25f, cudaStreamLegacy);
  }
  bench::tell_bytes("graph on the legacy stream", data, kCount * sizeof(float));
  // Often enough that executables for parts of the device are there; updated now and then.
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 100; ++i) {
      BENCH_CHECK(cudaGraphLaunch(executable, stream));
      if (i % 10 == 9) BENCH_CHECK(cudaStreamSynchronize(stream));
    }
    cudaGraph_t other = nullptr;
    cudaGraphExecUpdateResultInfo info{};
    BENCH_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 20; ++i) launch_step(data, 0.8f, static_cast<float>(i + round), stream);
    BENCH_CHECK(cudaStreamEndCapture(stream, &other));
    BENCH_CHECK(cudaGraphExecUpdate(executable, other, &info));
    BENCH_CHECK(cudaGraphDestroy(other));
  }
  bench::tell_bytes("graph replayed and updated", data, kCount * sizeof(float));
  BENCH_CHECK(cudaGraphExecDestroy(executable));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = bench::option(argc, argv, "--section", "all");
  bench::settle_uploads = bench::number(argc, argv, "--racing-uploads", 0) == 0;
  const struct {
    const char* name;
    void (*run)();
  } sections[] = {{"default-streams", default_streams},
                  {"threads", threads},
                  {"events", events},
                  {"copies", copies},
                  {"host-functions", host_functions},
                  {"malloc-async", malloc_async},
                  {"cooperative", cooperative},
                  {"clusters", clusters},
                  {"graphs", graphs}};
  bool any = false;
  for (const auto& section : sections)
    if (wanted == "all" || wanted == section.name) {
      section.run();
      any = true;
    }
  if (!any) {
    std::fprintf(stderr, "use_runtime: there is no section '%s'\n", wanted.c_str());
    return 2;
  }
}
