// SPDX-License-Identifier: Apache-2.0
//
// Clients in virtual time around a Scheduler: each stream runs kernels one after the other on what
// it is granted, obeys revocations and returns grants when its work has ended. After every decision
// the world checks, by what the clients themselves hold, the invariants that a user relies on.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "runtime/pool/layout.h"
#include "scheduler/scheduler.h"

namespace vitamin::scheduler {

struct Work {
  std::uint64_t at_ns = 0;
  ClientId client = kNoClient;
  StreamId stream = 0;
  std::uint32_t min_sms = 1;
  unsigned kernels = 1;
  std::uint64_t kernel_ns = 10'000;  // on one unit of 8 SMs; an eighth on 64 and more
};

// `count` arrivals of `clients` clients at random, some of them as wide as `widest` SMs.
inline std::vector<Work> random_work(std::uint64_t seed, unsigned clients, unsigned count,
                                     std::uint32_t widest) {
  std::mt19937_64 random(seed);
  std::vector<Work> all;
  for (unsigned i = 0; i < count; ++i) {
    Work work;
    work.at_ns = random() % 20'000'000;
    work.client = 1 + static_cast<ClientId>(random() % clients);
    work.stream = static_cast<StreamId>(random() % 2);
    work.min_sms = 1 + static_cast<std::uint32_t>(random() % (random() % 4 == 0 ? widest : 8));
    work.kernels = 1 + static_cast<unsigned>(random() % 20);
    work.kernel_ns = 1'000 + random() % 400'000;
    all.push_back(work);
  }
  return all;
}

class World {
 public:
  World(const runtime::PoolLayout& layout, Policy policy, const SchedulerOptions& options = {})
      : layout_(layout), scheduler_(layout.partitions(), std::move(policy), options) {}

  Scheduler& scheduler() { return scheduler_; }
  // Attaches a client, whose quotas are checked from now on.
  void attach(ClientId client, const ClientTerms& terms) {
    limits_[client] = terms.limits;
    scheduler_.attach(client, terms, now_);
  }
  // The most SMs on which clients of this group had grants, open or draining, at a time.
  std::uint32_t most_sms(std::uint32_t group) const {
    const auto known = most_sms_.find(group);
    return known == most_sms_.end() ? 0 : known->second;
  }
  std::uint64_t now() const { return now_; }
  // A stream with work, without a kernel that runs, and without an open grant.
  std::uint64_t longest_wait() const { return longest_wait_; }
  std::uint64_t longest_kernel() const { return longest_kernel_; }
  std::uint64_t ran_ns(ClientId client) const {
    const auto known = ran_.find(client);
    return known == ran_.end() ? 0 : known->second;
  }
  bool complete() const { return left_ == 0; }
  // Grants of which kernels ran, by reason.
  std::map<Reason, std::uint64_t> launches;

  void run(std::vector<Work> work, std::uint64_t limit_ns = 60'000'000'000) {
    left_ += work.size();
    std::stable_sort(work.begin(), work.end(),
                     [](const Work& a, const Work& b) { return a.at_ns < b.at_ns; });
    std::size_t next = 0;
    while (true) {
      std::uint64_t when = std::min(scheduler_.wake_at(), next_end());
      if (next < work.size()) when = std::min(when, work[next].at_ns);
      if (when == kNever || when > limit_ns) break;
      if (left_ == 0 && next == work.size()) break;
      REQUIRE_MESSAGE(++turns_ < 20'000'000, "the world does not end");
      now_ = std::max(now_, when);
      for (auto& [key, stream] : streams_)
        if (stream.running && stream.ends_ns <= now_) kernel_ended(key, stream);
      for (; next < work.size() && work[next].at_ns <= now_; ++next) arrive(work[next]);
      obey();
    }
  }

  // Decides and obeys now, after a change that no client made.
  void obey_now() { obey(); }

 private:
  struct Held {
    GrantId id;
    PartitionId partition;
    Mode mode;
    Reason reason;
  };
  struct StreamState {
    std::vector<Work> queue;  // front first
    bool has_open = false;
    Held open{};
    std::uint32_t launches = 0;  // left; meaningful with `bounded`
    bool bounded = false;
    bool running = false;
    GrantId runs_under = kNoGrant;
    std::uint64_t ends_ns = 0;
    std::uint64_t waits_since = 0;
    std::vector<Held> closing;  // returned when the running kernel ends
  };
  using Key = std::pair<ClientId, StreamId>;

