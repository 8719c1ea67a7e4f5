// SPDX-License-Identifier: Apache-2.0
//
// A share holds for what a client, or a group of them, holds at a time, under every policy.
#include "policies/bounded.h"

#include <algorithm>
#include <map>
#include <random>

#include "runtime/scheduler.h"
#include "tests/policies/fixture.h"

namespace vitamin::policies {
namespace {

using runtime::ClientId;
using runtime::EntryId;
using runtime::LaneId;

// A device whose clients submit for ever; what a gate was closed for ends up to 2 ms later.
class Busy {
 public:
  explicit Busy(const std::string& specification)
      : layout_(runtime::PoolLayout::build(h200())),
        bounded_(new Bounded(policy(specification), h200().processors_per_unit)),
        scheduler_(layout_, std::unique_ptr<runtime::Policy>(bounded_)) {}

  void bound(ClientId client, const Bounds& bounds) { bounded_->bound(client, bounds); }

  void want(ClientId client, LaneId lane, std::uint32_t processors) {
    runtime::ReadyOperation operation;
    operation.client = client;
    operation.lane = lane;
    operation.processors = processors;
    scheduler_.wants(operation, now_ns_);
  }

  // 50 us.
  void step() {
    now_ns_ += 50'000;
    for (const Draining& each : draining_)
      if (each.until_ns <= now_ns_)
        scheduler_.returned(each.who.first, each.who.second, each.entry, now_ns_);
    std::erase_if(draining_, [&](const Draining& each) { return each.until_ns <= now_ns_; });
    for (const runtime::Decision& decision : scheduler_.decide(now_ns_)) {
      const auto who = std::pair(decision.client, decision.lane);
      if (decision.kind == runtime::Decision::Kind::kGrant) {
        open_[who] = decision.entry;
        ++grants_[decision.client];
        continue;
      }
      const auto open = open_.find(who);
      if (open != open_.end() && open->second == decision.entry) open_.erase(open);
      draining_.push_back({who, decision.entry, now_ns_ + 50'000 * (random_() % 40)});
    }
  }

  // Processors on which work of these clients may run, the whole device as all of them. Of a lane
  // that has moved, only where it is now: its work is in order.
  std::uint32_t used_by(const std::vector<ClientId>& clients) const {
    hal::ComputeSet held;
    const auto add = [&](const Who& who, EntryId entry) {
      if (std::count(clients.begin(), clients.end(), who.first) != 0)
        held |= layout_.at(entry).compute;
    };
    for (const auto& [who, entry] : open_) add(who, entry);
    std::map<Who, EntryId> last;
    for (const Draining& each : draining_) last[each.who] = each.entry;
    for (const auto& [who, entry] : last)
      if (!open_.contains(who)) add(who, entry);
    std::uint32_t processors = 0;
    for (unsigned unit = 0; unit < h200().units(); ++unit)
      if (held.has(unit)) processors += h200().processors_per_unit[unit];
    return processors;
  }
  std::uint64_t grants(ClientId client) { return grants_[client]; }
  bool holds_whole() const {
    return std::any_of(open_.begin(), open_.end(),
                       [](const auto& each) { return each.second == runtime::kWholeDevice; });
  }

 private:
  using Who = std::pair<ClientId, LaneId>;
  struct Draining {
    Who who;
    EntryId entry;
    std::uint64_t until_ns;
  };
  runtime::PoolLayout layout_;
  Bounded* bounded_;  // the scheduler's
  runtime::Scheduler scheduler_;
  std::uint64_t now_ns_ = 0;
  std::mt19937 random_{5};
  std::map<Who, EntryId> open_;
  std::vector<Draining> draining_;
  std::map<ClientId, std::uint64_t> grants_;
};

constexpr const char* kPolicies[] = {"fifo", "throughput", "tpot-first", "random", "extremes"};

// Lanes of all these clients ask again and again, for widths up to 24; the most that `clients` used
// together.
std::uint32_t most_used(Busy& busy, const std::vector<ClientId>& all,
                        const std::vector<ClientId>& clients) {
  std::mt19937 random(3);
  std::uint32_t most = 0;
  for (int i = 0; i < 4000; ++i) {
    const ClientId client = all[random() % all.size()];
    busy.want(client, static_cast<LaneId>(random() % 4),
              static_cast<std::uint32_t>(1 + random() % 24));
    busy.step();
    most = std::max(most, busy.used_by(clients));
  }
  for (const ClientId client : all) CHECK(busy.grants(client) > 2);
  return most;
}

TEST_CASE("a client's lanes together stay within its share") {
  for (const char* const name : kPolicies) {
    CAPTURE(name);
    Busy bound(name), free(name);
    bound.bound(1, {.most = 33});
    CHECK(most_used(bound, {1, 2}, {1}) <= 33);
    CHECK_MESSAGE(most_used(free, {1, 2}, {1}) > 33, "else the bound did nothing");
  }
}

TEST_CASE("clients of a group stay within the share together, and others have theirs") {
  for (const char* const name : kPolicies) {
    CAPTURE(name);
    Busy busy(name);
    for (const ClientId client : {1, 2}) busy.bound(client, {.most = 66, .group = 7});
    busy.bound(3, {.most = 66, .group = 8});
    CHECK(most_used(busy, {1, 2, 3}, {1, 2}) <= 66);
    Busy apart(name);
    for (const ClientId client : {1, 2}) apart.bound(client, {.most = 66});
    CHECK(most_used(apart, {1, 2}, {1, 2}) > 66);
  }
}

// `throughput` would have everybody on the whole device; somebody's own processors come first.
TEST_CASE("beside a reservation or a bound nobody shares the whole device") {
  for (const Bounds bounds : {Bounds{.reserved = 32}, Bounds{.most = 32}}) {
    for (const bool with : {false, true}) {
      Busy busy("throughput:whole=always");
      if (with) busy.bound(1, bounds);
      for (int i = 0; i < 300; ++i) {
        for (const ClientId client : {1, 2, 3}) busy.want(client, 0, 1);
        busy.step();
      }
      CHECK(busy.holds_whole() == !with);
      for (const ClientId client : {1, 2, 3}) CHECK(busy.grants(client) > 0);
    }
  }
}

TEST_CASE("a share below the narrowest part is that part, and what needs more runs all the same") {
  struct Case {
    std::uint32_t most, needs, least, widest;
  };
  for (const Case each : {Case{1, 1, 8, 8}, Case{16, 100, 100, 132}}) {
    Busy busy("throughput");
    busy.bound(1, {.most = each.most});
    busy.want(1, 0, each.needs);
    busy.step();
    CHECK(busy.grants(1) == 1);
    CHECK(busy.used_by({1}) >= each.least);
    CHECK(busy.used_by({1}) <= each.widest);
  }
}

}  // namespace
}  // namespace vitamin::policies
