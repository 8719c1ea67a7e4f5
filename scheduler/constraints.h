// SPDX-License-Identifier: Apache-2.0
//
// What holds whatever a policy says: valid rows, quotas, reservations, exclusivity, and a row for
// each stream that has waited for too long.
//
// clip() places rows one after the other. Each gets the widest partition inside its own that the
// rows placed before it and its quota leave:
//
//   1. starving streams, the longest wait first: the narrowest partition that runs the launch,
//      exclusive; shared and as wide as the quota allows where no policy's row is exclusive. It
//      keeps its mode: a policy that gives exclusive rows only beside a shared one, and the other
//      way round, would change it with every plan
//   2. reservations (Limits::reserved_sms): units that no later row of another client or group gets
//   3. the policy's rows by rank; of one rank, exclusive rows first, then the client that has been
//      active for longest. (Not the longest wait: a row that is narrowed makes its client wait, and
//      two such rows would take turns with every plan.)
//
// What holds of the result (tests/scheduler/constraints_test.cpp):
//   * Units of an exclusive row are in no row of another client. Exception: rows of one launch that
//     only the whole device can run (kNeedsWhole), which are shared and counted.
//     Where streams are isolated, that holds of different streams of one client, too.
//   * The rows of a client, and of each group that it is in, cover at most max_sms SMs together;
//     where that is less than the pool's narrowest partition, or than a launch of its own needs,
//     the narrowest partition that runs it (kNeedsWhole rows are not counted). The ledger keeps
//     the same of grants while earlier ones drain (scheduler/ledger.h).
//   * Members of a group whose quota leaves a policy's exclusive row no room share the units of
//     another member, which no client outside of the group gets.
//   * A client that may not share has exclusive rows only, but for kNeedsWhole.
//   * Reserved units are in no row of others, but for starving streams.
//   * Every active client has a row; kPaused where the policy gave none, or none has room.
//
// Every correction of a policy's row is counted: a policy that never causes one follows the rules.
//
// Deterministic: equal arguments give equal results. No allocation once its vectors have grown.
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "scheduler/policy.h"
#include "scheduler/unit_widths.h"

namespace vitamin::scheduler {

// A starving stream, which is to have a row.
struct Starving {
  ClientId client = kNoClient;
  StreamId stream = 0;
  std::uint32_t min_sms = 1;
  // What clip() chose before, which is kept; kNoPartition: nothing.
  PartitionId partition = kNoPartition;
  Mode mode = Mode::kExclusive;
};

// One row of the result.
struct Planned {
  Row row;
  Reason reason = Reason::kNone;
  PartitionId wished = kNoPartition;  // by the policy; kNoPartition: it gave no row
  Mode wished_mode = Mode::kPaused;
};

struct Corrections {
  std::uint64_t quota = 0;
  std::uint64_t not_shared = 0;
  std::uint64_t overlap = 0;
  std::uint64_t needs_width = 0;
  std::uint64_t needs_whole = 0;
  std::uint64_t no_room = 0;
  std::uint64_t reservation = 0;  // rows that the policy gave too little, or none
  std::uint64_t unmet = 0;        // reservations that found no units
  std::uint64_t starving = 0;     // rows of starving streams
};

struct ClipOptions {
  bool isolate_streams = false;  // PolicyDescription
  bool placement = false;        // a PlacementPolicy decides: starving streams do not share
};

class Constraints {
 public:
  // `pool` outlives the object: [0] the whole device, then narrowest first.
  explicit Constraints(std::span<const Partition> pool);

  // Writes the result to `out`. Null, or why the rows are invalid; `out` is then empty.
  const char* clip(const Snapshot& snapshot, std::span<const Row> rows,
                   std::span<const Starving> starving, const ClipOptions& options,
                   std::vector<Planned>& out);
  // As of the last clip(): units that are reserved for others than this client of its snapshot.
  hal::ComputeSet reserved_against(const Snapshot& snapshot, ClientId client) const;

  const Corrections& corrections() const { return corrections_; }
  // The narrowest partition of at least so many SMs; the whole device where no part is.
  PartitionId narrowest(std::uint32_t sms) const;
  // Only the whole device, or the part with all of its units, runs such a launch.
  bool needs_whole(std::uint32_t sms) const { return sms > widest_part_; }

