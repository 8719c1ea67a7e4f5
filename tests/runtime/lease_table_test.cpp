// SPDX-License-Identifier: Apache-2.0
//
// The lease table against a model that knows units and people, no words and no entries' states.
#include "runtime/lease_table.h"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <vector>

namespace vitamin::runtime {
namespace {

using hal::ComputeSet;

hal::DeviceInfo device(unsigned units) {
  hal::DeviceInfo info;
  info.processors_per_unit.assign(units, 4);
  info.processors = 4 * units;
  return info;
}

// Brute force: who holds and who reserved each unit, entry by entry.
class Model {
 public:
  explicit Model(const PoolLayout& layout) : layout_(layout), entries_(layout.size()) {}

  struct Entry {
    LesseeId lessee = kNobody;
    unsigned outstanding = 0;
    bool open = false;
    LesseeId reserved = kNobody;
    auto operator<=>(const Entry&) const = default;
  };
  bool free_for(EntryId entry, LesseeId who) const {
    for (unsigned unit = 0; unit < ComputeSet::kMaxUnits; ++unit) {
      if (!layout_.at(entry).compute.has(unit)) continue;
      for (std::size_t other = 1; other < entries_.size(); ++other) {
        if (!layout_.at(static_cast<EntryId>(other)).compute.has(unit)) continue;
        const Entry& e = entries_[other];
        if (e.lessee != kNobody && e.lessee != who) return false;
        if (e.reserved != kNobody && e.reserved != who) return false;
      }
    }
    return true;
  }
  bool reserved_by_other(EntryId entry, LesseeId who) const {
    for (std::size_t other = 1; other < entries_.size(); ++other) {
      const LesseeId holder = entries_[other].reserved;
      if (holder != kNobody && holder != who &&
          layout_.at(static_cast<EntryId>(other)).compute.overlaps(layout_.at(entry).compute))
        return true;
    }
    return false;
  }
  void forget(LesseeId who) {
    for (Entry& e : entries_) {
      if (e.lessee == who) e = {.reserved = e.reserved};
      if (e.reserved == who) e.reserved = kNobody;
    }
  }
  Entry& operator[](EntryId id) { return entries_[id]; }
  const std::vector<Entry>& entries() const { return entries_; }
  void settle(EntryId id) {
    Entry& e = entries_[id];
    if (e.lessee != kNobody && !e.open && e.outstanding == 0) e = {.reserved = e.reserved};
  }

