// SPDX-License-Identifier: Apache-2.0
//
// One GPU in virtual time: clients run their kernels one after the other on what the scheduler of
// vitamind (scheduler/scheduler.h), with its ledger, estimator and policies, grants them. Messages
// and grants take no time; all else is as daemon/arbiter/device_arbiter.h and
// daemon/client/lease_client.h do it.
//
// Time advances from event to event: a kernel boundary at which a client or the scheduler has to
// decide, an arrival, the scheduler's own wake-up. Between two of them a client runs through any
// number of kernels: all of them are simulated one by one, in a table of their ends, and none costs
// an event.
//
// Model: a kernel takes T(m) on m SMs (program.h); what is submitted when a grant is
// revoked (`window_ns`) still runs, and no kernel is preempted; a move costs a 2 us edge. Clients
// slow each other down when they ask for more than the memory's bandwidth together, or where their
// partitions overlap, block by block (Program::stretch).
//
// Recorded jobs (job.h) are simulated kernel by kernel, an event each. Where partitions overlap
// the blocks of the kernel that started first take their places first, others get what is left (the
// rule that is known of NVIDIA's block scheduler: Amert et al., GPU Scheduling on the NVIDIA TX2,
// RTSS 2017; Olmedo et al., Dissecting the CUDA scheduling hierarchy, RTAS 2020); or, where
// `turn_ns` says so, jobs have the whole device to themselves in turns, as without MPS.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "runtime/profile/profile.h"
#include "scheduler/estimator/estimator.h"
#include "scheduler/policies/registry.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulator/metrics.h"
#include "scheduler/simulator/played_job.h"
#include "scheduler/simulator/trace.h"
#include "scheduler/simulator/workloads.h"

namespace vitamin::sim {

struct SimulatedDeviceOptions {
  scheduler::SchedulerOptions scheduler;
  // Bound of each further token, by the class of clients that decode. Token k of a request is due k
  // times this behind the first one.
  double target_tpot_ms = 30;
  // Bound of the first token, from the arrival, by the class of clients that prefill; 0: none, they
  // are of no class. A chunk is due in time for all prompts that wait behind it.
  double target_ttft_ms = 0;
  // Submitted ahead of completion, at most, which drains when a grant is revoked; what a grant says
  // is less comes first.
  double window_ns = std::numeric_limits<double>::infinity();
  // Engines say of each step that it begins, when it is due and how long it takes, also while they
  // hold a grant (vitamin_expect); else only when they ask for one.
  bool says_steps = true;
  double move_ns = 2'000;
  double creation_ns = 0;  // of a partition at each grant: on-demand contexts cost 1.3 ms
  double warm_up_s = 3;    // requests that arrive earlier are not counted
  double limit_s = 0;      // ends there, whatever is unfinished; 0: 120 s behind the last one
  double occupancy_bin_s = 1;
  // Recorded jobs on the whole device take turns of so long; 0: they share it.
  double turn_ns = 0;
  // Recorded jobs that answer requests are of a latency class without a bound; else of no class.
  bool latency_class = false;
  double slack = 1.2;    // recorded decodes say that they are due within so many times the usual
  double switch_ns = 0;  // lost at each change of turns
  std::uint64_t seed = 1;
  // Of the calls of a policy in a shared object, in the time of this machine.
  scheduler::SandboxLimits limits = {};
};

class SimulatedDevice {
 public:
  // Under fifo, until use(). `layout`, `profile` and `library` outlive the object.
  SimulatedDevice(const runtime::PoolLayout& layout, const runtime::Profile& profile,
                  ModelLibrary& library, const SimulatedDeviceOptions& options);
  // What policies of this device are made for (scheduler::make()).
  scheduler::PolicyContext context() {
    return {layout_.partitions(), estimator_, &profile_, options_.seed, options_.limits};
  }
  void use(scheduler::Policy policy) { scheduler_.replace_policy(std::move(policy), 0); }
  // A service: a client that prefills and one that decodes.
  void add_service(std::vector<ServiceRequest> requests);
  // A training job that never ends.
  void add_training(const Program& step);
  // A recorded job, which outlives this: it repeats its step for ever, or it answers requests, one
  // after the other, of as many tokens as asked for (its prompts are as they were recorded).
  void add_job(const RecordedJob& job, std::vector<ServiceRequest> requests = {});
  SimulatedRun run();

 private:
  enum class Role : std::uint8_t { kPrefill, kDecode, kTraining };  // columns of occupancy
  static constexpr std::size_t kNone = ~std::size_t{0};