  std::uint64_t next_end() const {
    std::uint64_t when = kNever;
    for (const auto& [key, stream] : streams_)
      if (stream.running) when = std::min(when, stream.ends_ns);
    return when;
  }

  void say_wants(const Key& key, const StreamState& stream) {
    StreamDemand demand;
    demand.id = key.second;
    demand.min_sms = stream.queue.front().min_sms;
    scheduler_.wants(key.first, demand, now_);
  }

  void arrive(const Work& work) {
    const Key key{work.client, work.stream};
    StreamState& stream = streams_[key];
    stream.queue.push_back(work);
    for (const Partition& partition : layout_.partitions().subspan(1))
      if (partition.sms >= work.min_sms) {
        needs_[work.client] = std::max(needs_[work.client], partition.sms);
        break;
      }
    if (stream.queue.size() > 1) return;
    stream.waits_since = now_;
    say_wants(key, stream);
  }

  void kernel_ended(const Key& key, StreamState& stream) {
    stream.running = false;
    for (const Held& held : stream.closing)
      scheduler_.returned(key.first, key.second, held.id, now_);
    stream.closing.clear();
    if (--stream.queue.front().kernels == 0) {
      stream.queue.erase(stream.queue.begin());
      --left_;
    }
    const bool done = stream.queue.empty();
    if (done) scheduler_.idle(key.first, key.second, now_);
    if (stream.has_open && (done || (stream.bounded && stream.launches == 0))) {
      stream.has_open = false;
      scheduler_.returned(key.first, key.second, stream.open.id, now_);
    }
    stream.waits_since = now_;
    if (done) return;
    say_wants(key, stream);
    start(key, stream);
  }

  void start(const Key& key, StreamState& stream) {
    if (stream.running || stream.queue.empty() || !stream.has_open) return;
    if (stream.bounded && stream.launches == 0) return;
    const Work& work = stream.queue.front();
    const std::uint32_t sms = layout_.at(stream.open.partition).sms;
    if (sms < work.min_sms) return;  // the scheduler has been told; it revokes
    if (stream.bounded) --stream.launches;
    longest_wait_ = std::max(longest_wait_, now_ - stream.waits_since);
    const std::uint64_t wide = std::clamp<std::uint64_t>(sms / 8, 1, 8);
    const std::uint64_t ns = std::max<std::uint64_t>(work.kernel_ns / wide, 1);
    longest_kernel_ = std::max(longest_kernel_, ns);
    stream.running = true;
    stream.runs_under = stream.open.id;
    stream.ends_ns = now_ + ns;
    ran_[key.first] += ns;
    ++launches[stream.open.reason];
  }

  void close(const Key& key, StreamState& stream, const Held& held) {
    if (stream.running && stream.runs_under == held.id)
      stream.closing.push_back(held);
    else
      scheduler_.returned(key.first, key.second, held.id, now_);
  }

  void obey() {
    // What a decision frees at once may allow another.
    for (int round = 0;; ++round) {
      REQUIRE_MESSAGE(round < 1000, "decisions do not end");
      const auto given = scheduler_.decide(now_);
      if (given.empty()) break;
      const std::vector<Decision> decisions(given.begin(), given.end());
      for (const Decision& decision : decisions) follow(decision);
      check();
    }
    for (auto& [key, stream] : streams_) start(key, stream);
  }

  void follow(const Decision& decision) {
    const Key key{decision.client, decision.stream};
    StreamState& stream = streams_.at(key);
    if (decision.kind == Decision::Kind::kRevoke) {
      REQUIRE(stream.has_open);
      REQUIRE(stream.open.id == decision.grant);
      stream.has_open = false;
      if (!stream.running) stream.waits_since = now_;
      return close(key, stream, stream.open);
    }
    REQUIRE_FALSE(stream.queue.empty());
    if (decision.kind == Decision::Kind::kAmend) {
      REQUIRE(stream.has_open);
      REQUIRE(stream.open.id == decision.grant);
      stream.open.reason = decision.reason;
    } else {
      REQUIRE(layout_.at(decision.partition).sms >= stream.queue.front().min_sms);
      if (stream.has_open) close(key, stream, stream.open);
      stream.has_open = true;
      stream.open = {decision.grant, decision.partition, decision.mode, decision.reason};
    }
    stream.bounded = decision.launches != 0;
    stream.launches = decision.launches;
  }

