// SPDX-License-Identifier: Apache-2.0
//
// What the fake kernel driver answers about events and queues, against Linux 6.1
// (drivers/gpu/drm/amd/amdkfd/kfd_chardev.c, kfd_events.c, kfd_process_queue_manager.c).
#include <hsa/amd_hsa_queue.h>
#include <hsa/amd_hsa_signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/amdgpu/kfd_calls.h"

namespace vitamin::tests {
namespace {

using soft::amdgpu::machine;

TEST_CASE("the_program_brings_the_event_page_and_may_do_so_once") {
  acquire();
  const Buffer page(kfd::kEventPageBytes, KFD_IOC_ALLOC_MEM_FLAGS_GTT);
  kfd_ioctl_create_event_args first{};
  first.event_page_offset = std::uint64_t{kGpu} << 32 | 999'999;
  CHECK(call(0x08, first) == -EINVAL);
  first.event_page_offset = page.alloc.handle;
  REQUIRE(call(0x08, first) == 0);
  CHECK(first.event_page_offset != 0);
  CHECK(first.event_trigger_data == first.event_id);
  CHECK(page.free() == -EBUSY);
  kfd_ioctl_create_event_args again{};
  again.event_page_offset = page.alloc.handle;
  CHECK(call(0x08, again) == -EINVAL);

  kfd_ioctl_set_event_args id{.event_id = first.event_id, .pad = 0};
  CHECK(call(0x09, id) == 0);
  CHECK(call(0x09, id) == -EINVAL);
  CHECK(call(0x0a, id) == -EINVAL);
  CHECK(call(0x0b, id) == -EINVAL);
}

TEST_CASE("a_raised_event_ends_a_wait_and_an_automatic_one_is_reset_by_it") {
  kfd_ioctl_create_event_args automatic{}, manual{};
  automatic.auto_reset = 1;
  REQUIRE(call(0x08, automatic) == 0);
  REQUIRE(call(0x08, manual) == 0);
  CHECK(automatic.event_slot_index != manual.event_slot_index);
  kfd_event_data data[2]{};
  data[0].event_id = automatic.event_id;
  data[1].event_id = manual.event_id;
  kfd_ioctl_wait_events_args wait{.events_ptr = reinterpret_cast<std::uint64_t>(data),
                                  .num_events = 2,
                                  .wait_for_all = 0,
                                  .timeout = 0,
                                  .wait_result = 9};
  CHECK(call(0x0c, wait) == 0);
  CHECK(wait.wait_result == KFD_IOC_WAIT_RESULT_TIMEOUT);
  kfd_ioctl_set_event_args first{.event_id = automatic.event_id, .pad = 0},
      second{.event_id = manual.event_id, .pad = 0};
  CHECK(call(0x0a, first) == 0);
  CHECK(call(0x0a, second) == 0);
  wait.wait_for_all = 1;
  CHECK(call(0x0c, wait) == 0);
  CHECK(wait.wait_result == KFD_IOC_WAIT_RESULT_COMPLETE);
  CHECK(call(0x0c, wait) == 0);  // the first has reset itself
  CHECK(wait.wait_result == KFD_IOC_WAIT_RESULT_TIMEOUT);
  wait.wait_for_all = 0;
  CHECK(call(0x0c, wait) == 0);
  CHECK(wait.wait_result == KFD_IOC_WAIT_RESULT_COMPLETE);
  CHECK(call(0x0b, second) == 0);
  CHECK(call(0x0c, wait) == 0);
  CHECK(wait.wait_result == KFD_IOC_WAIT_RESULT_TIMEOUT);

  std::thread raiser([&] { call(0x0a, first); });
  wait.timeout = 0xffffffff;
  wait.num_events = 1;
  do CHECK(call(0x0c, wait) == 0);
  while (wait.wait_result != KFD_IOC_WAIT_RESULT_COMPLETE);
  raiser.join();
  data[0].event_id = 4000;
  CHECK(call(0x0c, wait) == -EINVAL);
  wait.events_ptr = 16;
  CHECK(call(0x0c, wait) == -EFAULT);
  for (const std::uint32_t events : {100'000u, 0x7fffffffu, 0xffffffffu}) {
    wait.num_events = events;  // more than the kernel allocates for one call
    CHECK(call(0x0c, wait) == -ENOMEM);
  }
}

TEST_CASE("a_wait_for_an_event_that_is_destroyed_meanwhile_fails") {
  IoctlResult answer = 0;
  std::uint32_t result = 0;
  // Again where the event was gone before the wait began.
  for (int attempt = 0; attempt < 50 && answer != -EIO; ++attempt) {
    kfd_ioctl_create_event_args event{};
    REQUIRE(call(0x08, event) == 0);
    kfd_event_data data{};
    data.event_id = event.event_id;
    std::thread waiter([&] {
      kfd_ioctl_wait_events_args wait{.events_ptr = reinterpret_cast<std::uint64_t>(&data),
                                      .num_events = 1,
                                      .wait_for_all = 0,
                                      .timeout = 0xffffffff,
                                      .wait_result = 9};
      do answer = call(0x0c, wait);
      while (answer == 0);
      result = wait.wait_result;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    kfd_ioctl_destroy_event_args destroy{.event_id = event.event_id, .pad = 0};
    CHECK(call(0x09, destroy) == 0);
    waiter.join();
    CHECK((answer == -EIO || answer == -EINVAL));
    CHECK(result == KFD_IOC_WAIT_RESULT_FAIL);
  }
  CHECK(answer == -EIO);
}

TEST_CASE("there_are_as_many_events_as_the_page_has_words") {
  std::vector<std::uint32_t> made;
  kfd_ioctl_create_event_args event{};
  while (call(0x08, event) == 0) {
    made.push_back(event.event_id);
    event = {};
  }
  CHECK(call(0x08, event) == -ENOSPC);
  CHECK(made.size() > 4000);
  CHECK(*std::max_element(made.begin(), made.end()) < KFD_SIGNAL_EVENT_LIMIT);
  for (const std::uint32_t id : made) {
    kfd_ioctl_destroy_event_args destroy{.event_id = id, .pad = 0};
    CHECK(call(0x09, destroy) == 0);
  }
}

// A queue over memory of the test's own.
struct UserQueue {
  static constexpr std::uint32_t kBytes = 4096;
  alignas(64) std::uint8_t ring[kBytes] = {};
  std::uint64_t read = 0, write = 0;
  kfd_ioctl_create_queue_args arguments() {
    kfd_ioctl_create_queue_args a{};
    a.ring_base_address = reinterpret_cast<std::uint64_t>(ring);
    a.read_pointer_address = reinterpret_cast<std::uint64_t>(&read);
    a.write_pointer_address = reinterpret_cast<std::uint64_t>(&write);
    a.ring_size = kBytes;
    a.gpu_id = kGpu;
    a.queue_type = KFD_IOC_QUEUE_TYPE_SDMA;
    a.queue_percentage = 100;
    a.queue_priority = 7;
    return a;
  }
};

TEST_CASE("queues_are_checked_as_the_kernel_checks_them") {
  acquire();
  UserQueue queue;
  auto refused = [&](auto change) {
    kfd_ioctl_create_queue_args a = queue.arguments();
    change(a);
    return call(0x02, a);
  };
  CHECK(refused([](auto& a) { a.queue_percentage = 101; }) == -EINVAL);
  CHECK(refused([](auto& a) { a.queue_priority = 16; }) == -EINVAL);
  CHECK(refused([](auto& a) { a.ring_size = 3000; }) == -EINVAL);
  CHECK(refused([](auto& a) { a.ring_base_address = 1ull << 60; }) == -EFAULT);
  CHECK(refused([](auto& a) { a.read_pointer_address = 1ull << 60; }) == -EFAULT);
  CHECK(refused([](auto& a) { a.write_pointer_address = 1ull << 60; }) == -EFAULT);
  CHECK(refused([](auto& a) { a.eop_buffer_address = 1ull << 60; }) == -EFAULT);
  CHECK(refused([](auto& a) { a.ctx_save_restore_address = 1ull << 60; }) == -EFAULT);
  CHECK(refused([](auto& a) { a.queue_type = 77; }) == -kfd::kNotSupported);
  CHECK(refused([](auto& a) { a.gpu_id = kNoGpu; }) == -EINVAL);
  kfd_ioctl_destroy_queue_args destroy{.queue_id = 999, .pad = 0};
  CHECK(call(0x03, destroy) == -EINVAL);
  kfd_ioctl_update_queue_args update{};
  update.queue_id = 999;
  CHECK(call(0x07, update) == -EFAULT);
  update.queue_priority = 16;
  CHECK(call(0x07, update) == -EINVAL);
  kfd_ioctl_alloc_queue_gws_args gws{};
  gws.queue_id = 999;
  CHECK(call(0x1e, gws) == -EINVAL);
}

TEST_CASE("a_copy_queue_runs_what_its_doorbell_announces") {
  acquire();
  UserQueue queue;
  kfd_ioctl_create_queue_args a = queue.arguments();
  REQUIRE(call(0x02, a) == 0);
  kfd_ioctl_set_xnack_mode_args mode{.xnack_enabled = 0};
  CHECK(call(0x21, mode) == -EBUSY);  // queues are there
  auto* const packet = reinterpret_cast<std::uint32_t*>(queue.ring);
  std::uint32_t fence = 0;
  packet[0] = 5;  // a fence
  const auto address = reinterpret_cast<std::uint64_t>(&fence);
  packet[1] = static_cast<std::uint32_t>(address);
  packet[2] = static_cast<std::uint32_t>(address >> 32);
  packet[3] = 1234;
  const std::uint64_t slot = (a.doorbell_offset & 0xffffffff) / sizeof(std::uint64_t);
  __atomic_store_n(&DeviceFiles::instance().doorbells(0)[slot], 16, __ATOMIC_RELEASE);
  while (__atomic_load_n(&fence, __ATOMIC_ACQUIRE) != 1234) std::this_thread::yield();
  while (__atomic_load_n(&queue.read, __ATOMIC_ACQUIRE) != 16) std::this_thread::yield();

  kfd_ioctl_update_queue_args update{};
  update.queue_id = a.queue_id;
  CHECK(call(0x07, update) == 0);
  kfd_ioctl_alloc_queue_gws_args gws{};
  gws.queue_id = a.queue_id;
  gws.first_gws = 9;
  CHECK(call(0x1e, gws) == 0);
  CHECK(gws.first_gws == 0);
  kfd_ioctl_destroy_queue_args destroy{.queue_id = a.queue_id, .pad = 0};
  CHECK(call(0x03, destroy) == 0);
  CHECK(call(0x03, destroy) == -EINVAL);
}

// A copy queue that was created, its packets and its doorbell.
struct CopyQueue {
  UserQueue memory;
  kfd_ioctl_create_queue_args created = memory.arguments();

  CopyQueue() { REQUIRE(call(0x02, created) == 0); }
  ~CopyQueue() {
    kfd_ioctl_destroy_queue_args destroy{.queue_id = created.queue_id, .pad = 0};
    CHECK(call(0x03, destroy) == 0);
  }
  std::uint32_t* words() { return reinterpret_cast<std::uint32_t*>(memory.ring); }
  void announce(std::uint64_t bytes) {
    const std::uint64_t slot = (created.doorbell_offset & 0xffffffff) / sizeof(std::uint64_t);
    __atomic_store_n(&DeviceFiles::instance().doorbells(0)[slot], bytes, __ATOMIC_RELEASE);
  }
  std::uint64_t read() const { return __atomic_load_n(&memory.read, __ATOMIC_ACQUIRE); }
};

void put_address(std::uint32_t* words, const void* address) {
  words[0] = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(address));
  words[1] = static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(address) >> 32);
}

TEST_CASE("a_sub_window_copy_moves_the_rows_of_a_box_and_nothing_else") {
  acquire();
  CopyQueue queue;
  // 3 x 2 x 2 elements of 4 bytes: from (1, 2, 0) of slices of 8 x 6 to (2, 0, 1) of 5 x 4.
  std::vector<std::uint32_t> from(3 * 8 * 6), to(3 * 5 * 4, 7), expected = to;
  for (std::uint32_t at = 0; at < from.size(); ++at) from[at] = 100 + at;
  for (unsigned z = 0; z < 2; ++z)
    for (unsigned y = 0; y < 2; ++y)
      for (unsigned x = 0; x < 3; ++x)
        expected[(z + 1) * 5 * 4 + y * 5 + x + 2] = from[z * 8 * 6 + (y + 2) * 8 + x + 1];
  std::uint32_t* const packet = queue.words();
  packet[0] = 1 | 4 << 8 | 2u << 29;
  put_address(packet + 1, from.data());
  packet[3] = 1 | 2 << 16;
  packet[4] = 0 | (8 - 1) << 13;
  packet[5] = 8 * 6 - 1;
  put_address(packet + 6, to.data());
  packet[8] = 2 | 0 << 16;
  packet[9] = 1 | (5 - 1) << 13;
  packet[10] = 5 * 4 - 1;
  packet[11] = (3 - 1) | (2 - 1) << 16;
  packet[12] = 2 - 1;
  queue.announce(13 * 4);
  while (queue.read() != 13 * 4) {
    REQUIRE_FALSE(machine().gpus[0]->lost);
    std::this_thread::yield();
  }
  CHECK(to == expected);
}

TEST_CASE("a_gpu_has_as_many_copy_queues_as_the_topology_says") {
  acquire();
  std::vector<UserQueue> queues(kfd::kCopyEngines * kfd::kQueuesPerCopyEngine + 1);
  std::vector<std::uint32_t> created;
  const auto create = [&](UserQueue& queue) {
    kfd_ioctl_create_queue_args a = queue.arguments();
    const IoctlResult answer = call(0x02, a);
    if (answer == 0) created.push_back(a.queue_id);
    return answer;
  };
  for (std::size_t at = 0; at + 1 < queues.size(); ++at) REQUIRE(create(queues[at]) == 0);
  CHECK(create(queues.back()) == -ENOMEM);
  kfd_ioctl_destroy_queue_args destroy{.queue_id = created.back(), .pad = 0};
  created.pop_back();
  REQUIRE(call(0x03, destroy) == 0);
  CHECK(create(queues.back()) == 0);
  for (const std::uint32_t id : created) {
    destroy.queue_id = id;
    CHECK(call(0x03, destroy) == 0);
  }
}

TEST_CASE("nothing_behind_an_unknown_copy_packet_is_executed") {
  acquire();
  std::uint32_t from = 1, to = 0;
  {
    CopyQueue queue;
    std::uint32_t* const packet = queue.words();
    packet[0] = 1 | 7 << 8;
    packet[1] = 1;  // a linear copy, if it were a packet
    packet[2] = sizeof to - 1;
    put_address(packet + 4, &from);
    put_address(packet + 6, &to);
    queue.announce(8 * 4);
    while (!machine().gpus[0]->lost) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(queue.read() == 0);
    CHECK(to == 0);
  }
  machine().gpus[0]->lost = false;  // the other cases have the same GPU
}

// What a compute queue of one vendor packet of this format does with it.
struct VendorPacket {
  std::int64_t completion = 1, error = 0;
  std::uint64_t read = 0;

  explicit VendorPacket(std::uint8_t format) {
    UserQueue memory;
    amd_queue_t shared{};
    amd_signal_t done{}, inactive{};
    done.value = 1;
    shared.queue_inactive_signal.handle = reinterpret_cast<std::uint64_t>(&inactive);
    kfd_ioctl_create_queue_args a = memory.arguments();
    a.queue_type = KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
    a.read_pointer_address = reinterpret_cast<std::uint64_t>(&shared.read_dispatch_id);
    a.write_pointer_address = reinterpret_cast<std::uint64_t>(&shared.write_dispatch_id);
    REQUIRE(call(0x02, a) == 0);
    memory.ring[2] = format;  // behind the header of type 0
    const auto signal = reinterpret_cast<std::uint64_t>(&done);
    std::memcpy(memory.ring + 56, &signal, sizeof signal);
    auto* const index = const_cast<std::uint64_t*>(&shared.write_dispatch_id);
    __atomic_store_n(index, 1, __ATOMIC_RELEASE);
    const auto value = [](const amd_signal_t& of) {
      return __atomic_load_n(const_cast<const std::int64_t*>(&of.value), __ATOMIC_ACQUIRE);
    };
    while (value(done) == 1 && value(inactive) == 0) std::this_thread::yield();
    kfd_ioctl_destroy_queue_args destroy{.queue_id = a.queue_id, .pad = 0};
    CHECK(call(0x03, destroy) == 0);
    completion = value(done);
    error = value(inactive);
    read = const_cast<std::uint64_t&>(shared.read_dispatch_id);
  }
};

TEST_CASE("a_vendor_packet_of_an_unknown_format_stops_its_queue") {
  acquire();
  for (const std::uint8_t format : {std::uint8_t{1}, std::uint8_t{2}}) {
    const VendorPacket known(format);
    CHECK(known.completion == 0);
    CHECK(known.error == 0);
    CHECK(known.read == 1);
  }
  const VendorPacket unknown(9);
  CHECK(unknown.completion == 1);
  CHECK(unknown.error != 0);
  CHECK(unknown.read == 0);
}

TEST_CASE("cu_masks_are_whole_words_of_a_queue_that_is_there") {
  acquire();
  UserQueue queue;
  kfd_ioctl_create_queue_args a = queue.arguments();
  REQUIRE(call(0x02, a) == 0);
  std::uint32_t words[4] = {0xff, 0, 0, 0};
  kfd_ioctl_set_cu_mask_args mask{.queue_id = a.queue_id,
                                  .num_cu_mask = 128,
                                  .cu_mask_ptr = reinterpret_cast<std::uint64_t>(words)};
  CHECK(call(0x1a, mask) == 0);
  mask.num_cu_mask = 0;
  CHECK(call(0x1a, mask) == -EINVAL);
  mask.num_cu_mask = 33;
  CHECK(call(0x1a, mask) == -EINVAL);
  mask.num_cu_mask = 128;
  mask.cu_mask_ptr = 16;
  CHECK(call(0x1a, mask) == -EFAULT);
  mask.cu_mask_ptr = reinterpret_cast<std::uint64_t>(words);
  mask.queue_id = 999;
  CHECK(call(0x1a, mask) == -EFAULT);
  kfd_ioctl_destroy_queue_args destroy{.queue_id = a.queue_id, .pad = 0};
  CHECK(call(0x03, destroy) == 0);
}

}  // namespace
}  // namespace vitamin::tests
