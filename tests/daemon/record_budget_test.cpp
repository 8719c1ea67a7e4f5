// SPDX-License-Identifier: Apache-2.0
#include "daemon/server/record_budget.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace vitamin::daemon {
namespace {

constexpr std::size_t kMost = 64;

// How many records are taken in each turn; `sent`: records that the client sent before each turn.
std::vector<std::size_t> taken(const std::vector<std::size_t>& sent) {
  RecordBudget budget(kMost);
  std::size_t ring = 0;
  std::vector<std::size_t> result;
  for (const std::size_t records : sent) {
    ring += records;
    const std::size_t now = std::min(ring, budget.left());
    ring -= now;
    budget.took(now);
    result.push_back(now);
  }
  return result;
}

TEST_CASE("a burst is taken in one turn, and so is the next one after a pause") {
  const auto turns = taken({64, 0, 0, 64, 0, 3, 2, 3, 60});
  CHECK(turns == std::vector<std::size_t>{64, 0, 0, 64, 0, 3, 2, 3, 60});
}

TEST_CASE("from a client that never stops few records are taken in a turn") {
  const auto turns = taken(std::vector<std::size_t>(1000, 256));
  CHECK(std::vector<std::size_t>(turns.begin(), turns.begin() + 6) ==
        std::vector<std::size_t>{64, 32, 16, 8, 4, 4});
  CHECK(*std::max_element(turns.begin() + 4, turns.end()) == RecordBudget::kLeast);
}

TEST_CASE("a client that stops for single turns gains no more than by a pause") {
  std::vector<std::size_t> now_and_then;
  // The worst case: it empties its ring as often as it gains by that, and then fills it.
  for (int round = 0; round < 200; ++round)
    for (const std::size_t records : {64U, 0U, 0U, 0U, 0U}) now_and_then.push_back(records);
  std::size_t all = 0;
  for (const std::size_t each : taken(now_and_then)) all += each;
  CHECK(all <= now_and_then.size() * kMost / 4);
}

TEST_CASE(
    "all records of a client that sends few are taken at once, and all are taken in the end") {
  const auto turns = taken(std::vector<std::size_t>(100, 3));
  CHECK(std::all_of(turns.begin(), turns.end(), [](std::size_t each) { return each == 3; }));
  std::vector<std::size_t> sent(100, 0);
  sent[0] = 256;
  std::size_t all = 0;
  for (const std::size_t each : taken(sent)) all += each;
  CHECK(all == 256);
}

TEST_CASE("a budget below the least one stays as it is") {
  RecordBudget one(1);
  for (int i = 0; i < 5; ++i) one.took(1);
  CHECK(one.left() == 1);
  RecordBudget two(2);
  two.took(2);
  CHECK(two.left() == 2);
}

}  // namespace
}  // namespace vitamin::daemon
