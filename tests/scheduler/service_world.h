// SPDX-License-Identifier: Apache-2.0
//
// A client that serves requests beside a client that always has work, under slo or tpot-first, in
// virtual time and with known speeds in every configuration.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>

#include "scheduler/policies/slo.h"
#include "tests/scheduler/synthetic_world.h"

namespace vitamin::test {

using scheduler::Allocation;
using scheduler::Client;
using scheduler::Estimator;
using scheduler::kNever;
using scheduler::kWholeDevice;
using scheduler::Row;
using scheduler::Slo;
using scheduler::SloOptions;
using scheduler::SloPolicy;
using scheduler::Snapshot;
using scheduler::Step;
using scheduler::StepKind;
using scheduler::StreamDemand;

struct Request {
  std::uint64_t id, arrival_ns;
  double work_ns;  // alone
};

// Client 1 serves; client 2 (and 3) trains.
class ServiceWorld {
 public:
  struct Setup {
    double load = 0.5, work_ms = 8, spread = 0.25;
    Slo slo;
    bool announced = true;
    StepKind kind = StepKind::kUnknown;
    bool paced = false;  // a token each period, not Poisson arrivals
    std::uint64_t request = 0;
    unsigned seed = 1;
    bool alone = false;   // without the client that trains
    unsigned tight = 0;   // one of so many steps is announced to be due at once
    bool closed = false;  // the next step begins pause_ns after the one before has ended
    std::uint64_t pause_ns = kMs / 4;
    std::uint64_t drain_ns = kMs;  // what the trainer has submitted ends so late
    bool host_bound = false;       // half of the device is as good as all of it
    bool seen_late = false;        // the work of a step is counted when the next one has begun
    bool in_lumps = false;         // most of a step's work is counted with every second step
  };

  ServiceWorld(const Setup& setup, const SloOptions& options)
      : setup_(setup),
        pool_(h200()),
        random_(setup.seed),
        estimator(pool_.partitions(), setup.seed),
        policy(options, estimator, pool_.partitions()) {
    clients_.resize(2);
    for (std::size_t i = 0; i < 2; ++i) {
      clients_[i].id = static_cast<ClientId>(i + 1);
      clients_[i].reports_progress = true;
      estimator.identify(clients_[i].id, 500 + i);
    }
    clients_[0].slo = setup.slo;
    clients_[0].phase = setup.kind;
    clients_[1].active = !setup.alone;
    demand_.state = StreamDemand::State::kRunning;
    draw_arrival();
  }

  // The speeds of an H200: the decoder loses little on half of the device and much when it shares.
  double speed(std::size_t client) const {
    const Row* own = nullptr;
    bool other = false;
    for (const Row& row : now_.rows) {
      if (row.mode == Mode::kPaused) continue;
      if (row.client == clients_[client].id)
        own = &row;
      else
        other = other || client == 1 ? serving_ : true;
    }
    if (own == nullptr || now_ns_ < settled_ns_) return 0;
    const double part = static_cast<double>(pool_.at(own->partition).sms) / 132;
    if (own->mode == Mode::kShared && own->partition == kWholeDevice)
      return !other ? 1 : client == 0 ? 0.45 : 0.75;
    if (client == 0 && setup_.host_bound) return part > 0.4 ? 1 : 0.7;
    return client == 0 ? std::min(1.0, 0.55 + 0.55 * part) * (part < 0.2 ? 0.5 : 1)
                       : std::min(1.0, 1.05 * part);
  }

  void run(double until_s) {
    const auto end = static_cast<std::uint64_t>(until_s * 1e9);
    while (now_ns_ < end) {
      plan();
      std::uint64_t next = std::min({end, arrival_ns_, std::max(now_ns_ + 1, now_.wake_ns)});
      if (settled_ns_ > now_ns_) next = std::min(next, settled_ns_);
      const double fast = speed(0) * jitter_, train = speed(1);
      if (!queue_.empty() && fast > 0) {
        const double left = queue_.front().work_ns - done_ns_;
        next = std::min(next, now_ns_ + 1 + static_cast<std::uint64_t>(left / fast));
      }
      advance(next, fast, train);
    }
  }

  std::vector<double> latencies_ms;
  double harvest() const { return trained_ns_ / static_cast<double>(now_ns_); }
  double quantile(double q) {
    std::sort(latencies_ms.begin(), latencies_ms.end());
    return latencies_ms[static_cast<std::size_t>(q * static_cast<double>(latencies_ms.size() - 1))];
  }
  double late(double bound_ms) const {
    const auto n = std::count_if(latencies_ms.begin(), latencies_ms.end(),
                                 [&](double x) { return x > bound_ms; });
    return static_cast<double>(n) / static_cast<double>(latencies_ms.size());
  }
  void set_slo(const Slo& slo) { clients_[0].slo = slo; }
  void set_drain(std::uint64_t ns) { setup_.drain_ns = ns; }
  void begin_training() { clients_[1].active = true; }
  // Client 1 ends; after so long another one of its program begins.
  void restart(double pause_s) {
    queue_.clear();
    done_ns_ = 0;
    arrival_ns_ = now_ns_ + static_cast<std::uint64_t>(pause_s * 1e9);
    policy.forget(1);
    estimator.forget(1);
    estimator.identify(1, 500);
  }
  double trained_s() const { return trained_ns_ / 1e9; }
  std::uint64_t now_ns() const { return now_ns_; }
  // Of the service's only bound.
  scheduler::SloStatus slo_status() const {
    std::vector<scheduler::SloStatus> statuses;
    policy.slo_statuses(statuses);
    REQUIRE(statuses.size() == 1);
    return statuses[0];
  }
  const Allocation& allocation() const { return now_; }
  unsigned changes() const { return changes_; }

