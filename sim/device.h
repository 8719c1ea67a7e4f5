// SPDX-License-Identifier: Apache-2.0
//
// One GPU in virtual time: clients run their kernels one after the other on what the production
// scheduler (runtime/scheduler.h) grants them.
//
// Time advances from event to event: a kernel boundary at which somebody has to decide, an arrival,
// the scheduler's own wake-up. Between two of them a client runs through any number of kernels: all
// of them are simulated one by one, in a table of their ends, and none costs an event.
//
// Model: a kernel takes T(m) on m processors (sim/program.h); a closed gate lets run what is
// submitted (`window_ns`) and no kernel is preempted; a move costs a 2 us edge. Clients slow each
// other down when they ask for more than the memory's bandwidth together, or share processors,
// block by block (the whole device, which nobody leases: Program::stretch).
//
// Recorded jobs (sim/job.h) are simulated kernel by kernel, an event each. On the whole device the
// blocks of the kernel that started first take their places first, others get what is left (the
// rule that is known of NVIDIA's block scheduler: Amert et al., GPU Scheduling on the NVIDIA TX2,
// RTSS 2017; Olmedo et al., Dissecting the CUDA scheduling hierarchy, RTAS 2020); or, where
// `turn_ns` says so, jobs have the device to themselves in turns, as without MPS.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "runtime/profile.h"
#include "runtime/scheduler.h"
#include "sim/metrics.h"
#include "sim/played_job.h"
#include "sim/trace.h"
#include "sim/workloads.h"

namespace vitamin::sim {

struct DeviceOptions {
  runtime::SchedulerOptions scheduler;
  double target_tpot_ms = 30;  // deadline of a step: the last token's end and this
  // Submitted ahead of completion, at most, which drains behind a closed gate; what a grant says is
  // less comes first.
  double window_ns = std::numeric_limits<double>::infinity();
  // Engines say of each step when it is due and how long it takes, also while they hold a grant
  // (vitamin_expect); else only when they ask for one.
  bool says_steps = true;
  double move_ns = 2'000;
  double creation_ns = 0;  // of an entry at each grant: on-demand contexts cost 1.3 ms
  double warm_up_s = 3;    // requests that arrive earlier are not counted
  double limit_s = 0;      // ends there, whatever is unfinished; 0: 120 s behind the last one
  double occupancy_bin_s = 1;
  // Recorded jobs on the whole device take turns of so long; 0: they share it.
  double turn_ns = 0;
  // Recorded jobs that answer requests are of a latency class without a target.
  bool right_of_way = false;
  double slack = 1.2;    // recorded decodes say that they are to end within so many times the usual
  double switch_ns = 0;  // lost at each change of turns
};

class Device {
 public:
  Device(const runtime::PoolLayout& layout, std::unique_ptr<runtime::Policy> policy,
         const runtime::Profile& profile, Library& library, const DeviceOptions& options);
  // A service: a client that prefills and one that decodes.
  void add_service(std::vector<Request> requests);
  // A training job that never ends.
  void add_training(const Program& step);
  // A recorded job, which outlives this: it repeats its step for ever, or it answers requests, one
  // after the other, of as many tokens as asked for (its prompts are as they were recorded).
  void add_job(const Job& job, std::vector<Request> requests = {});
  Result run();

 private:
  enum class Role : std::uint8_t { kPrefill, kDecode, kTraining };  // columns of occupancy
  static constexpr std::size_t kNone = ~std::size_t{0};

  struct Lane {
    runtime::ClientId client = 0;
    Role role = Role::kTraining;
    std::size_t service = 0;
    const Program* program = nullptr;  // null: nothing to do
    std::uint64_t step = 0;
    std::uint32_t next = 0;  // kernel
    runtime::EntryId open = runtime::kNoEntry;
    std::uint32_t launches = 0;
    double ahead_ns = 0;     // of what it may submit
    bool wanting = false;    // the scheduler believes that it has something to submit
    bool unclaimed = false;  // it was granted what it has not used yet
    double unclaimed_until_ns = 0;
    bool running = false;
    runtime::EntryId on = runtime::kNoEntry;
    const std::vector<double>* ends = nullptr;  // of the program on that width
    double position = 0;                        // in *ends
    double started_ns = 0;                      // when its host began to submit, from `next` on
    std::uint32_t stop = 0;                     // the kernel before which it stops
    double rate = 1;
    double slowed = 1;  // of it, by what others take of the memory's bandwidth
    double bandwidth = 0, occupancy = 0;
    double end_ns = 0;  // at this rate
    std::uint64_t steps_done = 0;
    std::uint64_t launched = 0;  // kernels, up to `next`
    double deadline_ns = 0;
    // Of a recorded job.
    std::size_t played = kNone;
    const Job::Kernel* kernel = nullptr;  // that runs
    double length = 0;                    // of it, at rate 1; `position` counts from 0
    double moved = 0;                     // share of the bandwidth, lately
    double alone_until = 0;               // it takes all places until that position
    double ended_ns = 0;                  // the one before it
    bool leaving = false;                 // its gate is closed; it has `on` until
    std::uint32_t leave_after = 0;        // so many more kernels have ended
  };

