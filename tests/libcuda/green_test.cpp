// SPDX-License-Identifier: Apache-2.0
//
// Green contexts as they were measured on an H200.
#include <algorithm>
#include <iterator>
#include <memory>
#include <set>

#include "fixture.h"

namespace vitamin::libcuda_tests {
namespace {

unsigned sms_of(const CUdevResource& resource) { return resource.sm.smCount; }

std::vector<unsigned> counts(const Split& split) {
  std::vector<unsigned> result;
  for (const CUdevResource& group : split.groups) result.push_back(sms_of(group));
  return result;
}

TEST_CASE("a co-scheduled split gives fifteen groups of eight and twelve SMs left") {
  const Primary primary;
  const Split split;
  CHECK_EQ(counts(split), std::vector<unsigned>(15, 8));
  CHECK_EQ(sms_of(split.rest), 12);
}

TEST_CASE("a split that ignores co-scheduling leaves four SMs, or none") {
  const Primary primary;
  const Split eights(8, kIgnoreCoscheduling);
  CHECK_EQ(counts(eights), std::vector<unsigned>(16, 8));
  CHECK_EQ(sms_of(eights.rest), 4);
  const Split pairs(2, kIgnoreCoscheduling);
  CHECK_EQ(counts(pairs), std::vector<unsigned>(66, 2));
  CHECK_EQ(pairs.rest.type, CU_DEV_RESOURCE_TYPE_INVALID);
}

TEST_CASE("a split for large clusters gives 5 groups of 24, 4 of 32 or 2 of 64") {
  const Primary primary;
  constexpr unsigned kFlag = kMaxPotentialClusterSize;
  const Split small(24, kFlag), middle(32, kFlag), large(64, kFlag);
  CHECK_EQ(counts(small), std::vector<unsigned>(5, 24));
  CHECK_EQ(sms_of(small.rest), 12);
  CHECK_EQ(counts(middle), std::vector<unsigned>(4, 32));
  CHECK_EQ(sms_of(middle.rest), 4);
  CHECK_EQ(counts(large), std::vector<unsigned>(2, 64));
  CHECK_EQ(sms_of(large.rest), 4);
}

TEST_CASE("a request that the device cannot meet is refused") {
  const Primary primary;
  CUdevResource whole, group, rest;
  REQUIRE_OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
  CHECK_EQ(sms_of(whole), 132);
  unsigned count = 1;
  CHECK_RESULT(cuDevSmResourceSplitByCount(&group, &count, &whole, &rest, 0, 133),
               CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
  count = 1;
  REQUIRE_OK(cuDevSmResourceSplitByCount(&group, &count, &whole, &rest, 0, 11));
  CHECK_EQ(sms_of(group), 16);
  CHECK_EQ(sms_of(rest), 116);
  count = 1;
  CHECK_RESULT(cuDevSmResourceSplitByCount(&whole, &count, &group, &rest, 0, 8),
               CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
}

TEST_CASE("with a null result the split only counts") {
  const Primary primary;
  CUdevResource whole;
  REQUIRE_OK(cuDeviceGetDevResource(0, &whole, CU_DEV_RESOURCE_TYPE_SM));
  unsigned count = 0;
  REQUIRE_OK(cuDevSmResourceSplitByCount(nullptr, &count, &whole, nullptr, 0, 8));
  CHECK_EQ(count, 15);
}

TEST_CASE("groups of 16 and 32 SMs use all but four") {
  const Primary primary;
  const Split sixteens(16), thirties(32);
  CHECK_EQ(counts(sixteens), std::vector<unsigned>(8, 16));
  CHECK_EQ(sms_of(sixteens.rest), 4);
  CHECK_EQ(counts(thirties), std::vector<unsigned>(4, 32));
}

TEST_CASE("a descriptor takes the same SMs twice, and pieces of two splits") {
  const Primary primary;
  const Split first, second;
  const Green twice({first.groups[0], first.groups[0]});
  const Green mixed({first.groups[0], second.groups[1]});
  CUdevResource resource;
  REQUIRE_OK(cuGreenCtxGetDevResource(twice.get(), &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK_EQ(sms_of(resource), 8);
  REQUIRE_OK(cuGreenCtxGetDevResource(mixed.get(), &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK_EQ(sms_of(resource), 16);
}

TEST_CASE("making a green context waits for what runs in the primary context") {
  const Primary primary;
  const Kernels kernels;
  Split split;
  const DeviceWords words(1);
  REQUIRE_OK(launch(kernels["slow_add"], nullptr, {}, words.get(), 1u, std::uint64_t{3'000'000}));
  const Green green({split.groups[0]});
  CHECK_EQ(words.now(), 1);
}

std::set<std::uint32_t> sms_used(CUfunction where, CUstream stream, const DeviceWords& words) {
  constexpr unsigned kBlocks = 528;
  REQUIRE_OK(launch(where, stream, {kBlocks, 1024, 0}, words.get()));
  REQUIRE_OK(cuStreamSynchronize(stream));
  const std::vector<std::uint32_t> seen = words.all();
  return {seen.begin(), seen.begin() + kBlocks};
}

TEST_CASE("a kernel stays on the SMs of its green context, and disjoint ones share none") {
  const Primary primary;
  const Kernels kernels;
  const Split split;
  const Green left({split.groups[0]}), right({split.groups[7], split.rest});
  const DeviceWords words(528);
  CUfunction where = kernels["where"];
  const auto on_left = sms_used(where, left.stream(), words);
  const auto on_right = sms_used(where, right.stream(), words);
  CHECK_EQ(on_left.size(), 8);
  CHECK_EQ(on_right.size(), 20);
  std::vector<std::uint32_t> both;
  std::set_intersection(on_left.begin(), on_left.end(), on_right.begin(), on_right.end(),
                        std::back_inserter(both));
  CHECK(both.empty());
  CHECK_EQ(sms_used(where, nullptr, words).size(), 132);
}

TEST_CASE("where blocks run depends on the SMs, and a kernel that shows it gives another answer") {
  const Primary primary;
  const Kernels kernels;
  const Split split;
  const Green narrow({split.groups[0]});
  const DeviceWords words(2);
  std::set<std::uint64_t> answers;
  for (CUstream stream : {CUstream{nullptr}, narrow.stream()}) {
    REQUIRE_OK(cuMemsetD32(words.get(), 0, 2));
    REQUIRE_OK(cuCtxSynchronize());
    REQUIRE_OK(launch(kernels["order_of_blocks"], stream, {64, 32, 0}, words.get()));
    REQUIRE_OK(cuStreamSynchronize(stream));
    answers.insert(*reinterpret_cast<const std::uint64_t*>(words.get()));
  }
  CHECK_EQ(answers.size(), 2);
}

TEST_CASE("inside a green context the device still says 132 SMs, the context says its own") {
  const Primary primary;
  const Split split;
  const Green green({split.groups[0]});
  REQUIRE_OK(cuCtxPushCurrent(green.context()));
  int count = 0;
  REQUIRE_OK(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  CHECK_EQ(count, 132);
  CUdevResource resource;
  REQUIRE_OK(cuCtxGetDevResource(green.context(), &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK_EQ(sms_of(resource), 8);
  REQUIRE_OK(cuGreenCtxGetDevResource(green.get(), &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK_EQ(sms_of(resource), 8);
  REQUIRE_OK(cuCtxPopCurrent(nullptr));
  REQUIRE_OK(cuCtxGetDevResource(primary.get(), &resource, CU_DEV_RESOURCE_TYPE_SM));
  CHECK_EQ(sms_of(resource), 132);
}

TEST_CASE("a green stream names its green context, other streams name none") {
  const Primary primary;
  const Split split;
  const Green green({split.groups[0]});
  const Stream stream;
  CUgreenCtx of_stream = nullptr;
  REQUIRE_OK(cuStreamGetGreenCtx(green.stream(), &of_stream));
  CHECK_EQ(of_stream, green.get());
  REQUIRE_OK(cuStreamGetGreenCtx(stream, &of_stream));
  CHECK_EQ(of_stream, nullptr);
  CUcontext context = nullptr;
  REQUIRE_OK(cuStreamGetCtx(green.stream(), &context));
  CHECK_EQ(context, green.context());
}

TEST_CASE("green contexts and their streams must be made with the flags that the API demands") {
  const Primary primary;
  Split split;
  CUdevResourceDesc descriptor;
  REQUIRE_OK(cuDevResourceGenerateDesc(&descriptor, split.groups.data(), 1));
  CUgreenCtx green;
  CHECK_RESULT(cuGreenCtxCreate(&green, descriptor, 0, 0), CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuGreenCtxCreate(&green, descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUstream stream;
  CHECK_RESULT(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0),
               CUDA_ERROR_INVALID_VALUE);
  REQUIRE_OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  REQUIRE_OK(cuGreenCtxDestroy(green));
  CHECK_RESULT(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK_RESULT(cuStreamDestroy(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

TEST_CASE("a green context holds the primary context") {
  REQUIRE_OK(cuInit(0));
  unsigned flags;
  int active;
  {
    CUcontext context;
    REQUIRE_OK(cuDevicePrimaryCtxRetain(&context, 0));
    const Split split;
    const Green green({split.groups[0]});
    REQUIRE_OK(cuDevicePrimaryCtxRelease(0));
    REQUIRE_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK_EQ(active, 1);
  }
  REQUIRE_OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
  CHECK_EQ(active, 0);
}

TEST_CASE("four hundred green contexts can be made") {
  const Primary primary;
  const Split split;
  std::vector<std::unique_ptr<Green>> greens;
  for (unsigned i = 0; i < 400; ++i)
    greens.push_back(std::make_unique<Green>(std::vector<CUdevResource>{split.groups[i % 15]}));
  CHECK_EQ(greens.size(), 400);
}

}  // namespace
}  // namespace vitamin::libcuda_tests
