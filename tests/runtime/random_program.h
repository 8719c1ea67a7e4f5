// SPDX-License-Identifier: Apache-2.0
//
// A random program of streams, events, default-stream operations, copies, host functions and value
// waits; its happens-before order by the rules of CUDA; and its execution through a VirtualContext
// over the software device in virtual time.
//
// The reference is the order itself: the rules are applied to the program's text, with no queue,
// token or thread in sight, and give for each operation the set of those that must have ended
// before it begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vitamin::tests {

enum class StepKind : std::uint8_t {
  kLaunch,        // a kernel
  kCopy,          // an async copy: enqueue
  kPageableCopy,  // one that cannot be deferred
  kBridged,       // an unvirtualised call
  kHostFunction,
  kValueWait,  // waits for flag `event`; opened by kOpenFlag
  kAllocate,   // a stream-ordered allocation
  kRecord,
  kWait,
  // Steps of the host.
  kOpenFlag,
  kSyncStream,
  kSyncEvent,
  kQueryStream,
  kQueryEvent,
  kBlockingCopy,  // the host waits for it
  kDrain,
  kAdvance,  // device time passes
};

struct Step {
  StepKind kind = StepKind::kLaunch;
  unsigned stream = 0;
  unsigned event = 0;   // of a record or wait; the flag of a value wait
  unsigned amount = 0;  // of kAdvance
};

// Streams of every program: 0 legacy, then blocking ones, then non-blocking ones.
struct Program {
  unsigned blocking = 2, nonblocking = 2, events = 3, flags = 2;
  std::vector<Step> steps;
  unsigned streams() const { return 1 + blocking + nonblocking; }
};

struct Shape {
  unsigned steps = 24;
  bool gates = true;  // host functions and value waits
};

Program random_program(std::uint64_t seed, const Shape& shape);

// For each step that is device work: the steps (device work) that must have ended before.
// For each waiting step of the host: the same, before it answers success.
std::vector<std::vector<bool>> happens_before(const Program& program);

struct Setting {
  std::string policy = "fifo";
  std::uint64_t window_ns = ~0ULL;
  std::uint64_t seed = 1;
  unsigned units = 16;
  unsigned refusing_units = 0;       // so many one-unit partitions refuse two launches each
  std::string audit_directory = {};  // empty: no structure audit
};

struct Outcome {
  std::string error;  // empty: everything as it must be
  unsigned launches = 0, moved = 0, deferred = 0, retried = 0;
  // What the audit wrote down, a line an operation, stream by stream: whatever the allocation.
  std::string audited;
};

// Runs the program and checks that every operation ran exactly once, in an order that extends
// happens_before, that no answer came too early, that nothing hung, that every launch arrived as it
// was submitted, and, where it is audited, that the audit found nothing.
Outcome run(const Program& program, const Setting& setting);

std::string text(const Program& program);

}  // namespace vitamin::tests
