// SPDX-License-Identifier: Apache-2.0
//
// The parts of the command line that can be asked directly.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "runtime/stats.h"
#include "scheduler/policies/nearest.h"
#include "tools/vitamin/daemon_client.h"
#include "tools/vitamin/preload.h"
#include "tools/vitamin/run/child.h"
#include "tools/vitamin/run/directory.h"
#include "tools/vitamin/run/report.h"
#include "tools/vitamin/text.h"
#include "tools/vitamin/verbs.h"

namespace vitamin::tools {
namespace {

TEST_CASE("numbers are grouped by thousands") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(81943) == "81,943");
  CHECK(grouped(1234567890) == "1,234,567,890");
}

TEST_CASE("100 % and 0 % mean all and none") {
  CHECK(percent(10, 10) == "100 %");
  CHECK(percent(999'999, 1'000'000) == "99.9 %");
  CHECK(percent(1, 1'000'000) == "0.1 %");
  CHECK(percent(0, 10) == "0 %");
  CHECK(percent(0, 0) == "–");
}

TEST_CASE("programs get the directory of an MPS that takes clients") {
  const auto directory = [](const char* state) {
    return shared_mps_directory({{"mps", {{"state", state}, {"directory", "/run/mps"}}}});
  };
  CHECK(directory("ready") == "/run/mps");
  CHECK(directory("fault") == "/run/mps");
  CHECK(directory("starting").empty());
  CHECK(directory("unavailable").empty());
  CHECK(shared_mps_directory({{"mps", nullptr}}).empty());
  CHECK(shared_mps_directory(nlohmann::json::object()).empty());
}

TEST_CASE("a program that may not run without vitamind ends with 75") {
  const auto code = [](const char* absent) {
    return absence_code({{"configuration", {{"settings", {{"failure.absent", absent}}}}}});
  };
  CHECK(code("\"closed\"") == "75");
  CHECK(code("\"open\"").empty());
  CHECK(absence_code({{"configuration", {{"settings", nullptr}}}}).empty());
  CHECK(absence_code(nlohmann::json::object()).empty());
}

TEST_CASE("durations keep their unit") {
  CHECK(duration(730) == "730 ns");
  CHECK(duration(1'500) == "1.5 µs");
  CHECK(duration(82'400'000) == "82.4 ms");
  CHECK(duration(1'300'000'000) == "1.30 s");
}

TEST_CASE("a bar shows whatever is not zero and never more than its width") {
  CHECK(bar(0, 10, 10, false).empty());
  CHECK(bar(1, 1'000'000, 10, false) == "#");
  CHECK(bar(10, 10, 10, false) == "##########");
  CHECK(bar(10, 10, 3, true) == "███");
}

TEST_CASE("a misspelt word finds its neighbour and a strange one finds none") {
  const std::vector<std::string> names = {"fifo", "static", "random"};
  CHECK(scheduler::nearest("radnom", names) == "random");
  CHECK(scheduler::nearest("Random", names) == "random");
  CHECK(scheduler::nearest("fif", names) == "fifo");
  CHECK(scheduler::nearest("statics", names) == "static");
  CHECK(scheduler::nearest("exclusive", names).empty());
}

TEST_CASE("a window has a unit, is zero, or is max") {
  CHECK(window_nanoseconds("0") == "0");
  CHECK(window_nanoseconds("500us") == "500000");
  CHECK(window_nanoseconds("1.5ms") == "1500000");
  CHECK(window_nanoseconds("2s") == "2000000000");
  CHECK(window_nanoseconds("7ns") == "7");
  CHECK(window_nanoseconds("1h") == "3600000000000");
  CHECK(window_nanoseconds("max") == "max");
  for (const char* wrong : {"", "5", "-1ms", "ms", "1 ms", "1msx", "1e9s", "nan", "1y"})
    CHECK_MESSAGE(!window_nanoseconds(wrong), wrong);
}

TEST_CASE("our library is first in LD_PRELOAD, the user's follow, none is twice") {
  const auto ends_with = [](const std::string& text, const std::string& end) {
    return text.ends_with(end);
  };
  CHECK(ends_with(preload_variable({"/v.so"}, nullptr), "/v.so"));
  CHECK(ends_with(preload_variable({"/v.so"}, "/a.so:/b.so"), "/v.so:/a.so:/b.so"));
  CHECK(ends_with(preload_variable({"/v.so"}, " /a.so  /v.so:/a.so "), "/v.so:/a.so"));
}

TEST_CASE("a changed variable replaces the inherited one and others stay") {
  REQUIRE(::setenv("VITAMIN_TEST_KEPT", "kept", 1) == 0);
  REQUIRE(::setenv("VITAMIN_TEST_CHANGED", "old", 1) == 0);
  const auto variables = environment_with({"VITAMIN_TEST_CHANGED=new"});
  const auto count = [&](const std::string& wanted) {
    return std::count(variables.begin(), variables.end(), wanted);
  };
  CHECK(count("VITAMIN_TEST_KEPT=kept") == 1);
  CHECK(count("VITAMIN_TEST_CHANGED=new") == 1);
  CHECK(count("VITAMIN_TEST_CHANGED=old") == 0);
}

TEST_CASE("what is counted in a page comes out of the report, over devices and processes") {
  RunDirectory directory;
  REQUIRE(!directory.path().empty());
  for (int process = 0; process < 2; ++process) {
    stats::ProcessPage* page = stats::create(directory.path().c_str());
    REQUIRE(page != nullptr);
    for (unsigned ordinal = 0; ordinal < 2; ++ordinal) {
      stats::DevicePage& device = page->devices[ordinal];
      device.ordinal = ordinal;
      device.used.store(1);
      device.launches.seen.add(3);
      device.launches.bound.add(2);
      device.launches.passed.add();
      device.width(8 + ordinal).launches.add(2);
      device.library("libx.so").seen.add(3);
    }
  }
  const Report report = read_report(directory.path());
  CHECK(report.processes.size() == 2);
  CHECK(report.processes[0].devices.size() == 2);
  CHECK(report.launches() == 12);
  CHECK(report.bound() == 8);
  CHECK(report.totals.launches.passed.get() == 4);
  CHECK(report.totals.widths == std::map<std::uint32_t, std::uint64_t>{{8, 4}, {9, 4}});
  CHECK(report.totals.libraries.at("libx.so").seen == 12);
  CHECK_FALSE(report.complete());
}

TEST_CASE("a page has room for what does not fit its tables") {
  RunDirectory directory;
  stats::ProcessPage* page = stats::create(directory.path().c_str());
  REQUIRE(page != nullptr);
  stats::DevicePage& device = page->devices[0];
  for (std::uint32_t i = 1; i <= 1000; ++i) device.width(i).launches.add();
  for (int i = 0; i < 1000; ++i) device.library(std::to_string(i).c_str()).seen.add();
  for (int i = 0; i < 1000; ++i) page->warn("words");
  device.used.store(1);
  const Report report = read_report(directory.path());
  std::uint64_t launches = 0, seen = 0;
  for (const auto& [width, count] : report.totals.widths) launches += count;
  for (const auto& [name, library] : report.totals.libraries) seen += library.seen;
  CHECK(launches == 1000);
  CHECK(seen == 1000);
  CHECK(report.totals.libraries.count("(others)") == 1);
  CHECK(report.processes[0].warnings.size() == stats::kWarnings);
  CHECK(report.processes[0].warnings_seen == 1000);
}

TEST_CASE("a second image of the same process gets a page of its own") {
  RunDirectory directory;
  stats::ProcessPage* first = stats::create(directory.path().c_str());
  stats::ProcessPage* second = stats::create(directory.path().c_str());
  REQUIRE(first != nullptr);
  REQUIRE(second != nullptr);
  CHECK(first != second);
  CHECK(first->pid == second->pid);
  CHECK(read_report(directory.path()).processes.size() == 2);
}

}  // namespace
}  // namespace vitamin::tools
