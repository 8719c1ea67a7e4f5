// SPDX-License-Identifier: Apache-2.0
//
// The shared table. A row is changed before the totals, so after a death in the middle the totals
// can be computed again from the rows of the living.
#include "backends/soft/ledger.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <mutex>
#include <thread>
#include <utility>

#include "hal/file_memory.h"
#include "hal/process_stat.h"

namespace vitamin::soft {

std::uint32_t SmUsage::room(const SmUsage& each, const SmLimits& limits) const {
  if (!fits(each, limits)) return 0;
  std::uint32_t room = limits.blocks - blocks;
  if (each.threads != 0) room = std::min(room, (limits.threads - threads) / each.threads);
  if (each.shared_bytes != 0)
    room = std::min(room, (limits.shared_bytes - shared_bytes) / each.shared_bytes);
  if (each.registers != 0) room = std::min(room, (limits.registers - registers) / each.registers);
  return room;
}

SmUsage& SmUsage::operator+=(const SmUsage& other) {
  threads += other.threads;
  blocks += other.blocks;
  shared_bytes += other.shared_bytes;
  registers += other.registers;
  return *this;
}

SmUsage& SmUsage::operator-=(const SmUsage& other) {
  threads -= other.threads;
  blocks -= other.blocks;
  shared_bytes -= other.shared_bytes;
  registers -= other.registers;
  return *this;
}

// Of one process, in shared memory. The atomics are looked at without the lock.
struct ResidencyLedger::Process {
  std::uint64_t memory, parked_memory;  // on the device, on the host
  std::atomic<ProcessState> state;
  std::atomic<std::uint32_t> calls;  // threads inside of the driver
  std::atomic<std::uint64_t> outstanding;
  std::atomic<std::int64_t> shared;  // memory of this process that others may have, and theirs
};

// Memory that others than its owner have open.
struct ResidencyLedger::OpenMemory {
  SharedMemoryKey memory;
  std::uint64_t bytes;
  std::uint64_t openers;  // a bit a row; none: not in use
  bool left;              // by its owner, so that its bytes are those of no process
};

struct ProcessKey {
  std::int64_t pid = 0;
  std::uint64_t started = 0;  // clock ticks since boot, tells a reused pid
};

namespace {

constexpr std::uint64_t kMagic = 0x3472656467654c56;  // "VLedger4"
constexpr std::uint32_t kRows = 64;
constexpr std::uint32_t kOpenMemories = 256;

// In clock ticks since boot; 0 when there is no such process or it has ended.
std::uint64_t start_time(std::int64_t pid) {
  const auto stat = hal::process_stat(static_cast<pid_t>(pid));
  return stat && stat->state != 'Z' && stat->state != 'X' ? stat->start : 0;
}

Nanoseconds monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<Nanoseconds>(now.tv_sec) * 1'000'000'000 +
         static_cast<Nanoseconds>(now.tv_nsec);
}

}  // namespace

struct LedgerFile {
  std::uint64_t magic;
  std::uint32_t sms;
  pthread_mutex_t mutex;
  struct Row {
    ProcessKey owner;
    ResidencyLedger::Process process;
    SmUsage used[SmSet::kMaxSms];
  } rows[kRows];
  ResidencyLedger::OpenMemory open[kOpenMemories];
  SmUsage totals[SmSet::kMaxSms];
  struct Presence {
    std::uint32_t processes, processes_max;
    Nanoseconds shared_ns, changed_at;
    std::uint64_t blocks;
  } presence[SmSet::kMaxSms];
};

namespace {

void initialise(LedgerFile* file, std::uint32_t sms) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&file->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  file->sms = sms;
  file->magic = kMagic;
}

// Opens or makes the file under an exclusive lock, so that exactly one process initialises it.
hal::Result<LedgerFile*> map_file(const std::string& path, std::uint32_t sms) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0)
    return hal::fail(hal::Errc::kInvalidArgument,
                     "the ledger (" + path + ") cannot be opened: " + std::strerror(errno), errno);
  ::flock(fd, LOCK_EX);
  struct stat status {};
  ::fstat(fd, &status);
  // Fresh, too, is what found no room for its contents; the magic number is written last.
  std::uint64_t magic = 0;
  const bool begun = hal::read_at(fd, &magic, sizeof magic, offsetof(LedgerFile, magic));
  const bool fresh = status.st_size == 0 || (begun && magic == 0);
  void* at = nullptr;
  int error = 0;
  if (fresh) {
    at = hal::grow_file(fd, nullptr, 0, sizeof(LedgerFile));
    error = errno;
    if (at == nullptr) hal::set_file_size(fd, 0);
  } else if (status.st_size == static_cast<off_t>(sizeof(LedgerFile))) {
    at = hal::map_file(fd, sizeof(LedgerFile), PROT_READ | PROT_WRITE);
  }
  auto* file = static_cast<LedgerFile*>(at);
  if (file != nullptr && fresh) initialise(file, sms);
  ::flock(fd, LOCK_UN);
  ::close(fd);
  if (file == nullptr && fresh)
    return hal::fail(hal::Errc::kUnavailable,
                     "the ledger (" + path + ") cannot be made: " + std::strerror(error), error);
  if (file != nullptr && file->magic == kMagic && file->sms == sms) return file;
  if (file != nullptr) ::munmap(file, sizeof(LedgerFile));
  return hal::fail(
      hal::Errc::kInvalidArgument,
      "the file (" + path + ") is not a ledger of a device with " + std::to_string(sms) + " SMs");
}

}  // namespace

