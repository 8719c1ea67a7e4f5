// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

#include "daemon/jobs/jobs.h"

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

TEST_CASE("every task of a step registers it again") {
  Jobs jobs;
  REQUIRE(jobs.begin("12.0 1000 60 - 0"));
  REQUIRE(jobs.begin("12.0 1000 60 - 0"));
  CHECK(jobs.status().size() == 1);
}

TEST_CASE("the end of a job ends its steps and no other's") {
  Jobs jobs;
  for (const char* step : {"12.0", "12.batch", "12", "120.0", "1.2"})
    REQUIRE(jobs.begin(std::string(step) + " 1000 10 - -"));
  CHECK(jobs.end("12").steps == 3);
  CHECK(jobs.find("120.0", 1000) != nullptr);
  CHECK(jobs.end("1.2").steps == 1);
  CHECK(jobs.end("77").steps == 0);
}

TEST_CASE("the end of a step reports its clients' usage and does not change another step's") {
  Jobs jobs;
  REQUIRE(jobs.begin("12.0 1000 60 - 0"));
  jobs.used("12.0", 5);
  REQUIRE(jobs.begin("12.0 1000 60 - 0"));  // its next task
  jobs.used("12.0", 7);
  REQUIRE(jobs.begin("12.1 1000 10 - 0"));
  jobs.used("12.1", 100);
  jobs.used("13.0", 1000);  // of none that is known
  CHECK(jobs.end("12.0").sm_ns == 12);
  jobs.used("12.0", 9);  // after its end
  CHECK(jobs.end("12").sm_ns == 100);
  CHECK(jobs.end("12").sm_ns == 0);
}

TEST_CASE("a step may have a bound of memory") {
  Jobs jobs;
  REQUIRE(jobs.begin("12.0 1000 60 - 0"));
  CHECK(!jobs.bounds_memory());
  REQUIRE(jobs.begin("12.1 1000 10 - - 20GiB"));
  CHECK(jobs.bounds_memory());
  CHECK(jobs.find("12.1", 1000)->memory == config::memory_bound("20GiB"));
  CHECK(jobs.status()[1]["memory"] == "20GiB");
  REQUIRE(jobs.begin("12.1 1000 10 - - 25%"));
  CHECK(jobs.find("12.1", 1000)->memory == config::memory_bound("25%"));
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
  CHECK(jobs.end("1").steps == 1);
  CHECK(jobs.begin("5.0 1000 60 - 0"));
}

TEST_CASE("a client's job is found by what the client cannot forge") {
  Jobs jobs;
  REQUIRE(jobs.begin("12.0 1000 25 - -"));
  REQUIRE(jobs.begin("12.1 1000 30 - -"));
  REQUIRE(jobs.begin("13.0 1000 50 - -"));
  REQUIRE(jobs.begin("14.0 1001 75 - -"));
  const auto share = [&](uid_t user, const char* group, const char* claimed) {
    const Jobs::Found found = jobs.of(user, group, claimed);
    CHECK((found.job == nullptr) == found.step.empty());
    return found.job != nullptr ? found.job->share : 0;
  };
  CHECK(share(1000, "", "12.0") == 25);
  CHECK(share(1000, "13.0", "") == 50);
  CHECK_MESSAGE(share(1000, "12.0", "13.0") == 25, "the control group is believed first");
  CHECK_MESSAGE(share(1000, "12.extern", "13.0") == 30, "another step of the same job");
  CHECK_MESSAGE(share(1000, "99.0", "12.0") == 50, "a job that is not known");
  CHECK_MESSAGE(share(1000, "", "14.0") == 50, "another user's");
  CHECK_MESSAGE(share(1000, "", "") == 50, "who leaves the variable out gains nothing");
  CHECK(share(1001, "", "99.0") == 75);
  CHECK_MESSAGE(share(1002, "", "12.0") == 0, "a user without jobs");
  CHECK(jobs.of(1000, "", "12.0").job->number != jobs.of(1000, "", "12.1").job->number);
  // Who is only kept to a share does not end with the step that it is of.
  CHECK(jobs.of(1000, "12.0", "").own);
  CHECK(jobs.of(1000, "", "12.0").own);
  CHECK(!jobs.of(1000, "12.batch", "12.0").own);
  CHECK(!jobs.of(1000, "", "").own);
  CHECK(!jobs.of(1000, "99.0", "12.0").own);
  const auto number = jobs.of(1000, "", "12.0").job->number;
  REQUIRE(jobs.begin("12.0 1000 25 - -"));
  CHECK(jobs.of(1000, "", "12.0").job->number == number);
}

TEST_CASE("Slurm's control groups name the step") {
  CHECK(slurm_step("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n") == "12.0");
  CHECK(slurm_step("0::/system.slice/node1_slurmstepd.scope/job_7/step_batch/user/task_0") ==
        "7.batch");
  CHECK(slurm_step("3:cpuset:/\n5:freezer:/slurm/uid_1000/job_12/step_extern/task_0\n1::/x\n") ==
        "12.extern");
  CHECK(slurm_step("4:memory:/slurm_node1/uid_1000/job_12\n") == "12");
  for (const char* other :
       {"", "0::/", "0::/user.slice/user-1000.slice/session-1.scope\n", "job_12/step_0", "::/",
        "0::/user.slice/user-1000.slice/user@1000.service/slurm/job_12/step_0\n",
        "0::/system.slice/ssh.service/job_12/step_0\n"}) {
    CAPTURE(other);
    CHECK(slurm_step(other).empty());
  }
  CHECK_FALSE(cgroup_of(::getpid()).empty());
  CHECK(cgroup_of(0).empty());
}

TEST_CASE("malformed requests are refused with a sentence") {
  Jobs jobs;
  for (const char* words :
       {"", "1.0", "1.0 1000 25 -", "1.0 1000 25 - 0 more", "1.0 1000 25 - 0 1GiB more",
        "1.0 -1 25 - 0", "1.0 1000 0 - 0", "1.0 1000 101 - 0", "1.0 1000 9x - 0", "1.0 1000 25  0",
        "1.0 1000 25 - 0,", "1\t0 1000 25 - 0", " 1000 25 - 0", "1.0 4294967296 25 - 0",
        "1.0 1000 25 a/b 0"}) {
    CAPTURE(words);
    const auto refused = jobs.begin(words);
    REQUIRE(!refused);
    CHECK(!refused.error().message.empty());
  }
  CHECK(jobs.status().empty());
}

TEST_CASE("the number of registered steps is bounded") {
  Jobs jobs;
  for (std::size_t i = 0; i < Jobs::kMost; ++i)
    REQUIRE(jobs.begin(std::to_string(i) + ".0 1000 10 - -"));
  CHECK(!jobs.begin("x.0 1000 10 - -"));
  CHECK(jobs.begin("0.0 1000 20 - -"));
  CHECK(jobs.end("5").steps == 1);
  CHECK(jobs.begin("x.0 1000 10 - -"));
}

}  // namespace
}  // namespace vitamin::daemon
