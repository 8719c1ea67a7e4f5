// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "hal/fnv1a.h"
#include "scheduler/policies/builtin.h"

namespace vitamin::sim {

using runtime::kNoPartition;
using runtime::PartitionId;
using scheduler::StepKind;

namespace {

// What others have moved lately is what the L2 cache holds: 60 MB, filled at the full bandwidth.
constexpr double kCacheNs = 60e6 / kBandwidth * 1e9;

// Of the SMs of each partition, the share that is in each other one.
std::vector<double> common_sms(const runtime::PoolLayout& layout) {
  std::vector<double> common;
  common.reserve(layout.size() * layout.size());
  for (const runtime::Partition& a : layout.partitions())
    for (const runtime::Partition& b : layout.partitions()) {
      const hal::ComputeSet both = a.compute & b.compute;
      const PartitionId known = both == layout.all() ? runtime::kWholeDevice : layout.find(both);
      // Units have nearly the same number of SMs, where no partition says how many.
      common.push_back(known != kNoPartition
                           ? static_cast<double>(layout.at(known).sms) / static_cast<double>(a.sms)
                           : static_cast<double>(both.count()) /
                                 static_cast<double>(a.compute.count()));
    }
  return common;
}

}  // namespace

SimulatedDevice::SimulatedDevice(const runtime::PoolLayout& layout, const runtime::Profile& profile,
                                 ModelLibrary& library, const SimulatedDeviceOptions& options)
    : layout_(layout),
      profile_(profile),
      estimator_(layout.partitions(), options.seed),
      scheduler_(layout.partitions(), scheduler::make_fifo(), options.scheduler, &estimator_),
      library_(library),
      options_(options),
      common_(common_sms(layout)),
      busy_(layout.size()),
      average_(layout.size()),
      taken_(layout.size()),
      width_s_(sms(runtime::kWholeDevice) + 1) {
  result_.occupancy_bin_s = options.occupancy_bin_s;
}

void SimulatedDevice::add_service(std::vector<ServiceRequest> requests) {
  Service service;
  service.times.resize(requests.size());
  service.first_ns.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    service.times[i].output_tokens = requests[i].output_tokens;
  service.requests = std::move(requests);
  // As vitamind has it of a class with a TPOT (daemon/from_configuration.cpp).
  scheduler::ClientTerms decodes;
  decodes.slo.tpot_ns = decodes.slo.latency_ns =
      static_cast<std::uint64_t>(options_.target_tpot_ms * 1e6);
  scheduler::ClientTerms prefills;
  prefills.slo.ttft_ns = prefills.slo.latency_ns =
      static_cast<std::uint64_t>(options_.target_ttft_ms * 1e6);
  service.prefill = clients_.size();
  add_client(Role::kPrefill, hal::fnv1a("prefill"), prefills).service = services_.size();
  service.decode = clients_.size();
  add_client(Role::kDecode, hal::fnv1a("decode"), decodes).service = services_.size();
  services_.push_back(std::move(service));
}

void SimulatedDevice::add_training(const Program& step) {
  add_client(Role::kTraining, hal::fnv1a(step.name()), {}).program = &step;
}

void SimulatedDevice::add_job(const RecordedJob& job, std::vector<ServiceRequest> requests) {
  scheduler::ClientTerms terms;
  // A latency class without a bound, as vitamind makes it.
  if (job.serves() && options_.latency_class) terms.slo.latency_ns = scheduler::kAsAloneNs;
  const std::size_t index = clients_.size();
  SimulatedClient& client =
      add_client(job.serves() ? Role::kDecode : Role::kTraining, hal::fnv1a(job.name), terms);
  client.played = played_.size();
  Played& played = played_.emplace_back(job, std::move(requests));
  played.client = index;
  for (std::size_t i = 0; i < played.requests.size(); ++i)
    played.times[i].output_tokens = played.requests[i].output_tokens;
  std::vector<double> launches(job.kernels.size());
  played.work_ns.resize(job.kernels.size());
  for (const RecordedJob::Part& part : job.parts) {
    played.usual_ns.push_back(alone_ns(job, part, sms(runtime::kWholeDevice)));
    for (const RecordedJob::Operation& operation : part.operations)
      if (operation.call == RecordedJob::Call::kKernel) {
        played.work_ns[operation.of] += operation.ns + job.gap_ns;
        launches[operation.of] += 1;
      }
  }
  for (std::size_t i = 0; i < launches.size(); ++i)
    if (launches[i] > 0) played.work_ns[i] /= launches[i];
}

// --- time ------------------------------------------------------------------------------------

SimulatedRun SimulatedDevice::run() {
  const auto start = std::chrono::steady_clock::now();
  double last_s = 0;
  for (const Service& service : services_)
    if (!service.requests.empty()) last_s = std::max(last_s, service.requests.back().at_s);
  for (const Played& played : played_)
    if (!played.requests.empty()) last_s = std::max(last_s, played.requests.back().at_s);
  const double limit_ns = (options_.limit_s > 0 ? options_.limit_s : last_s + 120) * 1e9;
  reporting_ = scheduler_.policy().uses_progress && clients_.size() > 1;
  for (SimulatedClient& client : clients_)
    if (client.role == Role::kTraining && client.played == kNone) begin_program(client, false);
  for (Played& played : played_) {
    const RecordedJob& job = played.player.job();
    if (job.serves()) continue;
    // Two steps at most are under way.
    for (int i = 0; i < 2; ++i) played.player.play(job.parts[0], 0);
    begin_part(played, job.parts[0], false);
  }
  arrive();
  obey();
  while (!complete()) {
    const double next = next_event();
    if (next > limit_ns) {
      advance(limit_ns);
      break;
    }
    advance(next);
    // Rounding must not leave a client a fraction of a nanosecond before its end for ever.
    const auto ends = [by_ns = now_ns_ + 0.5, clients = clients_.data()](std::size_t index) {
      return clients[index].end_ns <= by_ns;
    };
    for (std::size_t i = 0; i < running_.size();) {
      const auto first = running_.begin() + static_cast<std::ptrdiff_t>(i);
      i = static_cast<std::size_t>(std::find_if(first, running_.end(), ends) - running_.begin());
      if (i == running_.size()) break;
      SimulatedClient& client = clients_[running_[i]];
      if (client.played != kNone && client.position + 0.5 < client.length) {
        // Its last blocks have their places: there may be room for others.
        client.occupancy = client.kernel->share(part_of(client.on));
        client.alone_until = 0;
        rates_changed_ = true;
        ++i;
        continue;
      }
      end_run(i);
      if (client.played == kNone)
        stopped(client);
      else
        kernel_ended(client);
    }
    arrive();
    give_up_quiet();
    obey();
  }
  result_.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return collect();
}

bool SimulatedDevice::complete() const {
  bool any = !services_.empty();
  for (const Service& service : services_)
    if (service.finished != service.requests.size()) return false;
  for (const Played& played : played_) {
    if (!played.player.job().serves()) continue;
    if (played.request != played.requests.size()) return false;
    any = true;
  }
  return any;
}

double SimulatedDevice::next_event() const {
  double next = std::min(end_ns_, arrival_ns_);
  for (const std::size_t index : quiet_) next = std::min(next, clients_[index].quiet_until_ns);
  for (const Played& played : played_) {
    next = std::min(next, played.wake_ns);
    if (!played.serving && played.request < played.requests.size())
      next = std::min(next, played.requests[played.request].at_s * 1e9);
  }
  if (turn_ != kNone) {
    if (turn_begins_ns_ > now_ns_) next = std::min(next, turn_begins_ns_);
    if (turn_ends_ns_ > now_ns_) next = std::min(next, turn_ends_ns_);
  }
  if (!timers_.empty()) next = std::min(next, timers_.top().at_ns);
  if (scheduler_.wake_at() != scheduler::kNever)
    next = std::min(next, static_cast<double>(scheduler_.wake_at()));
  return std::max(next, now_ns_);
}

void SimulatedDevice::advance(double to_ns) {
  const double step = to_ns - now_ns_;
  if (step > 0) {
    const double bin_ns = options_.occupancy_bin_s * 1e9;
    for (double from = now_ns_; from < to_ns;) {
      const auto bin = static_cast<std::size_t>(from / bin_ns);
      const double until = std::min(to_ns, static_cast<double>(bin + 1) * bin_ns);
      if (result_.occupancy.size() <= bin) result_.occupancy.resize(bin + 1);
      for (std::size_t role = 0; role < in_use_.size(); ++role)
        result_.occupancy[bin][role] += in_use_[role] * (until - from) / bin_ns;
      from = until > from ? until : to_ns;
    }
    if (!played_.empty()) {
      const double kept = std::exp(-step / kCacheNs);
      for (const Played& played : played_) {
        SimulatedClient& client = clients_[played.client];
        // Its kernels are outstanding between two of them, too.
        if (reporting_ && !client.running && client.grant != scheduler::kNoGrant &&
            played.player.asked(now_ns_) > 0)
          client.busy_ns += step;
        const double moves = client.running ? client.bandwidth * client.rate : 0;
        client.moved = moves + (client.moved - moves) * kept;
      }
    }
    SimulatedClient* const clients = clients_.data();
    for (const std::size_t index : running_) clients[index].position += step * clients[index].rate;
    if (reporting_)
      for (const std::size_t index : running_) clients[index].busy_ns += step;
  }
  now_ns_ = std::max(now_ns_, to_ns);
}

// Of what there is on each partition, what is on the SMs of this one, relative to its own.
double SimulatedDevice::overlapping(const std::vector<double>& by_partition,
                                    PartitionId partition) const {
  if (!layout_.at(partition).compute.overlaps(contested_)) return by_partition[partition];
  double sum = 0;
  for (const PartitionId other : occupied_)
    sum += by_partition[other] * common_[std::size_t{partition} * layout_.size() + other];
  return sum;
}

void SimulatedDevice::begin_run(SimulatedClient& client) {
  client.running = true;
  client.end_ns = kForever;  // until set_rates says
  client.run_ns = now_ns_;
  client.width = sms(client.on);
  running_.push_back(static_cast<std::size_t>(&client - clients_.data()));
  const hal::ComputeSet on = layout_.at(client.on).compute;
  apart_ = apart_ && !on.overlaps(units_);
  units_ |= on;
  rates_changed_ = true;
}

void SimulatedDevice::end_run(std::size_t number) {
  const SimulatedClient& client = clients_[running_[number]];
  width_s_[client.width] += (now_ns_ - client.run_ns) * 1e-9;
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(number));
  rates_changed_ = true;
  if (apart_) {
    units_ = units_ - layout_.at(client.on).compute;
    return;
  }
  apart_ = true;
  units_ = {};
  for (const std::size_t index : running_) {
    const hal::ComputeSet on = layout_.at(clients_[index].on).compute;
    apart_ = apart_ && !on.overlaps(units_);
    units_ |= on;
  }
}

