// SPDX-License-Identifier: Apache-2.0
//
// What the estimator can be asked for, and what outlives it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "scheduler/estimator/estimator.h"
#include "scheduler/estimator/workload_mix.h"

namespace vitamin::scheduler {
namespace {

constexpr std::size_t kMemory =
    2048;  // candidate records of workload mixes that are not in use; 96 KiB
// What another process or an earlier visit found is believed less: three blocks change it.
constexpr double kRecalledSd = 0.03, kRecalledFactor = 4;
constexpr double kMeasured = 0.2;    // blocks: 20 ms of them, from where a model is no longer asked
constexpr double kModelError = 0.3;  // of a modelled speed, in the logarithm
// What pairs of programs cost each other is multiplied up to so many neighbors; more share equally:
// interference of many is not pairwise, and a look at all pairs of 64 clients takes longer than a
// plan may.
constexpr std::ptrdiff_t kPairwise = 8;

}  // namespace

void Estimator::remember(const WorkloadMix& workload) {
  std::erase_if(memory_, [&](const CandidateRecord& r) { return r.workload == workload.hash; });
  if (workload.regimes.empty() || workload.racing_count < 2 || workload.now().racing) return;
  const Regime& regime = workload.now();
  for (unsigned candidate = 0; candidate < workload.racing_count; ++candidate)
    memory_.push_back({workload.hash, workload.hashes[candidate], workload.terms,
                       regime.candidates[candidate].gap,
                       regime.candidates[candidate].variance_at(workload.time_ns),
                       regime.candidates[candidate].blocks, candidate == regime.chosen});
  if (memory_.size() > kMemory)
    memory_.erase(memory_.begin(),
                  memory_.begin() + static_cast<std::ptrdiff_t>(memory_.size() - kMemory));
}

void Estimator::recall(WorkloadMix& c) const {
  Regime& r = c.now();
  unsigned chosen = Race::kNone;
  for (const CandidateRecord& record : memory_) {
    if (record.workload != c.hash || record.terms != c.terms) continue;
    for (unsigned candidate = 0; candidate < c.racing_count; ++candidate) {
      if (c.hashes[candidate] != record.configuration) continue;
      const double variance =
          std::max(kRecalledSd * kRecalledSd, kRecalledFactor * record.variance);
      r.candidates[candidate] = {record.gap, std::min(variance, kUnknownSd * kUnknownSd), c.time_ns,
                                 0, false};
      if (record.chosen) chosen = candidate;
    }
  }
  if (chosen != Race::kNone) {
    r.chosen = chosen;
    r.candidates[chosen].gap = r.candidates[chosen].variance = 0;
    r.why = ChoiceReason::kRemembered;
    return;
  }
  r.race.begin(c.racing_count, c.sheltered, r.race.block_sd());
  r.racing = c.racing_count > 1;
  r.raced_ns = c.time_ns;
}

void Estimator::save(std::vector<CandidateRecord>& out) {
  for (const auto& workload : workloads_) remember(*workload);
  out.insert(out.end(), memory_.begin(), memory_.end());
}

void Estimator::load(std::span<const CandidateRecord> records) {
  for (const CandidateRecord& record : records)
    if (std::isfinite(record.gap) && record.variance >= 0 && std::abs(record.gap) < 100 &&
        memory_.size() < kMemory)
      memory_.push_back(record);
}

bool Estimator::alone(ClientId client, double* rate) const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].client != client) continue;
    const double log_rate = log_alone(i);
    if (std::isnan(log_rate)) return false;
    *rate = std::exp(log_rate);
    return true;
  }
  return false;
}

Estimates::Speed Estimator::speed(ClientId client, Assignments configuration) const {
  const LogSpeed found = log_speed(client, configuration);
  const double mean = std::exp(found.log_mean);
  return {static_cast<float>(mean), static_cast<float>(mean * found.error)};
}

Estimator::LogSpeed Estimator::log_speed(ClientId client, std::span<const Assignment> configuration,
                                         std::uint64_t hash) const {
  const auto own = std::find_if(configuration.begin(), configuration.end(),
                                [&](const Assignment& a) { return a.client == client; });
  if (own == configuration.end() || own->mode == Mode::kPaused || own->partition >= pool_.size())
    return {kStopped, 0, false};
  const std::size_t i = member_of(client);
  const ProgramHash name = i != kNoMember ? members_[i].program : program(client);
  const StepKind phase = i != kNoMember ? members_[i].phase : StepKind::kUnknown;
  if (i != kNoMember && workload_ != nullptr) {
    const double reference = log_alone(i);
    const Estimate* const found = std::isnan(reference) ? nullptr : store_.find(rate_key(i, hash));
    if (found != nullptr && found->n_eff >= kMeasured)
      return {found->log_mean - reference, found->error(), true};
  }
  const Partition& at = pool_[own->partition];
  LogSpeed answer{store_.log_width(name, phase, at.sms, whole_sms_), kModelError, false};
  const auto shares = [&](const Assignment& other) {
    return other.client != client && other.mode != Mode::kPaused &&
           other.partition < pool_.size() && pool_[other.partition].compute.overlaps(at.compute);
  };
  const auto others = std::count_if(configuration.begin(), configuration.end(), shares);
  double sharers = 1;
  if (others > kPairwise) {
    sharers += static_cast<double>(others);
  } else {
    for (const Assignment& other : configuration) {
      if (!shares(other)) continue;
      const std::size_t theirs = member_of(other.client);
      const ProgramHash beside =
          theirs != kNoMember ? members_[theirs].program : program(other.client);
      const Estimate* const known = store_.find({name, beside, 0, phase, Quantity::kBeside});
      if (known != nullptr)
        answer.log_mean += std::min(0.0, known->log_mean);
      else
        ++sharers;
    }
  }
  answer.log_mean -= std::log(sharers);
  return answer;
}

