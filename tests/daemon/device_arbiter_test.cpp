// SPDX-License-Identifier: Apache-2.0
//
// The arbiter of a device by itself: what each record does, what stale, overdue and dying mean.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "runtime/demand.h"
#include "scheduler/policies/registry.h"

namespace vitamin::daemon {

using protocol::Gate;

namespace {

const hal::DeviceInfo kInfo{hal::Vendor::kSoftware, "d", "GPU-0", 16, {4, 4, 4, 4}, 1000};

scheduler::Policy asked_always(std::string_view name,
                               std::unique_ptr<scheduler::AllocationPolicy> allocation) {
  scheduler::Policy policy;
  policy.description.name = name;
  policy.description.may_starve = policy.description.uses_steps = true;
  policy.description.uses_returns = policy.description.uses_streams = true;
  policy.allocation = std::move(allocation);
  return policy;
}

// One partition for everybody, in turns: who does not have it waits.
class OneEntry final : public scheduler::AllocationPolicy {
 public:
  OneEntry(hal::ComputeSet units, std::uint64_t quantum) : units_(units), quantum_ns_(quantum) {}
  void allocate(const scheduler::Snapshot& snapshot, scheduler::Allocation& out) override {
    const auto longest = [&](ClientId but) {
      ClientId found = scheduler::kNoClient;
      std::uint64_t since = kNever;
      for (const scheduler::Client& client : snapshot.clients)
        for (const scheduler::StreamDemand& stream : client.streams)
          if (client.id != but && stream.state == scheduler::StreamDemand::State::kWaiting &&
              stream.waiting_since_ns < since)
            found = client.id, since = stream.waiting_since_ns;
      return found;
    };
    const scheduler::Client* const holder = snapshot.find(holder_);
    const ClientId next = longest(holder_);
    if (holder != nullptr &&
        std::none_of(holder->streams.begin(), holder->streams.end(), [](const auto& stream) {
          return stream.state == scheduler::StreamDemand::State::kRunning;
        }))
      since_ns_ = snapshot.now_ns;  // its turn has not begun
    if (holder == nullptr || holder->streams.empty() ||
        (next != scheduler::kNoClient && snapshot.now_ns - since_ns_ >= quantum_ns_)) {
      holder_ = next;
      since_ns_ = snapshot.now_ns;
    }
    if (holder_ == scheduler::kNoClient) return;
    scheduler::Row& row = out.rows.emplace_back();
    row.client = holder_;
    row.mode = scheduler::Mode::kExclusive;
    for (const scheduler::Partition& partition : snapshot.pool.subspan(1))
      if (partition.compute == units_) row.partition = partition.id;
    if (longest(holder_) != scheduler::kNoClient) out.wake_ns = since_ns_ + quantum_ns_;
  }

 private:
  hal::ComputeSet units_;
  std::uint64_t quantum_ns_, since_ns_ = 0;
  ClientId holder_ = scheduler::kNoClient;
};

class Node : public daemon::Outlet {
 public:
  explicit Node(std::uint64_t units, std::uint64_t quantum = 1000)
      : Node(asked_always("one-entry",
                          std::make_unique<OneEntry>(hal::ComputeSet(units), quantum))) {}
  explicit Node(const std::string& policy, const hal::DeviceInfo& info = kInfo) : Node(info) {
    arbiter.use(std::move(*scheduler::make(policy, arbiter.context(1))));
  }
  explicit Node(scheduler::Policy policy, const hal::DeviceInfo& info = kInfo) : Node(info) {
    arbiter.use(std::move(policy));
  }
  explicit Node(const hal::DeviceInfo& info)
      : layout(runtime::PoolLayout::build(info)),
        settings{{.replan_least_ns = 1}, 10'000, 100'000},
        arbiter(layout, settings, 7, *this) {}

  void set_word(ClientId, LaneId lane, protocol::LeaseWord word) override { words[lane] = word; }
  bool grant(ClientId client, const protocol::Grant& grant) override {
    if (full) return false;
    grants.push_back({client, grant});
    given.push_back({client, grant});
    return true;
  }
  void gates_closed(ClientId) override { ++closed; }