 private:
  static constexpr std::uint32_t kNone = 0xffffffff;
  // Clients that share a quota, and a reservation where it is the first of their accounts: a group,
  // or one client.
  struct Account {
    std::uint32_t group = 0;
    std::uint32_t max_sms = 0, reserved_sms = 0;
    hal::ComputeSet used, reserved;
    PartitionId reserved_partition = kNoPartition;
  };
  // What rows of one client got.
  struct Owner {
    std::uint32_t account = 0;
    std::array<std::uint32_t, std::tuple_size_v<decltype(Limits::outer)>> outer{};
    std::uint32_t outers = 0;         // used entries of `outer`
    std::uint32_t min_sms = 1;        // of its streams that wait or run
    std::uint64_t since_ns = kNever;  // it is active
    hal::ComputeSet exclusive, shared;
    bool has_row = false;                // for the client as a whole
    PartitionId current = kNoPartition;  // of its row in force
  };
  struct Wish {
    std::uint32_t row;
    std::uint32_t owner;
    bool exclusive;
  };

  const char* validate(const Snapshot& snapshot, std::span<const Row> rows);
  void prepare(const Snapshot& snapshot);
  std::uint32_t account_of(std::uint32_t group);
  std::uint32_t owner_of(const Snapshot& snapshot, ClientId client);
  std::uint32_t common_quota(const Owner& a, const Owner& b) const;
  hal::ComputeSet reserved_from(const Owner& owner) const;
  void share_with_group(const Snapshot& snapshot, std::uint32_t owner, std::uint32_t min_sms,
                        Planned& planned, std::vector<Planned>& out);
  void place_starving(const Snapshot& snapshot, std::span<const Starving> starving, bool isolate,
                      std::vector<Planned>& out);
  PartitionId choose_for(const Snapshot& snapshot, const Starving& stream, std::uint32_t owner,
                         bool isolate, bool shared) const;
  void reserve(const Snapshot& snapshot, std::span<const Row> rows);
  void collect_min_sms(const Snapshot& snapshot);
  // Of a stream that waits or runs; 1 of any other.
  std::uint32_t min_sms_of(ClientId client, StreamId stream) const;
  void place_rows(const Snapshot& snapshot, std::span<const Row> rows, bool isolate_streams,
                  std::vector<Planned>& out);
  void place_row(const Snapshot& snapshot, const Row& row, std::uint32_t owner, bool isolate,
                 std::vector<Planned>& out);
  void find_place(std::uint32_t owner, bool isolate, PartitionId wished, std::uint32_t min_sms,
                  bool may_share, Planned& planned);
  Planned whole_device_for(const Row& row, ClientId client, StreamId stream);
  bool has_starving_row(ClientId client, StreamId stream, std::span<const Planned> out) const;
  static Mode reserved_mode(const Account& account, const Client& client);
  void place_missing(const Snapshot& snapshot, bool isolate, std::vector<Planned>& out);
  void place_wide_launches(const Snapshot& snapshot, std::uint32_t owner, const Planned& planned,
                           std::vector<Planned>& out);

  // Whether the owner may have the partition beside what is placed.
  bool fits(std::uint32_t owner, bool isolate, PartitionId partition, Mode mode,
            std::uint32_t min_sms) const;
  bool within_quota(const Account& account, PartitionId partition, std::uint32_t min_sms) const;
  bool within_quotas(const Owner& owner, PartitionId partition, std::uint32_t min_sms) const;
  PartitionId widest_inside(std::uint32_t owner, bool isolate, PartitionId partition, Mode mode,
                            std::uint32_t min_sms) const;
  PartitionId narrowest_fit(std::uint32_t owner, bool isolate, Mode mode,
                            std::uint32_t min_sms) const;
  void take(std::uint32_t owner, PartitionId partition, Mode mode);

  std::span<const Partition> pool_;
  UnitWidths widths_;
  std::uint32_t widest_part_ = 0;
  std::vector<Account> accounts_;
  std::vector<Owner> owners_;  // by index in Snapshot::clients
  std::vector<Wish> wishes_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> min_sms_;  // by key, see collect_min_sms()
  std::uint32_t last_owner_ = 0;                                  // of owner_of()
  hal::ComputeSet exclusive_, shared_, shared_by_several_, reserved_;
  bool any_exclusive_ = false;     // wish
  std::size_t starving_rows_ = 0;  // the first rows of the result: those of starving streams
  Corrections corrections_;
};

}  // namespace vitamin::scheduler
