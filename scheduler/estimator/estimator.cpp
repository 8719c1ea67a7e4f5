// SPDX-License-Identifier: Apache-2.0
//
// Workload mixes, blocks, and what is measured in a block. What to run next: choice.cpp.
#include "scheduler/estimator/estimator.h"

#include <bit>
#include <limits>

#include "scheduler/estimator/workload_mix.h"

namespace vitamin::scheduler {
namespace {

// Time is taken to pass no faster between two calls: a clock that jumps is no experience.
constexpr std::uint64_t kLongestStepNs = 1'000'000'000;

constexpr std::size_t kWorkloads = 64;  // in memory; 32 KiB each at 100 clients

// Run-ahead of 2 ms, a kernel of a few, and the revocation itself.
constexpr double kSettleNs = 5e6, kLeastSettleNs = 2e5, kMostSettleNs = 5e7;

constexpr double kMisplaced = 0.05;  // of a client's work; more, and the block shows something else

// A client that finished nothing in a block that was extended for it counts with half a launch.
constexpr double kUnfinished = 0.5;

// A client's report of one candidate against its best is believed down to a quarter of what its
// SMs would be in equal measure: partial waves cost at most a factor of two, neighbors measured
// another two.
constexpr double kBelievable = 0.25;

std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }

}  // namespace

Estimator::Estimator(std::span<const Partition> pool, std::uint64_t seed)
    : pool_(pool),
      whole_sms_(pool.empty() ? 1 : pool.front().sms),
      random_(seed),
      settle_ns_(kSettleNs) {
  names_.reserve(128);
  workloads_.reserve(kWorkloads);
}

Estimator::~Estimator() = default;

ProgramHash Estimator::program(ClientId client) const {
  const auto at = std::lower_bound(names_.begin(), names_.end(), client,
                                   [](const Named& n, ClientId id) { return n.client < id; });
  // Not equal to a hash of a program, as likely as hashes are.
  if (at == names_.end() || at->client != client) return mix(0x636c69656e74ULL, client);
  return at->program;
}

void Estimator::identify(ClientId client, ProgramHash program) {
  const auto at = std::lower_bound(names_.begin(), names_.end(), client,
                                   [](const Named& n, ClientId id) { return n.client < id; });
  if (at != names_.end() && at->client == client)
    at->program = program;
  else
    names_.insert(at, {client, program});
}

void Estimator::forget(ClientId client) {
  std::erase_if(names_, [&](const Named& n) { return n.client == client; });
}

// Slots of active clients, in an order that depends on their programs and not on their ids.
void Estimator::find_members(std::span<const Client> clients) {
  next_members_.clear();
  for (const Client& client : clients)
    if (client.active)
      next_members_.push_back({client.id, program(client.id), client.phase,
                               std::max(1e-6, static_cast<double>(client.weight)),
                               client.reports_progress});
  // The same members as before are in the same order.
  const auto as_before = [&](const Member& member, const auto& known) {
    return member == members_[known.second];
  };
  if (std::equal(next_members_.begin(), next_members_.end(), by_client_.begin(), by_client_.end(),
                 as_before)) {
    next_members_ = members_;
    return;
  }
  std::sort(next_members_.begin(), next_members_.end(), [](const Member& a, const Member& b) {
    return a.program != b.program ? a.program < b.program : a.client < b.client;
  });
}

std::size_t Estimator::member_of(ClientId client) const {
  const auto at = std::lower_bound(by_client_.begin(), by_client_.end(), client,
                                   [](const auto& known, ClientId id) { return known.first < id; });
  return at != by_client_.end() && at->first == client ? at->second : kNoMember;
}

Estimator::WorkloadMix& Estimator::find_workload(std::uint64_t hash) {
  std::unique_ptr<WorkloadMix>* oldest = nullptr;
  for (std::unique_ptr<WorkloadMix>& workload : workloads_) {
    if (workload->hash == hash && workload->members == members_.size()) return *workload;
    if (oldest == nullptr || workload->used_ns < (*oldest)->used_ns) oldest = &workload;
  }
  if (workloads_.size() >= kWorkloads) {
    remember(**oldest);
    std::erase_if(workloads_, [&](const auto& workload) { return &workload == oldest; });
  }
  workloads_.push_back(std::make_unique<WorkloadMix>());
  WorkloadMix& workload = *workloads_.back();
  workload.hash = hash;
  workload.members = members_.size();
  return workload;
}

void Estimator::leave(std::uint64_t now_ns) {
  open_ = counting_ = false;
  if (workload_ == nullptr) return;
  const double stayed = static_cast<double>(now_ns - workload_->entered_ns);
  ++workload_->visits;
  workload_->dwell_ns += (stayed - workload_->dwell_ns) / std::min(4U, workload_->visits);
  workload_->kept_run = 0;
  workload_->used_ns = time_ns_;
  workload_->left_ns = now_ns;
  workload_ = nullptr;
}

