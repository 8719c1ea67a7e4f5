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
const std::vector<Gpu> kTwo = {{"GPU-a", true}, {"GPU-b", false}};

TEST_CASE("each GPU is so many devices, as healthy as it is") {
  const auto shares = shares_of(kTwo, 2);
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
  const std::vector<Gpu> gpus = {{"a", true}, {"b", true}};
  CHECK(allocate(Ids{"a.0", "a.1"}, gpus, 4)->percent == 50);
  CHECK(allocate(Ids{"a.0", "a.1", "b.0"}, gpus, 4)->percent == 25);
  CHECK(allocate(Ids{"a.0", "a.1", "b.0"}, gpus, 4)->gpus == Ids{"a", "b"});
  CHECK(allocate(Ids{"a.0", "a.0"}, gpus, 4)->percent == 25);
  CHECK(allocate(Ids{"a.2", "a.1", "a.0"}, gpus, 3)->percent == 100);
}

TEST_CASE("what is unknown or unhealthy is not given") {
  CHECK(!allocate(Ids{"GPU-c.0"}, kTwo, 2));
  CHECK(!allocate(Ids{"GPU-a.2"}, kTwo, 2));
  CHECK(!allocate(Ids{}, kTwo, 2));
  const auto refused = allocate(Ids{"GPU-a.0", "GPU-b.0"}, kTwo, 2);
  REQUIRE(!refused);
  CHECK(refused.error().message.find("GPU-b.0 is unhealthy") != std::string::npos);
}

TEST_CASE("NVIDIA's GPUs are named by the driver") {
  std::string folder = "/tmp/vitamin-gpus-XXXXXX";
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  for (const char* bus : {"0000:81:00.0", "0000:01:00.0"}) {
    std::filesystem::create_directory(folder + "/" + bus);
    std::ofstream(folder + "/" + bus + "/information")
        << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 95\nGPU UUID: \t GPU-" << bus << "\n";
  }
  CHECK(nvidia_gpus(folder) == Ids{"GPU-0000:01:00.0", "GPU-0000:81:00.0"});
  std::filesystem::remove_all(folder);
  CHECK(nvidia_gpus(folder).empty());
}

}  // namespace
}  // namespace vitamin::kubernetes
