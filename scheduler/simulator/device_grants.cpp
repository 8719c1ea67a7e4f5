// SPDX-License-Identifier: Apache-2.0
//
// Device: what a client says to the scheduler, and what follows from its grants.
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

std::uint64_t to_ns(double ns) { return static_cast<std::uint64_t>(ns); }

}  // namespace

Device::Lane& Device::add_lane(Role role, scheduler::Program program,
                               const scheduler::ClientTerms& terms) {
  Lane& lane = lanes_.emplace_back();
  lane.client = static_cast<scheduler::ClientId>(lanes_.size());
  lane.role = role;
  estimator_.identify(lane.client, program);
  scheduler_.attach(lane.client, terms, 0);
  return lane;
}

// --- what clients say ------------------------------------------------------------------------

// A client without a grant asks for one, and then says nothing more, but for its steps.
void Device::say(Lane& lane, const Said& said, bool each_step) {
  const bool again = std::exchange(lane.asks_again, false);
  if (lane.grant != kNoGrant || (std::exchange(lane.wanting, true) && !again)) {
    if (each_step && options_.says_steps) begin_step(lane, said);
    return;
  }
  if (said.due_ns != 0 || said.kind != StepKind::kUnknown || said.iteration_end)
    begin_step(lane, said);
  scheduler::StreamDemand demand;
  demand.kernel = said.kernel;
  demand.predicted_ns = to_ns(said.launch_ns);
  scheduler_.wants(lane.client, demand, now());
}

// The step before it has ended.
void Device::begin_step(Lane& lane, const Said& said) {
  scheduler::Step step;
  step.id = lane.expected != 0 ? std::exchange(lane.expected, 0) : ++lane.steps;
  step.client = lane.client;
  step.stream = 0;
  step.kind = said.kind;
  step.ready_ns = now();
  step.due_ns = to_ns(said.due_ns);
  step.work_ns = to_ns(said.work_ns);
  end_step(lane);
  lane.step = step.id;
  scheduler_.step_begin(step, now());
}

void Device::expect_step(Lane& lane, const Said& said, double ready_ns) {
  if (lane.expected == 0) lane.expected = ++lane.steps;
  scheduler::Step step;
  step.id = lane.expected;
  step.client = lane.client;
  step.stream = 0;
  step.kind = said.kind;
  step.ready_ns = to_ns(ready_ns);
  step.due_ns = to_ns(said.due_ns);
  step.work_ns = to_ns(said.work_ns);
  scheduler_.step_expected(step, now());
}

void Device::end_step(Lane& lane) {
  if (lane.step != 0) scheduler_.step_end(lane.client, std::exchange(lane.step, 0), now());
}

void Device::say_idle(Lane& lane) {
  scheduler_.idle(lane.client, 0, now());
  end_step(lane);
}

// Nothing of the client runs. It keeps the grant that it has, for a while at least; without one it
// has nothing to wait for.
void Device::rest(Lane& lane) {
  if (lane.played != kNone ? has_work(lane) : lane.running) return;
  if (lane.grant == kNoGrant) {
    if (std::exchange(lane.wanting, false)) say_idle(lane);
  } else if (reporting_ && !has_work(lane)) {
    falls_quiet(lane, kUnusedNs);
  }
}

bool Device::has_work(const Lane& lane) const {
  if (lane.running) return true;
  return lane.played != kNone ? played_[lane.played].player.asked(now_ns_) > 0
                              : lane.program != nullptr;
}

void Device::falls_quiet(Lane& lane, double for_ns) {
  lane.quiet_until_ns = now_ns_ + for_ns;
  if (!std::exchange(lane.quiet, true))
    quiet_.push_back(static_cast<std::size_t>(&lane - lanes_.data()));
}

void Device::give_up_quiet() {
  std::erase_if(quiet_, [&](std::size_t index) {
    Lane& lane = lanes_[index];
    const bool quiet = lane.grant != kNoGrant && !has_work(lane);
    if (quiet && lane.quiet_until_ns > now_ns_) return false;
    lane.quiet = false;
    if (quiet) end_grant(lane), rest(lane);
    return true;
  });
}

// A recorded job whose host has come to something asks for a grant.
void Device::ask(Played& played) {
  Lane& lane = lanes_[played.lane];
  if (lane.grant != kNoGrant || (lane.wanting && !lane.asks_again) || !has_work(lane)) return;
  Said said = said_of(played);
  if (said.kind != StepKind::kUnknown && options_.says_steps) {  // it has said so
    said.kind = StepKind::kUnknown;
    said.due_ns = 0;
    said.iteration_end = false;
  }
  say(lane, said, false);
}