  // A client, of one stream.
  struct alignas(64) SimulatedClient {
    // What each event reads of a running client comes first, in one cache line.
    double position = 0;  // in *ends
    double rate = 1;
    double length = 0;  // `position` when it stops; of a recorded job's kernel, from 0, at rate 1
    double end_ns = 0;  // at this rate
    double bandwidth = 0;
    double occupancy = 0;     // share of the SMs of `on` that it keeps busy
    std::uint32_t width = 0;  // SMs of `on`
    Role role = Role::kTraining;
    bool alone = false;  // the grant that it runs under is exclusive
    scheduler::ClientId client = scheduler::kNoClient;
    std::size_t service = 0;
    const Program* program = nullptr;  // null: nothing to do
    std::uint32_t next = 0;            // kernel
    // The open grant, its partition and terms.
    scheduler::GrantId grant = scheduler::kNoGrant;
    runtime::PartitionId open = runtime::kNoPartition;
    bool exclusive = false;
    std::uint32_t launches = 0;                         // left, or kNoLaunchBound
    double ahead_ns = 0;                                // of what it may submit
    runtime::PartitionId last = runtime::kNoPartition;  // of the grant before
    bool wanting = false;     // the scheduler believes that it has something to submit
    bool asks_again = false;  // its grant has ended, so that it says once more what it wants
    bool quiet = false;       // in quiet_
    double quiet_until_ns = 0;
    // Steps, as vitamind makes them of what a client says. 0: none.
    std::uint64_t steps = 0, step = 0, expected = 0;
    // What it reports (scheduler::Progress), but for the program under way.
    double work_ns = 0, misplaced_ns = 0, busy_ns = 0;
    bool running = false;
    // The grant that it runs under, which may be revoked, and its partition.
    scheduler::GrantId held = scheduler::kNoGrant;
    runtime::PartitionId on = runtime::kNoPartition;
    std::uint32_t drains = 0;  // the grant was revoked when it had come to this kernel
    const std::vector<double>* ends = nullptr;  // of the program on that width
    double started_ns = 0;                      // when its host began to submit, from `next` on
    std::uint32_t stop = 0;                     // the kernel before which it stops
    double run_ns = 0;                          // it runs since then
    std::uint64_t steps_done = 0;
    std::uint64_t launched = 0;  // kernels, up to `next`
    double deadline_ns = 0;
    // Of a recorded job.
    std::size_t played = kNone;
    const RecordedJob::Kernel* kernel = nullptr;  // that runs
    double moved = 0;                             // share of the bandwidth, lately
    double alone_until = 0;                       // it takes all places until that position
    double ended_ns = 0;                          // the one before it
    bool leaving = false;                         // its grant is revoked; it has `on` until
    std::uint32_t leave_after = 0;                // so many more kernels have ended
  };

  struct Played {
    Played(const RecordedJob& job, std::vector<ServiceRequest> asked)
        : player(job), requests(std::move(asked)), times(requests.size()) {}
    PlayedJob player;
    std::vector<ServiceRequest> requests;
    std::vector<RequestTimes> times;
    std::size_t client = 0;
    std::size_t request = 0;  // next or under way
    bool serving = false;
    const RecordedJob::Part* part = nullptr;  // that the device is at
    bool iteration_end = false;               // one ended before it
    double part_ns = 0;                       // it began then
    std::uint32_t tokens_left = 0;
    double first_ns = 0, token_ns = 0;  // when the host saw the first token, the last one
    double wake_ns = 0;                 // when something of it may start
    std::vector<double> usual_ns;       // of each part, alone on the whole device
    std::vector<double> work_ns;        // of each kernel: the mean of its times
  };

  struct Running {
    std::size_t request;
    std::uint32_t left;
    std::uint64_t context;
    double last_ns;
    double due_ns;  // of its next token
  };
  struct Service {
    std::vector<ServiceRequest> requests;
    std::vector<RequestTimes> times;
    std::vector<double> first_ns;
    std::size_t arrived = 0;
    std::deque<std::size_t> prompts;     // waiting or in part done
    std::uint32_t prompt_done = 0;       // tokens of the first
    std::vector<std::size_t> finishing;  // whose prompt the running chunk ends
    std::uint32_t chunk_left = 0;        // tokens of the next prompt that the running chunk holds
    std::deque<Running> joining;
    std::vector<Running> batch;
    std::size_t prefill = 0, decode = 0;  // clients
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
  void arrive_at_services();
  void next_chunk(Service& service);
  double first_token_due_ns(const Service& service);
  void prompt_ended(Service& service, std::size_t request);
  void next_step(Service& service);
  void step_ended(Service& service);
  void finish(Service& service, std::size_t request, double last_ns);
  void stopped(SimulatedClient& client);
  void program_ended(SimulatedClient& client);
  void begin_program(SimulatedClient& client, bool iteration_end);
  void start(SimulatedClient& client);
  void begin_run(SimulatedClient& client);
  void end_run(std::size_t number);
  void count_busy();
  void set_rates();
  void set_rates_apart();
  double overlapping(const std::vector<double>& by_partition, runtime::PartitionId partition) const;
  double next_event() const;
  void play(Played& played);
  void begin_request(Played& played, double at_ns);
  void begin_part(Played& played, const RecordedJob::Part& part, bool iteration_end);
  void kernel_ended(SimulatedClient& client);
  void part_ended(Played& played);
  void take_turns();
  double kernel_rate(const SimulatedClient& client);
  bool complete() const;
  std::uint64_t now() const { return static_cast<std::uint64_t>(now_ns_); }
  std::uint32_t sms(runtime::PartitionId partition) const { return layout_.at(partition).sms; }
  double part_of(runtime::PartitionId partition) const {
    return static_cast<double>(sms(partition)) / sms(runtime::kWholeDevice);
  }
  SimulatedRun collect();

