// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of one device: clients' reports, and that clients do not affect each other.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/daemon/device_arbiter_node.h"

namespace vitamin::daemon {

TEST_CASE("other kernels do not look like other scaling, and old times lose weight") {
  Node node(std::string("fifo"));
  node.arbiter.attach(1);
  node.wants(1);
  const auto said = [&](std::uint32_t sms, std::uint64_t ns, std::uint64_t whole_ns,
                        std::uint32_t launches = 400) {
    node.arbiter.request(
        1, protocol::Timed{.mean_ns = ns, .launches = launches, .sms = sms, .whole_ns = whole_ns},
        node.now);
  };
  const std::uint64_t curve = node.arbiter.profile().kernels().empty() ? 2 : 0;
  const auto ratio = [&] {
    const runtime::Profile& profile = node.arbiter.profile();
    REQUIRE(profile.find(curve) != nullptr);
    return profile.predict(curve, 4).ns / profile.predict(curve, 8).ns;
  };
  said(8, 20'000, 10'000);
  said(4, 400'000, 100'000);  // kernels ten times as long
  CHECK(ratio() == doctest::Approx(2));
  for (int i = 0; i < 30; ++i) said(4, 8'000'000, 2'000'000);
  CHECK(ratio() == doctest::Approx(2));
  // The job changes to kernels that gain nothing from SMs: the curve soon shows that.
  for (int i = 0; i < 40; ++i) said(8, 10'000, 10'000), said(4, 10'000, 10'000);
  CHECK(ratio() < 1.05);
  CHECK(node.arbiter.profile().find(curve)->cells[0].count <= 2'000);
  // Times on the whole device count only while no other client submits there.
  said(16, 7'000, 10'000);
  const double alone = node.arbiter.profile().predict(curve, 16).ns;
  CHECK(alone == doctest::Approx(7'000));
  node.arbiter.attach(2);
  node.wants(2);
  for (const DeviceArbiter::GrantStatus& hold : node.arbiter.held())
    if (!hold.open) node.returns_closed(hold.client, hold.partition);
  REQUIRE(node.arbiter.held().size() == 2);
  said(16, 30'000, 10'000);
  CHECK(node.arbiter.profile().predict(curve, 16).ns == alone);
  // A client before 1.4 reports the mean time only.
  node.arbiter.forget(1, node.now);
  node.arbiter.attach(1);
  node.wants(1);
  said(8, 20'000, 0);
  CHECK(node.arbiter.profile().predict(curve, 8).ns == 20'000);
}

// Reported progress decides between the whole device and partitions.
TEST_CASE("clients get partitions if they progress faster there, else the whole device") {
  struct Work {
    double done = 0, busy_ns = 0;
  };
  for (const double on_parts : {1.3, 0.6}) {
    CAPTURE(on_parts);
    Node node(std::string("throughput"), Moving::device());
    std::map<ClientId, Work> work;
    // The share of the time in which some client was on a partition.
    const auto run = [&](std::uint64_t for_ns) {
      const std::uint64_t until = node.now + for_ns;
      std::uint64_t parts_ns = 0;
      while (node.now < until) {
        const std::uint64_t next =
            std::max(node.now + 1, std::min({node.arbiter.wake_at(), until, node.now + 5'000'000}));
        const auto held = node.arbiter.held();
        if (std::any_of(held.begin(), held.end(), [](const DeviceArbiter::GrantStatus& hold) {
              return hold.open && hold.partition != runtime::kWholeDevice;
            }))
          parts_ns += next - node.now;
        for (const DeviceArbiter::GrantStatus& hold : held) {
          if (!hold.open) continue;
          const double passed = static_cast<double>(next - node.now);
          work[hold.client].busy_ns += passed;
          work[hold.client].done +=
              passed * (hold.partition == runtime::kWholeDevice ? 0.5 : 0.5 * on_parts);
        }
        node.now = next;
        if (node.arbiter.wants_progress(node.now))
          for (const auto& [client, of] : work)
            node.arbiter.set_progress(
                client,
                {static_cast<std::uint64_t>(of.done), static_cast<std::uint64_t>(of.busy_ns), 0,
                 static_cast<std::uint64_t>(of.done / 1000)},
                node.now);
        for (int round = 0; round < 4; ++round) {
          node.arbiter.step(node.now);
          for (const DeviceArbiter::GrantStatus& hold : node.arbiter.held())
            if (!hold.open) node.returns_closed(hold.client, hold.partition);
        }
      }
      return static_cast<double>(parts_ns) / static_cast<double>(for_ns);
    };
    node.settings.answer_within_ns = 1'000'000'000;
    node.arbiter.set(node.settings);
    for (const ClientId client : {1U, 2U}) {
      node.arbiter.attach(client);
      node.wants(client);
    }
    run(3'000'000'000);  // to measure
    const double parts = run(5'000'000'000);
    if (on_parts > 1)
      CHECK(parts > 0.9);
    else
      CHECK(parts < 0.1);
  }
}

TEST_CASE("clients report while there are several and the policy compares them") {
  struct Reports : Node {
    using Node::Node;
    void set_reporting(ClientId client, bool wanted) override { told[client] = wanted; }
    std::map<ClientId, bool> told;
  };
  Reports node(std::string("throughput"));
  node.arbiter.attach(1);
  CHECK(node.told.empty());
  node.arbiter.attach(2);
  CHECK(node.told == std::map<ClientId, bool>{{1, true}, {2, true}});
  node.arbiter.forget(2, node.now);
  CHECK_FALSE(node.told[1]);
  node.arbiter.attach(3);
  CHECK(node.told[1]);
  node.arbiter.use(std::move(*scheduler::make("fifo", node.arbiter.context(1))));
  CHECK_FALSE(node.told[1]);
  CHECK_FALSE(node.told[3]);
}

// Before 1.7 a grant of the same partition replaced the open one.
TEST_CASE("a lane of an older client is granted no partition on which it drains") {
  for (const std::uint32_t minor : {6U, 7U}) {
    CAPTURE(minor);
    Node node(std::string("fifo"));
    node.arbiter.attach(1, {.minor = minor});
    node.wants(1);
    REQUIRE(node.grants.size() == 1);
    const protocol::Grant first = node.grants[0].second;
    node.wants(1, 1, true);  // work under the first grant still runs
    CHECK(node.grants.size() == (minor < 7 ? 1 : 2));
    node.returns(1, first);
    REQUIRE(node.grants.size() == 2);
    CHECK(node.grants[1].second.partition == first.partition);
    CHECK(node.grants[1].second.word != first.word);
    CHECK(node.arbiter.counters().stale == 0);
    CHECK(node.arbiter.held().size() == 1);
  }
}

// All decisions for one client.
class Decisions final : public daemon::GrantSink {
 public:
  void set_word(ClientId client, LaneId lane, protocol::LeaseWord word) override {
    if (client == kHonest) told.insert(told.end(), {lane, word});
  }
  bool grant(ClientId client, const protocol::Grant& grant) override {
    last[client] = grant;
    if (client == kHonest) told.insert(told.end(), {grant.word, grant.partition, grant.launches});
    return true;
  }
  void gates_closed(ClientId client) override {
    if (client == kHonest) told.push_back(0);
  }
  static constexpr ClientId kHonest = 2;
  std::map<ClientId, protocol::Grant> last;
  std::vector<std::uint64_t> told;
};

// `records`: after so many of its records the other client is killed; its process ends two
// steps later.
std::vector<std::uint64_t> decided_beside_a_victim(std::size_t records) {
  Decisions out;
  DeviceArbiter arbiter(runtime::PoolLayout::build(kInfo),
                        {{.quantum_ns = 5'000}, 100'000, 60'000'000'000}, 7, out);
  arbiter.use(std::move(*scheduler::make("static:parts=2", arbiter.context(1))));
  constexpr ClientId kVictim = 1;
  arbiter.attach(kVictim);
  arbiter.attach(Decisions::kHonest);
  auto ready = [](LaneId lane) {
    protocol::Ready said;
    said.head.lane = lane;
    said.sms = 1;
    return said;
  };
  auto returned = [&](ClientId client) {
    protocol::Returned said;
    said.head.lane = out.last[client].head.lane;
    said.word = out.last[client].word;
    said.partition = out.last[client].partition;
    return said;
  };
  // Both clients repeat these records, one in each step.
  auto say = [&](ClientId client, std::size_t turn, std::uint64_t now) {
    const auto lane = static_cast<LaneId>(turn / 4 % 2);
    protocol::Idle idle;
    idle.head.lane = lane;
    protocol::HintRecord hint;
    hint.head.lane = lane;
    hint.ready_in_ns = 300;
    hint.sms = 8;
    switch (turn % 4) {
      case 0:
        return arbiter.request(client, ready(lane), now);
      case 1:
        return arbiter.request(client, idle, now);
      case 2:
        return arbiter.request(client, returned(client), now);
      default:
        return arbiter.request(client, hint, now);
    }
  };
  std::uint64_t now = 1;
  for (std::size_t turn = 0; turn < 100; ++turn) {
    now += 1000;
    if (turn < records) say(kVictim, turn, now);
    if (turn == records) arbiter.dying(kVictim, now);
    if (turn == records + 2) arbiter.forget(kVictim, now);
    arbiter.step(now);
    say(Decisions::kHonest, turn, now + 500);
    arbiter.step(now + 500);
  }
  return out.told;
}

TEST_CASE("killing a client at any time does not change decisions for another one") {
  const auto lives = decided_beside_a_victim(100);
  CHECK(lives.size() > 50);  // grants, words and closed gates
  // With the first record the client gets its half of the device.
  for (std::size_t records = 1; records < 40; ++records) {
    CAPTURE(records);
    CHECK(decided_beside_a_victim(records) == lives);
  }
}

}  // namespace vitamin::daemon
