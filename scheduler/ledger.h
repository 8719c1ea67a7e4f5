// SPDX-License-Identifier: Apache-2.0
//
// The ledger: every grant of one device, and which units exclusive grants hold. Pure: no policy,
// no clock; the scheduler is its only writer.
//
//                 open() (units free)
//          +-------------------------------> open --- revoke(), idle, open() elsewhere --+
//   none --+                                  ^  |                                       v
//          +-- pend() --> pending -- promote()+  +------- returned() -----> none <--- revoked
//                            +--- cancel() --> none                                      ^
//   none -- adopt() (earlier work) ------------------------------------------------------+
//
// Conflicts (docs/decisions/0001). Only exclusive grants conflict, and only those of different
// holders. A holder is a client, or one stream where the policy isolates streams. An exclusive
// grant opens when no exclusive grant of another holder, open or revoked, overlaps it. A shared
// grant always opens. A pending grant holds no unit.
//
// The ledger counts the exclusive grants on each unit by holder, so a conflict is one AND of
// ComputeSets. Exclusive grants of different holders overlap in two cases: adopt(), which records
// what runs, not what was decided, and set_holder(). Such units are `contested`, and conflict for
// every holder.
//
// Quotas. A grant, shared or exclusive, does not open where it would make the units on which
// clients of a quota have grants, open or revoked, more SMs than the quota allows; a grant inside
// those units, or around all of them, opens. Not counted: launches that only the whole device can
// run.
//
// Bounds. A stream has at most one open grant, one pending grant, and `grants_per_stream` grants
// that are open or revoked (adopted grants: kGrantsMost). So a client that never returns a grant
// costs others nothing but the units that it was given.
//
// Cost: every operation on a grant is O(units of its partition); no operation scans streams or
// grants; no allocation once the number of holders, streams and grants has been reached before.
// Errors: an operation that is not permitted returns kNoGrant or false and changes nothing.
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "scheduler/grant.h"
#include "scheduler/unit_widths.h"

namespace vitamin::scheduler {

struct LedgerCounters {
  std::uint64_t opened = 0;
  std::uint64_t moved = 0;  // opened while the stream had another open grant
  std::uint64_t revoked = 0;
  std::uint64_t returned = 0;
  std::uint64_t adopted = 0;
  std::uint64_t overlaps = 0;  // adopted exclusive grants on units that another holder held
};

class Ledger {
 public:
  using HolderIndex = std::uint32_t;
  using StreamIndex = std::uint32_t;
  static constexpr std::uint32_t kNone = 0xffffffff;
  static constexpr std::uint32_t kGrantsMost = 24;  // of one stream, adopted ones included

  struct Terms {
    PartitionId partition = kNoPartition;
    Mode mode = Mode::kShared;
    Reason reason = Reason::kNone;
    std::uint32_t launches = kNoLaunchBound;
    std::uint64_t run_ahead_ns = kNever;
  };

  // A quota that streams of clients are subject to together.
  struct QuotaTerms {
    std::uint64_t key = 0;  // what tells it from others
    std::uint32_t max_sms = 0;
  };
  static constexpr std::size_t kQuotasMost = 1 + std::tuple_size_v<decltype(Limits::outer)>;

  // `pool` outlives the ledger. 2 <= grants_per_stream <= kGrantsMost.
  explicit Ledger(std::span<const Partition> pool, std::uint32_t grants_per_stream = 12);

  // Indexes are reused after forget().
  HolderIndex add_holder();
  StreamIndex add_stream(HolderIndex holder, ClientId client, StreamId stream);
  // Ends every grant of the holder, its streams and the holder itself.
  void forget(HolderIndex holder);
  // The stream and what it holds belong to another holder from now on; where that holder's grants
  // and those of the former one overlap, units are contested until one of them ends.
  void set_holder(StreamIndex stream, HolderIndex holder);

  // The stream, with the grants that it has, is subject to these quotas and to no other; at most
  // kQuotasMost. A quota that is known allows so many SMs from now on.
  void set_quotas(StreamIndex stream, std::span<const QuotaTerms> quotas);
  bool has_quota(StreamIndex stream) const { return streams_[stream].quotas[0] != kNone; }
  bool have_common_quota(StreamIndex a, StreamIndex b) const;
  // Whether the quotas of the stream allow another grant there.
  bool within_quotas(StreamIndex stream, PartitionId partition) const;
  // Units of the stream's grants that were revoked by `revoked_by_ns`, but for interim ones.
  hal::ComputeSet draining(StreamIndex stream, std::uint64_t revoked_by_ns) const;

  // Units that the holder must not be given exclusively.
  hal::ComputeSet held_by_others(HolderIndex holder) const {
    return (held_ - holders_[holder].units) | contested_;
  }
  bool conflicts(HolderIndex holder, PartitionId partition) const {
    return pool_[partition].compute.overlaps(held_by_others(holder));
  }
  // Whether open() with these values succeeds.
  bool can_open(StreamIndex stream, PartitionId partition, Mode mode,
                Reason reason = Reason::kNone) const;
  // The stream has as many grants as it may have: it waits for its own work.
  bool full(StreamIndex stream) const { return streams_[stream].count >= grants_per_stream_; }

