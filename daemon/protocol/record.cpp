// SPDX-License-Identifier: Apache-2.0
#include "daemon/protocol/record.h"

#include <bit>
#include <type_traits>

namespace vitamin::protocol {
namespace {

using Verdict = tl::expected<void, Malformed>;

Verdict wrong(std::string_view what) { return tl::unexpected(Malformed{what}); }

Verdict in_pool(std::uint32_t partition, const Bounds& bounds) {
  if (partition >= bounds.partitions) return wrong("a partition that is not in the pool");
  return {};
}

Verdict check_kind(std::uint8_t kind) {
  if (kind >= kKinds) return wrong("a kind of work that does not exist");
  return {};
}

Verdict check(const Ready& ready, const Bounds& bounds) {
  // One more than there are: only the whole device takes it.
  if (ready.sms == 0 || ready.sms > bounds.sms + 1)
    return wrong("an operation wider than the device");
  if (ready.predicted_ns > kLongest || ready.queued_ns > kLongest || ready.ready_in_ns > kLongest ||
      ready.deadline_in_ns > kLongest)
    return wrong("a time beyond reason");
  if (ready.last_partition != runtime::kNoPartition && ready.last_partition >= bounds.partitions)
    return wrong("a last partition that is not in the pool");
  if (ready.moves_on > 1 || ready.iteration_end > 1) return wrong("a flag that is neither 0 nor 1");
  return check_kind(ready.kind);
}
Verdict check(const Idle&, const Bounds&) { return {}; }
Verdict check(const Returned& returned, const Bounds& bounds) {
  return in_pool(returned.partition, bounds);
}
Verdict check(const Draining& draining, const Bounds& bounds) {
  return in_pool(draining.partition, bounds);
}
Verdict check(const Holding& holding, const Bounds& bounds) {
  return in_pool(holding.partition, bounds);
}
Verdict check(const HintRecord& hint, const Bounds& bounds) {
  if (hint.sms > bounds.sms + 1) return wrong("a hint wider than the device");
  if (hint.ready_in_ns > kLongest || hint.deadline_in_ns > kLongest || hint.queued_ns > kLongest)
    return wrong("a time beyond reason");
  if (hint.cancelled > 1) return wrong("a hint that is neither given nor cancelled");
  return check_kind(hint.kind);
}
Verdict check(const Timed& timed, const Bounds& bounds) {
  if (timed.sms == 0 || timed.sms > bounds.sms)
    return wrong("a launch timed on no SMs or on more than there are");
  if (timed.launches == 0 || timed.mean_ns == 0) return wrong("a time of nothing");
  if (timed.mean_ns > kLongest || timed.whole_ns > kLongest) return wrong("a time beyond reason");
  return {};
}
Verdict check(const Grant& grant, const Bounds& bounds) {
  if (grant.launches == 0) return wrong("a grant for nothing");
  if (grant.ahead_ns > kLongest) return wrong("a time beyond reason");
  if (grant.exclusive > 1) return wrong("a flag that is neither 0 nor 1");
  return in_pool(grant.partition, bounds);
}

template <class T, class Any>
tl::expected<Any, Malformed> as(const Record& copy, const Bounds& bounds) {
  static_assert(sizeof(T) == sizeof(Record) && std::is_trivially_copyable_v<T>);
  const T typed = std::bit_cast<T>(copy.words);
  if (typed.head.lane >= kLanes) return tl::unexpected(Malformed{"a lane that does not exist"});
  if (const Verdict verdict = check(typed, bounds); !verdict)
    return tl::unexpected(verdict.error());
  return Any(typed);
}

RecordType type_of(const Record& copy) { return static_cast<RecordType>(copy.words[0] & 0xff); }

}  // namespace

template <class T>
Record encode(const T& typed) {
  T complete = typed;
  complete.head.type = static_cast<std::uint8_t>(T::kType);
  return {std::bit_cast<std::array<std::uint64_t, kRecordWords>>(complete)};
}
template Record encode(const Ready&);
template Record encode(const Idle&);
template Record encode(const Returned&);
template Record encode(const Draining&);
template Record encode(const Holding&);
template Record encode(const HintRecord&);
template Record encode(const Timed&);
template Record encode(const Grant&);

tl::expected<Request, Malformed> decode_request(const Record& copy, const Bounds& bounds) {
  switch (type_of(copy)) {
    case RecordType::kReady:
      return as<Ready, Request>(copy, bounds);
    case RecordType::kIdle:
      return as<Idle, Request>(copy, bounds);
    case RecordType::kReturned:
      return as<Returned, Request>(copy, bounds);
    case RecordType::kDraining:
      return as<Draining, Request>(copy, bounds);
    case RecordType::kHolding:
      return as<Holding, Request>(copy, bounds);
    case RecordType::kHint:
      return as<HintRecord, Request>(copy, bounds);
    case RecordType::kTimed:
      return as<Timed, Request>(copy, bounds);
    case RecordType::kGrant:
      break;
  }
  return tl::unexpected(Malformed{"a record of a type that clients do not send"});
}

tl::expected<Reply, Malformed> decode_reply(const Record& copy, const Bounds& bounds) {
  if (type_of(copy) == RecordType::kGrant) return as<Grant, Reply>(copy, bounds);
  return tl::unexpected(Malformed{"a record of a type that the daemon does not send"});
}

}  // namespace vitamin::protocol
