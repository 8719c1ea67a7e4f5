// SPDX-License-Identifier: Apache-2.0
//
// What slo and tpot-first can be asked for: what becomes of each bound, and among which
// configurations they choose.
#include <algorithm>
#include <cmath>

#include "scheduler/policies/slo.h"

namespace vitamin::scheduler {
namespace {

constexpr std::uint64_t kNoNumberNs = 1'000;  // a bound below it: latencies as alone

}  // namespace

void SloPolicy::promises(std::vector<Promise>& out) const {
  for (const Bounded& b : bounded_) {
    if (!b.present) continue;
    const Slo& slo = b.slo;
    const auto alone = [&](StepKind kind) {
      return std::max(alone_ns(b, kind, true), alone_ns(b, kind, false));
    };
    const auto add = [&](StepKind kind, std::uint64_t bound_ns, std::uint64_t alone_ns) {
      Promise& promise = out.emplace_back();
      promise.client = b.client;
      promise.kind = kind;
      promise.bound_ns = bound_ns < kNoNumberNs ? 0 : bound_ns;
      promise.alone_ns = alone_ns;
      promise.feasible = promise.bound_ns == 0 || alone_ns <= bound_ns;
      promise.finished = b.finished;
      promise.late = b.late;
      promise.usable = b.usable;
      promise.standing = b.standing;
      promise.costs = could_ > 0 ? 1 - got_ / could_ : 0;
    };
    std::uint64_t rest = alone(StepKind::kUnknown);  // what no other bound is for
    bool any = false;
    for (const auto& [kind, bound_ns] : {std::pair{StepKind::kPrefill, slo.ttft_ns},
                                         {StepKind::kDecode, slo.tpot_ns},
                                         {StepKind::kIteration, slo.step_ns}}) {
      if (bound_ns != 0)
        add(kind, bound_ns, alone(kind));
      else
        rest = std::max(rest, alone(kind));
      any = any || bound_ns != 0;
    }
    // A program that announces its steps has no other requests.
    if (slo.latency_ns != 0 && (!any || rest != 0)) add(StepKind::kUnknown, slo.latency_ns, rest);
  }
}

bool SloPolicy::explain(Findings& out) const {
  if (chosen_ == kNone || chosen_ >= table_.size()) return false;  // no bounded client has work
  constexpr double kRoundingNs = -1e4;
  out = {};
  out.objective = "others";
  const double present = table_[chosen_].harvest;
  for (std::size_t at = 0; at < table_.size(); ++at) {
    const Option& option = table_[at];
    CandidateReport& report = out.candidates.emplace_back();
    const std::span<const Assignment> has = assignments(option);
    report.assignments.assign(has.begin(), has.end());
    report.chosen = at == chosen_;
    report.keeps_bounds = outlook(option, worked_ns_).slack_ns >= kRoundingNs;
    if (present > 0) report.predicted = option.harvest / present - 1;
    const std::uint64_t hash = estimator_.hash_of(has);
    bool measured = true;
    double variance = 0, others = 0;
    for (const Assignment& one : has) {
      const Estimator::LogSpeed speed = estimator_.log_speed(one.client, has, hash);
      ClientReport client;
      client.client = one.client;
      client.speed = std::exp(speed.log_mean);
      client.error = client.speed * speed.error;
      client.measured = speed.measured;
      measured = measured && speed.measured;
      if (!is_bounded(one.client)) {
        others += client.speed;
        variance += client.error * client.error;
      }
      report.clients.push_back(client);
    }
    if (measured && others > 0 && !report.chosen) {
      report.lead = report.predicted;
      report.error = std::sqrt(variance) / others;
    }
  }
  for (CandidateReport& report : out.candidates)
    for (ClientReport& client : report.clients) {
      double best = client.speed;
      for (const CandidateReport& other : out.candidates)
        for (const ClientReport& there : other.clients)
          if (there.client == client.client && there.measured) best = std::max(best, there.speed);
      if (best > 0) client.costs = 1 - client.speed / best;
    }
  out.choice = out.candidates[chosen_].keeps_bounds ? Choice::kBounds : Choice::kLate;
  return true;
}

}  // namespace vitamin::scheduler
