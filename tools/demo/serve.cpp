// SPDX-License-Identifier: Apache-2.0
//
// demo-serve [REQUESTS]: answers requests on four streams, two blocking and two not, each request
// an asynchronous copy in, six layers, an event; a fifth stream waits for the events in the order
// of the requests, blends the answers and copies them out. Prints a hash of every answer.
#include <array>
#include <chrono>
#include <vector>

#include "tools/demo/device.h"
#include "tools/demo/program.h"

namespace {

using vitamin::demo::DemoDevice;
using vitamin::demo::Event;
using vitamin::demo::Kernel;
using vitamin::demo::Stream;

constexpr unsigned kLanes = 4, kLayers = 6;
constexpr unsigned kRows = 16, kWidth = 64;
constexpr unsigned kValues = kRows * kWidth;  // of one request, in and out

struct Lane {
  Stream stream;
  float* question;
  std::array<float*, 2> hidden;  // layers write them in turn
  Event answered;                // the answer is complete
  Event collected;               // the answer was read: the lane's buffers are free again
};

class Server {
 public:
  Server(DemoDevice& device, unsigned requests) : d_(device), requests_(requests) {
    for (unsigned i = 0; i < kLanes; ++i)
      lanes_[i] = {d_.stream(i < 2),
                   d_.floats(kValues),
                   {d_.floats(kValues), d_.floats(kValues)},
                   d_.event(),
                   d_.event()};
    for (unsigned i = 0; i < kLayers; ++i) {
      weights_[i] = d_.floats(kWidth * kWidth);
      d_.launch(make_values_, kWidth * kWidth, nullptr, weights_[i], kWidth * kWidth, 100 + i,
                0.3f);
    }
    d_.clear(average_, kValues, nullptr);
    for (std::size_t i = 0; i < std::size_t{requests} * kValues; ++i)
      questions_[i] = static_cast<float>(i * 2654435761u % 2001) / 1000.0f - 1.0f;
    d_.synchronize();
  }

  void submit(unsigned request) {
    const Lane& lane = lanes_[request % kLanes];
    const std::size_t offset = std::size_t{request} * kValues;
    if (request >= kLanes) d_.wait(lane.stream, lane.collected);
    d_.copy_in(lane.question, questions_ + offset, kValues, lane.stream);
    const float* from = lane.question;
    for (unsigned i = 0; i < kLayers; ++i) {
      d_.launch(layer_, kValues, lane.stream, from, weights_[i], lane.hidden[i % 2], kRows, kWidth,
                kWidth, i + 1 < kLayers ? 1u : 0u);
      from = lane.hidden[i % 2];
    }
    d_.record(lane.answered, lane.stream);
    d_.wait(collector_, lane.answered);
    d_.launch(blend_, kValues, collector_, from, average_, kValues);
    d_.record(lane.collected, collector_);
    d_.copy_out(answers_ + offset, average_, kValues, collector_);
  }

  std::vector<float> result() const {
    d_.synchronize(collector_);
    return {answers_, answers_ + std::size_t{requests_} * kValues};
  }

 private:
  DemoDevice& d_;
  unsigned requests_;
  Kernel make_values_ = d_.kernel("make_values"), layer_ = d_.kernel("layer");
  Kernel blend_ = d_.kernel("blend");
  float* questions_ = d_.pinned(std::size_t{requests_} * kValues);
  float* answers_ = d_.pinned(std::size_t{requests_} * kValues);
  std::array<Lane, kLanes> lanes_{};
  std::array<float*, kLayers> weights_{};
  Stream collector_ = d_.stream(false);
  float* average_ = d_.floats(kValues);
};

}  // namespace

int main(int argc, char** argv) {
  const unsigned requests = vitamin::demo::count_argument(argc, argv, 400);
  DemoDevice device(vitamin::demo::Door::kProcAddress);
  Server server(device, requests);
  const auto started = std::chrono::steady_clock::now();
  for (unsigned request = 0; request < requests; ++request) server.submit(request);
  const std::vector<float> result = server.result();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
  vitamin::demo::print_result("serve", vitamin::demo::hash(result), device.launches(),
                              spent.count());
  return 0;
}
