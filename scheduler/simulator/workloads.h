// SPDX-License-Identifier: Apache-2.0
//
// What runs in the simulator: the jobs that were measured on an H200, as streams of kernels.
//
// Measured there (one H200, 132 SMs, PyTorch 2.11): kernels a step, wall time, share of time that
// the GPU is busy, quantiles of kernel times, 1.6 us between dependent kernels, 790 TFLOP/s bf16,
// 4.1 TB/s. Computed: sizes and operations of Llama-3.1-8B's layers, 13 launches a layer (a decoder
// without eager Python's launches). ASSUMED, since it was not measured: memory-bound kernels stop
// gaining at 72 SMs; kernels of a training step use more SMs the longer they take
// (8 up to 2 us, all from 30 us on).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "hal/device.h"
#include "hal/result.h"
#include "runtime/profile/profile.h"
#include "scheduler/simulator/program.h"

namespace vitamin::sim {

inline constexpr double kBandwidth = 4.1e12;        // bytes/s
inline constexpr double kFlops = 790e12;            // bf16
inline constexpr double kKvBytesPerToken = 131072;  // Llama-3.1-8B: 32 layers, 8 heads of 128, bf16
inline constexpr std::uint32_t kPrefillChunk = 2048;
inline constexpr std::uint32_t kDecodeBatch = 64;

hal::DeviceInfo h200();

class ModelLibrary {
 public:
  explicit ModelLibrary(std::uint32_t sms) : sms_(sms) {}
  // One decode step of `batch` requests that have `context` tokens together. Sizes are rounded to
  // a grid of about 6 % so that few programs are made.
  const Program& decode(std::uint32_t batch, std::uint64_t context);
  // `tokens` (<= kPrefillChunk) of a prompt behind `before` of its tokens.
  const Program& prefill(std::uint32_t tokens, std::uint32_t before);
  // One of training_names(); null: unknown.
  const Program* training(const std::string& name);
  static std::vector<std::string> training_names();
  // What a profile learnt from all of them would hold, at every width of the layout.
  void measure(runtime::Profile& profile, const runtime::PoolLayout& layout);

 private:
  using Programs = std::unordered_map<std::uint64_t, std::unique_ptr<Program>>;
  std::uint32_t sms_;
  Programs programs_;
};

}  // namespace vitamin::sim
