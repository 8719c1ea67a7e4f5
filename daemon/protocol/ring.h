// SPDX-License-Identifier: Apache-2.0
//
// A ring of 64-byte records with one producer and one consumer that do not trust each other.
//
//      producer's memory                     consumer's memory
//      (the consumer reads only)             (the producer reads only)
//      +------+-------------------+          +------+
//      | tail | cell 0 ... cell n |          | head |
//      +------+-------------------+          +------+
//
// Every word has one writer, so neither side can undo what the other wrote. The indices count
// records and never wrap (64 bits); a side keeps its own index in private memory and only publishes
// it. It checks the index that the other side publishes: an impossible one is kBroken, and the ring
// is not used any more.
//
// A consumer copies a cell once, word by word, into private memory, and then reads only the copy
// (record.h validates it). A producer that writes to the cell meanwhile changes no more than what
// is copied.
//
// A process that dies between any two instructions leaves the records it published, whole and in
// order, and nothing else (tests/protocol/kill_test.cpp).
//
// Platform: shared.h. Threads: one at a time on each side.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "daemon/protocol/record.h"

namespace vitamin::protocol {

template <class Platform>
using RingIndex = typename Platform::template Atomic<std::uint64_t>;
template <class Platform>
using RingCell = std::array<typename Platform::template Atomic<std::uint64_t>, kRecordWords>;

enum class RingState : std::uint8_t {
  kOk,
  kFull,    // nothing written
  kEmpty,   // nothing read
  kBroken,  // the other side published an impossible index
};

template <class Platform, std::size_t kCapacity>
class RingProducer {
  static_assert(kCapacity > 0 && (kCapacity & (kCapacity - 1)) == 0);

 public:
  using Cells = std::array<RingCell<Platform>, kCapacity>;
  RingProducer() = default;
  RingProducer(Cells& cells, RingIndex<Platform>& tail, const RingIndex<Platform>& head)
      : cells_(&cells), tail_(&tail), head_(&head) {}

  // Writes one record that the consumer does not see before publish().
  RingState write(const Record& record) {
    if (next_ - head_seen_ >= kCapacity) {
      const std::uint64_t head = head_->load(std::memory_order_acquire);
      if (head < head_seen_ || head > next_) return RingState::kBroken;
      head_seen_ = head;
      if (next_ - head_seen_ >= kCapacity) return RingState::kFull;
    }
    RingCell<Platform>& cell = (*cells_)[next_ % kCapacity];
    for (std::size_t i = 0; i < kRecordWords; ++i)
      cell[i].store(record.words[i], std::memory_order_relaxed);
    ++next_;
    return RingState::kOk;
  }
  // Sequentially consistent: the producer then reads whether the consumer sleeps (sleep_flag.h).
  void publish() { tail_->store(next_, std::memory_order_seq_cst); }

  std::uint64_t written() const { return next_; }
  // Cells that can be written now.
  std::uint64_t room() const {
    const std::uint64_t used = next_ - head_->load(std::memory_order_acquire);
    return used < kCapacity ? kCapacity - used : 0;
  }

 private:
  Cells* cells_ = nullptr;
  RingIndex<Platform>* tail_ = nullptr;
  const RingIndex<Platform>* head_ = nullptr;
  std::uint64_t next_ = 0;
  std::uint64_t head_seen_ = 0;
};

template <class Platform, std::size_t kCapacity>
class RingConsumer {
  static_assert(kCapacity > 0 && (kCapacity & (kCapacity - 1)) == 0);

 public:
  using Cells = std::array<RingCell<Platform>, kCapacity>;
  RingConsumer() = default;
  RingConsumer(const Cells& cells, const RingIndex<Platform>& tail, RingIndex<Platform>& head)
      : cells_(&cells), tail_(&tail), head_(&head) {}

  // Copies out the oldest record. Its cell is the producer's again after release().
  RingState read(Record& record) {
    if (next_ == tail_seen_) {
      const std::uint64_t tail = tail_->load(std::memory_order_acquire);
      if (tail == next_) return RingState::kEmpty;
      if (tail < next_ || tail - next_ > kCapacity) return RingState::kBroken;
      tail_seen_ = tail;
    }
    const RingCell<Platform>& cell = (*cells_)[next_ % kCapacity];
    for (std::size_t i = 0; i < kRecordWords; ++i)
      record.words[i] = cell[i].load(std::memory_order_relaxed);
    ++next_;
    return RingState::kOk;
  }
  void release() {
    if (released_ == next_) return;
    head_->store(next_, std::memory_order_release);
    released_ = next_;
  }
  // Before sleeping; sequentially consistent for the same reason as publish().
  bool empty() const {
    return next_ == tail_seen_ && tail_->load(std::memory_order_seq_cst) == next_;
  }

 private:
  const Cells* cells_ = nullptr;
  const RingIndex<Platform>* tail_ = nullptr;
  RingIndex<Platform>* head_ = nullptr;
  std::uint64_t next_ = 0;
  std::uint64_t tail_seen_ = 0;
  std::uint64_t released_ = 0;
};

}  // namespace vitamin::protocol
