// SPDX-License-Identifier: Apache-2.0
//
// What a class of vitamin.toml is to the scheduler.
#include "daemon/from_configuration.h"

#include <doctest/doctest.h>

namespace vitamin::daemon {
namespace {

config::WorkloadClass latency_class() {
  config::WorkloadClass made;
  made.kind = config::Kind::kLatency;
  return made;
}

TEST_CASE("bounds, percentile and weight of a class are its clients'") {
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
  made.tpot_ns = 2'000'000;  // as before there were others
  CHECK(traits_of(&made, 100, 132).terms.slo.latency_ns == 2'000'000);
}

TEST_CASE("a latency class without a bound asks for latencies as alone, another one for nothing") {
  CHECK(traits_of(nullptr, 100, 132).terms == scheduler::ClientTerms());
  config::WorkloadClass made = latency_class();
  const scheduler::Slo slo = traits_of(&made, 100, 132).terms.slo;
  CHECK(slo.latency_ns > 0);
  CHECK(slo.latency_ns < 1'000);
  made.kind = config::Kind::kBatch;
  CHECK_FALSE(traits_of(&made, 100, 132).terms.slo.any());
}

}  // namespace
}  // namespace vitamin::daemon
