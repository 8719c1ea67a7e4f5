// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of a device and work of before: of a former daemon, of home, of older sessions.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tests/daemon/device_arbiter_node.h"

namespace vitamin::daemon {

TEST_CASE("after a restart the units of old work are not granted before it has ended") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  protocol::Holding holding;
  holding.word = protocol::lease_word(6, 3, Gate::kOpen);  // of the daemon before
  holding.entry = node.layout.find(hal::ComputeSet(0b1111));
  holding.outstanding = 2;
  node.arbiter.had_before(1, static_cast<EntryId>(holding.entry), 1000);
  node.arbiter.request(1, holding, node.now);
  node.wants(2);
  CHECK(node.grants.empty());
  protocol::Returned returned;
  returned.word = holding.word;
  returned.entry = holding.entry;
  node.arbiter.request(1, returned, node.now);
  node.arbiter.step(node.now);
  CHECK(node.grants.size() == 1);
}

TEST_CASE("what a process of the daemon before may have is granted to no other before it is back") {
  Node node(0b1111);
  const EntryId entry = node.layout.find(hal::ComputeSet(0b1111));
  const EntryId home = node.layout.find(hal::ComputeSet(0b0001));
  const auto expect = [&] {
    node.arbiter.expect_back(9, 70, entry, 50'000, node.now);
    node.arbiter.expect_back(9, 70, home, 50'000, node.now);
  };
  const auto attach = [&](ClientId client, std::uint64_t process) {
    daemon::Traits traits;
    traits.process = process;
    node.arbiter.attach(client, traits);
  };
  const auto tells = [&](EntryId where) {
    protocol::Holding holding;
    holding.word = protocol::lease_word(6, 3, Gate::kOpen);
    holding.entry = where;
    holding.outstanding = 1;
    node.arbiter.request(1, holding, node.now);
    node.arbiter.step(node.now);
  };
  attach(2, 80);
  expect();
  node.wants(2);
  CHECK(node.grants.empty());
  CHECK(node.arbiter.held().empty());  // it is no client, and has not told of work
  SUBCASE("it tells of work, and it ends") {
    attach(1, 70);
    node.arbiter.had_before(1, entry, 50'000);
    tells(entry);
    node.arbiter.request(1, protocol::Idle{}, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.empty());
    CHECK(node.arbiter.held().size() == 1);
    protocol::Returned returned;
    returned.word = protocol::lease_word(6, 3, Gate::kOpen);
    returned.entry = entry;
    node.arbiter.request(1, returned, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("it tells that it has none") {
    attach(1, 70);
    node.arbiter.request(1, protocol::Idle{}, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("it asks for something: it has told all") {
    attach(1, 70);
    node.wants(1);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("it ends") {
    node.arbiter.forget(9, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("it does not come for as long as a client has to answer") {
    node.now += node.settings.answer_within_ns;
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("another process comes") {
    attach(1, 71);
    node.arbiter.request(1, protocol::Idle{}, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.empty());
  }
  CHECK(node.arbiter.counters().overlaps == 0);
  CHECK(node.arbiter.counters().overdue == 0);
}

TEST_CASE("what an older session says late does not silence the newer one of its process") {
  Node node(0b1111);
  daemon::Traits traits;
  traits.process = 70;
  const EntryId entry = node.layout.find(hal::ComputeSet(0b0011));
  for (const ClientId id : {1, 2}) {
    node.arbiter.attach(id, traits);
    node.arbiter.had_before(id, entry, 1'000'000);
  }
  protocol::Holding holding;
  holding.word = protocol::lease_word(6, 3, Gate::kOpen);
  holding.entry = entry;
  holding.outstanding = 1;
  for (const ClientId id : {1, 2}) node.arbiter.request(id, holding, node.now);
  REQUIRE(node.arbiter.held().size() == 1);
  CHECK(node.arbiter.held()[0].client == 2);
  node.wants(2);
  REQUIRE(node.grants.size() == 1);
  CHECK(node.grants[0].first == 2);
}

// A daemon that was told late: the units of old work are another one's by then. Both are known, and
// nothing is granted there before one of them ends.
TEST_CASE("old work on units that another client holds is waited for like that client's") {
  Node node(0b1111);
  for (const ClientId id : {1, 2, 3}) node.arbiter.attach(id);
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant lease = node.grants[0].second;
  protocol::Holding holding;
  holding.word = protocol::lease_word(6, 3, Gate::kOpen);
  holding.entry = lease.entry;
  holding.outstanding = 1;
  node.arbiter.had_before(2, static_cast<EntryId>(holding.entry), 1'000'000);
  node.arbiter.request(2, holding, node.now);
  CHECK(node.arbiter.counters().overlaps == 1);
  CHECK(node.arbiter.counters().stale == 0);
  REQUIRE(node.arbiter.held().size() == 2);
  CHECK(node.arbiter.held()[0].open);  // who has them goes on
  CHECK(node.arbiter.held()[1].adopted);
  CHECK_FALSE(node.arbiter.held()[1].open);
  node.wants(3);
  node.now += 2'000;  // its turn
  node.arbiter.step(node.now);
  REQUIRE(node.closed == 1);
  node.returns(1, lease);
  CHECK(node.grants.size() == 1);  // the old work runs
  SUBCASE("it ends") {
    protocol::Returned returned;
    returned.word = holding.word;
    returned.entry = holding.entry;
    node.arbiter.request(2, returned, node.now);
    node.arbiter.step(node.now);
  }
  SUBCASE("its client does not answer") {
    node.arbiter.step(node.now + node.settings.answer_within_ns + 1'000);
    CHECK(node.arbiter.counters().overdue == 1);
  }
  REQUIRE(node.grants.size() == 2);
  CHECK(node.grants[1].first == 3);
}

// A daemon that was only silent: its client gave it up, worked at home, and comes again.
TEST_CASE("what an older session of a process holds is the new one's without a moment in between") {
  for (const std::uint64_t process : {40, 41, 0}) {
    CAPTURE(process);
    Node node(0b0011);
    node.arbiter.attach(1, {.process = 40});
    node.arbiter.attach(2, {.process = 50});
    node.wants(1);
    REQUIRE(node.grants.size() == 1);
    const protocol::Grant lease = node.grants[0].second;
    node.wants(2);  // waits for it
    node.arbiter.attach(3, {.process = process});
    protocol::Holding holding;
    holding.word = lease.word;
    holding.entry = lease.entry;
    holding.outstanding = 1;
    node.arbiter.request(3, holding, node.now);
    protocol::Holding home;  // on one of the same units
    home.head.lane = 1;
    home.word = protocol::lease_word(0, 1, Gate::kOpen);
    home.entry = node.layout.find(hal::ComputeSet(0b0001));
    home.outstanding = 1;
    node.arbiter.request(3, home, node.now);
    node.arbiter.step(node.now);
    if (process != 40) {  // another one's lease is not to be had by naming it
      CHECK(node.arbiter.counters().stale == 2);  // nor its home
      CHECK(node.arbiter.held().size() == 1);
      CHECK(node.arbiter.held()[0].client == 1);
      continue;
    }
    node.arbiter.forget(1, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);  // the work runs
    REQUIRE(node.arbiter.held().size() == 2);
    for (const DeviceArbiter::Held& held : node.arbiter.held()) {
      CHECK(held.client == 3);
      CHECK_FALSE(held.open);
    }
    node.returns(3, lease);
    REQUIRE(node.grants.size() == 2);  // what is free of it meanwhile
    CHECK(node.grants[1].first == 2);
    CHECK(node.grants[1].second.entry == node.layout.find(hal::ComputeSet(0b0010)));
    protocol::Returned returned;
    returned.head.lane = 1;
    returned.word = home.word;
    returned.entry = home.entry;
    node.arbiter.request(3, returned, node.now);
    node.arbiter.step(node.now);
    REQUIRE(node.grants.size() == 3);
    CHECK(node.grants[2].second.entry == lease.entry);
    CHECK(node.arbiter.counters().overlaps == 0);
    CHECK(node.arbiter.counters().stale == 0);
  }
}

// The daemon came, was told of what ran before it, and was silent before that had ended.
TEST_CASE("what an older session told of before this daemon is the new one's, too, in any order") {
  for (const std::uint64_t process : {40, 41}) {
    CAPTURE(process);
    Node node(0b0011);
    node.arbiter.attach(1, {.process = 40});
    const auto tell = [&](ClientId client, LaneId lane, std::uint64_t units,
                          protocol::LeaseWord word) {
      protocol::Holding holding;
      holding.head.lane = lane;
      holding.word = word;
      holding.entry = node.layout.find(hal::ComputeSet(units));
      holding.outstanding = 1;
      node.arbiter.request(client, holding, node.now);
    };
    const protocol::LeaseWord before = protocol::lease_word(6, 9, Gate::kOpen);
    const protocol::LeaseWord home = protocol::lease_word(0, 1, Gate::kOpen);
    for (const std::uint64_t units : {0b0010, 0b0001, 0b1000})
      node.arbiter.had_before(1, node.layout.find(hal::ComputeSet(units)), 1000);
    tell(1, 0, 0b0010, before);
    tell(1, 1, 0b0001, home);
    tell(1, 2, 0b1000, home);  // ends before the daemon is silent
    node.arbiter.attach(2, {.process = process});
    for (const std::uint64_t units : {0b0010, 0b0001})
      node.arbiter.had_before(2, node.layout.find(hal::ComputeSet(units)), 1000);
    tell(2, 0, 0b0010, home);  // newer work there, the old has ended
    tell(2, 1, 0b0001, home);
    node.arbiter.forget(1, node.now);
    const bool same = process == 40;
    // Another process that had them too is heard: its work is waited for beside the first one's.
    CHECK(node.arbiter.counters().overlaps == (same ? 0 : 2));
    REQUIRE(node.arbiter.held().size() == 2);
    if (!same) continue;
    node.arbiter.attach(3);
    node.wants(3);
    CHECK(node.grants.empty());
    for (const LaneId lane : {0, 1}) {
      protocol::Returned returned;
      returned.head.lane = lane;
      returned.word = home;
      returned.entry = node.layout.find(hal::ComputeSet(lane == 0 ? 0b0010 : 0b0001));
      CHECK(node.grants.size() == lane);  // what is free meanwhile
      node.arbiter.request(2, returned, node.now);
      node.arbiter.step(node.now);
    }
    REQUIRE(node.grants.size() == 2);
    CHECK(node.grants[1].second.entry == node.layout.find(hal::ComputeSet(0b0011)));
    CHECK(node.arbiter.counters().stale == 0);
  }
}

TEST_CASE("a session that has a newer one says nothing more, and no two grants have one word") {
  Node node(0b0011);
  node.arbiter.attach(1, {.process = 40});
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant lease = node.grants[0].second;
  node.arbiter.attach(2, {.process = 40});
  protocol::Holding holding;
  holding.word = lease.word;
  holding.entry = lease.entry;
  holding.outstanding = 1;
  node.arbiter.request(2, holding, node.now);
  node.wants(1);  // what lay in its ring
  node.returns(1, lease);
  CHECK(node.grants.size() == 1);
  REQUIRE(node.arbiter.held().size() == 1);
  CHECK(node.arbiter.held()[0].client == 2);
  node.returns(2, lease);
  node.wants(2);
  REQUIRE(node.grants.size() == 2);
  CHECK(node.grants[1].first == 2);
  CHECK(node.grants[1].second.word != lease.word);
}

namespace {

// Of client 1's work of another time, or of what it had.
void tell(Node& node, std::uint64_t units, protocol::LeaseWord word) {
  protocol::Holding holding;
  holding.head.lane = static_cast<std::uint32_t>(units);
  holding.word = word;
  holding.entry = node.layout.find(hal::ComputeSet(units));
  holding.outstanding = 1;
  node.arbiter.request(1, holding, node.now);
}
void had(Node& node, std::uint64_t units) {
  node.arbiter.had_before(1, node.layout.find(hal::ComputeSet(units)), 50'000);
}
constexpr protocol::LeaseWord kBefore = protocol::lease_word(6, 1, Gate::kOpen);
constexpr protocol::LeaseWord kHome = protocol::lease_word(0, 1, Gate::kOpen);

}  // namespace

TEST_CASE("no client takes units by telling of work that never was") {
  SUBCASE("of an epoch that never was, on every entry") {
    Node node(0b1100);
    node.arbiter.attach(1, {.process = 40});
    node.arbiter.attach(2, {.process = 41});
    protocol::Holding holding;
    for (EntryId entry = 1; entry < node.layout.size(); ++entry)
      for (const protocol::LeaseWord word :
           {kBefore, kHome, protocol::lease_word(8, 0, Gate::kNone)}) {
        holding.entry = entry;
        holding.word = word;
        node.arbiter.request(1, holding, node.now);
      }
    CHECK(node.arbiter.held().empty());
    CHECK(node.arbiter.counters().stale == 3 * (node.layout.size() - 1));
    node.wants(2);
    REQUIRE(node.grants.size() == 1);
    CHECK(node.grants[0].second.entry == node.layout.find(hal::ComputeSet(0b1100)));
  }
  SUBCASE("of its own home, where it has never been") {
    Node node(0b1100);
    const DeviceArbiter::Home own = node.arbiter.attach(1, {.process = 40});
    tell(node, node.layout.at(own.entry).compute.bits(), kHome);
    CHECK(node.arbiter.held().empty());
  }
  SUBCASE("of another process's home") {
    Node node(0b1100);
    const DeviceArbiter::Home other = node.arbiter.attach(2, {.process = 41});
    node.arbiter.attach(1, {.process = 40});
    tell(node, node.layout.at(other.entry).compute.bits(), kHome);
    CHECK(node.arbiter.held().empty());
  }
}

TEST_CASE("no client takes more units than it had by telling of work, nor for longer") {
  SUBCASE("of what it had, later than that counts") {
    Node node(0b1100);
    node.arbiter.attach(1, {.process = 40});
    had(node, 0b0011);
    node.now = 50'000;
    tell(node, 0b0011, kBefore);
    CHECK(node.arbiter.held().empty());
    CHECK(node.arbiter.counters().stale == 1);
  }
  SUBCASE("after it has asked for units") {
    Node node(0b1100);
    node.arbiter.attach(1);
    had(node, 0b0011);
    node.wants(1);
    tell(node, 0b0011, kBefore);
    CHECK(node.arbiter.held().size() == 1);
    CHECK(node.arbiter.counters().stale == 1);
  }
  SUBCASE("of a lease of this daemon") {
    Node node(0b1100);
    node.arbiter.attach(1);
    had(node, 0b0011);
    tell(node, 0b0011, protocol::lease_word(7, 1, Gate::kOpen));
    CHECK(node.arbiter.held().empty());
  }
  SUBCASE("past its share, but for its home") {
    Node node(0b1100);
    daemon::Traits traits;
    traits.terms.limits.max_sms = 8;
    node.arbiter.attach(1, traits);
    for (const std::uint64_t units : {0b1111, 0b0011, 0b0100, 0b1000}) had(node, units);
    tell(node, 0b1111, kBefore);
    CHECK(node.arbiter.held().empty());
    tell(node, 0b0011, kBefore);
    tell(node, 0b0100, kBefore);
    CHECK(node.arbiter.held().size() == 2);
    tell(node, 0b1000, kBefore);
    CHECK(node.arbiter.held().size() == 2);
  }
  SUBCASE("which never ends, for ever") {
    Node node(0b0011);
    node.arbiter.attach(1);
    node.arbiter.attach(2);
    had(node, 0b0011);
    node.now = 10'000;  // it came late, which gives it no longer
    tell(node, 0b0011, kBefore);
    node.wants(2);
    while (node.grants.empty() && node.now < 1'000'000'000) {
      protocol::Draining draining;
      draining.head.lane = 0b0011;
      draining.word = kBefore;
      draining.entry = node.layout.find(hal::ComputeSet(0b0011));
      draining.outstanding = 1;
      node.arbiter.request(1, draining, node.now += 2'000);
      node.arbiter.step(node.now);
    }
    REQUIRE(node.grants.size() == 1);
    CHECK(node.now >= 50'000);
    CHECK(node.now < 50'000 + 10'000);
    CHECK(node.arbiter.counters().overdue == 1);
  }
}

TEST_CASE("a new session has all that the one before had, and grants when enough of it has ended") {
  Moving node;
  node.arbiter.attach(1, {.process = 40});
  for (int i = 0; i < 100; ++i) node.moves_on(1, 0);
  REQUIRE(node.lanes_of(1)[0] == node.most);
  const auto before = node.given;
  node.arbiter.attach(2, {.process = 40});
  std::vector<protocol::Holding> told;
  const auto tell = [&](EntryId entry, protocol::LeaseWord word) {
    protocol::Holding holding;
    holding.word = word;
    holding.entry = entry;
    holding.outstanding = 1;
    node.arbiter.request(2, holding, node.now);
    told.push_back(holding);
  };
  for (const DeviceArbiter::Held& held : node.arbiter.held())
    if (std::none_of(told.begin(), told.end(),
                     [&](const auto& one) { return one.entry == held.entry; }))
      for (const auto& [to, grant] : before)  // a client tells of an entry once
        if (grant.entry == held.entry) {
          tell(held.entry, grant.word);
          break;
        }
  REQUIRE(told.size() > 1);
  // Its homes besides, one of each daemon that it lost.
  for (EntryId entry = 1; told.size() < node.most + 4; ++entry)
    if (std::none_of(told.begin(), told.end(),
                     [&](const auto& one) { return one.entry == entry; })) {
      node.arbiter.had_before(2, entry, 1'000'000);
      tell(entry, protocol::lease_word(0, 1, Gate::kOpen));
    }
  CHECK(node.arbiter.counters().overlaps == 0);
  node.arbiter.forget(1, node.now);
  CHECK(node.lanes_of(2)[0] == told.size());
  node.grants.clear();
  node.wants(2);
  std::size_t left = told.size();
  for (const protocol::Holding& holding : told) {
    CHECK(node.grants.size() == (left < node.most ? 1 : 0));
    if (!node.grants.empty()) break;
    protocol::Returned returned;
    returned.word = holding.word;
    returned.entry = holding.entry;
    node.arbiter.request(2, returned, node.now);
    node.arbiter.step(node.now);
    --left;
  }
  CHECK(node.grants.size() == 1);
  CHECK(node.arbiter.counters().stale == 0);
}

TEST_CASE("who tells of more work than a lane can have is heard so far, and the rest is counted") {
  Moving node;
  node.arbiter.attach(1);
  const auto entries = static_cast<EntryId>(node.layout.size());
  for (EntryId entry = 1; entry < entries; ++entry) {
    protocol::Holding holding;
    holding.word = protocol::lease_word(6, 1, Gate::kOpen);
    holding.entry = entry;
    holding.outstanding = 1;
    node.arbiter.had_before(1, entry, 1'000'000);
    node.arbiter.request(1, holding, node.now);
  }
  const std::size_t held = node.lanes_of(1)[0];
  CHECK(held >= node.most);
  CHECK(held <= 2 * node.most);
  CHECK(node.arbiter.counters().overlaps == entries - 1U - held);
}

}  // namespace vitamin::daemon
