// SPDX-License-Identifier: Apache-2.0
#include "sim/device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace vitamin::sim {

using runtime::Decision;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::OperationClass;

namespace {

// What others have moved lately is what the L2 cache holds: 60 MB, filled at the full bandwidth.
constexpr double kCacheNs = 60e6 / kBandwidth * 1e9;
// A grant that a client does not use for so long it gives back (client/lease_client.cpp).
constexpr double kUnclaimedNs = 200e3;
constexpr std::uint64_t kKvTokens = 800'000;  // 105 GB of the H200's 141 beside the weights
// A prompt's keys and values are read and written once on their way to the decoding client.
constexpr double kCopyNsPerToken = 2 * kKvBytesPerToken / kBandwidth * 1e9;

}  // namespace

Device::Device(const runtime::PoolLayout& layout, std::unique_ptr<runtime::Policy> policy,
               const runtime::Profile& profile, Library& library, const DeviceOptions& options)
    : layout_(layout),
      scheduler_(layout, std::move(policy), options.scheduler, &profile),
      library_(library),
      options_(options) {
  result_.policy = scheduler_.policy().name();
  result_.occupancy_bin_s = options.occupancy_bin_s;
}

void Device::add_service(std::vector<Request> requests) {
  Service service;
  service.times.resize(requests.size());
  service.first_ns.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i)
    service.times[i].output_tokens = requests[i].output_tokens;
  service.requests = std::move(requests);
  for (const Role role : {Role::kPrefill, Role::kDecode}) {
    Lane lane;
    lane.client = static_cast<runtime::ClientId>(lanes_.size() + 1);
    lane.role = role;
    lane.service = services_.size();
    (role == Role::kPrefill ? service.prefill : service.decode) = lanes_.size();
    lanes_.push_back(lane);
  }
  services_.push_back(std::move(service));
}

void Device::add_training(const Program& step) {
  Lane lane;
  lane.client = static_cast<runtime::ClientId>(lanes_.size() + 1);
  lane.program = &step;
  lanes_.push_back(lane);
}

void Device::add_job(const Job& job, std::vector<Request> requests) {
  Lane lane;
  lane.client = static_cast<runtime::ClientId>(lanes_.size() + 1);
  lane.role = job.serves() ? Role::kDecode : Role::kTraining;
  lane.played = played_.size();
  Played& played = played_.emplace_back(job, std::move(requests));
  played.lane = lanes_.size();
  for (std::size_t i = 0; i < played.requests.size(); ++i)
    played.times[i].output_tokens = played.requests[i].output_tokens;
  for (const Job::Part& part : job.parts)
    played.usual_ns.push_back(alone_ns(job, part, layout_.at(0).processors));
  lanes_.push_back(lane);
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
  for (Lane& lane : lanes_) {
    scheduler_.progressed(lane.client, 0);
    if (lane.role == Role::kTraining && lane.played == kNone) want(lane, false);
  }
  for (Played& played : played_) {
    const Job& job = played.player.job();
    if (job.serves()) continue;
    // Two steps at most are under way.
    for (int i = 0; i < 2; ++i) played.player.play(job.parts[0], 0);
    want(played, job.parts[0], false);
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
        lane.occupancy = lane.kernel->share;
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
    drop_unclaimed();
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
  for (const std::size_t index : unclaimed_)
    next = std::min(next, lanes_[index].unclaimed_until_ns);
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
  if (scheduler_.wake_at() != runtime::kNever)
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
        const double processors = lane.on == runtime::kWholeDevice
                                      ? lane.occupancy * lane.rate * layout_.at(0).processors
                                      : layout_.at(lane.on).processors;
        result_.occupancy[bin][static_cast<std::size_t>(lane.role)] +=
            processors * (until - from) / bin_ns;
      }
      from = until > from ? until : to_ns;
    }
    if (!played_.empty()) {
      const double kept = std::exp(-step / kCacheNs);
      for (const Played& played : played_) {
        Lane& lane = lanes_[played.lane];
        const double moves = lane.running ? lane.bandwidth * lane.rate : 0;
        lane.moved = moves + (lane.moved - moves) * kept;
      }
    }
    for (const std::size_t index : running_) {
      Lane& lane = lanes_[index];
      lane.position += step * lane.rate;
      result_.width_s[layout_.at(lane.on).processors] += step * 1e-9;
    }
  }
  now_ns_ = std::max(now_ns_, to_ns);
}

