// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/workloads.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace vitamin::sim {
namespace {

using scheduler::StepKind;

// Profiles know a size class (its power of two); the policies see the time of a step beside it.
constexpr std::uint64_t kDecodeKey = 0xd000, kPrefillKey = 0xf000;

constexpr unsigned kLayers = 32;
constexpr float kMemoryBoundUseful = 72;  // assumed
constexpr float kSmallNs = 1700;          // half of a decode step's kernels are shorter (measured)

// Parameters of one layer's four matrices (qkv, o, gate and up, down) and of the head.
constexpr std::array<double, 4> kMatrices = {4096.0 * 6144, 4096.0 * 4096, 4096.0 * 28672,
                                             14336.0 * 4096};
constexpr double kHead = 128256.0 * 4096;

ModelKernel small() { return {kSmallNs, 1200, 8, 0}; }

// A product of a (tokens x k) with a (k x n) matrix: bound by its weights or by its operations.
ModelKernel product(double parameters, double tokens) {
  const double memory_ns = parameters * 2 / kBandwidth * 1e9;
  const double compute_ns = 2 * parameters * tokens / kFlops * 1e9;
  if (memory_ns > compute_ns)
    return {static_cast<float>(memory_ns + 1000), 1000, kMemoryBoundUseful, 0};
  // Tiles of 128 x 256: fewer tiles than SMs leave some of them idle.
  const double columns = parameters / 4096;
  const double tiles = std::ceil(tokens / 128) * std::ceil(columns / 256);
  const auto useful = static_cast<float>(std::clamp(tiles, 8.0, 1e6));
  return {static_cast<float>(compute_ns + 1000), 1000, useful, 0};
}

ModelKernel streaming(double bytes) {
  const double ns = bytes / kBandwidth * 1e9;
  return {static_cast<float>(ns + 1200), 1200, kMemoryBoundUseful, 0};
}

// On a grid whose steps are about 6 %.
std::uint64_t rounded(std::uint64_t value) {
  const unsigned bits = static_cast<unsigned>(std::bit_width(value));
  if (bits <= 4) return value;
  const std::uint64_t step = std::uint64_t{1} << (bits - 4);
  return (value + step / 2) / step * step;
}

struct Measured {
  const char* name;
  std::uint64_t key;
  double wall_ns;
  unsigned kernels;
  double busy;                      // share of the wall time
  std::array<double, 5> quantiles;  // p0, p10, p50, p90, max of kernel times, ns
  double bytes;                     // moved in a step: assumed, half of the bandwidth while busy
};

constexpr Measured kTraining[] = {
    {"resnet152", 0x7261696e'0001ULL, 61e6, 2576, 0.55, {600, 800, 5500, 31000, 712e3}, 6.9e10},
    {"qwen3-0.6b",
     0x7261696e'0002ULL,
     117e6,
     4700,
     0.75,
     {900, 1200, 11500, 33000, 3268e3},
     1.8e11},
    // The evaluation's (E0): the quantiles are those of the one above.
    {"d0.6", 0x7261696e'0003ULL, 95.9e6, 5001, 0.727, {900, 1200, 11500, 33000, 3268e3}, 1.8e11},
    {"q8", 0x7261696e'0004ULL, 266.9e6, 8493, 0.848, {900, 1200, 11500, 33000, 3268e3}, 4.6e11}};

// Times by the measured quantiles (log-linear between them), their tail bent so that they add up to
// the measured busy time, in an order that repeats as layers do.
std::vector<ModelKernel> training_kernels(const Measured& measured, std::uint32_t sms) {
  constexpr std::array<double, 5> kAt = {0, 0.1, 0.5, 0.9, 1};
  std::vector<double> times(measured.kernels);
  auto fill = [&](double tail) {
    double sum = 0;
    for (unsigned i = 0; i < measured.kernels; ++i) {
      const double at = (i + 0.5) / measured.kernels;
      unsigned k = 0;
      while (at > kAt[k + 1]) ++k;
      double part = (at - kAt[k]) / (kAt[k + 1] - kAt[k]);
      if (k == 3) part = std::pow(part, tail);
      times[i] =
          measured.quantiles[k] * std::pow(measured.quantiles[k + 1] / measured.quantiles[k], part);
      sum += times[i];
    }
    return sum;
  };
  double low = 0.2, high = 50;
  for (int i = 0; i < 60; ++i)
    (fill((low + high) / 2) > measured.busy * measured.wall_ns ? low : high) = (low + high) / 2;
  // The host's pace that makes the step last as long as it did.
  auto wall = [&](double host) {
    double sum = 0;
    for (const double time : times) sum += std::max(time + static_cast<double>(kGapNs), host);
    return sum;
  };
  double least = 0, most = 1e6;
  for (int i = 0; i < 60; ++i)
    (wall((least + most) / 2) < measured.wall_ns ? least : most) = (least + most) / 2;

  std::vector<ModelKernel> kernels;
  for (unsigned i = 0; i < measured.kernels; ++i) {
    const auto ns = static_cast<float>(times[i * 997ULL % measured.kernels]);
    const float share = std::clamp((ns - 2000) / 28000, 0.0F, 1.0F);
    const float useful = 8 + share * (static_cast<float>(sms) - 8);
    kernels.push_back({ns, std::min(ns / 2, 1200.0F), useful, static_cast<float>(most)});
  }
  return kernels;
}

}  // namespace

hal::DeviceInfo h200() {
  hal::DeviceInfo info;
  info.sms_per_unit.assign(15, 8);
  info.sms_per_unit.push_back(12);
  info.sms = 132;
  return info;
}

const Program& ModelLibrary::decode(std::uint32_t batch, std::uint64_t context) {
  batch = static_cast<std::uint32_t>(rounded(batch));
  context = rounded(std::max<std::uint64_t>(context, 1));
  const std::uint64_t key = kDecodeKey + static_cast<std::uint64_t>(std::bit_width(batch));
  const auto [at, fresh] =
      programs_.try_emplace(kDecodeKey << 48 | std::uint64_t{batch} << 32 | context);
  if (!fresh) return *at->second;
  const double tokens = batch;
  const double kv = static_cast<double>(context) * kKvBytesPerToken / kLayers;
  std::vector<ModelKernel> kernels;
  double bytes = 0;
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    for (unsigned matrix = 0; matrix < kMatrices.size(); ++matrix) {
      kernels.push_back(small());
      kernels.push_back(product(kMatrices[matrix], tokens));
      kernels.push_back(small());
      if (matrix == 0) kernels.push_back(streaming(kv));
      bytes += kMatrices[matrix] * 2;
    }
    bytes += kv;
  }
  kernels.push_back(small());
  kernels.push_back(product(kHead, tokens));
  kernels.push_back(small());
  bytes += kHead * 2;
  at->second =
      std::make_unique<Program>(key, "decode", StepKind::kDecode, std::move(kernels), bytes, sms_);
  return *at->second;
}

const Program& ModelLibrary::prefill(std::uint32_t tokens, std::uint32_t before) {
  tokens = static_cast<std::uint32_t>(rounded(std::max(tokens, 1U)));
  before = static_cast<std::uint32_t>(rounded(before));
  const std::uint64_t key = kPrefillKey + static_cast<std::uint64_t>(std::bit_width(tokens));
  const auto [at, fresh] =
      programs_.try_emplace(kPrefillKey << 48 | std::uint64_t{tokens} << 32 | before);
  if (!fresh) return *at->second;
  const double n = tokens;
  // Scores and values of causal attention, 4096 wide, two operations each.
  const double attention_ns = 4 * 4096 * n * (before + n / 2) / (0.5 * kFlops) * 1e9;
  const double activations = n * 4096 * 2 * 3;
  std::vector<ModelKernel> kernels;
  double bytes = 0;
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    for (unsigned matrix = 0; matrix < kMatrices.size(); ++matrix) {
      kernels.push_back(streaming(activations));
      kernels.push_back(product(kMatrices[matrix], n));
      kernels.push_back(streaming(activations));
      if (matrix == 0)
        kernels.push_back({static_cast<float>(attention_ns + 2000), 2000,
                           static_cast<float>(std::clamp(n / 128 * 32, 8.0, 1e6)), 0});
      bytes += kMatrices[matrix] * 2 + 2 * activations;
    }
  }
  kernels.push_back(product(kHead, 1));
  at->second = std::make_unique<Program>(key, "prefill", StepKind::kPrefill, std::move(kernels),
                                         bytes, sms_);
  return *at->second;
}

const Program* ModelLibrary::training(const std::string& name) {
  for (const Measured& measured : kTraining) {
    if (name != measured.name) continue;
    const auto [at, fresh] = programs_.try_emplace(measured.key);
    if (fresh)
      at->second =
          std::make_unique<Program>(measured.key, name, StepKind::kUnknown,
                                    training_kernels(measured, sms_), measured.bytes, sms_);
    return at->second.get();
  }
  return nullptr;
}

void ModelLibrary::measure(runtime::Profile& profile, const runtime::PoolLayout& layout) {
  std::vector<const Program*> programs;
  for (std::uint32_t batch = 1; batch <= kDecodeBatch; batch *= 2)
    programs.push_back(&decode(batch, std::uint64_t{batch} * 1500));
  for (std::uint32_t tokens = 1; tokens <= kPrefillChunk; tokens *= 2)
    programs.push_back(&prefill(tokens, 0));
  for (const std::string& name : training_names()) programs.push_back(training(name));
  for (const Program* program : programs) {
    profile.describe(program->key(), program->name(), 0, 0);
    for (const runtime::Partition& partition : layout.partitions())
      profile.merge(program->key(), {partition.sms, 100, program->total_ns(partition.sms), 0});
  }
}

std::vector<std::string> ModelLibrary::training_names() {
  std::vector<std::string> names;
  for (const Measured& measured : kTraining) names.emplace_back(measured.name);
  return names;
}

}  // namespace vitamin::sim
