// SPDX-License-Identifier: Apache-2.0
//
// Attributes of ranges of shared virtual memory: answers of Linux 6.1
// (drivers/gpu/drm/amd/amdkfd/kfd_svm.c) with XNACK off.
#include <cerrno>
#include <initializer_list>
#include <vector>

#include "tests/amdgpu/kfd_calls.h"

namespace vitamin::tests {
namespace {

constexpr std::uint32_t kUndefined = KFD_IOCTL_SVM_LOCATION_UNDEFINED;
constexpr std::uint64_t kPage = 4096;

using Attribute = kfd_ioctl_svm_attribute;

kfd::SvmCall call_of(std::uint32_t op, std::uint64_t start, std::uint64_t bytes,
                     std::initializer_list<Attribute> attributes) {
  kfd::SvmCall call{.start = start, .size = bytes, .op = op, .nattr = 0, .attributes = {}};
  for (const Attribute& each : attributes) call.attributes[call.nattr++] = each;
  return call;
}

// Some pages of the process's own.
struct Pages {
  explicit Pages(std::size_t count) : bytes(count * kPage) {
    at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED);
  }
  ~Pages() { unmap(); }
  void unmap() {
    if (at == nullptr) return;
    ::munmap(at, bytes);
    Driver::unmapped(first(), bytes);  // as the preloaded munmap
    at = nullptr;
  }
  std::uint64_t first() const { return reinterpret_cast<std::uint64_t>(at); }

  IoctlResult set(std::initializer_list<Attribute> attributes, std::size_t page = 0,
                  std::size_t count = 0) const {
    auto a = call_of(KFD_IOCTL_SVM_OP_SET_ATTR, first() + page * kPage,
                     count == 0 ? bytes : count * kPage, attributes);
    return call(0x20, a);
  }
  // The attribute of all of these pages.
  Attribute get(std::uint32_t type, std::uint32_t value = 0, std::size_t page = 0,
                std::size_t count = 0) const {
    auto a = call_of(KFD_IOCTL_SVM_OP_GET_ATTR, first() + page * kPage,
                     count == 0 ? bytes : count * kPage, {{type, value}});
    REQUIRE(call(0x20, a) == 0);
    return a.attributes[0];
  }

  void* at = nullptr;
  std::size_t bytes;
};

TEST_CASE("memory_without_attributes_has_the_defaults") {
  const Pages pages(4);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFERRED_LOC).value == kUndefined);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFETCH_LOC).value == kUndefined);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_GRANULARITY).value == 9);
  constexpr std::uint32_t kFlags = KFD_IOCTL_SVM_FLAG_HOST_ACCESS | KFD_IOCTL_SVM_FLAG_COHERENT;
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_SET_FLAGS).value == kFlags);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_CLR_FLAGS).value == ~kFlags);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_ACCESS, kGpu).type == KFD_IOCTL_SVM_ATTR_NO_ACCESS);
}