// Who slows whom down, until the set of running lanes changes.
void Device::set_rates() {
  // Whoever is on the whole device is on everybody's processors; who is on a part is on its own.
  double shared = 0, leased = 0;
  for (const std::size_t index : running_) {
    const Lane& lane = lanes_[index];
    if (lane.on == runtime::kWholeDevice)
      shared += lane.occupancy;
    else
      leased += static_cast<double>(layout_.at(lane.on).processors) / layout_.at(0).processors;
  }
  double bandwidth = 0;
  double places = 1 - leased;  // of the whole device, for whoever's kernel began first
  for (const std::size_t index : running_) {
    Lane& lane = lanes_[index];
    if (lane.played != kNone) {
      lane.rate = kernel_rate(lane, &places);
      bandwidth += lane.bandwidth * lane.rate;
      continue;
    }
    const bool whole = lane.on == runtime::kWholeDevice;
    const double others = whole ? shared - lane.occupancy + leased : shared;
    lane.rate = 1 / lane.program->stretch(layout_.at(lane.on).processors, others);
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

// Of a recorded job's kernel: on a part it meets only those on the whole device; there the kernel
// that began first takes its places first. Running lanes are in the order in which they began.
double Device::kernel_rate(const Lane& lane, double* places) const {
  const bool whole = lane.on == runtime::kWholeDevice;
  if (whole && options_.turn_ns > 0)
    return &lane == &lanes_[turn_] && now_ns_ >= turn_begins_ns_ ? 1 : 0;
  // Those that are simulated many kernels at once share on average (Program::stretch).
  double average = 0, kernels = 0;
  for (const std::size_t index : running_) {
    const Lane& other = lanes_[index];
    if (&other == &lane || other.on != runtime::kWholeDevice) continue;
    (other.played == kNone ? average : kernels) += other.occupancy;
  }
  if (!whole) {
    const double all = layout_.at(0).processors, mine = layout_.at(lane.on).processors;
    return 1 / (1 + std::min(1.0, lane.occupancy * all / mine) * (average + kernels));
  }
  if (lane.occupancy == 0) return 1;  // a copy or a fill
  const double taken = std::clamp(*places, 0.0, lane.occupancy);
  *places -= taken;
  return taken / lane.occupancy / (1 + lane.occupancy * average);
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

void Device::want(Played& played, const Job::Part& part, bool iteration_end) {
  Lane& lane = lanes_[played.lane];
  const auto number = static_cast<std::size_t>(&part - played.player.job().parts.data());
  const double usual = played.usual_ns[number];
  played.part = &part;
  runtime::ReadyOperation operation;
  operation.id = ++lane.step;
  operation.client = lane.client;
  operation.kernel = part.key;
  operation.kind = part.kind;
  operation.queued_ns = static_cast<std::uint64_t>(usual);
  operation.predicted_ns = operation.queued_ns / part.operations.size();
  operation.iteration_end = iteration_end;
  if (part.kind == OperationClass::kDecode)
    operation.deadline_ns = now() + static_cast<std::uint64_t>(options_.slack * usual);
  operation.right_of_way = options_.right_of_way && played.player.job().serves();
  played.operation = operation;
  // As a client does: a grant of so many launches is for one iteration at most.
  if (iteration_end && lane.open != kNoEntry && !lane.running &&
      lane.launches != runtime::kUntilChanged)
    use_up(lane);
}

void Device::begin_request(Played& played, double at_ns) {
  const Job& job = played.player.job();
  const Request& request = played.requests[played.request];
  played.serving = true;
  played.tokens_left = request.output_tokens - 1;
  played.player.play(job.parts[0], at_ns, request.host_pace);
  for (std::uint32_t i = 0; i < played.tokens_left; ++i)
    played.player.play(job.parts[1], at_ns, request.host_pace);
  want(played, job.parts[0], true);
}

// The device has ended a step, or what gives a token, which the host sees somewhat later.
void Device::part_ended(Played& played) {
  const Job& job = played.player.job();
  Lane& lane = lanes_[played.lane];
  if (!job.serves()) {
    ++lane.steps_done;
    played.player.play(job.parts[0], now_ns_);
    want(played, job.parts[0], true);
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
  if (played.tokens_left > 0) return want(played, job.parts[1], true);
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
  const bool last = played.player.ended(now_ns_);
  if (lane.leaving) {
    if (lane.leave_after == 0) {
      lane.leaving = false;
      give_back(lane, lane.on);
    } else {
      --lane.leave_after;
    }
  } else if (lane.launches != runtime::kUntilChanged && --lane.launches == 0) {
    use_up(lane);
  }
  if (last) part_ended(played);
  rest(lane);
}

// Asks for what its host has come to.
void Device::ask(Played& played) {
  Lane& lane = lanes_[played.lane];
  if (lane.open == kNoEntry && !lane.wanting && has_work(lane)) say(lane, played.operation);
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
  const double stretch = lane.kernel->stretch[layout_.at(entry).processors];
  lane.length = std::max(1.0, operation->ns * stretch);
  lane.position = 0;
  lane.bandwidth = lane.kernel->memory / stretch;
  lane.alone_until = entry == runtime::kWholeDevice ? lane.kernel->full * lane.length : 0;
  lane.occupancy = lane.alone_until > 0 ? 1 : lane.kernel->share;
  lane.running = true;
  lane.unclaimed = false;
  lane.end_ns = kForever;  // until set_rates says
  running_.push_back(played.lane);
  rates_changed_ = true;
}

// --- requests --------------------------------------------------------------------------------

void Device::arrive() {
  for (Service& service : services_) {
    const bool was_idle = service.prompts.empty();
    for (; service.arrived < service.requests.size() &&
           service.requests[service.arrived].at_s * 1e9 <= now_ns_;
         ++service.arrived)
      service.prompts.push_back(service.arrived);
    if (was_idle && !service.prompts.empty()) next_chunk(service);
  }
  for (Played& played : played_)
    if (!played.serving && played.request < played.requests.size() &&
        played.requests[played.request].at_s * 1e9 <= now_ns_)
      begin_request(played, now_ns_);
  for (; !timers_.empty() && timers_.top().at_ns <= now_ns_; timers_.pop()) {
    Service& service = services_[timers_.top().service];
    service.joining.push_back(timers_.top().joins);
    if (lanes_[service.decode].program == nullptr) next_step(service);
  }
}

// As many tokens of the prompts, in order, as a chunk holds.
void Device::next_chunk(Service& service) {
  Lane& lane = lanes_[service.prefill];
  if (service.prompts.empty()) {
    lane.program = nullptr;
    rest(lane);
    return;
  }
  std::uint32_t tokens = 0;
  service.finishing.clear();
  service.chunk_left = 0;
  const std::uint32_t before = service.prompt_done;
  std::uint32_t done = service.prompt_done;
  for (const std::size_t request : service.prompts) {
    const std::uint32_t left = service.requests[request].prompt_tokens - done;
    const std::uint32_t taken = std::min(left, kPrefillChunk - tokens);
    tokens += taken;
    if (taken < left) {
      service.chunk_left = done + taken;
      break;
    }
    service.finishing.push_back(request);
    done = 0;
    if (tokens == kPrefillChunk) break;
  }
  lane.program = &library_.prefill(tokens, before);
  lane.next = 0;
  want(lane, true);
}

void Device::prompt_ended(Service& service, std::size_t request) {
  const Request& asked = service.requests[request];
  service.times[request].ttft_ms = now_ns_ * 1e-6 - asked.at_s * 1e3;
  service.first_ns[request] = now_ns_;
  if (asked.output_tokens <= 1) {
    finish(service, request, now_ns_);
    return;
  }
  // Its keys and values are copied; the decode recorded behind the copy is what lookahead sees.
  const double ready = now_ns_ + kCopyNsPerToken * asked.prompt_tokens;
  const Running joins{request, asked.output_tokens - 1, asked.prompt_tokens, now_ns_};
  timers_.push({ready, static_cast<std::size_t>(&service - services_.data()), joins});
  const Lane& lane = lanes_[service.decode];
  if (lane.program != nullptr) return;
  const Program& program = library_.decode(1, asked.prompt_tokens);
  runtime::Hint hint;
  hint.client = lane.client;
  hint.processors = 1;
  hint.kernel = program.key();
  hint.kind = OperationClass::kDecode;
  hint.queued_ns = static_cast<std::uint64_t>(program.total_ns(program.processors()));
  hint.ready_at_ns = static_cast<std::uint64_t>(ready);
  hint.deadline_ns = now() + static_cast<std::uint64_t>(options_.target_tpot_ms * 1e6);
  scheduler_.hint(hint, now());
}

void Device::next_step(Service& service) {
  Lane& lane = lanes_[service.decode];
  std::uint64_t context = 0;
  for (const Running& running : service.batch) context += running.context;
  while (!service.joining.empty() && service.batch.size() < kDecodeBatch &&
         context + service.joining.front().context <= kKvTokens) {
    context += service.joining.front().context;
    service.batch.push_back(service.joining.front());
    service.joining.pop_front();
  }
  if (service.batch.empty()) {
    lane.program = nullptr;
    rest(lane);
    return;
  }
  double oldest = now_ns_;
  for (const Running& running : service.batch) oldest = std::min(oldest, running.last_ns);
  // Those for whom there is no room in the batch wait for their token, too.
  for (const Running& running : service.joining) oldest = std::min(oldest, running.last_ns);
  lane.deadline_ns = oldest + options_.target_tpot_ms * 1e6;
  lane.program = &library_.decode(static_cast<std::uint32_t>(service.batch.size()), context);
  lane.next = 0;
  want(lane, true);
}

void Device::step_ended(Service& service) {
  for (Running& running : service.batch) {
    result_.itl_ms.add((now_ns_ - running.last_ns) * 1e-6);
    running.last_ns = now_ns_;
    ++running.context;
    if (--running.left == 0) finish(service, running.request, now_ns_);
  }
  std::erase_if(service.batch, [](const Running& running) { return running.left == 0; });
  next_step(service);
}

void Device::finish(Service& service, std::size_t request, double last_ns) {
  RequestTimes& times = service.times[request];
  times.finished = true;
  if (times.output_tokens > 1)
    times.tpot_ms = (last_ns - service.first_ns[request]) * 1e-6 / (times.output_tokens - 1);
  ++service.finished;
}

// --- lanes -----------------------------------------------------------------------------------

void Device::want(Lane& lane, bool iteration_end) {
  const Program& program = *lane.program;
  runtime::ReadyOperation operation;
  operation.id = ++lane.step;
  operation.client = lane.client;
  operation.kernel = program.key();
  operation.kind = program.kind();
  const double whole = program.total_ns(program.processors());
  operation.predicted_ns = static_cast<std::uint64_t>(whole / program.kernels());
  operation.queued_ns = static_cast<std::uint64_t>(whole);
  operation.iteration_end = iteration_end;
  if (lane.role == Role::kDecode) {
    operation.target_ns = static_cast<std::uint64_t>(options_.target_tpot_ms * 1e6);
    // Decodes that wait for room in the batch are work ahead of the deadline as well.
    const Service& service = services_[lane.service];
    const double waiting = static_cast<double>(service.joining.size());
    operation.queued_ns = static_cast<std::uint64_t>(
        whole * (1 + waiting / static_cast<double>(service.batch.size())));
    operation.deadline_ns = static_cast<std::uint64_t>(lane.deadline_ns);
  }
  // Its host has waited for the end of what was before: with nothing to submit, and no grant, it
  // was idle.
  if (lane.role != Role::kTraining) rest(lane);
  say(lane, operation);
  if (!lane.running) start(lane);
}

// As a client of vitamind: who has no grant asks for one, and then says nothing more, but where the
// engine says when a step is due.
void Device::say(Lane& lane, const runtime::ReadyOperation& operation) {
  if (lane.open == kNoEntry && !std::exchange(lane.wanting, true))
    return scheduler_.wants(operation, now());
  if (!options_.says_steps || lane.role != Role::kDecode || lane.played != kNone) return;
  runtime::Hint hint;
  hint.client = lane.client;
  hint.processors = operation.processors;
  hint.kernel = operation.kernel;
  hint.kind = operation.kind;
  hint.queued_ns = operation.queued_ns;
  hint.deadline_ns = operation.deadline_ns;
  scheduler_.hint(hint, now());
}

// It keeps the grant that it has; without one it has nothing to wait for.
void Device::rest(Lane& lane) {
  if (lane.played != kNone ? has_work(lane) : lane.running) return;
  if (lane.open == kNoEntry && std::exchange(lane.wanting, false))
    scheduler_.idle(lane.client, 0, now());
}

bool Device::has_work(const Lane& lane) const {
  if (lane.running) return true;
  return lane.played != kNone ? played_[lane.played].player.asked(now_ns_) > 0
                              : lane.program != nullptr;
}

// The launches that it was granted.
void Device::use_up(Lane& lane) {
  give_back(lane, std::exchange(lane.open, kNoEntry));
  if (std::exchange(lane.wanting, false)) scheduler_.idle(lane.client, 0, now());
}

void Device::drop_unclaimed() {
  std::erase_if(unclaimed_, [&](std::size_t index) {
    Lane& lane = lanes_[index];
    if (!lane.unclaimed || lane.open == kNoEntry) return true;
    if (lane.unclaimed_until_ns > now_ns_) return false;
    give_back(lane, std::exchange(lane.open, kNoEntry));
    rest(lane);
    return true;
  });
}

void Device::start(Lane& lane) {
  if (lane.open == kNoEntry || lane.program == nullptr) return;
  const std::uint32_t width = layout_.at(lane.open).processors;
  const bool moved = lane.on != lane.open;
  lane.on = lane.open;
  lane.ends = &lane.program->ends(width);
  lane.position = (*lane.ends)[lane.next];
  if (moved) lane.position -= options_.move_ns + options_.creation_ns;
  lane.stop = lane.program->kernels();
  if (lane.launches != runtime::kUntilChanged)
    lane.stop = std::min(lane.stop, lane.next + lane.launches);
  lane.bandwidth = lane.program->bandwidth(width);
  lane.occupancy = lane.program->occupancy();
  lane.started_ns = now_ns_;
  lane.running = true;
  lane.unclaimed = false;
  lane.end_ns = kForever;  // until set_rates says
  running_.push_back(static_cast<std::size_t>(&lane - lanes_.data()));
  rates_changed_ = true;
}

// Stops behind what is submitted already.
void Device::drain(Lane& lane) {
  if (lane.played != kNone) {
    const PlayedJob& player = played_[lane.played].player;
    const std::uint32_t width = layout_.at(lane.on).processors;
    double left = std::min(options_.window_ns, lane.ahead_ns) - (lane.length - lane.position);
    lane.leaving = true;
    lane.leave_after = 0;
    for (std::size_t i = 1, asked = player.asked(now_ns_); i < asked && left > 0; ++i) {
      const Job::Operation& operation = player.ahead(i);
      left -= player.job().gap_ns +
              operation.ns * static_cast<double>(player.job().kernels[operation.of].stretch[width]);
      ++lane.leave_after;
    }
    return;
  }
  lane.stop = submitted(lane);
  rates_changed_ = true;
}

void Device::give_back(Lane& lane, EntryId entry) {
  scheduler_.returned(lane.client, 0, entry, now());
}

void Device::stopped(Lane& lane) {
  lane.running = false;
  rates_changed_ = true;
  const std::uint32_t launched = lane.stop - lane.next;
  result_.operations += launched;
  lane.launched += launched;
  lane.next = lane.stop;
  const bool ended = lane.next == lane.program->kernels();
  if (lane.on != lane.open) {
    give_back(lane, lane.on);
  } else if (lane.launches != runtime::kUntilChanged) {
    lane.launches -= std::min(lane.launches, launched);
    if (lane.launches == 0) use_up(lane);
  }
  if (ended)
    program_ended(lane);
  else if (lane.open == kNoEntry && !lane.wanting)
    want(lane, false);
  else
    start(lane);
}

void Device::program_ended(Lane& lane) {
  switch (lane.role) {
    case Role::kTraining:
      ++lane.steps_done;
      lane.next = 0;
      want(lane, true);
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

// --- the scheduler ---------------------------------------------------------------------------

void Device::obey() {
  for (Played& played : played_) ask(played);
  for (int round = 0; round < 64; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (scheduler_.look_at() <= now())
      for (const Lane& lane : lanes_) scheduler_.progressed(lane.client, launched(lane));
    const auto given = scheduler_.decide(now());
    result_.deciding_s +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (given.empty()) break;
    ++result_.decisions;
    const std::vector<Decision> decisions(given.begin(), given.end());
    for (const Decision& decision : decisions) follow(decision);
    // A closed gate may have come with another grant.
    for (const Decision& decision : decisions)
      if (Lane& lane = lanes_[decision.client - 1]; !has_work(lane)) rest(lane);
  }
  for (Played& played : played_) play(played);
  if (options_.turn_ns > 0) take_turns();
  if (rates_changed_ || options_.turn_ns > 0) set_rates();
}

void Device::follow(const Decision& decision) {
  const std::size_t index = decision.client - 1;
  Lane& lane = lanes_[index];
  const bool runs_there = lane.running && lane.on == decision.entry;
  if (decision.kind == Decision::Kind::kCloseGate) {
    if (lane.open == decision.entry) lane.open = kNoEntry;
    if (runs_there)
      drain(lane);
    else
      give_back(lane, decision.entry);
    return;
  }
  lane.open = decision.entry;
  lane.launches = decision.launches;
  lane.ahead_ns =
      decision.ahead_ns == runtime::kNever ? kForever : static_cast<double>(decision.ahead_ns);
  if (!has_work(lane)) {
    if (!std::exchange(lane.unclaimed, true)) {
      unclaimed_.push_back(index);
      lane.unclaimed_until_ns = now_ns_ + kUnclaimedNs;
    }
  } else if (!lane.running) {
    if (lane.played == kNone) start(lane);  // else it begins in play()
  } else if (!runs_there) {
    drain(lane);
  }
}

// Kernels of the program under way that have begun by that position in it.
std::uint32_t Device::begun(const Lane& lane, double position) {
  const std::vector<double>& ends = *lane.ends;
  const auto end = std::lower_bound(ends.begin() + lane.next + 1, ends.end(), position);
  return static_cast<std::uint32_t>(std::min(end, ends.end() - 1) - ends.begin());
}

// Kernels of the program under way that its host has submitted by now, those before it was given
// what it runs on included. What was submitted runs on, whatever happens.
std::uint32_t Device::submitted(const Lane& lane) const {
  const std::uint32_t current = begun(lane, lane.position);
  std::uint32_t count = begun(lane, lane.position + std::min(options_.window_ns, lane.ahead_ns));
  // A host that is slower than that.
  if (const double host_ns = lane.program->host_ns(); host_ns > 0)
    count = std::min(
        count, lane.next + 1 + static_cast<std::uint32_t>((now_ns_ - lane.started_ns) / host_ns));
  return std::clamp(count, current, std::max(current, lane.stop));
}

// What a client of vitamind counts: kernels that it has submitted. A host that trains does not wait
// for the device, so it submits as fast as the device runs them.
std::uint64_t Device::launched(const Lane& lane) const {
  if (lane.played != kNone) {
    const bool may = lane.open != kNoEntry;
    return lane.launched + (may            ? played_[lane.played].player.asked(now_ns_)
                            : lane.running ? 1
                                           : 0);
  }
  if (!lane.running) return lane.launched;
  const bool waits = lane.role != Role::kTraining;
  return lane.launched + (waits ? submitted(lane) : begun(lane, lane.position)) - lane.next;
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
  const runtime::SchedulerCounters& counters = scheduler_.counters();
  result.grants = counters.grants;
  result.moves = counters.moves;
  result.recalled = counters.recalled;
  result.overdue = counters.overdue;
  result.refused = counters.refused;
  result.message = scheduler_.policy().take_message();
  return result;
}

}  // namespace vitamin::sim