  // device_grants.cpp: what a client says, and what follows from its grants.
  struct Said {
    std::uint64_t kernel = 0;
    scheduler::StepKind kind = scheduler::StepKind::kUnknown;
    double launch_ns = 0;  // of the next launch
    double work_ns = 0;    // of the step, alone on the whole device
    double due_ns = 0;     // 0: never
    bool iteration_end = false;
  };
  SimulatedClient& add_client(Role role, scheduler::ProgramHash program,
                              const scheduler::ClientTerms& terms);
  void say(SimulatedClient& client, const Said& said, bool each_step);
  void begin_step(SimulatedClient& client, const Said& said);
  void expect_step(SimulatedClient& client, const Said& said, double ready_ns);
  void end_step(SimulatedClient& client);
  void rest(SimulatedClient& client);
  void falls_quiet(SimulatedClient& client, double for_ns);
  void give_up_quiet();
  void say_idle(SimulatedClient& client);
  void ask(Played& played);
  Said said_of(const Played& played) const;
  bool has_work(const SimulatedClient& client) const;
  void obey();
  void report(const SimulatedClient& client);
  void follow(const scheduler::Decision& decision);
  void take_terms(SimulatedClient& client, const scheduler::Decision& decision);
  void give_back(SimulatedClient& client, scheduler::GrantId grant);
  void end_grant(SimulatedClient& client);
  void drain(SimulatedClient& client);
  static void stop_at(SimulatedClient& client, std::uint32_t kernel);
  static std::uint32_t begun(const SimulatedClient& client, double position);
  static std::uint32_t ended(const SimulatedClient& client);
  std::uint32_t submitted(const SimulatedClient& client) const;
  double work(const SimulatedClient& client, std::uint32_t from, std::uint32_t to) const;

  const runtime::PoolLayout& layout_;
  const runtime::Profile& profile_;
  scheduler::Estimator estimator_;
  scheduler::Scheduler scheduler_;
  ModelLibrary& library_;
  SimulatedDeviceOptions options_;
  std::vector<SimulatedClient> clients_;
  std::vector<Service> services_;
  std::deque<Played> played_;
  double link_free_ns_ = 0;
  std::size_t turn_ = kNone;  // client whose turn it is
  double turn_ends_ns_ = 0, turn_begins_ns_ = 0;
  std::vector<std::size_t> running_;  // clients, in the order in which they began
  std::vector<std::size_t> quiet_;    // clients that hold a grant and have nothing to run
  // Clients report their progress, and give back what they do not use.
  bool reporting_ = false;
  // Of the SMs of partition a, the share that is in partition b, too: [a * partitions + b].
  std::vector<double> common_;
  // By partition: the sum over running clients of `occupancy`; of those that are simulated many
  // kernels at once; what is taken by recorded jobs' kernels that began earlier.
  std::vector<double> busy_, average_, taken_;
  std::vector<runtime::PartitionId> occupied_;  // partitions on which some client runs
  hal::ComputeSet contested_;                   // units of several of them
  std::vector<double> width_s_;                 // Result::width_s, by width
  std::array<double, 3> in_use_{};              // SMs, by role
  hal::ComputeSet units_;                       // of running clients
  bool apart_ = true;                           // no two of them have one in common
  std::vector<scheduler::Decision> decisions_;  // that are being followed
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  double now_ns_ = 0;
  double end_ns_ = kForever;  // of the first running client to end
  double arrival_ns_ = 0;     // of the next request to a service
  bool rates_changed_ = false;
  bool told_ = true;  // the scheduler, since it decided
  static constexpr std::uint64_t kAllTimed = 1000;
  // Decisions; of those behind the first kAllTimed, how many were timed. The sums of their times.
  std::uint64_t decided_ = 0, timed_ = 0;
  double early_s_ = 0, timed_s_ = 0;
  SimulatedRun result_;
};

}  // namespace vitamin::sim
