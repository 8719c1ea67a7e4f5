// SPDX-License-Identifier: Apache-2.0
//
// The ledger beside a model that keeps a list of grants and compares every pair.
#include "scheduler/ledger.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "scheduler/partitions_by_unit.h"
#include "tests/property.h"
#include "tests/scheduler/fixture.h"

namespace vitamin::scheduler {
namespace {

using hal::ComputeSet;
using runtime::PoolLayout;
using State = Grant::State;

constexpr std::uint32_t kPerStream = 3;

// What the ledger's header says, in the most obvious way.
class Model {
 public:
  struct Record {
    GrantId id;
    std::uint32_t holder, stream;
    PartitionId partition;
    Mode mode;
    State state;
  };
  explicit Model(const PoolLayout& layout) : layout_(layout) {}

  std::uint32_t count(std::uint32_t stream) const {
    std::uint32_t count = 0;
    for (const Record& record : records)
      count += record.stream == stream && record.state != State::kPending;
    return count;
  }
  ComputeSet held_by_others(std::uint32_t holder) const {
    ComputeSet units;
    for (const Record& record : records)
      if (record.holder != holder && record.mode == Mode::kExclusive &&
          record.state != State::kPending)
        units |= layout_.at(record.partition).compute;
    return units;
  }
  bool can_open(std::uint32_t holder, std::uint32_t stream, PartitionId partition,
                Mode mode) const {
    return count(stream) < kPerStream &&
           (mode == Mode::kShared ||
            !layout_.at(partition).compute.overlaps(held_by_others(holder)));
  }
  Record* find(std::uint32_t stream, State state) {
    for (Record& record : records)
      if (record.stream == stream && record.state == state) return &record;
    return nullptr;
  }
  void end(std::uint32_t stream, State state) {
    std::erase_if(records, [&](const Record& record) {
      return record.stream == stream && record.state == state;
    });
  }
  void revoke(std::uint32_t stream) {
    if (Record* open = find(stream, State::kOpen)) open->state = State::kRevoked;
  }

  std::vector<Record> records;

 private:
  const PoolLayout& layout_;
};

// A ledger and the model, told the same. Streams 0 and 1 belong to holder 0, every other stream to
// a holder of its own.
class Pair {
 public:
  explicit Pair(const PoolLayout& layout, std::uint32_t streams)
      : layout_(layout), ledger_(layout.partitions(), kPerStream), model_(layout) {
    for (std::uint32_t i = 0; i < streams; ++i) {
      if (i != 1) holders_.push_back(ledger_.add_holder());
      stream_.push_back(ledger_.add_stream(holders_.back(), client_of(i), i));
    }
  }
  std::uint32_t streams() const { return static_cast<std::uint32_t>(stream_.size()); }
  static constexpr int kOperations = 8;

  // `what` in [0, kOperations), `which` chooses among the stream's grants.
  void act(int what, std::uint32_t stream, PartitionId partition, Mode mode, std::size_t which) {
    const std::uint32_t holder = holder_of(stream);
    const Ledger::Terms terms{partition, mode, Reason::kPolicy, 0, kNever};
    const auto index = stream_[stream];
    switch (what) {
      case 0: {
        const bool possible = model_.can_open(holder, stream, partition, mode);
        REQUIRE(ledger_.can_open(index, partition, mode) == possible);
        const GrantId id = ledger_.open(index, terms, ++now_);
        REQUIRE((id != kNoGrant) == possible);
        if (!possible) break;
        model_.revoke(stream);
        model_.records.push_back({id, holder, stream, partition, mode, State::kOpen});
        break;
      }
      case 1: {
        const GrantId id = ledger_.pend(index, terms, ++now_);
        REQUIRE(id != kNoGrant);
        model_.end(stream, State::kPending);
        model_.records.push_back({id, holder, stream, partition, mode, State::kPending});
        break;
      }
      case 2: {
        auto* const pending = model_.find(stream, State::kPending);
        const bool possible = pending != nullptr &&
                              model_.can_open(holder, stream, pending->partition, pending->mode);
        const GrantId id = ledger_.promote(index, ++now_);
        REQUIRE(id == (possible ? pending->id : kNoGrant));
        if (!possible) break;
        model_.revoke(stream);
        pending->state = State::kOpen;
        break;
      }
      case 3:
        REQUIRE(ledger_.cancel(index) == (model_.find(stream, State::kPending) != nullptr));
        model_.end(stream, State::kPending);
        break;
      case 4:
        REQUIRE(ledger_.revoke(index, Reason::kRowChanged, ++now_) ==
                (model_.find(stream, State::kOpen) != nullptr));
        model_.revoke(stream);
        break;
      case 5:
        give_back(stream, which);
        break;
      case 6: {
        const bool possible = model_.count(stream) < Ledger::kGrantsMost;
        const GrantId id = ledger_.adopt(index, partition, mode, ++now_);
        REQUIRE((id != kNoGrant) == possible);
        if (possible)
          model_.records.push_back({id, holder, stream, partition, mode, State::kRevoked});
        break;
      }
      default:
        forget(holder);
        break;
    }
    check();
  }