// What is on each partition, and which units are contested: for overlapping().
void SimulatedDevice::count_busy() {
  for (const PartitionId partition : occupied_)
    busy_[partition] = average_[partition] = taken_[partition] = 0;
  occupied_.clear();
  hal::ComputeSet units;
  contested_ = {};
  for (const std::size_t index : running_) {
    const SimulatedClient& client = clients_[index];
    const hal::ComputeSet on = layout_.at(client.on).compute;
    if (!on.overlaps(units) ||
        std::find(occupied_.begin(), occupied_.end(), client.on) == occupied_.end()) {
      occupied_.push_back(client.on);
      contested_ |= units & on;
      units |= on;
    }
    busy_[client.on] += client.occupancy;
    if (client.played == kNone) average_[client.on] += client.occupancy;
  }
}

// Which client slows which down, until the set of running clients changes.
void SimulatedDevice::set_rates() {
  rates_changed_ = false;
  if (played_.empty() && apart_) return set_rates_apart();
  count_busy();
  double bandwidth = 0;
  for (const std::size_t index : running_) {
    SimulatedClient& client = clients_[index];
    if (client.played != kNone) {
      client.rate = kernel_rate(client);
    } else {
      const double others = overlapping(busy_, client.on) - client.occupancy;
      client.rate = others > 0 ? 1 / client.program->stretch(client.width, others) : 1;
    }
    bandwidth += client.bandwidth * client.rate;
  }
  end_ns_ = kForever;
  in_use_ = {};
  for (const std::size_t index : running_) {
    SimulatedClient& client = clients_[index];
    if (client.played != kNone) {
      // Measured where others took all of the bandwidth; where they take less, or took it a moment
      // ago, it grows with the cube of that (CHOSEN: README.md).
      double lately = 0;
      for (const Played& played : played_)
        if (&clients_[played.client] != &client) lately += clients_[played.client].moved;
      const double taken =
          std::clamp(std::max(lately, bandwidth - client.bandwidth * client.rate), 0.0, 1.0);
      client.rate /= 1 + (client.kernel->beside - 1) * taken * taken * taken;
    } else {
      // Only what waits for memory waits longer.
      client.rate /= 1 + std::min(1.0, client.bandwidth) * std::max(0.0, bandwidth - 1);
    }
    const double length = client.alone_until > 0 ? client.alone_until : client.length;
    client.end_ns = client.rate > 0 ? now_ns_ + (length - client.position) / client.rate : kForever;
    end_ns_ = std::min(end_ns_, client.end_ns);
    const double used = client.alone ? 1 : client.occupancy * client.rate;
    in_use_[static_cast<std::size_t>(client.role)] += used * client.width;
  }
}