  struct Played {
    Played(const Job& job, std::vector<Request> asked)
        : player(job), requests(std::move(asked)), times(requests.size()) {}
    PlayedJob player;
    std::vector<Request> requests;
    std::vector<RequestTimes> times;
    std::size_t lane = 0;
    std::size_t request = 0;  // next or under way
    bool serving = false;
    const Job::Part* part = nullptr;    // that the device is at
    runtime::ReadyOperation operation;  // of it
    std::uint32_t tokens_left = 0;
    double first_ns = 0, token_ns = 0;  // when the host saw the first token, the last one
    double wake_ns = 0;                 // when something of it may start
    std::vector<double> usual_ns;       // of each part, alone on the whole device
  };

  struct Running {
    std::size_t request;
    std::uint32_t left;
    std::uint64_t context;
    double last_ns;
  };
  struct Service {
    std::vector<Request> requests;
    std::vector<RequestTimes> times;
    std::vector<double> first_ns;
    std::size_t arrived = 0;
    std::deque<std::size_t> prompts;     // waiting or in part done
    std::uint32_t prompt_done = 0;       // tokens of the first
    std::vector<std::size_t> finishing;  // whose prompt the running chunk ends
    std::uint32_t chunk_left = 0;        // tokens of the next prompt that the running chunk holds
    std::deque<Running> joining;
    std::vector<Running> batch;
    std::size_t prefill = 0, decode = 0;  // lanes
    std::size_t finished = 0;
  };
  struct Timer {
    double at_ns;
    std::size_t service;
    Running joins;
    bool operator>(const Timer& other) const { return at_ns > other.at_ns; }
  };

  void advance(double to_ns);
  void arrive();
  void next_chunk(Service& service);
  void prompt_ended(Service& service, std::size_t request);
  void next_step(Service& service);
  void step_ended(Service& service);
  void finish(Service& service, std::size_t request, double last_ns);
  void stopped(Lane& lane);
  void program_ended(Lane& lane);
  void want(Lane& lane, bool iteration_end);
  void say(Lane& lane, const runtime::ReadyOperation& operation);
  void rest(Lane& lane);
  void use_up(Lane& lane);
  void ask(Played& played);
  bool has_work(const Lane& lane) const;
  void drop_unclaimed();
  static std::uint32_t begun(const Lane& lane, double position);
  std::uint32_t submitted(const Lane& lane) const;
  void start(Lane& lane);
  void drain(Lane& lane);
  void obey();
  void follow(const runtime::Decision& decision);
  void give_back(Lane& lane, runtime::EntryId entry);
  void set_rates();
  double next_event() const;
  void play(Played& played);
  void begin_request(Played& played, double at_ns);
  void want(Played& played, const Job::Part& part, bool iteration_end);
  void kernel_ended(Lane& lane);
  void part_ended(Played& played);
  void take_turns();
  double kernel_rate(const Lane& lane, double* places) const;
  bool complete() const;
  std::uint64_t now() const { return static_cast<std::uint64_t>(now_ns_); }
  std::uint64_t launched(const Lane& lane) const;
  Result collect();

  const runtime::PoolLayout& layout_;
  runtime::Scheduler scheduler_;
  Library& library_;
  DeviceOptions options_;
  std::vector<Lane> lanes_;
  std::vector<Service> services_;
  std::deque<Played> played_;
  double link_free_ns_ = 0;
  std::size_t turn_ = kNone;  // lane whose turn it is
  double turn_ends_ns_ = 0, turn_begins_ns_ = 0;
  std::vector<std::size_t> running_;    // lanes
  std::vector<std::size_t> unclaimed_;  // lanes
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  double now_ns_ = 0;
  bool rates_changed_ = false;
  Result result_;
};

}  // namespace vitamin::sim