 private:
  static ClientId client_of(std::uint32_t stream) { return stream < 2 ? 1 : stream; }
  static std::uint32_t holder_of(std::uint32_t stream) { return stream < 2 ? 0 : stream - 1; }

  // One of the stream's grants; with no such grant, the id of another stream's, which is ignored.
  void give_back(std::uint32_t stream, std::size_t which) {
    std::vector<GrantId> ids;
    for (const auto& record : model_.records)
      if (record.stream == stream && record.state != State::kPending) ids.push_back(record.id);
    const ComputeSet before = model_.held_by_others(~0U);
    if (ids.empty()) {
      REQUIRE_FALSE(ledger_.returned(stream_[stream], kNoGrant));
      for (const auto& record : model_.records)
        REQUIRE_FALSE(ledger_.returned(stream_[stream], record.id));
      return;
    }
    const GrantId id = ids[which % ids.size()];
    static_cast<void>(ledger_.take_freed());
    REQUIRE(ledger_.returned(stream_[stream], id));
    REQUIRE_FALSE(ledger_.returned(stream_[stream], id));
    std::erase_if(model_.records, [&](const auto& record) { return record.id == id; });
    // Whatever is free now and was not before is reported.
    REQUIRE(ledger_.take_freed().contains(before - model_.held_by_others(~0U)));
  }

  void forget(std::uint32_t holder) {
    ledger_.forget(holders_[holder]);
    std::erase_if(model_.records, [&](const auto& record) { return record.holder == holder; });
    holders_[holder] = ledger_.add_holder();
    for (std::uint32_t i = 0; i < streams(); ++i)
      if (holder_of(i) == holder)
        stream_[i] = ledger_.add_stream(holders_[holder], client_of(i), i);
  }

  void check() {
    REQUIRE(ledger_.grants().size() == model_.records.size());
    for (const auto& record : model_.records) {
      const Grant* const grant = ledger_.find(record.id);
      REQUIRE(grant != nullptr);
      REQUIRE(grant->id == record.id);
      REQUIRE(grant->client == client_of(record.stream));
      REQUIRE(grant->stream == record.stream);
      REQUIRE(grant->partition == record.partition);
      REQUIRE(grant->mode == record.mode);
      REQUIRE(grant->state == record.state);
    }
    for (std::uint32_t i = 0; i < streams(); ++i) {
      REQUIRE(ledger_.count(stream_[i]) == model_.count(i));
      REQUIRE((ledger_.open_grant(stream_[i]) != nullptr) ==
              (model_.find(i, State::kOpen) != nullptr));
      REQUIRE((ledger_.pending_grant(stream_[i]) != nullptr) ==
              (model_.find(i, State::kPending) != nullptr));
      REQUIRE(ledger_.held_by_others(holders_[holder_of(i)]) ==
              model_.held_by_others(holder_of(i)));
    }
    REQUIRE(ledger_.held() == model_.held_by_others(~0U));
  }

