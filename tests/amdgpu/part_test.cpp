// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/amdgpu/part.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <tuple>

namespace vitamin::soft::amdgpu {
namespace {

const Part& part(const char* name) {
  const Part* found = find_part(name);
  REQUIRE(found != nullptr);
  return *found;
}

// Registered before known_parts() is called first, so it runs after all that is registered there.
bool looks_at_exit = false;
void look_at_exit() {
  if (looks_at_exit) ::_exit(find_part("gfx90a") == known_parts().data() ? 0 : 1);
}
[[maybe_unused]] const int registered = std::atexit(look_at_exit);

TEST_CASE("a part is what it was while the process ends, as queues still run") {
  const pid_t child = ::fork();
  if (child == 0) {
    looks_at_exit = !known_parts().empty();
    std::exit(2);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("every CU of every part has exactly one bit of the mask") {
  for (const Part& each : known_parts()) {
    const auto order = mask_order(each);
    REQUIRE(order.size() == each.cus());
    std::set<std::tuple<unsigned, unsigned, unsigned, unsigned>> seen;
    for (unsigned bit = 0; bit < order.size(); ++bit) {
      CHECK(order[bit].index == bit);
      CHECK(order[bit].xcc < each.xccs);
      CHECK(order[bit].engine < each.engines);
      CHECK(order[bit].array < each.arrays_per_engine);
      CHECK(order[bit].cu < each.cus_of_array(order[bit].engine));
      seen.insert({order[bit].xcc, order[bit].engine, order[bit].array, order[bit].cu});
    }
    CHECK(seen.size() == order.size());
  }
}

TEST_CASE("on gfx90a eight neighbouring bits are one CU of each shader engine") {
  const auto order = mask_order(part("gfx90a"));
  for (unsigned bit = 0; bit < order.size(); ++bit) {
    CHECK(order[bit].engine == bit % 8);
    CHECK(order[bit].cu == bit / 8);
  }
}

TEST_CASE("on gfx942 eight neighbouring bits are one CU of each XCC, 32 one of each engine") {
  const auto order = mask_order(part("gfx942"));
  REQUIRE(order.size() == 304);
  for (unsigned bit = 0; bit < order.size(); ++bit) {
    CHECK(order[bit].xcc == bit % 8);
    if (bit < 288) {
      CHECK(order[bit].engine == bit / 8 % 4);
      CHECK(order[bit].cu == bit / 32);
    } else {  // two engines of each XCC have a tenth CU
      CHECK(order[bit].engine == bit / 8 % 2);
      CHECK(order[bit].cu == 9);
    }
  }
}

TEST_CASE("on gfx1030 an aligned pair of bits is one workgroup processor") {
  const auto order = mask_order(part("gfx1030"));
  for (unsigned bit = 0; bit < order.size(); bit += 2) {
    CHECK(order[bit].engine == order[bit + 1].engine);
    CHECK(order[bit].array == order[bit + 1].array);
    CHECK(order[bit].cu % 2 == 0);
    CHECK(order[bit + 1].cu == order[bit].cu + 1);
  }
}

TEST_CASE("on gfx1100 twelve neighbouring bits are a workgroup processor of each engine") {
  const auto order = mask_order(part("gfx1100"));
  REQUIRE(order.size() == 96);
  for (unsigned bit = 0; bit < order.size(); ++bit) {
    CHECK(order[bit].engine == bit / 2 % 6);
    CHECK(order[bit].array == bit / 12 % 2);
    CHECK(order[bit].cu == bit / 24 * 2 + bit % 2);
  }
}

TEST_CASE("a part that is not known is not found") { CHECK(find_part("gfx9000") == nullptr); }

}  // namespace
}  // namespace vitamin::soft::amdgpu