  void wants(ClientId client, std::uint32_t processors = 1, bool moves_on = false) {
    protocol::Ready ready;
    ready.processors = processors;
    ready.moves_on = moves_on ? 1 : 0;
    arbiter.request(client, ready, now);
    arbiter.step(now);
  }
  // What was closed of the client on the entry, by its grant's word.
  void returns_closed(ClientId client, EntryId entry) {
    for (const auto& [to, grant] : given)
      if (to == client && grant.entry == entry) last_word[{to, entry}] = grant.word;
    protocol::Returned returned;
    returned.word = last_word[{client, entry}];
    returned.entry = entry;
    arbiter.request(client, returned, now);
    arbiter.step(now);
  }
  void returns(ClientId client, const protocol::Grant& grant) {
    protocol::Returned returned;
    returned.word = grant.word;
    returned.entry = grant.entry;
    arbiter.request(client, returned, now);
    arbiter.step(now);
  }

  runtime::PoolLayout layout;
  daemon::ArbiterSettings settings;
  daemon::DeviceArbiter arbiter;
  std::map<LaneId, protocol::LeaseWord> words;
  std::vector<std::pair<ClientId, protocol::Grant>> grants;
  std::vector<std::pair<ClientId, protocol::Grant>> given;  // all that ever were
  std::map<std::pair<ClientId, EntryId>, protocol::LeaseWord> last_word;
  int closed = 0;
  bool full = false;
  std::uint64_t now = 1;
};

}  // namespace

TEST_CASE("a lane that wants is granted an entry, and its word says what the grant says") {
  Node node(0b11);
  node.arbiter.attach(1);
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant grant = node.grants[0].second;
  CHECK(node.words[0] == grant.word);
  CHECK(protocol::gate_of(grant.word) == Gate::kOpen);
  CHECK(protocol::epoch_of(grant.word) == 7);
  CHECK(node.layout.at(static_cast<EntryId>(grant.entry)).compute.bits() == 0b11);
}

TEST_CASE("what a program says of a lane is a step, which the next one and idleness end") {
  struct Listens final : scheduler::AllocationPolicy {
    void allocate(const scheduler::Snapshot& snapshot, scheduler::Allocation& out) override {
      const scheduler::Client* const client = snapshot.find(1);
      heard.assign(client->steps.begin(), client->steps.end());
      out.rows.emplace_back().client = 1;
    }
    std::vector<scheduler::Step> heard;
  };
  auto policy = std::make_unique<Listens>();
  const Listens& listens = *policy;
  Node node(asked_always("listens", std::move(policy)));
  node.arbiter.attach(1);
  protocol::Ready ready;
  ready.kind = static_cast<std::uint8_t>(runtime::OperationClass::kDecode);
  ready.deadline_in_ns = 3'000'000;
  ready.queued_ns = 2'000'000;
  node.arbiter.request(1, ready, node.now);
  node.arbiter.step(node.now);
  REQUIRE(listens.heard.size() == 1);
  const scheduler::Step first = listens.heard[0];
  CHECK(first.kind == scheduler::StepKind::kDecode);
  CHECK(first.due_ns == node.now + 3'000'000);
  CHECK(first.work_ns == 2'000'000);
  CHECK(first.begin_ns != 0);
  protocol::HintRecord hint;  // the next token, while the grant stands
  hint.kind = ready.kind;
  hint.ready_in_ns = 500;
  hint.deadline_in_ns = 9'000'000;
  hint.processors = 4;
  node.arbiter.request(1, hint, node.now);
  node.arbiter.step(node.now);
  REQUIRE(listens.heard.size() == 2);
  hint.ready_in_ns = 0;
  node.arbiter.request(1, hint, node.now += 1'000);
  node.arbiter.step(node.now);
  REQUIRE(listens.heard.size() == 1);
  CHECK(listens.heard[0].id != first.id);
  CHECK(listens.heard[0].due_ns == node.now + 9'000'000);
  CHECK(listens.heard[0].begin_ns == node.now);
  hint.ready_in_ns = 500;
  node.arbiter.request(1, hint, node.now);
  hint.cancelled = 1;
  node.arbiter.request(1, hint, node.now);
  node.arbiter.step(node.now);
  CHECK(listens.heard.size() == 1);
  node.arbiter.request(1, protocol::Idle(), node.now);
  node.arbiter.step(node.now);
  CHECK(listens.heard.empty());
}

TEST_CASE("a launch of which nothing is said ends the step that was said of launches") {
  struct Listens final : scheduler::AllocationPolicy {
    void allocate(const scheduler::Snapshot& snapshot, scheduler::Allocation& out) override {
      const scheduler::Client* const client = snapshot.find(1);
      heard.assign(client->steps.begin(), client->steps.end());
      out.rows.emplace_back().client = 1;
    }
    std::vector<scheduler::Step> heard;
  };
  auto policy = std::make_unique<Listens>();
  const Listens& listens = *policy;
  Node node(asked_always("listens", std::move(policy)));
  node.arbiter.attach(1);
  const auto launches = [&](runtime::OperationClass kind, bool iteration_end) {
    protocol::Ready ready;
    ready.kind = static_cast<std::uint8_t>(kind);
    ready.iteration_end = iteration_end ? 1 : 0;
    node.arbiter.request(1, ready, node.now += 1'000);
    node.arbiter.step(node.now);
  };
  using runtime::OperationClass;
  launches(OperationClass::kBestEffort, false);
  REQUIRE(listens.heard.size() == 1);
  CHECK(listens.heard[0].kind == scheduler::StepKind::kBestEffort);
  launches(OperationClass::kUnknown, false);
  CHECK(listens.heard.empty());
  // Iterations last until the next one.
  launches(OperationClass::kUnknown, true);
  REQUIRE(listens.heard.size() == 1);
  CHECK(listens.heard[0].kind == scheduler::StepKind::kIteration);
  const std::uint64_t first = listens.heard[0].id;
  launches(OperationClass::kUnknown, false);
  REQUIRE(listens.heard.size() == 1);
  CHECK(listens.heard[0].id == first);
  launches(OperationClass::kUnknown, true);
  REQUIRE(listens.heard.size() == 1);
  CHECK(listens.heard[0].id != first);
  // What was announced ahead of its launches stays, whatever is said of them.
  protocol::HintRecord hint;
  hint.kind = static_cast<std::uint8_t>(OperationClass::kDecode);
  hint.processors = 1;
  hint.deadline_in_ns = 9'000'000;
  node.arbiter.request(1, hint, node.now);
  launches(OperationClass::kUnknown, false);
  REQUIRE(listens.heard.size() == 1);
  CHECK(listens.heard[0].kind == scheduler::StepKind::kDecode);
}

TEST_CASE("who waits for held units has them after the gate was closed and the grant returned") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant first = node.grants[0].second;
  node.wants(2);
  CHECK(node.grants.size() == 1);
  node.now += 2000;  // the quantum is over
  node.arbiter.step(node.now);
  CHECK(node.closed == 1);
  CHECK(node.words[0] != first.word);
  node.returns(1, first);
  REQUIRE(node.grants.size() == 2);
  CHECK(node.grants[1].first == 2);
  CHECK(node.arbiter.counters().stale == 0);
}

TEST_CASE("a client that does not answer is overdue; one that says that it drains is not") {
  for (const bool answers : {false, true}) {
    Node node(0b1111);
    node.arbiter.attach(1);
    node.arbiter.attach(2);
    node.wants(1);
    const protocol::Grant first = node.grants[0].second;
    node.wants(2);
    node.now += 2000;
    node.arbiter.step(node.now);
    for (int i = 0; i < 20; ++i) {
      node.now += 1000;
      protocol::Draining draining;
      draining.word = first.word;
      draining.entry = first.entry;
      draining.outstanding = 1;
      if (answers) node.arbiter.request(1, draining, node.now);
      node.arbiter.step(node.now);
    }
    CHECK(node.arbiter.counters().overdue == (answers ? 0 : 1));
    CHECK((node.grants.size() == 2) == !answers);
    if (!answers) {
      node.returns(1, first);  // at last: means nothing any more
      CHECK(node.arbiter.counters().stale == 1);
      CHECK(node.arbiter.held().size() == 1);
    }
  }
}

// Of one that drains each of its grants for as long as it may, others have as much as it has.
TEST_CASE("a client that always drains for long leaves others their time") {
  Node node(0b1111);
  const ClientId hostile = 1, honest = 2;
  node.arbiter.attach(hostile);
  node.arbiter.attach(honest);
  node.wants(hostile);
  std::uint64_t turns = 0;
  const std::uint64_t end = node.now + 20 * node.settings.drain_within_ns;
  while (node.now < end) {
    node.now += 500;
    for (const DeviceArbiter::Held& held : node.arbiter.held()) {
      const auto grant = std::find_if(node.grants.rbegin(), node.grants.rend(),
                                      [&](const auto& one) { return one.first == held.client; });
      if (held.open) continue;
      if (held.client == honest) {
        ++turns;
        node.returns(honest, grant->second);
      } else {
        protocol::Draining draining;
        draining.word = grant->second.word;
        draining.entry = held.entry;
        node.arbiter.request(hostile, draining, node.now);
      }
    }
    node.wants(honest);
    node.wants(hostile);
  }
  // What it has saved up once, and then no longer than an answer may take; without a bound on that
  // the honest one has 20 turns.
  CHECK(turns > 19 * node.settings.drain_within_ns / (2 * node.settings.answer_within_ns));
}

TEST_CASE("times on widths that no part has are not kept") {
  Node node(std::string("fifo"));
  node.arbiter.attach(1);
  const std::uint64_t version = node.arbiter.profile().version();
  protocol::Timed timed;
  timed.mean_ns = 1000;
  timed.launches = 1;
  for (std::uint32_t width = 1; width <= 16; ++width) {
    const bool known = std::any_of(node.layout.entries().begin(), node.layout.entries().end(),
                                   [&](const auto& entry) { return entry.processors == width; });
    if (known) continue;
    timed.processors = width;
    node.arbiter.request(1, timed, node.now);
  }
  CHECK(node.arbiter.profile().version() == version);
  timed.processors = 16;
  node.arbiter.request(1, timed, node.now);
  CHECK(node.arbiter.profile().version() != version);
}

TEST_CASE("a grant that found the ring full is taken back and can be asked for again") {
  Node node(0b11);
  node.arbiter.attach(1);
  node.full = true;
  node.wants(1);
  CHECK(node.arbiter.held().empty());
  CHECK(protocol::gate_of(node.words[0]) != Gate::kOpen);
  node.full = false;
  node.wants(1);
  CHECK(node.grants.size() == 1);
}

TEST_CASE("a dying client holds what its work covers until it is gone") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  node.arbiter.dying(1, node.now);
  CHECK(protocol::gate_of(node.words[0]) == Gate::kClosed);
  node.wants(2);
  node.now += 50'000;
  node.arbiter.step(node.now);
  CHECK(node.grants.size() == 1);  // not overdue: the driver may still run its work
  node.arbiter.forget(1, node.now);
  node.arbiter.step(node.now);
  CHECK(node.grants.size() == 2);
}

TEST_CASE("a client that says that it dies, and lives on, holds for as long as one that drains") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  node.wants(2);
  node.arbiter.dying(1, node.now);
  const std::uint64_t end = node.now + node.settings.drain_within_ns;
  node.arbiter.step(end - 1);
  CHECK(node.grants.size() == 1);
  const std::uint64_t slack = node.settings.answer_within_ns / 256;  // between two looks
  CHECK(node.arbiter.wake_at() <= end + slack);
  node.arbiter.step(end + slack);
  REQUIRE(node.grants.size() == 2);
  CHECK(node.grants[1].first == 2);
  CHECK(node.arbiter.counters().overdue == 1);
}

