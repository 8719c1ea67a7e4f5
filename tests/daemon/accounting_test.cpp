// SPDX-License-Identifier: Apache-2.0
//
// The usage of clients, and the records and sums that are kept of it.
#include "daemon/server/accounting.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "daemon/protocol/fd.h"
#include "tests/scheduler/fixture.h"

namespace vitamin::daemon {
namespace {

using hal::ComputeSet;

TEST_CASE("SMs on which a client has several grants count once, for as long as it has one") {
  const runtime::PoolLayout layout = scheduler::h200();
  const scheduler::UnitWidths widths(layout.partitions());
  Usage usage;
  usage.takes(ComputeSet::range(0, 2), widths, 100);  // 16 SMs
  usage.takes(ComputeSet::range(1, 2), widths, 200);  // 8 more
  CHECK(usage.sms() == 24);
  usage.returns(ComputeSet::range(0, 2), widths, 300);
  CHECK(usage.sms() == 16);
  usage.waited(7);
  UsageTotals totals = usage.totals(400);
  CHECK(totals.sm_ns == 100 * 16 + 100 * 24 + 100 * 16);
  CHECK(totals.held_ns == 300);
  CHECK(totals.wait_ns == 7);
  CHECK(totals.grants == 0);  // granted() counts delivered grants
  usage.returns(ComputeSet::range(1, 2), widths, 500);
  totals = usage.totals(1'000'000);  // it had no SMs in between
  CHECK(totals.sm_ns == 100 * 16 + 100 * 24 + 200 * 16);
  CHECK(totals.held_ns == 400);
  // The last unit of this device is wider.
  usage.takes(layout.partitions().front().compute, widths, 1'000'000);
  CHECK(usage.sms() == 132);
}

TEST_CASE("busy SMs are those that a client had while it measured busy time") {
  const runtime::PoolLayout layout = scheduler::h200();
  const scheduler::UnitWidths widths(layout.partitions());
  Usage usage;
  usage.takes(ComputeSet::range(0, 1), widths, 0);  // 8 SMs
  usage.busy(0, 1000);
  CHECK(usage.totals(1000).measured_sm_ns == 0);
  usage.measures(true, 1000);
  usage.takes(ComputeSet::range(1, 1), widths, 1500);  // 16: 12 on average
  usage.busy(250, 2000);
  CHECK(usage.totals(2000).measured_sm_ns == 500 * 8 + 500 * 16);
  CHECK(usage.totals(2000).busy_sm_ns == 250 * 12);
  usage.busy(1'000'000, 2100);  // a lying client counts as busy for all of the time at most
  CHECK(usage.totals(2100).busy_sm_ns == 250 * 12 + 100 * 16);
  usage.busy(0, 2200);
  CHECK(usage.totals(2200).busy_sm_ns == 250 * 12 + 100 * 16);
  usage.measures(false, 2300);
  usage.busy(2'000'000, 5000);
  const UsageTotals totals = usage.totals(5000);
  CHECK(totals.measured_sm_ns == 500 * 8 + 500 * 16 + 300 * 16);
  CHECK(totals.busy_sm_ns == 250 * 12 + 200 * 16);
  CHECK(totals.sm_ns == 1500 * 8 + 3500 * 16);
}

TEST_CASE("owners and records are bounded, and no usage is lost") {
  Accounting accounting;
  const auto owner = [](const std::string& uuid, int user) {
    return UsageOwner{uuid, std::to_string(user), "", "", "", ""};
  };
  constexpr int kMany = 2 * static_cast<int>(Accounting::kRecords);
  for (int i = 0; i < kMany; ++i)
    accounting.ended(owner(i % 2 == 0 ? "GPU-1" : "GPU-2", i), {1, 2, 3, 4}, {{"client", i}}, 1,
                     "");
  CHECK(accounting.sums().size() <= Accounting::kOwners + 2);
  UsageTotals all;
  for (const auto& [of, sum] : accounting.sums()) all += sum.totals;
  CHECK(all.sm_ns == kMany);
  CHECK(all.grants == 4 * kMany);
  CHECK(accounting.counted(owner("GPU-1", 0), 2).user == "0");
  CHECK(accounting.counted(owner("GPU-1", kMany - 2), 2).user == "other");
  const auto records = accounting.records();
  CHECK(records.size() == Accounting::kRecords);
  CHECK(records.back()["client"] == kMany - 1);
}

TEST_CASE("an owner without clients for long makes room, and its sums are added to other") {
  Accounting accounting;
  const auto owner = [](std::size_t job) {
    return UsageOwner{"GPU-1", "1000", "", std::to_string(job), "", ""};
  };
  for (std::size_t job = 0; job < Accounting::kOwners; ++job)
    accounting.ended(owner(job), {5, 0, 0, 1}, {}, 100 + job, "");
  CHECK(accounting.counted(owner(1000), 200 + Accounting::kOwners).user == "other");
  const std::uint64_t later = 100 + Accounting::kKeptNs;
  CHECK(accounting.counted(owner(1000), later) == owner(1000));   // in place of the first one
  CHECK(accounting.counted(owner(1001), later).user == "other");  // the others ended later
  CHECK_FALSE(accounting.sums().contains(owner(0)));
  CHECK(accounting.sums().at({"GPU-1", "other", "", "", "", ""}).totals.sm_ns == 5);
}

TEST_CASE("the file of records is renamed when it is large") {
  const std::string file = "accounting_test." + std::to_string(::getpid());
  const std::string large(1 << 20, 'x');
  Accounting accounting;
  for (std::uint64_t size = 0; size < Accounting::kFileBytes + (1 << 20); size += 1 << 20)
    accounting.ended({}, {}, {{"text", large}}, 1, file);
  struct stat now {
  }, before{};
  REQUIRE(::stat((file + ".1").c_str(), &before) == 0);
  CHECK(static_cast<std::uint64_t>(before.st_size) >= Accounting::kFileBytes);
  CHECK(::stat(file.c_str(), &now) == 0);
  CHECK(now.st_size < before.st_size);
  ::unlink(file.c_str());
  ::unlink((file + ".1").c_str());
}

TEST_CASE("a record for which the disk has no room leaves no part of a line") {
  const std::string file = "accounting_full_test." + std::to_string(::getpid());
  Accounting accounting;
  const auto end = [&](int client) { accounting.ended({}, {}, {{"client", client}}, 1, file); };
  end(1);
  struct stat now {};
  REQUIRE(::stat(file.c_str(), &now) == 0);
  // A file that may not grow further takes as much of a line as there is room for.
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit full{static_cast<rlim_t>(now.st_size) + 10, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &full) == 0);
  end(2);
  ::setrlimit(RLIMIT_FSIZE, &before);
  end(3);
  std::ifstream lines(file);
  std::vector<int> clients;
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, false);
    CHECK(record.is_object());
    if (record.is_object()) clients.push_back(record["client"]);
  }
  CHECK(clients == std::vector{1, 3});
  ::unlink(file.c_str());
}

TEST_CASE("a part of a line is not taken back when another process has written to the file, too") {
  const std::string file = "accounting_shared_test." + std::to_string(::getpid());
  const protocol::Fd opened(::open(file.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(opened);
  const auto write = [&](const std::string& text) {
    REQUIRE(::write(opened.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  };
  const auto size = [&] { return ::lseek(opened.get(), 0, SEEK_END); };
  write("line\n");
  write("par");
  CHECK(take_back(opened.get(), 5, 3));
  CHECK(size() == 5);
  write("par");
  write("others\n");
  CHECK_FALSE(take_back(opened.get(), 5, 3));
  CHECK(size() == 15);
  ::unlink(file.c_str());
}

}  // namespace
}  // namespace vitamin::daemon
