// SPDX-License-Identifier: Apache-2.0
//
// Pick, Select, Prepare: the paper's policy interface (section "Policy Interface"), over values.
//
// A policy never sees a descriptor's contents, a queue or a lock. Whatever it answers is validated
// against descriptor compatibility, dependencies and leases before anything changes, so a policy
// can waste the device but not break a program. One that throws, loops or answers nonsense is
// replaced by fifo (policies/guarded.h).
//
// Units: nanoseconds of one clock that the caller chooses (the host's, or virtual); processors are
// SMs or CUs.
// Threads: called by one thread at a time, perhaps with a lock held: no blocking, no I/O, and every
// span is valid during the call only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/pool_layout.h"

namespace vitamin::runtime {

class Profile;  // runtime/profile.h

using LaneId = std::uint32_t;    // one logical stream of one virtual context
using ClientId = std::uint32_t;  // one virtual context, as a lessee (runtime/lease_table.h)

inline constexpr std::uint64_t kNever = ~0ULL;

// What an operation is part of, as far as somebody said so (configuration, lookahead, advice).
enum class OperationClass : std::uint8_t { kUnknown, kPrefill, kDecode, kBestEffort };

// A bindable operation: every predecessor is complete or already submitted.
struct ReadyOperation {
  std::uint64_t id = 0;
  LaneId lane = 0;
  std::uint64_t kernel = 0;        // equal for equal (kernel, grid, block, shared memory)
  std::uint32_t processors = 1;    // narrowest width that runs it unchanged
  std::uint64_t predicted_ns = 0;  // on the whole device; 0: unknown
  std::uint64_t ready_at_ns = 0;   // predicted time at which its predecessors end; 0: now
  EntryId last_entry = kNoEntry;   // where the lane's previous operation went
  ClientId client = 0;
  OperationClass kind = OperationClass::kUnknown;
  std::uint64_t since_ns = 0;     // it has been bindable since then: its age
  std::uint64_t deadline_ns = 0;  // 0: none
  // Predicted time on the whole device of all that must be done by the deadline, this operation and
  // what is queued ahead of the deadline included; 0: predicted_ns.
  std::uint64_t queued_ns = 0;
  std::uint64_t target_ns = 0;  // that a step may take, by its client's class; 0: it has none
  bool iteration_end = false;   // the lane has just ended an iteration (a training step)
  // Its client is to be served as if it were alone, whatever its operations are part of.
  bool right_of_way = false;
};

// A standing grant: what a lane holds now, and its next operation.
struct Holding {
  ReadyOperation next;
  EntryId entry = kNoEntry;
  std::uint64_t granted_at_ns = 0;
};

// How far a client has got: operations that it has submitted since it came, wherever they went.
struct Progress {
  ClientId client = 0;
  std::uint64_t operations = 0;
};

struct PoolView {
  std::span<const PoolEntry> entries;  // [0] is the whole device
  hal::ComputeSet barred{};            // held by or reserved for others than the one asked about
  // What follows is empty where one client decides for itself.
  std::span<const ReadyOperation> waiting{};  // every bindable operation that holds no grant
  std::span<const Holding> holdings{};        // every grant whose gate is open
  std::span<const Holding> draining{};        // every other grant: its work may still run
  hal::ComputeSet set_aside{};  // standing reservations: of one client each, not to be planned with
  // Nobody who wants something is kept to a part of the device, or has one kept for it.
  bool all_share = true;
  const Profile* profile = nullptr;
  std::span<const Progress> progress{};  // as of the last look (look_at()); empty: nobody tells it
  std::uint64_t now_ns = 0;
  // Changes whenever demand or leases do: a policy that plans for everybody at once plans once for
  // each epoch. 0: no epochs.
  std::uint64_t epoch = 0;
};

// The answer of Select. `launches`: for how many launches of this lane the answer stands while the
// entry stays eligible; kUntilChanged: until leases or the policy change, so that the launch path
// asks nobody. kNoEntry: not now.
inline constexpr std::uint32_t kUntilChanged = 0xffffffff;
struct Choice {
  EntryId entry = kWholeDevice;
  std::uint32_t launches = 1;
  // While the answer stands, submission runs ahead of completion by no more predicted time than
  // this: what is still to drain when it ends. kNever: as far as is configured.
  std::uint64_t ahead_ns = kNever;
};

// A lookahead hint: an operation that is expected and is not yet bindable; or the next one of a
// lane that waits or holds a standing grant, when demand has changed.
struct Hint {
  LaneId lane = 0;
  std::uint32_t processors = 0;
  std::uint64_t ready_at_ns = 0;
  std::uint64_t deadline_ns = 0;
  bool cancelled = false;
  ClientId client = 0;
  std::uint64_t kernel = 0;
  OperationClass kind = OperationClass::kUnknown;
  std::uint64_t queued_ns = 0;  // as in ReadyOperation
  EntryId held = kNoEntry;      // what the lane holds now
};

struct Plan {
  // Reserve this entry for the hinted lane's next grant, instead of what was reserved for it
  // before, or move it there; kNoEntry: nothing. The whole device cannot be reserved: a lane that
  // holds something moves there at once.
  EntryId target = kNoEntry;
  bool close_gates = false;      // and close the gates of the leases that overlap it
  std::uint64_t expires_ns = 0;  // the reservation ends then if the lane has not come; 0: soon
  // Standing reservation of the lane, exclusive to its client also while it has nothing to run,
  // until another plan for the lane says otherwise; kNoEntry: none.
  EntryId standing = kNoEntry;
  // The lane makes way: its grant is closed, and it waits until another plan says otherwise. That
  // it waits is no reason to take anything back from others, until it is overdue (Terms).
  bool stop = false;
  // Of all grants that the lane gets from now on, and of the one that it keeps (Choice::ahead_ns).
  std::uint64_t ahead_ns = kNever;
};

// How long a policy lets others wait, where it is not content with what the scheduler does.
struct Terms {
  // A grant older than this is recalled while somebody waits; kNever: only the policy recalls.
  std::optional<std::uint64_t> quantum_ns;
  // Who has waited for so long is served by age, whatever the policy says; kNever: may starve.
  std::optional<std::uint64_t> overdue_ns;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;
  // Index into `ready`, or nothing to defer all of them. `ready` is never empty.
  virtual std::optional<std::size_t> pick(std::span<const ReadyOperation> ready,
                                          const PoolView& pool) {
    (void)ready, (void)pool;
    return 0;
  }
  // An element of `eligible`, which is never empty, narrowest first, and may end with the whole
  // device; or kNoEntry to leave the operation for now.
  virtual Choice select(const ReadyOperation& operation, std::span<const EntryId> eligible,
                        const PoolView& pool) = 0;
  virtual Plan prepare(const Hint& hint, const PoolView& pool) {
    (void)hint, (void)pool;
    return {};
  }
  // The client is gone for good.
  virtual void forget(ClientId client) { (void)client; }
  virtual Terms terms() const { return {}; }
  // Whether it decides by more than the operation that it is asked about. When not, prepare() is
  // not asked, and PoolView does not tell who waits and who holds what: a decision then costs the
  // same however many there are.
  virtual bool plans() const { return true; }
  // Whether it looks at PoolView::profile: then live launches are worth timing.
  virtual bool wants_profile() const { return false; }
  // It wants to be asked again at this time, with everybody's progress of then, though nothing may
  // have changed.
  virtual std::uint64_t look_at() const { return kNever; }
  // It has measured what another object like it would have to measure again.
  virtual bool remembers() const { return false; }
  // What a person should be told, once: "" when there is nothing new.
  virtual std::string take_message() { return {}; }
  // Whether operations of different lanes of one client may share units. When not, each lane is a
  // lessee of its own and an entry that overlaps another lane's work is not eligible.
  virtual bool lanes_share() const { return true; }
};

}  // namespace vitamin::runtime
