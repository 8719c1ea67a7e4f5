// SPDX-License-Identifier: Apache-2.0
//
// Decodes a record both ways. 0: refused both times; 1: taken, and within the bounds; -1: taken and
// outside them. An oracle of its own: it asks what the daemon relies on, not what record.cpp tests.
#pragma once

#include "daemon/protocol/record.h"

namespace vitamin::protocol {

inline int check_decoding(const Record& record, const Bounds& bounds) {
  int verdict = 0;
  constexpr std::uint64_t kClockMax = 1ULL << 62;  // added to a clock, no overflow
  if (const auto request = decode_request(record, bounds)) {
    verdict = std::visit(
        [&](const auto& typed) {
          using T = std::decay_t<decltype(typed)>;
          bool good = true;
          if constexpr (std::is_same_v<T, Ready>) {
            good = typed.sms >= 1 && typed.ready_in_ns < kClockMax &&
                   typed.deadline_in_ns < kClockMax && typed.predicted_ns < kClockMax;
          } else if constexpr (std::is_same_v<T, HintRecord>) {
            good = typed.ready_in_ns < kClockMax && typed.deadline_in_ns < kClockMax;
          } else if constexpr (std::is_same_v<T, Timed>) {
            good = typed.sms >= 1 && typed.sms <= bounds.sms && typed.launches > 0 &&
                   typed.mean_ns > 0 && typed.mean_ns < kClockMax && typed.whole_ns < kClockMax;
          } else if constexpr (!std::is_same_v<T, Idle>) {
            good = typed.partition < bounds.partitions;
          }
          good = good && typed.head.lane < kLanes;
          return good ? 1 : -1;
        },
        *request);
  }
  if (const auto reply = decode_reply(record, bounds)) {
    const Grant& grant = std::get<Grant>(*reply);
    verdict = grant.partition < bounds.partitions && grant.launches > 0 ? 1 : -1;
  }
  return verdict;
}

}  // namespace vitamin::protocol