  // Opens a grant. An open grant of the stream is revoked with it (kMoved); a pending one stays.
  GrantId open(StreamIndex stream, const Terms& terms, std::uint64_t now_ns);
  // Records a grant that waits for its units; replaces a pending grant of the stream.
  GrantId pend(StreamIndex stream, const Terms& terms, std::uint64_t now_ns);
  // Opens the pending grant of the stream if nothing conflicts with it.
  GrantId promote(StreamIndex stream, std::uint64_t now_ns);
  // Ends the pending grant of the stream.
  bool cancel(StreamIndex stream);
  // Revokes the open grant of the stream.
  bool revoke(StreamIndex stream, Reason reason, std::uint64_t now_ns);
  // Other terms for the open grant of the stream; partition and mode stay.
  bool amend(StreamIndex stream, const Terms& terms);
  // Nothing of the stream is outstanding under the grant, which ends. Open or revoked.
  bool returned(StreamIndex stream, GrantId grant);
  // Earlier work (docs/glossary.md) runs there: a revoked grant, whatever overlaps it.
  // kNoGrant: the stream has kGrantsMost grants.
  GrantId adopt(StreamIndex stream, PartitionId partition, Mode mode, std::uint64_t now_ns);

  // Units on which an exclusive grant ended, or a contest did, since the last call.
  hal::ComputeSet take_freed() { return std::exchange(freed_, {}); }

  // A grant that a quota counts ended since the last call.
  bool take_quota_freed() { return std::exchange(quota_freed_, false); }

  std::span<const Grant> grants() const { return grants_; }  // in no order
  const Grant* find(GrantId grant) const;
  // Of the stream; null: none.
  const Grant* open_grant(StreamIndex stream) const { return at(streams_[stream].open); }
  const Grant* pending_grant(StreamIndex stream) const { return at(streams_[stream].pending); }
  // Open and revoked grants of the stream.
  std::uint32_t count(StreamIndex stream) const { return streams_[stream].count; }
  HolderIndex holder(StreamIndex stream) const { return streams_[stream].holder; }
  hal::ComputeSet held() const { return held_; }
  hal::ComputeSet contested() const { return contested_; }
  hal::ComputeSet units_of(HolderIndex holder) const { return holders_[holder].units; }
  const LedgerCounters& counters() const { return counters_; }

 private:
  struct Holder {
    std::array<std::uint32_t, hal::ComputeSet::kMaxUnits> grants{};  // exclusive, on each unit
    hal::ComputeSet units;                                           // with grants != 0
    StreamIndex first = kNone;                                       // its streams
    bool used = false;
  };
  struct Quota {
    QuotaTerms terms;
    std::uint32_t streams = 0;                                       // 0: unused
    std::array<std::uint32_t, hal::ComputeSet::kMaxUnits> grants{};  // on each unit
    hal::ComputeSet units;                                           // with grants != 0
  };
  using Quotas = std::array<std::uint32_t, kQuotasMost>;  // indexes; kNone behind the last
  static constexpr Quotas no_quotas() {
    Quotas none{};
    none.fill(kNone);
    return none;
  }
  struct StreamGrants {
    std::array<std::uint32_t, kGrantsMost> slots{};  // of open and revoked grants: [0, count)
    std::uint32_t count = 0;
    std::uint32_t open = kNone, pending = kNone;  // slots
    HolderIndex holder = kNone;
    ClientId client = kNoClient;
    StreamId id = 0;
    StreamIndex next = kNone;  // of the holder
    Quotas quotas = no_quotas();
  };
  // A slot is stable while its grant lives; grants_ is dense.
  struct Slot {
    std::uint32_t generation = 1;
    std::uint32_t index = kNone;  // in grants_
  };

  const Grant* at(std::uint32_t slot) const {
    return slot == kNone ? nullptr : &grants_[slots_[slot].index];
  }
  Grant& grant_of(std::uint32_t slot) { return grants_[slots_[slot].index]; }
  static std::uint32_t slot_of(GrantId id) { return static_cast<std::uint32_t>(id); }
  std::uint32_t add(const StreamGrants& stream, const Terms& terms, Grant::State state,
                    std::uint64_t now_ns);
  void remove(std::uint32_t slot);
  void attach(StreamGrants& stream, std::uint32_t slot);
  void detach(StreamGrants& stream, std::uint32_t slot);
  void take(Holder& holder, hal::ComputeSet units);
  void release(Holder& holder, hal::ComputeSet units);
  std::uint32_t find_or_add_quota(const QuotaTerms& terms);
  static bool is_counted(const Grant& grant) { return grant.reason != Reason::kNeedsWhole; }
  void count_in(const Quotas& quotas, const Grant& grant);
  void count_out(const Quotas& quotas, const Grant& grant);

  std::span<const Partition> pool_;
  std::uint32_t grants_per_stream_;
  std::vector<Holder> holders_;
  UnitWidths widths_;
  std::vector<Quota> quotas_;
  std::vector<HolderIndex> free_holders_;
  std::vector<StreamGrants> streams_;
  std::vector<StreamIndex> free_streams_;
  std::vector<Grant> grants_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::array<std::uint32_t, hal::ComputeSet::kMaxUnits> holders_on_{};  // each unit
  hal::ComputeSet held_;                                                // by one holder or more
  hal::ComputeSet contested_;                                           // by two or more
  hal::ComputeSet freed_;
  bool quota_freed_ = false;
  LedgerCounters counters_;
};

}  // namespace vitamin::scheduler
