// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/dra/claim.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <vector>

#include "deploy/kubernetes/dra/read_times.h"
#include "deploy/kubernetes/say_once.h"

namespace vitamin::kubernetes {
namespace {

using nlohmann::json;

const std::vector<ClaimableGpu> kGpus = {{"GPU-1", 0}, {"GPU-2", 1024}};

json claim(const json& results, const json& config = json::array()) {
  return {{"metadata", {{"uid", "u"}, {"name", "n"}, {"namespace", "s"}}},
          {"status", {{"allocation", {{"devices", {{"results", results}, {"config", config}}}}}}}};
}

json result(const char* request, const char* device, const json& consumed) {
  return {{"request", request},
          {"driver", kDriver},
          {"pool", "node"},
          {"device", device},
          {"consumedCapacity", consumed}};
}

json parameters(const char* source, const json& requests, json words) {
  words["apiVersion"] = "vitamin.dev/v1alpha1";
  words["kind"] = "ShareParameters";
  return {{"source", source},
          {"requests", requests},
          {"opaque", {{"driver", kDriver}, {"parameters", words}}}};
}

TEST_CASE("quantities are whole numbers in all their forms") {
  CHECK(*quantity("0") == 0);
  CHECK(*quantity("25") == 25);
  CHECK(*quantity("25000m") == 25);
  CHECK(*quantity("2e3") == 2000);
  CHECK(*quantity("1.5k") == 1500);
  CHECK(*quantity("16Gi") == std::uint64_t{16} << 30);
  CHECK(*quantity("0.5Mi") == 1 << 19);
  CHECK(*quantity("9007199254740993") == 9007199254740993);
  for (const char* wrong :
       {"", "x", "-1", "1x", "1.5", "500m", "1 Gi", "1e30", "nan", "inf", "9223372036854775808"}) {
    CAPTURE(wrong);
    CHECK_FALSE(quantity(wrong));
  }
}

TEST_CASE("a device is named by a DNS label") {
  CHECK(device_name("GPU-0A1b") == "gpu-0a1b");
  CHECK(device_name("x_y.z") == "x-y-z");
  CHECK(device_name(std::string(62, 'A') + "--") == std::string(62, 'a'));
}

TEST_CASE("each request of a claim is a share of one GPU") {
  json first = result("a", "gpu-1", {{"share", "25"}});
  first["shareID"] = "share-1";
  const auto read = allocated_claim(
      claim({first, result("b", "gpu-2", {{"vitamin.dev/share", "50"}, {"memory", "1Ki"}}),
             result("c", "gpu-2", json::object())}),
      "node", kGpus, {});
  REQUIRE(read);
  REQUIRE(read->shares.size() == 3);
  CHECK(read->shares[0].uuid == "GPU-1");
  CHECK(read->shares[0].percent == 25);
  CHECK(read->shares[0].memory == 0);
  CHECK(read->shares[0].id == "share-1");
  CHECK_MESSAGE(read->shares[1].id.empty(), "an API server without consumable capacity");
  CHECK(read->shares[1].percent == 50);
  CHECK(read->shares[1].memory == 1024);
  CHECK_MESSAGE(read->shares[2].percent == 100, "nothing was said");
}

TEST_CASE("parameters of the claim stand over those of the device class, by request") {
  const std::vector<ClaimableClass> classes = {{"x", 0}, {"y", 0}};
  const auto read = allocated_claim(
      claim({result("a", "gpu-1", {{"share", "1"}}), result("b/fast", "gpu-1", {{"share", "1"}})},
            {parameters("FromClaim", {"b"}, {{"class", "y"}}),
             parameters("FromClass", json::array(), {{"class", "x"}})}),
      "node", kGpus, classes);
  REQUIRE(read);
  CHECK(read->shares[0].workload_class == "x");
  CHECK(read->shares[1].workload_class == "y");
}

TEST_CASE("other drivers' results are left alone, and malformed claims refused") {
  json other = result("a", "gpu-1", {{"share", "25"}});
  other["driver"] = "gpu.nvidia.com";
  CHECK(allocated_claim(claim({other, result("b", "gpu-1", json::object())}), "node", kGpus, {})
            ->shares.size() == 1);
  for (const json& wrong :
       {json(), json::object(), json::array(), json("text"), claim(json::array()), claim({other}),
        claim({result("a", "gpu-1", {{"share", "0"}})}),
        claim({result("a", "gpu-1", {{"share", "101"}})}),
        claim({result("a", "gpu-1", {{"share", "x"}})}),
        claim({result("a", "gpu-1", {{"memory", "-1"}})}),
        claim({result("a", "gpu-3", json::object())}),
        claim({result("a", "gpu-1", {})},
              {{{"source", "FromClaim"}, {"opaque", {{"driver", kDriver}}}}}),
        claim({result("a", "gpu-1", {})},
              {parameters("FromClaim", json::array(), {{"class", 1}})})}) {
    CAPTURE(wrong.dump());
    const auto read = allocated_claim(wrong, "node", kGpus, {});
    REQUIRE_FALSE(read);
    CHECK_FALSE(read.error().message.empty());
  }
}

TEST_CASE("GPUs of other drivers are known by their UUID") {
  const json slices = {{"items",
                        {{{"spec",
                           {{"driver", "gpu.nvidia.com"},
                            {"devices", {{{"attributes", {{"uuid", {{"string", "GPU-1"}}}}}}}}}}},
                         {{"spec",
                           {{"driver", kDriver},
                            {"devices", {{{"attributes", {{"uuid", {{"string", "GPU-2"}}}}}}}}}}},
                         {{"spec", {{"driver", "nic"}}}}}}};
  const auto published = published_by_others(slices);
  CHECK(published.size() == 1);
  CHECK(published.at("GPU-1") == "gpu.nvidia.com");
  CHECK(published_by_others(json::object()).empty());
}

TEST_CASE("a claim is read when the kubelet names other pods, and else by time") {
  using std::chrono::seconds;
  ReadTimes::Clock::time_point now{};
  const PodSigns none, one{{"s/a"}, {}}, two{{"s/a", "s/b"}, {}};
  ReadTimes reads;
  CHECK(reads.is_due(none, now));
  reads.was_read(one, now, seconds(60));
  CHECK_FALSE(reads.is_due(one, now + seconds(59)));
  CHECK(reads.is_due(one, now + seconds(60)));
  CHECK(reads.is_due(two, now));
  CHECK(reads.is_due(none, now));
}

TEST_CASE("each other pod is a reason to read a claim once until its time has come") {
  using std::chrono::seconds;
  ReadTimes::Clock::time_point now{};
  const PodSigns none, one{{}, {"1"}}, two{{}, {"1", "2"}};
  ReadTimes reads;
  reads.was_read(none, now, seconds(60));
  CHECK(reads.is_due(one, now));
  reads.was_read(one, now, seconds(60));
  CHECK_FALSE(reads.is_due(one, now));
  CHECK_FALSE(reads.is_due(none, now));  // its programs have ended
  CHECK(reads.is_due(two, now));
  reads.was_read(PodSigns{{}, {"2"}}, now, seconds(60));
  CHECK_FALSE(reads.is_due(two, now));  // a program of the first one is back
  now += seconds(60);
  reads.was_read(none, now, seconds(60));  // what has ended is not kept for ever
  CHECK(reads.is_due(one, now));
}

TEST_CASE("a claim whose reads are refused is read after times that double up to the longest") {
  using std::chrono::seconds;
  ReadTimes::Clock::time_point now{};
  const PodSigns none, one{{"s/a"}, {}};
  ReadTimes reads;
  for (const int wait : {5, 10, 20, 40, 60, 60}) {
    CAPTURE(wait);
    reads.was_refused(none, now, seconds(5), seconds(60));
    CHECK_FALSE(reads.is_due(none, now + seconds(wait - 1)));
    now += seconds(wait);
    CHECK(reads.is_due(none, now));
  }
  // Where something changes, it is tried soon again.
  reads.was_refused(none, now, seconds(5), seconds(60));
  CHECK(reads.is_due(one, now));
  reads.was_refused(one, now, seconds(5), seconds(60));
  CHECK_FALSE(reads.is_due(one, now + seconds(4)));
  CHECK(reads.is_due(one, now + seconds(5)));
  // A read that succeeds begins anew.
  now += seconds(5);
  reads.was_refused(one, now, seconds(5), seconds(60));
  reads.was_read(one, now, seconds(60));
  now += seconds(60);
  reads.was_refused(one, now, seconds(5), seconds(60));
  CHECK(reads.is_due(one, now + seconds(5)));
}

TEST_CASE("a problem is said once until another one or none takes its place") {
  std::vector<std::string> lines;
  const auto say = [&](const std::string& line) { lines.push_back(line); };
  std::string told;
  for (const char* const problem : {"", "a", "a", "b", "b", "", "", "b"})
    say_once(say, told, problem, "well");
  CHECK(lines == std::vector<std::string>{"a", "b", "well", "b"});
}

}  // namespace
}  // namespace vitamin::kubernetes
