// SPDX-License-Identifier: Apache-2.0
//
// QuotaLedger: how much device memory the processes of a group have, on one device, against one
// quota. It lies in memory that all of them share; there is no lock in it, so a process that is
// killed or stopped at any point holds up no other, and loses no byte.
//
// A process has one slot. `used` is what it was admitted; `wanted` is what it asks for at this
// moment. A charge is announced in `wanted` first, then all slots are added up, then it becomes
// `used`:
//
//   * Of two processes that announce at one time the later one sees the other's announcement. So
//     the sum of all that was admitted is never above the quota.
//   * Nothing but the words of the slots says what is in use. A process that dies at any point has
//     its slot emptied, and with it all that it had, admitted or only announced.
//   * A refusal is given only for what others were admitted. Announcements alone make the process
//     of the higher slot step back and wait until the lower one's is settled.
//
// Both words of a slot carry its generation, which changes with each owner. So a process that was
// delayed while it emptied the slot of a dead owner cannot empty the slot of the next owner.
//
// All zero is an empty ledger. Platform: Native, or the model checker's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include "daemon/protocol/shared.h"

namespace vitamin::protocol {

// Byte counts have 48 bits in a word, the generation the rest.
inline constexpr unsigned kByteBits = 48;
inline constexpr std::uint64_t kMostBytes = (std::uint64_t{1} << kByteBits) - 1;
constexpr std::uint64_t bytes_in(std::uint64_t word) { return word & kMostBytes; }
constexpr std::uint64_t generation_in(std::uint64_t word) { return word >> kByteBits; }
constexpr std::uint64_t emptied(std::uint64_t word) {
  return (generation_in(word) + 1) << kByteBits;
}

template <class Platform>
struct alignas(64) QuotaSlot {
  template <class T>
  using Atomic = typename Platform::template Atomic<T>;
  Atomic<std::uint64_t> owner;    // 0: free
  Atomic<std::uint64_t> used;     // generation and bytes
  Atomic<std::uint64_t> wanted;   // the same; of another generation than `used`: nothing
  Atomic<std::uint64_t> refused;  // charges, since the slot was claimed; for people
  Atomic<std::uint64_t> over;     // bytes of `used` that were charged without being admitted
  // The most bytes that this owner noted, which stay after its end until the slot is claimed again.
  Atomic<std::uint64_t> peak_owner;
  Atomic<std::uint64_t> peak;
};

// What a charge does after a pause: tries again; first empties the slots of dead processes; or is
// refused.
enum class RetryDecision : std::uint8_t { kRetry, kReturnDead, kGiveUp };

inline constexpr std::size_t kNoQuotaSlot = std::numeric_limits<std::size_t>::max();

template <class Platform, std::size_t kSlots>
class QuotaLedger {
 public:
  template <class T>
  using Atomic = typename Platform::template Atomic<T>;
  using Slot = QuotaSlot<Platform>;

  struct Sum {
    std::uint64_t used = 0;
    std::uint64_t wanted = 0;
    std::uint64_t wanted_below = 0;  // by slots below the one that asks
  };

  std::uint64_t quota() const { return quota_.load(std::memory_order_seq_cst); }
  // May be below what is in use: then nothing is admitted until it is not.
  void set_quota(std::uint64_t bytes) {
    quota_.store(std::min(bytes, kMostBytes), std::memory_order_seq_cst);
  }
  // The pid namespace in which the ids of owners hold; 0: not set yet. The first value stays.
  std::uint64_t agree_on_space(std::uint64_t space) {
    std::uint64_t none = 0;
    return space_.compare_exchange_strong(none, space, std::memory_order_seq_cst) ? space : none;
  }

  // A slot for this owner, empty. A slot that it has already (of its image before exec) is taken
  // over. kNoQuotaSlot: all are taken by owners that are not known to be dead.
  template <class Dead>
  std::size_t claim(std::uint64_t owner, Dead dead) {
    if (const std::size_t i = find(owner); i != kNoQuotaSlot) return take(i, owner);
    return_dead(dead);
    for (std::size_t i = 0; i < kSlots; ++i) {
      reach(i + 1);
      std::uint64_t free = 0;
      if (slots_[i].owner.compare_exchange_strong(free, owner, std::memory_order_seq_cst))
        return take(i, owner);
    }
    return kNoQuotaSlot;
  }
  // As if the owner were gone.
  void release(std::uint64_t owner) {
    return_dead([owner](std::uint64_t other) { return other == owner; });
  }
  // kNoQuotaSlot: this owner has none.
  std::size_t find(std::uint64_t owner) const {
    for (std::size_t i = 0; i < end(); ++i)
      if (slots_[i].owner.load(std::memory_order_seq_cst) == owner) return i;
    return kNoQuotaSlot;
  }