hal::Result<std::unique_ptr<ResidencyLedger>> ResidencyLedger::attach(const std::string& path,
                                                                      std::uint32_t sms) {
  auto file = map_file(path, sms);
  if (!file) return tl::unexpected(file.error());
  std::unique_ptr<ResidencyLedger> ledger(new ResidencyLedger(*file, kRows));
  ledger->lock();
  ledger->reclaim_dead();
  for (std::uint32_t row = 0; row < kRows && ledger->row_ == kRows; ++row) {
    if ((*file)->rows[row].owner.pid != 0) continue;
    (*file)->rows[row].owner = {::getpid(), start_time(::getpid())};
    ledger->row_ = row;
  }
  ledger->unlock();
  if (ledger->row_ == kRows)
    return hal::fail(hal::Errc::kUnavailable,
                     "the ledger (" + path + ") has no row left (" + std::to_string(kRows) + ")");
  return ledger;
}

ResidencyLedger::~ResidencyLedger() {
  if (row_ != kRows) {
    lock();
    drop_row(row_);
    unlock();
  }
  ::munmap(file_, sizeof(LedgerFile));
}

void ResidencyLedger::lock() {
  if (pthread_mutex_lock(&file_->mutex) != EOWNERDEAD) return;
  pthread_mutex_consistent(&file_->mutex);
  rebuild_totals();
}

void ResidencyLedger::unlock() { pthread_mutex_unlock(&file_->mutex); }

SmUsage* ResidencyLedger::totals() { return file_->totals; }

void ResidencyLedger::change_presence(std::uint32_t sm, int change) {
  LedgerFile::Presence& presence = file_->presence[sm];
  const Nanoseconds now = monotonic_ns();
  if (presence.processes >= 2) presence.shared_ns += now - presence.changed_at;
  presence.changed_at = now;
  presence.processes = static_cast<std::uint32_t>(static_cast<int>(presence.processes) + change);
  presence.processes_max = std::max(presence.processes_max, presence.processes);
}

void ResidencyLedger::take(std::uint32_t sm, const SmUsage& usage) {
  SmUsage& mine = file_->rows[row_].used[sm];
  const bool first = mine.blocks == 0;
  mine += usage;
  file_->totals[sm] += usage;
  file_->presence[sm].blocks += usage.blocks;
  if (first) change_presence(sm, 1);
}

void ResidencyLedger::release(std::uint32_t sm, const SmUsage& usage) {
  SmUsage& mine = file_->rows[row_].used[sm];
  mine -= usage;
  file_->totals[sm] -= usage;
  if (mine.blocks == 0) change_presence(sm, -1);
}

void ResidencyLedger::drop_row(std::uint32_t row) {
  LedgerFile::Row& entry = file_->rows[row];
  for (std::uint32_t sm = 0; sm < file_->sms; ++sm) {
    if (entry.used[sm].blocks == 0) continue;
    file_->totals[sm] -= entry.used[sm];
    entry.used[sm] = SmUsage{};
    change_presence(sm, -1);
  }
  for (OpenMemory& open : file_->open) {
    open.openers &= ~(std::uint64_t{1} << row);
    if (open.memory.process == entry.owner.pid && open.memory.started == entry.owner.started)
      open.left = true;
  }
  entry.owner = ProcessKey{};
  Process& process = entry.process;
  process.memory = process.parked_memory = 0;
  process.state = ProcessState::kRunning;
  process.calls = 0;
  process.outstanding = 0;
  process.shared = 0;
}

bool ResidencyLedger::reclaim_dead() {
  bool freed = false;
  for (std::uint32_t row = 0; row < kRows; ++row) {
    const ProcessKey owner = file_->rows[row].owner;
    if (owner.pid == 0 || row == row_) continue;
    if (owner.started != 0 && start_time(owner.pid) == owner.started) continue;
    drop_row(row);
    freed = true;
  }
  return freed;
}

void ResidencyLedger::rebuild_totals() {
  for (std::uint32_t sm = 0; sm < file_->sms; ++sm) {
    SmUsage total;
    std::uint32_t present = 0;
    for (const LedgerFile::Row& row : file_->rows) {
      total += row.used[sm];
      if (row.used[sm].blocks != 0) ++present;
    }
    file_->totals[sm] = total;
    file_->presence[sm].processes = present;
  }
}

bool ResidencyLedger::take_memory(std::size_t bytes, std::size_t limit) {
  const std::lock_guard held(*this);
  std::size_t used = sum_of_memory();
  if (used + bytes > limit && reclaim_dead()) used = sum_of_memory();
  if (used + bytes > limit) return false;
  file_->rows[row_].process.memory += bytes;
  return true;
}

