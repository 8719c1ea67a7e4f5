// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler gets of a class of vitamin.toml.
#include "daemon/from_configuration.h"

#include <doctest/doctest.h>

#include <vector>

#include "daemon/config/classes.h"
#include "daemon/jobs/groups.h"

namespace vitamin::daemon {
namespace {

config::WorkloadClass latency_class() {
  config::WorkloadClass made;
  made.kind = config::ProgramKind::kLatency;
  return made;
}

TEST_CASE("clients have the bounds, percentile and weight of their class") {
  config::WorkloadClass made = latency_class();
  made.ttft_ns = 1'000'000;
  made.tpot_ns = 2'000'000;
  made.latency_ns = 3'000'000;
  made.step_ns = 4'000'000;
  made.percentile = 95;
  made.weight = 3;
  const scheduler::ClientTerms terms = traits_of(&made, 100, 132).terms;
  CHECK(terms.slo.ttft_ns == 1'000'000);
  CHECK(terms.slo.tpot_ns == 2'000'000);
  CHECK(terms.slo.latency_ns == 3'000'000);
  CHECK(terms.slo.step_ns == 4'000'000);
  CHECK(terms.slo.quantile == doctest::Approx(0.95));
  CHECK(terms.weight == 3);
}

TEST_CASE("without latency, requests that are not announced have the first of the other bounds") {
  config::WorkloadClass made = latency_class();
  made.step_ns = 4'000'000;
  CHECK(traits_of(&made, 100, 132).terms.slo.latency_ns == 4'000'000);
  made.ttft_ns = 1'000'000;
  CHECK(traits_of(&made, 100, 132).terms.slo.latency_ns == 1'000'000);
  made.tpot_ns = 2'000'000;  // with a single bound
  CHECK(traits_of(&made, 100, 132).terms.slo.latency_ns == 2'000'000);
}

TEST_CASE("a latency class without a bound wants latencies as alone, another class has no bound") {
  CHECK(traits_of(nullptr, 100, 132).terms == scheduler::ClientTerms());
  config::WorkloadClass made = latency_class();
  const scheduler::Slo slo = traits_of(&made, 100, 132).terms.slo;
  CHECK(slo.latency_ns > 0);
  CHECK(slo.latency_ns < 1'000);
  made.kind = config::ProgramKind::kBatch;
  CHECK_FALSE(traits_of(&made, 100, 132).terms.slo.any());
}

TEST_CASE("the share of a group does not bound a single process") {
  config::WorkloadClass made;
  made.share = 25;
  CHECK(traits_of(&made, 100, 132).terms.limits.max_sms == 33);
  made.share_of = config::GroupOf::kUser;
  CHECK(traits_of(&made, 100, 132).terms.limits.max_sms == 0);
}

TEST_CASE("the first share is of the group with the reservation, the others are outer quotas") {
  scheduler::Limits limits;
  const GroupShare user{5, 25, "of user 1000"}, job{6, 50, "of job 1.0"};
  const GroupShare whole{7, 100, "of job 2.0"}, itself{0, 10, ""};
  set_quotas(limits, std::vector{user, job, whole, itself}, 132, 99);
  CHECK(limits.group == 5);
  CHECK(limits.max_sms == 33);
  CHECK(limits.outer[0] == scheduler::GroupQuota{6, 66});
  CHECK(limits.outer[1] == scheduler::GroupQuota{99, 13});
  CHECK(limits.outer[2] == scheduler::GroupQuota{});
  CHECK(limits.most_sms() == 13);
  set_quotas(limits, std::vector{itself}, 132, 99);  // a single client needs no group
  CHECK(limits == scheduler::Limits{13, 0, 0, true, {}});
  set_quotas(limits, std::vector{GroupShare{0, 1, ""}}, 8, 99);
  CHECK(limits.max_sms == 1);  // never none
}

TEST_CASE("a class that names users and nothing else binds all of their programs") {
  config::WorkloadClass made;
  CHECK_FALSE(config::binds_users(made));
  made.user = {"student*"};
  CHECK(config::binds_users(made));
  made.command = {"python"};  // a user can give the program another name
  CHECK_FALSE(config::binds_users(made));
}

}  // namespace
}  // namespace vitamin::daemon
