// SPDX-License-Identifier: Apache-2.0
//
// Clients with known speeds in every configuration, and counters as noisy as those of real jobs, in
// virtual time. It runs an Estimator over the candidates of Configurations and says what that cost
// against the best configuration.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "runtime/pool/layout.h"
#include "scheduler/estimator/configurations.h"
#include "scheduler/estimator/estimator.h"
#include "tests/scheduler/fixture.h"
#include "tests/scheduler/recorded_steps.h"

namespace vitamin::test {

using scheduler::Assignment;
using scheduler::ClientId;
using scheduler::Mode;

using scheduler::h200;

constexpr std::uint64_t kMs = 1'000'000, kSecond = 1'000'000'000;

struct Job {
  scheduler::ProgramHash program = 0;
  double weight = 1;
  scheduler::StepKind phase = scheduler::StepKind::kUnknown;
  scheduler::Limits limits{};
  // Of speeds: log-normal by 20 ms, of this coefficient of variation.
  double noise = 0.1;
  // Work comes in steps of so long (at full speed), the second half of each `uneven` faster and the
  // first as much slower than the counters' weights know.
  double step_s = 0, uneven = 0;
  std::span<const float> recorded{};  // recorded_steps.h: what the counter misses, by work done
  double work_per_launch = 20'000;    // ns
  double lie = 0;                     // the counter is multiplied by exp(lie * SMs / all)
  double busy = 1;                    // part of the time in which it has work
  bool reports = true;
};

class World {
 public:
  using Speeds = std::function<double(std::size_t job, std::span<const Assignment>)>;

  World(std::vector<Job> jobs, Speeds speeds, std::uint64_t seed)
      : pool_(h200()),
        jobs_(std::move(jobs)),
        speeds_(std::move(speeds)),
        random_(seed),
        estimator(pool_.partitions(), seed),
        configurations_(pool_.partitions()) {
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      clients_.push_back({});
      scheduler::Client& c = clients_.back();
      c.id = static_cast<ClientId>(i + 1);
      c.weight = static_cast<float>(jobs_[i].weight);
      c.phase = jobs_[i].phase;
      c.limits = jobs_[i].limits;
      c.active = true;
      c.reports_progress = jobs_[i].reports;
      estimator.identify(c.id, jobs_[i].program != 0 ? jobs_[i].program : 1000 + i);
    }
    state_.resize(jobs_.size());
  }

  void set_speeds(Speeds speeds) { speeds_ = std::move(speeds), best_known_ = false; }
  void set_active(std::size_t job, bool active) {
    clients_[job].active = active, best_known_ = false;
  }
  void set_phase(std::size_t job, scheduler::StepKind phase) { clients_[job].phase = phase; }
  // A client that has gone and another of the same program that has come.
  void replace(std::size_t job, ClientId id, scheduler::ProgramHash program) {
    estimator.forget(clients_[job].id);
    clients_[job].id = id;
    clients_[job].progress = {};
    if (program != 0) estimator.identify(id, program);
  }
  Job& job(std::size_t i) { return jobs_[i]; }
  scheduler::Client& client(std::size_t i) { return clients_[i]; }
  void jump(std::uint64_t ns) { clock_offset_ += ns; }
  std::uint64_t clock() const { return now_ + clock_offset_; }
  std::uint64_t now() const { return now_; }

  double drift = 0.02;   // of the host: random walk, by this in a second
  double hiccup = 0;     // chance in each 20 ms that all stand still for most of it
  double settle_ms = 3;  // of a change, in which nothing runs
  bool report_settled = true;
  // For so long behind a change programs run at other speeds than later, by this factor: they run
  // what they submitted while the device drained, or end what they began before.
  double unsettled_s = 0;
  std::function<double(std::span<const Assignment>)> unsettled;
  scheduler::Objective objective;

  // Runs to `until_s`. Losses accumulate over calls.
  void run(double until_s) {
    const auto end = static_cast<std::uint64_t>(until_s * 1e9);
    while (now_ < end) {
      step(end);
    }
  }

  void step(std::uint64_t end) {
    if (estimator.enter(clients_, objective, clock()))
      estimator.offer(configurations_.generate(clients_, objective, estimator));
    const scheduler::MeasurementBlock block = estimator.next(clock());
    apply(block);
    const std::uint64_t wake = block.wake_ns == scheduler::kNever
                                   ? end
                                   : std::max(now_ + 1, block.wake_ns - clock_offset_);
    advance(std::min(end, wake));
  }

