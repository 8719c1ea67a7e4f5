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
  kfd_ioctl_destroy_queue_args destroy{.queue_id = a.queue_id, .pad = 0};
  CHECK(call(0x03, destroy) == 0);
  CHECK(call(0x03, destroy) == -EINVAL);
}

TEST_CASE("one_queue_of_a_gpu_at_a_time_has_global_wave_synchronisation") {
  acquire();
  UserQueue memory[2];
  std::uint32_t ids[2];
  for (int each = 0; each < 2; ++each) {
    kfd_ioctl_create_queue_args a = memory[each].arguments();
    REQUIRE(call(0x02, a) == 0);
    ids[each] = a.queue_id;
  }
  const auto assign = [&](std::uint32_t queue, std::uint32_t count) {
    kfd_ioctl_alloc_queue_gws_args gws{};
    gws.queue_id = queue;
    gws.num_gws = count;
    gws.first_gws = 9;
    const IoctlResult answer = call(0x1e, gws);
    if (answer == 0) CHECK(gws.first_gws == 0);
    return answer;
  };
  const auto destroy = [](std::uint32_t queue) {
    kfd_ioctl_destroy_queue_args a{.queue_id = queue, .pad = 0};
    CHECK(call(0x03, a) == 0);
  };
  CHECK(assign(ids[0], 0) == -EINVAL);  // it has none
  CHECK(assign(ids[0], 64) == 0);
  CHECK(assign(ids[0], 64) == -EBUSY);
  CHECK(assign(ids[1], 64) == -EBUSY);
  CHECK(assign(ids[0], 0) == 0);
  CHECK(assign(ids[1], 64) == 0);
  destroy(ids[1]);
  CHECK(assign(ids[0], 64) == 0);
  destroy(ids[0]);
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

TEST_CASE("links_between_gpus_have_copy_queues_of_their_own") {
  acquire();
  std::vector<UserQueue> queues(machine().part.xgmi_copy_engines * kfd::kQueuesPerCopyEngine + 1);
  std::vector<std::uint32_t> created;
  for (UserQueue& queue : queues) {
    kfd_ioctl_create_queue_args a = queue.arguments();
    a.queue_type = KFD_IOC_QUEUE_TYPE_SDMA_XGMI;
    if (&queue == &queues.back()) {
      CHECK(call(0x02, a) == -ENOMEM);
      continue;
    }
    REQUIRE(call(0x02, a) == 0);
    created.push_back(a.queue_id);
  }
  CHECK(created.size() == 24);
  for (const std::uint32_t id : created) {
    kfd_ioctl_destroy_queue_args destroy{.queue_id = id, .pad = 0};
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

// A compute queue over memory of the test's own, with barrier packets of AMD's.
class ComputeQueue {
 public:
  explicit ComputeQueue(std::uint32_t percentage = 100) {
    arguments_ = memory_.arguments();
    arguments_.queue_type = KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
    arguments_.queue_percentage = percentage;
    arguments_.read_pointer_address = reinterpret_cast<std::uint64_t>(&shared_.read_dispatch_id);
    arguments_.write_pointer_address = reinterpret_cast<std::uint64_t>(&shared_.write_dispatch_id);
    REQUIRE(call(0x02, arguments_) == 0);
  }
  ~ComputeQueue() {
    kfd_ioctl_destroy_queue_args destroy{.queue_id = arguments_.queue_id, .pad = 0};
    CHECK(call(0x03, destroy) == 0);
  }
  // A packet that waits until `condition` is 0 and then decrements `completion`.
  void add(const amd_signal_t& condition, const amd_signal_t& completion) {
    std::uint8_t* const packet = memory_.ring + written_ % 64 * 64;
    const auto waited = reinterpret_cast<std::uint64_t>(&condition),
               done = reinterpret_cast<std::uint64_t>(&completion), mask = ~std::uint64_t{0};
    packet[2] = 2;  // a barrier on a value: equal to 0
    std::memcpy(packet + 8, &waited, sizeof waited);
    std::memcpy(packet + 24, &mask, sizeof mask);
    std::memcpy(packet + 56, &done, sizeof done);
    auto* const index = const_cast<std::uint64_t*>(&shared_.write_dispatch_id);
    __atomic_store_n(index, ++written_, __ATOMIC_RELEASE);
  }
  IoctlResult update(std::uint32_t percentage, std::uint32_t bytes) {
    kfd_ioctl_update_queue_args a{};
    a.queue_id = arguments_.queue_id;
    a.ring_base_address = arguments_.ring_base_address;
    a.ring_size = bytes;
    a.queue_percentage = percentage;
    return call(0x07, a);
  }

 private:
  UserQueue memory_;
  amd_queue_t shared_{};
  kfd_ioctl_create_queue_args arguments_{};
  std::uint64_t written_ = 0;
};

std::int64_t value_of(const amd_signal_t& signal) {
  return __atomic_load_n(const_cast<const std::int64_t*>(&signal.value), __ATOMIC_ACQUIRE);
}

void wait_for(const amd_signal_t& signal, std::int64_t value) {
  while (value_of(signal) != value) std::this_thread::yield();
}

void sleep_ms(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST_CASE("a_queue_without_percentage_or_ring_runs_nothing_until_it_is_updated") {
  acquire();
  amd_signal_t open{}, done{};
  done.value = 3;
  ComputeQueue queue(0);
  queue.add(open, done);
  sleep_ms(20);
  CHECK(value_of(done) == 3);
  REQUIRE(queue.update(100, UserQueue::kBytes) == 0);
  wait_for(done, 2);
  for (const auto& [percentage, bytes] : {std::pair{0u, UserQueue::kBytes}, std::pair{100u, 0u}}) {
    const std::int64_t before = value_of(done);
    REQUIRE(queue.update(percentage, bytes) == 0);
    queue.add(open, done);
    sleep_ms(20);
    CHECK(value_of(done) == before);
    REQUIRE(queue.update(100, UserQueue::kBytes) == 0);
    wait_for(done, before - 1);
  }
}

TEST_CASE("a_packet_of_a_queue_that_becomes_inactive_rests") {
  acquire();
  amd_signal_t closed{}, done{};
  closed.value = 1;
  done.value = 1;
  ComputeQueue queue;
  queue.add(closed, done);
  sleep_ms(5);
  REQUIRE(queue.update(0, UserQueue::kBytes) == 0);
  sleep_ms(5);
  __atomic_store_n(const_cast<std::int64_t*>(&closed.value), 0, __ATOMIC_RELEASE);
  REQUIRE(queue.update(100, UserQueue::kBytes) == 0);
  wait_for(done, 0);
}

TEST_CASE("a_queue_whose_ring_or_pointers_hold_no_packet_runs_nothing") {
  acquire();
  struct Shape {
    std::uint32_t type, bytes;
    bool ring, read, write;
  };
  for (const Shape& shape : {Shape{KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, 0, true, true, true},
                             Shape{KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, 32, true, true, true},
                             Shape{KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, 4096, false, true, true},
                             Shape{KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, 4096, true, false, true},
                             Shape{KFD_IOC_QUEUE_TYPE_COMPUTE_AQL, 4096, true, true, false},
                             Shape{KFD_IOC_QUEUE_TYPE_SDMA, 0, true, true, true},
                             Shape{KFD_IOC_QUEUE_TYPE_SDMA, 4096, true, false, true}}) {
    UserQueue memory;
    memory.write = 1;
    kfd_ioctl_create_queue_args a = memory.arguments();
    a.queue_type = shape.type;
    a.ring_size = shape.bytes;
    if (!shape.ring) a.ring_base_address = 4096;
    if (!shape.read) a.read_pointer_address = 0;
    if (!shape.write) a.write_pointer_address = 0;
    REQUIRE(call(0x02, a) == 0);
    const std::uint64_t slot = (a.doorbell_offset & 0xffffffff) / sizeof(std::uint64_t);
    __atomic_store_n(&DeviceFiles::instance().doorbells(0)[slot], 4, __ATOMIC_RELEASE);
    sleep_ms(5);
    CHECK(memory.read == 0);
    kfd_ioctl_destroy_queue_args destroy{.queue_id = a.queue_id, .pad = 0};
    CHECK(call(0x03, destroy) == 0);
  }
}

TEST_CASE("queues_beyond_the_hardware_queues_take_turns") {
  acquire();
  const auto& gpu = *machine().gpus[0];
  CHECK(gpu.hardware_queues.count() == 24);
  constexpr std::size_t kQueues = 40;
  std::vector<ComputeQueue> queues(kQueues);
  std::vector<amd_signal_t> opened(kQueues + 1);
  const std::uint64_t turns = gpu.turns;
  // Each waits for the one created after it, so that those which have a hardware queue at first
  // wait for those which have none.
  for (amd_signal_t& signal : opened) signal.value = 1;
  for (std::size_t at = 0; at < kQueues; ++at) queues[at].add(opened[at + 1], opened[at]);
  sleep_ms(20);
  CHECK(value_of(opened[0]) == 1);
  __atomic_store_n(const_cast<std::int64_t*>(&opened[kQueues].value), 0, __ATOMIC_RELEASE);
  wait_for(opened[0], 0);
  CHECK(gpu.turns > turns);
  CHECK(gpu.hardware_queues.most_mapped() == 24);
}

}  // namespace
}  // namespace vitamin::tests
