// SPDX-License-Identifier: Apache-2.0
//
// The very templates of ring.h and sleep_flag.h over relacy's atomics: every interleaving and every
// value that the memory model lets a load return, within a bound on context switches.
#include <doctest/doctest.h>

#include "daemon/protocol/quota_ledger.h"
#include "daemon/protocol/ring.h"
#include "daemon/protocol/sleep_flag.h"

// Last: it replaces words of the language by macros.
#include <relacy/relacy.hpp>

namespace {

using vitamin::protocol::QuotaLedger;
using vitamin::protocol::Record;
using vitamin::protocol::RetryDecision;
using vitamin::protocol::RingConsumer;
using vitamin::protocol::RingProducer;
using vitamin::protocol::RingState;
using vitamin::protocol::SleepFlag;

rl::memory_order order_of(std::memory_order order) {
  switch (order) {
    case std::memory_order::relaxed:
      return rl::mo_relaxed;
    case std::memory_order::acquire:
      return rl::mo_acquire;
    case std::memory_order::release:
      return rl::mo_release;
    default:
      return rl::mo_seq_cst;
  }
}

// As written, and with one mistake planted: the model must find it.
enum class Planted { kNone, kRelaxedPublish, kNoFence };

template <Planted kPlanted>
struct Model {
  template <class T>
  class Atomic {
   public:
    Atomic() { value_.store(T{}, rl::mo_relaxed, $); }
    T load(std::memory_order order) const { return value_.load(changed(order), $); }
    void store(T value, std::memory_order order) { value_.store(value, changed(order), $); }

   private:
    static rl::memory_order changed(std::memory_order order) {
      if (kPlanted == Planted::kRelaxedPublish) return rl::mo_relaxed;
      if (kPlanted == Planted::kNoFence && order == std::memory_order::seq_cst)
        return rl::mo_relaxed;
      return order_of(order);
    }
    mutable rl::atomic<T> value_;
  };
};

// Three records through a ring of two cells: the consumer must see them whole and in order.
template <Planted kPlanted>
struct RingModel : rl::test_suite<RingModel<kPlanted>, 2> {
  static constexpr std::uint64_t kMany = 3;
  using Platform = Model<kPlanted>;
  typename RingProducer<Platform, 2>::Cells cells;
  vitamin::protocol::RingIndex<Platform> tail, head;

  void thread(unsigned index) {
    if (index == 0) {
      RingProducer<Platform, 2> producer(cells, tail, head);
      for (std::uint64_t i = 1; i <= kMany;) {
        Record record;
        record.words[0] = i;
        record.words[7] = i;
        if (producer.write(record) == RingState::kOk) ++i;
        producer.publish();
        rl::yield(1, $);
      }
    } else {
      RingConsumer<Platform, 2> consumer(cells, tail, head);
      for (std::uint64_t i = 1; i <= kMany;) {
        Record record;
        const RingState state = consumer.read(record);
        RL_ASSERT(state != RingState::kBroken);
        if (state == RingState::kOk) {
          RL_ASSERT(record.words[0] == i && record.words[7] == i);
          ++i;
        }
        consumer.release();
        rl::yield(1, $);
      }
    }
  }
};

// The producer publishes once and rings if the consumer sleeps; the consumer sleeps when it sees
// nothing. Asleep with work published and no ring: a lost wake-up.
template <Planted kPlanted>
struct SleepModel : rl::test_suite<SleepModel<kPlanted>, 2> {
  using Platform = Model<kPlanted>;
  typename RingProducer<Platform, 2>::Cells cells;
  vitamin::protocol::RingIndex<Platform> tail, head;
  SleepFlag<Platform> flag;
  bool rung = false, slept = false;  // each written by one thread, read when both have ended

  void thread(unsigned index) {
    if (index == 0) {
      RingProducer<Platform, 2> producer(cells, tail, head);
      producer.write(Record{});
      producer.publish();
      rung = flag.asleep();
    } else {
      RingConsumer<Platform, 2> consumer(cells, tail, head);
      slept = flag.try_sleep([&] { return consumer.empty(); });
    }
  }
  void after() { RL_ASSERT(!slept || rung); }
};

// The ledger of device memory: processes of a group charge at the same time, and may be killed.
enum class LedgerMistake { kNone, kRelaxed, kBlind };

// A process that is killed before its n-th write changes nothing any more.
struct Mortal {
  unsigned writes_left = ~0U;
  bool dead() const { return writes_left == 0; }
};
constexpr unsigned kLedgerThreads = 3;
Mortal mortals[kLedgerThreads + 1];
bool survivor = false;  // who acts now is none of them
Mortal& running() { return mortals[rl::ctx().threadx_->index_]; }
bool acts() { return survivor || !running().dead(); }
void wrote() {
  if (!survivor) --running().writes_left;
}

template <LedgerMistake kMistake>
struct LedgerPlatform {
  template <class T>
  class Atomic {
   public:
    Atomic() { value_.store(T{}, rl::mo_relaxed, $); }
    T load(std::memory_order order) const { return value_.load(changed(order), $); }
    void store(T value, std::memory_order order) {
      if (!acts()) return;
      value_.store(value, changed(order), $);
      wrote();
    }
    bool compare_exchange_strong(T& expected, T value, std::memory_order order) {
      if (!acts()) return true;
      bool exchanged = true;
      if (kMistake == LedgerMistake::kBlind)
        value_.store(value, changed(order), $);
      else
        exchanged = value_.compare_exchange_strong(expected, value, changed(order), $);
      wrote();
      return exchanged;
    }
    T fetch_add(T value, std::memory_order order) {
      if (!acts()) return T{};
      const T before = value_.fetch_add(value, changed(order), $);
      wrote();
      return before;
    }
    T fetch_sub(T value, std::memory_order order) { return fetch_add(-value, order); }