  const std::vector<Assignment>& applied() const { return applied_; }
  bool decided() const { return purpose_ == scheduler::Purpose::kKeep; }
  double decided_s() const { return decided_s_; }
  void clear_decision() { decided_s_ = -1; }
  // Value of the configuration that is kept now against the best of the candidates.
  double regret() const { return 1 - std::exp(true_value(kept_) - best()); }
  double loss_s() const { return loss_s_; }  // seconds' worth of the objective, against the best
  double overhead_s() const { return overhead_s_; }  // of it, outside of kept blocks
  void clear_loss() { loss_s_ = overhead_s_ = 0; }
  unsigned changes() const { return changes_; }
  double work(std::size_t i) const { return state_[i].work; }

  double true_value(std::span<const Assignment> configuration) const {
    std::vector<scheduler::ClientSpeed> all;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (!clients_[i].active) continue;
      const auto at = find(configuration, clients_[i].id);
      const double speed = at == nullptr ? 0 : speeds_(i, by_job(configuration));
      all.push_back({jobs_[i].weight, speed > 0 ? std::log(speed) : scheduler::kStopped});
    }
    return scheduler::value_of(objective, all);
  }

  double best() const {
    if (best_known_) return best_;
    best_ = scheduler::kInfeasible;
    scheduler::Configurations all(pool_.partitions());
    for (const auto& candidate : all.generate(clients_, objective, estimator))
      if (!candidate.alone) best_ = std::max(best_, true_value(candidate.assignments));
    best_known_ = true;
    return best_;
  }

  std::uint32_t sms(std::span<const Assignment> configuration, std::size_t job) const {
    const Assignment* const a = find(configuration, clients_[job].id);
    return a == nullptr ? 0 : pool_.at(a->partition).sms;
  }
  const runtime::PoolLayout& pool() const { return pool_; }

 private:
  struct State {
    double work = 0, lied = 0, busy = 0, launches = 0;
  };

  static const Assignment* find(std::span<const Assignment> c, ClientId id) {
    for (const Assignment& a : c)
      if (a.client == id) return &a;
    return nullptr;
  }
  // The table of speeds knows jobs, as client ids 1, 2, ..., and not the processes that run them.
  std::span<const Assignment> by_job(std::span<const Assignment> c) const {
    scratch_.clear();
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (const Assignment* const a = find(c, clients_[i].id))
        scratch_.push_back({static_cast<ClientId>(i + 1), a->partition, a->mode});
    return scratch_;
  }

  void apply(const scheduler::MeasurementBlock& block) {
    purpose_ = block.purpose;
    const std::vector<Assignment> next(block.configuration.begin(), block.configuration.end());
    if (purpose_ == scheduler::Purpose::kKeep || purpose_ == scheduler::Purpose::kOnly)
      kept_ = next;
    if (purpose_ == scheduler::Purpose::kKeep && decided_s_ < 0)
      decided_s_ = static_cast<double>(now_) / 1e9;
    if (next == applied_) return;
    applied_ = next;
    ++changes_;
    const auto settled = static_cast<std::uint64_t>(settle_ms * 1e6);
    lose(settled);
    now_ += settled;
    unsettled_until_ = now_ + static_cast<std::uint64_t>(unsettled_s * 1e9);
    if (report_settled) {
      publish();
      estimator.settled(clients_, clock());
    }
  }

  void lose(std::uint64_t ns) {
    loss_s_ += static_cast<double>(ns) / 1e9;
    overhead_s_ += static_cast<double>(ns) / 1e9;
  }

  void advance(std::uint64_t to) {
    constexpr std::uint64_t kTick = 20 * kMs;
    while (now_ < to) {
      const std::uint64_t tick = now_ / kTick;
      if (tick != tick_) draw(tick);
      const std::uint64_t until = std::min({to, (tick + 1) * kTick, now_ + kTick / 4});
      const double dt = static_cast<double>(until - now_);
      const double lost = 1 - std::exp(std::max(-20.0, true_value(applied_) - best()));
      loss_s_ += lost * dt / 1e9;
      if (purpose_ != scheduler::Purpose::kKeep) overhead_s_ += lost * dt / 1e9;
      for (std::size_t i = 0; i < jobs_.size(); ++i) work_of(i, dt);
      now_ = until;
    }
    publish();
  }

  void work_of(std::size_t i, double dt) {
    const Job& job = jobs_[i];
    const Assignment* const at = find(applied_, clients_[i].id);
    if (!clients_[i].active) return;
    state_[i].busy += dt * job.busy;
    if (at == nullptr) return;
    double rate = speeds_(i, by_job(applied_)) * factor_[i] * host_ * job.busy;
    if (now_ < unsettled_until_) rate *= unsettled(applied_);
    const double done = rate * dt;
    double counted = done;
    if (job.step_s > 0) {
      const double phase = std::fmod(state_[i].work / 1e9 / job.step_s, 1.0);
      counted *= phase < 0.5 ? 1 - job.uneven : 1 + job.uneven;
    }
    if (!job.recorded.empty()) {
      const auto slice = static_cast<std::size_t>(state_[i].work / kRecordedSliceNs);
      counted *= static_cast<double>(job.recorded[slice % job.recorded.size()]);
    }
    const double part = static_cast<double>(pool_.at(at->partition).sms) / 132.0;
    state_[i].work += done;
    state_[i].lied += counted * std::exp(job.lie * part);
    state_[i].launches += counted / job.work_per_launch;
  }

  void draw(std::uint64_t tick) {
    tick_ = tick;
    std::normal_distribution<double> normal;
    host_ *= std::exp(drift * std::sqrt(0.02) * normal(random_));
    host_ = std::clamp(host_, 0.8, 1.25);
    const bool stands = std::uniform_real_distribution<double>()(random_) < hiccup;
    factor_.resize(jobs_.size());
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      const double sd = jobs_[i].noise;
      factor_[i] = std::exp(sd * normal(random_) - sd * sd / 2) * (stands ? 0.2 : 1);
    }
  }

  void publish() {
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      scheduler::Progress& p = clients_[i].progress;
      p.work = static_cast<std::uint64_t>(state_[i].lied);
      p.busy_ns = static_cast<std::uint64_t>(state_[i].busy);
      p.launches = static_cast<std::uint64_t>(state_[i].launches);
    }
  }

  runtime::PoolLayout pool_;
  std::vector<Job> jobs_;
  Speeds speeds_;
  std::mt19937_64 random_;
  std::vector<scheduler::Client> clients_;
  std::vector<State> state_;
  std::vector<double> factor_;
  double host_ = 1;
  std::uint64_t now_ = 0, clock_offset_ = 1000, tick_ = ~0ULL, unsettled_until_ = 0;
  std::vector<Assignment> applied_, kept_;
  mutable std::vector<Assignment> scratch_;
  scheduler::Purpose purpose_ = scheduler::Purpose::kOnly;
  double decided_s_ = -1, loss_s_ = 0, overhead_s_ = 0;
  unsigned changes_ = 0;
  mutable double best_ = 0;
  mutable bool best_known_ = false;

 public:
  scheduler::Estimator estimator;

 private:
  scheduler::Configurations configurations_;
};

// Speeds of two jobs by the width of the first's part; the whole device shared otherwise. Between
// the widths that were measured, by straight lines in the logarithm.
struct PairTable {
  double shared_a = 0.5, shared_b = 0.5;
  std::map<std::uint32_t, std::pair<double, double>> parts;  // of a's SMs
  double operator()(std::size_t job, std::span<const Assignment> c,
                    const runtime::PoolLayout& pool) const {
    if (c.size() == 1) return 1;  // alone
    const Assignment* own = nullptr;
    for (const Assignment& a : c)
      if (a.client == 1) own = &a;
    if (own == nullptr || own->mode == Mode::kShared) return job == 0 ? shared_a : shared_b;
    const std::uint32_t width = pool.at(own->partition).sms;
    auto above = parts.lower_bound(width);
    if (above == parts.end()) --above;
    const auto get = [&](const auto& at) {
      return std::log(job == 0 ? at->second.first : at->second.second);
    };
    if (above->first == width || above == parts.begin()) return std::exp(get(above));
    const auto below = std::prev(above);
    const double t = static_cast<double>(width - below->first) /
                     static_cast<double>(above->first - below->first);
    return std::exp((1 - t) * get(below) + t * get(above));
  }
};

}  // namespace vitamin::test