TEST_CASE("attributes_of_a_part_leave_the_rest_as_it_is") {
  const Pages pages(8);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, kGpu},
                   {KFD_IOCTL_SVM_ATTR_ACCESS, kGpu},
                   {KFD_IOCTL_SVM_ATTR_GRANULARITY, 3}}) == 0);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFERRED_LOC).value == kGpu);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, KFD_IOCTL_SVM_LOCATION_SYSMEM},
                   {KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE, kGpu},
                   {KFD_IOCTL_SVM_ATTR_SET_FLAGS, KFD_IOCTL_SVM_FLAG_GPU_RO},
                   {KFD_IOCTL_SVM_ATTR_GRANULARITY, 0xff}},
                  2, 3) == 0);
  for (const std::size_t page : {0u, 1u, 5u, 7u}) {
    CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, 0, page, 1).value == kGpu);
    CHECK(pages.get(KFD_IOCTL_SVM_ATTR_ACCESS, kGpu, page, 1).type == KFD_IOCTL_SVM_ATTR_ACCESS);
    CHECK(pages.get(KFD_IOCTL_SVM_ATTR_GRANULARITY, 0, page, 1).value == 3);
  }
  for (const std::size_t page : {2u, 4u}) {
    CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, 0, page, 1).value == 0);
    CHECK(pages.get(KFD_IOCTL_SVM_ATTR_ACCESS, kGpu, page, 1).type ==
          KFD_IOCTL_SVM_ATTR_ACCESS_IN_PLACE);
    CHECK(pages.get(KFD_IOCTL_SVM_ATTR_GRANULARITY, 0, page, 1).value == 0x3f);
  }
  // Of all: what they agree on, the flags that all have and that any has.
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFERRED_LOC).value == kUndefined);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_ACCESS, kGpu).type == KFD_IOCTL_SVM_ATTR_NO_ACCESS);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_GRANULARITY).value == 3);
  CHECK((pages.get(KFD_IOCTL_SVM_ATTR_SET_FLAGS).value & KFD_IOCTL_SVM_FLAG_GPU_RO) == 0);
  CHECK((pages.get(KFD_IOCTL_SVM_ATTR_CLR_FLAGS).value & KFD_IOCTL_SVM_FLAG_GPU_RO) == 0);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_CLR_FLAGS, KFD_IOCTL_SVM_FLAG_GPU_RO}}) == 0);
  CHECK((pages.get(KFD_IOCTL_SVM_ATTR_CLR_FLAGS).value & KFD_IOCTL_SVM_FLAG_GPU_RO) != 0);
}

TEST_CASE("a_range_over_others_and_gaps_covers_both") {
  const Pages pages(6);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_PREFETCH_LOC, kGpu}}, 1, 1) == 0);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_PREFETCH_LOC, kGpu}}, 4, 1) == 0);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_ACCESS, kGpu}}) == 0);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_ACCESS, kGpu).type == KFD_IOCTL_SVM_ATTR_ACCESS);
  const std::vector<std::uint32_t> places = {kUndefined, kGpu, kUndefined,
                                             kUndefined, kGpu, kUndefined};
  for (std::size_t page = 0; page < places.size(); ++page)
    CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFETCH_LOC, 0, page, 1).value == places[page]);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_NO_ACCESS, kGpu}}, 3, 2) == 0);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_ACCESS, kGpu, 3, 2).type == KFD_IOCTL_SVM_ATTR_NO_ACCESS);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_ACCESS, kGpu, 0, 3).type == KFD_IOCTL_SVM_ATTR_ACCESS);
}

TEST_CASE("attributes_end_with_the_mapping") {
  Pages pages(4);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, kGpu}}) == 0);
  // The second half goes and comes back.
  const std::uint64_t half = pages.first() + 2 * kPage;
  void* const at = reinterpret_cast<void*>(half);
  REQUIRE(::munmap(at, 2 * kPage) == 0);
  Driver::unmapped(half, kPage + 1);  // whole pages
  REQUIRE(::mmap(at, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == at);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, 0, 0, 2).value == kGpu);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, 0, 2, 2).value == kUndefined);
  const auto left =
      soft::amdgpu::machine().memory.find(pages.first() + 1).value_or(soft::amdgpu::MappedRange{});
  CHECK((left.begin == pages.first() && left.bytes == 2 * kPage));
  CHECK(!soft::amdgpu::machine().memory.find(half));
}

// An end that wraps around lies before the range that the unmap begins with.
TEST_CASE("an_unmap_beyond_the_addresses_of_a_process_leaves_the_attributes") {
  const Pages pages(3);
  REQUIRE(pages.set({{KFD_IOCTL_SVM_ATTR_GRANULARITY, 3}}, 0, 1) == 0);
  REQUIRE(pages.set({{KFD_IOCTL_SVM_ATTR_GRANULARITY, 5}}, 2, 1) == 0);
  const std::uint64_t begin = pages.first() + 2 * kPage;
  for (const std::uint64_t bytes :
       {0 - 3 * kPage, 0 - begin, std::uint64_t{0} - 1, std::uint64_t{1} << 47})
    Driver::unmapped(begin, bytes);
  Driver::unmapped(1ull << 47, kPage);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_GRANULARITY, 0, 0, 1).value == 3);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_GRANULARITY, 0, 2, 1).value == 5);
}

