// SPDX-License-Identifier: Apache-2.0
//
// demo-serve [REQUESTS]: answers requests on four streams, two blocking and two not, each request
// an asynchronous copy in, six layers, an event; a fifth stream waits for the events in the order
// of the requests, blends the answers and copies them out. Prints a hash of every answer.
#include <array>
#include <chrono>
#include <cstring>

#include "tools/demo/driver.h"

namespace {

using vitamin::demo::Device;

constexpr unsigned kLanes = 4, kLayers = 6;
constexpr unsigned kRows = 16, kWidth = 64;
constexpr unsigned kValues = kRows * kWidth;  // of one request, in and out

// Pinned memory, so that copies are asynchronous.
class Pinned {
 public:
  Pinned(const Device& device, std::size_t count) : device_(device) {
    device_.check(device_.driver().cuMemAllocHost(&memory_, count * sizeof(float)), "pinned");
  }
  ~Pinned() { device_.driver().cuMemFreeHost(memory_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  float* data() const { return static_cast<float*>(memory_); }

 private:
  const Device& device_;
  void* memory_ = nullptr;
};

struct Lane {
  CUstream stream = nullptr;
  CUdeviceptr question = 0;
  std::array<CUdeviceptr, 2> hidden{};  // layers write them in turn
  CUevent answered = nullptr;           // the answer is complete
  CUevent collected = nullptr;          // the answer was read: the lane's buffers are free again
};

class Server {
 public:
  Server(Device& device, unsigned requests)
      : d_(device),
        requests_(requests),
        questions_(device, std::size_t{requests} * kValues),
        answers_(device, std::size_t{requests} * kValues) {
    const auto& cu = d_.driver();
    for (unsigned i = 0; i < kLanes; ++i) {
      Lane& lane = lanes_[i];
      d_.check(cu.cuStreamCreate(&lane.stream, i < 2 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING),
               "stream");
      d_.check(cu.cuEventCreate(&lane.answered, CU_EVENT_DISABLE_TIMING), "event");
      d_.check(cu.cuEventCreate(&lane.collected, CU_EVENT_DISABLE_TIMING), "event");
      lane.question = d_.floats(kValues);
      for (CUdeviceptr& buffer : lane.hidden) buffer = d_.floats(kValues);
    }
    d_.check(cu.cuStreamCreate(&collector_, CU_STREAM_NON_BLOCKING), "stream");
    for (unsigned i = 0; i < kLayers; ++i) {
      weights_[i] = d_.floats(kWidth * kWidth);
      d_.launch(make_values_, kWidth * kWidth, nullptr, weights_[i], kWidth * kWidth, 100 + i,
                0.3f);
    }
    average_ = d_.floats(kValues);
    d_.check(cu.cuMemsetD32Async(average_, 0, kValues, nullptr), "memset");
    for (std::size_t i = 0; i < std::size_t{requests} * kValues; ++i)
      questions_.data()[i] = static_cast<float>(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    d_.check(cu.cuCtxSynchronize(), "synchronize");
  }

  void submit(unsigned request) {
    const auto& cu = d_.driver();
    Lane& lane = lanes_[request % kLanes];
    constexpr std::size_t kBytes = kValues * sizeof(float);
    if (request >= kLanes) d_.check(cu.cuStreamWaitEvent(lane.stream, lane.collected, 0), "wait");
    d_.check(cu.cuMemcpyHtoDAsync(lane.question, questions_.data() + std::size_t{request} * kValues,
                                  kBytes, lane.stream),
             "copy in");
    CUdeviceptr from = lane.question;
    for (unsigned i = 0; i < kLayers; ++i) {
      d_.launch(layer_, kValues, lane.stream, from, weights_[i], lane.hidden[i % 2], kRows, kWidth,
                kWidth, i + 1 < kLayers ? 1u : 0u);
      from = lane.hidden[i % 2];
    }
    d_.check(cu.cuEventRecord(lane.answered, lane.stream), "record");
    d_.check(cu.cuStreamWaitEvent(collector_, lane.answered, 0), "wait");
    d_.launch(blend_, kValues, collector_, from, average_, kValues);
    d_.check(cu.cuEventRecord(lane.collected, collector_), "record");
    d_.check(cu.cuMemcpyDtoHAsync(answers_.data() + std::size_t{request} * kValues, average_,
                                  kBytes, collector_),
             "copy out");
  }

  std::vector<float> result() const {
    d_.check(d_.driver().cuStreamSynchronize(collector_), "synchronize");
    return {answers_.data(), answers_.data() + std::size_t{requests_} * kValues};
  }

 private:
  Device& d_;
  unsigned requests_;
  CUfunction make_values_ = d_.kernel("make_values"), layer_ = d_.kernel("layer");
  CUfunction blend_ = d_.kernel("blend");
  Pinned questions_, answers_;
  std::array<Lane, kLanes> lanes_{};
  std::array<CUdeviceptr, kLayers> weights_{};
  CUstream collector_ = nullptr;
  CUdeviceptr average_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const unsigned requests = vitamin::demo::count_argument(argc, argv, 400);
  Device device(vitamin::demo::Door::kProcAddress);
  Server server(device, requests);
  const auto started = std::chrono::steady_clock::now();
  for (unsigned request = 0; request < requests; ++request) server.submit(request);
  const std::vector<float> result = server.result();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
  vitamin::demo::print_result("serve", vitamin::demo::hash(result), device.launches(),
                              spent.count());
  return 0;
}
