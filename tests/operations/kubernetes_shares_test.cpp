// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "deploy/kubernetes/shares.h"

namespace vitamin::kubernetes {
namespace {

using Ids = std::vector<std::string>;
const std::vector<NodeGpu> kTwo = {{.uuid = "GPU-a", .shares = 2},
                                   {.uuid = "GPU-b", .shares = 2, .healthy = false}};

TEST_CASE("each GPU is so many devices, as healthy as it is") {
  const auto shares = shares_of(kTwo);
  REQUIRE(shares.size() == 4);
  CHECK(shares[0].id == "GPU-a.0");
  CHECK(shares[3].id == "GPU-b.1");
  CHECK(shares[1].healthy);
  CHECK(!shares[2].healthy);
  CHECK(gpu_of("GPU-a.1.2") == "GPU-a.1");
  CHECK(gpu_of("GPU").empty());
}

TEST_CASE("a container gets its shares of one GPU where it can") {
  const Ids available = {"a.0", "a.1", "a.2", "b.0", "b.1", "c.3"};
  CHECK(preferred(available, {}, 1) == Ids{"c.3"});
  CHECK(preferred(available, {}, 2) == Ids{"b.0", "b.1"});
  CHECK(preferred(available, {}, 3) == Ids{"a.0", "a.1", "a.2"});
  CHECK(preferred(available, {}, 4) == Ids{"a.0", "a.1", "a.2", "c.3"});
  CHECK(preferred(available, {"b.1"}, 2) == Ids{"b.1", "b.0"});
  CHECK(preferred(available, {}, 9).size() == 6);
  CHECK(preferred({}, {}, 1).empty());
}

TEST_CASE("shares of a GPU add up; the least of several counts") {
  const std::vector<NodeGpu> gpus = {{.uuid = "a"}, {.uuid = "b"}, {.uuid = "c", .shares = 3}};
  CHECK(allocate(Ids{"a.0", "a.1"}, gpus)->percent == 50);
  CHECK(allocate(Ids{"a.0", "a.1", "b.0"}, gpus)->percent == 25);
  CHECK(allocate(Ids{"a.0", "a.1", "b.0"}, gpus)->gpus == Ids{"a", "b"});
  CHECK(allocate(Ids{"a.0", "a.0"}, gpus)->percent == 25);
  CHECK(allocate(Ids{"c.2", "c.1", "c.0"}, gpus)->percent == 100);
  CHECK(allocate(Ids{"a.0", "a.1", "c.0"}, gpus)->percent == 33);
  CHECK_FALSE(allocate(Ids{"a.4"}, gpus));
}

TEST_CASE("each GPU has a count and a resource of its own") {
  const auto offers =
      offers_of(Ids{"a", "b=8", "c=2@vitamin.dev/half", "d=1"}, 4, "vitamin.dev/percent-{percent}");
  REQUIRE(offers);
  REQUIRE(offers->size() == 4);
  CHECK(offers->at("vitamin.dev/percent-25") == std::vector<NodeGpu>{{.uuid = "a", .shares = 4}});
  CHECK(offers->at("vitamin.dev/percent-12")[0].shares == 8);
  CHECK(offers->at("vitamin.dev/half")[0].uuid == "c");
  CHECK(offers->at("vitamin.dev/percent-100")[0].uuid == "d");
  CHECK(offers_of(Ids{"a", "b=2"}, 4, "vitamin.dev/share")->at("vitamin.dev/share").size() == 2);
  for (const char* wrong : {"", "a=", "a=0", "a=101", "a=2x", "a=-1", "a=2@", "a=2@share", "a=2@x/",
                            "a=2@/x", "a=2@x/y z", "a=2@x/y/z"}) {
    CAPTURE(wrong);
    CHECK_FALSE(offers_of(Ids{wrong}, 4, "vitamin.dev/share"));
  }
  const auto twice = offers_of(Ids{"a", "a=2"}, 4, "vitamin.dev/share");
  REQUIRE_FALSE(twice);
  CHECK(twice.error().message == "a is named twice");
}

TEST_CASE("a GPU that another plugin offers is not offered") {
  CHECK(is_of_gpu("GPU-1", "GPU-1"));
  CHECK(is_of_gpu("GPU-1::3", "GPU-1"));
  CHECK_FALSE(is_of_gpu("GPU-12", "GPU-1"));
  CHECK_FALSE(is_of_gpu("GPU-1", "GPU-12"));
  const std::vector<NodeGpu> gpus = {{.uuid = "a", .offered_as = "nvidia.com/gpu"}};
  CHECK_FALSE(shares_of(gpus)[0].healthy);
  const auto refused = allocate(Ids{"a.0"}, gpus);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message ==
        "device a.0 is unhealthy: its GPU is also offered as nvidia.com/gpu");
}

TEST_CASE("unknown and unhealthy devices are not allocated") {
  CHECK(!allocate(Ids{"GPU-c.0"}, kTwo));
  CHECK(!allocate(Ids{"GPU-a.2"}, kTwo));
  CHECK(!allocate(Ids{}, kTwo));
  const auto refused = allocate(Ids{"GPU-a.0", "GPU-b.0"}, kTwo);
  REQUIRE(!refused);
  CHECK(refused.error().message.find("GPU-b.0 is unhealthy") != std::string::npos);
}

TEST_CASE("NVIDIA's GPUs are named by the driver") {
  std::string directory = "/tmp/vitamin-gpus-XXXXXX";
  REQUIRE(::mkdtemp(directory.data()) != nullptr);
  const auto add = [&](const std::string& bus, const std::string& uuid) {
    std::filesystem::create_directory(directory + "/" + bus);
    std::ofstream(directory + "/" + bus + "/information")
        << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 95\nGPU UUID: \t " << uuid << "\n";
  };
  CHECK(nvidia_gpus(directory).complete);
  add("0000:81:00.0", "GPU-b");
  add("0000:01:00.0", "GPU-a");
  CHECK(nvidia_gpus(directory).uuids == Ids{"GPU-a", "GPU-b"});
  CHECK(nvidia_gpus(directory).complete);
  // Not initialized yet, without persistence mode.
  add("0000:a1:00.0", "GPU-????");
  CHECK(nvidia_gpus(directory).uuids == Ids{"GPU-a", "GPU-b"});
  CHECK_FALSE(nvidia_gpus(directory).complete);
  std::filesystem::remove_all(directory);
  CHECK(nvidia_gpus(directory).uuids.empty());
  CHECK_FALSE(nvidia_gpus(directory).complete);
}

TEST_CASE("a GPU that a complete list lacks is not of this machine") {
  const NvidiaGpus all = {.uuids = {"GPU-a", "GPU-b"}, .complete = true};
  CHECK(is_here("GPU-b", all));
  CHECK_FALSE(is_here("GPU-c", all));
  CHECK_FALSE(is_here("GPU-", all));
  CHECK(is_here("MIG-c", all));
  CHECK(is_here("GPU-c", {.uuids = {"GPU-a"}, .complete = false}));
  CHECK(is_here("GPU-c", {}));
}

}  // namespace
}  // namespace vitamin::kubernetes