void ResidencyLedger::give_memory(std::size_t bytes) {
  const std::lock_guard held(*this);
  file_->rows[row_].process.memory -= bytes;
}

std::size_t ResidencyLedger::memory_used() {
  const std::lock_guard held(*this);
  reclaim_dead();
  return sum_of_memory();
}

std::size_t ResidencyLedger::sum_of_memory() const {
  std::size_t used = 0;
  for (const LedgerFile::Row& row : file_->rows) used += row.process.memory;
  for (const OpenMemory& open : file_->open)
    if (open.openers != 0 && open.left) used += open.bytes;
  return used;
}

// Counts first and looks then, as a process that locks this one sets the state first: one of the
// two sees the other.
void ResidencyLedger::enter_call() {
  Process& process = file_->rows[row_].process;
  for (;;) {
    ++process.calls;
    if (process.state == ProcessState::kRunning) return;
    --process.calls;
    while (process.state != ProcessState::kRunning)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void ResidencyLedger::leave_call() { --file_->rows[row_].process.calls; }

void ResidencyLedger::set_outstanding(std::uint64_t operations) {
  file_->rows[row_].process.outstanding.store(operations);
}

void ResidencyLedger::add_shared(int change) { file_->rows[row_].process.shared += change; }

ResidencyLedger::OpenMemory* ResidencyLedger::find_open(const SharedMemoryKey& memory) {
  for (OpenMemory& open : file_->open)
    if (open.openers != 0 && open.memory == memory) return &open;
  return nullptr;
}

bool ResidencyLedger::open_shared(const SharedMemoryKey& memory, std::size_t bytes) {
  const std::lock_guard held(*this);
  OpenMemory* open = find_open(memory);
  if (open == nullptr) {
    reclaim_dead();
    for (OpenMemory& unused : file_->open)
      if (unused.openers == 0) open = &unused;
    if (open == nullptr) return false;
    *open = {memory, bytes, 0, false};
  }
  open->openers |= std::uint64_t{1} << row_;
  return true;
}

bool ResidencyLedger::close_shared(const SharedMemoryKey& memory) {
  const std::lock_guard held(*this);
  reclaim_dead();
  OpenMemory* const open = find_open(memory);
  if (open == nullptr) return false;
  open->openers &= ~(std::uint64_t{1} << row_);
  return open->openers == 0 && open->left;
}

bool ResidencyLedger::leave_shared(const SharedMemoryKey& memory) {
  const std::lock_guard held(*this);
  reclaim_dead();
  OpenMemory* const open = find_open(memory);
  if (open != nullptr) open->left = true;
  return open != nullptr;
}

ResidencyLedger::Process* ResidencyLedger::find(std::int64_t pid) {
  for (LedgerFile::Row& row : file_->rows)
    if (pid != 0 && row.owner.pid == pid && start_time(pid) == row.owner.started)
      return &row.process;
  return nullptr;
}

std::optional<ProcessState> ResidencyLedger::state_of(std::int64_t pid) {
  const std::lock_guard held(*this);
  const Process* const process = find(pid);
  if (process == nullptr) return std::nullopt;
  return process->state.load();
}

void ResidencyLedger::set_state(std::int64_t pid, ProcessState state) {
  const std::lock_guard held(*this);
  if (Process* const process = find(pid)) process->state = state;
}

bool ResidencyLedger::is_shared(std::int64_t pid) {
  const std::lock_guard held(*this);
  const Process* const process = find(pid);
  return process != nullptr && process->shared != 0;
}

bool ResidencyLedger::is_busy(std::int64_t pid) {
  const std::lock_guard held(*this);
  const Process* const process = find(pid);
  return process != nullptr && (process->calls != 0 || process->outstanding != 0);
}

void ResidencyLedger::move_to_host(std::int64_t pid) {
  const std::lock_guard held(*this);
  if (Process* const process = find(pid))
    process->parked_memory = std::exchange(process->memory, 0);
}

bool ResidencyLedger::fits_back(std::int64_t pid, std::size_t limit) {
  const std::lock_guard held(*this);
  reclaim_dead();
  const Process* const process = find(pid);
  return process == nullptr || sum_of_memory() + process->parked_memory <= limit;
}

void ResidencyLedger::move_to_device(std::int64_t pid) {
  const std::lock_guard held(*this);
  if (Process* const process = find(pid))
    process->memory = std::exchange(process->parked_memory, 0);
}

std::vector<SmSharing> ResidencyLedger::sharing() const {
  std::vector<SmSharing> result;
  for (std::uint32_t sm = 0; sm < file_->sms; ++sm) {
    const LedgerFile::Presence& presence = file_->presence[sm];
    Nanoseconds shared = presence.shared_ns;
    if (presence.processes >= 2) shared += monotonic_ns() - presence.changed_at;
    result.push_back({presence.processes, presence.processes_max, shared, presence.blocks});
  }
  return result;
}

}  // namespace vitamin::soft