// --- why the choice is what it is -------------------------------------------------------------

void Estimator::explain(Findings& out) const {
  out = {};
  out.workloads = static_cast<unsigned>(workloads_.size());
  if (workload_ != nullptr && workload_->candidate_count > 0) report(*workload_, members_, out);
}

bool Estimator::explain_before(Findings& out) const {
  out = {};
  const WorkloadMix* last = nullptr;
  for (const auto& workload : workloads_)
    if (workload.get() != workload_ && workload->racing_count > 1 &&
        (last == nullptr || workload->left_ns > last->left_ns))
      last = workload.get();
  if (last == nullptr) return false;
  report(*last, last->clients, out);
  out.left_ns = last->left_ns;
  return true;
}

// Of one client in one configuration.
ClientReport Estimator::report(const WorkloadMix& c, std::span<const Member> members, std::size_t i,
                               unsigned candidate, unsigned chosen) const {
  ClientReport client;
  client.client = members[i].client;
  const auto rate_of = [&](unsigned of) {
    const Estimate* const found = store_.find(rate_key(c, members, i, c.hashes[of]));
    return found != nullptr && found->n_eff > 0 ? found : nullptr;
  };
  const Estimate* const own = rate_of(candidate);
  if (own == nullptr) return client;
  client.measured = true;
  if (const double reference = log_alone(members[i]); !std::isnan(reference)) {
    client.speed = std::exp(own->log_mean - reference);
    client.error = client.speed * own->error();
  }
  if (const Estimate* const there = rate_of(chosen); there != nullptr) {
    client.rate = std::exp(own->log_mean - there->log_mean);
    if (candidate != chosen) {  // std::hypot would need glibc 2.35
      const double here = own->error(), other = there->error();
      client.rate_error = client.rate * std::sqrt(here * here + other * other);
    }
  }
  double best = own->log_mean;
  for (unsigned other = 0; other < c.racing_count; ++other)
    if (const Estimate* const found = rate_of(other); found != nullptr)
      best = std::max(best, found->log_mean);
  client.costs = std::max(0.0, -std::expm1(own->log_mean - best));
  return client;
}

void Estimator::report(const WorkloadMix& c, std::span<const Member> members, Findings& out) const {
  static constexpr std::string_view kAims[] = {"proportional", "sum", "fair"};
  const Regime& r = c.now();
  out.workloads = static_cast<unsigned>(workloads_.size());
  const bool present = &c == workload_, racing = r.racing && present;
  const bool tries = racing && r.why != ChoiceReason::kUncounted && r.why != ChoiceReason::kShort;
  out.choice = tries ? ChoiceReason::kUnmeasured : r.why;  // what the race before found is over
  out.objective = kAims[static_cast<std::size_t>(objective_.aim)];
  out.regime = c.regime;
  out.regimes = static_cast<unsigned>(c.regimes.size());
  out.decided_s = r.decided_s;
  out.spent = c.time_ns > 0 ? c.spent_s / (static_cast<double>(c.time_ns) / 1e9) : 0;
  const unsigned chosen = racing ? candidate_ : r.chosen;
  for (unsigned candidate = 0; candidate < c.racing_count; ++candidate) {
    CandidateReport& report = out.candidates.emplace_back();
    report.chosen = candidate == chosen;
    report.dropped = racing ? r.race.dropped(candidate) : r.candidates[candidate].dropped;
    report.blocks = r.candidates[candidate].blocks;
    if (c.predicted[chosen] > kInfeasible / 2)
      report.predicted = std::expm1(c.predicted[candidate] - c.predicted[chosen]);
    const Lead running = racing && candidate != chosen ? r.race.lead(candidate, chosen) : Lead{};
    const double variance = r.candidates[candidate].variance_at(c.time_ns);
    report.remembered = !racing && report.blocks == 0 && variance < kUnknownSd * kUnknownSd;
    const bool known = racing ? running.rounds > 0 : report.blocks > 0 || report.remembered;
    if (known && !report.chosen) {
      report.lead = std::expm1(racing ? running.mean : r.candidates[candidate].gap);
      report.error = racing ? std::min(running.error, kUnknownSd) : std::sqrt(variance);
    }
    for (std::size_t i = 0; i < c.members; ++i) {
      const WorkloadMix::Assigned& has = c.assigned_to(candidate, i);
      if (has.mode != Mode::kPaused)
        report.assignments.push_back({members[i].client, has.partition, has.mode});
    }
    const auto by_client = [](const auto& a, const auto& b) { return a.client < b.client; };
    std::sort(report.assignments.begin(), report.assignments.end(), by_client);
    for (std::size_t i = 0; i < c.members; ++i) {
      if (c.assigned_to(candidate, i).mode == Mode::kPaused) continue;
      ClientReport client = this->report(c, members, i, candidate, chosen);
      if (!client.measured && present) {  // the model's
        const LogSpeed modelled = log_speed(client.client, report.assignments, c.hashes[candidate]);
        client.speed = std::exp(modelled.log_mean);
        client.error = client.speed * modelled.error;
      }
      report.clients.push_back(client);
    }
    std::sort(report.clients.begin(), report.clients.end(), by_client);
  }
}

}  // namespace vitamin::scheduler