bool Estimator::enter(std::span<const Client> clients, const Objective& objective,
                      std::uint64_t now_ns) {
  const std::uint64_t passed = now_ns > now_ns_ ? now_ns - now_ns_ : 0;
  now_ns_ = std::max(now_ns_, now_ns);
  const std::uint64_t step = std::min(passed, kLongestStepNs);
  // After a long silence or a jump nothing is known of the block between.
  if (passed > kLongestStepNs && passed > 2 * length_ns_ && open_ && purpose_ != Purpose::kOnly)
    open_ = counting_ = false;
  time_ns_ += step;
  if (workload_ != nullptr) workload_->time_ns += step;

  find_members(clients);
  const auto same = [](const Member& a, const Member& b) {
    return a.client == b.client && a.program == b.program && a.phase == b.phase;
  };
  const bool stays =
      workload_ != nullptr && std::equal(members_.begin(), members_.end(), next_members_.begin(),
                                         next_members_.end(), same);
  const auto read = [&] {
    now_.resize(members_.size());
    seen_.assign(members_.size(), false);
    auto at = clients.begin();
    for (const auto& [client, member] : by_client_) {
      while (at != clients.end() && at->id < client) ++at;
      if (at == clients.end() || at->id != client) continue;
      now_[member] = at->progress;
      seen_[member] = true;
    }
  };
  if (!stays) {
    read();
    if (open_ && counting_) close_block(now_ns_, true);
    leave(now_ns_);
  }
  members_.swap(next_members_);
  if (!stays) {
    by_client_.clear();
    for (std::size_t i = 0; i < members_.size(); ++i)
      by_client_.emplace_back(members_[i].client, i);
    std::sort(by_client_.begin(), by_client_.end());
  }
  read();
  std::uint64_t terms =
      mix(static_cast<std::uint64_t>(objective.aim), bits_of(objective.min_share));
  for (const Member& member : members_) terms = mix(terms, bits_of(member.weight));
  for (const Client& client : clients)
    if (client.active)
      terms =
          mix(terms, mix(std::uint64_t{client.limits.most_sms()} << 32 | client.limits.reserved_sms,
                         std::uint64_t{client.limits.group} << 2 |
                             std::uint64_t{client.distributed} << 1 | client.limits.may_share));
  objective_ = objective;
  if (members_.empty()) return false;
  if (!stays) {
    std::uint64_t hash = 0x636f6e74657874ULL;
    for (const Member& member : members_)
      hash = mix(hash, mix(member.program, static_cast<std::uint64_t>(member.phase)));
    workload_ = &find_workload(hash);
    workload_->clients = members_;
    workload_->entered_ns = now_ns_;
  }
  if (workload_->candidate_count != 0 && workload_->terms == terms) return false;
  workload_->terms = terms;
  return true;
}

// Of what each member has, as sets of units: equal in other processes and pools.
std::uint64_t Estimator::hash_of(std::span<const Assignment> configuration) const {
  std::uint64_t hash = 0x61726dULL;
  for (const Member& member : members_) {
    Assignment has{member.client, kWholeDevice, Mode::kPaused};
    const auto at =
        std::lower_bound(configuration.begin(), configuration.end(), member.client,
                         [](const Assignment& a, ClientId id) { return a.client < id; });
    if (at != configuration.end() && at->client == member.client && at->partition < pool_.size())
      has = *at;
    hash = mix(hash, mix(pool_[has.partition].compute.bits(),
                         std::uint64_t{pool_[has.partition].whole()} << 8 |
                             static_cast<std::uint64_t>(has.mode)));
  }
  return hash;
}

