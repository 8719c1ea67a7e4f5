// SPDX-License-Identifier: Apache-2.0
#include "protocol/record.h"

#include <bit>
#include <type_traits>

namespace vitamin::protocol {
namespace {

using Verdict = tl::expected<void, Malformed>;

Verdict wrong(std::string_view what) { return tl::unexpected(Malformed{what}); }

// A time from now that no program can mean; added to a clock it must not overflow.
constexpr std::uint64_t kLongest = 1'000'000'000'000'000'000;  // 30 years

Verdict leasable(std::uint32_t entry, const Bounds& bounds) {
  if (entry == runtime::kWholeDevice || entry >= bounds.entries)
    return wrong("an entry that is not in the pool");
  return {};
}

Verdict check(const Ready& ready, const Bounds& bounds) {
  // One more than there are: only the whole device takes it.
  if (ready.processors == 0 || ready.processors > bounds.processors + 1)
    return wrong("an operation wider than the device");
  if (ready.predicted_ns > kLongest || ready.ready_in_ns > kLongest)
    return wrong("a time beyond reason");
  if (ready.last_entry != runtime::kNoEntry && ready.last_entry >= bounds.entries)
    return wrong("a last entry that is not in the pool");
  if (ready.refused_count > kRefusedMax) return wrong("more refused entries than a record holds");
  for (std::size_t i = 0; i < ready.refused_count; ++i)
    if (ready.refused[i] >= bounds.entries) return wrong("a refused entry that is not in the pool");
  return {};
}
Verdict check(const Withdrawn&, const Bounds&) { return {}; }
Verdict check(const Released& released, const Bounds& bounds) {
  return leasable(released.entry, bounds);
}
Verdict check(const Draining& draining, const Bounds& bounds) {
  return leasable(draining.entry, bounds);
}
Verdict check(const Holding& holding, const Bounds& bounds) {
  return leasable(holding.entry, bounds);
}
Verdict check(const HintRecord& hint, const Bounds& bounds) {
  if (hint.processors > bounds.processors + 1) return wrong("a hint wider than the device");
  if (hint.ready_in_ns > kLongest || hint.deadline_in_ns > kLongest)
    return wrong("a time beyond reason");
  if (hint.cancelled > 1) return wrong("a hint that is neither given nor cancelled");
  return {};
}
Verdict check(const Grant& grant, const Bounds& bounds) {
  if (grant.entry >= bounds.entries) return wrong("an entry that is not in the pool");
  if (grant.launches == 0) return wrong("a grant for nothing");
  return {};
}

template <class T, class Any>
tl::expected<Any, Malformed> as(const Record& copy, const Bounds& bounds) {
  static_assert(sizeof(T) == sizeof(Record) && std::is_trivially_copyable_v<T>);
  const T typed = std::bit_cast<T>(copy.words);
  if (const Verdict verdict = check(typed, bounds); !verdict)
    return tl::unexpected(verdict.error());
  return Any(typed);
}

Type type_of(const Record& copy) { return static_cast<Type>(copy.words[0] & 0xff); }

}  // namespace

template <class T>
Record encode(const T& typed) {
  T complete = typed;
  complete.head.type = static_cast<std::uint8_t>(T::kType);
  return {std::bit_cast<std::array<std::uint64_t, kRecordWords>>(complete)};
}
template Record encode(const Ready&);
template Record encode(const Withdrawn&);
template Record encode(const Released&);
template Record encode(const Draining&);
template Record encode(const Holding&);
template Record encode(const HintRecord&);
template Record encode(const Grant&);

tl::expected<Request, Malformed> decode_request(const Record& copy, const Bounds& bounds) {
  switch (type_of(copy)) {
    case Type::kReady: return as<Ready, Request>(copy, bounds);
    case Type::kWithdrawn: return as<Withdrawn, Request>(copy, bounds);
    case Type::kReleased: return as<Released, Request>(copy, bounds);
    case Type::kDraining: return as<Draining, Request>(copy, bounds);
    case Type::kHolding: return as<Holding, Request>(copy, bounds);
    case Type::kHint: return as<HintRecord, Request>(copy, bounds);
    case Type::kGrant: break;
  }
  return tl::unexpected(Malformed{"a record of a type that clients do not send"});
}

tl::expected<Reply, Malformed> decode_reply(const Record& copy, const Bounds& bounds) {
  if (type_of(copy) == Type::kGrant) return as<Grant, Reply>(copy, bounds);
  return tl::unexpected(Malformed{"a record of a type that the daemon does not send"});
}

}  // namespace vitamin::protocol
