// SPDX-License-Identifier: Apache-2.0
//
// SimulatedDevice: recorded jobs, kernel by kernel.
#include <algorithm>

#include "scheduler/simulator/device.h"

namespace vitamin::sim {

using runtime::kNoPartition;
using runtime::PartitionId;
using scheduler::StepKind;

// Of a recorded job's kernel: the kernel that began first takes its places first. Running clients
// are in the order in which they began.
double SimulatedDevice::kernel_rate(const SimulatedClient& client) {
  if (client.on == runtime::kWholeDevice && options_.turn_ns > 0)
    return &client == &clients_[turn_] && now_ns_ >= turn_begins_ns_ ? 1 : 0;
  if (client.occupancy == 0) return 1;  // a copy or a fill
  const double free = 1 - overlapping(taken_, client.on);
  const double taken = std::clamp(free, 0.0, client.occupancy);
  taken_[client.on] += taken;
  // Those that are simulated many kernels at once share on average (Program::stretch).
  return taken / client.occupancy / (1 + client.occupancy * overlapping(average_, client.on));
}

// Who has the device goes on until its turn has ended or it has nothing to run.
void SimulatedDevice::take_turns() {
  auto has_work = [&](std::size_t index) {
    const SimulatedClient& client = clients_[index];
    return client.running || (client.open == runtime::kWholeDevice &&
                              played_[client.played].player.asked(now_ns_) > 0);
  };
  if (turn_ != kNone && now_ns_ < turn_ends_ns_ && has_work(turn_)) return;
  const std::size_t before = turn_;
  for (std::size_t i = 1; i <= clients_.size(); ++i) {
    const std::size_t index = (before == kNone ? i : before + i) % clients_.size();
    const SimulatedClient& client = clients_[index];
    if (client.played == kNone || !client.running || client.on != runtime::kWholeDevice) continue;
    turn_ = index;
    if (turn_ != before) turn_begins_ns_ = now_ns_ + (before == kNone ? 0 : options_.switch_ns);
    turn_ends_ns_ = std::max(now_ns_, turn_begins_ns_) + options_.turn_ns;
    rates_changed_ = true;
    return;
  }
}

void SimulatedDevice::begin_part(Played& played, const RecordedJob::Part& part,
                                 bool iteration_end) {
  SimulatedClient& client = clients_[played.client];
  played.part = &part;
  played.iteration_end = iteration_end;
  played.part_ns = now_ns_;
  // A grant of so many launches is for one iteration at most.
  if (iteration_end && client.grant != scheduler::kNoGrant && !client.running &&
      client.launches != 0)
    end_grant(client);
  if (part.kind != StepKind::kUnknown && options_.says_steps) begin_step(client, said_of(played));
}

void SimulatedDevice::begin_request(Played& played, double at_ns) {
  const RecordedJob& job = played.player.job();
  const ServiceRequest& request = played.requests[played.request];
  played.serving = true;
  played.tokens_left = request.output_tokens - 1;
  played.player.play(job.parts[0], at_ns, request.host_pace);
  for (std::uint32_t i = 0; i < played.tokens_left; ++i)
    played.player.play(job.parts[1], at_ns, request.host_pace);
  begin_part(played, job.parts[0], true);
}

// The device has ended a step, or what gives a token, which the host sees somewhat later.
void SimulatedDevice::part_ended(Played& played) {
  const RecordedJob& job = played.player.job();
  SimulatedClient& client = clients_[played.client];
  if (!job.serves()) {
    ++client.steps_done;
    played.player.play(job.parts[0], now_ns_);
    begin_part(played, job.parts[0], true);
    return;
  }
  const double seen = std::max(now_ns_, played.player.seen_ns());
  RequestTimes& times = played.times[played.request];
  if (played.part == job.parts.data()) {
    times.ttft_ms = seen * 1e-6 - played.requests[played.request].at_s * 1e3;
    played.first_ns = seen;
  } else {
    --played.tokens_left;
    result_.itl_ms.add((seen - played.token_ns) * 1e-6);
  }
  played.token_ns = seen;
  if (played.tokens_left > 0) return begin_part(played, job.parts[1], true);
  times.finished = true;
  if (times.output_tokens > 1)
    times.tpot_ms = (seen - played.first_ns) * 1e-6 / (times.output_tokens - 1);
  ++played.request;
  played.serving = false;
  const bool more = played.request < played.requests.size();
  if (more && played.requests[played.request].at_s * 1e9 <= seen) begin_request(played, seen);
}

void SimulatedDevice::kernel_ended(SimulatedClient& client) {
  Played& played = played_[client.played];
  client.running = false;
  client.ended_ns = now_ns_;
  rates_changed_ = true;
  ++result_.operations;
  ++client.launched;
  const auto number = static_cast<std::size_t>(client.kernel - played.player.job().kernels.data());
  client.work_ns += played.work_ns[number];
  if (client.on != client.open) client.misplaced_ns += played.work_ns[number];
  const bool last = played.player.ended(now_ns_);
  if (client.leaving) {
    if (client.leave_after == 0) {
      client.leaving = false;
      give_back(client, client.held);
    } else {
      --client.leave_after;
    }
  } else if (client.launches != 0 && --client.launches == 0) {
    end_grant(client);
  }
  if (last) part_ended(played);
  rest(client);
}

// Starts what may start by now.
void SimulatedDevice::play(Played& played) {
  SimulatedClient& client = clients_[played.client];
  const RecordedJob& job = played.player.job();
  played.player.copy(now_ns_, &link_free_ns_);
  played.wake_ns = played.player.next_copy_ns();
  const PartitionId partition = client.leaving ? client.on : client.open;
  const RecordedJob::Operation* const operation = played.player.next();
  if (client.running || operation == nullptr) return;
  if (partition == kNoPartition) {
    if (!client.wanting)
      played.wake_ns = std::min(played.wake_ns, std::max(now_ns_, played.player.issued_ns()));
    return;
  }
  double begin = std::max(played.player.ready_ns(), client.ended_ns + job.gap_ns);
  if (client.on != partition && client.on != kNoPartition)
    begin += options_.move_ns + options_.creation_ns;
  if (begin > now_ns_ + 0.5) {
    played.wake_ns = std::min(played.wake_ns, begin);
    return;
  }
  client.kernel = &job.kernels[operation->of];
  client.on = partition;
  if (!client.leaving) client.held = client.grant, client.alone = client.exclusive;
  const double stretch = client.kernel->stretch[sms(partition)];
  client.length = std::max(1.0, operation->ns * stretch);
  client.position = 0;
  client.bandwidth = client.kernel->memory / stretch;
  client.alone_until = client.alone ? 0 : client.kernel->full(part_of(partition)) * client.length;
  client.occupancy = client.alone_until > 0 ? 1 : client.kernel->share(part_of(partition));
  begin_run(client);
}

}  // namespace vitamin::sim
