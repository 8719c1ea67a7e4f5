// SPDX-License-Identifier: Apache-2.0
//
// From the number of an ioctl to its answer.
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "backends/soft/amdgpu/kfd/driver.h"
#include "backends/soft/amdgpu/kfd/files.h"

namespace vitamin::soft::amdgpu::kfd {
namespace {

struct Entry {
  unsigned number = 0;
  const char* name = nullptr;
  std::size_t bytes = 0;
  IoctlResult (*call)(Driver&, void*) = nullptr;
  IoctlResult refusal = -EINVAL;  // where there is no call
  bool by_linux = false;          // Linux refuses it as well: nothing is missing here
  bool privileged = false;        // Linux refuses it to others with EACCES
};

template <class Arguments>
constexpr std::size_t size_of(IoctlResult (Driver::*)(Arguments&)) {
  return sizeof(Arguments);
}
template <class Arguments>
IoctlResult apply(Driver& driver, IoctlResult (Driver::*handler)(Arguments&), void* bytes) {
  return (driver.*handler)(*static_cast<Arguments*>(bytes));
}
template <auto kHandler>
constexpr Entry served(unsigned number, const char* name) {
  return {number, name, size_of(kHandler),
          [](Driver& driver, void* bytes) { return apply(driver, kHandler, bytes); }};
}
constexpr Entry refused(unsigned number, const char* name, IoctlResult refusal) {
  return {number, name, 0, nullptr, refusal};
}
// For callers with CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN. kfd_chardev.c, kfd_ioctl.
constexpr Entry privileged(Entry entry) {
  entry.privileged = true;
  return entry;
}
// Where Linux 6.1 gives the same answer.
constexpr Entry refused_by_linux(unsigned number, const char* name, IoctlResult refusal) {
  return {number, name, 0, nullptr, refusal, true};
}

constexpr Entry kEntries[] = {
    served<&Driver::get_version>(0x01, "GET_VERSION"),
    served<&Driver::create_queue>(0x02, "CREATE_QUEUE"),
    served<&Driver::destroy_queue>(0x03, "DESTROY_QUEUE"),
    served<&Driver::set_memory_policy>(0x04, "SET_MEMORY_POLICY"),
    served<&Driver::get_clock_counters>(0x05, "GET_CLOCK_COUNTERS"),
    served<&Driver::get_apertures>(0x06, "GET_PROCESS_APERTURES"),
    served<&Driver::update_queue>(0x07, "UPDATE_QUEUE"),
    served<&Driver::create_event>(0x08, "CREATE_EVENT"),
    served<&Driver::destroy_event>(0x09, "DESTROY_EVENT"),
    served<&Driver::set_event>(0x0a, "SET_EVENT"),
    served<&Driver::reset_event>(0x0b, "RESET_EVENT"),
    served<&Driver::wait_events>(0x0c, "WAIT_EVENTS"),
    refused_by_linux(0x0d, "DBG_REGISTER", -EPERM),  // the kernel's own answer since 6.0
    refused_by_linux(0x0e, "DBG_UNREGISTER", -EPERM),
    refused_by_linux(0x0f, "DBG_ADDRESS_WATCH", -EPERM),
    refused_by_linux(0x10, "DBG_WAVE_CONTROL", -EPERM),
    served<&Driver::set_scratch_backing>(0x11, "SET_SCRATCH_BACKING_VA"),
    served<&Driver::get_tile_config>(0x12, "GET_TILE_CONFIG"),
    served<&Driver::set_trap_handler>(0x13, "SET_TRAP_HANDLER"),
    served<&Driver::get_apertures_new>(0x14, "GET_PROCESS_APERTURES_NEW"),
    served<&Driver::acquire_vm>(0x15, "ACQUIRE_VM"),
    served<&Driver::alloc_memory>(0x16, "ALLOC_MEMORY_OF_GPU"),
    served<&Driver::free_memory>(0x17, "FREE_MEMORY_OF_GPU"),
    served<&Driver::map_memory>(0x18, "MAP_MEMORY_TO_GPU"),
    served<&Driver::unmap_memory>(0x19, "UNMAP_MEMORY_FROM_GPU"),
    served<&Driver::set_cu_mask>(0x1a, "SET_CU_MASK"),
    refused(0x1b, "GET_QUEUE_WAVE_STATE", -EINVAL),
    served<&Driver::get_dmabuf_info>(0x1c, "GET_DMABUF_INFO"),
    served<&Driver::import_dmabuf>(0x1d, "IMPORT_DMABUF"),
    served<&Driver::alloc_queue_gws>(0x1e, "ALLOC_QUEUE_GWS"),
    refused(0x1f, "SMI_EVENTS", -EINVAL),
    served<&Driver::svm>(0x20, "SVM"),
    served<&Driver::set_xnack_mode>(0x21, "SET_XNACK_MODE"),
    privileged(refused(0x22, "CRIU_OP", -EINVAL)),
    served<&Driver::available_memory>(0x23, "AVAILABLE_MEMORY"),
    served<&Driver::export_dmabuf>(0x24, "EXPORT_DMABUF"),
    refused(0x25, "RUNTIME_ENABLE", -EINVAL),  // newer than the version that GET_VERSION tells
    refused(0x26, "DBG_TRAP", -EINVAL),
    // Of AMD's driver packages only.
    served<&Driver::ipc_import>(0x80, "IPC_IMPORT_HANDLE"),
    served<&Driver::ipc_export>(0x81, "IPC_EXPORT_HANDLE"),
    refused_by_linux(0x82, "DBG_TRAP_0x82", -EINVAL),
    refused_by_linux(0x83, "CROSS_MEMORY_COPY", -EINVAL),
    refused_by_linux(0x84, "RLC_SPM", -EINVAL),
    refused_by_linux(0x85, "PC_SAMPLE", -EINVAL),
};

// The table's size bounds the numbers that an ioctl can have.
std::atomic<bool> said[256];
std::atomic<bool> said_fork;

template <class... Values>
void say_once(std::atomic<bool>& before, const char* format, Values... values) {
  if (before.exchange(true)) return;
  std::fprintf(stderr, format, values...);
  std::fputc('\n', stderr);
}

// Of the calling thread, as capable() in the kernel but for the namespace.
bool may_checkpoint() {
  constexpr unsigned kSysAdmin = 21, kCheckpointRestore = 40;  // linux/capability.h
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  if (::syscall(SYS_capget, &header, data) != 0) return false;
  return (data[0].effective >> kSysAdmin & 1) != 0 ||
         (data[1].effective >> (kCheckpointRestore - 32) & 1) != 0;
}

IoctlResult refuse_unknown(unsigned number, std::size_t bytes) {
  say_once(said[number % 256],
           "software AMD GPU: the ioctl %#04x (%zu bytes) is not known here (EINVAL): this ROCm is "
           "newer than version %u.%u of the driver, which it was told",
           number, bytes, kMajorVersion, kMinorVersion);
  return -EINVAL;
}

IoctlResult refuse(Machine& machine, const Entry& entry, std::size_t bytes) {
  if (!said[entry.number].load())
    machine.trace.line("refused call=%s number=%#04x errno=%ld", entry.name, entry.number,
                       -entry.refusal);
  if (entry.by_linux && !machine.settings.verbose) {
    said[entry.number] = true;
    return entry.refusal;
  }
  say_once(said[entry.number], "software AMD GPU: the ioctl %s (%#04x, %zu bytes) is not served%s",
           entry.name, entry.number, bytes, entry.by_linux ? ", nor is it by Linux" : "");
  return entry.refusal;
}

bool copy(std::uint64_t to, std::uint64_t from, std::size_t bytes, bool in) {
  if (bytes == 0) return true;
  iovec here{reinterpret_cast<void*>(in ? to : from), bytes};
  iovec there{reinterpret_cast<void*>(in ? from : to), bytes};
  const ssize_t moved = in ? ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0)
                           : ::process_vm_writev(::getpid(), &here, 1, &there, 1, 0);
  if (moved == static_cast<ssize_t>(bytes)) return true;
  if (moved >= 0 || errno == EFAULT) return false;
  // A sandbox without these calls: a program that passes an invalid address faults.
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return true;
}

}  // namespace

