// SPDX-License-Identifier: Apache-2.0
//
// The very templates of ring.h and park.h over relacy's atomics: every interleaving and every value
// that the memory model lets a load return, within a bound on context switches.
#include <doctest/doctest.h>

#include "protocol/park.h"
#include "protocol/ring.h"

// Last: it replaces words of the language by macros.
#include <relacy/relacy.hpp>

namespace {

using vitamin::protocol::ParkFlag;
using vitamin::protocol::Record;
using vitamin::protocol::RingConsumer;
using vitamin::protocol::RingProducer;
using vitamin::protocol::RingState;

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

// The producer publishes once and rings if the consumer is parked; the consumer parks when it sees
// nothing. Parked with work published and no ring: a lost wake-up.
template <Planted kPlanted>
struct ParkModel : rl::test_suite<ParkModel<kPlanted>, 2> {
  using Platform = Model<kPlanted>;
  typename RingProducer<Platform, 2>::Cells cells;
  vitamin::protocol::RingIndex<Platform> tail, head;
  ParkFlag<Platform> park;
  bool rung = false, slept = false;  // each written by one thread, read when both have ended

  void thread(unsigned index) {
    if (index == 0) {
      RingProducer<Platform, 2> producer(cells, tail, head);
      producer.write(Record{});
      producer.publish();
      rung = park.asleep();
    } else {
      RingConsumer<Platform, 2> consumer(cells, tail, head);
      slept = park.try_park([&] { return consumer.empty(); });
    }
  }
  void after() { RL_ASSERT(!slept || rung); }
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
TEST_CASE("no interleaving loses a wake-up") { CHECK(holds<ParkModel<Planted::kNone>>(4)); }
TEST_CASE("the model finds parking without sequential consistency") {
  CHECK_FALSE(holds<ParkModel<Planted::kNoFence>>(4));
}