  // Nothing: this owner has no slot.
  std::optional<std::uint64_t> used_by(std::uint64_t owner) const {
    const std::size_t i = find(owner);
    if (i == kNoQuotaSlot) return std::nullopt;
    return bytes_in(slots_[i].used.load(std::memory_order_seq_cst));
  }

  // The most that this owner had; nothing: it has no slot, or the slot was claimed since its end.
  std::optional<std::uint64_t> peak_of(std::uint64_t owner) const {
    for (std::size_t i = 0; i < end(); ++i)
      if (slots_[i].peak_owner.load(std::memory_order_relaxed) == owner)
        return slots_[i].peak.load(std::memory_order_relaxed);
    return std::nullopt;
  }

  // Slots whose owner is gone are emptied. True: some had bytes.
  template <class Dead>
  bool return_dead(Dead dead) {
    bool returned = false;
    for (std::size_t i = 0; i < end(); ++i) {
      // In this order: an owner that is read after the words was theirs (empty() compares them).
      const std::uint64_t used = slots_[i].used.load(std::memory_order_seq_cst);
      const std::uint64_t wanted = slots_[i].wanted.load(std::memory_order_seq_cst);
      std::uint64_t owner = slots_[i].owner.load(std::memory_order_seq_cst);
      if (owner == 0 || !dead(owner)) continue;
      std::uint64_t expected = used;
      if (!slots_[i].used.compare_exchange_strong(expected, emptied(used),
                                                  std::memory_order_seq_cst))
        continue;
      slots_[i].owner.compare_exchange_strong(owner, 0, std::memory_order_seq_cst);
      returned = returned || bytes_in(used) != 0 || live(used, wanted) != 0;
    }
    return returned;
  }

  Sum add_up(std::size_t asking = 0) const {
    Sum sum;
    const std::size_t slots = end();
    for (std::size_t i = 0; i < slots; ++i) {
      // In this order: what is admitted between the two reads is counted twice, not missed.
      const std::uint64_t announced = slots_[i].wanted.load(std::memory_order_seq_cst);
      const std::uint64_t used = slots_[i].used.load(std::memory_order_seq_cst);
      const std::uint64_t wanted = live(used, announced);
      sum.used += bytes_in(used);
      sum.wanted += wanted;
      if (i < asking) sum.wanted_below += wanted;
    }
    return sum;
  }

