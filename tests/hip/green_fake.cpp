// SPDX-License-Identifier: Apache-2.0
#include "tests/hip/green_fake.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

namespace vitamin::tests {
namespace {

using hip::Resource;

// Errors of 7.14 for which 5.2 has no name.
constexpr auto kWrongResource = hipErrorInvalidValue;

// What a runtime keeps in a resource of its own.
struct Part {
  std::uint32_t magic = 0, family = 0, first = 0, count = 0;
};
constexpr std::uint32_t kMagic = 0x70617274;

struct Descriptor {
  std::vector<Part> parts;
};
struct Context {
  std::vector<std::uint32_t> mask;
};

std::atomic<std::uint32_t> families = 0;
std::atomic<int> contexts = 0, alive = 0, streams = 0, with_priority = 0, blocking = 0;

GreenFault fault() {
  const char* text = std::getenv("VITAMIN_TEST_GREEN");
  const std::string_view name = text != nullptr ? text : "";
  if (name == "other-units") return GreenFault::kOtherUnits;
  if (name == "other-groups") return GreenFault::kOtherGroups;
  if (name == "no-stream") return GreenFault::kNoStream;
  return GreenFault::kNone;
}

Part part_of(const Resource& resource) {
  Part part;
  std::memcpy(&part, resource.of_runtime, sizeof part);
  return part;
}

Resource resource_of(const Part& part) {
  Resource resource;
  resource.type = hip::kComputeUnits;
  std::memcpy(resource.of_runtime, &part, sizeof part);
  resource.cus = {part.count, 2, 2, 0};
  return resource;
}

bool zero(const Resource& resource) {
  static const Resource none;
  return std::memcmp(&resource, &none, sizeof none) == 0;
}

// A multiprocessor of this runtime is a bit of its masks, but for RDNA before 5.6.
hipError_t bits_of(int device, std::uint32_t& bits) {
  int count = 0, major = 0, version = 0;
  hipError_t status = hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device);
  if (status == hipSuccess)
    status = hipDeviceGetAttribute(&major, hipDeviceAttributeComputeCapabilityMajor, device);
  if (status == hipSuccess) status = hipRuntimeGetVersion(&version);
  bits = static_cast<std::uint32_t>(count);
  if (major >= 10 && version < hip::hip_version(5, 6)) bits *= 2;
  return status;
}

hipError_t get_resource(hipDevice_t device, Resource* resource, unsigned type) {
  if (resource == nullptr || !zero(*resource)) return hipErrorInvalidValue;
  if (type != hip::kComputeUnits) return kWrongResource;
  std::uint32_t bits = 0;
  const hipError_t status = bits_of(device, bits);
  *resource = resource_of({kMagic, ++families, 0, bits});
  return status;
}

hipError_t split(Resource* groups, unsigned* group_count, const Resource* whole,
                 Resource* remainder, unsigned flags, unsigned count_of_each) {
  if (group_count == nullptr || whole == nullptr || flags != 0 || count_of_each == 0)
    return hipErrorInvalidValue;
  const Part part = part_of(*whole);
  if (whole->type != hip::kComputeUnits || part.magic != kMagic) return kWrongResource;
  unsigned each = count_of_each + count_of_each % whole->cus.alignment;
  if (fault() == GreenFault::kOtherGroups) each += whole->cus.alignment;
  *group_count = std::min(*group_count, part.count / each);
  const std::uint32_t family = ++families;
  for (unsigned i = 0; groups != nullptr && i < *group_count; ++i)
    groups[i] = resource_of({kMagic, family, part.first + i * each, each});
  const std::uint32_t dealt = *group_count * each;
  if (remainder != nullptr)
    *remainder = resource_of({kMagic, family, part.first + dealt, part.count - dealt});
  return hipSuccess;
}

hipError_t describe(hip::ResourceDescriptor* descriptor, Resource* adjacent, unsigned count) {
  if (descriptor == nullptr || adjacent == nullptr || count == 0) return hipErrorInvalidValue;
  auto* made = new Descriptor;
  for (unsigned i = 0; i < count; ++i) {
    const Part part = part_of(adjacent[i]);
    if (adjacent[i].type != hip::kComputeUnits || part.magic != kMagic || part.count == 0 ||
        part.family != part_of(adjacent[0]).family) {
      delete made;
      return kWrongResource;
    }
    made->parts.push_back(part);
  }
  *descriptor = made;
  return hipSuccess;
}

hipError_t create(hip::ExecutionContext* context, hip::ResourceDescriptor descriptor, int device,
                  unsigned flags) {
  if (context == nullptr || descriptor == nullptr || flags != 0) return hipErrorInvalidValue;
  std::uint32_t bits = 0;
  if (const hipError_t status = bits_of(device, bits); status != hipSuccess) return status;
  auto* made = new Context{std::vector<std::uint32_t>((bits + 31) / 32)};
  const std::uint32_t shift = fault() == GreenFault::kOtherUnits ? 1 : 0;
  for (const Part& part : static_cast<const Descriptor*>(descriptor)->parts)
    for (std::uint32_t i = 0; i < part.count; ++i) {
      const std::uint32_t bit = (part.first + i + shift) % bits;
      made->mask[bit / 32] |= 1U << bit % 32;
    }
  *context = made;
  ++contexts, ++alive;
  return hipSuccess;
}

hipError_t destroy(hip::ExecutionContext context) {
  if (context == nullptr) return hipErrorInvalidValue;
  delete static_cast<Context*>(context);
  --alive;
  return hipSuccess;
}

// Streams of ours and their masks: hipExtStreamGetCUMask of 5.2 knows only as many bits as the
// device has multiprocessors, which on RDNA are half of them.
std::mutex made_mutex;
std::map<hipStream_t, std::vector<std::uint32_t>> made_streams;

hipError_t get_mask(hipStream_t stream, std::uint32_t words, std::uint32_t* mask) {
  const std::lock_guard lock(made_mutex);
  const auto made = made_streams.find(stream);
  if (made == made_streams.end() || words < made->second.size()) return hipErrorInvalidValue;
  std::copy(made->second.begin(), made->second.end(), mask);
  return hipSuccess;
}

hipError_t stream_of(hipStream_t* stream, hip::ExecutionContext context, unsigned flags,
                     int priority) {
  if (stream == nullptr || context == nullptr) return hipErrorInvalidValue;
  if (fault() == GreenFault::kNoStream) return hipErrorOutOfMemory;
  ++streams;
  with_priority += priority != 0;
  blocking += flags != hipStreamNonBlocking;
  const auto& mask = static_cast<const Context*>(context)->mask;
  const hipError_t status =
      hipExtStreamCreateWithCUMask(stream, static_cast<std::uint32_t>(mask.size()), mask.data());
  const std::lock_guard lock(made_mutex);
  if (status == hipSuccess) made_streams[*stream] = mask;
  return status;
}

void* library = nullptr;

template <class Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

void* look_up(const char* symbol) {
  const std::string_view name = symbol;
  if (name == "hipDeviceGetDevResource") return address(&get_resource);
  if (name == "hipDevSmResourceSplitByCount") return address(&split);
  if (name == "hipDevResourceGenerateDesc") return address(&describe);
  if (name == "hipGreenCtxCreate") return address(&create);
  if (name == "hipExecutionCtxDestroy") return address(&destroy);
  if (name == "hipExecutionCtxStreamCreate") return address(&stream_of);
  if (name == "hipExtStreamGetCUMask") return address(&get_mask);
  return ::dlsym(library, symbol);
}

}  // namespace

hal::Result<hip::Api> open_runtime_with_green_contexts() {
  // The one that this program is linked with.
  library = ::dlopen(nullptr, RTLD_LAZY | RTLD_LOCAL);
  return hip::Api::load(&look_up);
}

GreenCounts green_counts() { return {contexts, alive, streams, with_priority, blocking}; }

}  // namespace vitamin::tests