  const PoolLayout& layout_;
  Ledger ledger_;
  Model model_;
  std::vector<Ledger::HolderIndex> holders_;
  std::vector<Ledger::StreamIndex> stream_;
  std::uint64_t now_ = 0;
};

TEST_CASE("the ledger agrees with a list of grants after any sequence of operations") {
  const PoolLayout layout = four_units();
  const auto property = [&] {
    Pair pair(layout, 5);
    const auto length = *rc::gen::inRange(1, 120);
    for (int i = 0; i < length; ++i) {
      const int what = *rc::gen::weightedElement<int>(
          {{6, 0}, {3, 1}, {3, 2}, {1, 3}, {4, 4}, {6, 5}, {1, 6}, {1, 7}});
      pair.act(what, *rc::gen::inRange(0U, pair.streams()),
               static_cast<PartitionId>(*rc::gen::inRange<std::size_t>(0, layout.size())),
               *rc::gen::element(Mode::kExclusive, Mode::kShared),
               *rc::gen::inRange<std::size_t>(0, 8));
    }
  };
  CHECK(test::holds(property));
}

// Two units, three streams of two holders: every sequence of four operations.
TEST_CASE("the ledger agrees with a list of grants after every short sequence") {
  const PoolLayout layout = PoolLayout::build(device(2, 8, 8));
  struct Action {
    int what;
    std::uint32_t stream;
    PartitionId partition;
    Mode mode;
  };
  std::vector<Action> actions;
  for (std::uint32_t stream : {0U, 2U}) {
    for (const int what : {0, 1, 6}) {
      actions.push_back({what, stream, 1, Mode::kExclusive});
      actions.push_back({what, stream, 0, Mode::kExclusive});
    }
    actions.push_back({0, stream, 0, Mode::kShared});
    for (const int what : {2, 4, 5}) actions.push_back({what, stream, 0, Mode::kShared});
  }
  actions.push_back({0, 1, 1, Mode::kExclusive});
  std::size_t sequences = 0;
  const std::size_t n = actions.size();
  for (std::size_t code = 0; code < n * n * n * n; ++code, ++sequences) {
    Pair pair(layout, 3);
    for (std::size_t rest = code, i = 0; i < 4; ++i, rest /= n) {
      const Action& action = actions[rest % n];
      pair.act(action.what, action.stream, action.partition, action.mode, 0);
    }
  }
  CHECK(sequences == 21UL * 21 * 21 * 21);
}

// What a client has on one partition, as the model of the protocol sees it.
// NOLINTBEGIN(readability-identifier-naming): the names of lease_moves.def
enum class Lease { Idle, Leased, Draining };
enum class Event { Acquire, Submit, Retire, Close, Reopen, Forget };
enum class When { Always, Free, Unreserved, Busy, Quiet };
// NOLINTEND(readability-identifier-naming)
struct Move {
  Event event;
  Lease from;
  When when;
  Lease to;
};
constexpr Move kMoves[] = {
#define LEASE_MOVE(event, from, when, to) {Event::event, Lease::from, When::when, Lease::to},
#include "tests/protocol/lease_moves.def"
#undef LEASE_MOVE
};

// Two clients of two streams each, on two units and both of them.
struct Leases {
  static constexpr PartitionId kPartitions = 4;  // 0 is not used
  static constexpr std::uint32_t kStreams = 4;

  explicit Leases(const PoolLayout& pool) : layout(pool), ledger(pool.partitions(), kPerStream) {
    for (std::uint32_t i = 0; i < kStreams; ++i) {
      if (i % 2 == 0) holders.push_back(ledger.add_holder());
      streams.push_back(ledger.add_stream(holders.back(), i / 2 + 1, i));
    }
  }
  std::uint32_t count(std::uint32_t client, PartitionId partition) const {
    return static_cast<std::uint32_t>(
        std::count_if(ledger.grants().begin(), ledger.grants().end(), [&](const Grant& grant) {
          return grant.client == client + 1 && grant.partition == partition;
        }));
  }
  Lease lease(std::uint32_t client, PartitionId partition) const {
    Lease state = Lease::Idle;
    for (const Grant& grant : ledger.grants()) {
      if (grant.client != client + 1 || grant.partition != partition) continue;
      if (grant.state == State::kOpen) return Lease::Leased;
      state = Lease::Draining;
    }
    return state;
  }
  bool holds(Event event, const Move& move, std::uint32_t client, PartitionId partition) const {
    if (move.event != event || move.from != lease(client, partition)) return false;
    // The ledger knows no reservation.
    if (move.when == When::Always || move.when == When::Unreserved) return true;
    if (move.when == When::Free) {
      for (const Grant& grant : ledger.grants())
        if (grant.client != client + 1 &&
            layout.at(grant.partition).compute.overlaps(layout.at(partition).compute))
          return false;
      return true;
    }
    // Of what is left when one has been returned.
    const std::uint32_t left = count(client, partition) - (event == Event::Retire ? 1 : 0);
    return (left > 0) == (move.when == When::Busy);
  }
  // The state after the first of the events that the table has; the same state where it has none.
  Lease expected(std::initializer_list<Event> events, std::uint32_t client,
                 PartitionId partition) const {
    for (const Event event : events)
      for (const Move& move : kMoves)
        if (holds(event, move, client, partition)) return move.to;
    return lease(client, partition);
  }

