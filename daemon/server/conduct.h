// SPDX-License-Identifier: Apache-2.0
//
// Users whose clients were let go for breaking the protocol, again and again: each time costs the
// loop a session's beginning and end, which others wait for. After a few of them the user's next
// client is admitted only every now and then, until there were none for a while. Its clients that
// are there already lose nothing. Time is an argument.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace vitamin::daemon {

class Conduct {
 public:
  static constexpr std::uint64_t kEvery = 100'000'000;  // ns for each that was let go
  static constexpr std::uint64_t kFree = 8;             // before anybody waits
  static constexpr std::uint64_t kLongest = 5;          // times kEvery that one waits, at most
  struct User {
    std::uint64_t paid_ns = 0;  // all until now is forgotten then
    std::uint64_t let_go = 0;   // since it was forgotten last
    bool told = false;          // that it waits
    std::string last;           // who was let go last, for people
  };

  // One more. True: from now on it waits, which nobody has said yet.
  bool let_go(uid_t uid, const std::string& who, std::uint64_t now_ns) {
    forget(now_ns);
    User& user = users_[uid];
    ++user.let_go;
    user.last = who;
    add(user, now_ns);
    return admits_at(uid, now_ns) > now_ns && !std::exchange(user.told, true);
  }
  // When its next client may come: at `now_ns`, or later.
  std::uint64_t admits_at(uid_t uid, std::uint64_t now_ns) const {
    const auto found = users_.find(uid);
    if (found == users_.end()) return now_ns;
    return std::max(now_ns,
                    found->second.paid_ns - std::min(found->second.paid_ns, kFree * kEvery));
  }
  // One has come. Of who waits they come one by one.
  void admitted(uid_t uid, std::uint64_t now_ns) {
    const auto found = users_.find(uid);
    if (found != users_.end() && found->second.paid_ns > now_ns + (kFree - 1) * kEvery)
      add(found->second, now_ns);
  }
  // Whoever was let go lately.
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