void Estimator::offer(std::span<const Candidate> candidates) {
  if (workload_ == nullptr) return;
  WorkloadMix& c = *workload_;
  open_ = counting_ = false;
  c.candidate_count = c.racing_count = 0;
  c.sheltered = Race::kNone;
  c.assigned.assign(kMostCandidates * c.members, {});
  c.tries.fill(0);
  for (const bool alone : {false, true})
    for (const Candidate& candidate : candidates) {
      if (candidate.alone != alone ||
          c.candidate_count == (alone ? kMostCandidates : Race::kCandidates))
        continue;
      for (std::size_t i = 0; i < c.members; ++i)
        c.assigned[c.candidate_count * c.members + i] = {};
      for (const Assignment& a : candidate.assignments)
        if (const std::size_t i = member_of(a.client); i != kNoMember && a.partition < pool_.size())
          c.assigned[c.candidate_count * c.members + i] = {a.partition, a.mode};
      const std::uint64_t hash = hash_of(candidate.assignments);
      const auto known = c.hashes.begin() + c.candidate_count;
      if (std::find(c.hashes.begin(), known, hash) != known) continue;
      if (candidate.shared && c.sheltered == Race::kNone) c.sheltered = c.candidate_count;
      c.hashes[c.candidate_count] = hash;
      c.predicted[c.candidate_count++] = candidate.predicted;
      if (!alone) c.racing_count = c.candidate_count;
    }
  c.regimes.clear();
  c.regimes.reserve(4);
  c.regimes.emplace_back();
  c.regime = 0;
  c.now().rates.assign(c.members, {});
  c.now().launch_work.assign(c.members, {});
  c.now().best.assign(c.members, std::numeric_limits<double>::quiet_NaN());
  c.now().began_ns = c.time_ns;
  c.credit_s = 0;
  c.kept_run = 0;
  recall(c);
}

void Estimator::materialize(unsigned candidate) {
  configuration_.clear();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const WorkloadMix::Assigned& has = workload_->assigned_to(candidate, i);
    if (has.mode != Mode::kPaused)
      configuration_.push_back({members_[i].client, has.partition, has.mode});
  }
  std::sort(configuration_.begin(), configuration_.end(),
            [](const Assignment& a, const Assignment& b) { return a.client < b.client; });
}

void Estimator::begin_block(unsigned candidate, Purpose purpose, std::uint64_t now_ns) {
  const bool moved = number_ == 0 || candidate != candidate_ || configuration_.empty() || !open_;
  candidate_ = candidate;
  purpose_ = purpose;
  materialize(candidate);
  ++number_;
  began_ns_ = now_ns;
  length_ns_ = block_ns(purpose);
  open_ = true;
  told_ = !moved;
  counting_ = false;
  counts_from_ns_ = 0;
  if (moved && purpose != Purpose::kOnly) return;
  baseline(now_ns);
}

void Estimator::baseline(std::uint64_t now_ns) {
  base_ = now_;
  counted_ns_ = now_ns;
  counting_ = true;
}

void Estimator::settled(std::span<const Client> clients, std::uint64_t now_ns) {
  if (!open_ || told_ || workload_ == nullptr) return;
  now_ns = std::max(now_ns, now_ns_);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const auto at = std::lower_bound(clients.begin(), clients.end(), members_[i].client,
                                     [](const Client& c, ClientId id) { return c.id < id; });
    if (at != clients.end() && at->id == members_[i].client) now_[i] = at->progress;
  }
  const double took = static_cast<double>(now_ns - began_ns_);
  settle_ns_ = std::clamp(settle_ns_ + 0.2 * (took - settle_ns_), kLeastSettleNs, kMostSettleNs);
  in_force(now_ns);
  told_ = true;
}

MeasurementBlock Estimator::next(std::uint64_t now_ns, bool exclusive_open) {
  now_ns = std::max(now_ns, now_ns_);
  if (workload_ == nullptr || workload_->candidate_count == 0) {
    configuration_.clear();
    return {configuration_, kNever, number_, Purpose::kOnly};
  }
  bool over = !open_;
  if (open_ && !counting_ && counts_from_ns_ != 0) {
    if (now_ns >= counts_from_ns_) baseline(now_ns);
  } else if (open_ && !counting_) {
    const double waited = static_cast<double>(now_ns - began_ns_);
    // Without a report the time of settling is found by trying: shorter until it is too short.
    if (waited >= settle_ns_) {
      settle_ns_ =
          std::clamp(settle_ns_ * (exclusive_open ? 0.95 : 1.3), kLeastSettleNs, kMostSettleNs);
      if (exclusive_open || waited >= kMostSettleNs) in_force(now_ns);
    }
  } else if (open_ && now_ns - counted_ns_ >= length_ns_) {
    over = close_block(now_ns, false);
  }
  if (over) choose(now_ns);
  const auto settling = static_cast<std::uint64_t>(std::ceil(settle_ns_));
  const std::uint64_t wake = counting_ ? counted_ns_ + length_ns_
                             : counts_from_ns_ != 0
                                 ? counts_from_ns_
                                 : std::max(began_ns_ + settling, now_ns + settling / 4);
  return {configuration_, wake, number_, purpose_};
}

EstimateKey Estimator::rate_key(const WorkloadMix& workload, std::span<const Member> members,
                                std::size_t member, std::uint64_t configuration) {
  return {members[member].program, mix(configuration, member), mix(workload.hash, workload.regime),
          members[member].phase, Quantity::kRate};
}

EstimateKey Estimator::rate_key(std::size_t member, std::uint64_t configuration) const {
  return rate_key(*workload_, members_, member, configuration);
}

