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
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "runtime/profile.h"
#include "runtime/scheduler.h"
#include "sim/metrics.h"
#include "sim/trace.h"
#include "sim/workloads.h"

namespace vitamin::sim {

struct DeviceOptions {
  runtime::SchedulerOptions scheduler;
  double target_tpot_ms = 30;  // deadline of a step: the last token's end and this
  double window_ns = 50'000;   // submitted ahead of completion: drains behind a closed gate
  double move_ns = 2'000;
  double creation_ns = 0;  // of an entry at each grant: on-demand contexts cost 1.3 ms
  double warm_up_s = 3;    // requests that arrive earlier are not counted
  double limit_s = 0;      // ends there, whatever is unfinished; 0: 120 s behind the last one
  double occupancy_bin_s = 1;
};

class Device {
 public:
  Device(const runtime::PoolLayout& layout, std::unique_ptr<runtime::Policy> policy,
         const runtime::Profile& profile, Library& library, const DeviceOptions& options);
  // A service: a client that prefills and one that decodes.
  void add_service(std::vector<Request> requests);
  // A training job that never ends.
  void add_training(const Program& step);
  Result run();

 private:
  enum class Role : std::uint8_t { kPrefill, kDecode, kTraining };

  struct Lane {
    runtime::ClientId client = 0;
    Role role = Role::kTraining;
    std::size_t service = 0;
    const Program* program = nullptr;  // null: nothing to do
    std::uint64_t step = 0;
    std::uint32_t next = 0;  // kernel
    runtime::EntryId open = runtime::kNoEntry;
    std::uint32_t launches = 0;
    bool running = false;
    runtime::EntryId on = runtime::kNoEntry;
    const std::vector<double>* ends = nullptr;  // of the program on that width
    double position = 0;                        // in *ends
    std::uint32_t stop = 0;                     // the kernel before which it stops
    double rate = 1;
    double bandwidth = 0, occupancy = 0;
    double end_ns = 0;  // at this rate
    std::uint64_t steps_done = 0;
    std::uint64_t launched = 0;  // kernels, up to `next`
    double deadline_ns = 0;
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
  void rest(Lane& lane);
  void start(Lane& lane);
  void drain(Lane& lane);
  void obey();
  void follow(const runtime::Decision& decision);
  void give_back(Lane& lane, runtime::EntryId entry);
  void set_rates();
  double next_event() const;
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
  std::vector<std::size_t> running_;  // lanes
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  double now_ns_ = 0;
  bool rates_changed_ = false;
  Result result_;
};

}  // namespace vitamin::sim
