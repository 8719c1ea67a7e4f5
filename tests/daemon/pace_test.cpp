// SPDX-License-Identifier: Apache-2.0
//
// What the loop gives to work that no launch waits for (daemon/server/pace.h,
// daemon/server/conduct.h), on a clock of the test's own.
#include "daemon/server/pace.h"

#include <doctest/doctest.h>

#include <random>

#include "daemon/server/conduct.h"

namespace vitamin::daemon {
namespace {

constexpr std::uint64_t kMs = 1'000'000, kSecond = 1'000 * kMs;

// An honest client's requests beside a crowd that always has another piece of work for the loop, of
// `piece_ns`: how long they wait until the loop turns to them, on average.
double mean_wait_us(Pace pace, std::uint64_t piece_ns) {
  constexpr std::uint64_t kLook = 100'000;
  std::minstd_rand random;
  std::uint64_t request = 1, looked = 0, busy_until = 0, waited = 0, requests = 0;
  for (std::uint64_t now = 0; now < 20 * kSecond;) {
    now = std::max(busy_until, std::min(looked + kLook, request));
    if (request <= now) {
      waited += now - request;
      ++requests;
      request = now + 200'000 + random() % 300'000;
    }
    if (now < looked + kLook) continue;
    looked = now;
    if (pace.next(now) > now) continue;
    busy_until = now + piece_ns;
    pace.spent(busy_until, piece_ns);
  }
  return static_cast<double>(waited) / static_cast<double>(requests) / 1e3;
}

TEST_CASE(
    "beside a crowd that comes and goes an honest request waits for a small part of a piece") {
  const Pace visits(64, 20 * kMs);
  for (const std::uint64_t piece : {10'000ULL, 100'000ULL, 400'000ULL}) {
    const double wait = mean_wait_us(visits, piece);
    MESSAGE("pieces of " << piece / 1'000 << " us: a request waits " << wait << " us");
    CHECK(wait <= static_cast<double>(piece) / 1e3 / 64);
  }
  // Without a pace it waits for half a piece in most of its time.
  CHECK(mean_wait_us(Pace(1, 0), 100'000) > 10);
}

TEST_CASE("after a piece that took very long the next one waits for a fifth of a second, no more") {
  Pace pace(64, 20 * kMs);
  pace.spent(kSecond, kSecond);
  CHECK(pace.next(kSecond) > kSecond);
  CHECK(pace.next(kSecond) <= kSecond + 200 * kMs);
}

TEST_CASE("what was saved is spent at once, what is spent is waited for, and no more is saved") {
  Pace pace(64, 20 * kMs);
  std::uint64_t now = kSecond, pieces = 0;
  for (; pace.next(now) == now; ++pieces) pace.spent(now += kMs, kMs);
  CHECK(pieces >= 20);
  CHECK(pieces <= 22);
  CHECK(pace.next(now) <= now + 64 * kMs);
  CHECK(pace.next(now + 64 * kMs) == now + 64 * kMs);
  now += 3'600 * kSecond;
  for (pieces = 0; pace.next(now) == now; ++pieces) pace.spent(now += kMs, kMs);
  CHECK(pieces <= 22);
}

TEST_CASE("a user whose clients are let go again and again waits, a bounded time; others do not") {
  Conduct conduct;
  std::uint64_t now = kSecond;
  unsigned admitted = 0, told = 0;
  // As fast as it is let: it comes, is let go, and comes again.
  for (const std::uint64_t end = now + 10 * kSecond; now < end; now += kMs) {
    if (conduct.admits_at(1, now) > now) continue;
    conduct.admitted(1, now);
    ++admitted;
    told += conduct.let_go(1, "x (process 7)", now) ? 1 : 0;
    CHECK(conduct.admits_at(1, now) <= now + Conduct::kLongest * Conduct::kEvery);
    CHECK(conduct.admits_at(2, now) == now);
  }
  CHECK(admitted >= Conduct::kFree);
  CHECK(admitted <= Conduct::kFree + 10 * kSecond / Conduct::kEvery);
  CHECK(told == 1);
  REQUIRE(conduct.users(now).contains(1));
  CHECK(conduct.users(now).at(1).last == "x (process 7)");
  CHECK(conduct.users(now).at(1).let_go == admitted);
  // Forgotten.
  now += 2 * (Conduct::kFree + Conduct::kLongest) * Conduct::kEvery;
  CHECK(conduct.users(now).empty());
  CHECK(conduct.admits_at(1, now) == now);
}

TEST_CASE("many that were let go at once are one by one admitted; few are nothing to wait for") {
  Conduct conduct;
  for (unsigned i = 0; i < Conduct::kFree; ++i) CHECK_FALSE(conduct.let_go(1, "", kSecond));
  CHECK(conduct.admits_at(1, kSecond) == kSecond);
  CHECK(conduct.let_go(1, "", kSecond));
  for (unsigned i = 1; i < 100; ++i) CHECK_FALSE(conduct.let_go(1, "", kSecond));
  std::uint64_t now = conduct.admits_at(1, kSecond);
  CHECK(now == kSecond + Conduct::kLongest * Conduct::kEvery);
  for (unsigned i = 0; i < 10; ++i) {
    conduct.admitted(1, now);
    const std::uint64_t next = conduct.admits_at(1, now);
    CHECK(next == now + Conduct::kEvery);
    now = next;
  }
  // A program of many processes is not slowed down for one that was let go.
  Conduct modest;
  modest.let_go(1, "", now);
  for (unsigned i = 0; i < 100; ++i) {
    CHECK(modest.admits_at(1, now) == now);
    modest.admitted(1, now);
  }
}

}  // namespace
}  // namespace vitamin::daemon