// The same values where no two clients have a unit in common, faster: policies that are asked for
// every launch end a run with each of them.
void SimulatedDevice::set_rates_apart() {
  SimulatedClient* const clients = clients_.data();
  double bandwidth = 0;
  for (const std::size_t index : running_) bandwidth += clients[index].bandwidth;
  const double missing = std::max(0.0, bandwidth - 1);
  double end_ns = kForever;
  double prefill = 0, decode = 0, training = 0;
  for (const std::size_t index : running_) {
    SimulatedClient& client = clients[index];
    const double left = client.length - client.position;
    if (missing > 0) {
      client.rate = 1 / (1 + std::min(1.0, client.bandwidth) * missing);
      client.end_ns = now_ns_ + left / client.rate;
    } else {
      client.rate = 1;
      client.end_ns = now_ns_ + left;
    }
    end_ns = std::min(end_ns, client.end_ns);
    const double used = (client.alone ? 1 : client.occupancy * client.rate) * client.width;
    prefill += client.role == Role::kPrefill ? used : 0;
    decode += client.role == Role::kDecode ? used : 0;
    training += client.role == Role::kTraining ? used : 0;
  }
  in_use_ = {prefill, decode, training};
  end_ns_ = end_ns;
}

// --- clients -----------------------------------------------------------------------------------

