// SPDX-License-Identifier: Apache-2.0
//
// The arbiter and earlier work: of a former daemon, of fallback partitions, of older sessions.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tests/daemon/device_arbiter_node.h"

namespace vitamin::daemon {

TEST_CASE("after a restart units with earlier work are not granted before it has ended") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  protocol::Holding holding;
  holding.word = protocol::lease_word(6, 3, GateState::kOpen);  // of the former daemon
  holding.partition = node.layout.find(hal::ComputeSet(0b1111));
  holding.outstanding = 2;
  node.arbiter.accept_earlier_work(1, static_cast<PartitionId>(holding.partition), 1000);
  node.arbiter.request(1, holding, node.now);
  node.wants(2);
  CHECK(node.grants.empty());
  protocol::Returned returned;
  returned.word = holding.word;
  returned.partition = holding.partition;
  node.arbiter.request(1, returned, node.now);
  node.arbiter.step(node.now);
  CHECK(node.grants.size() == 1);
}

TEST_CASE("what an absent process may hold is granted to no other client before it reports") {
  Node node(0b1111);
  const PartitionId partition = node.layout.find(hal::ComputeSet(0b1111));
  const PartitionId fallback = node.layout.find(hal::ComputeSet(0b0001));
  const auto expect = [&] {
    node.arbiter.reserve_for_absent(9, 70, partition, 50'000, node.now);
    node.arbiter.reserve_for_absent(9, 70, fallback, 50'000, node.now);
  };
  const auto attach = [&](ClientId client, std::uint64_t process) {
    daemon::ClientTraits traits;
    traits.process = process;
    node.arbiter.attach(client, traits);
  };
  const auto tells = [&](PartitionId where) {
    protocol::Holding holding;
    holding.word = protocol::lease_word(6, 3, GateState::kOpen);
    holding.partition = where;
    holding.outstanding = 1;
    node.arbiter.request(1, holding, node.now);
    node.arbiter.step(node.now);
  };
  attach(2, 80);
  expect();
  node.wants(2);
  CHECK(node.grants.empty());
  CHECK(node.arbiter.held().empty());  // an absent process is not shown as a client
  SUBCASE("it reports work, which ends") {
    attach(1, 70);
    node.arbiter.accept_earlier_work(1, partition, 50'000);
    tells(partition);
    node.arbiter.request(1, protocol::Idle{}, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.empty());
    CHECK(node.arbiter.held().size() == 1);
    protocol::Returned returned;
    returned.word = protocol::lease_word(6, 3, GateState::kOpen);
    returned.partition = partition;
    node.arbiter.request(1, returned, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("it reports that it has no work") {
    attach(1, 70);
    node.arbiter.request(1, protocol::Idle{}, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("its first request ends its reports") {
    attach(1, 70);
    node.wants(1);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("it ends") {
    node.arbiter.forget(9, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("it does not connect within the time in which a client must answer") {
    node.now += node.settings.answer_within_ns;
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);
  }
  SUBCASE("another process connects") {
    attach(1, 71);
    node.arbiter.request(1, protocol::Idle{}, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.empty());
  }
  CHECK(node.arbiter.counters().overlaps == 0);
  CHECK(node.arbiter.counters().overdue == 0);
}

TEST_CASE("a late report of an older session does not affect the newer session") {
  Node node(0b1111);
  daemon::ClientTraits traits;
  traits.process = 70;
  const PartitionId partition = node.layout.find(hal::ComputeSet(0b0011));
  for (const ClientId id : {1, 2}) {
    node.arbiter.attach(id, traits);
    node.arbiter.accept_earlier_work(id, partition, 1'000'000);
  }
  protocol::Holding holding;
  holding.word = protocol::lease_word(6, 3, GateState::kOpen);
  holding.partition = partition;
  holding.outstanding = 1;
  for (const ClientId id : {1, 2}) node.arbiter.request(id, holding, node.now);
  REQUIRE(node.arbiter.held().size() == 1);
  CHECK(node.arbiter.held()[0].client == 2);
  node.wants(2);
  REQUIRE(node.grants.size() == 1);
  CHECK(node.grants[0].first == 2);
}

// The units were granted to another client before the earlier work was reported. The arbiter then
// waits for both before it grants them again.
TEST_CASE("earlier work on units that another client holds is waited for, too") {
  Node node(0b1111);
  for (const ClientId id : {1, 2, 3}) node.arbiter.attach(id);
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant lease = node.grants[0].second;
  protocol::Holding holding;
  holding.word = protocol::lease_word(6, 3, GateState::kOpen);
  holding.partition = lease.partition;
  holding.outstanding = 1;
  node.now += 100;
  node.arbiter.accept_earlier_work(2, static_cast<PartitionId>(holding.partition), 1'000'000);
  node.arbiter.request(2, holding, node.now);
  CHECK(node.arbiter.counters().overlaps == 1);
  CHECK(node.arbiter.counters().stale == 0);
  REQUIRE(node.arbiter.held().size() == 2);
  CHECK(node.arbiter.held()[0].open);  // the present holder goes on
  CHECK(node.arbiter.held()[1].adopted);
  CHECK_FALSE(node.arbiter.held()[1].open);
  CHECK(node.arbiter.held()[0].opened_ns + 100 == node.arbiter.held()[1].opened_ns);
  node.wants(3);
  node.now += 2'000;  // past the quantum
  node.arbiter.step(node.now);
  REQUIRE(node.closed == 1);
  node.returns(1, lease);
  CHECK(node.grants.size() == 1);  // the earlier work still runs
  SUBCASE("it ends") {
    protocol::Returned returned;
    returned.word = holding.word;
    returned.partition = holding.partition;
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

// The daemon was stopped for a while: its client lost it, used the fallback partition and
// reconnected.
TEST_CASE("grants of an older session are transferred to the newer one in one step") {
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
    holding.partition = lease.partition;
    holding.outstanding = 1;
    node.arbiter.request(3, holding, node.now);
    protocol::Holding fallback;  // on one of the same units
    fallback.head.lane = 1;
    fallback.word = protocol::lease_word(0, 1, GateState::kOpen);
    fallback.partition = node.layout.find(hal::ComputeSet(0b0001));
    fallback.outstanding = 1;
    node.arbiter.request(3, fallback, node.now);
    node.arbiter.step(node.now);
    if (process != 40) {                          // a report does not take another process's lease
      CHECK(node.arbiter.counters().stale == 2);  // nor its fallback partition
      CHECK(node.arbiter.held().size() == 1);
      CHECK(node.arbiter.held()[0].client == 1);
      continue;
    }
    node.arbiter.forget(1, node.now);
    node.arbiter.step(node.now);
    CHECK(node.grants.size() == 1);  // the work still runs
    REQUIRE(node.arbiter.held().size() == 2);
    for (const DeviceArbiter::GrantStatus& held : node.arbiter.held()) {
      CHECK(held.client == 3);
      CHECK_FALSE(held.open);
    }
    node.returns(3, lease);
    REQUIRE(node.grants.size() == 2);  // the units that are free meanwhile
    CHECK(node.grants[1].first == 2);
    CHECK(node.grants[1].second.partition == node.layout.find(hal::ComputeSet(0b0010)));
    protocol::Returned returned;
    returned.head.lane = 1;
    returned.word = fallback.word;
    returned.partition = fallback.partition;
    node.arbiter.request(3, returned, node.now);
    node.arbiter.step(node.now);
    REQUIRE(node.grants.size() == 3);
    CHECK(node.grants[2].second.partition == lease.partition);
    CHECK(node.arbiter.counters().overlaps == 0);
    CHECK(node.arbiter.counters().stale == 0);
  }
}

// The client lost the daemon while a grant of the same units drained, and that grant was taken back
// as overdue meanwhile: the client reports both under the grant's word.
TEST_CASE("work on a fallback partition is waited for, also under the word of an overdue grant") {
  for (const std::uint64_t units : {0b0001, 0b0010}) {
    CAPTURE(units);
    Node node(0b0011);
    node.arbiter.attach(1, {.process = 40});
    node.arbiter.attach(2, {.process = 50});
    node.arbiter.attach(3, {.process = 40});
    protocol::Holding holding;
    holding.word = protocol::lease_word(7, 9, GateState::kOpen);  // of this daemon
    holding.partition = node.layout.find(hal::ComputeSet(units));
    holding.outstanding = 1;
    node.arbiter.request(3, holding, node.now);
    node.arbiter.step(node.now);
    const bool is_fallback = units == 0b0001;
    CHECK(node.arbiter.held().size() == (is_fallback ? 1 : 0));
    CHECK(node.arbiter.counters().stale == (is_fallback ? 0 : 1));
  }
}

// The daemon started, was told of earlier work, and was stopped before that had ended.
TEST_CASE("earlier work that an older session reported is transferred, too, in any order") {
  for (const std::uint64_t process : {40, 41}) {
    CAPTURE(process);
    Node node(0b0011);
    node.arbiter.attach(1, {.process = 40});
    const auto tell = [&](ClientId client, LaneId lane, std::uint64_t units,
                          protocol::LeaseWord word) {
      protocol::Holding holding;
      holding.head.lane = lane;
      holding.word = word;
      holding.partition = node.layout.find(hal::ComputeSet(units));
      holding.outstanding = 1;
      node.arbiter.request(client, holding, node.now);
    };
    const protocol::LeaseWord before = protocol::lease_word(6, 9, GateState::kOpen);
    const protocol::LeaseWord fallback = protocol::lease_word(0, 1, GateState::kOpen);
    for (const std::uint64_t units : {0b0010, 0b0001, 0b1000})
      node.arbiter.accept_earlier_work(1, node.layout.find(hal::ComputeSet(units)), 1000);
    tell(1, 0, 0b0010, before);
    tell(1, 1, 0b0001, fallback);
    tell(1, 2, 0b1000, fallback);  // ends before the daemon is stopped
    node.arbiter.attach(2, {.process = process});
    for (const std::uint64_t units : {0b0010, 0b0001})
      node.arbiter.accept_earlier_work(2, node.layout.find(hal::ComputeSet(units)), 1000);
    tell(2, 0, 0b0010, fallback);  // newer work there; the older has ended
    tell(2, 1, 0b0001, fallback);
    node.arbiter.forget(1, node.now);
    const bool same = process == 40;
    // Another process that held them, too, is accepted: both works are waited for.
    CHECK(node.arbiter.counters().overlaps == (same ? 0 : 2));
    REQUIRE(node.arbiter.held().size() == 2);
    if (!same) continue;
    node.arbiter.attach(3);
    node.wants(3);
    CHECK(node.grants.empty());
    for (const LaneId lane : {0, 1}) {
      protocol::Returned returned;
      returned.head.lane = lane;
      returned.word = fallback;
      returned.partition = node.layout.find(hal::ComputeSet(lane == 0 ? 0b0010 : 0b0001));
      CHECK(node.grants.size() == lane);  // the units that are free meanwhile
      node.arbiter.request(2, returned, node.now);
      node.arbiter.step(node.now);
    }
    REQUIRE(node.grants.size() == 2);
    CHECK(node.grants[1].second.partition == node.layout.find(hal::ComputeSet(0b0011)));
    CHECK(node.arbiter.counters().stale == 0);
  }
}

TEST_CASE("records of a session that has a newer one are ignored, and no two grants share a word") {
  Node node(0b0011);
  node.arbiter.attach(1, {.process = 40});
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant lease = node.grants[0].second;
  node.arbiter.attach(2, {.process = 40});
  protocol::Holding holding;
  holding.word = lease.word;
  holding.partition = lease.partition;
  holding.outstanding = 1;
  node.arbiter.request(2, holding, node.now);
  node.wants(1);  // was still in its ring
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

// Client 1 reports earlier work; client 1's process held the units under a former daemon.
void tell(Node& node, std::uint64_t units, protocol::LeaseWord word) {
  protocol::Holding holding;
  holding.head.lane = static_cast<std::uint32_t>(units);
  holding.word = word;
  holding.partition = node.layout.find(hal::ComputeSet(units));
  holding.outstanding = 1;
  node.arbiter.request(1, holding, node.now);
}
void had(Node& node, std::uint64_t units) {
  node.arbiter.accept_earlier_work(1, node.layout.find(hal::ComputeSet(units)), 50'000);
}
constexpr protocol::LeaseWord kBefore = protocol::lease_word(6, 1, GateState::kOpen);
constexpr protocol::LeaseWord kFallback = protocol::lease_word(0, 1, GateState::kOpen);

}  // namespace

TEST_CASE("no client takes units by reporting work that does not exist") {
  SUBCASE("of an unknown epoch, on every partition") {
    Node node(0b1100);
    node.arbiter.attach(1, {.process = 40});
    node.arbiter.attach(2, {.process = 41});
    protocol::Holding holding;
    const auto partitions = static_cast<PartitionId>(node.layout.size());
    for (PartitionId partition = 1; partition < partitions; ++partition)
      for (const protocol::LeaseWord word :
           {kBefore, kFallback, protocol::lease_word(8, 0, GateState::kNone)}) {
        holding.partition = partition;
        holding.word = word;
        node.arbiter.request(1, holding, node.now);
      }
    CHECK(node.arbiter.held().empty());
    CHECK(node.arbiter.counters().stale == 3 * (node.layout.size() - 1));
    node.wants(2);
    REQUIRE(node.grants.size() == 1);
    CHECK(node.grants[0].second.partition == node.layout.find(hal::ComputeSet(0b1100)));
  }
  SUBCASE("in its own fallback partition, which it has never used") {
    Node node(0b1100);
    const DeviceArbiter::Fallback own = node.arbiter.attach(1, {.process = 40});
    tell(node, node.layout.at(own.partition).compute.bits(), kFallback);
    CHECK(node.arbiter.held().empty());
  }
  SUBCASE("in another process's fallback partition") {
    Node node(0b1100);
    const DeviceArbiter::Fallback other = node.arbiter.attach(2, {.process = 41});
    node.arbiter.attach(1, {.process = 40});
    tell(node, node.layout.at(other.partition).compute.bits(), kFallback);
    CHECK(node.arbiter.held().empty());
  }
}

TEST_CASE("reports of earlier work never exceed what the client held, nor the time-out") {
  SUBCASE("of units that it held, after the time-out") {
    Node node(0b1100);
    node.arbiter.attach(1, {.process = 40});
    had(node, 0b0011);
    node.now = 50'000;
    tell(node, 0b0011, kBefore);
    CHECK(node.arbiter.held().empty());
    CHECK(node.arbiter.counters().stale == 1);
  }
  SUBCASE("after its first request") {
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
    tell(node, 0b0011, protocol::lease_word(7, 1, GateState::kOpen));
    CHECK(node.arbiter.held().empty());
  }
  SUBCASE("beyond its quota and its fallback partition") {
    Node node(0b1100);
    daemon::ClientTraits traits;
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
  SUBCASE("that never ends") {
    Node node(0b0011);
    node.arbiter.attach(1);
    node.arbiter.attach(2);
    had(node, 0b0011);
    node.now = 10'000;  // connecting late does not extend the time-out
    tell(node, 0b0011, kBefore);
    node.wants(2);
    while (node.grants.empty() && node.now < 1'000'000'000) {
      protocol::Draining draining;
      draining.head.lane = 0b0011;
      draining.word = kBefore;
      draining.partition = node.layout.find(hal::ComputeSet(0b0011));
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

TEST_CASE(
    "a newer session takes over all grants, and gets new ones when enough of them have ended") {
  Moving node;
  node.arbiter.attach(1, {.process = 40});
  for (int i = 0; i < 100; ++i) node.moves_on(1, 0);
  REQUIRE(node.lanes_of(1)[0] == node.most);
  const auto before = node.given;
  node.arbiter.attach(2, {.process = 40});
  std::vector<protocol::Holding> told;
  const auto tell = [&](PartitionId partition, protocol::LeaseWord word) {
    protocol::Holding holding;
    holding.word = word;
    holding.partition = partition;
    holding.outstanding = 1;
    node.arbiter.request(2, holding, node.now);
    told.push_back(holding);
  };
  for (const DeviceArbiter::GrantStatus& held : node.arbiter.held())
    if (std::none_of(told.begin(), told.end(),
                     [&](const auto& one) { return one.partition == held.partition; }))
      for (const auto& [to, grant] : before)  // a client reports a partition once
        if (grant.partition == held.partition) {
          tell(held.partition, grant.word);
          break;
        }
  REQUIRE(told.size() > 1);
  // And its fallback partitions, one of each daemon that it lost.
  for (PartitionId partition = 1; told.size() < node.most + 4; ++partition)
    if (std::none_of(told.begin(), told.end(),
                     [&](const auto& one) { return one.partition == partition; })) {
      node.arbiter.accept_earlier_work(2, partition, 1'000'000);
      tell(partition, protocol::lease_word(0, 1, GateState::kOpen));
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
    returned.partition = holding.partition;
    node.arbiter.request(2, returned, node.now);
    node.arbiter.step(node.now);
    --left;
  }
  CHECK(node.grants.size() == 1);
  CHECK(node.arbiter.counters().stale == 0);
}

TEST_CASE("reports beyond the grants that a lane can have are counted as overlaps") {
  Moving node;
  node.arbiter.attach(1);
  const auto partitions = static_cast<PartitionId>(node.layout.size());
  for (PartitionId partition = 1; partition < partitions; ++partition) {
    protocol::Holding holding;
    holding.word = protocol::lease_word(6, 1, GateState::kOpen);
    holding.partition = partition;
    holding.outstanding = 1;
    node.arbiter.accept_earlier_work(1, partition, 1'000'000);
    node.arbiter.request(1, holding, node.now);
  }
  const std::size_t held = node.lanes_of(1)[0];
  CHECK(held >= node.most);
  CHECK(held <= 2 * node.most);
  CHECK(node.arbiter.counters().overlaps == partitions - 1U - held);
}

}  // namespace vitamin::daemon
