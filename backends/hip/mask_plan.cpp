// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/mask_plan.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "backends/hip/version.h"

namespace vitamin::hip {
namespace {

constexpr std::uint32_t kCusPerArrayMax = 16;  // of the registers that a mask is written to

// What a bit means on a part with pairs. 5.2 and 5.7 were run on the software GPU, 5.6 was read.
constexpr int kBitIsCuBefore = hip_version(5, 3);
constexpr int kBitIsPairFrom = hip_version(5, 6);

// What is left of `whole` for the part `index` of `count` when it is dealt evenly.
std::uint32_t share(std::uint32_t whole, std::uint32_t index, std::uint32_t count) {
  return whole / count + (index < whole % count ? 1 : 0);
}

}  // namespace

std::uint32_t DeviceShape::total() const { return std::accumulate(cus.begin(), cus.end(), 0U); }

DeviceShape DeviceShape::even(std::uint32_t xccs, std::uint32_t engines, std::uint32_t arrays,
                              std::uint32_t cus, bool pairs) {
  DeviceShape shape{xccs, engines, arrays, {}, pairs};
  shape.cus.resize(std::size_t{xccs} * engines * arrays);
  const std::uint32_t together = pairs ? 2 : 1;
  for (std::uint32_t x = 0; x < xccs; ++x) {
    const std::uint32_t of_xcc = share(cus / together, x, xccs);
    for (std::uint32_t e = 0; e < engines; ++e)
      for (std::uint32_t a = 0; a < arrays; ++a)
        // Engines first: the array is the slower index, as in the order of bits.
        shape.at(x, e, a) = together * share(of_xcc, a * engines + e, engines * arrays);
  }
  return shape;
}

std::vector<MaskBit> mask_order(const DeviceShape& shape) {
  const std::uint32_t together = shape.pairs ? 2 : 1;
  std::uint32_t whole = 0;  // a CU without its partner is never enabled
  for (const std::uint32_t active : shape.cus) whole += active / together * together;
  std::vector<MaskBit> order(whole);
  for (std::uint32_t xcc = 0; xcc < shape.xccs; ++xcc) {
    std::size_t bit = std::size_t{xcc} * together;
    for (std::uint32_t cu = 0; cu < kCusPerArrayMax; cu += together)
      for (std::uint32_t array = 0; array < shape.arrays; ++array)
        for (std::uint32_t engine = 0; engine < shape.engines; ++engine) {
          if (shape.at(xcc, engine, array) < cu + together) continue;
          for (std::uint32_t i = 0; i < together && bit + i < order.size(); ++i)
            order[bit + i] = {{xcc, engine, array, cu + i}, true};
          bit += std::size_t{together} * shape.xccs;
        }
  }
  return order;
}

hal::Result<MaskPlan> MaskPlan::make(const DeviceShape& shape, int hip_version) {
  if (shape.pairs && hip_version >= kBitIsCuBefore && hip_version < kBitIsPairFrom)
    return hal::fail(hal::Errc::kUnavailable,
                     "it is not known whether a bit of a CU mask is a CU or a workgroup processor "
                     "to this runtime (HIP " +
                         std::to_string(hip_version / 10'000'000) + "." +
                         std::to_string(hip_version / 100'000 % 100) +
                         "; use 5.2, or 5.6 or later)");
  // Rows by (CU, array), in the order of their bits.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> rows;
  std::set<std::pair<std::uint32_t, std::uint32_t>> engines;
  const std::vector<MaskBit> order = mask_order(shape);
  for (std::uint32_t bit = 0; bit < order.size(); ++bit) {
    if (!order[bit].real) continue;
    const CuPosition& place = order[bit].place;
    rows[{place.cu / (shape.pairs ? 2 : 1), place.array}].push_back(bit);
    engines.insert({place.xcc, place.engine});
  }
  std::vector<std::vector<std::uint32_t>> complete, rest;
  for (auto& [key, bits] : rows) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> covered;
    for (const std::uint32_t bit : bits)
      covered.insert({order[bit].place.xcc, order[bit].place.engine});
    (covered.size() == engines.size() ? complete : rest).push_back(std::move(bits));
  }
  if (complete.empty())
    return hal::fail(hal::Errc::kUnsupported,
                     "no row of compute units covers every shader engine (" +
                         std::to_string(shape.total()) + " CUs in " +
                         std::to_string(shape.xccs * shape.engines) + " engines)");
  for (std::size_t i = 0; i < rest.size(); ++i) {
    auto& unit = complete[complete.size() - 1 - i % complete.size()];
    const auto& row = rest[rest.size() - 1 - i];
    unit.insert(unit.end(), row.begin(), row.end());
  }

  MaskPlan plan;
  plan.bits_ = static_cast<std::uint32_t>(order.size());
  plan.pairs_ = shape.pairs;
  plan.bit_is_pair_ = shape.pairs && hip_version >= kBitIsPairFrom;
  const std::size_t rows_per_unit =
      (complete.size() + hal::ComputeSet::kMaxUnits - 1) / hal::ComputeSet::kMaxUnits;
  for (std::size_t i = 0; i < complete.size(); ++i) {
    if (i % rows_per_unit == 0) plan.units_.emplace_back();
    auto& unit = plan.units_.back();
    unit.insert(unit.end(), complete[i].begin(), complete[i].end());
  }
  for (auto& unit : plan.units_) std::sort(unit.begin(), unit.end());
  return plan;
}

std::vector<std::uint32_t> MaskPlan::sms_per_unit() const {
  std::vector<std::uint32_t> result;
  for (const auto& unit : units_)
    result.push_back(static_cast<std::uint32_t>(unit.size()) / (pairs_ ? 2 : 1));
  return result;
}

std::vector<std::uint32_t> MaskPlan::mask(hal::ComputeSet set) const {
  assert(!set.empty() && hal::ComputeSet::range(0, units()).contains(set));
  const std::uint32_t divisor = bit_is_pair_ ? 2 : 1;
  std::vector<std::uint32_t> words((bits_ / divisor + 31) / 32);
  for (unsigned unit = 0; unit < units(); ++unit) {
    if (!set.has(unit)) continue;
    for (const std::uint32_t bit : units_[unit])
      words[bit / divisor / 32] |= 1U << (bit / divisor % 32);
  }
  return words;
}

}  // namespace vitamin::hip
