// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's Multi-Process Service, which lets processes overlap on a GPU: started, watched, started
// again. AMD needs none.
//
//     auto      MPS runs in a directory of vitamind's own, for as long as vitamind does
//     external  the operator starts it; it is only asked how it is
//     off       not even that
//
// What cannot be done, and is said: a fault of one client takes their contexts from all of its
// server, and no new one is let in before every one of them has ended, which may be over in 30 ms
// (log.h) or last for as long as a client stays; which of them it was MPS does not say; a
// server belongs to one user at a time unless it was started for several; a sandboxed vitamind (the
// system unit has no devices) cannot start one.
//
// Threads: a thread of its own asks NVIDIA's control program, which may take seconds; facts() from
// any thread. Facts of the control program: "Multi-Process Service", docs.nvidia.com/deploy/mps.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/config/configuration.h"
#include "daemon/mps/log.h"
#include "hal/result.h"

namespace vitamin::daemon {

enum class MpsState : std::uint8_t {
  kOff,     // as configured, or because there is no NVIDIA control program
  kReady,   // the control daemon answers, no server is in fault
  kFault,   // a client's fault ended a server; its clients have not all left yet
  kFailed,  // it cannot be had; `problem` says why
};
const char* name_of(MpsState state);

struct MpsFacts {
  MpsState state = MpsState::kOff;
  std::string directory;  // CUDA_MPS_PIPE_DIRECTORY of those who are to use it; empty: none
  std::string problem;    // cause and remedy, or empty
  std::uint64_t starts = 0;
  std::uint64_t faults = 0;
  std::uint64_t last_fault_ns = 0;    // when it was seen (runtime/clock.h); 0: there was none
  std::vector<std::string> affected;  // processes that lost their context by that, where known
  std::uint64_t checks = 0;
  std::uint64_t terminated = 0;  // clients whose work was ended for the end of their job
};

class Mps {
 public:
  // Starts what is to be started and waits until that is known. `directory`: where it would be if
  // the configuration does not say.
  Mps(const config::Mps& settings, const std::string& directory);
  // Ends what it started.
  ~Mps();
  Mps(const Mps&) = delete;
  Mps& operator=(const Mps&) = delete;

  MpsFacts facts() const;
  // Soon: the GPU work of these processes is ended, as far as they are clients. Before they are
  // killed, because a client that dies with work outstanding may take the others along.
  void terminate(const std::vector<pid_t>& processes);

 private:
  void run();
  void check();
  void look_at_log();
  void count_fault(const MpsFault& fault);
  void terminate_clients(const std::vector<pid_t>& processes);
  void start();
  void restart();
  void fail(const std::string& problem);
  hal::Result<std::string> control(const std::string& command);

  config::Mps settings_;
  std::string directory_;
  bool started_ = false;
  std::uint32_t failures_ = 0;        // starts in a row that failed
  std::uint64_t skip_checks_ = 0;     // before the next start is tried
  std::vector<std::string> faulted_;  // servers whose clients have not all left
  std::optional<MpsLog> log_;         // none: the directory is another user's
  // Servers whose fault was counted as one of those tells it, and not yet by the other.
  std::set<std::string> told_by_log_, told_by_status_;
  mutable std::mutex mutex_;  // of the next three
  MpsFacts facts_;
  bool stopping_ = false;
  std::vector<pid_t> doomed_;  // to be terminated
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace vitamin::daemon
