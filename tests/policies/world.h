// SPDX-License-Identifier: Apache-2.0
//
// Clients in virtual time around a Scheduler: they run kernels one after the other on what they are
// granted, obey gates, and check after every decision that no two clients hold a common unit and
// that nobody got an entry that cannot run his work.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "runtime/scheduler.h"

namespace vitamin::policies {

struct Work {
  std::uint64_t at_ns = 0;
  runtime::ReadyOperation operation;
  unsigned kernels = 1;
  std::uint64_t kernel_ns = 10'000;  // on one unit of 8; wider entries are faster, down to an eighth
};

class World {
 public:
  World(const runtime::PoolLayout& layout, std::unique_ptr<runtime::Policy> policy,
        const runtime::SchedulerOptions& options = {}, const runtime::Profile* profile = nullptr)
      : scheduler_(layout, std::move(policy), options, profile) {}

  runtime::Scheduler& scheduler() { return scheduler_; }
  std::uint64_t now() const { return now_; }
  std::uint64_t longest_wait() const { return longest_wait_; }
  std::uint64_t longest_kernel() const { return longest_kernel_; }
  const std::vector<std::uint64_t>& ended() const { return ended_; }  // by index of the work
  bool complete() const { return complete_; }

  // Runs all of it, or until `limit_ns`.
  void run(std::vector<Work> work, std::uint64_t limit_ns = 60'000'000'000) {
    ended_.assign(work.size(), runtime::kNever);
    std::vector<std::size_t> order(work.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return work[a].at_ns < work[b].at_ns; });
    std::size_t next = 0;
    while (true) {
      std::uint64_t when = std::min(scheduler_.wake_at(), next_end());
      if (next < order.size()) when = std::min(when, work[order[next]].at_ns);
      if (when == runtime::kNever || when > limit_ns) break;
      now_ = std::max(now_, when);
      for (auto& [key, lane] : lanes_)
        if (lane.running && lane.ends_ns <= now_) kernel_ended(lane);
      for (; next < order.size() && work[order[next]].at_ns <= now_; ++next)
        arrive(work[order[next]], order[next]);
      obey();
    }
    complete_ = std::none_of(ended_.begin(), ended_.end(),
                             [](std::uint64_t time) { return time == runtime::kNever; });
  }

 private:
  struct Item {
    Work work;
    std::size_t index;
  };
  struct Lane {
    std::vector<Item> queue;  // front first
    runtime::EntryId open = runtime::kNoEntry;
    std::uint32_t launches = 0;
    bool running = false;
    runtime::EntryId runs_on = runtime::kNoEntry;
    std::uint64_t ends_ns = 0;
    std::uint64_t waits_since = 0;
    std::vector<runtime::EntryId> closing;  // returned when the running kernel ends
  };
  using Key = std::pair<runtime::ClientId, runtime::LaneId>;

  std::uint64_t next_end() const {
    std::uint64_t when = runtime::kNever;
    for (const auto& [key, lane] : lanes_)
      if (lane.running) when = std::min(when, lane.ends_ns);
    return when;
  }

  void arrive(const Work& work, std::size_t index) {
    Lane& lane = lanes_[{work.operation.client, work.operation.lane}];
    lane.queue.push_back({work, index});
    if (lane.queue.size() > 1) return;
    lane.waits_since = now_;
    scheduler_.wants(work.operation, now_);
  }

  void give_back(const Key& key, Lane& lane) {
    for (const runtime::EntryId entry : lane.closing)
      scheduler_.returned(key.first, key.second, entry, now_);
    lane.closing.clear();
  }

