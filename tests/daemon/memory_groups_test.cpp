// SPDX-License-Identifier: Apache-2.0
//
// Which processes share a quota of device memory (daemon/arbiter/memory_quotas.h).
#include <unistd.h>

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "daemon/arbiter/memory_quotas.h"

namespace {

namespace config = vitamin::config;
namespace daemon = vitamin::daemon;
using config::GroupOf;
using daemon::Member;

constexpr std::uint64_t kGiB = 1 << 30;

config::WorkloadClass of(GroupOf who, const char* memory = "1GiB") {
  config::WorkloadClass made;
  made.name = "small";
  made.memory = memory;
  made.memory_of = who;
  return made;
}

TEST_CASE("processes of one group share a ledger on each device, and no others do") {
  const Member me{::getpid(), 1000, "", ""}, other{::getppid(), 1000, "", ""},
      stranger{::getppid(), 1001, "", ""};
  const Member in_pod{::getpid(), 0, std::string(64, 'a'), ""},
      beside{::getppid(), 0, std::string(64, 'b'), ""};
  const Member in_job{::getpid(), 1000, "", "12"}, in_next{::getppid(), 1000, "", "13"};
  struct Case {
    GroupOf who;
    Member first, second;
    bool together;
    const char* whose;
  };
  for (const Case& each : {
           Case{GroupOf::kUser, me, other, true, "of user 1000"},
           {GroupOf::kUser, me, stranger, false, "of user 1000"},
           {GroupOf::kProcess, me, me, true, nullptr},
           {GroupOf::kProcess, me, other, false, nullptr},
           {GroupOf::kContainer, in_pod, in_pod, true, "of container aaaaaaaaaaaa"},
           {GroupOf::kContainer, in_pod, beside, false, "of container aaaaaaaaaaaa"},
           {GroupOf::kContainer, me, other, true, "of user 1000"},
           {GroupOf::kContainer, me, in_pod, false, "of user 1000"},
           {GroupOf::kJob, in_job, in_next, false, "of job 12"},
           {GroupOf::kJob, in_job, in_job, true, "of job 12"},
           {GroupOf::kClass, me, stranger, true, "of class small"},
       }) {
    CAPTURE(static_cast<int>(each.who));
    daemon::MemoryQuotas quotas;
    const auto first = quotas.bound(of(each.who), each.first, "GPU-1", 2 * kGiB, 1);
    const auto second = quotas.bound(of(each.who), each.second, "GPU-1", 2 * kGiB, 2);
    const auto elsewhere = quotas.bound(of(each.who), each.first, "GPU-2", 2 * kGiB, 3);
    REQUIRE((first && second && elsewhere));
    CHECK((first->file == second->file) == each.together);
    CHECK(first->file != elsewhere->file);
    if (each.whose != nullptr) CHECK(first->whose == each.whose);
    CHECK(first->quota == kGiB);
  }
}

TEST_CASE("a percentage is of the memory of the process's device") {
  daemon::MemoryQuotas quotas;
  const Member me{::getpid(), 1000, "", ""};
  CHECK(quotas.bound(of(GroupOf::kUser, "50%"), me, "GPU-1", 2 * kGiB, 1)->quota == kGiB);
  CHECK(quotas.bound(of(GroupOf::kUser, "50%"), me, "GPU-2", 8 * kGiB, 1)->quota == 4 * kGiB);
}

TEST_CASE("the quota of a step or claim belongs to no class and survives a reload") {
  daemon::MemoryQuotas quotas;
  const Member me{::getpid(), 1000, "", "12"};
  const auto bound = [&](const char* whose, const config::MemoryBound& memory) {
    return quotas.bound(whose, memory, "GPU-1", 2 * kGiB, 1);
  };
  const auto step = bound("of job 12.0", {kGiB, 0}), other = bound("of job 12.1", {0, 25});
  const auto of_class = quotas.bound(of(GroupOf::kJob), me, "GPU-1", 2 * kGiB, 1);
  REQUIRE((step && other && of_class));
  CHECK(step->file != other->file);
  CHECK(step->file != of_class->file);
  CHECK(other->quota == kGiB / 2);
  CHECK(bound("of job 12.0", {kGiB / 4, 0})->file == step->file);
  quotas.apply({});  // without classes
  for (const auto& each : quotas.status(2)) {
    const bool of_a_class = each["class"] == "small";
    CHECK((each["quota"] == kGiB / 4 || each["quota"] == kGiB / 2) == !of_a_class);
  }
}

TEST_CASE("groups without processes make room for others") {
  daemon::MemoryQuotas quotas;
  const std::uint64_t minute = 61'000'000'000;
  for (std::uint32_t user = 0; user < 512; ++user)
    REQUIRE(quotas.bound(of(GroupOf::kUser), {::getpid(), user, "", ""}, "GPU-1", kGiB, 1));
  CHECK_FALSE(quotas.bound(of(GroupOf::kUser), {::getpid(), 5000, "", ""}, "GPU-1", kGiB, 2));
  CHECK(quotas.bound(of(GroupOf::kUser), {::getpid(), 5000, "", ""}, "GPU-1", kGiB, minute));
}

}  // namespace