TEST_CASE("homes are disjoint for as many clients as there are units, then shared, and say so") {
  Node node(0b1);
  hal::ComputeSet taken;
  for (ClientId id = 1; id <= 4; ++id) {
    const auto home = node.arbiter.attach(id);
    CHECK_FALSE(home.shared);
    CHECK_FALSE(node.layout.at(home.entry).compute.overlaps(taken));
    taken |= node.layout.at(home.entry).compute;
  }
  CHECK(node.arbiter.attach(5).shared);
  node.arbiter.forget(2, 1);
  CHECK_FALSE(node.arbiter.attach(6).shared);
}

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
  CHECK(node.arbiter.held().empty());  // it is no client, and nobody knows that it has work
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

TEST_CASE("nobody takes units by telling of work that never was") {
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

TEST_CASE("nobody takes more units than it had by telling of work, nor for longer") {
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

TEST_CASE("what a client holds is said before it is told, and when it is over, once for each") {
  class Recording : public Node {
   public:
    using Node::Node;
    bool grant(ClientId client, const protocol::Grant& grant) override {
      CHECK(has.contains({client, static_cast<EntryId>(grant.entry)}));
      return Node::grant(client, grant);
    }
    void holds(ClientId client, EntryId entry, bool held) override {
      if (held)
        CHECK(has.insert({client, entry}).second);
      else
        CHECK(has.erase({client, entry}) == 1);
    }
    std::set<std::pair<ClientId, EntryId>> has;
  };
  Recording node(0b0011);
  const EntryId entry = node.layout.find(hal::ComputeSet(0b0011));
  const auto asks = [&](LaneId lane) {
    protocol::Ready ready;
    ready.head.lane = lane;
    node.arbiter.request(1, ready, node.now);
    node.arbiter.step(node.now);
  };
  node.arbiter.attach(1, {.process = 40});
  asks(0);
  asks(1);  // two lanes of it on one entry
  REQUIRE(node.grants.size() == 2);
  CHECK(node.has.size() == 1);
  for (const LaneId lane : {0, 1}) {
    CHECK(node.has.contains({1, entry}));
    protocol::Idle idle;
    idle.head.lane = lane;
    node.arbiter.request(1, idle, node.now);
    protocol::Returned returned;
    returned.head.lane = lane;
    returned.word = node.grants[lane].second.word;
    returned.entry = entry;
    node.arbiter.request(1, returned, node.now);
  }
  CHECK(node.has.empty());
  SUBCASE("a grant that was not delivered") {
    node.full = true;
    asks(2);
    CHECK(node.has.empty());
  }
  SUBCASE("one that is overdue") {
    asks(2);
    protocol::Idle idle;
    idle.head.lane = 2;
    node.arbiter.request(1, idle, node.now);
    CHECK(node.has.size() == 1);
    node.arbiter.step(node.now += 20'000);
    CHECK(node.has.empty());
  }
  SUBCASE("what another session of the process takes over") {
    asks(2);
    node.arbiter.attach(2, {.process = 40});
    protocol::Holding holding;
    holding.head.lane = 2;
    holding.word = node.grants.back().second.word;
    holding.entry = entry;
    node.arbiter.request(2, holding, node.now);
    CHECK(node.has == std::set<std::pair<ClientId, EntryId>>{{2, entry}});
  }
}

TEST_CASE(
    "a client answers within what it was told, though another bound holds for who comes now") {
  Node node(0b1111);
  node.arbiter.attach(1);
  node.wants(1);
  auto settings = node.settings;
  settings.answer_within_ns = 1'000;
  node.arbiter.set(settings);
  node.arbiter.attach(2);
  node.wants(2);
  node.now += 2'000;
  node.arbiter.step(node.now);
  REQUIRE(node.closed == 1);
  node.now += 9'000;
  node.arbiter.step(node.now);
  CHECK(node.arbiter.counters().overdue == 0);
  node.now += 1'000;
  node.arbiter.step(node.now);
  CHECK(node.arbiter.counters().overdue == 1);
  REQUIRE(node.grants.size() == 2);
  node.wants(1);
  node.now += 2'000;
  node.arbiter.step(node.now);
  node.now += 1'000;  // client 2's is the new one
  node.arbiter.step(node.now);
  CHECK(node.arbiter.counters().overdue == 2);
}

TEST_CASE(
    "a grant that is renewed and cannot be told leaves its units to the work that runs there") {
  // As far ahead as it was said last.
  struct Renews final : scheduler::AllocationPolicy {
    void allocate(const scheduler::Snapshot& snapshot, scheduler::Allocation& out) override {
      const scheduler::Client* const first = snapshot.find(1);
      scheduler::Row& row = out.rows.emplace_back();
      row.client = first != nullptr && !first->streams.empty() ? 1 : 2;
      row.mode = scheduler::Mode::kExclusive;
      row.partition = snapshot.pool.back().id;
      row.run_ahead_ns = ahead_ns;
    }
    std::uint64_t ahead_ns = kNever;
  };
  auto policy = std::make_unique<Renews>();
  Renews& renews = *policy;
  Node node(asked_always("renews", std::move(policy)));
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  REQUIRE(node.grants.size() == 1);
  const protocol::Grant first = node.grants[0].second;
  node.full = true;  // it does not read
  renews.ahead_ns = 500'000;
  node.wants(2);
  REQUIRE(node.arbiter.counters().undelivered == 1);
  node.full = false;
  node.wants(2);
  CHECK(node.grants.size() == 1);  // not to the other
  REQUIRE(node.arbiter.held().size() == 1);
  CHECK_FALSE(node.arbiter.held()[0].open);
  CHECK(protocol::gate_of(node.words[0]) == Gate::kClosed);
  CHECK(node.closed == 1);
  node.returns(1, first);  // by the word that it knows
  CHECK(node.arbiter.counters().stale == 0);
  REQUIRE(node.grants.size() == 2);
  CHECK(node.grants[1].first == 2);
}

namespace {

// A device of 59 entries, where a lane might drain on each of them; all move at random.
struct Moving : Node {
  explicit Moving(const std::string& policy = "random:max=16") : Node(policy, device()) {}
  explicit Moving(scheduler::Policy policy) : Node(std::move(policy), device()) {}
  static hal::DeviceInfo device() {
    return {hal::Vendor::kSoftware, "d", "GPU-0", 128, std::vector<std::uint32_t>(16, 8), 1000};
  }
  void moves_on(ClientId client, LaneId lane) {
    protocol::Ready ready;
    ready.head.lane = lane;
    ready.moves_on = 1;
    arbiter.request(client, ready, now);
    arbiter.step(now);
  }
  std::map<LaneId, std::size_t> lanes_of(ClientId client) const {
    std::map<LaneId, std::size_t> lanes;
    for (const DeviceArbiter::Held& held : arbiter.held())
      if (held.client == client) ++lanes[held.lane];
    return lanes;
  }
  const std::size_t most = settings.scheduler.grants_per_stream;
};

}  // namespace

TEST_CASE("however often all lanes of a client move on, each has a few grants, and others theirs") {
  for (const char* policy : {"random", "fifo", "throughput", "throughput:model=algorithm1"}) {
    CAPTURE(policy);
    Moving node{std::string(policy)};
    node.arbiter.attach(1);
    node.arbiter.attach(2);
    for (int i = 0; i < 100; ++i)
      for (LaneId lane = 0; lane < protocol::kLanes; ++lane) node.moves_on(2, lane);
    const auto lanes = node.lanes_of(2);
    REQUIRE_FALSE(lanes.empty());
    for (const auto& [lane, grants] : lanes) CHECK(grants <= node.most);
    node.grants.clear();
    node.wants(1);
    for (int i = 0; i < 3 && node.grants.empty(); ++i) node.arbiter.step(node.now += 10'000);
    CHECK_FALSE(node.grants.empty());  // of client 2's, what nobody answers for by then is free
  }
}

TEST_CASE("a lane that has all its grants waits for its own work, and nobody else waits for that") {
  // The narrowest to client 1, what is beside it to others.
  struct Beside final : scheduler::PlacementPolicy {
    scheduler::Placement place(const scheduler::Launch& launch,
                               std::span<const scheduler::PartitionId> eligible) override {
      for (const scheduler::PartitionId id : eligible)
        if (launch.client == 1 || !launch.pool[id].compute.has(0)) return {id, 0};
      return {};
    }
  };
  scheduler::Policy policy;
  policy.description.name = "beside";
  policy.placement = std::make_unique<Beside>();
  Moving node(std::move(policy));
  node.settings.answer_within_ns = node.settings.drain_within_ns = kNever / 4;
  node.arbiter.set(node.settings);
  node.arbiter.attach(1);
  node.arbiter.attach(2);
  node.wants(1);
  for (int i = 0; i < 100; ++i) node.moves_on(2, 0);
  REQUIRE(node.lanes_of(2)[0] == node.most);
  CHECK(node.arbiter.scheduler().waiting() == 1);
  // Past the quantum, and past the age at which a lane is served before others.
  node.closed = 0;
  node.grants.clear();
  for (int i = 0; i < 5; ++i) {
    node.arbiter.step(node.now += 1'000'000'000);
    node.moves_on(2, 0);
  }
  CHECK(node.closed == 0);
  CHECK(node.grants.empty());
  CHECK(node.arbiter.scheduler().counters().revoked == 0);
  CHECK(node.arbiter.scheduler().counters().aged == 0);
  // Whichever of its work ends first.
  const auto held = node.arbiter.held();
  const auto drains =
      std::find_if(held.rbegin(), held.rend(), [](const auto& one) { return one.client == 2; });
  node.returns_closed(2, drains->entry);
  REQUIRE(node.grants.size() == 1);
  CHECK(node.grants[0].first == 2);
  CHECK(node.lanes_of(2)[0] == node.most);
  CHECK(node.arbiter.counters().stale == 0);
  node.moves_on(2, 0);
  CHECK(node.grants.size() == 1);
  node.arbiter.forget(2, node.now);
  CHECK(node.arbiter.held().size() == 1);
}

TEST_CASE("a lane that answers for none of its grants has new ones when they are overdue") {
  Moving node;
  node.arbiter.attach(1);
  for (int i = 0; i < 100; ++i) node.moves_on(1, 0);
  REQUIRE(node.lanes_of(1)[0] == node.most);
  node.grants.clear();
  node.arbiter.step(node.now += node.settings.answer_within_ns);
  CHECK(node.arbiter.counters().overdue == node.most);
  node.wants(1);
  CHECK(node.grants.size() == 1);
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

TEST_CASE("other kernels are no other scaling, and what was long ago fades") {
  Node node(std::string("fifo"));
  node.arbiter.attach(1);
  node.wants(1);
  const auto said = [&](std::uint32_t processors, std::uint64_t ns, std::uint64_t whole_ns,
                        std::uint32_t launches = 400) {
    node.arbiter.request(
        1,
        protocol::Timed{
            .mean_ns = ns, .launches = launches, .processors = processors, .whole_ns = whole_ns},
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
  // The job comes to kernels that gain nothing: soon that is what is known.
  for (int i = 0; i < 40; ++i) said(8, 10'000, 10'000), said(4, 10'000, 10'000);
  CHECK(ratio() < 1.05);
  CHECK(node.arbiter.profile().find(curve)->cells[0].count <= 2'000);
  // On the whole device beside others a time is none of its width; alone it is.
  said(16, 7'000, 10'000);
  const double alone = node.arbiter.profile().predict(curve, 16).ns;
  CHECK(alone == doctest::Approx(7'000));
  node.arbiter.attach(2);
  node.wants(2);
  for (const DeviceArbiter::Held& hold : node.arbiter.held())
    if (!hold.open) node.returns_closed(hold.client, hold.entry);
  REQUIRE(node.arbiter.held().size() == 2);
  said(16, 30'000, 10'000);
  CHECK(node.arbiter.profile().predict(curve, 16).ns == alone);
  // A client of before 1.4 says no more than how long.
  node.arbiter.forget(1, node.now);
  node.arbiter.attach(1);
  node.wants(1);
  said(8, 20'000, 0);
  CHECK(node.arbiter.profile().predict(curve, 8).ns == 20'000);
}

// The progress that clients report decides between the whole device and parts.
TEST_CASE("who gets on faster on parts gets them, and the whole device where that is better") {
  struct Work {
    double done = 0, busy_ns = 0;
  };
  for (const double on_parts : {1.3, 0.6}) {
    CAPTURE(on_parts);
    Node node(std::string("throughput"), Moving::device());
    std::map<ClientId, Work> work;
    // The share of the time that somebody was on a part.
    const auto run = [&](std::uint64_t for_ns) {
      const std::uint64_t until = node.now + for_ns;
      std::uint64_t parts_ns = 0;
      while (node.now < until) {
        const std::uint64_t next =
            std::max(node.now + 1, std::min({node.arbiter.wake_at(), until, node.now + 5'000'000}));
        const auto held = node.arbiter.held();
        if (std::any_of(held.begin(), held.end(), [](const DeviceArbiter::Held& hold) {
              return hold.open && hold.entry != runtime::kWholeDevice;
            }))
          parts_ns += next - node.now;
        for (const DeviceArbiter::Held& hold : held) {
          if (!hold.open) continue;
          const double passed = static_cast<double>(next - node.now);
          work[hold.client].busy_ns += passed;
          work[hold.client].done +=
              passed * (hold.entry == runtime::kWholeDevice ? 0.5 : 0.5 * on_parts);
        }
        node.now = next;
        if (node.arbiter.wants_progress(node.now))
          for (const auto& [client, of] : work)
            node.arbiter.progressed(
                client,
                {static_cast<std::uint64_t>(of.done), static_cast<std::uint64_t>(of.busy_ns), 0,
                 static_cast<std::uint64_t>(of.done / 1000)},
                node.now);
        for (int round = 0; round < 4; ++round) {
          node.arbiter.step(node.now);
          for (const DeviceArbiter::Held& hold : node.arbiter.held())
            if (!hold.open) node.returns_closed(hold.client, hold.entry);
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
    run(3'000'000'000);  // to find out
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
    void reports(ClientId client, bool wanted) override { told[client] = wanted; }
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

// Before 1.7 a grant of the same entry took the place of the open one.
TEST_CASE("a lane of an older client is granted no entry on which it drains") {
  for (const std::uint32_t minor : {6U, 7U}) {
    CAPTURE(minor);
    Node node(std::string("fifo"));
    node.arbiter.attach(1, {.minor = minor});
    node.wants(1);
    REQUIRE(node.grants.size() == 1);
    const protocol::Grant first = node.grants[0].second;
    node.wants(1, 1, true);  // its work under the first one still runs
    CHECK(node.grants.size() == (minor < 7 ? 1 : 2));
    node.returns(1, first);
    REQUIRE(node.grants.size() == 2);
    CHECK(node.grants[1].second.entry == first.entry);
    CHECK(node.grants[1].second.word != first.word);
    CHECK(node.arbiter.counters().stale == 0);
    CHECK(node.arbiter.held().size() == 1);
  }
}

// What is decided for one client, word by word.
class Decisions final : public daemon::Outlet {
 public:
  void set_word(ClientId client, LaneId lane, protocol::LeaseWord word) override {
    if (client == kHonest) told.insert(told.end(), {lane, word});
  }
  bool grant(ClientId client, const protocol::Grant& grant) override {
    last[client] = grant;
    if (client == kHonest) told.insert(told.end(), {grant.word, grant.entry, grant.launches});
    return true;
  }
  void gates_closed(ClientId client) override {
    if (client == kHonest) told.push_back(0);
  }
  static constexpr ClientId kHonest = 2;
  std::map<ClientId, protocol::Grant> last;
  std::vector<std::uint64_t> told;
};

// `records`: after so many of what it says the other client is killed; its process is gone two
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
    said.processors = 1;
    return said;
  };
  auto returned = [&](ClientId client) {
    protocol::Returned said;
    said.head.lane = out.last[client].head.lane;
    said.word = out.last[client].word;
    said.entry = out.last[client].entry;
    return said;
  };
  // Both say this again and again, one record a step.
  auto say = [&](ClientId client, std::size_t turn, std::uint64_t now) {
    const auto lane = static_cast<LaneId>(turn / 4 % 2);
    protocol::Idle idle;
    idle.head.lane = lane;
    protocol::HintRecord hint;
    hint.head.lane = lane;
    hint.ready_in_ns = 300;
    hint.processors = 8;
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

TEST_CASE("whenever a client is killed, what is decided for another one is the same") {
  const auto lives = decided_beside_a_victim(100);
  CHECK(lives.size() > 50);                                 // grants, words and closed gates
  for (std::size_t records = 1; records < 40; ++records) {  // the first one chooses its half
    CAPTURE(records);
    CHECK(decided_beside_a_victim(records) == lives);
  }
}

}  // namespace vitamin::daemon