void SimulatedDevice::begin_program(SimulatedClient& client, bool iteration_end) {
  const Program& program = *client.program;
  const double whole = program.whole_ns();
  Said said;
  said.kernel = program.key();
  said.kind = program.kind();
  said.launch_ns = whole / program.kernels();
  said.work_ns = whole;
  said.iteration_end = iteration_end;
  if (client.role == Role::kDecode) {
    // Decodes that wait for room in the batch are work ahead of the deadline as well.
    const Service& service = services_[client.service];
    const double waiting = static_cast<double>(service.joining.size());
    said.work_ns = whole * (1 + waiting / static_cast<double>(service.batch.size()));
    said.due_ns = client.deadline_ns;
  }
  const bool prefills = client.role == Role::kPrefill && options_.target_ttft_ms > 0;
  if (prefills) said.due_ns = first_token_due_ns(services_[client.service]);
  // Its host has waited for the end of what was before: with nothing to submit, and no grant, it
  // was idle.
  if (client.role != Role::kTraining) rest(client);
  say(client, said, client.role == Role::kDecode || prefills);
  if (!client.running) start(client);
}

void SimulatedDevice::start(SimulatedClient& client) {
  if (client.grant == scheduler::kNoGrant || client.program == nullptr) return;
  const std::uint32_t width = sms(client.open);
  const bool moved = client.on != client.open;
  client.held = client.grant;
  client.on = client.open;
  client.alone = client.exclusive;
  client.ends = &client.program->ends(width);
  client.position = (*client.ends)[client.next];
  if (moved) client.position -= options_.move_ns + options_.creation_ns;
  std::uint32_t stop = client.program->kernels();
  if (client.launches != 0) stop = std::min(stop, client.next + client.launches);
  stop_at(client, stop);
  client.bandwidth = client.program->bandwidth(width);
  client.occupancy = std::min(1.0, client.program->occupancy() / part_of(client.on));
  client.started_ns = now_ns_;
  begin_run(client);
}

