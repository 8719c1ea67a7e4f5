// SPDX-License-Identifier: Apache-2.0
//
// The ring between two threads over one mapping (a race detector sees nothing through two), and
// against a peer that lies about its index.
#include <doctest/doctest.h>

#include <memory>
#include <thread>

#include "daemon/protocol/ring.h"
#include "daemon/protocol/shared.h"
#include "daemon/protocol/sleep_flag.h"

namespace vitamin::protocol {

namespace {

template <std::size_t kCapacity>
struct Ring {
  typename RingProducer<Native, kCapacity>::Cells cells{};
  RingIndex<Native> tail{}, head{};
  RingProducer<Native, kCapacity> producer{cells, tail, head};
  RingConsumer<Native, kCapacity> consumer{cells, tail, head};
};

Record numbered(std::uint64_t number) {
  Record record;
  for (std::size_t i = 0; i < kRecordWords; ++i) record.words[i] = number * kRecordWords + i;
  return record;
}

}  // namespace

TEST_CASE("records come out whole and in order, through a ring of two cells") {
  auto ring = std::make_unique<Ring<2>>();
  constexpr std::uint64_t kMany = 20'000;  // a change of threads each second one, beside load
  std::thread producer([&] {
    for (std::uint64_t i = 0; i < kMany;) {
      const bool written = ring->producer.write(numbered(i)) == RingState::kOk;
      ring->producer.publish();
      if (written)
        ++i;
      else
        std::this_thread::yield();  // on one processor only the other can make room
    }
  });
  std::uint64_t bad = 0;
  for (std::uint64_t i = 0; i < kMany;) {
    Record record;
    const bool read = ring->consumer.read(record) == RingState::kOk;
    if (read) bad += !(record == numbered(i++));
    ring->consumer.release();
    if (!read) std::this_thread::yield();
  }
  producer.join();
  CHECK(bad == 0);
}

TEST_CASE("what is written is not seen before it is published") {
  Ring<4> ring;
  Record record;
  REQUIRE(ring.producer.write(numbered(1)) == RingState::kOk);
  REQUIRE(ring.producer.write(numbered(2)) == RingState::kOk);
  CHECK(ring.consumer.read(record) == RingState::kEmpty);
  CHECK(ring.consumer.empty());
  ring.producer.publish();
  CHECK_FALSE(ring.consumer.empty());
  CHECK(ring.consumer.read(record) == RingState::kOk);
  CHECK(record == numbered(1));
}

TEST_CASE("a full ring takes nothing, and takes again what the consumer released") {
  Ring<4> ring;
  for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(ring.producer.write(numbered(i)) == RingState::kOk);
  CHECK(ring.producer.write(numbered(4)) == RingState::kFull);
  ring.producer.publish();
  Record record;
  REQUIRE(ring.consumer.read(record) == RingState::kOk);
  CHECK(ring.producer.write(numbered(4)) == RingState::kFull);  // read, but not released
  ring.consumer.release();
  CHECK(ring.producer.write(numbered(4)) == RingState::kOk);
}

TEST_CASE("a cell has room when the consumer has released it, and none when its index cannot be") {
  Ring<4> ring;
  Record record;
  CHECK(ring.producer.room() == 4);
  for (std::uint64_t i = 0; i < 3; ++i) REQUIRE(ring.producer.write(numbered(i)) == RingState::kOk);
  CHECK(ring.producer.room() == 1);
  ring.producer.publish();
  REQUIRE(ring.consumer.read(record) == RingState::kOk);
  CHECK(ring.producer.room() == 1);  // read, but not released
  ring.consumer.release();
  CHECK(ring.producer.room() == 2);
  ring.head.store(5, std::memory_order_relaxed);  // more than was ever written
  CHECK(ring.producer.room() == 0);
}

TEST_CASE("an index that cannot be is noticed on both sides") {
  for (const std::uint64_t lie : {~std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{1} << 40}) {
    Ring<4> ring;
    Record record;
    ring.tail.store(lie, std::memory_order_relaxed);
    CHECK(ring.consumer.read(record) == RingState::kBroken);
  }
  Ring<4> ring;
  for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(ring.producer.write(numbered(i)) == RingState::kOk);
  ring.head.store(5, std::memory_order_relaxed);  // more than was ever written
  CHECK(ring.producer.write(numbered(4)) == RingState::kBroken);
  // A head that goes back.
  Ring<4> back;
  Record record;
  for (std::uint64_t i = 0; i < 4; ++i) REQUIRE(back.producer.write(numbered(i)) == RingState::kOk);
  back.producer.publish();
  for (int i = 0; i < 3; ++i) REQUIRE(back.consumer.read(record) == RingState::kOk);
  back.consumer.release();
  for (std::uint64_t i = 4; i < 7; ++i) REQUIRE(back.producer.write(numbered(i)) == RingState::kOk);
  back.head.store(1, std::memory_order_relaxed);
  CHECK(back.producer.write(numbered(7)) == RingState::kBroken);
}

TEST_CASE("a tail that goes back makes the ring broken") {
  Ring<4> ring;
  Record record;
  for (std::uint64_t i = 0; i < 2; ++i) REQUIRE(ring.producer.write(numbered(i)) == RingState::kOk);
  ring.producer.publish();
  for (int i = 0; i < 2; ++i) REQUIRE(ring.consumer.read(record) == RingState::kOk);
  ring.tail.store(1, std::memory_order_relaxed);
  CHECK(ring.consumer.read(record) == RingState::kBroken);
}

TEST_CASE("a waiter sleeps only without work, and its flag says so only meanwhile") {
  SleepFlag<Native> flag{};
  CHECK_FALSE(flag.asleep());
  CHECK_FALSE(flag.try_sleep([] { return false; }));  // work came in the meantime
  CHECK_FALSE(flag.asleep());
  CHECK(flag.try_sleep([] { return true; }));
  CHECK(flag.asleep());
  flag.wake();
  CHECK_FALSE(flag.asleep());
}

}  // namespace vitamin::protocol