  void kernel_ended(Lane& lane) {
    lane.running = false;
    const Key key{lane.queue.front().work.operation.client,
                  lane.queue.front().work.operation.lane};
    give_back(key, lane);
    Item& item = lane.queue.front();
    // What is left until the deadline.
    std::uint64_t& queued = item.work.operation.queued_ns;
    queued -= queued / item.work.kernels;
    if (--item.work.kernels == 0) {
      ended_[item.index] = now_;
      lane.queue.erase(lane.queue.begin());
      lane.waits_since = now_;
    }
    if (lane.queue.empty()) {
      scheduler_.idle(key.first, key.second, now_);
      if (lane.open != runtime::kNoEntry)
        scheduler_.returned(key.first, key.second, lane.open, now_);
      lane.open = runtime::kNoEntry;
      return;
    }
    if (lane.open != runtime::kNoEntry && lane.launches == 0) {
      scheduler_.returned(key.first, key.second, lane.open, now_);
      lane.open = runtime::kNoEntry;
      lane.waits_since = now_;
    }
    scheduler_.wants(lane.queue.front().work.operation, now_);
    start(lane);
  }

  void start(Lane& lane) {
    if (lane.running || lane.queue.empty() || lane.open == runtime::kNoEntry) return;
    const Work& work = lane.queue.front().work;
    if (lane.launches != runtime::kUntilChanged) --lane.launches;
    longest_wait_ = std::max(longest_wait_, now_ - lane.waits_since);
    const std::uint64_t wide = scheduler_.layout().at(lane.open).processors / 8;
    const std::uint64_t ns =
        std::max<std::uint64_t>(work.kernel_ns / std::clamp<std::uint64_t>(wide, 1, 8), 1);
    longest_kernel_ = std::max(longest_kernel_, ns);
    lane.running = true;
    lane.runs_on = lane.open;
    lane.ends_ns = now_ + ns;
  }

  void obey() {
    // What a decision frees at once may allow another.
    for (int round = 0; round < 100; ++round) {
      const auto given = scheduler_.decide(now_);
      const std::vector<runtime::Decision> decisions(given.begin(), given.end());
      if (decisions.empty()) break;
      for (const runtime::Decision& decision : decisions) follow(decision);
      check();
    }
    for (auto& [key, lane] : lanes_) {
      if (!lane.running) give_back(key, lane);
      start(lane);
    }
  }

  void follow(const runtime::Decision& decision) {
    const Key key{decision.client, decision.lane};
    Lane& lane = lanes_.at(key);
    if (decision.kind == runtime::Decision::Kind::kCloseGate) {
      if (lane.open == decision.entry) {
        lane.open = runtime::kNoEntry;
        lane.waits_since = now_;
      }
      lane.closing.push_back(decision.entry);
      if (!lane.running || lane.runs_on != decision.entry) give_back_one(key, lane, decision.entry);
      return;
    }
    REQUIRE(!lane.queue.empty());
    const runtime::ReadyOperation& operation = lane.queue.front().work.operation;
    REQUIRE(scheduler_.layout().at(decision.entry).processors >= operation.processors);
    REQUIRE(decision.launches > 0);
    REQUIRE(std::find(lane.closing.begin(), lane.closing.end(), decision.entry) ==
            lane.closing.end());
    lane.open = decision.entry;
    lane.launches = decision.launches;
  }

  void give_back_one(const Key& key, Lane& lane, runtime::EntryId entry) {
    std::erase(lane.closing, entry);
    scheduler_.returned(key.first, key.second, entry, now_);
  }

  // By what the clients themselves believe to hold.
  void check() const {
    std::map<runtime::ClientId, hal::ComputeSet> held;
    for (const auto& [key, lane] : lanes_) {
      auto hold = [&, client = key.first](runtime::EntryId entry) {
        if (entry != runtime::kNoEntry && entry != runtime::kWholeDevice)
          held[client] |= scheduler_.layout().at(entry).compute;
      };
      hold(lane.open);
      if (lane.running) hold(lane.runs_on);
    }
    hal::ComputeSet all;
    for (const auto& [client, units] : held) {
      REQUIRE_MESSAGE(!units.overlaps(all), "client " << client << " overlaps another");
      all |= units;
    }
  }

  runtime::Scheduler scheduler_;
  std::map<Key, Lane> lanes_;
  std::vector<std::uint64_t> ended_;
  std::uint64_t now_ = 0;
  std::uint64_t longest_wait_ = 0;
  std::uint64_t longest_kernel_ = 0;
  bool complete_ = false;
};

}  // namespace vitamin::policies
