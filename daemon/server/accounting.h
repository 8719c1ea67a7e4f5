// SPDX-License-Identifier: Apache-2.0
//
// What clients used, kept beyond their end: a record of each client that ended, and sums by who it
// was. Both are bounded.
//
// Threads: the server's only.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "daemon/arbiter/usage.h"

namespace vitamin::daemon {

// The labels of figures of usage.
struct UsageOwner {
  std::string uuid, user, workload_class, job, pod_namespace, pod;
  friend auto operator<=>(const UsageOwner&, const UsageOwner&) = default;
};

class Accounting {
 public:
  static constexpr std::size_t kRecords = 1000;
  // Owners with figures of their own; all further ones of a device are one, of user "other".
  static constexpr std::size_t kOwners = 256;

  // A client ended. `file`: the record is appended there as a line of JSON; empty: nowhere.
  void ended(const UsageOwner& owner, const UsageTotals& used, nlohmann::json record,
             const std::string& file);
  // The same owner, or the one of all further ones, if there are kOwners already. It is one of the
  // kOwners from then on.
  UsageOwner counted(const UsageOwner& owner);
  const std::map<UsageOwner, UsageTotals>& sums() const { return sums_; }  // of clients that ended
  nlohmann::json records() const;                                          // the newest last

 private:
  void append(const std::string& file, const std::string& line);

  std::map<UsageOwner, UsageTotals> sums_;
  std::deque<nlohmann::json> records_;
  bool failed_ = false;  // to write, the last time
};

}  // namespace vitamin::daemon
