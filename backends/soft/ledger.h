// SPDX-License-Identifier: Apache-2.0
//
// What is resident on each SM, for one engine or for every process that shares the device.
//
// Residency is the table that block placement reads and writes. ResidencyLedger is the same table
// in a file that several processes map: one row a process, totals over all rows, a robust
// process-shared mutex. A process that died is found by its process id and start time and its row
// is taken out. The rows also have the device memory of each process, and what checkpoints need of
// it: whether it is locked, and what it is doing. Memory that a process opened by another one's
// handle is in use, of no process, from the time its owner freed it or ended until no process has
// it open (freed_memory_of_another_process.trace, memory_of_a_killed_process.trace).
#pragma once

#include <pthread.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/soft/engine.h"

namespace vitamin::soft {

// Resources of one SM in use, or what one block needs.
struct SmUsage {
  std::uint32_t threads = 0, blocks = 0, shared_bytes = 0, registers = 0;

  bool fits(const SmUsage& more, const SmLimits& limits) const {
    return threads + more.threads <= limits.threads && blocks + more.blocks <= limits.blocks &&
           shared_bytes + more.shared_bytes <= limits.shared_bytes &&
           registers + more.registers <= limits.registers;
  }
  // How many blocks of `each` still fit.
  std::uint32_t room(const SmUsage& each, const SmLimits& limits) const;
  SmUsage& operator+=(const SmUsage& other);
  SmUsage& operator-=(const SmUsage& other);
};

struct LedgerFile;  // the layout of the mapped file, ledger.cpp

// Memory that has a handle: its owner and where it lies with it.
struct SharedMemoryKey {
  std::int64_t process = 0;
  std::uint64_t started = 0, offset = 0;
  bool operator==(const SharedMemoryKey&) const = default;
};

// The values are those of CUprocessState. Parked: its device memory is on the host.
enum class ProcessState : std::uint32_t { kRunning, kLocked, kParked };

class ResidencyLedger {
 public:
  // Maps `path`, which is made when it is not there, and takes a row.
  static hal::Result<std::unique_ptr<ResidencyLedger>> attach(const std::string& path,
                                                              std::uint32_t sms);
  ~ResidencyLedger();  // gives the row back
  ResidencyLedger(const ResidencyLedger&) = delete;
  ResidencyLedger& operator=(const ResidencyLedger&) = delete;

  void lock();
  void unlock();
  SmUsage* totals();  // one element an SM, over all processes
  // These need the lock.
  void take(std::uint32_t sm, const SmUsage& usage);
  void release(std::uint32_t sm, const SmUsage& usage);
  bool reclaim_dead();  // true: something came free
  std::vector<SmSharing> sharing() const;

  // The rest takes the lock itself.
  //
  // Device memory of this process. take_memory answers false where all processes together would
  // have more than `limit`.
  bool take_memory(std::size_t bytes, std::size_t limit);
  void give_memory(std::size_t bytes);
  std::size_t memory_used();  // of all processes

  // The calls of this process into its driver: enter_call waits while the process is locked.
  void enter_call();
  void leave_call();
  void set_outstanding(std::uint64_t operations);
  // Memory of this process that others may have, and theirs that it has: one more or one fewer.
  void add_shared(int change);
  // This process opens another one's memory, or closes it. open_shared answers false where no more
  // can be open on the device; close_shared, whether the memory is gone with it: its owner has
  // freed it or has ended, and no other process has it open.
  bool open_shared(const SharedMemoryKey& memory, std::size_t bytes);
  bool close_shared(const SharedMemoryKey& memory);
  // This process frees memory of its own, after which give_memory() follows. Whether others have it
  // open, so that it stays what it is.
  bool leave_shared(const SharedMemoryKey& memory);

  // Another process, or this one. Nothing, or false: it has no row.
  std::optional<ProcessState> state_of(std::int64_t pid);
  void set_state(std::int64_t pid, ProcessState state);
  // Whether it has given a handle of its memory to others or has opened one.
  bool is_shared(std::int64_t pid);
  bool is_busy(std::int64_t pid);  // inside of a call, or with operations that have not ended
  void move_to_host(std::int64_t pid);
  bool fits_back(std::int64_t pid, std::size_t limit);
  void move_to_device(std::int64_t pid);

  struct Process;     // ledger.cpp
  struct OpenMemory;  // ledger.cpp

 private:
  Process* find(std::int64_t pid);
  std::size_t sum_of_memory() const;
  ResidencyLedger(LedgerFile* file, std::uint32_t row) : file_(file), row_(row) {}
  void change_presence(std::uint32_t sm, int change);
  void drop_row(std::uint32_t row);
  OpenMemory* find_open(const SharedMemoryKey& memory);
  void rebuild_totals();

  LedgerFile* file_;
  std::uint32_t row_;
};

// Placement's view. Without a ledger the table is private and lock() does nothing.
class Residency {
 public:
  Residency(std::uint32_t sms, const SmLimits& limits, std::unique_ptr<ResidencyLedger> ledger)
      : limits_(limits),
        own_(ledger == nullptr ? sms : 0),
        ledger_(std::move(ledger)),
        table_(ledger_ == nullptr ? own_.data() : ledger_->totals()) {}

  void lock() {
    if (ledger_ != nullptr) ledger_->lock();
  }
  void unlock() {
    if (ledger_ != nullptr) ledger_->unlock();
  }
  bool fits(std::uint32_t sm, const SmUsage& block) const {
    return table_[sm].fits(block, limits_);
  }
  std::uint32_t room(std::uint32_t sm, const SmUsage& block) const {
    return table_[sm].room(block, limits_);
  }
  void take(std::uint32_t sm, const SmUsage& block) {
    if (ledger_ != nullptr)
      ledger_->take(sm, block);
    else
      table_[sm] += block;
  }
  void release(std::uint32_t sm, const SmUsage& block) {
    if (ledger_ != nullptr)
      ledger_->release(sm, block);
    else
      table_[sm] -= block;
  }
  ResidencyLedger* ledger() const { return ledger_.get(); }
  const SmLimits& limits() const { return limits_; }

 private:
  SmLimits limits_;
  std::vector<SmUsage> own_;
  std::unique_ptr<ResidencyLedger> ledger_;
  SmUsage* table_;
};

}  // namespace vitamin::soft