void SimulatedDevice::stopped(SimulatedClient& client) {
  client.running = false;
  rates_changed_ = true;
  const std::uint32_t launched = client.stop - client.next;
  result_.operations += launched;
  client.launched += launched;
  if (reporting_) client.work_ns += work(client, client.next, client.stop);
  const bool leaves = client.held != client.grant;
  if (reporting_ && leaves && client.on != client.open)
    client.misplaced_ns += work(client, std::max(client.next, client.drains), client.stop);
  client.next = client.stop;
  const bool ended = client.next == client.program->kernels();
  if (leaves) {
    give_back(client, client.held);
  } else if (client.launches != 0) {
    client.launches -= std::min(client.launches, launched);
    // Such a grant is for one iteration at most.
    if (client.launches == 0 || ended) end_grant(client);
  }
  if (ended)
    program_ended(client);
  else if (client.grant == scheduler::kNoGrant && (!client.wanting || client.asks_again))
    begin_program(client, false);
  else
    start(client);
}

void SimulatedDevice::program_ended(SimulatedClient& client) {
  switch (client.role) {
    case Role::kTraining:
      ++client.steps_done;
      client.next = 0;
      begin_program(client, true);
      return;
    case Role::kDecode:
      step_ended(services_[client.service]);
      return;
    case Role::kPrefill: {
      Service& service = services_[client.service];
      const std::vector<std::size_t> finishing = std::move(service.finishing);
      for (std::size_t i = 0; i < finishing.size(); ++i) service.prompts.pop_front();
      service.prompt_done = service.chunk_left;
      for (const std::size_t request : finishing) prompt_ended(service, request);
      next_chunk(service);
      return;
    }
  }
}

SimulatedRun SimulatedDevice::collect() {
  while (!running_.empty()) end_run(running_.size() - 1);
  SimulatedRun result = std::move(result_);
  result.simulated_s = now_ns_ * 1e-9;
  for (std::uint32_t width = 0; width < width_s_.size(); ++width)
    if (width_s_[width] > 0) result.width_s[width] = width_s_[width];
  for (const Service& service : services_)
    for (std::size_t i = 0; i < service.requests.size(); ++i)
      if (service.requests[i].at_s >= options_.warm_up_s ||
          service.requests.back().at_s < 10 * options_.warm_up_s)
        result.requests.push_back(service.times[i]);
  for (const SimulatedClient& client : clients_)
    if (client.role == Role::kTraining && client.program != nullptr) {
      // The step under way counts by its share.
      const double part = static_cast<double>(client.next) / client.program->kernels();
      result.training.push_back(
          {client.program->name(),
           (static_cast<double>(client.steps_done) + part) / result.simulated_s,
           1e9 / client.program->whole_ns()});
    }
  for (const Played& played : played_) {
    const RecordedJob& job = played.player.job();
    if (job.serves()) {
      for (std::size_t i = 0; i < played.times.size(); ++i)
        if (played.requests[i].at_s >= options_.warm_up_s)
          result.requests.push_back(played.times[i]);
      continue;
    }
    const SimulatedClient& client = clients_[played.client];
    const double kernels = static_cast<double>(
        std::count_if(job.parts[0].operations.begin(), job.parts[0].operations.end(),
                      [](const RecordedJob::Operation& each) {
                        return each.call == RecordedJob::Call::kKernel;
                      }));
    result.training.push_back({job.name,
                               static_cast<double>(client.launched) / kernels / result.simulated_s,
                               1e9 / played.usual_ns[0]});
  }
  const scheduler::SchedulerCounters& counters = scheduler_.counters();
  result.policy = scheduler_.policy().name;
  result.grants = counters.grants;
  result.revoked = counters.revoked;
  result.starving = counters.starving;
  result.plans = counters.plans;
  result.asked = counters.plans + counters.placements;
  result.faults = counters.faults;
  result.deciding_s = early_s_;
  if (timed_ != 0)
    result.deciding_s +=
        timed_s_ * static_cast<double>(decided_ - kAllTimed) / static_cast<double>(timed_);
  result.message = scheduler_.fault();
  return result;
}

}  // namespace vitamin::sim