  const PoolLayout& layout;
  Ledger ledger;
  std::vector<Ledger::HolderIndex> holders;
  std::vector<Ledger::StreamIndex> streams;
};

TEST_CASE("exclusive grants of a partition move as the model of the protocol has it") {
  const PoolLayout layout = PoolLayout::build(device(2, 8, 8));
  REQUIRE(layout.size() == Leases::kPartitions);
  const auto property = [&] {
    Leases world(layout);
    Ledger& ledger = world.ledger;
    const auto length = *rc::gen::inRange(1, 60);
    for (int i = 0; i < length; ++i) {
      const std::uint32_t stream = *rc::gen::inRange(0U, Leases::kStreams), client = stream / 2;
      const auto index = world.streams[stream];
      const Grant* const open = ledger.open_grant(index);
      const PartitionId at = open != nullptr ? open->partition : kNoPartition;
      const auto partition =
          static_cast<PartitionId>(*rc::gen::inRange<int>(1, Leases::kPartitions));
      const auto other = [&] {  // the client's other stream submits there as well
        const Grant* const grant = ledger.open_grant(world.streams[stream ^ 1]);
        return grant != nullptr && grant->partition == at;
      };
      switch (*rc::gen::inRange(0, 4)) {
        case 0: {
          if (ledger.full(index)) break;
          if (at != kNoPartition) ledger.revoke(index, Reason::kMoved, 0);
          const Lease to = world.expected({Event::Acquire, Event::Reopen}, client, partition);
          const bool granted = ledger.open(index, {partition, Mode::kExclusive}, 0) != kNoGrant;
          REQUIRE(granted == (to == Lease::Leased));
          REQUIRE(world.lease(client, partition) == to);
          break;
        }
        case 1: {
          if (at == kNoPartition) break;
          const Lease to = other() ? Lease::Leased : world.expected({Event::Close}, client, at);
          ledger.revoke(index, Reason::kRowChanged, 0);
          REQUIRE(world.lease(client, at) == to);
          break;
        }
        case 2:
          for (const Grant& grant : ledger.grants()) {
            if (grant.stream != stream || grant.state != State::kRevoked) continue;
            const PartitionId drained = grant.partition;
            const Lease to = world.expected({Event::Retire}, client, drained);
            REQUIRE(ledger.returned(index, grant.id));
            REQUIRE(world.lease(client, drained) == to);
            break;
          }
          break;
        default: {
          if (*rc::gen::inRange(0, 8) != 0) break;  // few die
          std::vector<Lease> to;
          for (PartitionId p = 1; p < Leases::kPartitions; ++p)
            to.push_back(world.expected({Event::Forget}, client, p));
          ledger.forget(world.holders[client]);
          for (PartitionId p = 1; p < Leases::kPartitions; ++p)
            REQUIRE(world.lease(client, p) == to[p - 1U]);
          world.holders[client] = ledger.add_holder();
          for (std::uint32_t s = 2 * client; s < 2 * client + 2; ++s)
            world.streams[s] = ledger.add_stream(world.holders[client], client + 1, s);
          break;
        }
      }
    }
  };
  CHECK(test::holds(property));
}

TEST_CASE("a late message about an ended grant is ignored") {
  const PoolLayout layout = four_units();
  Ledger ledger(layout.partitions());
  const auto stream = ledger.add_stream(ledger.add_holder(), 1, 0);
  const Ledger::Terms terms{1, Mode::kExclusive, Reason::kPolicy, 0, kNever};
  const GrantId first = ledger.open(stream, terms, 1);
  CHECK(ledger.returned(stream, first));
  const GrantId second = ledger.open(stream, terms, 2);
  CHECK(second != first);
  CHECK_FALSE(ledger.returned(stream, first));
  CHECK(ledger.revoke(stream, Reason::kRowChanged, 4));
  CHECK(ledger.find(second)->revoked == Reason::kRowChanged);
  CHECK(ledger.find(first) == nullptr);
}

TEST_CASE("a stream that returns nothing is bounded, and its open grant can still be revoked") {
  const PoolLayout layout = h200();
  Ledger ledger(layout.partitions(), 4);
  const auto stream = ledger.add_stream(ledger.add_holder(), 1, 0);
  for (PartitionId id = 1; id <= 4; ++id)
    CHECK(ledger.open(stream, {id, Mode::kExclusive, Reason::kPolicy, 0, kNever}, id) != kNoGrant);
  CHECK(ledger.full(stream));
  CHECK(ledger.open(stream, {5, Mode::kExclusive, Reason::kPolicy, 0, kNever}, 5) == kNoGrant);
  CHECK(ledger.open_grant(stream)->partition == 4);
  CHECK(ledger.revoke(stream, Reason::kRowChanged, 6));
  // Earlier work is recorded all the same, up to a bound.
  std::uint32_t adopted = 0;
  while (ledger.adopt(stream, 6, Mode::kExclusive, 7) != kNoGrant) ++adopted;
  CHECK(adopted == Ledger::kGrantsMost - 4);
}

TEST_CASE("what a stream holds moves with it to another holder") {
  const PoolLayout layout = four_units();
  Ledger ledger(layout.partitions());
  const auto client = ledger.add_holder();
  const auto a = ledger.add_stream(client, 1, 0), b = ledger.add_stream(client, 1, 1);
  const GrantId first = ledger.open(a, {1, Mode::kExclusive, Reason::kPolicy, 0, kNever}, 1);
  CHECK(ledger.open(b, {1, Mode::kExclusive, Reason::kPolicy, 0, kNever}, 1) != kNoGrant);
  const auto alone = ledger.add_holder();
  ledger.set_holder(b, alone);
  CHECK(ledger.contested() == layout.at(1).compute);
  CHECK(ledger.units_of(alone) == layout.at(1).compute);
  CHECK_FALSE(ledger.can_open(b, 1, Mode::kExclusive));
  CHECK(ledger.returned(a, first));
  CHECK(ledger.contested().empty());
  CHECK(ledger.can_open(b, 1, Mode::kExclusive));
  CHECK_FALSE(ledger.can_open(a, 1, Mode::kExclusive));
  ledger.forget(client);
  CHECK(ledger.held() == layout.at(1).compute);
  ledger.forget(alone);
  CHECK(ledger.held().empty());
}

TEST_CASE("adopted work of two holders on the same units conflicts for both until one ends") {
  const PoolLayout layout = four_units();
  Ledger ledger(layout.partitions());
  const auto a = ledger.add_stream(ledger.add_holder(), 1, 0);
  const auto b = ledger.add_stream(ledger.add_holder(), 2, 0);
  const GrantId first = ledger.adopt(a, 1, Mode::kExclusive, 1);
  CHECK(ledger.counters().overlaps == 0);
  const GrantId second = ledger.adopt(b, 1, Mode::kExclusive, 1);
  CHECK(ledger.counters().overlaps == 1);
  CHECK(ledger.contested() == layout.at(1).compute);
  CHECK_FALSE(ledger.can_open(a, 1, Mode::kExclusive));
  CHECK_FALSE(ledger.can_open(b, 1, Mode::kExclusive));
  CHECK(ledger.can_open(a, 1, Mode::kShared));
  static_cast<void>(ledger.take_freed());
  CHECK(ledger.returned(b, second));
  CHECK(ledger.take_freed() == layout.at(1).compute);
  CHECK(ledger.can_open(a, 1, Mode::kExclusive));
  CHECK_FALSE(ledger.can_open(b, 1, Mode::kExclusive));
  CHECK(ledger.returned(a, first));
  CHECK(ledger.held().empty());
}

TEST_CASE("partitions without any of some units are found in pools of any size") {
  runtime::PoolLimits all_runs;
  all_runs.all_runs = true;
  const PoolLayout layouts[] = {four_units(), h200(),
                                PoolLayout::build(device(16, 8, 12), all_runs)};
  REQUIRE(layouts[2].size() > 128);
  CHECK(test::holds([&] {
    const PoolLayout& layout = layouts[*rc::gen::inRange(0, 3)];
    const ComputeSet units = ComputeSet(*rc::gen::arbitrary<std::uint64_t>()) & layout.all();
    const auto first = *rc::gen::inRange<PartitionId>(0, static_cast<PartitionId>(layout.size()));
    std::vector<PartitionId> expected, found;
    for (const Partition& partition : layout.partitions().subspan(first))
      if (!partition.compute.overlaps(units)) expected.push_back(partition.id);
    PartitionsByUnit(layout.partitions()).for_each_without(units, first, [&](PartitionId id) {
      found.push_back(id);
    });
    RC_ASSERT(found == expected);
  }));
}

}  // namespace
}  // namespace vitamin::scheduler
