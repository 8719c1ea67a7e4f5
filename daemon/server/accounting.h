// SPDX-License-Identifier: Apache-2.0
//
// What clients used, kept after their end: a record of each client that ended, and sums by owner.
// Records, sums and the file are bounded.
//
// Calendar time appears in records only: no decision depends on it.
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

// Whose usage it is: the labels of the usage metrics.
struct UsageOwner {
  std::string uuid, user, workload_class, job, pod_namespace, pod;
  // NOLINTNEXTLINE(modernize-use-nullptr): the check takes what the compiler compares for a null
  friend auto operator<=>(const UsageOwner&, const UsageOwner&) = default;
};

// Takes the last bytes of a regular file away, those that this process has just written behind its
// first `before` ones. False: they stay, for another process has written to it, too.
bool take_back(int file, std::uint64_t before, std::uint64_t bytes);

class Accounting {
 public:
  static constexpr std::size_t kRecords = 1000;
  // Owners with separate sums; further ones count as one owner of each device, user "other".
  static constexpr std::size_t kOwners = 256;
  // An owner without clients for this time makes room for a new one: its sums are added to "other".
  static constexpr std::uint64_t kKeptNs = 600'000'000'000;
  // A file of this size is renamed to FILE.1, which it replaces.
  static constexpr std::uint64_t kFileBytes = 64 << 20;

  struct Sum {
    UsageTotals totals;  // of clients that ended
    std::uint64_t heard_ns = 0;
  };

  // A client has ended. Adds `began` and `ended` (seconds since 1970, from its `seconds`) to its
  // record, and appends the record to `file` as a line of JSON, unless `file` is empty.
  void ended(const UsageOwner& owner, const UsageTotals& used, nlohmann::json record,
             std::uint64_t now_ns, const std::string& file);
  // The owner under which the usage of such a client counts: itself or "other". It has a sum from
  // then on.
  UsageOwner counted(const UsageOwner& owner, std::uint64_t now_ns);
  const std::map<UsageOwner, Sum>& sums() const { return sums_; }
  nlohmann::json records() const;  // the newest last

 private:
  void append(const std::string& file, const std::string& line);
  bool make_room(std::uint64_t now_ns);

  std::map<UsageOwner, Sum> sums_;
  std::deque<nlohmann::json> records_;
  bool failed_ = false;  // the last append(), so that a failure is logged once
};

}  // namespace vitamin::daemon
