// SPDX-License-Identifier: Apache-2.0
//
// Device resources and green contexts, as measured on an H200 with a driver of CUDA 13.0: a
// co-scheduled split gives 15 groups of 8 SMs and 12 left over, clusters of up to 8; a split that
// ignores co-scheduling uses every SM but holds clusters of 2 at most; a split for large clusters
// holds clusters of 16 in groups of 24 SMs and more.

#include "backends/soft/libcuda/green.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/events.h"

namespace vitamin::soft::driver {
namespace {

constexpr std::uint32_t kCoscheduledSms = 8;    // the smallest co-scheduled group of cc 9.0
constexpr std::uint32_t kPairSms = 2;           // one TPC
constexpr std::uint32_t kLargeClusterSms = 24;  // the smallest group that holds a cluster of 16

// CU_DEV_SM_RESOURCE_SPLIT_*, which have no names before CUDA 12.5.
constexpr unsigned kIgnoreCoscheduling = 1;
constexpr unsigned kMaxPotentialClusterSize = 2;

enum class SplitStyle : std::uint8_t { kWhole, kCoscheduled, kPairs, kLargeClusters };

// What CUdevResource carries in the bytes that belong to the driver.
struct Encoded {
  static constexpr std::uint32_t kMagic = 0x56534d31;
  std::uint32_t magic = 0;
  std::uint32_t split = 0;
  std::int32_t device = 0;
  SplitStyle style = SplitStyle::kWhole;
  std::uint8_t unused[3]{};
  std::uint32_t group_sms = 0;
  std::uint32_t reserved = 0;
  std::uint64_t sms[3]{};
};
static_assert(sizeof(Encoded) <= sizeof(CUdevResource::_internal_padding));

SmSet sms_of(const Encoded& encoded) {
  SmSet set;
  for (unsigned sm = 0; sm < 192; ++sm)
    if ((encoded.sms[sm / 64] >> sm % 64 & 1) != 0) set.add(sm);
  return set;
}

CUdevResource make_resource(Encoded encoded, const SmSet& sms) {
  encoded.magic = Encoded::kMagic;
  for (unsigned word = 0; word < 3; ++word) encoded.sms[word] = sms.words()[word];
  CUdevResource resource;
  std::memset(&resource, 0, sizeof resource);
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm.smCount = sms.count();
#if CUDA_VERSION >= 13000
  const std::uint32_t step = encoded.style == SplitStyle::kPairs ? kPairSms : kCoscheduledSms;
  resource.sm.minSmPartitionSize = step;
  resource.sm.smCoscheduledAlignment = step;
#endif
  std::memcpy(resource._internal_padding, &encoded, sizeof encoded);
  return resource;
}

bool decode(const CUdevResource& resource, Encoded* encoded) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return false;
  std::memcpy(encoded, resource._internal_padding, sizeof *encoded);
  return encoded->magic == Encoded::kMagic && driver().device(encoded->device) != nullptr;
}

// How one split lays its groups over the SMs.
struct SplitPlan {
  std::uint32_t groups = 0;
  std::uint32_t group_sms = 0;
};

// Measured, with and without the flag for large clusters: fifteen groups of 8, but eight of 16 and
// four of 32: the smallest groups leave out the SMs that have no seven neighbours.
SplitPlan plan_split(const DeviceDescription& about, SplitStyle style, std::uint32_t minimum,
                     std::uint32_t wanted) {
  const std::uint32_t step = style == SplitStyle::kPairs ? kPairSms : kCoscheduledSms;
  SplitPlan plan;
  plan.group_sms = std::max(step, (minimum + step - 1) / step * step);
  std::uint32_t possible = about.sms() / plan.group_sms;
  if (style != SplitStyle::kPairs && plan.group_sms == kCoscheduledSms)
    possible = static_cast<std::uint32_t>(
        std::count(about.unit_sms.begin(), about.unit_sms.end(), kCoscheduledSms));
  plan.groups = std::min(wanted, possible);
  return plan;
}

// The pieces of a set of SMs that lie together: a cluster fits into one of them.
std::vector<SmSet> pieces(const SmSet& sms, const std::vector<SmSet>& neighbourhoods) {
  std::vector<SmSet> result;
  for (const SmSet& neighbourhood : neighbourhoods)
    if (sms.overlaps(neighbourhood)) result.push_back(sms & neighbourhood);
  return result;
}

// The SmResource of one piece of a split.
SmResource describe(const Device& device, const Encoded& encoded) {
  const DeviceDescription& about = device.engine->device();
  if (encoded.style == SplitStyle::kWhole) return whole_device(device);
  SmResource resource;
  resource.sms = sms_of(encoded);
  resource.split = encoded.split;
  if (encoded.style == SplitStyle::kPairs) {
    std::vector<SmSet> pairs;
    for (std::uint32_t sm = 0; sm + 1 < about.sms(); sm += kPairSms)
      pairs.push_back(SmSet::range(sm, kPairSms));
    resource.max_cluster = kPairSms;
    resource.cluster_groups = pieces(resource.sms, pairs);
  } else if (encoded.style == SplitStyle::kLargeClusters && encoded.group_sms >= kLargeClusterSms) {
    resource.max_cluster = about.max_cluster_whole;
    resource.cluster_groups = pieces(resource.sms, about.whole_rule().groups);
  } else {
    resource.max_cluster = about.max_cluster_in_unit;
    resource.cluster_groups = pieces(resource.sms, about.unit_rule().groups);
  }
  return resource;
}

CUdevResource whole_resource(const Device& device) {
  Encoded encoded;
  encoded.device = device.ordinal;
  return make_resource(encoded, device.engine->device().all());
}

// The resource that a context runs on, in the caller's words. A union keeps its SMs; it can be
// looked at and not split again.
CUdevResource resource_of(const Context& context) {
  if (context.resource.split == 0) return whole_resource(*context.device);
  Encoded encoded;
  encoded.device = context.device->ordinal;
  encoded.split = context.resource.split;
  encoded.style = SplitStyle::kCoscheduled;
  return make_resource(encoded, context.resource.sms);
}

GreenContext* find_green(CUgreenCtx handle) {
  return driver().find<GreenContext>(handle, Kind::kGreenContext);
}

CUresult resolve_green(CUgreenCtx handle, GreenContext** green) {
  *green = find_green(handle);
  if (*green == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!(*green)->context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return sticky_error(*(*green)->context);
}

}  // namespace

SmResource whole_device(const Device& device) {
  const DeviceDescription& about = device.engine->device();
  const ClusterRule rule = about.whole_rule();
  return SmResource{about.all(), rule.groups, rule.max_blocks, 0};
}

CUresult api::cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* resource,
                                     CUdevResourceType type) {
  const Device* device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = whole_resource(*device);
  return CUDA_SUCCESS;
}

