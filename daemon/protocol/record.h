// SPDX-License-Identifier: Apache-2.0
//
// What travels in the rings: fixed records of 64 bytes.
//
// A Record is the raw copy of a ring cell. Typed records have the same size and are made of the raw
// copy by decode_request() and decode_reply(), which refuse everything that a correct peer cannot
// have sent; the rest of the program never sees a field that was not checked. No record holds a
// pointer, a process id or a point in time: clocks differ between time namespaces, so times are
// always "from now".
//
// Compatibility. The major version (version.h) fixes size, types and meaning of every record; peers
// of different major versions refuse each other before a ring exists. A minor version may add
// types: a peer sends those only when the other's minor version knows them. Unused bytes are zero
// and are ignored.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <variant>

#include "hal/result.h"
#include "runtime/pool/layout.h"

namespace vitamin::protocol {

// Lanes of one client that the daemon tells apart; a client with more streams lets some share one.
inline constexpr std::size_t kLanes = 256;
using LaneId = std::uint32_t;  // below kLanes

inline constexpr std::size_t kRecordWords = 8;

struct alignas(64) Record {
  std::array<std::uint64_t, kRecordWords> words{};
  bool operator==(const Record&) const = default;
};
static_assert(sizeof(Record) == 64);

// What a lease word says (segment.h).
using LeaseWord = std::uint64_t;

// The longest time in a record, about 30 years: added to a clock it does not overflow.
inline constexpr std::uint64_t kLongest = 1'000'000'000'000'000'000;

// Values of runtime::WorkKind, which the peers know by its number.
inline constexpr std::uint8_t kKinds = 4;

enum class RecordType : std::uint8_t {
  // client -> daemon
  kReady = 1,  // the lane has a bindable operation: where may it run?
  kIdle,       // the lane has nothing more to submit; the first one also ends the Holdings
  kReturned,   // nothing of the lane is outstanding under this grant, and nothing will be
  kDraining,   // the gate was seen closed; work is still outstanding
  kHolding,    // before the first Ready: earlier work is outstanding there
  kHint,       // an operation is expected
  kTimed,      // since 1.2: the measured time of launches on so many SMs
  // daemon -> client
  kGrant = 64,
};

struct Head {
  std::uint8_t type = 0;
  std::uint8_t reserved[3] = {};
  std::uint32_t lane = 0;  // below kLanes
};

struct Ready {
  static constexpr RecordType kType = RecordType::kReady;
  Head head{};
  std::uint64_t kernel = 0;        // runtime::ReadyOperation; not used by the daemon
  std::uint64_t predicted_ns = 0;  // on the whole device; 0: unknown
  // Predicted time, alone on the whole device, of all that must be done by the deadline; 0: not
  // said.
  std::uint64_t queued_ns = 0;
  std::uint64_t ready_in_ns = 0;     // when its predecessors are predicted to end; 0: now
  std::uint64_t deadline_in_ns = 0;  // 0: none
  std::uint32_t sms = 1;             // fewest SMs that run it unchanged
  std::uint16_t last_partition = runtime::kNoPartition;  // not used by the daemon
  // The lane submits nothing more under its present grant, if it has one: its launches are used up,
  // or its partition is too narrow.
  std::uint8_t moves_on = 0;
  std::uint8_t iteration_end = 0;  // runtime::ReadyOperation
  std::uint8_t kind = 0;           // since 1.2: runtime::WorkKind, where the program says it
  std::uint8_t unused[7] = {};
};

struct Idle {
  static constexpr RecordType kType = RecordType::kIdle;
  Head head{};
  std::uint64_t unused[7] = {};
};

struct Returned {
  static constexpr RecordType kType = RecordType::kReturned;
  Head head{};
  LeaseWord word = 0;  // of the grant
  std::uint32_t partition = 0;
  std::uint32_t unused32 = 0;
  std::uint64_t unused[5] = {};
};

struct Draining {
  static constexpr RecordType kType = RecordType::kDraining;
  Head head{};
  LeaseWord word = 0;
  std::uint32_t partition = 0;
  std::uint32_t outstanding = 0;
  std::uint64_t unused[5] = {};
};

struct Holding {
  static constexpr RecordType kType = RecordType::kHolding;
  Head head{};
  LeaseWord word = 0;           // what its Returned will say
  std::uint32_t partition = 0;  // the whole device: since 1.8
  std::uint32_t outstanding = 0;
  std::uint64_t unused[5] = {};
};

struct HintRecord {
  static constexpr RecordType kType = RecordType::kHint;
  Head head{};
  std::uint64_t kernel = 0;  // not used by the daemon
  std::uint64_t ready_in_ns = 0;
  std::uint64_t deadline_in_ns = 0;
  std::uint64_t queued_ns = 0;  // as Ready's
  std::uint32_t sms = 0;
  std::uint32_t cancelled = 0;
  std::uint8_t kind = 0;  // since 1.2, as Ready's
  std::uint8_t unused[15] = {};
};

// What a client measured of launches of its own, a fair sample of them (runtime::Profiler).
struct Timed {
  static constexpr RecordType kType = RecordType::kTimed;
  Head head{};                // the lane is not used
  std::uint64_t mean_ns = 0;  // mean time of the launches
  std::uint32_t launches = 0;
  std::uint32_t sms = 0;       // on which they ran
  std::uint64_t whole_ns = 0;  // since 1.4: runtime::TimedLaunches; 0: unknown
  std::uint64_t unused[4] = {};
};

// Grant::ahead_ns that bounds nothing: what records before 1.5 have there.
inline constexpr std::uint64_t kNoAheadBound = 0;

struct Grant {
  static constexpr RecordType kType = RecordType::kGrant;
  Head head{};
  LeaseWord word = 0;          // the value of the lane's lease word while the gate is open
  std::uint32_t launches = 0;  // at least 1; runtime::kUntilRevoked: until the gate closes
  std::uint32_t partition = 0;
  // Since 1.5: submission runs ahead of completion by no more predicted time than this. With a
  // client that ignores it, other clients wait for longer.
  std::uint64_t ahead_ns = kNoAheadBound;
  // Since 1.7: not 0: this record amends the open grant with that word, which gets this record's
  // word and terms; 0: a new grant, even of the same partition. To a client before 1.7 a grant of
  // the same partition replaces the open one, so the daemon grants it no partition on which the
  // lane drains.
  LeaseWord amends = 0;
  // Since 1.8: not 0: an exclusive grant, which the client returns when its work has ended, on the
  // whole device, too (runtime::Arbiter::submitted). A client before 1.8 returns a grant of the
  // whole device at once.
  std::uint8_t exclusive = 0;
  std::uint8_t unused8[7] = {};
  std::uint64_t unused[2] = {};
};

using Request = std::variant<Ready, Idle, Returned, Draining, Holding, HintRecord, Timed>;
using Reply = std::variant<Grant>;

template <class T>
Record encode(const T& typed);

// What a correct peer stays within.
struct Bounds {
  std::size_t partitions = 0;  // of the pool, the whole device included
  std::uint32_t sms = 0;       // of the whole device
};

// `what` is a sentence for the log. It has no end: literals only.
struct Malformed {
  std::string_view what;
};

tl::expected<Request, Malformed> decode_request(const Record& copy, const Bounds& bounds);
tl::expected<Reply, Malformed> decode_reply(const Record& copy, const Bounds& bounds);

}  // namespace vitamin::protocol