   private:
    static rl::memory_order changed(std::memory_order order) {
      if (kMistake == LedgerMistake::kRelaxed && order == std::memory_order::seq_cst)
        return rl::mo_relaxed;
      return order_of(order);
    }
    mutable rl::atomic<T> value_;
  };
};

constexpr std::uint64_t owner_number(unsigned thread) { return thread + 1; }
// A process that is gone itself finds out nothing more.
auto dead_owners() {
  return [](std::uint64_t owner) { return acts() && mortals[owner - 1].dead(); };
}

// Each of the threads asks for half of the quota: two of them get it, never three. kMayDie: the
// first one may be killed before any of its writes, and what it had is there for the others.
template <LedgerMistake kMistake, bool kMayDie>
struct LedgerModel : rl::test_suite<LedgerModel<kMistake, kMayDie>, kLedgerThreads> {
  using Ledger = QuotaLedger<LedgerPlatform<kMistake>, kLedgerThreads>;
  Ledger ledger;
  bool admitted[kLedgerThreads] = {};
  unsigned slots[kLedgerThreads] = {};

  void before() {
    for (Mortal& each : mortals) each = {};
    survivor = false;
    ledger.set_quota(10);
    for (unsigned i = 0; i < kLedgerThreads; ++i)
      slots[i] = static_cast<unsigned>(ledger.claim(owner_number(i), dead_owners()));
    if (kMayDie) mortals[0].writes_left = rl::rand(5);
  }
  void thread(unsigned index) {
    admitted[index] = ledger.charge(slots[index], 5, dead_owners(), [&](unsigned) {
      rl::yield(1, $);
      return mortals[index].dead() ? RetryDecision::kGiveUp : RetryDecision::kReturnDead;
    });
    unsigned at_once = 0;
    for (unsigned i = 0; i < kLedgerThreads; ++i) at_once += admitted[i] && !mortals[i].dead();
    RL_ASSERT(at_once <= 2);
  }
  void after() {
    survivor = true;
    ledger.return_dead(dead_owners());
    unsigned living = 0, lived = 0;
    for (unsigned i = 0; i < kLedgerThreads; ++i) {
      if (mortals[i].dead()) continue;
      ++lived;
      living += admitted[i] ? 1 : 0;
    }
    const auto sum = ledger.add_up();
    RL_ASSERT(sum.used == 5 * living && sum.wanted == 0);
    // With one dead the two others have room, unless they were refused while it lived.
    if (lived == kLedgerThreads) RL_ASSERT(living == 2);
  }
};

// The slot of a dead process is emptied by two others at the same time while a third one claims it.
template <LedgerMistake kMistake>
struct SlotModel : rl::test_suite<SlotModel<kMistake>, kLedgerThreads> {
  using Ledger = QuotaLedger<LedgerPlatform<kMistake>, 1>;
  Ledger ledger;
  std::size_t slot = 0;

  void before() {
    for (Mortal& each : mortals) each = {};
    survivor = false;
    ledger.set_quota(10);
    ledger.claim(owner_number(kLedgerThreads), dead_owners());
    ledger.charge_unasked(0, 7);
    mortals[kLedgerThreads].writes_left = 0;
  }
  void thread(unsigned index) {
    if (index < 2) {
      if (index == 0) mortals[0].writes_left = rl::rand(3);
      ledger.return_dead(dead_owners());
      return;
    }
    while ((slot = ledger.claim(owner_number(index), dead_owners())) != 0) rl::yield(1, $);
    ledger.charge_unasked(0, 3);
  }
  void after() { RL_ASSERT(ledger.add_up().used == 3); }
};

template <class Suite>
bool holds(unsigned context_bound) {
  rl::test_params params;
  params.search_type = rl::sched_bound;
  params.context_bound = context_bound;
  params.execution_depth_limit = 20000;
  std::ostream silent(nullptr);
  params.output_stream = &silent;
  params.progress_stream = &silent;
  const bool held = rl::simulate<Suite>(params);
  MESSAGE("executions: " << params.stop_iteration);
  return held;
}

}  // namespace

TEST_CASE("no interleaving reorders, loses or tears a record") {
  CHECK(holds<RingModel<Planted::kNone>>(3));
}
TEST_CASE("the model finds a publication that is not released") {
  CHECK_FALSE(holds<RingModel<Planted::kRelaxedPublish>>(2));
}
TEST_CASE("no interleaving loses a wake-up") { CHECK(holds<SleepModel<Planted::kNone>>(4)); }
TEST_CASE("the model finds sleeping without sequential consistency") {
  CHECK_FALSE(holds<SleepModel<Planted::kNoFence>>(4));
}

TEST_CASE("no interleaving admits more than the quota, or refuses what fits") {
  CHECK(holds<LedgerModel<LedgerMistake::kNone, false>>(2));
}
TEST_CASE("a process killed before any write leaves nothing in use") {
  CHECK(holds<LedgerModel<LedgerMistake::kNone, true>>(2));
}
TEST_CASE("the model finds charges that are not sequentially consistent") {
  CHECK_FALSE(holds<LedgerModel<LedgerMistake::kRelaxed, false>>(2));
}
TEST_CASE("a slot that two processes empty late is not emptied of its new owner's bytes") {
  CHECK(holds<SlotModel<LedgerMistake::kNone>>(3));
}
TEST_CASE("the model finds a slot that is emptied without a look at whose it is") {
  CHECK_FALSE(holds<SlotModel<LedgerMistake::kBlind>>(3));
}
