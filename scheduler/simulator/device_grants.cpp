// SPDX-License-Identifier: Apache-2.0
//
// SimulatedDevice: what a client says to the scheduler, and what follows from its grants.
#include <algorithm>
#include <chrono>
#include <utility>

#include "scheduler/simulator/device.h"

namespace vitamin::sim {

using scheduler::Decision;
using scheduler::kNoGrant;
using scheduler::StepKind;

namespace {

// As daemon/client/lease_client.cpp: a grant that the client does not use for so long it gives
// back; and one that it used, where it reports its progress.
constexpr double kUnclaimedNs = 200e3, kUnusedNs = 1e6;

// Of so many decisions the time of one is measured.
constexpr std::uint32_t kTimedOf = 17;
using Clock = std::chrono::steady_clock;

std::uint64_t to_ns(double ns) { return static_cast<std::uint64_t>(ns); }

}  // namespace

SimulatedDevice::SimulatedClient& SimulatedDevice::add_client(Role role,
                                                              scheduler::ProgramHash program,
                                                              const scheduler::ClientTerms& terms) {
  SimulatedClient& client = clients_.emplace_back();
  client.client = static_cast<scheduler::ClientId>(clients_.size());
  client.role = role;
  estimator_.identify(client.client, program);
  scheduler_.attach(client.client, terms, 0);
  return client;
}

// --- what clients say ------------------------------------------------------------------------

// A client without a grant asks for one, and then says nothing more, but for its steps.
void SimulatedDevice::say(SimulatedClient& client, const Said& said, bool each_step) {
  const bool again = std::exchange(client.asks_again, false);
  if (client.grant != kNoGrant || (std::exchange(client.wanting, true) && !again)) {
    if (each_step && options_.says_steps) begin_step(client, said);
    return;
  }
  if (said.due_ns != 0 || said.kind != StepKind::kUnknown || said.iteration_end)
    begin_step(client, said);
  scheduler::StreamDemand demand;
  demand.profile_key = said.kernel;
  demand.predicted_ns = to_ns(said.launch_ns);
  told_ = true;
  scheduler_.wants(client.client, demand, now());
}

// The step before it has ended.
void SimulatedDevice::begin_step(SimulatedClient& client, const Said& said) {
  scheduler::Step step;
  step.id = client.expected != 0 ? std::exchange(client.expected, 0) : ++client.steps;
  step.client = client.client;
  step.stream = 0;
  step.kind = said.kind;
  step.ready_ns = now();
  step.due_ns = to_ns(said.due_ns);
  step.work_ns = to_ns(said.work_ns);
  end_step(client);
  client.step = step.id;
  told_ = true;
  scheduler_.step_begin(step, now());
}

void SimulatedDevice::expect_step(SimulatedClient& client, const Said& said, double ready_ns) {
  if (client.expected == 0) client.expected = ++client.steps;
  scheduler::Step step;
  step.id = client.expected;
  step.client = client.client;
  step.stream = 0;
  step.kind = said.kind;
  step.ready_ns = to_ns(ready_ns);
  step.due_ns = to_ns(said.due_ns);
  step.work_ns = to_ns(said.work_ns);
  told_ = true;
  scheduler_.step_expected(step, now());
}

void SimulatedDevice::end_step(SimulatedClient& client) {
  if (client.step != 0) scheduler_.step_end(client.client, std::exchange(client.step, 0), now());
}

void SimulatedDevice::say_idle(SimulatedClient& client) {
  told_ = true;
  scheduler_.idle(client.client, 0, now());
  end_step(client);
}

// Nothing of the client runs. It keeps the grant that it has, for a while at least; without one it
// has nothing to wait for.
void SimulatedDevice::rest(SimulatedClient& client) {
  if (client.played != kNone ? has_work(client) : client.running) return;
  if (client.grant == kNoGrant) {
    if (std::exchange(client.wanting, false)) say_idle(client);
  } else if (reporting_ && !has_work(client)) {
    falls_quiet(client, kUnusedNs);
  }
}

bool SimulatedDevice::has_work(const SimulatedClient& client) const {
  if (client.running) return true;
  return client.played != kNone ? played_[client.played].player.asked(now_ns_) > 0
                                : client.program != nullptr;
}

void SimulatedDevice::falls_quiet(SimulatedClient& client, double for_ns) {
  client.quiet_until_ns = now_ns_ + for_ns;
  if (!std::exchange(client.quiet, true))
    quiet_.push_back(static_cast<std::size_t>(&client - clients_.data()));
}

void SimulatedDevice::give_up_quiet() {
  std::erase_if(quiet_, [&](std::size_t index) {
    SimulatedClient& client = clients_[index];
    const bool quiet = client.grant != kNoGrant && !has_work(client);
    if (quiet && client.quiet_until_ns > now_ns_) return false;
    client.quiet = false;
    if (quiet) end_grant(client), rest(client);
    return true;
  });
}

// A recorded job whose host has come to something asks for a grant.
void SimulatedDevice::ask(Played& played) {
  SimulatedClient& client = clients_[played.client];
  if (client.grant != kNoGrant || (client.wanting && !client.asks_again) || !has_work(client))
    return;
  Said said = said_of(played);
  if (said.kind != StepKind::kUnknown && options_.says_steps) {  // it has said so
    said.kind = StepKind::kUnknown;
    said.due_ns = 0;
    said.iteration_end = false;
  }
  say(client, said, false);
}

SimulatedDevice::Said SimulatedDevice::said_of(const Played& played) const {
  const RecordedJob::Part& part = *played.part;
  const auto number = static_cast<std::size_t>(&part - played.player.job().parts.data());
  const double usual = played.usual_ns[number];
  Said said;
  said.kernel = part.key;
  said.kind = part.kind;
  said.work_ns = usual;
  said.launch_ns = usual / static_cast<double>(part.operations.size());
  said.iteration_end = played.iteration_end;
  if (part.kind == StepKind::kDecode) said.due_ns = played.part_ns + options_.slack * usual;
  return said;
}

// Cumulative, the program under way included.
void SimulatedDevice::report(const SimulatedClient& client) {
  double work_ns = client.work_ns, misplaced_ns = client.misplaced_ns;
  std::uint64_t launches = client.launched;
  if (client.running && client.played == kNone) {
    const std::uint32_t done = ended(client);
    work_ns += work(client, client.next, done);
    launches += done - client.next;
    if (client.held != client.grant && client.on != client.open)
      misplaced_ns +=
          work(client, std::max(client.next, client.drains), std::max(done, client.drains));
  }
  if (launches == 0 && client.busy_ns == 0) return;
  scheduler_.progress(client.client,
                      {to_ns(work_ns), to_ns(client.busy_ns), to_ns(misplaced_ns), launches});
}

// --- what the scheduler decides ----------------------------------------------------------------

void SimulatedDevice::obey() {
  for (Played& played : played_) ask(played);
  for (int round = 0; round < 64 && (scheduler_.may_plan(now()) || told_); ++round) {
    told_ = false;
    // Reading the clock takes as long as a tenth of a short decision.
    const bool early = decided_ < kAllTimed, timed = early || decided_ % kTimedOf == 0;
    ++decided_;
    const auto start = timed ? Clock::now() : Clock::time_point();
    if (reporting_ && scheduler_.may_plan(now()))
      for (const SimulatedClient& client : clients_) report(client);
    const auto given = scheduler_.decide(now());
    if (timed) {
      const double took_s = std::chrono::duration<double>(Clock::now() - start).count();
      (early ? early_s_ : timed_s_) += took_s;
      timed_ += early ? 0 : 1;
    }
    if (result_.fault_s < 0 && scheduler_.counters().faults > 0) result_.fault_s = now_ns_ * 1e-9;
    if (given.empty()) break;
    ++result_.decisions;
    decisions_.assign(given.begin(), given.end());
    for (const Decision& decision : decisions_) follow(decision);
    // A revocation may have come with another grant.
    for (const Decision& decision : decisions_)
      if (SimulatedClient& client = clients_[decision.client - 1]; !has_work(client)) rest(client);
  }
  for (Played& played : played_) play(played);
  if (options_.turn_ns > 0) take_turns();
  if (rates_changed_ || options_.turn_ns > 0) set_rates();
}

void SimulatedDevice::follow(const Decision& decision) {
  SimulatedClient& client = clients_[decision.client - 1];
  if (decision.kind == Decision::Kind::kAmend) {
    if (decision.grant == client.grant) take_terms(client, decision);
    return;
  }
  // What the client submits from now on is not under the grant that it had.
  const bool revoked = decision.kind == Decision::Kind::kRevoke;
  const scheduler::GrantId before = revoked ? decision.grant : client.grant;
  if (revoked && client.grant == before)
    client.grant = kNoGrant, client.open = runtime::kNoPartition;
  if (!revoked) {
    client.grant = decision.grant;
    client.open = decision.partition;
    client.exclusive = decision.mode == scheduler::Mode::kExclusive;
    if (client.last != runtime::kNoPartition && client.last != client.open) ++result_.moves;
    client.last = client.open;
  }
  if (before != kNoGrant) {
    if (client.running && client.held == before)
      drain(client);
    else
      give_back(client, before);
  }
  if (revoked) return;
  take_terms(client, decision);
  if (!has_work(client)) {
    if (!client.quiet) falls_quiet(client, kUnclaimedNs);
  } else if (!client.running && client.played == kNone) {  // a recorded job begins in play()
    start(client);
  }
}

void SimulatedDevice::take_terms(SimulatedClient& client, const Decision& decision) {
  client.launches = decision.launches;
  client.ahead_ns = decision.run_ahead_ns == scheduler::kNever
                        ? kForever
                        : static_cast<double>(decision.run_ahead_ns);
  if (client.played != kNone || !client.running || client.held != client.grant) return;
  // Of the program under way: so many launches from now on.
  std::uint32_t stop = client.program->kernels();
  if (client.launches != 0) {
    client.launches += begun(client, client.position) - client.next;
    stop = std::min(stop, client.next + client.launches);
  }
  stop_at(client, stop);
  rates_changed_ = true;
}

void SimulatedDevice::give_back(SimulatedClient& client, scheduler::GrantId grant) {
  told_ = true;
  scheduler_.returned(client.client, 0, grant, now());
}

// The open grant, of which nothing runs: its launches are used up, or it is of no use.
void SimulatedDevice::end_grant(SimulatedClient& client) {
  give_back(client, std::exchange(client.grant, kNoGrant));
  client.open = runtime::kNoPartition;
  client.asks_again = true;
}

// Stops behind what is submitted already.
void SimulatedDevice::drain(SimulatedClient& client) {
  if (client.played == kNone) {
    client.drains = ended(client);
    stop_at(client, submitted(client));
    rates_changed_ = true;
    return;
  }
  const PlayedJob& player = played_[client.played].player;
  const std::uint32_t width = sms(client.on);
  double left = std::min(options_.window_ns, client.ahead_ns) - (client.length - client.position);
  client.leaving = true;
  client.leave_after = 0;
  for (std::size_t i = 1, asked = player.asked(now_ns_); i < asked && left > 0; ++i) {
    const RecordedJob::Operation& operation = player.ahead(i);
    left -= player.job().gap_ns +
            operation.ns * static_cast<double>(player.job().kernels[operation.of].stretch[width]);
    ++client.leave_after;
  }
}

void SimulatedDevice::stop_at(SimulatedClient& client, std::uint32_t kernel) {
  client.stop = kernel;
  client.length = (*client.ends)[kernel];
}

// Kernels of the program under way that have begun by that position in it.
std::uint32_t SimulatedDevice::begun(const SimulatedClient& client, double position) {
  const std::vector<double>& ends = *client.ends;
  const auto end = std::lower_bound(ends.begin() + client.next + 1, ends.end(), position);
  return static_cast<std::uint32_t>(std::min(end, ends.end() - 1) - ends.begin());
}

// Those that have ended.
std::uint32_t SimulatedDevice::ended(const SimulatedClient& client) {
  const std::vector<double>& ends = *client.ends;
  const auto next = std::upper_bound(ends.begin() + client.next + 1, ends.end(), client.position);
  return static_cast<std::uint32_t>(next - ends.begin()) - 1;
}

// Those that its host has submitted by now, those before it was given what it runs on included.
// What was submitted runs on, whatever happens.
std::uint32_t SimulatedDevice::submitted(const SimulatedClient& client) const {
  const std::uint32_t current = begun(client, client.position);
  std::uint32_t count =
      begun(client, client.position + std::min(options_.window_ns, client.ahead_ns));
  // A host that is slower than that.
  if (const double host_ns = client.program->host_ns(); host_ns > 0)
    count =
        std::min(count, client.next + 1 +
                            static_cast<std::uint32_t>((now_ns_ - client.started_ns) / host_ns));
  return std::clamp(count, current, std::max(current, client.stop));
}

// Of kernels [from, to) of its program, as its counter weighs them: their times on the whole
// device.
double SimulatedDevice::work(const SimulatedClient& client, std::uint32_t from,
                             std::uint32_t to) const {
  const std::vector<double>& ends = client.program->ends(sms(runtime::kWholeDevice));
  return ends[to] - ends[from];
}

}  // namespace vitamin::sim
