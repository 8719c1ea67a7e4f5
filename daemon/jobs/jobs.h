// SPDX-License-Identifier: Apache-2.0
//
// The jobs that Slurm has put on this node: which share of which GPU each may use. Slurm's plugin,
// which runs as root, registers a step before its tasks start and ends it when the step or the job
// has ended.
//
// The job of a client is found by what the client cannot forge: its user, and the control group in
// which Slurm has put its process. The client's own claim only chooses among jobs of its user, and
// only if its control group belongs to no job. If a user has jobs on the node and its client is of
// none of them, the client has the share of the largest one: hiding the job gains nothing.
//
// Requests are the text of a Control (daemon/protocol/handshake.h), with words separated by one
// space: "job-begin STEP USER SHARE CLASS DEVICES [MEMORY]" and "job-end STEP", where
//   STEP      step of a job: "123.0"; to end all steps of a job: "123"
//   USER      user id
//   SHARE     percent of each device that the step's processes may have together: 1 to 100
//   CLASS     of vitamin.toml, or "-"
//   DEVICES   as the scheduler names them: "0,1", or "-" when it does not say
//   MEMORY    of each device that the step's processes may have together, as vitamin.toml has it:
//             "20GiB", "25%"; left out: no bound
//
// Threads: the server's only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/value.h"
#include "hal/result.h"

namespace vitamin::daemon {

struct Job {
  std::uint32_t number = 0;  // identifies the step while it is registered; never 0
  uid_t user = 0;
  std::uint32_t share = 100;
  std::string workload_class;  // empty: none
  std::vector<std::string> devices;
  std::optional<config::MemoryBound> memory;  // of each device; empty: no quota
  std::uint64_t used_sm_ns = 0;               // SMs times time of clients of the step that ended
};

class Jobs {
 public:
  // The most registered steps, so that a scheduler that never ends one does not exhaust memory.
  static constexpr std::size_t kMost = 4096;

  // `words`: the text behind "job-begin ". A registered step is replaced, since every task of a
  // step begins it. The error is a sentence: malformed words, more steps than kMost, or shares of a
  // device that would exceed 100 percent. A share of 100 percent is no bound and is not counted.
  hal::Status begin(std::string_view words);
  // Whether `step` is `job` or a step of it: "12.0" is of "12" and of "12.0".
  static bool is_of(std::string_view step, std::string_view job);
  // A client of the step has ended; `sm_ns`: SMs times nanoseconds that it had. Ignored if the step
  // has ended before its client.
  void used(std::string_view step, std::uint64_t sm_ns);
  struct Ended {
    std::size_t steps = 0;
    std::uint64_t sm_ns = 0;  // sum of used() of their clients
  };
  // It is no error if there is no such step.
  Ended end(std::string_view step);

  // Null: unknown, or another user's.
  const Job* find(std::string_view step, uid_t user) const;
  // The job of a client of that user. `group`: the step of its control group, or ""; `claimed`: the
  // step that it claims, or "". Null and "": none. Valid until the next begin() or end().
  struct Found {
    std::string_view step;
    const Job* job = nullptr;
    bool own = false;  // the client is of that step; false: it only has its share
  };
  Found of(uid_t user, std::string_view group, std::string_view claimed) const;
  bool bounds_memory() const;  // some step has a memory quota
  nlohmann::json status() const;

 private:
  Found widest(uid_t user, std::string_view job) const;

  std::map<std::string, Job, std::less<>> steps_;
  std::uint32_t begun_ = 0;
};

// The text of /proc/PID/cgroup; "" if it cannot be read.
std::string cgroup_of(pid_t process);
// The step, "12.0" or "12.batch", of such a text; "" if Slurm made no control group for it. Only
// control groups at places where Slurm alone can make them count: users can give theirs any name.
std::string slurm_step(std::string_view cgroup);

}  // namespace vitamin::daemon