Device::Said Device::said_of(const Played& played) const {
  const Job::Part& part = *played.part;
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
void Device::report(const Lane& lane) {
  double work_ns = lane.work_ns, misplaced_ns = lane.misplaced_ns;
  std::uint64_t launches = lane.launched;
  if (lane.running && lane.played == kNone) {
    const std::uint32_t done = ended(lane);
    work_ns += work(lane, lane.next, done);
    launches += done - lane.next;
    if (lane.held != lane.grant && lane.on != lane.open)
      misplaced_ns += work(lane, std::max(lane.next, lane.drains), std::max(done, lane.drains));
  }
  if (launches == 0 && lane.busy_ns == 0) return;
  scheduler_.progress(lane.client,
                      {to_ns(work_ns), to_ns(lane.busy_ns), to_ns(misplaced_ns), launches});
}

// --- what the scheduler decides ----------------------------------------------------------------

void Device::obey() {
  for (Played& played : played_) ask(played);
  for (int round = 0; round < 64; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (reporting_ && scheduler_.may_plan(now()))
      for (const Lane& lane : lanes_) report(lane);
    const auto given = scheduler_.decide(now());
    result_.deciding_s +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (given.empty()) break;
    ++result_.decisions;
    const std::vector<Decision> decisions(given.begin(), given.end());
    for (const Decision& decision : decisions) follow(decision);
    // A revocation may have come with another grant.
    for (const Decision& decision : decisions)
      if (Lane& lane = lanes_[decision.client - 1]; !has_work(lane)) rest(lane);
  }
  for (Played& played : played_) play(played);
  if (options_.turn_ns > 0) take_turns();
  if (rates_changed_ || options_.turn_ns > 0) set_rates();
}

void Device::follow(const Decision& decision) {
  Lane& lane = lanes_[decision.client - 1];
  if (decision.kind == Decision::Kind::kAmend) {
    if (decision.grant == lane.grant) take_terms(lane, decision);
    return;
  }
  // What the client submits from now on is not under the grant that it had.
  const bool revoked = decision.kind == Decision::Kind::kRevoke;
  const scheduler::GrantId before = revoked ? decision.grant : lane.grant;
  if (revoked && lane.grant == before) lane.grant = kNoGrant, lane.open = runtime::kNoEntry;
  if (!revoked) {
    lane.grant = decision.grant;
    lane.open = decision.partition;
    lane.exclusive = decision.mode == scheduler::Mode::kExclusive;
    if (lane.last != runtime::kNoEntry && lane.last != lane.open) ++result_.moves;
    lane.last = lane.open;
  }
  if (before != kNoGrant) {
    if (lane.running && lane.held == before)
      drain(lane);
    else
      give_back(lane, before);
  }
  if (revoked) return;
  take_terms(lane, decision);
  if (!has_work(lane)) {
    if (!lane.quiet) falls_quiet(lane, kUnclaimedNs);
  } else if (!lane.running && lane.played == kNone) {  // a recorded job begins in play()
    start(lane);
  }
}

void Device::take_terms(Lane& lane, const Decision& decision) {
  lane.launches = decision.launches;
  lane.ahead_ns = decision.run_ahead_ns == scheduler::kNever
                      ? kForever
                      : static_cast<double>(decision.run_ahead_ns);
  if (lane.played != kNone || !lane.running || lane.held != lane.grant) return;
  // Of the program under way: so many launches from now on.
  lane.stop = lane.program->kernels();
  if (lane.launches != 0) {
    lane.launches += begun(lane, lane.position) - lane.next;
    lane.stop = std::min(lane.stop, lane.next + lane.launches);
  }
  rates_changed_ = true;
}

void Device::give_back(Lane& lane, scheduler::GrantId grant) {
  scheduler_.returned(lane.client, 0, grant, now());
}

// The open grant, of which nothing runs: its launches are used up, or it is of no use.
void Device::end_grant(Lane& lane) {
  give_back(lane, std::exchange(lane.grant, kNoGrant));
  lane.open = runtime::kNoEntry;
  lane.asks_again = true;
}

// Stops behind what is submitted already.
void Device::drain(Lane& lane) {
  if (lane.played == kNone) {
    lane.drains = ended(lane);
    lane.stop = submitted(lane);
    rates_changed_ = true;
    return;
  }
  const PlayedJob& player = played_[lane.played].player;
  const std::uint32_t width = processors(lane.on);
  double left = std::min(options_.window_ns, lane.ahead_ns) - (lane.length - lane.position);
  lane.leaving = true;
  lane.leave_after = 0;
  for (std::size_t i = 1, asked = player.asked(now_ns_); i < asked && left > 0; ++i) {
    const Job::Operation& operation = player.ahead(i);
    left -= player.job().gap_ns +
            operation.ns * static_cast<double>(player.job().kernels[operation.of].stretch[width]);
    ++lane.leave_after;
  }
}

// Kernels of the program under way that have begun by that position in it.
std::uint32_t Device::begun(const Lane& lane, double position) {
  const std::vector<double>& ends = *lane.ends;
  const auto end = std::lower_bound(ends.begin() + lane.next + 1, ends.end(), position);
  return static_cast<std::uint32_t>(std::min(end, ends.end() - 1) - ends.begin());
}

// Those that have ended.
std::uint32_t Device::ended(const Lane& lane) {
  const std::vector<double>& ends = *lane.ends;
  const auto next = std::upper_bound(ends.begin() + lane.next + 1, ends.end(), lane.position);
  return static_cast<std::uint32_t>(next - ends.begin()) - 1;
}

// Those that its host has submitted by now, those before it was given what it runs on included.
// What was submitted runs on, whatever happens.
std::uint32_t Device::submitted(const Lane& lane) const {
  const std::uint32_t current = begun(lane, lane.position);
  std::uint32_t count = begun(lane, lane.position + std::min(options_.window_ns, lane.ahead_ns));
  // A host that is slower than that.
  if (const double host_ns = lane.program->host_ns(); host_ns > 0)
    count = std::min(
        count, lane.next + 1 + static_cast<std::uint32_t>((now_ns_ - lane.started_ns) / host_ns));
  return std::clamp(count, current, std::max(current, lane.stop));
}

// Of kernels [from, to) of its program, as its counter weighs them: their times on the whole
// device.
double Device::work(const Lane& lane, std::uint32_t from, std::uint32_t to) const {
  const std::vector<double>& ends = lane.program->ends(processors(runtime::kWholeDevice));
  return ends[to] - ends[from];
}

}  // namespace vitamin::sim