EstimateKey Estimator::rate_key(std::size_t member, unsigned candidate) const {
  return rate_key(member, workload_->hashes[candidate]);
}

double Estimator::log_alone(const Member& member) const {
  const Estimate* const found =
      store_.find({member.program, kByItself, 0, member.phase, Quantity::kRate});
  return found != nullptr && found->n_eff >= 1 ? found->log_mean
                                               : std::numeric_limits<double>::quiet_NaN();
}

void Estimator::bound_false_report(BlockRate& block_rate, std::size_t member,
                                   unsigned candidate) const {
  const double best = workload_->now().best[member];
  if (std::isnan(best)) return;  // the first block of a race: there is nothing to compare with
  const WorkloadMix::Assigned& has = workload_->assigned_to(candidate, member);
  double sharers = 1;
  if (has.mode == Mode::kShared)
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const WorkloadMix::Assigned& other = workload_->assigned_to(candidate, i);
      sharers += i != member && other.mode == Mode::kShared && other.partition == has.partition;
    }
  const double equal = static_cast<double>(pool_[has.partition].sms) / whole_sms_ / sharers;
  block_rate.log_rate = std::max(block_rate.log_rate, best + std::log(kBelievable * equal));
}

// Reads what the clients did in the block. False: nothing can be said of it, or not yet.
bool Estimator::take(std::uint64_t now_ns) {
  block_rates_.assign(members_.size(), {});
  const double elapsed = static_cast<double>(now_ns - counted_ns_);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    BlockRate& block_rate = block_rates_[i];
    if (workload_->assigned_to(candidate_, i).mode == Mode::kPaused) {
      block_rate.paused = true;
      continue;
    }
    const Progress &from = base_[i], &to = now_[i];
    if (!seen_[i] || !members_[i].reports || to.work < from.work || to.busy_ns < from.busy_ns ||
        to.launches < from.launches || to.misplaced < from.misplaced)
      return false;
    double work = static_cast<double>(to.work - from.work);
    const double launches = static_cast<double>(to.launches - from.launches);
    const double said = static_cast<double>(to.busy_ns - from.busy_ns);
    if (work <= 0) {
      if (said <= 0 || to.launches == 0) return false;  // idle, or has never finished anything
      work = kUnfinished * static_cast<double>(to.work) / static_cast<double>(to.launches);
    } else if (static_cast<double>(to.misplaced - from.misplaced) > kMisplaced * work) {
      return false;
    }
    const double busy = said <= 0 ? elapsed : std::min(said, elapsed);
    block_rate.log_rate = std::log(std::max(work, 1e-9) / std::max(busy, 1.0));
    block_rate.log_launch_work = launches > 0 ? std::log(std::max(work, 1e-9) / launches)
                                              : std::numeric_limits<double>::quiet_NaN();
    bound_false_report(block_rate, i, candidate_);
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    double& best = workload_->now().best[i];
    if (!block_rates_[i].paused) best = std::fmax(best, block_rates_[i].log_rate);
  }
  return true;
}

double Estimator::value() const {
  speeds_.clear();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    double log_speed = block_rates_[i].log_rate;
    if (needs_alone(objective_)) {
      const double reference = log_alone(i);
      log_speed = std::isnan(reference) ? 0 : log_speed - reference;
    }
    speeds_.push_back({members_[i].weight, block_rates_[i].paused ? kStopped : log_speed});
  }
  return value_of(objective_, speeds_);
}

void Estimator::learn(unsigned candidate, double weight) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (block_rates_[i].paused) continue;
    const WorkloadMix::Assigned& has = workload_->assigned_to(candidate, i);
    const ProgramHash program = members_[i].program;
    const StepKind phase = members_[i].phase;
    const double rate = block_rates_[i].log_rate;
    if (candidate < workload_->racing_count)
      store_.add(rate_key(i, candidate), rate, weight, workload_->time_ns);
    if (members_.size() == 1 || candidate >= workload_->racing_count) {
      if (has.partition == kWholeDevice)
        store_.add({program, kByItself, 0, phase, Quantity::kRate}, rate, weight, time_ns_);
      continue;
    }
    const double reference = log_alone(i);
    if (std::isnan(reference)) continue;
    if (has.mode == Mode::kExclusive && has.partition != kWholeDevice)
      store_.add({program, pool_[has.partition].sms, 0, phase, Quantity::kWidth}, rate - reference,
                 weight, time_ns_);
    if (members_.size() == 2 && has.mode == Mode::kShared && has.partition == kWholeDevice)
      store_.add({program, members_[1 - i].program, 0, phase, Quantity::kBeside}, rate - reference,
                 weight, time_ns_);
  }
}

}  // namespace vitamin::scheduler