 private:
  const PoolLayout& layout_;
  std::vector<Entry> entries_;
};

LeaseState state_of(const Model::Entry& e) {
  if (e.lessee != kNobody) return e.open ? LeaseState::kLeased : LeaseState::kDraining;
  return e.reserved != kNobody ? LeaseState::kReserved : LeaseState::kIdle;
}

constexpr unsigned kAcquire = 0, kForget = 6, kKinds = 8;  // of moves

// One move on both; they must agree on the verdict and on every state afterwards.
void move(LeaseTable& table, Model& model, unsigned kind, EntryId entry, LesseeId who) {
  Model::Entry& e = model[entry];
  switch (kind) {
    case kAcquire: {
      const LeaseVerdict verdict = table.acquire(entry, who);
      if (e.lessee == who) {
        CHECK(verdict == (e.open ? LeaseVerdict::kGranted : LeaseVerdict::kGateClosed));
      } else if (!model.free_for(entry, who)) {
        CHECK(verdict == LeaseVerdict::kConflict);
      } else {
        CHECK(verdict == LeaseVerdict::kGranted);
        e.lessee = who, e.open = true, e.outstanding = 0;
      }
      break;
    }
    case 1: {
      LeaseVerdict expected = LeaseVerdict::kGranted;
      if (e.lessee != who)
        expected = LeaseVerdict::kNotHeld;
      else if (!e.open)
        expected = LeaseVerdict::kGateClosed;
      else
        ++e.outstanding;
      CHECK(table.submitted(entry, who) == expected);
      break;
    }
    case 2:
      table.retired(entry, who, 1);
      if (e.lessee == who && e.outstanding > 0) --e.outstanding;
      model.settle(entry);
      break;
    case 3:
      table.release(entry, who);
      if (e.lessee == who) e.open = false;
      model.settle(entry);
      break;
    case 4: {
      const bool conflict = model.reserved_by_other(entry, who);
      if (!conflict) e.reserved = who;
      CHECK(table.reserve(entry, who) ==
            (conflict ? LeaseVerdict::kConflict : LeaseVerdict::kGranted));
      break;
    }
    case 5:
      table.cancel_reservation(entry);
      e.reserved = kNobody;
      break;
    case kForget:
      table.forget(who);
      model.forget(who);
      break;
    default: {
      LeaseVerdict expected = LeaseVerdict::kGranted;
      if (e.lessee == kNobody)
        expected = LeaseVerdict::kNotHeld;
      else if (model.reserved_by_other(entry, e.lessee))
        expected = LeaseVerdict::kConflict;
      else
        e.open = true;
      CHECK(table.open_gate(entry) == expected);
      break;
    }
  }
}

void check_invariants(const LeaseTable& table, Model& model, const PoolLayout& layout) {
  for (const PoolEntry& a : layout.entries()) {
    if (a.whole()) continue;
    CHECK(table.state(a.id) == state_of(model[a.id]));
    const LesseeId holder = model[a.id].lessee;
    if (holder == kNobody) continue;
    CHECK(table.outstanding(a.id, holder) == model[a.id].outstanding);
    for (const PoolEntry& b : layout.entries())
      if (!b.whole() && model[b.id].lessee != kNobody && model[b.id].lessee != holder)
        CHECK(!a.compute.overlaps(b.compute));
  }
}

TEST_CASE("Random moves on pools of 2 to 64 units agree with brute force") {
  std::mt19937_64 random(11);
  for (unsigned units = 2; units <= 64; units += units < 12 ? 1 : 13) {
    const PoolLayout layout = PoolLayout::build(device(units));
    LeaseTable table(layout);
    Model model(layout);
    for (int step = 0; step < 1500; ++step) {
      unsigned kind = random() % kKinds;
      if (kind == kForget && random() % 8 != 0) kind = kAcquire;  // few die
      const auto entry = static_cast<EntryId>(1 + random() % (layout.size() - 1));
      move(table, model, kind, entry, static_cast<LesseeId>(1 + random() % 3));
      if (step % 16 == 0) check_invariants(table, model, layout);
    }
    check_invariants(table, model, layout);
  }
}

// Three entries, of which one overlaps the others; two lessees; two operations outstanding at most.
TEST_CASE("Every move in every state that two lessees can reach agrees with brute force") {
  const PoolLayout layout = PoolLayout::build(device(2));
  REQUIRE(layout.size() == 4);
  struct Both {
    LeaseTable table;
    Model model;
  };
  std::set<std::vector<Model::Entry>> seen;
  std::vector<Both> next{{LeaseTable(layout), Model(layout)}};
  seen.insert(next.back().model.entries());
  while (!next.empty()) {
    const Both from = next.back();
    next.pop_back();
    for (unsigned kind = 0; kind < kKinds; ++kind)
      for (EntryId entry = 1; entry < layout.size(); ++entry)
        for (LesseeId who = 1; who <= 2; ++who) {
          Both to = from;
          move(to.table, to.model, kind, entry, who);
          if (to.model[entry].outstanding > 2 || !seen.insert(to.model.entries()).second) continue;
          check_invariants(to.table, to.model, layout);
          next.push_back(std::move(to));
        }
  }
  MESSAGE(seen.size() << " states");
  CHECK(seen.size() > 1000);
}

TEST_CASE("A draining lease ends with its last operation, not before") {
  const PoolLayout layout = PoolLayout::build(device(4));
  LeaseTable table(layout);
  const EntryId leaf = layout.find(ComputeSet::range(1, 1));
  REQUIRE(table.acquire(leaf, 1) == LeaseVerdict::kGranted);
  REQUIRE(table.submitted(leaf, 1) == LeaseVerdict::kGranted);
  REQUIRE(table.submitted(leaf, 1) == LeaseVerdict::kGranted);
  table.close_gate(leaf);
  CHECK(table.state(leaf) == LeaseState::kDraining);
  CHECK(table.submitted(leaf, 1) == LeaseVerdict::kGateClosed);
  table.retired(leaf, 1, 1);
  CHECK(table.state(leaf) == LeaseState::kDraining);
  CHECK(table.acquire(leaf, 2) == LeaseVerdict::kConflict);
  table.retired(leaf, 1, 1);
  CHECK(table.state(leaf) == LeaseState::kIdle);
  CHECK(table.acquire(leaf, 2) == LeaseVerdict::kGranted);
}

TEST_CASE("A reservation keeps everybody else off the units and leaves them to its holder") {
  const PoolLayout layout = PoolLayout::build(device(4));
  LeaseTable table(layout);
  const EntryId half = layout.find(ComputeSet::range(0, 2));
  const EntryId leaf = layout.find(ComputeSet::range(1, 1));
  REQUIRE(table.acquire(leaf, 1) == LeaseVerdict::kGranted);
  REQUIRE(table.submitted(leaf, 1) == LeaseVerdict::kGranted);
  REQUIRE(table.reserve(half, 2) == LeaseVerdict::kGranted);
  CHECK(table.acquire(half, 2) == LeaseVerdict::kConflict);  // not drained yet
  table.close_gate(leaf);
  CHECK(table.open_gate(leaf) == LeaseVerdict::kConflict);  // the reservation wants it shut
  table.retired(leaf, 1, 1);
  CHECK(table.acquire(leaf, 1) == LeaseVerdict::kConflict);
  CHECK(table.acquire(half, 2) == LeaseVerdict::kGranted);
  table.cancel_reservation(half);
  table.release(half, 2);
  CHECK(table.state(half) == LeaseState::kIdle);
}

TEST_CASE("A lessee that is forgotten holds nothing, whatever was outstanding") {
  const PoolLayout layout = PoolLayout::build(device(4));
  LeaseTable table(layout);
  const EntryId leaf = layout.find(ComputeSet::range(0, 1));
  table.acquire(leaf, 1);
  table.submitted(leaf, 1);
  table.reserve(leaf, 1);
  table.forget(1);
  CHECK(table.state(leaf) == LeaseState::kIdle);
  CHECK(table.held(1).empty());
  CHECK(table.acquire(leaf, 2) == LeaseVerdict::kGranted);
  table.retired(leaf, 1, 1);  // late news of the dead
  CHECK(table.state(leaf) == LeaseState::kLeased);
}

TEST_CASE("The whole device is never leased") {
  const PoolLayout layout = PoolLayout::build(device(4));
  LeaseTable table(layout);
  CHECK(table.acquire(kWholeDevice, 1) == LeaseVerdict::kWhole);
  CHECK(table.reserve(kWholeDevice, 1) == LeaseVerdict::kWhole);
  CHECK(table.submitted(kWholeDevice, 1) == LeaseVerdict::kWhole);
}

// Every sequence of moves up to a length, on a small pool: nothing two lessees hold ever overlaps.
TEST_CASE("No sequence of four moves on two units makes two lessees overlap") {
  const PoolLayout layout = PoolLayout::build(device(2));
  const EntryId entries[] = {1, 2, 3};
  constexpr unsigned kMoves = 24;
  for (unsigned sequence = 0; sequence < kMoves * kMoves * kMoves * kMoves; ++sequence) {
    LeaseTable table(layout);
    unsigned rest = sequence;
    for (int step = 0; step < 4; ++step, rest /= kMoves) {
      const unsigned move = rest % kMoves;
      const EntryId entry = entries[move / 8];
      const LesseeId who = 1 + move % 2;
      switch (move / 2 % 4) {
        case 0:
          table.acquire(entry, who);
          break;
        case 1:
          table.submitted(entry, who);
          break;
        case 2:
          table.release(entry, who);
          break;
        default:
          table.reserve(entry, who);
          break;
      }
      REQUIRE(!table.held(1).overlaps(table.held(2)));
    }
  }
}

}  // namespace
}  // namespace vitamin::runtime
