// SPDX-License-Identifier: Apache-2.0
//
// demo-train [STEPS]: trains a two-layer perceptron on the legacy default stream, as a framework
// does in its simplest mode: a long chain of small kernels, each needing the one before. Prints a
// hash of the weights and of the loss after every step.
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "tools/demo/device.h"
#include "tools/demo/program.h"

namespace {

using vitamin::demo::DemoDevice;
using vitamin::demo::Kernel;
using vitamin::demo::Stream;

constexpr unsigned kRows = 64, kInputs = 64, kHidden = 128, kOutputs = 32;
constexpr unsigned kLossBlocks = kRows * kOutputs / 256;
constexpr float kRate = 0.05f;
constexpr Stream kStream = nullptr;

struct Kernels {
  explicit Kernels(const DemoDevice& d)
      : make_values(d.kernel("make_values")),
        layer(d.kernel("layer")),
        loss_gradient(d.kernel("loss_gradient")),
        reduce(d.kernel("reduce")),
        weight_gradient(d.kernel("weight_gradient")),
        input_gradient(d.kernel("input_gradient")),
        descend(d.kernel("descend")) {}
  Kernel make_values, layer, loss_gradient, reduce, weight_gradient, input_gradient, descend;
};

class Training {
 public:
  Training(DemoDevice& device, unsigned steps)
      : d_(device), k_(device), steps_(steps), losses_(d_.floats(steps)) {
    const auto random = [&](float* where, unsigned count, unsigned seed, float scale) {
      d_.launch(k_.make_values, count, kStream, where, count, seed, scale);
    };
    random(in_, kRows * kInputs, 1, 1.0f);
    random(wanted_, kRows * kOutputs, 2, 1.0f);
    random(weights1_, kInputs * kHidden, 3, 0.2f);
    random(weights2_, kHidden * kOutputs, 4, 0.2f);
    for (const auto& [momentum, count] :
         {std::pair(momentum1_, kInputs * kHidden), std::pair(momentum2_, kHidden * kOutputs)})
      d_.clear(momentum, count, kStream);
  }

  void step(unsigned number) {
    d_.launch(k_.layer, kRows * kHidden, kStream, in_, weights1_, hidden_, kRows, kInputs, kHidden,
              1u);
    d_.launch(k_.layer, kRows * kOutputs, kStream, hidden_, weights2_, out_, kRows, kHidden,
              kOutputs, 0u);
    d_.launch(k_.loss_gradient, kRows * kOutputs, kStream, out_, wanted_, out_gradient_, partial_,
              kRows * kOutputs);
    d_.launch(k_.reduce, 1, kStream, partial_, kLossBlocks, float{kRows * kOutputs},
              losses_ + number);
    d_.launch(k_.weight_gradient, kHidden * kOutputs, kStream, hidden_, out_gradient_, change2_,
              kRows, kHidden, kOutputs);
    d_.launch(k_.input_gradient, kRows * kHidden, kStream, out_gradient_, weights2_, hidden_,
              hidden_gradient_, kRows, kHidden, kOutputs);
    d_.launch(k_.weight_gradient, kInputs * kHidden, kStream, in_, hidden_gradient_, change1_,
              kRows, kInputs, kHidden);
    d_.launch(k_.descend, kHidden * kOutputs, kStream, weights2_, momentum2_, change2_,
              kHidden * kOutputs, kRate);
    d_.launch(k_.descend, kInputs * kHidden, kStream, weights1_, momentum1_, change1_,
              kInputs * kHidden, kRate);
  }

  // Both weight matrices, then the loss of every step.
  std::vector<float> result() const {
    std::vector<float> values(kInputs * kHidden + kHidden * kOutputs + steps_);
    float* to = values.data();
    for (const auto& [from, count] :
         {std::pair(weights1_, kInputs * kHidden), std::pair(weights2_, kHidden * kOutputs),
          std::pair(losses_, steps_)}) {
      d_.read(to, from, count);
      to += count;
    }
    return values;
  }

 private:
  DemoDevice& d_;
  Kernels k_;
  unsigned steps_;
  float* losses_;
  float *in_ = d_.floats(kRows * kInputs), *wanted_ = d_.floats(kRows * kOutputs);
  float *weights1_ = d_.floats(kInputs * kHidden), *weights2_ = d_.floats(kHidden * kOutputs);
  float* momentum1_ = d_.floats(kInputs * kHidden);
  float* momentum2_ = d_.floats(kHidden * kOutputs);
  float *change1_ = d_.floats(kInputs * kHidden), *change2_ = d_.floats(kHidden * kOutputs);
  float *hidden_ = d_.floats(kRows * kHidden), *hidden_gradient_ = d_.floats(kRows * kHidden);
  float *out_ = d_.floats(kRows * kOutputs), *out_gradient_ = d_.floats(kRows * kOutputs);
  float* partial_ = d_.floats(kLossBlocks);
};

}  // namespace

int main(int argc, char** argv) {
  const unsigned steps = vitamin::demo::count_argument(argc, argv, 300);
  DemoDevice device(vitamin::demo::Door::kSymbol);
  Training training(device, steps);
  const auto started = std::chrono::steady_clock::now();
  for (unsigned number = 0; number < steps; ++number) training.step(number);
  const std::vector<float> result = training.result();
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - started;
  std::printf("train: %u steps, loss %.6f after the first, %.6f after the last\n", steps,
              static_cast<double>(result[result.size() - steps]),
              static_cast<double>(result.back()));
  vitamin::demo::print_result("train", vitamin::demo::hash(result), device.launches(),
                              spent.count());
  return 0;
}
