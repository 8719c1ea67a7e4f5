// SPDX-License-Identifier: Apache-2.0
//
// Limits on work that no launch waits for (daemon/server/leaky_bucket.h,
// daemon/server/abuse_limiter.h), with a virtual clock.
#include "daemon/server/leaky_bucket.h"

#include <doctest/doctest.h>

#include <random>

#include "daemon/server/abuse_limiter.h"

namespace vitamin::daemon {
namespace {

constexpr std::uint64_t kMs = 1'000'000, kSecond = 1'000 * kMs;

// How long requests of a correct client wait on average, beside a crowd that always has another
// piece of work of `piece_ns` for the loop.
double mean_wait_us(LeakyBucket bucket, std::uint64_t piece_ns) {
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
    if (bucket.next(now) > now) continue;
    busy_until = now + piece_ns;
    bucket.spent(busy_until, piece_ns);
  }
  return static_cast<double>(waited) / static_cast<double>(requests) / 1e3;
}

TEST_CASE("a request waits for a small fraction of a piece beside a crowd of new clients") {
  const LeakyBucket bucket(64, 20 * kMs);
  for (const std::uint64_t piece : {10'000ULL, 100'000ULL, 400'000ULL}) {
    const double wait = mean_wait_us(bucket, piece);
    MESSAGE("pieces of " << piece / 1'000 << " us: a request waits " << wait << " us");
    CHECK(wait <= static_cast<double>(piece) / 1e3 / 64);
  }
  // Without a bound it mostly waits for half a piece.
  CHECK(mean_wait_us(LeakyBucket(1, 0), 100'000) > 10);
}

TEST_CASE("after a very long piece the next one waits for a fifth of a second at most") {
  LeakyBucket bucket(64, 20 * kMs);
  bucket.spent(kSecond, kSecond);
  CHECK(bucket.next(kSecond) > kSecond);
  CHECK(bucket.next(kSecond) <= kSecond + 200 * kMs);
}

TEST_CASE("a burst is spent at once, then paid for, and bursts are bounded") {
  LeakyBucket bucket(64, 20 * kMs);
  std::uint64_t now = kSecond, pieces = 0;
  for (; bucket.next(now) == now; ++pieces) bucket.spent(now += kMs, kMs);
  CHECK(pieces >= 20);
  CHECK(pieces <= 22);
  CHECK(bucket.next(now) <= now + 64 * kMs);
  CHECK(bucket.next(now + 64 * kMs) == now + 64 * kMs);
  now += 3'600 * kSecond;
  for (pieces = 0; bucket.next(now) == now; ++pieces) bucket.spent(now += kMs, kMs);
  CHECK(pieces <= 22);
}

TEST_CASE("a user with repeated evictions waits for a bounded time; other users do not wait") {
  AbuseLimiter limiter;
  std::uint64_t now = kSecond;
  unsigned admitted = 0, told = 0;
  // A client is admitted, evicted, and the next one comes, as fast as possible.
  for (const std::uint64_t end = now + 10 * kSecond; now < end; now += kMs) {
    if (limiter.admits_at(1, now) > now) continue;
    limiter.admitted(1, now);
    ++admitted;
    told += limiter.record_eviction(1, "x (process 7)", now) ? 1 : 0;
    CHECK(limiter.admits_at(1, now) <= now + AbuseLimiter::kLongest * AbuseLimiter::kEvery);
    CHECK(limiter.admits_at(2, now) == now);
  }
  CHECK(admitted >= AbuseLimiter::kFree);
  CHECK(admitted <= AbuseLimiter::kFree + 10 * kSecond / AbuseLimiter::kEvery);
  CHECK(told == 1);
  REQUIRE(limiter.users(now).contains(1));
  CHECK(limiter.users(now).at(1).last == "x (process 7)");
  CHECK(limiter.users(now).at(1).evictions == admitted);
  // Forgotten.
  now += 2 * (AbuseLimiter::kFree + AbuseLimiter::kLongest) * AbuseLimiter::kEvery;
  CHECK(limiter.users(now).empty());
  CHECK(limiter.admits_at(1, now) == now);
}

TEST_CASE("after many evictions clients are admitted one by one; after few they do not wait") {
  AbuseLimiter limiter;
  for (unsigned i = 0; i < AbuseLimiter::kFree; ++i)
    CHECK_FALSE(limiter.record_eviction(1, "", kSecond));
  CHECK(limiter.admits_at(1, kSecond) == kSecond);
  CHECK(limiter.record_eviction(1, "", kSecond));
  for (unsigned i = 1; i < 100; ++i) CHECK_FALSE(limiter.record_eviction(1, "", kSecond));
  std::uint64_t now = limiter.admits_at(1, kSecond);
  CHECK(now == kSecond + AbuseLimiter::kLongest * AbuseLimiter::kEvery);
  for (unsigned i = 0; i < 10; ++i) {
    limiter.admitted(1, now);
    const std::uint64_t next = limiter.admits_at(1, now);
    CHECK(next == now + AbuseLimiter::kEvery);
    now = next;
  }
  // A program of many processes is not slowed down by one eviction.
  AbuseLimiter one_eviction;
  one_eviction.record_eviction(1, "", now);
  for (unsigned i = 0; i < 100; ++i) {
    CHECK(one_eviction.admits_at(1, now) == now);
    one_eviction.admitted(1, now);
  }
}

}  // namespace
}  // namespace vitamin::daemon