  // Clients that are in a group, by any of their quotas; a client without one is a group by itself.
  std::map<std::uint64_t, std::pair<std::uint32_t, std::vector<ClientId>>> quotas() const {
    std::map<std::uint64_t, std::pair<std::uint32_t, std::vector<ClientId>>> all;
    const auto add = [&](std::uint64_t group, std::uint32_t most, ClientId client) {
      auto& [sms, members] = all[group];
      sms = most;
      members.push_back(client);
    };
    constexpr std::uint64_t kAlone = std::uint64_t{1} << 32;
    for (const auto& [client, limits] : limits_) {
      if (limits.max_sms != 0)
        add(limits.group != 0 ? limits.group : kAlone | client, limits.max_sms, client);
      for (const GroupQuota& quota : limits.outer)
        if (quota.group != 0) add(quota.group, quota.max_sms, client);
    }
    return all;
  }

  // Quotas hold of open and of draining grants together. Counted exceptions: launches that only the
  // whole device can run, and those that need more than the quota.
  void check_quotas() {
    for (const auto& [group, quota] : quotas()) {
      hal::ComputeSet units;
      std::uint32_t most = std::max(quota.first, layout_.at(1).sms);
      for (const ClientId member : quota.second) {
        if (const auto need = needs_.find(member); need != needs_.end())
          most = std::max(most, need->second);
        for (const auto& [key, stream] : streams_) {
          if (key.first != member) continue;
          const auto count = [&](const Held& held) {
            if (held.reason != Reason::kNeedsWhole) units |= layout_.at(held.partition).compute;
          };
          if (stream.has_open) count(stream.open);
          for (const Held& held : stream.closing) count(held);
        }
      }
      const std::uint32_t sms = UnitWidths(layout_.partitions()).of(units);
      std::uint32_t& seen = most_sms_[static_cast<std::uint32_t>(group)];
      seen = std::max(seen, sms);
      const std::uint64_t id = group;
      REQUIRE_MESSAGE(sms <= most, "group " << id << " has " << sms << " SMs");
    }
  }

  // Units that clients hold or run on. Exclusive grants of two clients never overlap, also while
  // one of them drains; an open exclusive grant is beside no open shared grant of another client.
  // Counted exceptions: launches that only the whole device can run.
  void check() {
    check_quotas();
    std::map<std::uint64_t, hal::ComputeSet> exclusive, open_exclusive, open_shared;
    for (const auto& [key, stream] : streams_) {
      const std::uint64_t holder = scheduler_.policy().isolate_streams
                                       ? std::uint64_t{key.second} << 32 | key.first
                                       : key.first;
      const auto hold = [&, client = holder](const Held& held) {
        if (held.mode == Mode::kExclusive) exclusive[client] |= layout_.at(held.partition).compute;
      };
      if (stream.has_open) {
        hold(stream.open);
        if (stream.open.reason != Reason::kNeedsWhole)
          (stream.open.mode == Mode::kExclusive ? open_exclusive : open_shared)[holder] |=
              layout_.at(stream.open.partition).compute;
      }
      for (const Held& held : stream.closing) hold(held);
    }
    hal::ComputeSet all;
    for (const auto& [client, units] : exclusive) {
      const std::uint64_t holder = client;
      REQUIRE_MESSAGE(!units.overlaps(all), "client " << holder << " overlaps another");
      all |= units;
    }
    for (const auto& alone : open_exclusive)
      for (const auto& beside : open_shared)
        if (alone.first != beside.first)
          REQUIRE_MESSAGE(!alone.second.overlaps(beside.second),
                          "client " << beside.first << " shares units of client " << alone.first);
  }

  const runtime::PoolLayout& layout_;
  Scheduler scheduler_;
  std::map<Key, StreamState> streams_;
  std::map<ClientId, std::uint64_t> ran_;
  std::map<ClientId, Limits> limits_;
  std::map<ClientId, std::uint32_t> needs_;  // widest part that a launch of it needs
  std::map<std::uint32_t, std::uint32_t> most_sms_;
  std::size_t left_ = 0;
  std::uint64_t now_ = 0, turns_ = 0;
  std::uint64_t longest_wait_ = 0;
  std::uint64_t longest_kernel_ = 0;
};

}  // namespace vitamin::scheduler
