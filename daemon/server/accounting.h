// SPDX-License-Identifier: Apache-2.0
//
// What clients used, kept beyond their end: a record of each client that ended, and sums by who it
// was. Records, sums and the file are bounded.
//
// The calendar's time is in records only: nothing is decided by it.
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

// The labels of metrics of usage.
struct UsageOwner {
  std::string uuid, user, workload_class, job, pod_namespace, pod;
  friend auto operator<=>(const UsageOwner&, const UsageOwner&) = default;
};

class Accounting {
 public:
  static constexpr std::size_t kRecords = 1000;
  // Owners with sums of their own; beyond that all of a device are one, of user "other".
  static constexpr std::size_t kOwners = 256;
  // An owner of whom nothing was heard for so long makes room for a new one: its sums go to
  // "other".
  static constexpr std::uint64_t kKeptNs = 600'000'000'000;
  // A file of this size becomes FILE.1, in place of an earlier one.
  static constexpr std::uint64_t kFileBytes = 64 << 20;

  struct Sum {
    UsageTotals totals;  // of clients that ended
    std::uint64_t heard_ns = 0;
  };

  // A client ended. Its record gets `began` and `ended`, in seconds since 1970, by its `seconds`.
  // `file`: the record is appended there as a line of JSON; empty: nowhere.
  void ended(const UsageOwner& owner, const UsageTotals& used, nlohmann::json record,
             std::uint64_t now_ns, const std::string& file);
  // The owner under whose name the use of a client counts, which has a sum from then on.
  UsageOwner counted(const UsageOwner& owner, std::uint64_t now_ns);
  const std::map<UsageOwner, Sum>& sums() const { return sums_; }
  nlohmann::json records() const;  // the newest last

 private:
  void append(const std::string& file, const std::string& line);
  bool make_room(std::uint64_t now_ns);

  std::map<UsageOwner, Sum> sums_;
  std::deque<nlohmann::json> records_;
  bool failed_ = false;  // to write, the last time
};

}  // namespace vitamin::daemon
