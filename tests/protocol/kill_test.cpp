// SPDX-License-Identifier: Apache-2.0
//
// SIGKILL at every instruction of a producer: what the consumer finds is a prefix of what was
// pushed, whole and in order. And of a consumer: nothing that it did not finish with is lost.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <new>

#include "daemon/protocol/ring.h"
#include "daemon/protocol/shared.h"

namespace vitamin::protocol {

namespace {

struct Shared3 {
  RingProducer<Native, 4>::Cells cells;
  RingIndex<Native> tail, head;
};

Record numbered(std::uint64_t number) {
  Record record;
  record.words.fill(number);
  return record;
}

// Runs `body` in a child for at most `steps` instructions, then kills it. True: it had ended.
template <class Body>
bool run_for(long steps, Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, 0, 0);
    ::raise(SIGSTOP);
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  for (long i = 0; i < steps; ++i) {
    ::ptrace(PTRACE_SINGLESTEP, child, 0, 0);
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status)) return true;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return false;
}

// The planted mistake: the index first, the record afterwards.
void push_wrongly(Shared3& ring, std::uint64_t number) {
  ring.tail.store(number, std::memory_order_release);
  for (auto& word : ring.cells[(number - 1) % 4]) word.store(number, std::memory_order_relaxed);
}

// Returns how many kill points there were; counts the bad ones.
template <class Push>
long kill_everywhere(Push push, long& bad) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared3), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  long points = 0;
  for (bool ended = false; !ended; ++points) {
    auto* const ring = new (memory) Shared3{};
    ended = run_for(points, [&] { push(*ring); });
    RingConsumer<Native, 4> consumer(ring->cells, ring->tail, ring->head);
    Record record;
    RingState state = RingState::kOk;
    std::uint64_t expected = 0;
    while ((state = consumer.read(record)) == RingState::kOk)
      bad += !(record == numbered(++expected));
    bad += state != RingState::kEmpty || (ended && expected != 3);
  }
  ::munmap(memory, sizeof(Shared3));
  return points;
}

}  // namespace

TEST_CASE("a producer killed at any instruction leaves a whole prefix") {
  long bad = 0;
  const long points = kill_everywhere(
      [](Shared3& ring) {
        RingProducer<Native, 4> producer(ring.cells, ring.tail, ring.head);
        for (std::uint64_t i = 1; i <= 3; ++i) {
          producer.write(numbered(i));
          if (i != 2) producer.publish();  // alone, and two in a batch
        }
      },
      bad);
  MESSAGE(points << " kill points");
  CHECK(points > 100);
  CHECK(bad == 0);
}

TEST_CASE("the same test finds an index that is published before its record") {
  long bad = 0;
  kill_everywhere(
      [](Shared3& ring) {
        for (std::uint64_t i = 1; i <= 3; ++i) push_wrongly(ring, i);
      },
      bad);
  CHECK(bad > 0);
}

TEST_CASE("a consumer killed at any instruction leaves the ring usable") {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared3), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  long points = 0, bad = 0;
  for (bool ended = false; !ended; ++points) {
    auto* const ring = new (memory) Shared3{};
    RingProducer<Native, 4> producer(ring->cells, ring->tail, ring->head);
    for (std::uint64_t i = 1; i <= 4; ++i) producer.write(numbered(i));
    producer.publish();
    ended = run_for(points, [&] {
      RingConsumer<Native, 4> consumer(ring->cells, ring->tail, ring->head);
      Record record;
      for (int i = 0; i < 3; ++i) {
        consumer.read(record);
        consumer.release();
      }
    });
    // The cells that it released can be written, the others cannot.
    const std::uint64_t head = ring->head.load(std::memory_order_relaxed);
    std::uint64_t taken = 0;
    while (producer.write(numbered(5)) == RingState::kOk) ++taken;
    bad += taken != head || head > 3 || (ended && head != 3);
  }
  ::munmap(memory, sizeof(Shared3));
  MESSAGE(points << " kill points");
  CHECK(bad == 0);
}

}  // namespace vitamin::protocol
