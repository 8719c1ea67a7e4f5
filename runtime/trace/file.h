// SPDX-License-Identifier: Apache-2.0
//
// The file of a trace: what one process submitted to one device, or what vitamind was told and
// decided for one device. A header of one page and records of one size; texts of names and what
// clients sent lie in the records behind the one that announces them.
//
// Times are ticks of the processor's clock in a program's trace (the header ties two of them to
// CLOCK_MONOTONIC) and nanoseconds of CLOCK_MONOTONIC, as the arbiter was told them, in vitamind's.
#pragma once

#include <cstdint>

namespace vitamin::runtime::trace {

inline constexpr std::uint64_t kMagic = 0x76697461'6d696e54;  // "vitaminT"
inline constexpr std::uint32_t kVersion = 2;
inline constexpr std::uint32_t kUnitsMax = 64;

enum class TraceKind : std::uint16_t {
  kNothing,
  kName,  // of kernel `a`: `serial` bytes behind it
  // a program's
  kArrived,  // operation `serial` of `stream`; `flags`: OperationKind; `a`: kernel; `b`: its event
  kPredecessor,  // that operation comes behind operation `b` of stream `a`
  kDeferred,     // it is submitted later
  kDecision,     // the policy, or a grant, says `partition`, for `a` launches
  kSubmitted,    // it was given to a queue of `partition`
  kCompleted,    // everything of the stream up to `serial` was seen to have ended
  // vitamind's: what it was told
  // `client`, as daemon::ClientTraits: `flags`: minor version; `serial`: process; then Attached
  kAttach,
  kRequest,  // of `client`: the protocol's record behind it
  kDying,
  kForget,
  kStep,
  // and what it answered
  kWord,   // lease word `a` of `stream` of `client`
  kGrant,  // `partition`, `a`: launches, `b`: word, `c`: the word that it amends, `flags`: 1
           // delivered
  kGates,  // `client` is told that words were closed
  // told
  kReload,  // other settings or another policy: what follows cannot be replayed
  // `client`, so far: `serial` launches, work `a`, `b` ns busy, misplaced work `c`, `d` collectives
  kProgress,
  kBefore,  // `client` may tell of work on `partition` of before this vitamind, until `a`
  kExpect,  // absent `client` stands for process `serial` on `partition`, until `a`
  // further quotas of the client that is attached next: `a`, `b`, `c`, each a group (high 32 bits)
  // and its SMs, or 0
  kQuotas,
};

struct TraceEntry {
  std::uint64_t time = 0;
  TraceKind kind = TraceKind::kNothing;
  std::uint16_t partition = 0;
  std::uint32_t stream = 0;
  std::uint32_t client = 0;
  std::uint32_t flags = 0;
  std::uint64_t serial = 0;
  std::uint64_t a = 0, b = 0, c = 0;
  std::uint64_t d = 0;
};
static_assert(sizeof(TraceEntry) == 64);

// Behind kAttach: scheduler::ClientTerms and the program.
struct Attached {
  float weight = 1, quantile = 0;
  std::uint64_t ttft_ns = 0, tpot_ns = 0, latency_ns = 0, step_ns = 0;
  std::uint64_t program = 0;
  std::uint32_t max_sms = 0, reserved_sms = 0, group = 0, may_share = 1;
};
static_assert(sizeof(Attached) == 64);
constexpr bool has_bytes(TraceKind kind) {
  return kind == TraceKind::kAttach || kind == TraceKind::kRequest;
}

enum class Writer : std::uint32_t { kProgram, kDaemon };

struct TraceHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0, record_bytes = 0;
  Writer writer = Writer::kProgram;
  std::uint32_t process = 0, ordinal = 0, epoch = 0;
  std::uint64_t first_ticks = 0, first_ns = 0;  // of one moment
  std::uint64_t last_ticks = 0, last_ns = 0;    // of a later one
  // So far.
  std::uint64_t records = 0;
  std::uint64_t dropped = 0;       // that found no room, in memory or on the disk
  std::uint64_t dropped_disk = 0;  // of those
  std::int32_t disk_error = 0;     // errno of the last refusal
  std::uint32_t closed = 0;        // 1: the writer ended in order
  // The device and its pool.
  std::uint32_t sms = 0, units = 0;
  std::uint32_t per_unit[kUnitsMax] = {};
  std::uint32_t partitions_max = 0, leaf_units = 0, all_runs = 0, unused = 0;
  // Who decides.
  std::uint64_t quantum_ns = 0, starving_after_ns = 0, unused_ns = 0, answer_within_ns = 0;
  std::uint64_t seed = 0;
  char policy[512] = {};
  char uuid[64] = {}, device[64] = {}, program[64] = {};
};
inline constexpr std::uint32_t kHeaderBytes = 4096;
static_assert(sizeof(TraceHeader) <= kHeaderBytes);

}  // namespace vitamin::runtime::trace