bool copy_in(void* to, std::uint64_t from, std::size_t bytes) {
  return copy(reinterpret_cast<std::uint64_t>(to), from, bytes, true);
}
bool copy_out(std::uint64_t to, const void* from, std::size_t bytes) {
  return copy(to, reinterpret_cast<std::uint64_t>(from), bytes, false);
}

Driver& Driver::instance() {
  static auto* const driver = new Driver;
  return *driver;
}

Driver::Driver() : machine_(machine()) { note_opened(machine_); }

IoctlResult Driver::ioctl(unsigned number, std::size_t bytes, void* argument) {
  if (is_of_parent()) {
    say_once(said_fork,
             "software AMD GPU: process %d is a child of a fork and calls the driver through a "
             "descriptor of its parent's (EBADF): use HIP in the parent or after exec",
             ::getpid());
    return -EBADF;
  }
  const DriverScope scope;
  const auto entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                  [&](const Entry& each) { return each.number == number; });
  if (entry == std::end(kEntries)) return refuse_unknown(number, bytes);
  if (entry->privileged && !may_checkpoint()) return -EACCES;
  if (entry->call == nullptr) return refuse(machine_, *entry, bytes);
  alignas(8) std::array<std::uint8_t, 512> arguments{};
  static_assert(sizeof(kfd_ioctl_get_process_apertures_args) <= arguments.size() &&
                sizeof(SvmCall) <= arguments.size());
  const auto user = reinterpret_cast<std::uint64_t>(argument);
  const std::size_t used = std::min(bytes, arguments.size());
  if (!copy_in(arguments.data(), user, used)) return -EFAULT;
  const IoctlResult answer = entry->call(*this, arguments.data());
  if (!copy_out(user, arguments.data(), used)) return -EFAULT;
  return answer;
}

}  // namespace vitamin::soft::amdgpu::kfd