 private:
  void draw_arrival() {
    const double mean = setup_.work_ms * 1e6 / setup_.load;
    arrival_ns_ =
        now_ns_ +
        static_cast<std::uint64_t>(
            setup_.paced ? mean : std::exponential_distribution<double>(1)(random_) * mean);
  }

  void plan() {
    steps_.clear();
    if (setup_.announced)
      for (const Request& r : queue_) {
        Step step;
        step.id = r.id;
        step.client = 1;
        step.kind = setup_.kind;
        step.request = setup_.request;
        step.ready_ns = kSecond + r.arrival_ns;
        if (setup_.tight != 0 && r.id % setup_.tight == 0) step.due_ns = step.ready_ns + 1;
        step.begin_ns = &r == &queue_.front() ? step.ready_ns : 0;
        steps_.push_back(step);
      }
    serving_ = !queue_.empty();
    if (serving_ || !setup_.seen_late) counted_ = ended_;
    clients_[0].active = serving_;
    clients_[0].steps = steps_;
    clients_[0].streams =
        serving_ ? std::span<const StreamDemand>(&demand_, 1) : std::span<const StreamDemand>();
    clients_[1].streams = {&demand_, 1};
    for (std::size_t i = 0; i < 2; ++i) {
      const bool counted = i == 0 && setup_.in_lumps;
      clients_[i].progress.work = static_cast<std::uint64_t>(counted ? counted_ : work_[i]);
      clients_[i].progress.launches = static_cast<std::uint64_t>(work_[i] / 2e4);
      clients_[i].progress.busy_ns = static_cast<std::uint64_t>(busy_[i]);
    }
    Snapshot snapshot;
    snapshot.now_ns = now_ns_ + kSecond;
    snapshot.pool = pool_.partitions();
    snapshot.clients = clients_;
    Allocation next;
    policy.allocate(snapshot, next);
    if (next.wake_ns != kNever) next.wake_ns -= kSecond;
    if (next.rows != now_.rows) {
      ++changes_;
      bool moved = false;  // the trainer's run-ahead has to drain
      for (const Row& row : next.rows)
        for (const Row& old : now_.rows)
          moved = moved || (row.client == 2 && old.client == 2 &&
                            (row.partition != old.partition || row.mode != old.mode));
      if (moved) settled_ns_ = now_ns_ + setup_.drain_ns;
    }
    now_ = next;
  }

  void advance(std::uint64_t to, double fast, double train) {
    const double passed = static_cast<double>(to - now_ns_);
    now_ns_ = to;
    trained_ns_ += train * passed;
    work_[1] += train * passed, busy_[1] += passed;
    if (!queue_.empty()) {
      done_ns_ += fast * passed;
      work_[0] += fast * passed, busy_[0] += passed;
      if (done_ns_ >= queue_.front().work_ns) {
        latencies_ms.push_back(static_cast<double>(now_ns_ - queue_.front().arrival_ns) / 1e6);
        ended_ = latencies_ms.size() % 2 == 0 ? work_[0] : ended_ + done_ns_ / 100;
        queue_.pop_front();
        if (setup_.closed) arrival_ns_ = now_ns_ + setup_.pause_ns;
        done_ns_ = 0;
        jitter_ = std::exp(0.03 * std::normal_distribution<double>()(random_));
      }
    }
    if (now_ns_ >= arrival_ns_) {
      const double work = setup_.work_ms * 1e6 *
                          std::exp(setup_.spread * std::normal_distribution<double>()(random_));
      queue_.push_back({++ids_, now_ns_, work});
      if (setup_.closed)
        arrival_ns_ = kNever;
      else
        draw_arrival();
    }
  }

  Setup setup_;
  runtime::PoolLayout pool_;
  std::mt19937_64 random_;
  std::vector<Client> clients_;
  std::vector<Step> steps_;
  StreamDemand demand_;
  std::deque<Request> queue_;
  Allocation now_;
  std::uint64_t now_ns_ = 0, arrival_ns_ = 0, settled_ns_ = 0, ids_ = 0;
  double done_ns_ = 0, trained_ns_ = 0, jitter_ = 1, counted_ = 0, ended_ = 0;
  double work_[2] = {}, busy_[2] = {};
  bool serving_ = false;
  unsigned changes_ = 0;

 public:
  Estimator estimator;
  SloPolicy policy;
};

}  // namespace vitamin::test
