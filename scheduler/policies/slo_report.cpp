// SPDX-License-Identifier: Apache-2.0
//
// What slo and tpot-first can be asked for: what becomes of each bound, and among which
// arrangements they choose.
#include <algorithm>
#include <array>
#include <utility>

#include "scheduler/policies/slo.h"

namespace vitamin::scheduler {

void SloPolicy::slo_statuses(std::vector<SloStatus>& out) const {
  const EstimateStore& store = estimator_.store();
  for (const ServiceState& state : services_) {
    const Service& service = state.service;
    const Slo& slo = service.slo();
    const auto add = [&](StepKind kind, std::uint64_t bound_ns, std::uint64_t alone_ns) {
      SloStatus& status = out.emplace_back();
      status.client = service.client();
      status.kind = kind;
      status.bound_ns = is_as_alone(bound_ns) ? 0 : bound_ns;
      status.alone_ns = alone_ns;
      status.feasible = status.bound_ns == 0 || alone_ns <= bound_ns;
      status.finished = service.finished();
      status.late = service.late();
      status.usable = service.usable();
      if (state.kept_arrangement != 0)
        status.kept_partition = arrangements_[state.kept_arrangement].left;
      status.costs = could_ > 0 ? std::clamp(1 - got_ / could_, 0.0, 1.0) : 0;
    };
    bool any = false;
    for (const auto& [kind, bound_ns] : {std::pair{StepKind::kPrefill, slo.ttft_ns},
                                         {StepKind::kDecode, slo.tpot_ns},
                                         {StepKind::kIteration, slo.step_ns}}) {
      if (bound_ns == 0) continue;
      add(kind, bound_ns, service.alone_ns(store, kind, false));
      any = true;
    }
    const std::uint64_t rest = std::max(service.alone_ns(store, StepKind::kUnknown, true),
                                        service.alone_ns(store, StepKind::kUnknown, false));
    // A program that announces its steps has no other requests.
    if (slo.latency_ns != 0 && (!any || rest != 0)) add(StepKind::kUnknown, slo.latency_ns, rest);
  }
}

bool SloPolicy::keeps_bounds(std::size_t arrangement, const Service::Slack& slack) const {
  if (!situation_.two()) return arrangements_.bears(arrangement, slack, situation_.left);
  return arrangements_.known(arrangement, situation_, sampled_ns_) &&
         arrangements_.headroom(arrangement, situation_, needs_) >= 1;
}

// One arrangement, for the clients of the last allocation.
CandidateReport SloPolicy::report(std::size_t arrangement, const Service::Slack& slack) const {
  const Arrangement& at = arrangements_[arrangement];
  const Arrangements::Measured known = arrangements_.measured(arrangement, situation_, sampled_ns_);
  CandidateReport report;
  report.chosen = arrangement == chosen_;
  report.keeps_bounds = keeps_bounds(arrangement, slack);
  const auto add = [&](ClientId client, PartitionId partition, bool only, double speed) {
    if (partition == kNoPartition) return;  // paused
    const bool part = partition != kWholeDevice;
    report.assignments.push_back(
        {client, partition, only && part ? Mode::kExclusive : Mode::kShared});
    ClientReport& one = report.clients.emplace_back();
    one.client = client;
    one.measured = known.known;
    if (known.known) one.speed = speed;
  };
  const bool paused = situation_.two() && !admits_;
  std::array<std::size_t, 2> clients{0, paused ? 0 : before_.size()};  // left, right
  for (const ServiceState& state : services_) ++clients[state.right];
  for (const ServiceState& state : services_)
    add(state.service.client(), at.of(state.right), clients[state.right] == 1,
        state.right ? known.right : known.left);
  if (!paused)
    for (const Counter& other : before_) add(other.client, at.right, clients[1] == 1, known.others);
  const auto by_client = [](const auto& a, const auto& b) { return a.client < b.client; };
  std::sort(report.assignments.begin(), report.assignments.end(), by_client);
  std::sort(report.clients.begin(), report.clients.end(), by_client);
  return report;
}

bool SloPolicy::explain(Findings& out) const {
  if (chosen_ == kNone) return false;  // no service works
  out = {};
  out.objective = "others";
  const Service::Slack slack = worst(sampled_ns_);
  const double present = arrangements_.measured(chosen_, situation_, sampled_ns_).others;
  for (std::size_t i = 0; i < arrangements_.size(); ++i) {
    if (!arrangements_[i].selectable && i != chosen_) continue;
    CandidateReport& one = out.candidates.emplace_back(report(i, slack));
    const Arrangements::Measured known = arrangements_.measured(i, situation_, sampled_ns_);
    if (present > 0 && known.known) one.lead = one.predicted = known.others / present - 1;
    if (i == arrangements_.right_paused() && !one.chosen) one.lead = one.predicted = -1;
  }
  for (CandidateReport& one : out.candidates)
    for (ClientReport& client : one.clients) {
      double best = client.speed;
      for (const CandidateReport& other : out.candidates)
        for (const ClientReport& there : other.clients)
          if (there.client == client.client && there.measured) best = std::max(best, there.speed);
      if (best > 0 && client.measured) client.costs = 1 - client.speed / best;
    }
  out.choice = reason(slack);
  return true;
}

ChoiceReason SloPolicy::reason(const Service::Slack& slack) const {
  const bool paused = chosen_ >= arrangements_.right_paused();
  // With services on both sides one is paused only while the other's work alone is learned.
  const bool tries = situation_.two() ? paused : slack.learns || (trying_ && !paused);
  if (tries || !arrangements_.known(chosen_, situation_, sampled_ns_)) return ChoiceReason::kTried;
  if (!situation_.two() && slack.ns < 0) return ChoiceReason::kNoSlack;
  return keeps_bounds(chosen_, slack) ? ChoiceReason::kBounds : ChoiceReason::kLate;
}

}  // namespace vitamin::scheduler
