// SPDX-License-Identifier: Apache-2.0
//
// What is known of handles (interpose/handle_map.h): found whatever else comes and goes, and in
// memory that follows their number.
#include "interpose/handle_map.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

namespace vitamin::interpose {
namespace {

struct Known {
  std::uintptr_t handle = 0;
};

// Handles as an allocator makes them.
const void* handle_of(std::uintptr_t number) {
  return reinterpret_cast<const void*>(0x10000 + 16 * number);
}

TEST_CASE("a_handle_is_found_until_it_is_erased") {
  std::mt19937 random(1);
  HandleMap<Known> map;
  std::vector<Known> values(3000);
  std::unordered_map<std::uintptr_t, Known*> model;
  for (int step = 0; step < 300'000; ++step) {
    // Few live handles at times, many at others: tables grow and shrink.
    const bool grows = step / 30'000 % 2 == 0;
    const std::uintptr_t number = random() % values.size();
    if (random() % 10 < (grows ? 6U : 3U)) {
      CHECK((map.insert(handle_of(number), &values[number]) != nullptr) == model.contains(number));
      model[number] = &values[number];
    } else {
      Known* const erased = map.erase(handle_of(number));
      const auto known = model.find(number);
      REQUIRE(erased == (known != model.end() ? known->second : nullptr));
      model.erase(number);
    }
    const std::uintptr_t asked = random() % values.size();
    const auto known = model.find(asked);
    REQUIRE(map.find(handle_of(asked)) == (known != model.end() ? known->second : nullptr));
    REQUIRE(map.size() == model.size());
  }
}

TEST_CASE("handles_that_come_and_go_beside_lasting_ones_take_no_new_tables") {
  HandleMap<Known> map;
  Known value;
  for (std::uintptr_t i = 0; i < 1000; ++i) map.insert(handle_of(3 * i), &value);
  const std::size_t tables = map.tables();
  std::mt19937 random(2);
  std::vector<const void*> live;
  for (int i = 0; i < 300'000; ++i) {
    const void* handle = handle_of(10'000 + random() % 100'000);
    if (map.insert(handle, &value) == nullptr) live.push_back(handle);
    if (live.size() < 8) continue;
    std::swap(live[random() % live.size()], live.back());
    CHECK(map.erase(live.back()) == &value);
    live.pop_back();
  }
  CHECK(map.tables() <= tables + 1);
}

TEST_CASE("a_table_shrinks_when_its_handles_are_gone") {
  HandleMap<Known> map;
  Known value;
  for (std::uintptr_t i = 0; i < 100'000; ++i) map.insert(handle_of(i), &value);
  CHECK(map.slots() >= 200'000);
  for (std::uintptr_t i = 10; i < 100'000; ++i) CHECK(map.erase(handle_of(i)) == &value);
  CHECK(map.slots() <= 4096);
  for (std::uintptr_t i = 0; i < 10; ++i) CHECK(map.find(handle_of(i)) == &value);
}

TEST_CASE("a_reader_finds_lasting_handles_while_tables_are_replaced") {
  HandleMap<Known> map;
  std::vector<Known> lasting(500);
  for (std::uintptr_t i = 0; i < lasting.size(); ++i) {
    lasting[i].handle = i;
    map.insert(handle_of(i), &lasting[i]);
  }
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> missed{0};
  std::vector<std::thread> readers;
  for (unsigned seed = 0; seed < 2; ++seed)
    readers.emplace_back([&, seed] {
      std::mt19937 random(seed);
      while (!stop) {
        const std::uintptr_t i = random() % lasting.size();
        if (map.find(handle_of(i)) != &lasting[i]) ++missed;
      }
    });
  Known passing;
  for (int round = 0; round < 20; ++round) {
    for (std::uintptr_t i = 1000; i < 12'000; ++i) map.insert(handle_of(i), &passing);
    for (std::uintptr_t i = 1000; i < 12'000; ++i) map.erase(handle_of(i));
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(missed == 0);
}

}  // namespace
}  // namespace vitamin::interpose
