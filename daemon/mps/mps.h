// SPDX-License-Identifier: Apache-2.0
//
// Starts, watches and restarts NVIDIA's Multi-Process Service, which lets kernels of several
// processes overlap on a GPU. AMD GPUs need nothing of the kind.
//
//     auto      vitamind starts MPS in a directory of its own and ends it with itself
//     external  the operator starts MPS; vitamind only asks for its state
//     off       vitamind does neither
//
// Limits of MPS, which status and log report: a fault of one client destroys the contexts of all
// clients of its server, and the server admits no new client before all of them have ended, which
// takes 30 ms (log.h) or as long as a client lives. MPS does not say which client has failed. A
// server serves one user at a time unless it was started for several. A sandboxed vitamind (the
// system unit has no devices) cannot start MPS.
//
// Threads: a thread of its own runs NVIDIA's control program, which may take seconds; facts() and
// terminate() may be called from any thread. Reference: docs.nvidia.com/deploy/mps.
#pragma once

#include <sys/types.h>

#include <atomic>
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
  kOff,       // as configured, or because there is no NVIDIA control program
  kStarting,  // of a class: the first check is not over, or MPS is being restarted
  kReady,     // the control daemon answers, no server is in fault
  kFault,     // a client's fault ended a server; not all of its clients have ended
  kFailed,    // MPS does not run; `problem` says why
};
const char* name_of(MpsState state);

struct MpsFacts {
  MpsState state = MpsState::kOff;
  std::string directory;  // CUDA_MPS_PIPE_DIRECTORY for clients; empty: none
  std::string problem;    // cause and remedy, or empty
  std::uint64_t starts = 0;
  std::uint64_t last_start_ns = 0;  // runtime/clock.h; 0: this vitamind has not started it
  std::uint64_t faults = 0;
  std::uint64_t last_fault_ns = 0;    // when it was noticed (runtime/clock.h); 0: there was none
  std::vector<std::string> affected;  // processes that lost their context by it, if known
  std::uint64_t checks = 0;
  std::uint64_t terminated = 0;  // clients whose work was terminated because their job had ended
};

// The clients of an MPS as it names them, of all its servers.
struct MpsClients {
  std::vector<pid_t> processes;
  bool complete = false;       // MPS answered, and named nothing but processes
  std::uint64_t listings = 0;  // how often MPS was asked so far
};

// The programs that a control daemon is for (daemon/config/isolation.h).
enum class MpsRole : std::uint8_t {
  // Without NVIDIA's control program there is none. The constructor waits for the first check.
  kShared,
  // Of one class: the control program must be there, and the constructor does not wait. When every
  // process that is left at a faulted server has lost its context, they lose nothing more: the
  // server is ended with them, so that the class's new programs need not wait for their end.
  kClass,
};

class Mps {
 public:
  // Starts MPS if it is to be started. `directory`: MPS's directory unless the configuration sets
  // one. `name`: for the log.
  Mps(const config::MpsSettings& settings, const std::string& directory,
      MpsRole role = MpsRole::kShared, std::string name = "MPS");
  // Ends MPS if this object has started it.
  ~Mps();
  Mps(const Mps&) = delete;
  Mps& operator=(const Mps&) = delete;

  MpsFacts facts() const;
  // From the first call of watch_clients() on, each check asks for them.
  void watch_clients() { watches_clients_ = true; }
  MpsClients clients() const;
  // Makes the thread terminate the GPU work of those of these processes that are MPS clients. To be
  // called before they are killed: a client that dies with outstanding work can cause a fault.
  void terminate(const std::vector<pid_t>& processes);

 private:
  void run();
  void check();
  void check_log();
  struct Faulted {
    std::vector<std::string> servers, clients;  // of these servers
  };
  Faulted ask_servers(const std::vector<std::string>& servers);
  void count_fault(const MpsFault& fault);
  void terminate_clients(const std::vector<pid_t>& processes);
  void start();
  void restart();
  bool all_have_lost_their_contexts(const std::vector<std::string>& clients);
  void fail(const std::string& problem);
  hal::Result<std::string> control(const std::string& command);

  config::MpsSettings settings_;
  const MpsRole role_;
  const std::string name_;
  std::string directory_;
  bool started_ = false;
  std::uint32_t failures_ = 0;        // consecutive failed starts
  std::uint64_t skip_checks_ = 0;     // checks to skip before the next start is tried
  std::vector<std::string> faulted_;  // servers in fault, not all of whose clients have ended
  unsigned lost_checks_ = 0;          // consecutive checks with none but lost clients
  std::optional<MpsLog> log_;         // empty: the directory is another user's
  // The log and the status both report a fault, in either order: servers whose fault was counted by
  // the one and not reported by the other yet.
  std::set<std::string> counted_by_log_, counted_by_status_;
  std::atomic<bool> watches_clients_ = false;
  mutable std::mutex mutex_;  // protects the next four
  MpsFacts facts_;
  MpsClients clients_;
  bool stopping_ = false;
  std::vector<pid_t> to_terminate_;
  std::condition_variable wake_;
  std::thread thread_;
};

}  // namespace vitamin::daemon