TEST_CASE("calls_that_linux_refuses_are_refused_and_change_nothing") {
  acquire();
  Pages pages(4);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_ACCESS, kNoGpu}}) == -EINVAL);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_PREFERRED_LOC, kNoGpu}}) == -EINVAL);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_PREFETCH_LOC, kUndefined}}) == -EINVAL);
  CHECK(pages.set({{KFD_IOCTL_SVM_ATTR_GRANULARITY, 1}, {99, 0}}) == -EINVAL);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_GRANULARITY).value == 9);

  const std::uint64_t first = pages.first();
  const auto answer = [](std::uint64_t start, std::uint64_t bytes, std::uint32_t op,
                         std::initializer_list<Attribute> attributes = {}) {
    auto a = call_of(op, start, bytes, attributes);
    return call(0x20, a);
  };
  for (const std::uint32_t op : {KFD_IOCTL_SVM_OP_SET_ATTR, KFD_IOCTL_SVM_OP_GET_ATTR}) {
    CHECK(answer(first + 1, kPage, op) == -EINVAL);
    CHECK(answer(first, kPage + 1, op) == -EINVAL);
    CHECK(answer(first, 0, op) == -EINVAL);
    CHECK(answer(0, kPage, op) == -EINVAL);
    CHECK(answer(1ull << 50, kPage, op) == -EFAULT);
    CHECK(answer(first, kPage, op) == 0);
  }
  CHECK(answer(first, kPage, 2) == -EINVAL);
  // Only ACCESS asks about a GPU.
  CHECK(answer(first, kPage, KFD_IOCTL_SVM_OP_GET_ATTR, {{KFD_IOCTL_SVM_ATTR_NO_ACCESS, kGpu}}) ==
        -EINVAL);
  CHECK(answer(first, kPage, KFD_IOCTL_SVM_OP_GET_ATTR, {{KFD_IOCTL_SVM_ATTR_ACCESS, kNoGpu}}) ==
        -EINVAL);
  auto many = call_of(KFD_IOCTL_SVM_OP_SET_ATTR, first, kPage, {});
  many.nattr = 62;
  CHECK(call(0x20, many) == -EINVAL);
  pages.unmap();
  CHECK(answer(first, kPage, KFD_IOCTL_SVM_OP_SET_ATTR) == -EFAULT);

  const Buffer buffer(kPage);
  REQUIRE(map_memory(buffer.alloc.handle) == 0);
  CHECK(answer(buffer.alloc.va_addr, kPage, KFD_IOCTL_SVM_OP_SET_ATTR) == -EADDRINUSE);
}

TEST_CASE("no_buffer_is_allocated_where_memory_has_attributes") {
  acquire();
  Pages pages(4);
  REQUIRE(pages.set({{KFD_IOCTL_SVM_ATTR_GRANULARITY, 3}}, 1, 2) == 0);
  const auto allocate = [&](std::size_t page, std::uint64_t bytes) {
    kfd_ioctl_alloc_memory_of_gpu_args a{};
    a.va_addr = pages.first() + page * kPage;
    a.size = bytes;
    a.gpu_id = kGpu;
    a.flags = KFD_IOC_ALLOC_MEM_FLAGS_GTT;
    const IoctlResult answer = call(0x16, a);
    kfd_ioctl_free_memory_of_gpu_args free{.handle = a.handle};
    if (answer == 0) CHECK(call(0x17, free) == 0);
    return answer;
  };
  CHECK(allocate(0, 2 * kPage) == -EADDRINUSE);
  CHECK(allocate(0, kPage + 1) == -EADDRINUSE);
  CHECK(allocate(2, 8 * kPage) == -EADDRINUSE);
  CHECK(allocate(0, kPage) == 0);
  CHECK(allocate(3, kPage) == 0);
  CHECK(pages.get(KFD_IOCTL_SVM_ATTR_GRANULARITY, 0, 1, 2).value == 3);
  // Addresses that the program keeps for a buffer, in place of the memory.
  REQUIRE(::mmap(pages.at, pages.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) == pages.at);
  CHECK(allocate(0, 4 * kPage) == 0);
}

}  // namespace
}  // namespace vitamin::tests
