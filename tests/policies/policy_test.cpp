// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/policies/fixture.h"

namespace vitamin::policies {
namespace {

using runtime::Choice;
using runtime::EntryId;
using runtime::PoolLayout;
using runtime::PoolView;
using runtime::ReadyOperation;

struct Pool {
  PoolLayout layout = PoolLayout::build(h200());
  PoolView view{layout.entries(), {}};
  // As the pipeline gives them: narrowest first, the whole device last.
  std::vector<EntryId> eligible(std::uint32_t processors) const {
    std::vector<EntryId> ids;
    for (const auto& entry : layout.entries())
      if (!entry.whole() && entry.processors >= processors) ids.push_back(entry.id);
    ids.push_back(runtime::kWholeDevice);
    return ids;
  }
};

TEST_CASE("fifo answers once: the whole device until something changes") {
  const Pool pool;
  const auto fifo = policy("fifo");
  const Choice choice = fifo->select({}, pool.eligible(1), pool.view);
  CHECK(choice.entry == runtime::kWholeDevice);
  CHECK(choice.launches == runtime::kUntilChanged);
}

TEST_CASE("static stays inside its partition and leaves it for what does not fit, once") {
  const Pool pool;
  const auto half = policy("static:units=0-7");
  Choice choice = half->select({}, pool.eligible(1), pool.view);
  CHECK(pool.layout.at(choice.entry).compute == hal::ComputeSet::range(0, 8));
  CHECK(choice.launches == runtime::kUntilChanged);
  choice = half->select({}, pool.eligible(100), pool.view);
  CHECK(choice.entry == runtime::kWholeDevice);
  CHECK(choice.launches == 1);
}

TEST_CASE("static takes the widest entry inside units that are no entry themselves") {
  const Pool pool;
  const auto odd = policy("static:units=1-5");
  const Choice choice = odd->select({}, pool.eligible(1), pool.view);
  const hal::ComputeSet got = pool.layout.at(choice.entry).compute;
  CHECK(hal::ComputeSet::range(1, 5).contains(got));
  CHECK(got.count() == 2);
}

TEST_CASE("random draws every narrower entry, never the whole device, and repeats for a seed") {
  const Pool pool;
  const auto first = policy("random", 42), again = policy("random", 42),
             other = policy("random", 43);
  std::map<EntryId, unsigned> seen;
  bool differs = false;
  for (int i = 0; i < 6000; ++i) {
    const EntryId a = first->select({}, pool.eligible(1), pool.view).entry;
    CHECK(a == again->select({}, pool.eligible(1), pool.view).entry);
    differs = differs || a != other->select({}, pool.eligible(1), pool.view).entry;
    CHECK(pool.layout.at(a).processors < 132);
    ++seen[a];
  }
  CHECK(differs);
  CHECK(seen.size() == 58);  // 59 entries less the union of all units
  for (const auto& [entry, count] : seen) CHECK(count > 40);
}

TEST_CASE("random respects what an operation needs and the range of widths") {
  const Pool pool;
  const auto narrow = policy("random:min=16,max=64,every=4");
  for (int i = 0; i < 500; ++i) {
    const Choice choice = narrow->select({}, pool.eligible(20), pool.view);
    const std::uint32_t width = pool.layout.at(choice.entry).processors;
    CHECK(width >= 20);
    CHECK(width <= 64);
    CHECK(choice.launches == 4);
  }
  // Nothing in the range is wide enough: the whole device.
  CHECK(narrow->select({}, pool.eligible(100), pool.view).entry == runtime::kWholeDevice);
}

TEST_CASE("A bad specification is refused with what is known and what may have been meant") {
  const auto message = [](const char* specification) {
    const auto made = make(specification, 1);
    REQUIRE(!made.has_value());
    CHECK(made.error().code == hal::Errc::kInvalidArgument);
    return made.error().message;
  };
  CHECK(message("randon").find("did you mean 'random'") != std::string::npos);
  CHECK(message("zzz").find("Known policies: fifo, throughput, tpot-first, static") !=
        std::string::npos);
  CHECK(message("random:evry=3").find("'evry' is unknown") != std::string::npos);
  CHECK(message("random:every=0").find("from 1 to") != std::string::npos);
  CHECK(message("random:every=x").find("'x'") != std::string::npos);
  CHECK(message("random:every=2,every=3").find("twice") != std::string::npos);
  CHECK(message("static:units=7-3").find("not units") != std::string::npos);
  CHECK(message("static:units=0-64").find("not units") != std::string::npos);
  CHECK(message("fifo:fast").find("Known parameters: none") != std::string::npos);
  CHECK(message("").find("unknown") != std::string::npos);
}

TEST_CASE("Every listed policy can be made from its name alone") {
  CHECK(list().size() == 10);
  for (const Description& description : list()) {
    const auto made = make(description.name, 1);
    REQUIRE(made.has_value());
    CHECK((*made)->name() == description.name);
    CHECK(std::string(description.summary).size() > 10);
  }
}

}  // namespace
}  // namespace vitamin::policies