CUresult api::cuCtxGetDevResource(CUcontext handle, CUdevResource* resource,
                                  CUdevResourceType type) {
  const std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (const CUresult error = resolve_context(handle, &context); error != CUDA_SUCCESS) return error;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = resource_of(*context);
  return CUDA_SUCCESS;
}

CUresult api::cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource* resource,
                                       CUdevResourceType type) {
  const std::lock_guard lock(driver().mutex);
  GreenContext* green = nullptr;
  if (const CUresult error = resolve_green(handle, &green); error != CUDA_SUCCESS) return error;
  if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  *resource = resource_of(*green->context);
  return CUDA_SUCCESS;
}

CUresult api::cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* groups,
                                          const CUdevResource* input, CUdevResource* remaining,
                                          unsigned flags, unsigned minimum) {
  constexpr unsigned kFlags = kIgnoreCoscheduling | kMaxPotentialClusterSize;
  if (groups == nullptr || input == nullptr || (flags & ~kFlags) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (input->type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  Encoded whole;
  if (!decode(*input, &whole)) return CUDA_ERROR_INVALID_VALUE;
  if (whole.style != SplitStyle::kWhole) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;

  const std::lock_guard lock(driver().mutex);
  const DeviceDescription& about = driver().device(whole.device)->engine->device();
  Encoded piece = whole;
  piece.style = (flags & kIgnoreCoscheduling) != 0        ? SplitStyle::kPairs
                : (flags & kMaxPotentialClusterSize) != 0 ? SplitStyle::kLargeClusters
                                                          : SplitStyle::kCoscheduled;
  const std::uint32_t wanted = result == nullptr ? about.sms() : *groups;
  const SplitPlan plan = plan_split(about, piece.style, minimum, wanted);
  if (plan.groups == 0) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
  piece.split = driver().next_split++;
  piece.group_sms = plan.group_sms;
  if (result != nullptr) {
    for (std::uint32_t i = 0; i < plan.groups; ++i)
      result[i] = make_resource(piece, SmSet::range(i * plan.group_sms, plan.group_sms));
  }
  if (remaining != nullptr) {
    const std::uint32_t used = plan.groups * plan.group_sms;
    if (used == about.sms()) {
      std::memset(remaining, 0, sizeof *remaining);
    } else {
      *remaining = make_resource(piece, SmSet::range(used, about.sms() - used));
    }
  }
  *groups = plan.groups;
  return CUDA_SUCCESS;
}

CUresult api::cuDevResourceGenerateDesc(CUdevResourceDesc* handle, CUdevResource* resources,
                                        unsigned count) {
  if (handle == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(driver().mutex);
  auto descriptor = std::make_unique<ResourceDescriptor>();
  for (unsigned i = 0; i < count; ++i) {
    Encoded encoded;
    if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (!decode(resources[i], &encoded)) return CUDA_ERROR_INVALID_VALUE;
    SmResource piece = describe(*driver().device(encoded.device), encoded);
    if (i == 0) {
      descriptor->resource = std::move(piece);
      continue;
    }
    // The header asks for resources of one split; measured: the driver does not insist, nor mind
    // the same SMs twice.
    SmResource& sum = descriptor->resource;
    sum.sms = sum.sms | piece.sms;
    sum.cluster_groups.insert(sum.cluster_groups.end(), piece.cluster_groups.begin(),
                              piece.cluster_groups.end());
    sum.max_cluster = std::max(sum.max_cluster, piece.max_cluster);
  }
  // Descriptors are never given back, so those of the same resources are the same.
  for (ResourceDescriptor* known : driver().descriptors) {
    if (!known->resource.same_as(descriptor->resource)) continue;
    *handle = reinterpret_cast<CUdevResourceDesc>(known);
    return CUDA_SUCCESS;
  }
  driver().descriptors.push_back(descriptor.get());
  *handle = reinterpret_cast<CUdevResourceDesc>(
      driver().own(std::move(descriptor), Kind::kResourceDescriptor));
  return CUDA_SUCCESS;
}

CUresult api::cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc descriptor_handle,
                               CUdevice ordinal, unsigned flags) {
  Device* device = driver().device(ordinal);
  // Measured: making one waits for everything that runs in the primary context.
  std::vector<std::uint32_t> groups;
  {
    const std::lock_guard lock(driver().mutex);
    if (device != nullptr && device->primary != nullptr && device->primary->alive)
      groups = family_groups(*device->primary);
  }
  if (device != nullptr) {
    if (const CUresult error = wait_for_groups(*device, groups); error != CUDA_SUCCESS)
      return error;
  }
  const std::lock_guard lock(driver().mutex);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const auto* descriptor =
      driver().find<ResourceDescriptor>(descriptor_handle, Kind::kResourceDescriptor);
  if (handle == nullptr || descriptor == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = result_of(device->engine->fault()); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = retain_primary(*device); error != CUDA_SUCCESS) return error;
  Context& context = make_context(*device, ContextKind::kGreen, device->primary->flags);
  context.root = device->primary;
  context.resource = descriptor->resource;
  context.clusters = std::make_shared<const ClusterRule>(
      ClusterRule{context.resource.cluster_groups, context.resource.max_cluster});
  device->primary->children.insert(&context);
  auto green = std::make_unique<GreenContext>();
  green->context = &context;
  context.green = driver().own(std::move(green), Kind::kGreenContext);
  *handle = reinterpret_cast<CUgreenCtx>(context.green);
  return CUDA_SUCCESS;
}

CUresult api::cuGreenCtxDestroy(CUgreenCtx handle) {
  CUdevice ordinal;
  {
    const std::lock_guard lock(driver().mutex);
    GreenContext* green = find_green(handle);
    if (green == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Context& context = *green->context;
    if (!context.alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    // Its streams stay: work goes on, and later calls on them answer CONTEXT_IS_DESTROYED.
    context.root->children.erase(&context);
    bury_green_context(context);
    auto& stack = thread_state().contexts;
    if (!stack.empty() && stack.back() == &context) stack.pop_back();
    ordinal = context.device->ordinal;
  }
  return api::cuDevicePrimaryCtxRelease_v2(ordinal);
}

CUresult api::cuCtxFromGreenCtx(CUcontext* handle, CUgreenCtx green_handle) {
  const std::lock_guard lock(driver().mutex);
  GreenContext* green = nullptr;
  if (const CUresult error = resolve_green(green_handle, &green); error != CUDA_SUCCESS)
    return error;
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUcontext>(green->context);
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12090
CUresult api::cuGreenCtxGetId(CUgreenCtx handle, unsigned long long* id) {
  const std::lock_guard lock(driver().mutex);
  GreenContext* green = nullptr;
  if (const CUresult error = resolve_green(handle, &green); error != CUDA_SUCCESS) return error;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *id = green->context->id;
  return CUDA_SUCCESS;
}
#endif

CUresult api::cuGreenCtxRecordEvent(CUgreenCtx handle, CUevent event_handle) {
  const std::lock_guard lock(driver().mutex);
  GreenContext* green = nullptr;
  EventObject* event = nullptr;
  if (const CUresult error = resolve_green(handle, &green); error != CUDA_SUCCESS) return error;
  if (const CUresult error = resolve_event(event_handle, &event); error != CUDA_SUCCESS)
    return error;
  return record_behind_context(*green->context, *event);
}

CUresult api::cuGreenCtxWaitEvent(CUgreenCtx handle, CUevent event_handle) {
  const std::lock_guard lock(driver().mutex);
  GreenContext* green = nullptr;
  EventObject* event = nullptr;
  if (const CUresult error = resolve_green(handle, &green); error != CUDA_SUCCESS) return error;
  if (const CUresult error = resolve_event(event_handle, &event); error != CUDA_SUCCESS)
    return error;
  return wait_before_context(*green->context, *event);
}

}  // namespace vitamin::soft::driver
