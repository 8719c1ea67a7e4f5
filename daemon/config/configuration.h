// SPDX-License-Identifier: Apache-2.0
//
// The configuration of vitamin.toml as plain values, for vitamind, `vitamin run` and the plugins of
// a node. load.h makes it from files, environment and command line; schema.h maps each key to its
// member.
//
// Units: durations are nanoseconds; processors are SMs or CUs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/value.h"
#include "runtime/pool/layout.h"

namespace vitamin::config {

// One of a pattern's forms: see pattern.h.
using Patterns = std::vector<std::string>;

struct Daemon {
  std::string lock_directory = "/run/lock";  // of the device locks; the same one for all users
  std::uint64_t answer_within_ns = 1'000'000'000;
  std::uint64_t spin_ns = 50'000;
  std::uint64_t exit_when_idle_ns = 0;  // 0: never
  std::uint32_t clients = 512;
  std::uint32_t clients_of_user = 128;
  std::uint64_t quarantine_ns = 60'000'000'000;
  bool pin = true;  // the loop to the NUMA node of the GPUs
};

struct PolicySettings {
  std::string name = "fifo";  // of scheduler/policies/registry.h, or the path of a shared object
  std::map<std::string, std::string> parameters;
  std::uint64_t seed = 0;
  std::uint64_t quantum_ns = 4'000'000;
  std::uint64_t starving_after_ns = 1'000'000'000;
  std::uint64_t reservation_ns = 20'000'000;

  // NAME[:PARAMETER=VALUE,...], as scheduler::make() takes it.
  std::string specification() const;
};

// What happens without a daemon. The bits are the same in every mode; isolation is not.
enum class OnAbsence : std::uint8_t { kOpen, kClosed };
enum class OnLoss : std::uint8_t { kFallback, kWhole };

struct Failure {
  OnAbsence absent = OnAbsence::kOpen;  // none at the start of a program: run without it, or refuse
  OnLoss lost = OnLoss::kFallback;      // it goes away: to the client's own part, or anywhere
};

enum class MpsMode : std::uint8_t { kAuto, kExternal, kOff };

struct MpsSettings {
  MpsMode mode = MpsMode::kAuto;
  std::string directory;  // of the control daemon's pipe and log; empty: beside vitamind's socket
  std::string control = "nvidia-cuda-mps-control";
  // Programs of kind `batch` are clients of MPS's lower priority: where kernels of several clients
  // share SMs, those of the other kinds go first. Results do not depend on it.
  // Source: NVIDIA Multi-Process Service, CUDA_MPS_CLIENT_PRIORITY.
  bool priorities = true;
  // Hardware queues of a client (CUDA_DEVICE_MAX_CONNECTIONS); 0: MPS's default, which is 2.
  // Streams that share a queue wait for each other: with 2, a launch behind a wait that the host
  // ends later blocked the launch for which the host waited, and both hung (H200, hazard
  // host_gated); with 8, as many as a program has without MPS, they do not. The GPU's queues are
  // shared by all clients: the more each has, the fewer clients there can be. Source: NVIDIA
  // Multi-Process Service, CUDA_DEVICE_MAX_CONNECTIONS.
  std::uint32_t connections = 8;
  std::uint64_t check_every_ns = 1'000'000'000;
};

// Which programs a fault on the GPU may end beside the one that faults (isolation.h).
enum class Isolation : std::uint8_t { kShared, kClass, kExclusive };
enum class ClassIsolation : std::uint8_t { kUnspecified, kShared, kClass, kExclusive };

struct Metrics {
  std::string listen;  // PORT on loopback, HOST:PORT or the path of a Unix socket; empty: nowhere
  std::string accounting;  // file that gets a line for each client at its end; empty: none
};

// Kernels that wait for other processes, besides those whose names say so
// (runtime/kernel_names.h): they are never deferred for a grant, so that two
// distributed jobs cannot wait for each other.
struct Collectives {
  Patterns kernels;         // parts of their names
  bool cooperative = true;  // treat every cooperative launch under vitamind as such a kernel
};

// Kinds of programs (README.md).
enum class ProgramKind : std::uint8_t { kUnspecified, kLatency, kBatch };

// The group of processes that share a quota of a class. Known from the kernel, but for the class.
enum class GroupOf : std::uint8_t { kProcess, kUser, kContainer, kJob, kClass };

// A class of programs: those that match all of its conditions. A condition with several patterns
// holds if one of them matches. A program is of the first class that matches.
struct WorkloadClass {
  std::string name;

  Patterns command;    // the program's name, or its path where the pattern has a '/'
  Patterns user;       // names or numbers
  Patterns slurm_job;  // names or numbers, and so on
  Patterns slurm_partition, slurm_account, slurm_qos;
  std::map<std::string, std::string> environment;  // variable to pattern

  ProgramKind kind = ProgramKind::kUnspecified;
  std::uint32_t reservation = 0;  // SMs that are reserved for the group of share_of; 0: none
  // Bounds of latency; 0: none.
  std::uint64_t ttft_ns = 0;      // of the first token
  std::uint64_t tpot_ns = 0;      // of each further token
  std::uint64_t latency_ns = 0;   // of a request whose steps are not announced
  std::uint64_t step_ns = 0;      // of an iteration
  std::uint32_t percentile = 99;  // percent of steps or requests that are to meet the bound
  std::uint32_t weight = 1;       // of a client's progress in the policy's objective
  std::uint32_t share = 100;      // percent of the device's SMs for that group, at most
  GroupOf share_of = GroupOf::kProcess;
  std::string memory;  // quota: memory_bound() in value.h; empty: none
  GroupOf memory_of = GroupOf::kProcess;
  ClassIsolation isolation = ClassIsolation::kUnspecified;  // unspecified: the configuration's
};

// Settings for the devices whose UUID or name matches, over those for all devices.
struct DeviceRule {
  std::string pattern;
  std::map<std::string, Value> settings;  // by path of their key
};

struct Configuration {
  Isolation isolation = Isolation::kShared;
  Daemon daemon;
  runtime::PoolLimits pool;
  PolicySettings policy;
  Failure failure;
  MpsSettings mps;
  Metrics metrics;
  Collectives collectives;
  std::vector<WorkloadClass> classes;  // in the order in which they are tried

  std::vector<DeviceRule> devices;  // later ones win

  const WorkloadClass* find_class(std::string_view name) const;
  // With the rules for this device applied: its `pool` and `policy`.
  Configuration for_device(std::string_view uuid, std::string_view device_name) const;
};

}  // namespace vitamin::config
