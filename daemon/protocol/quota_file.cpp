// SPDX-License-Identifier: Apache-2.0
#include "daemon/protocol/quota_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "hal/file_memory.h"
#include "hal/process_stat.h"
#include "hal/processor.h"

namespace vitamin::protocol {
namespace {

constexpr std::size_t kSize = sizeof(NativeQuotaLedger);
// An owner: a mark, 22 bits of process id (the kernel has no larger ones), and the start.
constexpr std::uint64_t kNotJudged = std::uint64_t{1} << 63;
constexpr unsigned kStartBits = 41;
constexpr std::uint64_t kStartMask = (std::uint64_t{1} << kStartBits) - 1;

tl::unexpected<hal::Error> no_ledger(const std::string& where) {
  return hal::fail(
      hal::Errc::kOutOfMemory,
      "the ledger of device memory cannot be used (" + where + ": " + std::strerror(errno) + ")",
      errno);
}

// Of the pid namespace of this process; never 0.
std::uint64_t own_space() {
  struct stat facts {};
  return ::stat("/proc/self/ns/pid", &facts) == 0 ? std::max<std::uint64_t>(facts.st_ino, 1) : 1;
}

std::uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

void UnmapLedger::operator()(NativeQuotaLedger* ledger) const { ::munmap(ledger, kSize); }

// Made under another name, so that a file at `path` is whole, and has its memory.
hal::Result<MappedLedger> open_ledger(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file && errno != ENOENT) return no_ledger(path);
  if (!file) {
    const std::string made = path + "." + std::to_string(::getpid());
    Fd fresh(::open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fresh) return no_ledger(made);
    void* const memory = hal::grow_file(fresh.get(), nullptr, 0, kSize);
    const bool linked =
        memory != nullptr && (::link(made.c_str(), path.c_str()) == 0 || errno == EEXIST);
    const int error = errno;
    if (memory != nullptr) ::munmap(memory, kSize);
    ::unlink(made.c_str());
    errno = error;
    if (!linked) return no_ledger(path);
    file.reset(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    if (!file) return no_ledger(path);
  }
  return map_ledger(file);
}

hal::Result<Fd> new_ledger() {
  constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  Fd file(::memfd_create("vitamin-quota", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  void* const memory = file ? hal::grow_file(file.get(), nullptr, 0, kSize) : nullptr;
  if (memory == nullptr) return no_ledger("it cannot be made");
  ::munmap(memory, kSize);
  if (::fcntl(file.get(), F_ADD_SEALS, kFixedSize) != 0) return no_ledger("it cannot be sealed");
  return file;
}

hal::Result<MappedLedger> map_ledger(const Fd& file) {
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return no_ledger("its size is not known");
  if (facts.st_size != static_cast<off_t>(kSize))
    return hal::fail(hal::Errc::kUnsupported,
                     "the ledger of device memory is of another release: install the same one "
                     "everywhere");
  void* const memory = hal::map_file(file.get(), kSize, PROT_READ | PROT_WRITE);
  if (memory == nullptr) return no_ledger("it cannot be mapped");
  return MappedLedger(static_cast<NativeQuotaLedger*>(memory));
}

hal::Result<MappedLedger> private_ledger() {
  void* const memory =
      ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return no_ledger("of this process");
  return MappedLedger(static_cast<NativeQuotaLedger*>(memory));
}

std::uint64_t owner_of(pid_t process) {
  if (process <= 0) return 0;
  const auto stat = hal::process_stat(process);
  return stat ? owner_of(process, stat->start) : 0;
}

std::uint64_t owner_of(pid_t process, std::uint64_t start) {
  if (process <= 0) return 0;
  return std::uint64_t{static_cast<std::uint32_t>(process)} << kStartBits | (start & kStartMask);
}

std::uint64_t unseen_owner(std::uint64_t n) { return kNotJudged | (n & kStartMask); }

std::uint64_t own_owner(NativeQuotaLedger& ledger) {
  const std::uint64_t space = own_space();
  const std::uint64_t owner = owner_of(::getpid());
  // Without /proc: only the id tells this process from others.
  if (owner == 0)
    return kNotJudged | std::uint64_t{static_cast<std::uint32_t>(::getpid())} << kStartBits;
  return ledger.agree_on_space(space) == space ? owner : owner | kNotJudged;
}

pid_t process_of(std::uint64_t owner) {
  return static_cast<pid_t>((owner & ~kNotJudged) >> kStartBits);
}

bool owner_is_dead(std::uint64_t owner) {
  if ((owner & kNotJudged) != 0) return false;
  const pid_t process = process_of(owner);
  if (const auto stat = hal::process_stat(process))
    return (stat->start & kStartMask) != (owner & kStartMask) || stat->state == 'Z' ||
           stat->state == 'X';
  // /proc may hide the processes of others (hidepid); the kernel's answer to a signal does not.
  return ::kill(process, 0) != 0 && errno == ESRCH;
}

DeadOwners::DeadOwners(NativeQuotaLedger& ledger)
    : judges_(ledger.agree_on_space(own_space()) == own_space()) {}

RetryDecision LedgerWait::operator()(unsigned tries) {
  if (tries < 64) {
    hal::spin_pause();
    return RetryDecision::kRetry;
  }
  const std::uint64_t now = monotonic_ns();
  if (until_ns_ == 0) until_ns_ = now + 2'000'000'000;
  const timespec pause{0, 20'000};
  ::nanosleep(&pause, nullptr);
  if (now >= until_ns_) return RetryDecision::kGiveUp;
  return tries % 64 == 0 ? RetryDecision::kReturnDead : RetryDecision::kRetry;
}

}  // namespace vitamin::protocol
