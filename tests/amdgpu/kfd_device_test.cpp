// SPDX-License-Identifier: Apache-2.0
//
// The answers of the fake kernel driver to each ioctl are those of Linux 6.1
// (drivers/gpu/drm/amd/amdkfd/kfd_chardev.c). Events and queues: kfd_queue_test.cpp. A process has
// one driver, so the cases share it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "backends/soft/amdgpu/isa/address.h"
#include "backends/soft/amdgpu/kfd/sysfs.h"
#include "tests/amdgpu/kfd_calls.h"

namespace vitamin::tests {
namespace {

namespace isa = soft::amdgpu::isa;
using soft::amdgpu::find_part;
using soft::amdgpu::kSystemBytes;
using soft::amdgpu::kVideoBytes;
using soft::amdgpu::machine;
using soft::amdgpu::Settings;

TEST_CASE("numbers_that_are_not_served_are_refused") {
  char bytes[64] = {};
  Driver& driver = Driver::instance();
  CHECK(driver.ioctl(0x7f, sizeof bytes, bytes) == -EINVAL);
  CHECK(driver.ioctl(0x0d, sizeof bytes, bytes) == -EPERM);  // the old debugger's
  CHECK(driver.ioctl(0x1b, sizeof bytes, bytes) == -EINVAL);
  const IoctlResult checkpoint = driver.ioctl(0x22, sizeof bytes, bytes);
  CHECK((checkpoint == -EACCES || checkpoint == -EINVAL));  // by what this process may do
  CHECK(driver.ioctl(0x25, sizeof bytes, bytes) == -EINVAL);
}

TEST_CASE("structures_of_other_sizes_are_filled_up_and_cut") {
  kfd_ioctl_get_version_args version{};
  CHECK(Driver::instance().ioctl(0x01, sizeof version.major_version, &version) == 0);
  CHECK(version.major_version == 1);
  CHECK(version.minor_version == 0);  // beyond the caller's structure
  struct {
    kfd_ioctl_get_version_args version;
    std::uint64_t more;
  } longer{{}, 42};
  CHECK(call(0x01, longer) == 0);
  CHECK(longer.version.minor_version == kfd::kMinorVersion);
  CHECK(longer.more == 42);
  CHECK(Driver::instance().ioctl(0x01, 8, nullptr) == -EFAULT);
}

TEST_CASE("before_a_vm_is_acquired_a_gpu_does_nothing_for_the_process") {
  kfd_ioctl_set_memory_policy_args policy{};
  policy.gpu_id = kGpu;
  CHECK(call(0x04, policy) == -ESRCH);
  kfd_ioctl_set_trap_handler_args trap{};
  trap.gpu_id = kGpu;
  CHECK(call(0x13, trap) == -ESRCH);
  kfd_ioctl_create_queue_args queue{};
  queue.gpu_id = kGpu;
  queue.queue_type = KFD_IOC_QUEUE_TYPE_COMPUTE_AQL;
  CHECK(call(0x02, queue) == -ESRCH);

  kfd_ioctl_acquire_vm_args vm{.drm_fd = 0, .gpu_id = kGpu};
  CHECK(call(0x15, vm) == -EINVAL);  // no render node
  vm = {.drm_fd = static_cast<std::uint32_t>(render_node()), .gpu_id = kNoGpu};
  CHECK(call(0x15, vm) == -EINVAL);
  acquire();
  acquire();  // the same again
  const int copy = ::dup(render_node());
  const int another = DeviceFiles::instance().open_render(kfd::kFirstMinor, O_RDWR);
  vm = {.drm_fd = static_cast<std::uint32_t>(copy), .gpu_id = kGpu};
  CHECK(call(0x15, vm) == 0);
  vm.drm_fd = static_cast<std::uint32_t>(another);
  CHECK(call(0x15, vm) == -EBUSY);
  ::close(copy);
  ::close(another);
  CHECK(call(0x04, policy) == 0);
  CHECK(call(0x13, trap) == 0);
}

TEST_CASE("calls_about_a_gpu_that_is_not_there_are_invalid") {
  acquire();
  kfd_ioctl_set_memory_policy_args policy{};
  policy.gpu_id = kNoGpu;
  CHECK(call(0x04, policy) == -EINVAL);
  policy = {};
  policy.gpu_id = kGpu;
  policy.default_policy = 2;
  CHECK(call(0x04, policy) == -EINVAL);
  kfd_ioctl_set_scratch_backing_va_args scratch{.va_addr = 0, .gpu_id = kNoGpu, .pad = 0};
  CHECK(call(0x11, scratch) == -EINVAL);
  scratch.gpu_id = kGpu;
  CHECK(call(0x11, scratch) == 0);
  kfd_ioctl_get_tile_config_args tiles{};
  tiles.gpu_id = kNoGpu;
  CHECK(call(0x12, tiles) == -EINVAL);
  tiles.gpu_id = kGpu;
  tiles.num_tile_configs = 32;
  CHECK(call(0x12, tiles) == 0);
  CHECK(tiles.num_tile_configs == 0);
  CHECK(tiles.gb_addr_config != 0);
  kfd_ioctl_set_trap_handler_args trap{};
  trap.gpu_id = kNoGpu;
  CHECK(call(0x13, trap) == -EINVAL);
  kfd_ioctl_get_available_memory_args available{};
  available.gpu_id = kNoGpu;
  CHECK(call(0x23, available) == -EINVAL);
}

TEST_CASE("clocks_advance_and_a_node_without_a_gpu_has_none_of_its_own") {
  kfd_ioctl_get_clock_counters_args first{}, second{}, cpu{};
  first.gpu_id = second.gpu_id = kGpu;
  CHECK(call(0x05, first) == 0);
  CHECK(call(0x05, second) == 0);
  CHECK(second.gpu_clock_counter >= first.gpu_clock_counter);
  CHECK(first.gpu_clock_counter > 0);
  CHECK(first.system_clock_freq == 1'000'000'000);
  CHECK(call(0x05, cpu) == 0);
  CHECK(cpu.gpu_clock_counter == 0);
  CHECK(cpu.cpu_clock_counter > 0);
}

TEST_CASE("apertures_are_counted_then_told") {
  kfd_ioctl_get_process_apertures_new_args ask{};
  CHECK(call(0x14, ask) == 0);
  REQUIRE(ask.num_of_nodes == 1);
  std::vector<kfd_process_device_apertures> apertures(4);
  ask.num_of_nodes = 4;
  ask.kfd_process_device_apertures_ptr = reinterpret_cast<std::uint64_t>(apertures.data());
  CHECK(call(0x14, ask) == 0);
  CHECK(ask.num_of_nodes == 1);
  CHECK(apertures[0].gpu_id == kGpu);
  CHECK(apertures[0].gpuvm_limit == (1ull << 47) - 1);
  CHECK(apertures[0].lds_base != apertures[0].scratch_base);
  CHECK(apertures[1].gpu_id == 0);
  ask.num_of_nodes = 4;
  ask.kfd_process_device_apertures_ptr = 16;
  CHECK(call(0x14, ask) == -EFAULT);
  kfd_ioctl_get_process_apertures_args old{};
  CHECK(call(0x06, old) == 0);
  CHECK(old.num_of_nodes == 1);
  CHECK(old.process_apertures[0].gpu_id == kGpu);
}

TEST_CASE("xnack_can_be_asked_for_and_left_off") {
  kfd_ioctl_set_xnack_mode_args mode{.xnack_enabled = -1};
  CHECK(call(0x21, mode) == 0);
  CHECK(mode.xnack_enabled == 0);
  CHECK(call(0x21, mode) == 0);
  mode.xnack_enabled = 1;
  CHECK(call(0x21, mode) == -EPERM);
}

TEST_CASE("memory_is_allocated_where_the_caller_says_and_freed_once") {
  acquire();
  kfd_ioctl_get_available_memory_args before{}, during{}, after{};
  before.gpu_id = during.gpu_id = after.gpu_id = kGpu;
  REQUIRE(call(0x23, before) == 0);
  const Buffer buffer(8192);
  REQUIRE(call(0x23, during) == 0);
  CHECK(before.available - during.available == 8192);
  CHECK((buffer.alloc.handle >> 32) == kGpu);

  // The caller's own mapping, without rights as the thunk's of memory that the host must not see.
  REQUIRE(::mmap(buffer.at, 8192, PROT_NONE, MAP_PRIVATE | MAP_FIXED, render_node(),
                 static_cast<off_t>(buffer.alloc.mmap_offset)) == buffer.at);
  CHECK(buffer.map() == 0);
  auto* const words = static_cast<std::uint32_t*>(buffer.at);
  words[0] = 1;
  words[2047] = 2;
  void* const again = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, render_node(),
                             static_cast<off_t>(buffer.alloc.mmap_offset));
  REQUIRE(again != MAP_FAILED);
  CHECK(static_cast<std::uint32_t*>(again)[2047] == 2);
  CHECK(machine().memory.find(buffer.alloc.va_addr + 100).has_value());

  CHECK(buffer.free() == -EBUSY);
  CHECK(buffer.map(kNoGpu) == -EINVAL);
  CHECK(buffer.unmap(kNoGpu) == -EINVAL);
  CHECK(buffer.unmap() == 0);
  CHECK_FALSE(machine().memory.find(buffer.alloc.va_addr + 100).has_value());
  CHECK(buffer.free() == 0);
  CHECK(buffer.free() == -EINVAL);
  CHECK(buffer.map() == -ENOMEM);
  CHECK(buffer.unmap() == -ENOMEM);
  REQUIRE(call(0x23, after) == 0);
  CHECK(after.available == before.available);
}

TEST_CASE("allocations_that_make_no_sense_are_refused") {
  acquire();
  kfd_ioctl_alloc_memory_of_gpu_args a{};
  a.gpu_id = kGpu;
  a.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
  CHECK(call(0x16, a) == -EINVAL);  // no bytes
  a.size = 4096;
  a.gpu_id = kNoGpu;
  CHECK(call(0x16, a) == -EINVAL);
  a.gpu_id = kGpu;
  a.flags = 0;
  CHECK(call(0x16, a) == -EINVAL);  // no kind
  a.flags = KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL;
  CHECK(call(0x16, a) == -EINVAL);  // a process has two pages of doorbells
  a.flags = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR;
  CHECK(call(0x16, a) == -EINVAL);  // no address
  a.flags = KFD_IOC_ALLOC_MEM_FLAGS_VRAM;
  a.size = kVideoBytes + 4096;
  CHECK(call(0x16, a) == -ENOMEM);
  kfd_ioctl_map_memory_to_gpu_args map{};
  CHECK(call(0x18, map) == -EINVAL);  // a handle of no GPU
  map.handle = std::uint64_t{kGpu} << 32 | 999'999;
  CHECK(call(0x18, map) == -EINVAL);  // no device
  map.n_devices = 1;
  map.n_success = 2;
  CHECK(call(0x18, map) == -EINVAL);
  map.n_success = 0;
  map.device_ids_array_ptr = 16;
  CHECK(call(0x18, map) == -EFAULT);
  kfd_ioctl_unmap_memory_from_gpu_args unmap{};
  unmap.handle = map.handle;
  for (const std::uint32_t devices : {(1u << 20) + 1, 0xffffffffu}) {
    map.n_devices = unmap.n_devices = devices;  // more than the kernel allocates for one call
    CHECK(call(0x18, map) == -ENOMEM);
    CHECK(call(0x19, unmap) == -ENOMEM);
  }
}

TEST_CASE("sizes_that_wrap_or_exceed_the_machines_memory_are_refused_and_take_nothing") {
  acquire();
  kfd_ioctl_get_available_memory_args before{}, after{};
  before.gpu_id = after.gpu_id = kGpu;
  const Buffer other(8192);
  REQUIRE(other.map() == 0);
  REQUIRE(call(0x23, before) == 0);
  constexpr std::uint64_t kTooLarge[] = {kSystemBytes * 3, ~0ull - 8191, ~0ull - 4095, ~0ull};
  for (const std::uint32_t flags :
       {KFD_IOC_ALLOC_MEM_FLAGS_VRAM, KFD_IOC_ALLOC_MEM_FLAGS_GTT,
        KFD_IOC_ALLOC_MEM_FLAGS_GTT | KFD_IOC_ALLOC_MEM_FLAGS_AQL_QUEUE_MEM,
        KFD_IOC_ALLOC_MEM_FLAGS_USERPTR})
    for (const std::uint64_t bytes : kTooLarge) {
      kfd_ioctl_alloc_memory_of_gpu_args a{};
      a.va_addr = reinterpret_cast<std::uint64_t>(other.at);
      a.mmap_offset = a.va_addr;
      a.gpu_id = kGpu;
      a.flags = flags;
      a.size = bytes;
      CAPTURE(flags);
      CAPTURE(bytes);
      CHECK(call(0x16, a) == -ENOMEM);
    }
  REQUIRE(call(0x23, after) == 0);
  CHECK(after.available == before.available);
  static_cast<std::uint32_t*>(other.at)[2047] = 1;  // SIGBUS where the file has become shorter
  CHECK(other.unmap() == 0);
  CHECK(other.free() == 0);
}

TEST_CASE("system_memory_is_given_until_there_is_none_and_comes_back") {
  acquire();
  kfd_ioctl_alloc_memory_of_gpu_args a{};
  a.gpu_id = kGpu;
  a.flags = KFD_IOC_ALLOC_MEM_FLAGS_GTT;
  a.size = kSystemBytes / 2;
  REQUIRE(call(0x16, a) == 0);
  kfd_ioctl_alloc_memory_of_gpu_args second = a;
  second.size = kSystemBytes / 2 + 4096;
  CHECK(call(0x16, second) == -ENOMEM);
  kfd_ioctl_free_memory_of_gpu_args free{.handle = a.handle};
  CHECK(call(0x17, free) == 0);
  REQUIRE(call(0x16, second) == 0);
  free.handle = second.handle;
  CHECK(call(0x17, free) == 0);
}

TEST_CASE("registered_memory_counts_in_whole_pages") {
  acquire();
  kfd_ioctl_alloc_memory_of_gpu_args user{};
  user.va_addr = user.mmap_offset = reinterpret_cast<std::uint64_t>(reserve(4096));
  user.gpu_id = kGpu;
  user.flags = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR;
  user.size = 100;
  REQUIRE(call(0x16, user) == 0);
  kfd_ioctl_alloc_memory_of_gpu_args rest{};
  rest.gpu_id = kGpu;
  rest.flags = KFD_IOC_ALLOC_MEM_FLAGS_GTT;
  rest.size = kSystemBytes - 100;
  CHECK(call(0x16, rest) == -ENOMEM);
  rest.size = kSystemBytes - 4096;
  REQUIRE(call(0x16, rest) == 0);
  kfd_ioctl_alloc_memory_of_gpu_args more{};
  more.gpu_id = kGpu;
  more.flags = KFD_IOC_ALLOC_MEM_FLAGS_GTT;
  more.size = 1;
  CHECK(call(0x16, more) == -ENOMEM);
  for (const std::uint64_t handle : {rest.handle, user.handle}) {
    kfd_ioctl_free_memory_of_gpu_args free{.handle = handle};
    CHECK(call(0x17, free) == 0);
  }
}

TEST_CASE("doorbells_and_registers_are_pages_of_the_driver") {
  acquire();
  const Buffer doorbells(8192, KFD_IOC_ALLOC_MEM_FLAGS_DOORBELL);
  const Buffer registers(4096, KFD_IOC_ALLOC_MEM_FLAGS_MMIO_REMAP);
  CHECK(doorbells.map() == 0);
  const int kfd_file = DeviceFiles::instance().open_kfd(O_RDWR | O_CLOEXEC);
  REQUIRE(kfd_file >= 0);
  for (const Buffer* buffer : {&doorbells, &registers}) {
    void* const page = ::mmap(nullptr, buffer->alloc.size, PROT_READ | PROT_WRITE, MAP_SHARED,
                              kfd_file, static_cast<off_t>(buffer->alloc.mmap_offset));
    REQUIRE(page != MAP_FAILED);
    static_cast<std::uint64_t*>(page)[5] = 17;
    ::munmap(page, buffer->alloc.size);
  }
  CHECK(DeviceFiles::instance().doorbells(0)[5] == 17);
  CHECK(doorbells.unmap() == 0);
  CHECK(doorbells.free() == 0);
  CHECK(registers.free() == 0);
  ::close(kfd_file);
}

TEST_CASE("registered_memory_is_reached_by_the_address_that_the_driver_gave_it") {
  acquire();
  std::vector<std::uint32_t> memory(3 * 4096 / sizeof(std::uint32_t));
  const auto begin = (reinterpret_cast<std::uint64_t>(memory.data()) + 4095) & ~4095ull;
  kfd_ioctl_alloc_memory_of_gpu_args a{};
  a.va_addr = reinterpret_cast<std::uint64_t>(reserve(4096));
  a.size = 4096;
  a.gpu_id = kGpu;
  a.flags = KFD_IOC_ALLOC_MEM_FLAGS_USERPTR;
  a.mmap_offset = begin;
  REQUIRE(call(0x16, a) == 0);
  std::uint32_t gpu = kGpu;
  kfd_ioctl_map_memory_to_gpu_args map{};
  map.handle = a.handle;
  map.device_ids_array_ptr = reinterpret_cast<std::uint64_t>(&gpu);
  map.n_devices = 1;
  CHECK(reinterpret_cast<std::uint64_t>(isa::global_memory(a.va_addr + 8)) == a.va_addr + 8);
  REQUIRE(call(0x18, map) == 0);
  CHECK(reinterpret_cast<std::uint64_t>(isa::global_memory(a.va_addr + 8)) == begin + 8);
  CHECK(reinterpret_cast<std::uint64_t>(isa::global_memory(a.va_addr + 4096)) == a.va_addr + 4096);
  map.n_success = 0;
  REQUIRE(call(0x19, map) == 0);
  CHECK(reinterpret_cast<std::uint64_t>(isa::global_memory(a.va_addr + 8)) == a.va_addr + 8);
  kfd_ioctl_free_memory_of_gpu_args free{.handle = a.handle};
  CHECK(call(0x17, free) == 0);
}

TEST_CASE("a_dmabuf_says_what_it_is_and_maps_the_same_memory") {
  acquire();
  const Buffer buffer(8192);
  REQUIRE(buffer.map() == 0);
  static_cast<std::uint32_t*>(buffer.at)[3] = 33;
  kfd::ExportDmabuf out{.handle = buffer.alloc.handle, .flags = O_CLOEXEC, .dmabuf_fd = 0};
  REQUIRE(call(0x24, out) == 0);
  kfd_ioctl_get_dmabuf_info_args info{};
  info.dmabuf_fd = out.dmabuf_fd;
  CHECK(call(0x1c, info) == 0);
  CHECK(info.size == 8192);
  CHECK(info.gpu_id == kGpu);
  kfd_ioctl_import_dmabuf_args in{};
  in.va_addr = reinterpret_cast<std::uint64_t>(reserve(8192));
  in.gpu_id = kGpu;
  in.dmabuf_fd = out.dmabuf_fd;
  REQUIRE(call(0x1d, in) == 0);
  REQUIRE(map_memory(in.handle) == 0);
  CHECK(reinterpret_cast<std::uint32_t*>(in.va_addr)[3] == 33);

  info.dmabuf_fd = in.dmabuf_fd = static_cast<std::uint32_t>(render_node());
  CHECK(call(0x1c, info) == -EINVAL);
  CHECK(call(0x1d, in) == -EINVAL);
  out.handle = 1;
  CHECK(call(0x24, out) == -EINVAL);
}

TEST_CASE("legacy_ipc_handles_carry_memory") {
  acquire();
  const Buffer buffer(4096);
  REQUIRE(buffer.map() == 0);
  static_cast<std::uint32_t*>(buffer.at)[1] = 11;
  kfd::IpcExportHandle out{};
  out.handle = buffer.alloc.handle;
  REQUIRE(call(0x81, out) == 0);
  kfd::IpcImportHandle in{};
  std::memcpy(in.share_handle, out.share_handle, sizeof in.share_handle);
  in.gpu_id = kGpu;
  in.va_addr = reinterpret_cast<std::uint64_t>(reserve(4096));
  REQUIRE(call(0x80, in) == 0);
  CHECK(::mmap(reinterpret_cast<void*>(in.va_addr), 4096, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, render_node(),
               static_cast<off_t>(in.mmap_offset)) != MAP_FAILED);
  REQUIRE(map_memory(in.handle) == 0);
  CHECK(reinterpret_cast<std::uint32_t*>(in.va_addr)[1] == 11);
  in.share_handle[3] = 1 << 20;  // beyond the owner's memory
  CHECK(call(0x80, in) == -EINVAL);
}

TEST_CASE("device_files_are_known_by_what_they_are_and_not_by_their_number") {
  const DeviceFiles& files = DeviceFiles::instance();
  const int second = files.open_render(kfd::kFirstMinor + 1, O_RDWR | O_CLOEXEC);
  const int copy = ::dup(second), kfd_file = files.open_kfd(O_RDWR | O_CLOEXEC);
  const int other = files.open_render(kfd::kFirstMinor + 1, O_RDWR | O_CLOEXEC);
  const auto minor = [&](int descriptor) {
    return files.render_file(descriptor).value_or(kfd::RenderFile{}).minor;
  };
  const auto number = [&](int descriptor) {
    return files.render_file(descriptor).value_or(kfd::RenderFile{}).number;
  };
  for (const int descriptor : {second, copy, other})
    CHECK(minor(descriptor) == kfd::kFirstMinor + 1);
  CHECK(number(copy) == number(second));
  CHECK(number(other) != number(second));
  CHECK(files.is_kfd(kfd_file));
  CHECK_FALSE(files.is_kfd(second));
  CHECK_FALSE(files.render_file(kfd_file).has_value());
  CHECK((::fcntl(second, F_GETFD) & FD_CLOEXEC) != 0);
  for (const int descriptor : {second, copy, other, kfd_file}) ::close(descriptor);
  CHECK_FALSE(files.is_kfd(kfd_file));
  CHECK_FALSE(files.render_file(-1).has_value());
}

TEST_CASE("sysfs_shows_a_node_for_each_gpu_and_links_between_all_of_them") {
  Settings settings;
  settings.part = find_part("gfx1030");
  settings.gpus = 2;
  std::map<std::string, std::string> files;
  for (const kfd::SysfsFile& file : kfd::sysfs_files(settings)) files[file.path] = file.text;
  const std::string nodes = "devices/virtual/kfd/kfd/topology/nodes/";
  CHECK(files[nodes + "0/gpu_id"] == "0\n");
  CHECK(files[nodes + "2/gpu_id"] == std::to_string(kGpu + 1) + "\n");
  CHECK(files[nodes + "1/name"] == "sienna_cichlid\n");
  const std::string gpu = files[nodes + "1/properties"];
  CHECK(gpu.find("gfx_target_version 100300\n") != std::string::npos);
  CHECK(gpu.find("simd_count 160\n") != std::string::npos);
  CHECK(gpu.find("io_links_count 2\n") != std::string::npos);
  CHECK(files.contains(nodes + "2/io_links/1/properties"));
  CHECK_FALSE(files.contains(nodes + "2/io_links/2/properties"));
  CHECK(files[nodes + "2/io_links/1/properties"].find("node_to 1\n") != std::string::npos);
  CHECK(kfd::redirected("/proc/self/maps") == "/proc/self/maps");
  CHECK(kfd::redirected("/sys/devices/virtual/kfd/kfd/topology/nodes") ==
        kfd::redirected("/sys/class/kfd/kfd/topology/nodes"));
  CHECK(kfd::redirected("/sys/module/amdgpu_other") == "/sys/module/amdgpu_other");
}

std::string properties_of_gpu(const char* part, unsigned gpus = 1) {
  Settings settings;
  settings.part = find_part(part);
  settings.gpus = gpus;
  std::string gpu;
  for (const kfd::SysfsFile& file : kfd::sysfs_files(settings))
    if (file.path.ends_with("nodes/1/properties")) gpu = file.text;
  return gpu;
}

std::string link_between_gpus(const char* part) {
  Settings settings;
  settings.part = find_part(part);
  settings.gpus = 2;
  for (const kfd::SysfsFile& file : kfd::sysfs_files(settings))
    if (file.path.ends_with("nodes/1/io_links/1/properties")) return file.text;
  return {};
}

TEST_CASE("sysfs_shows_gpus_that_xgmi_links_as_one_hive") {
  for (const char* part : {"gfx90a", "gfx942"}) {
    CAPTURE(part);
    const std::string link = link_between_gpus(part), gpu = properties_of_gpu(part, 2);
    CHECK(link.find("type 11\n") != std::string::npos);
    CHECK(link.find("weight 15\n") != std::string::npos);
    CHECK(link.find("node_to 2\n") != std::string::npos);
    CHECK(gpu.find("hive_id 0\n") == std::string::npos);
    CHECK(properties_of_gpu(part).find("hive_id 0\n") != std::string::npos);
  }
  CHECK(properties_of_gpu("gfx90a").find("num_sdma_xgmi_engines 3\n") != std::string::npos);
  for (const char* part : {"gfx1030", "gfx1100"}) {
    CAPTURE(part);
    CHECK(link_between_gpus(part).find("type 2\n") != std::string::npos);
    CHECK(properties_of_gpu(part, 2).find("hive_id 0\n") != std::string::npos);
  }
}

TEST_CASE("sysfs_shows_the_shader_arrays_and_the_version_of_gfx1100") {
  const std::string gpu = properties_of_gpu("gfx1100");
  for (const char* line :
       {"gfx_target_version 110000\n", "num_xcc 1\n", "array_count 12\n", "simd_count 192\n",
        "simd_arrays_per_engine 2\n", "cu_per_simd_array 8\n", "simd_per_cu 2\n",
        "wave_front_size 32\n", "device_id 29772\n"})
    CHECK_MESSAGE(gpu.find(line) != std::string::npos, line);
}

TEST_CASE("sysfs_shows_the_cus_and_the_version_of_gfx908") {
  const std::string gpu = properties_of_gpu("gfx908");
  for (const char* line :
       {"gfx_target_version 90008\n", "num_xcc 1\n", "array_count 8\n", "simd_count 480\n",
        "cu_per_simd_array 15\n", "wave_front_size 64\n", "device_id 29580\n"})
    CHECK_MESSAGE(gpu.find(line) != std::string::npos, line);
}

TEST_CASE("sysfs_counts_the_engines_of_all_xccs_of_gfx942") {
  const std::string gpu = properties_of_gpu("gfx942");
  for (const char* line : {"gfx_target_version 90402\n", "num_xcc 8\n", "array_count 32\n",
                           "simd_count 1216\n", "cu_per_simd_array 10\n"})
    CHECK_MESSAGE(gpu.find(line) != std::string::npos, line);
}

}  // namespace
}  // namespace vitamin::tests
