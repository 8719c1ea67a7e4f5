// SPDX-License-Identifier: Apache-2.0
//
// Quotas of device memory: what this process is charged for the memory that it has, in the ledgers
// of the groups that it is of (daemon/protocol/quota_ledger.h). The vendor's directory says which
// calls take and give memory.
//
// An allocation is charged before the vendor's call is made, and given back when that refuses it;
// memory that is freed is given back after the call. So the group never has more than its quota.
// Where there is no quota nothing here is done, but for one load.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "daemon/protocol/quota_file.h"
#include "interpose/process_state.h"
#include "interpose/vendor.h"

namespace vitamin::interpose {

// What the vendor says of a device, natively. Empty: there is no such device.
struct MemoryFacts {
  std::string uuid;
  std::uint64_t total = 0;  // bytes
};
std::optional<MemoryFacts> memory_facts(int ordinal);  // by the vendor

// The quotas that bound this process on one device, innermost first.
class DeviceQuotas {
 public:
  struct View {
    std::uint64_t total = 0;
    std::uint64_t free = 0;
  };

  // False: one of the groups has no room.
  bool charge(std::uint64_t bytes);
  // What the device gives beyond all charges, whether or not there is room.
  void charge_unasked(std::uint64_t bytes);
  // Of a charge that is not needed: the process did not get it.
  void uncharge(std::uint64_t bytes);
  // What was charged is the process's now. Its peak counts only this.
  void got(std::uint64_t bytes);
  // It has no longer what it got, and is not charged for it.
  void give_back(std::uint64_t bytes);
  // The same, but it stays charged.
  void lost(std::uint64_t bytes);
  // What the device says, bounded by what the groups may have.
  View bounded(View real);
  // Says once why an allocation of so many bytes is refused.
  void explain(std::uint64_t bytes);
  // The device refused what the quotas leave room for: says so once. `real`: what it says itself.
  void explain_device(std::uint64_t bytes, View real);

 private:
  friend DeviceQuotas* quotas_of(const MemoryFacts& facts);
  struct Account {
    protocol::MappedLedger ledger;
    std::size_t slot = 0;
    std::string whose;  // "of this run"
  };
  static std::unique_ptr<DeviceQuotas> make(const MemoryFacts& facts);
  void add_run(const MemoryFacts& facts);
  void add_groups(const MemoryFacts& facts);
  // `owner`: this process's number in a ledger of vitamind; 0: it is no ledger of vitamind.
  void add(hal::Result<protocol::MappedLedger> ledger, std::uint64_t quota, std::string whose,
           const MemoryFacts& facts, std::uint64_t owner = 0);

  std::string uuid_;
  std::vector<Account> accounts_;
  std::mutex charging_;  // a slot announces one charge at a time
  std::atomic<std::uint64_t> has_{0};
};

// Memory that the vendor takes of a device in pieces of its own choice, to give allocations out of
// it: charged before a call with what that may add, after it with what the vendor says it has
// reserved.
class ReservedMemory {
 public:
  // Before anything else. Null: nothing bounds it, and nothing else is called.
  void begin(DeviceQuotas* quotas) { quotas_ = quotas; }
  DeviceQuotas* quotas() const { return quotas_; }

  // For a call that is made now. False: there is no room.
  bool charge(std::uint64_t bytes);
  // That call has answered.
  void landed(std::uint64_t bytes);
  // The charge follows what is reserved: down at once, up as far as there is room. False: not all.
  bool settle(std::uint64_t reserved);
  // What is reserved beyond the charge is counted, whether or not there is room.
  void settle_at_any_price(std::uint64_t reserved);
  // Gives back so much of the charge, or all.
  void release(std::uint64_t bytes);
  std::uint64_t covered() const;

 private:
  void set_has(std::uint64_t bytes);  // under mutex_

  DeviceQuotas* quotas_ = nullptr;
  mutable std::mutex mutex_;
  std::uint64_t covered_ = 0;    // is charged for
  std::uint64_t in_flight_ = 0;  // part of that, for calls that are being made
  std::uint64_t has_ = 0;        // part of that, which was reserved when it was settled
};

// Null: nothing bounds this process there.
DeviceQuotas* quotas_of(int ordinal);
// The same for a device that is known otherwise, whether or not the vendor's runtime is in use.
DeviceQuotas* quotas_of(const MemoryFacts& facts);

enum class QuotaState : std::uint8_t { kUnknown, kNone, kSome };
extern constinit std::atomic<QuotaState> quota_state;
QuotaState find_quota_state();
// Nothing bounds this process on any device.
inline bool no_quotas() {
  const QuotaState state = quota_state.load(std::memory_order_relaxed);
  return state == QuotaState::kNone ||
         (state == QuotaState::kUnknown && find_quota_state() == QuotaState::kNone);
}

// "1.5 GiB".
std::string bytes_text(std::uint64_t bytes);

// --- what was charged for ------------------------------------------------------------------------

struct ChargedMemory {
  DeviceQuotas* quotas = nullptr;
  std::uint64_t bytes = 0;
  NativeContext context{};  // it ends with that
  void* pool = nullptr;     // the vendor's record of its pool, which is charged itself
};
// `handle`: its address, or the handle of an array.
void note_charged(const void* handle, const ChargedMemory& memory);
// Before it is freed: the next owner of the same address finds none. Null: not known.
std::unique_ptr<ChargedMemory> take_charged(const void* handle);
// The context has ended, and all its memory with it.
void give_back_context(NativeContext context);

}  // namespace vitamin::interpose
