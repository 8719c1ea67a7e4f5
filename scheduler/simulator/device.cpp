// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/fnv1a.h"
#include "scheduler/policies/builtin.h"

namespace vitamin::sim {

using runtime::EntryId;
using runtime::kNoEntry;
using scheduler::StepKind;

namespace {

// What others have moved lately is what the L2 cache holds: 60 MB, filled at the full bandwidth.
constexpr double kCacheNs = 60e6 / kBandwidth * 1e9;

// Of the processors of each entry, the share that is in each other one.
std::vector<double> common_processors(const runtime::PoolLayout& layout) {
  std::vector<double> common;
  common.reserve(layout.size() * layout.size());
  for (const runtime::PoolEntry& a : layout.entries())
    for (const runtime::PoolEntry& b : layout.entries()) {
      const hal::ComputeSet both = a.compute & b.compute;
      const EntryId known = both == layout.all() ? runtime::kWholeDevice : layout.find(both);
      // Units have nearly the same number of processors, where no entry says how many.
      common.push_back(
          known != kNoEntry
              ? static_cast<double>(layout.at(known).processors) / static_cast<double>(a.processors)
              : static_cast<double>(both.count()) / static_cast<double>(a.compute.count()));
    }
  return common;
}

}  // namespace

Device::Device(const runtime::PoolLayout& layout, const runtime::Profile& profile, Library& library,
               const DeviceOptions& options)
    : layout_(layout),
      profile_(profile),
      estimator_(layout.entries(), options.seed),
      scheduler_(layout.entries(), scheduler::make_fifo(), options.scheduler, &estimator_),
      library_(library),
      options_(options),
      common_(common_processors(layout)),
      busy_(layout.size()),
      average_(layout.size()),
      taken_(layout.size()) {
  result_.occupancy_bin_s = options.occupancy_bin_s;
}

void Device::add_service(std::vector<Request> requests) {
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
  service.prefill = lanes_.size();
  add_lane(Role::kPrefill, runtime::fnv1a("prefill"), prefills).service = services_.size();
  service.decode = lanes_.size();
  add_lane(Role::kDecode, runtime::fnv1a("decode"), decodes).service = services_.size();
  services_.push_back(std::move(service));
}

void Device::add_training(const Program& step) {
  add_lane(Role::kTraining, runtime::fnv1a(step.name()), {}).program = &step;
}

void Device::add_job(const Job& job, std::vector<Request> requests) {
  scheduler::ClientTerms terms;
  // As vitamind has it of a latency class without a bound: as if the client were alone.
  if (job.serves() && options_.latency_class) terms.slo.latency_ns = 1;
  const std::size_t index = lanes_.size();
  Lane& lane =
      add_lane(job.serves() ? Role::kDecode : Role::kTraining, runtime::fnv1a(job.name), terms);
  lane.played = played_.size();
  Played& played = played_.emplace_back(job, std::move(requests));
  played.lane = index;
  for (std::size_t i = 0; i < played.requests.size(); ++i)
    played.times[i].output_tokens = played.requests[i].output_tokens;
  std::vector<double> launches(job.kernels.size());
  played.work_ns.resize(job.kernels.size());
  for (const Job::Part& part : job.parts) {
    played.usual_ns.push_back(alone_ns(job, part, processors(runtime::kWholeDevice)));
    for (const Job::Operation& operation : part.operations)
      if (operation.call == Job::Call::kKernel) {
        played.work_ns[operation.of] += operation.ns + job.gap_ns;
        launches[operation.of] += 1;
      }
  }
  for (std::size_t i = 0; i < launches.size(); ++i)
    if (launches[i] > 0) played.work_ns[i] /= launches[i];
}

// --- time ------------------------------------------------------------------------------------

Result Device::run() {
  const auto start = std::chrono::steady_clock::now();
  double last_s = 0;
  for (const Service& service : services_)
    if (!service.requests.empty()) last_s = std::max(last_s, service.requests.back().at_s);
  for (const Played& played : played_)
    if (!played.requests.empty()) last_s = std::max(last_s, played.requests.back().at_s);
  const double limit_ns = (options_.limit_s > 0 ? options_.limit_s : last_s + 120) * 1e9;
  reporting_ = scheduler_.policy().uses_progress && lanes_.size() > 1;
  for (Lane& lane : lanes_)
    if (lane.role == Role::kTraining && lane.played == kNone) begin_program(lane, false);
  for (Played& played : played_) {
    const Job& job = played.player.job();
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
    for (std::size_t i = 0; i < running_.size();) {
      Lane& lane = lanes_[running_[i]];
      // Rounding must not leave a lane a fraction of a nanosecond before its end for ever.
      if (lane.end_ns > now_ns_ + 0.5) {
        ++i;
        continue;
      }
      if (lane.played != kNone && lane.position + 0.5 < lane.length) {
        // Its last blocks have their places: there may be room for others.
        lane.occupancy = lane.kernel->share(part_of(lane.on));
        lane.alone_until = 0;
        rates_changed_ = true;
        ++i;
        continue;
      }
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      if (lane.played == kNone)
        stopped(lane);
      else
        kernel_ended(lane);
    }
    arrive();
    give_up_quiet();
    obey();
  }
  result_.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return collect();
}

bool Device::complete() const {
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

double Device::next_event() const {
  double next = kForever;
  for (const std::size_t index : running_) next = std::min(next, lanes_[index].end_ns);
  for (const std::size_t index : quiet_) next = std::min(next, lanes_[index].quiet_until_ns);
  for (const Service& service : services_)
    if (service.arrived < service.requests.size())
      next = std::min(next, service.requests[service.arrived].at_s * 1e9);
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

void Device::advance(double to_ns) {
  const double step = to_ns - now_ns_;
  if (step > 0) {
    const double bin_ns = options_.occupancy_bin_s * 1e9;
    for (double from = now_ns_; from < to_ns;) {
      const auto bin = static_cast<std::size_t>(from / bin_ns);
      const double until = std::min(to_ns, static_cast<double>(bin + 1) * bin_ns);
      if (result_.occupancy.size() <= bin) result_.occupancy.resize(bin + 1);
      for (const std::size_t index : running_) {
        const Lane& lane = lanes_[index];
        const double used = lane.alone ? 1 : lane.occupancy * lane.rate;
        result_.occupancy[bin][static_cast<std::size_t>(lane.role)] +=
            used * processors(lane.on) * (until - from) / bin_ns;
      }
      from = until > from ? until : to_ns;
    }
    if (!played_.empty()) {
      const double kept = std::exp(-step / kCacheNs);
      for (const Played& played : played_) {
        Lane& lane = lanes_[played.lane];
        // Its kernels are outstanding between two of them, too.
        if (reporting_ && !lane.running && lane.grant != scheduler::kNoGrant &&
            played.player.asked(now_ns_) > 0)
          lane.busy_ns += step;
        const double moves = lane.running ? lane.bandwidth * lane.rate : 0;
        lane.moved = moves + (lane.moved - moves) * kept;
      }
    }
    for (const std::size_t index : running_) {
      Lane& lane = lanes_[index];
      lane.position += step * lane.rate;
      lane.busy_ns += step;
      result_.width_s[processors(lane.on)] += step * 1e-9;
    }
  }
  now_ns_ = std::max(now_ns_, to_ns);
}

// Of what there is on each entry, what is on the processors of this one, relative to its own.
double Device::overlapping(const std::vector<double>& by_entry, EntryId entry) const {
  double sum = 0;
  for (const EntryId other : occupied_)
    sum += by_entry[other] * common_[std::size_t{entry} * layout_.size() + other];
  return sum;
}

// Which client slows which down, until the set of running lanes changes.
void Device::set_rates() {
  for (const EntryId entry : occupied_) busy_[entry] = average_[entry] = taken_[entry] = 0;
  occupied_.clear();
  for (const std::size_t index : running_) {
    const Lane& lane = lanes_[index];
    if (std::find(occupied_.begin(), occupied_.end(), lane.on) == occupied_.end())
      occupied_.push_back(lane.on);
    busy_[lane.on] += lane.occupancy;
    if (lane.played == kNone) average_[lane.on] += lane.occupancy;
  }
  double bandwidth = 0;
  for (const std::size_t index : running_) {
    Lane& lane = lanes_[index];
    if (lane.played != kNone) {
      lane.rate = kernel_rate(lane);
    } else {
      const double others = overlapping(busy_, lane.on) - lane.occupancy;
      lane.rate = 1 / lane.program->stretch(processors(lane.on), std::max(0.0, others));
    }
    bandwidth += lane.bandwidth * lane.rate;
  }
  for (const std::size_t index : running_) {
    Lane& lane = lanes_[index];
    if (lane.played != kNone) {
      // Measured where others took all of the bandwidth; where they take less, or took it a moment
      // ago, it grows with the cube of that (CHOSEN: README.md).
      double lately = 0;
      for (const Played& played : played_)
        if (&lanes_[played.lane] != &lane) lately += lanes_[played.lane].moved;
      const double taken =
          std::clamp(std::max(lately, bandwidth - lane.bandwidth * lane.rate), 0.0, 1.0);
      lane.slowed = 1 + (lane.kernel->beside - 1) * taken * taken * taken;
    } else {
      // Only what waits for memory waits longer.
      lane.slowed = 1 + std::min(1.0, lane.bandwidth) * std::max(0.0, bandwidth - 1);
    }
  }
  for (const std::size_t index : running_) {
    Lane& lane = lanes_[index];
    lane.rate /= lane.slowed;
    const double length = lane.played == kNone   ? (*lane.ends)[lane.stop]
                          : lane.alone_until > 0 ? lane.alone_until
                                                 : lane.length;
    lane.end_ns = lane.rate > 0 ? now_ns_ + (length - lane.position) / lane.rate : kForever;
  }
  rates_changed_ = false;
}

// Of a recorded job's kernel: the kernel that began first takes its places first. Running lanes are
// in the order in which they began.
double Device::kernel_rate(const Lane& lane) {
  if (lane.on == runtime::kWholeDevice && options_.turn_ns > 0)
    return &lane == &lanes_[turn_] && now_ns_ >= turn_begins_ns_ ? 1 : 0;
  if (lane.occupancy == 0) return 1;  // a copy or a fill
  const double free = 1 - overlapping(taken_, lane.on);
  const double taken = std::clamp(free, 0.0, lane.occupancy);
  taken_[lane.on] += taken;
  // Those that are simulated many kernels at once share on average (Program::stretch).
  return taken / lane.occupancy / (1 + lane.occupancy * overlapping(average_, lane.on));
}

// Who has the device goes on until its turn has ended or it has nothing to run.
void Device::take_turns() {
  auto has_work = [&](std::size_t index) {
    const Lane& lane = lanes_[index];
    return lane.running ||
           (lane.open == runtime::kWholeDevice && played_[lane.played].player.asked(now_ns_) > 0);
  };
  if (turn_ != kNone && now_ns_ < turn_ends_ns_ && has_work(turn_)) return;
  const std::size_t before = turn_;
  for (std::size_t i = 1; i <= lanes_.size(); ++i) {
    const std::size_t index = (before == kNone ? i : before + i) % lanes_.size();
    const Lane& lane = lanes_[index];
    if (lane.played == kNone || !lane.running || lane.on != runtime::kWholeDevice) continue;
    turn_ = index;
    if (turn_ != before) turn_begins_ns_ = now_ns_ + (before == kNone ? 0 : options_.switch_ns);
    turn_ends_ns_ = std::max(now_ns_, turn_begins_ns_) + options_.turn_ns;
    rates_changed_ = true;
    return;
  }
}

// --- recorded jobs ---------------------------------------------------------------------------

void Device::begin_part(Played& played, const Job::Part& part, bool iteration_end) {
  Lane& lane = lanes_[played.lane];
  played.part = &part;
  played.iteration_end = iteration_end;
  played.part_ns = now_ns_;
  // A grant of so many launches is for one iteration at most.
  if (iteration_end && lane.grant != scheduler::kNoGrant && !lane.running && lane.launches != 0)
    end_grant(lane);
  if (part.kind != StepKind::kUnknown && options_.says_steps) begin_step(lane, said_of(played));
}

void Device::begin_request(Played& played, double at_ns) {
  const Job& job = played.player.job();
  const Request& request = played.requests[played.request];
  played.serving = true;
  played.tokens_left = request.output_tokens - 1;
  played.player.play(job.parts[0], at_ns, request.host_pace);
  for (std::uint32_t i = 0; i < played.tokens_left; ++i)
    played.player.play(job.parts[1], at_ns, request.host_pace);
  begin_part(played, job.parts[0], true);
}

// The device has ended a step, or what gives a token, which the host sees somewhat later.
void Device::part_ended(Played& played) {
  const Job& job = played.player.job();
  Lane& lane = lanes_[played.lane];
  if (!job.serves()) {
    ++lane.steps_done;
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

void Device::kernel_ended(Lane& lane) {
  Played& played = played_[lane.played];
  lane.running = false;
  lane.ended_ns = now_ns_;
  rates_changed_ = true;
  ++result_.operations;
  ++lane.launched;
  const auto number = static_cast<std::size_t>(lane.kernel - played.player.job().kernels.data());
  lane.work_ns += played.work_ns[number];
  if (lane.on != lane.open) lane.misplaced_ns += played.work_ns[number];
  const bool last = played.player.ended(now_ns_);
  if (lane.leaving) {
    if (lane.leave_after == 0) {
      lane.leaving = false;
      give_back(lane, lane.held);
    } else {
      --lane.leave_after;
    }
  } else if (lane.launches != 0 && --lane.launches == 0) {
    end_grant(lane);
  }
  if (last) part_ended(played);
  rest(lane);
}

// Starts what may start by now.
void Device::play(Played& played) {
  Lane& lane = lanes_[played.lane];
  const Job& job = played.player.job();
  played.player.copy(now_ns_, &link_free_ns_);
  played.wake_ns = played.player.next_copy_ns();
  const EntryId entry = lane.leaving ? lane.on : lane.open;
  const Job::Operation* const operation = played.player.next();
  if (lane.running || operation == nullptr) return;
  if (entry == kNoEntry) {
    if (!lane.wanting)
      played.wake_ns = std::min(played.wake_ns, std::max(now_ns_, played.player.issued_ns()));
    return;
  }
  double begin = std::max(played.player.ready_ns(), lane.ended_ns + job.gap_ns);
  if (lane.on != entry && lane.on != kNoEntry) begin += options_.move_ns + options_.creation_ns;
  if (begin > now_ns_ + 0.5) {
    played.wake_ns = std::min(played.wake_ns, begin);
    return;
  }
  lane.kernel = &job.kernels[operation->of];
  lane.on = entry;
  if (!lane.leaving) lane.held = lane.grant, lane.alone = lane.exclusive;
  const double stretch = lane.kernel->stretch[processors(entry)];
  lane.length = std::max(1.0, operation->ns * stretch);
  lane.position = 0;
  lane.bandwidth = lane.kernel->memory / stretch;
  lane.alone_until = lane.alone ? 0 : lane.kernel->full(part_of(entry)) * lane.length;
  lane.occupancy = lane.alone_until > 0 ? 1 : lane.kernel->share(part_of(entry));
  lane.running = true;
  lane.end_ns = kForever;  // until set_rates says
  running_.push_back(played.lane);
  rates_changed_ = true;
}

// --- lanes -----------------------------------------------------------------------------------

void Device::begin_program(Lane& lane, bool iteration_end) {
  const Program& program = *lane.program;
  const double whole = program.total_ns(program.processors());
  Said said;
  said.kernel = program.key();
  said.kind = program.kind();
  said.launch_ns = whole / program.kernels();
  said.work_ns = whole;
  said.iteration_end = iteration_end;
  if (lane.role == Role::kDecode) {
    // Decodes that wait for room in the batch are work ahead of the deadline as well.
    const Service& service = services_[lane.service];
    const double waiting = static_cast<double>(service.joining.size());
    said.work_ns = whole * (1 + waiting / static_cast<double>(service.batch.size()));
    said.due_ns = lane.deadline_ns;
  }
  const bool prefills = lane.role == Role::kPrefill && options_.target_ttft_ms > 0;
  if (prefills) said.due_ns = first_token_due_ns(services_[lane.service]);
  // Its host has waited for the end of what was before: with nothing to submit, and no grant, it
  // was idle.
  if (lane.role != Role::kTraining) rest(lane);
  say(lane, said, lane.role == Role::kDecode || prefills);
  if (!lane.running) start(lane);
}

void Device::start(Lane& lane) {
  if (lane.grant == scheduler::kNoGrant || lane.program == nullptr) return;
  const std::uint32_t width = processors(lane.open);
  const bool moved = lane.on != lane.open;
  lane.held = lane.grant;
  lane.on = lane.open;
  lane.alone = lane.exclusive;
  lane.ends = &lane.program->ends(width);
  lane.position = (*lane.ends)[lane.next];
  if (moved) lane.position -= options_.move_ns + options_.creation_ns;
  lane.stop = lane.program->kernels();
  if (lane.launches != 0) lane.stop = std::min(lane.stop, lane.next + lane.launches);
  lane.bandwidth = lane.program->bandwidth(width);
  lane.occupancy = std::min(1.0, lane.program->occupancy() / part_of(lane.on));
  lane.started_ns = now_ns_;
  lane.running = true;
  lane.end_ns = kForever;  // until set_rates says
  running_.push_back(static_cast<std::size_t>(&lane - lanes_.data()));
  rates_changed_ = true;
}

void Device::stopped(Lane& lane) {
  lane.running = false;
  rates_changed_ = true;
  const std::uint32_t launched = lane.stop - lane.next;
  result_.operations += launched;
  lane.launched += launched;
  lane.work_ns += work(lane, lane.next, lane.stop);
  const bool leaves = lane.held != lane.grant;
  if (leaves && lane.on != lane.open)
    lane.misplaced_ns += work(lane, std::max(lane.next, lane.drains), lane.stop);
  lane.next = lane.stop;
  const bool ended = lane.next == lane.program->kernels();
  if (leaves) {
    give_back(lane, lane.held);
  } else if (lane.launches != 0) {
    lane.launches -= std::min(lane.launches, launched);
    // Such a grant is for one iteration at most.
    if (lane.launches == 0 || ended) end_grant(lane);
  }
  if (ended)
    program_ended(lane);
  else if (lane.grant == scheduler::kNoGrant && (!lane.wanting || lane.asks_again))
    begin_program(lane, false);
  else
    start(lane);
}

void Device::program_ended(Lane& lane) {
  switch (lane.role) {
    case Role::kTraining:
      ++lane.steps_done;
      lane.next = 0;
      begin_program(lane, true);
      return;
    case Role::kDecode:
      step_ended(services_[lane.service]);
      return;
    case Role::kPrefill: {
      Service& service = services_[lane.service];
      const std::vector<std::size_t> finishing = std::move(service.finishing);
      for (std::size_t i = 0; i < finishing.size(); ++i) service.prompts.pop_front();
      service.prompt_done = service.chunk_left;
      for (const std::size_t request : finishing) prompt_ended(service, request);
      next_chunk(service);
      return;
    }
  }
}

Result Device::collect() {
  Result result = std::move(result_);
  result.simulated_s = now_ns_ * 1e-9;
  for (const Service& service : services_)
    for (std::size_t i = 0; i < service.requests.size(); ++i)
      if (service.requests[i].at_s >= options_.warm_up_s ||
          service.requests.back().at_s < 10 * options_.warm_up_s)
        result.requests.push_back(service.times[i]);
  for (const Lane& lane : lanes_)
    if (lane.role == Role::kTraining && lane.program != nullptr) {
      // The step under way counts by its share.
      const double part = static_cast<double>(lane.next) / lane.program->kernels();
      result.training.push_back({lane.program->name(),
                                 (static_cast<double>(lane.steps_done) + part) / result.simulated_s,
                                 1e9 / lane.program->total_ns(lane.program->processors())});
    }
  for (const Played& played : played_) {
    const Job& job = played.player.job();
    if (job.serves()) {
      for (std::size_t i = 0; i < played.times.size(); ++i)
        if (played.requests[i].at_s >= options_.warm_up_s)
          result.requests.push_back(played.times[i]);
      continue;
    }
    const Lane& lane = lanes_[played.lane];
    const double kernels = static_cast<double>(
        std::count_if(job.parts[0].operations.begin(), job.parts[0].operations.end(),
                      [](const Job::Operation& each) { return each.call == Job::Call::kKernel; }));
    result.training.push_back({job.name,
                               static_cast<double>(lane.launched) / kernels / result.simulated_s,
                               1e9 / played.usual_ns[0]});
  }
  const scheduler::SchedulerCounters& counters = scheduler_.counters();
  result.policy = scheduler_.policy().name;
  result.grants = counters.grants;
  result.revoked = counters.revoked;
  result.aged = counters.aged;
  result.plans = counters.plans;
  result.faults = counters.faults;
  result.message = scheduler_.fault();
  return result;
}

}  // namespace vitamin::sim
