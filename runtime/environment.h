// SPDX-License-Identifier: Apache-2.0
//
// What `vitamin run` tells the preloaded library, as environment variables. `vitamin run` has
// validated every value; a process that finds one it cannot read uses the default and warns.
#pragma once

namespace vitamin::runtime::environment {

inline constexpr const char* kPolicy = "VITAMIN_POLICY";  // name of a policy: "random"
inline constexpr const char* kSeed = "VITAMIN_SEED";      // decimal, 64 bits
// How far submission may run ahead of completion: decimal nanoseconds of predicted GPU time, 0 is
// the paper's rule, "max" is no bound. Unset: the policy's own choice.
inline constexpr const char* kWindow = "VITAMIN_WINDOW_NS";
// For measurements: how many operations of a stream may be unfinished when it moves (see
// DispatchOptions::ahead_of_move). Decimal. Unset: the default.
inline constexpr const char* kAheadOfMove = "VITAMIN_AHEAD_OF_MOVE";
// Directory of the statistics pages (runtime/stats.h). Unset: the process keeps none.
inline constexpr const char* kRunDirectory = "VITAMIN_RUN_DIR";
// "1": of the lines on stderr, those about problems only.
inline constexpr const char* kQuiet = "VITAMIN_QUIET";

// File of the kernels, one name a line, that need their whole grid resident. Read at start; a
// kernel that the watchdog catches is added. Unset: none is known, none is remembered.
inline constexpr const char* kWideOnly = "VITAMIN_WIDE_ONLY";

// "1": any other kernel may, too (DispatchOptions::cautious). Unset: none does until it is caught.
inline constexpr const char* kCautious = "VITAMIN_CAUTIOUS";

// Directory of the profiles, one file for each GPU model (runtime/profile/file.h): read at start,
// and one launch in so many is timed (decimal; unset: ProfilerOptions). What this process learns
// goes to <pid>.<ordinal>.profile in the run directory. Unset: nothing is known, nothing is timed.
inline constexpr const char* kProfiles = "VITAMIN_PROFILES";
inline constexpr const char* kProfileEvery = "VITAMIN_PROFILE_EVERY";

// The socket of a vitamind that arbitrates the devices (daemon/client/remote_arbiter.h). Unset: the
// arbiter is in this process.
inline constexpr const char* kDaemon = "VITAMIN_DAEMON";

// What a process ends with that this vitamind does not take as a client (vitamin.toml:
// failure.absent = "closed"), decimal. Unset: it decides for itself alone.
inline constexpr const char* kAbsent = "VITAMIN_ABSENT";

// Directory where processes on one GPU keep what they share out (backends/hip/queue_ledger.h) and
// who decides on it (daemon/protocol/device_lock.h). Unset: /run/lock; empty: nowhere.
inline constexpr const char* kLockDirectory = "VITAMIN_LOCK_DIRECTORY";
inline constexpr const char* kUsualLockDirectory = "/run/lock";
// Parts of the names of kernels that wait for other processes, between commas, besides those that
// runtime/kernel_names.h knows.
inline constexpr const char* kCollectives = "VITAMIN_COLLECTIVES";
// "0": a cooperative launch under a daemon may be deferred for a grant. Unset: it may not, because
// it may wait for other processes.
inline constexpr const char* kCooperative = "VITAMIN_COOPERATIVE_COLLECTIVE";

// The workload class (vitamin.toml) that the program says it is of. Unset: none.
inline constexpr const char* kClass = "VITAMIN_CLASS";

// What a cluster's scheduler says: the step of a job ("12.0"), which vitamind knows from the node's
// administrator, and the percent of the device that the process may have at most. Unset: none, all.
inline constexpr const char* kJob = "VITAMIN_JOB";
inline constexpr const char* kShare = "VITAMIN_SHARE";

// Device memory that the processes of the run may have together on each device: decimal bytes, or a
// percentage of the device ("50%"). Unset: as much as there is.
inline constexpr const char* kMemory = "VITAMIN_MEMORY";

// Device memory that executables of graphs for partitions of the pool may take: decimal bytes; "0":
// graphs stay on the whole device. Unset: the default (DispatchOptions).
inline constexpr const char* kGraphMemory = "VITAMIN_GRAPH_MEMORY";

// Directory of the audit's logs (runtime/audit/audit.h). Unset: nothing is audited.
inline constexpr const char* kAudit = "VITAMIN_AUDIT";

// Directory of the traces (runtime/trace/trace.h). Unset: nothing is recorded.
inline constexpr const char* kTrace = "VITAMIN_TRACE";

}  // namespace vitamin::runtime::environment
