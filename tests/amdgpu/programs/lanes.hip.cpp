// SPDX-License-Identifier: Apache-2.0
//
// lanes [COUNT]: so many streams (5) that depend on each other, one thread. Every launch asks for
// shared memory whose size names its stream, so that a trace shows which stream a packet belongs to
// on whatever queue it ran.
#include "program.h"

namespace {

constexpr int kRounds = 60, kBlocks = 8, kThreads = 64, kValues = kBlocks * kThreads;
constexpr unsigned kLabelBytes = 1024;

__global__ void advance(float* values, int round, float by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  values[i] = values[i] * by + static_cast<float>(round);
}

__global__ void take(const float* from, float* to, int round) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = 0.5f * (to[i] + from[i]) + static_cast<float>(round % 7);
}

struct Lane {
  hipStream_t stream;
  float* values;
  hipEvent_t taken;  // behind everything of a round
};

}  // namespace

int main(int count, char** arguments) {
  const int lane_count = count > 1 ? std::atoi(arguments[1]) : 5;
  // The first one's stream is the legacy default stream.
  std::vector<Lane> lanes(static_cast<std::size_t>(lane_count));
  for (int i = 0; i < lane_count; ++i) {
    Lane& lane = lanes[i];
    if (i > 0)
      HIP_OK(
          hipStreamCreateWithFlags(&lane.stream, i < 3 ? hipStreamDefault : hipStreamNonBlocking));
    HIP_OK(hipEventCreateWithFlags(&lane.taken, hipEventDisableTiming));
    HIP_OK(hipMalloc(&lane.values, kValues * sizeof(float)));
    const auto start = numbers(kValues, static_cast<std::uint32_t>(i));
    HIP_OK(hipMemcpy(lane.values, start.data(), kValues * sizeof(float), hipMemcpyHostToDevice));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < lane_count; ++i) {
      const Lane &lane = lanes[i], &next = lanes[(i + 1) % lane_count];
      const unsigned label = kLabelBytes * static_cast<unsigned>(i + 1);
      HIP_OK(hipStreamWaitEvent(lane.stream, lanes[(i + lane_count - 1) % lane_count].taken, 0));
      advance<<<kBlocks, kThreads, label, lane.stream>>>(lane.values, round, 0.75f);
      advance<<<kBlocks, kThreads, label, lane.stream>>>(lane.values, -round, 0.5f);
      HIP_OK(hipStreamWaitEvent(lane.stream, next.taken, 0));
      take<<<kBlocks, kThreads, label, lane.stream>>>(next.values, lane.values, round);
      HIP_OK(hipEventRecord(lane.taken, lane.stream));
    }
    if (round % 4 == 3) HIP_OK(hipDeviceSynchronize());
  }
  HIP_OK(hipDeviceSynchronize());
  for (const Lane& lane : lanes) {
    std::vector<float> values(kValues);
    HIP_OK(hipMemcpy(values.data(), lane.values, kValues * sizeof(float), hipMemcpyDeviceToHost));
    report("the values of a lane", true, bits_of(values));
  }
  return 0;
}
