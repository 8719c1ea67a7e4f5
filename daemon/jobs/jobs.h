// SPDX-License-Identifier: Apache-2.0
//
// The jobs that a cluster's scheduler has put on this node: who may use how much of which GPU. Said
// by the scheduler's plugin, which is root, before a task starts, and taken back when the step or
// the job has ended.
//
// Which job a client is of is looked up by what cannot be made up: its user, and the control group
// in which Slurm put its process. A client's own word only chooses among jobs of its user, and only
// where its control group says nothing. A user who has jobs on the node and whose client is of none
// of them has what the largest one has: leaving a variable out grants nothing more.
//
// Text, because that is what travels in a Control (daemon/protocol/handshake.h), its words
// separated by one space: "job-begin STEP USER SHARE CLASS DEVICES [MEMORY]" and "job-end STEP",
// where
//   STEP      of a job: "123.0"; to end all of them: "123"
//   USER      number
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
  std::uint32_t number = 0;  // of this step, as long as it is known; never 0
  uid_t user = 0;
  std::uint32_t share = 100;
  std::string workload_class;  // empty: none
  std::vector<std::string> devices;
  std::optional<config::MemoryBound> memory;  // of each device; none: no bound
  std::uint64_t used_sm_ns = 0;               // of clients of the step that ended
};

class Jobs {
 public:
  // Steps that are known at once; a scheduler that never ends one must not fill the memory.
  static constexpr std::size_t kMost = 4096;

  // `words`: what stands behind "job-begin ". A step that is known is replaced: every task of it
  // begins it. Refused, with a sentence, when the shares of a device would exceed 100 percent and
  // this one is not the whole device: who asks for all of it asks for no bound.
  hal::Status begin(std::string_view words);
  // Whether `step` is that one, or one of that job: "12.0" is of "12" and of "12.0".
  static bool is_of(std::string_view step, std::string_view job);
  // A client of the step has ended, which had SMs for so long (SMs times nanoseconds). A step that
  // is not known has ended before its client: not counted.
  void used(std::string_view step, std::uint64_t sm_ns);
  struct Ended {
    std::size_t steps = 0;
    std::uint64_t sm_ns = 0;  // what their clients had used() until now
  };
  // No step is no error.
  Ended end(std::string_view step);

  // Null: unknown, or another user's.
  const Job* find(std::string_view step, uid_t user) const;
  // Of a client of that user. `group`: the step that its control group is of, or ""; `claimed`: the
  // step that it says it is of, or "". Null, "": of none. Valid until the next begin() or end().
  struct Found {
    std::string_view step;
    const Job* job = nullptr;
    bool own = false;  // not only the share: the client is of that step
  };
  Found of(uid_t user, std::string_view group, std::string_view claimed) const;
  bool bounds_memory() const;  // of any step
  nlohmann::json status() const;

 private:
  Found widest(uid_t user, std::string_view job) const;

  std::map<std::string, Job, std::less<>> steps_;
  std::uint32_t begun_ = 0;
};

// What /proc/PID/cgroup says of a process, "" where it cannot be read.
std::string cgroup_of(pid_t process);
// The step, "12.0" or "12.batch", that such a text is of; "" where Slurm made no group for it. Only
// groups where Slurm alone may make some count: those that users may make could be called anything.
std::string slurm_step(std::string_view cgroup);

}  // namespace vitamin::daemon