  // By the slot's owner, one thread at a time. `dead(owner)`: whether a process is gone for sure;
  // asked before a refusal. `wait(n)`: pauses before the next try and decides what is done then; at
  // the end what others only announced is taken for theirs.
  template <class Dead, class Wait>
  bool charge(std::size_t slot, std::uint64_t bytes, Dead dead, Wait wait) {
    Slot& mine = slots_[slot];
    const std::uint64_t none = generation_in(mine.used.load(std::memory_order_relaxed))
                               << kByteBits;
    if (bytes > quota()) return refuse(mine, none);
    for (unsigned tries = 0;; ++tries) {
      mine.wanted.store(none | bytes, std::memory_order_seq_cst);
      const Sum sum = add_up(slot);
      const std::uint64_t quota = this->quota();
      if (sum.used + sum.wanted <= quota) {
        // Counted twice for a moment, which makes others wait and refuses nothing to them.
        mine.used.fetch_add(bytes, std::memory_order_seq_cst);
        mine.wanted.store(none, std::memory_order_seq_cst);
        return true;
      }
      if (sum.used + bytes > quota) {
        mine.wanted.store(none, std::memory_order_seq_cst);
        if (return_dead(dead)) continue;
        if (stays_used(quota, bytes) || wait(tries) == RetryDecision::kGiveUp)
          return refuse(mine, none);
        continue;
      }
      if (sum.used + sum.wanted_below + bytes > quota)
        mine.wanted.store(none, std::memory_order_seq_cst);  // lower slots come first
      const RetryDecision next = wait(tries);
      if (next != RetryDecision::kRetry && !return_dead(dead) && next == RetryDecision::kGiveUp)
        return refuse(mine, none);
    }
  }
  // What the device has given out already, admitted or not: then `used` may be above the quota. By
  // any thread of the slot's owner.
  void charge_unasked(std::size_t slot, std::uint64_t bytes) {
    slots_[slot].over.fetch_add(bytes, std::memory_order_relaxed);
    slots_[slot].used.fetch_add(bytes, std::memory_order_seq_cst);
  }
  // The slot's owner has so many bytes now, which may be fewer than it was charged: another ledger
  // or the device may refuse what it asks for. By any of its threads.
  void note_peak(std::size_t slot, std::uint64_t bytes) {
    std::uint64_t peak = slots_[slot].peak.load(std::memory_order_relaxed);
    while (peak < bytes &&
           !slots_[slot].peak.compare_exchange_strong(peak, bytes, std::memory_order_relaxed)) {
    }
  }
  // By the slot's owner: at most what was charged.
  void give_back(std::size_t slot, std::uint64_t bytes) {
    slots_[slot].used.fetch_sub(bytes, std::memory_order_seq_cst);
  }

  std::size_t end() const {
    return std::min<std::size_t>(end_.load(std::memory_order_seq_cst), kSlots);
  }
  const Slot& slot(std::size_t i) const { return slots_[i]; }
  std::uint64_t refused() const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < end(); ++i)
      sum += slots_[i].refused.load(std::memory_order_relaxed);
    return sum;
  }

 private:
  static constexpr std::uint64_t live(std::uint64_t used, std::uint64_t wanted) {
    return generation_in(used) == generation_in(wanted) ? bytes_in(wanted) : 0;
  }
  void reach(std::size_t end) {
    std::uint64_t now = end_.load(std::memory_order_seq_cst);
    while (now < end && !end_.compare_exchange_strong(now, end, std::memory_order_seq_cst)) {
    }
  }
  // The slot is this owner's: it begins with nothing, in a generation of its own.
  std::size_t take(std::size_t i, std::uint64_t owner) {
    std::uint64_t used = slots_[i].used.load(std::memory_order_seq_cst);
    while (
        !slots_[i].used.compare_exchange_strong(used, emptied(used), std::memory_order_seq_cst)) {
    }
    slots_[i].refused.store(0, std::memory_order_relaxed);
    slots_[i].over.store(0, std::memory_order_relaxed);
    if (slots_[i].peak_owner.load(std::memory_order_relaxed) != owner) {
      slots_[i].peak.store(0, std::memory_order_relaxed);
      slots_[i].peak_owner.store(owner, std::memory_order_relaxed);
    }
    return i;
  }
  bool refuse(Slot& mine, std::uint64_t none) {
    mine.wanted.store(none, std::memory_order_seq_cst);
    mine.refused.store(mine.refused.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return false;
  }
  // Whether the slots, none of which changed while they were read twice, leave no room: memory that
  // one process gave back and another got meanwhile would be counted twice otherwise.
  bool stays_used(std::uint64_t quota, std::uint64_t bytes) const {
    std::array<std::uint64_t, kSlots> before{};
    const std::size_t slots = end();
    for (std::size_t i = 0; i < slots; ++i)
      before[i] = slots_[i].used.load(std::memory_order_seq_cst);
    std::uint64_t used = 0;
    for (std::size_t i = 0; i < slots; ++i) {
      if (slots_[i].used.load(std::memory_order_seq_cst) != before[i]) return false;
      used += bytes_in(before[i]);
    }
    return used + bytes > quota;
  }

  Atomic<std::uint64_t> quota_;
  Atomic<std::uint64_t> space_;
  Atomic<std::uint64_t> end_;  // no slot at or beyond it was ever claimed
  std::array<Slot, kSlots> slots_;
};

inline constexpr std::size_t kQuotaSlots = 512;
using NativeQuotaLedger = QuotaLedger<Native, kQuotaSlots>;

}  // namespace vitamin::protocol
