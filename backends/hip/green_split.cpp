// SPDX-License-Identifier: Apache-2.0
#include "backends/hip/green_split.h"

#include <algorithm>
#include <optional>

#include "backends/hip/status.h"

namespace vitamin::hip {
namespace {

// As the runtime counts: every bit that it deals, in order.
struct Runs {
  std::uint32_t length = 0;           // of each unit
  std::uint32_t over = 0;             // bits behind the last run
  std::optional<unsigned> over_unit;  // the unit that has them
};

std::vector<std::uint32_t> bits_of(const std::vector<std::uint32_t>& mask) {
  std::vector<std::uint32_t> bits;
  for (std::uint32_t bit = 0; bit < 32 * mask.size(); ++bit)
    if ((mask[bit / 32] >> bit % 32 & 1) != 0) bits.push_back(bit);
  return bits;
}

bool is_run(const std::vector<std::uint32_t>& bits, std::size_t first, std::size_t count) {
  return bits.size() >= count && bits[0] == first && bits[count - 1] == first + count - 1;
}

std::optional<Runs> runs_of(const MaskPlan& plan) {
  std::vector<std::vector<std::uint32_t>> units;
  for (unsigned unit = 0; unit < plan.units(); ++unit)
    units.push_back(bits_of(plan.mask(hal::ComputeSet::range(unit, 1))));
  Runs runs;
  runs.length = static_cast<std::uint32_t>(
      std::min_element(units.begin(), units.end(), [](const auto& a, const auto& b) {
        return a.size() < b.size();
      })->size());
  for (unsigned unit = 0; unit < units.size(); ++unit) {
    if (!is_run(units[unit], std::size_t{unit} * runs.length, runs.length)) return std::nullopt;
    if (units[unit].size() == runs.length) continue;
    if (runs.over_unit) return std::nullopt;
    runs.over_unit = unit;
    runs.over = static_cast<std::uint32_t>(units[unit].size()) - runs.length;
  }
  return runs;
}

bool has_all(const Api& api) {
  return api.hipDeviceGetDevResource != nullptr && api.hipDevSmResourceSplitByCount != nullptr &&
         api.hipDevResourceGenerateDesc != nullptr && api.hipGreenCtxCreate != nullptr &&
         api.hipExecutionCtxDestroy != nullptr && api.hipExecutionCtxStreamCreate != nullptr &&
         api.hipExtStreamGetCUMask != nullptr;
}

}  // namespace

hal::Result<GreenSplit> GreenSplit::make(const Api& api, int ordinal, const MaskPlan& plan) {
  if (!has_all(api))
    return hal::fail(hal::Errc::kUnavailable, "this runtime has no execution contexts");
  const auto unusable = [](const char* why) { return hal::fail(hal::Errc::kUnsupported, why); };
  const std::optional<Runs> runs = runs_of(plan);
  if (!runs) return unusable("the units of this device are no equal runs of compute units");
  const CurrentDevice current(api, ordinal);
  Resource whole;
  if (const hipError_t status = api.hipDeviceGetDevResource(ordinal, &whole, kComputeUnits);
      status != hipSuccess)
    return failed("the device does not tell its compute units", status);
  std::vector<Resource> groups(plan.units());
  Resource over;
  unsigned count = plan.units();
  if (const hipError_t status =
          api.hipDevSmResourceSplitByCount(groups.data(), &count, &whole, &over, 0, runs->length);
      status != hipSuccess)
    return failed("the device cannot be split", status);
  const bool as_planned = count == plan.units() && over.cus.count == runs->over &&
                          std::all_of(groups.begin(), groups.end(), [&](const Resource& group) {
                            return group.cus.count == runs->length;
                          });
  if (!as_planned) return unusable("the device is split into other groups than its units");

  GreenSplit split(api, ordinal);
  for (unsigned unit = 0; unit < plan.units(); ++unit) {
    split.units_.push_back({groups[unit]});
    if (runs->over_unit == unit) split.units_.back().push_back(over);
  }
  // The first unit and the last tell whether groups are where they are taken to be.
  for (const unsigned unit : {0U, plan.units() - 1})
    if (const auto right = split.check(hal::ComputeSet::range(unit, 1), plan); !right)
      return tl::unexpected(right.error());
  return split;
}

hal::Result<ExecutionContext> GreenSplit::create(hal::ComputeSet set) const {
  std::vector<Resource> adjacent;
  for (unsigned unit = 0; unit < units_.size(); ++unit)
    if (set.has(unit)) adjacent.insert(adjacent.end(), units_[unit].begin(), units_[unit].end());
  const CurrentDevice current(*api_, ordinal_);
  ResourceDescriptor descriptor = nullptr;
  hipError_t status = api_->hipDevResourceGenerateDesc(&descriptor, adjacent.data(),
                                                       static_cast<unsigned>(adjacent.size()));
  if (status != hipSuccess) return failed("no descriptor of these compute units", status);
  ExecutionContext context = nullptr;
  status = api_->hipGreenCtxCreate(&context, descriptor, ordinal_, 0);
  if (status != hipSuccess) return failed("an execution context cannot be created", status);
  return context;
}

hal::Status GreenSplit::check(hal::ComputeSet set, const MaskPlan& plan) const {
  const hal::Result<ExecutionContext> context = create(set);
  if (!context) return tl::unexpected(context.error());
  const std::vector<std::uint32_t> planned = plan.mask(set);
  std::vector<std::uint32_t> seen(planned.size());
  hipStream_t stream = nullptr;
  hipError_t status = api_->hipExecutionCtxStreamCreate(&stream, *context, hipStreamNonBlocking, 0);
  if (status == hipSuccess) {
    status =
        api_->hipExtStreamGetCUMask(stream, static_cast<std::uint32_t>(seen.size()), seen.data());
    static_cast<void>(api_->hipStreamDestroy(stream));
  }
  static_cast<void>(api_->hipExecutionCtxDestroy(*context));
  if (status != hipSuccess) return failed("a stream does not tell its compute units", status);
  if (seen != planned)
    return hal::fail(hal::Errc::kUnsupported,
                     "execution contexts do not have the compute units that were asked for");
  return {};
}

GreenContext::~GreenContext() {
  if (native_ != nullptr) static_cast<void>(api_.hipExecutionCtxDestroy(native_));
}

hal::Result<std::unique_ptr<hal::Queue>> GreenContext::create_queue(int priority) {
  if (native_ == nullptr) {
    const hal::Result<ExecutionContext> made = split_.create(compute());
    if (!made) return queues_.refused(static_cast<hipError_t>(made.error().native));
    native_ = *made;
  }
  return queues_.make([&](hipStream_t* stream) {
    return api_.hipExecutionCtxStreamCreate(stream, native_, hipStreamNonBlocking, priority);
  });
}

}  // namespace vitamin::hip
