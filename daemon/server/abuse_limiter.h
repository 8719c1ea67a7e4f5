// SPDX-License-Identifier: Apache-2.0
//
// Limits how often a user whose clients break the protocol may start new ones. Each eviction costs
// the loop the begin and end of a session, during which other clients wait. After kFree evictions
// the user's next clients are admitted one by one, until there was no eviction for a while. The
// user's existing sessions are not affected.
//
// Pure: time is an argument. Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace vitamin::daemon {

class AbuseLimiter {
 public:
  static constexpr std::uint64_t kEvery = 100'000'000;  // ns that each eviction costs
  static constexpr std::uint64_t kFree = 8;             // evictions without a wait
  static constexpr std::uint64_t kLongest = 5;          // the longest wait, in units of kEvery
  struct User {
    std::uint64_t paid_ns = 0;    // when all evictions so far are paid for, and forgotten
    std::uint64_t evictions = 0;  // not forgotten yet
    bool reported = false;        // record_eviction() has returned true
    std::string last;             // the client evicted last, for the log
  };

  // Counts one more eviction. True, once until it is forgotten: the user has to wait from now on.
  bool record_eviction(uid_t uid, const std::string& who, std::uint64_t now_ns) {
    forget(now_ns);
    User& user = users_[uid];
    ++user.evictions;
    user.last = who;
    add(user, now_ns);
    return admits_at(uid, now_ns) > now_ns && !std::exchange(user.reported, true);
  }
  // When the user's next client may be admitted: at `now_ns`, or later.
  std::uint64_t admits_at(uid_t uid, std::uint64_t now_ns) const {
    const auto found = users_.find(uid);
    if (found == users_.end()) return now_ns;
    return std::max(now_ns,
                    found->second.paid_ns - std::min(found->second.paid_ns, kFree * kEvery));
  }
  // A client of the user was admitted. While the user has to wait, that costs kEvery, too, so that
  // its clients are admitted one by one.
  void admitted(uid_t uid, std::uint64_t now_ns) {
    const auto found = users_.find(uid);
    if (found != users_.end() && found->second.paid_ns > now_ns + (kFree - 1) * kEvery)
      add(found->second, now_ns);
  }
  // Users with evictions that are not forgotten.
  const std::map<uid_t, User>& users(std::uint64_t now_ns) {
    forget(now_ns);
    return users_;
  }

 private:
  static void add(User& user, std::uint64_t now_ns) {
    user.paid_ns =
        std::min(std::max(user.paid_ns, now_ns) + kEvery, now_ns + (kFree + kLongest) * kEvery);
  }
  void forget(std::uint64_t now_ns) {
    std::erase_if(users_, [&](const auto& user) { return user.second.paid_ns <= now_ns; });
  }

  std::map<uid_t, User> users_;
};

}  // namespace vitamin::daemon
