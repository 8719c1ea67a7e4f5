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

  void want(ClientId client, LaneId lane, std::uint32_t processors, bool right_of_way = false) {
    runtime::ReadyOperation operation;
    operation.client = client;
    operation.lane = lane;
    operation.processors = processors;
    operation.right_of_way = right_of_way;
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

// `throughput` would have everybody on the whole device, `tpot-first` those that yield beside a
// latency client; somebody's own processors come first.
TEST_CASE("beside a reservation or a bound nobody shares the whole device") {
  for (const char* const name : {"throughput:whole=always", "tpot-first:beside=always"}) {
    CAPTURE(name);
    const bool first = std::string(name).starts_with("tpot-first");
    for (const Bounds bounds : {Bounds{.reserved = 32}, Bounds{.most = 32}}) {
      for (const bool with : {false, true}) {
        Busy busy(name);
        if (with) busy.bound(1, bounds);
        for (int i = 0; i < 300; ++i) {
          for (const ClientId client : {1, 2, 3}) busy.want(client, 0, 1, first && client == 3);
          busy.step();
        }
        CHECK(busy.holds_whole() == !with);
        // Who yields makes way for one that never pauses.
        for (const ClientId client : {1, 2, 3})
          if (!first || !with || client == 3) CHECK(busy.grants(client) > 0);
      }
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

TEST_CASE("A policy that has measured something is taken again when it is wanted again") {
  class Measuring final : public runtime::Policy {
   public:
    Measuring(std::string name, bool measures, std::vector<std::string>* told)
        : name_(std::move(name)), measures_(measures), told_(told) {}
    ~Measuring() override { told_->push_back(name_ + " ends"); }
    std::string_view name() const override { return name_; }
    bool remembers() const override { return measures_; }
    runtime::Choice select(const runtime::ReadyOperation&, std::span<const EntryId> eligible,
                           const runtime::PoolView&) override {
      return {eligible.back(), 1};
    }
    void forget(ClientId client) override {
      told_->push_back(name_ + " forgets " + std::to_string(client));
    }

   private:
    std::string name_;
    bool measures_;
    std::vector<std::string>* told_;
  };
  std::vector<std::string> told;
  auto made = [&](const char* name, bool measures) {
    return std::make_unique<Measuring>(name, measures, &told);
  };
  {
    Bounded bounded(made("first", true), {8, 8}, "a");
    bounded.replace(made("second", false), "b");
    CHECK(bounded.name() == "second");
    // Also while another one decides it hears who is gone.
    bounded.forget(7);
    CHECK(told == std::vector<std::string>{"second forgets 7", "first forgets 7"});
    told.clear();
    bounded.replace(made("third", true), "a");
    CHECK(bounded.name() == "first");
    // One that remembers nothing is not kept, one that is not needed neither.
    CHECK(told == std::vector<std::string>{"third ends", "second ends"});
    // The same specification again, as after a change of something else.
    told.clear();
    bounded.replace(made("fourth", true), "a");
    CHECK(bounded.name() == "first");
    for (int i = 0; i < 20; ++i) bounded.replace(made("more", true), std::to_string(i));
    // Not for ever.
    CHECK(std::count(told.begin(), told.end(), "first ends") == 1);
  }
}

TEST_CASE("What throughput has measured outlives another policy's turn") {
  const runtime::PoolLayout layout = runtime::PoolLayout::build(h200());
  auto owned = std::make_unique<Bounded>(policy("throughput"), h200().processors_per_unit, "t");
  Bounded& bounded = *owned;
  runtime::Scheduler scheduler(layout, std::move(owned));
  // Two clients that get on twice as fast on parts.
  std::map<ClientId, EntryId> on;
  std::map<ClientId, double> done{{1, 1}, {2, 1}};
  std::uint64_t now = 1'000'000;
  for (const ClientId client : {1U, 2U}) {
    scheduler.progressed(client, 0);
    runtime::ReadyOperation operation;
    operation.client = client;
    operation.kernel = client;
    scheduler.wants(operation, now);
  }
  std::uint64_t on_parts = 0;
  auto run = [&](std::uint64_t for_ns) {
    on_parts = 0;
    for (const std::uint64_t until = now + for_ns; now < until; now += 10'000'000) {
      for (auto& [client, operations] : done) {
        operations += on[client] == runtime::kWholeDevice ? 10'000 : 20'000;
        scheduler.progressed(client, static_cast<std::uint64_t>(operations));
      }
      for (int round = 0; round < 10; ++round) {
        const auto given = scheduler.decide(now + static_cast<std::uint64_t>(round));
        const std::vector<runtime::Decision> decisions(given.begin(), given.end());
        if (decisions.empty()) break;
        for (const runtime::Decision& decision : decisions)
          if (decision.kind == runtime::Decision::Kind::kGrant)
            on[decision.client] = decision.entry;
          else
            scheduler.returned(decision.client, decision.lane, decision.entry,
                               now + static_cast<std::uint64_t>(round));
      }
      on_parts += on[1] != runtime::kWholeDevice ? 10'000'000 : 0;
    }
  };
  run(10'000'000'000);
  CHECK(on_parts > 8'000'000'000);
  bounded.replace(policy("fifo"), "f");
  scheduler.policy_changed();
  run(5'000'000'000);
  CHECK(on_parts < 100'000'000);
  bounded.replace(policy("throughput"), "t");
  scheduler.policy_changed();
  run(2'000'000'000);
  CHECK(on_parts >= 1'900'000'000);  // a new one would try the whole device first
}

}  // namespace
}  // namespace vitamin::policies
