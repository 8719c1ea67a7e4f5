// SPDX-License-Identifier: Apache-2.0
//
// What a preloaded library keeps once for each process, whatever the vendor: whether it does
// anything at all, the statistics page, warnings, and the options that `vitamin run` passed on.
//
// Threads: everything here may be called from any thread, before main and after static destructors
// ran: there is no object with a destructor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "hal/result.h"
#include "runtime/audit/audit.h"
#include "runtime/demand.h"
#include "runtime/problem.h"
#include "runtime/stats.h"
#include "runtime/submission/options.h"
#include "runtime/trace/trace.h"

namespace vitamin::interpose {

// Every call goes straight to the driver, for the rest of this process: it is the child of a fork,
// in which the driver's state cannot be used, or our part could not start.
extern constinit std::atomic<bool> passive;

// How deep this thread is inside our own code. Calls that the driver or the runtime makes from
// there are not the application's.
extern constinit thread_local int inside [[gnu::tls_model("initial-exec")]];

class ReentrancyGuard {
 public:
  ReentrancyGuard() { ++inside; }
  ~ReentrancyGuard() { --inside; }
  ReentrancyGuard(const ReentrancyGuard&) = delete;
  ReentrancyGuard& operator=(const ReentrancyGuard&) = delete;
};

// In the child of a fork of a process that had state to keep: one line, once, that says so.
void say_if_forked();

inline bool passes_natively() { return inside > 0 || passive.load(std::memory_order_relaxed); }

// When the library `name` is loaded. LD_PRELOAD is inherited by compilers, shells and workers that
// never see a GPU: nothing happens but that the process says it was reached, and that only under
// `vitamin run`, and by the first of our libraries in it.
void loaded(const char* name);

// The statistics page of this process, made at the first use. Never null.
runtime::stats::ProcessPage& page();
// The part of it that counts what a device does; where there is no room for it, memory that no
// process reads, and a line says so. Called under the registry lock.
runtime::stats::DevicePage& device_page(unsigned ordinal);

// "vitamin: <sentence>" on stderr, unless VITAMIN_QUIET. Not a problem.
void note(const char* sentence);
// One line on stderr, with the problem's code, and in the page.
using runtime::Problem;
[[gnu::format(printf, 2, 3)]] void warn(Problem problem, const char* format, ...);
// The same once for each `said`, which starts as false.
#define VITAMIN_WARN_ONCE(...)                                                                    \
  do {                                                                                            \
    static constinit std::atomic<bool> said{false};                                               \
    if (!said.exchange(true, std::memory_order_relaxed)) ::vitamin::interpose::warn(__VA_ARGS__); \
  } while (false)
// Something of ours failed to start: says so, and the page remembers why.
void degrade(const char* why);

// Ends this process, with one line that says why, where failure.absent = "closed" (VITAMIN_ABSENT):
// vitamind does not answer, and the process has not used the device yet. Otherwise does nothing.
void refuse_alone(const char* why);

// From now on there is state that a forked child must not touch.
void start_managing();

// The policy that was asked for and how to dispatch. Each device gets a policy of its own.
struct ProcessOptions {
  std::string policy;
  std::uint64_t seed = 0;
  runtime::DispatchOptions dispatch;
};
ProcessOptions process_options();
// Where processes on one GPU keep what they share out; empty: nowhere.
std::string lock_directory();
// Null unless VITAMIN_AUDIT names a directory.
std::shared_ptr<runtime::Audit> make_audit(int ordinal);
// Null unless VITAMIN_TRACE names a directory.
std::shared_ptr<runtime::trace::Recorder> make_trace(int ordinal, const hal::DeviceInfo& info,
                                                     const ProcessOptions& options);

// What is known and what is to be learnt of kernels' times on a GPU of this model.
void set_up_profile(runtime::DispatchOptions& options, const std::string& model, int ordinal);
hal::Result<runtime::MakeArbiter> make_policy(const ProcessOptions& options);

}  // namespace vitamin::interpose
