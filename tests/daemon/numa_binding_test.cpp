// SPDX-License-Identifier: Apache-2.0
//
// Where vitamind would bind its loop on other machines.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "daemon/arbiter/numa_binding.h"

namespace vitamin::daemon {
namespace {

std::vector<unsigned> range(unsigned first, unsigned count) {
  std::vector<unsigned> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

TEST_CASE("of two nodes the one with most of the GPUs is chosen, within the allowed processors") {
  const NumaBinding machine("numa:2 core:24 pu:2");
  CHECK(machine.nodes() == 2);
  CHECK(machine.choose({0, 1, 1}, range(0, 96)) == range(48, 48));
  CHECK(machine.choose({0}, range(0, 96)) == range(0, 48));
  CHECK(machine.choose({1, 1}, range(40, 12)) == range(48, 4));
}

TEST_CASE("the loop is not bound if that gains nothing or leaves one processor") {
  CHECK(NumaBinding("numa:1 core:8 pu:1").choose({0, 0}, range(0, 8)).empty());
  const NumaBinding machine("numa:2 core:4 pu:1");
  CHECK(machine.choose({}, range(0, 8)).empty());   // no GPU's node is known
  CHECK(machine.choose({1}, range(0, 5)).empty());  // only one processor of that node is allowed
  CHECK(machine.choose({1}, range(0, 4)).empty());  // none is
  CHECK(machine.choose({7}, range(0, 8)).empty());  // no such node
  CHECK_FALSE(machine.node_of("0000:3b:00.0"));     // no PCI devices in that description
}

TEST_CASE("a thread is bound to the given processors") {
  const NumaBinding here;
  const std::vector<unsigned> before = here.allowed();
  REQUIRE(!before.empty());
  CHECK(here.bind({before.front()}));
  CHECK(here.allowed() == std::vector<unsigned>{before.front()});
  CHECK(here.bind(before));
  CHECK(here.allowed() == before);
}

TEST_CASE("the driver's list maps UUIDs to PCI addresses") {
  const auto directory = std::filesystem::temp_directory_path() /
                         ("numa-" + std::to_string(reinterpret_cast<std::uintptr_t>(&range)));
  std::filesystem::create_directories(directory / "0000:3b:00.0");
  std::ofstream(directory / "0000:3b:00.0" / "information")
      << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t GPU-1234-5678\nBus Type: \t PCIe\n";
  CHECK(pci_of_gpus(directory) ==
        std::map<std::string, std::string>{{"GPU-1234-5678", "0000:3b:00.0"}});
  std::filesystem::remove_all(directory);
  CHECK(pci_of_gpus(directory).empty());
}

}  // namespace
}  // namespace vitamin::daemon
