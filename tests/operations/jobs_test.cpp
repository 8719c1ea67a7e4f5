// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/jobs.h"

namespace vitamin::daemon {
namespace {

TEST_CASE("a job is known by its step and its user") {
  Jobs jobs;
  REQUIRE(jobs.begin("12.0 1000 25 batch 0,1"));
  const Job* const job = jobs.find("12.0", 1000);
  REQUIRE(job != nullptr);
  CHECK(job->share == 25);
  CHECK(job->workload_class == "batch");
  CHECK(job->devices == std::vector<std::string>{"0", "1"});
  CHECK(jobs.find("12.0", 1001) == nullptr);
  CHECK(jobs.find("12", 1000) == nullptr);
  CHECK(jobs.status()[0]["step"] == "12.0");
}

TEST_CASE("every task of a step begins it again") {
  Jobs jobs;
  REQUIRE(jobs.begin("12.0 1000 60 - 0"));
  REQUIRE(jobs.begin("12.0 1000 60 - 0"));
  CHECK(jobs.status().size() == 1);
}

TEST_CASE("the end of a job ends its steps and no other's") {
  Jobs jobs;
  for (const char* step : {"12.0", "12.batch", "12", "120.0", "1.2"})
    REQUIRE(jobs.begin(std::string(step) + " 1000 10 - -"));
  CHECK(jobs.end("12") == 3);
  CHECK(jobs.find("120.0", 1000) != nullptr);
  CHECK(jobs.end("1.2") == 1);
  CHECK(jobs.end("77") == 0);
}

TEST_CASE("shares of a device never add up to more than all of it") {
  Jobs jobs;
  REQUIRE(jobs.begin("1.0 1000 60 - 0"));
  const auto refused = jobs.begin("2.0 1000 50 - 1,0");
  REQUIRE(!refused);
  CHECK(refused.error().message.find("device 0 is over-committed") != std::string::npos);
  CHECK(jobs.find("2.0", 1000) == nullptr);
  CHECK(jobs.begin("2.0 1000 50 - 1"));
  CHECK(jobs.begin("3.0 1000 40 - 0"));
  CHECK_MESSAGE(jobs.begin("4.0 1000 100 - 0"), "no bound was asked for");
  CHECK(jobs.end("1") == 1);
  CHECK(jobs.begin("5.0 1000 60 - 0"));
}

TEST_CASE("what no scheduler says is refused with a sentence") {
  Jobs jobs;
  for (const char* words :
       {"", "1.0", "1.0 1000 25 -", "1.0 1000 25 - 0 more", "1.0 -1 25 - 0", "1.0 1000 0 - 0",
        "1.0 1000 101 - 0", "1.0 1000 9x - 0", "1.0 1000 25  0", "1.0 1000 25 - 0,",
        "1\t0 1000 25 - 0", " 1000 25 - 0", "1.0 4294967296 25 - 0", "1.0 1000 25 a/b 0"}) {
    CAPTURE(words);
    const auto refused = jobs.begin(words);
    REQUIRE(!refused);
    CHECK(!refused.error().message.empty());
  }
  CHECK(jobs.status().empty());
}

TEST_CASE("a scheduler that ends nothing cannot fill the memory") {
  Jobs jobs;
  for (std::size_t i = 0; i < Jobs::kMost; ++i)
    REQUIRE(jobs.begin(std::to_string(i) + ".0 1000 10 - -"));
  CHECK(!jobs.begin("x.0 1000 10 - -"));
  CHECK(jobs.begin("0.0 1000 20 - -"));
  CHECK(jobs.end("5") == 1);
  CHECK(jobs.begin("x.0 1000 10 - -"));
}

}  // namespace
}  // namespace vitamin::daemon
