// SPDX-License-Identifier: Apache-2.0
//
// The structure audit finds a mistake of each kind where the bits happen to agree, and finds none
// where there is none.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <bit>
#include <filesystem>

#include "runtime/audit.h"
#include "tests/determinism/hal_machine.h"
#include "tests/determinism/planted_device.h"
#include "tests/determinism/trials.h"

namespace vitamin::determinism {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "vitamin-audit-XXXXXX").native();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

constexpr TrialOptions kTrials{.scale = Scale::kSmall, .trials = 4, .seed = 3};

std::vector<std::vector<Digest>> all(Machine& machine) {
  std::vector<std::vector<Digest>> results;
  for (const auto& subject : all_subjects())
    if (subject->expect() != Expect::kExcluded)
      results.push_back(digests(machine, *subject, kTrials));
  return results;
}

struct Outcome {
  std::uint64_t operations, changed, uncovered;
  unsigned differing = 0;
};

Outcome audited(Plant plant, const std::string& policy, std::uint64_t window_ns) {
  const Folder folder;
  HalMachine* machine_to_settle = nullptr;
  Colocation colocation{.policy = policy, .window_ns = window_ns, .tenants = 2, .seed = 9};
  colocation.audit = runtime::Audit::create(folder.path().c_str(), 0);
  REQUIRE(colocation.audit != nullptr);
  colocation.planted = [&](std::unique_ptr<hal::Device> device) {
    return planted_device(std::move(device), plant, [&] { machine_to_settle->settle(); });
  };
  const auto machine = shared_machine(1, colocation);
  machine_to_settle = machine.get();
  const auto got = all(*machine);
  Outcome outcome{colocation.audit->operations(), colocation.audit->changed(),
                  colocation.audit->uncovered()};
  const auto wanted = all(*native_machine(1));
  for (std::size_t i = 0; i < got.size(); ++i) outcome.differing += differing(wanted[i], got[i]);
  return outcome;
}

TEST_CASE("where the runtime is right the audit finds nothing under any policy or window") {
  for (const char* policy : {"fifo", "random", "extremes", "random:exclusive=1"})
    for (const std::uint64_t window_ns : {0ULL, 50'000ULL, ~0ULL}) {
      CAPTURE(policy);
      CAPTURE(window_ns);
      const Outcome outcome = audited(Plant::kNone, policy, window_ns);
      CHECK(outcome.operations > 400);
      CHECK(outcome.changed == 0);
      CHECK(outcome.uncovered == 0);
      CHECK(outcome.differing == 0);
    }
}

TEST_CASE("a changed descriptor is caught although the bits agree") {
  const Outcome outcome = audited(Plant::kDescriptor, "random", ~0ULL);
  CHECK(outcome.changed > 10);
  CHECK(outcome.uncovered == 0);
  CHECK(outcome.differing == 0);
}

TEST_CASE("a dropped edge is caught although the bits agree") {
  const Outcome outcome = audited(Plant::kDroppedEdge, "random", ~0ULL);
  CHECK(outcome.uncovered > 5);
  CHECK(outcome.changed == 0);
  CHECK(outcome.differing == 0);
}

TEST_CASE("a wait for another event is caught although the bits agree") {
  const Outcome outcome = audited(Plant::kOtherEvent, "random", ~0ULL);
  CHECK(outcome.uncovered > 5);
  CHECK(outcome.changed == 0);
  CHECK(outcome.differing == 0);
}

TEST_CASE("two small numbers side by side are no address, so a leaked count in a structure shows") {
  const auto pair = [](std::uint32_t first, std::uint32_t second) {
    return std::uint64_t{second} << 32 | first;
  };
  for (const std::uint64_t word : {pair(132, 33), pair(66, 16), pair(4096, 4096), pair(0, 1),
                                   pair(1'000'000, 132), std::uint64_t{132}})
    CHECK_FALSE(runtime::Audit::looks_like_address(word));
  for (const std::uint64_t word :
       {0x7f1234567000ULL, 0x7f1200000000ULL, 0x555555556000ULL, 0x302000000ULL, 0x10'0200'0000ULL})
    CHECK(runtime::Audit::looks_like_address(word));
  for (const double value : {1.0, -0.5, 1e-30})  // exponents put doubles above all addresses
    CHECK_FALSE(runtime::Audit::looks_like_address(std::bit_cast<std::uint64_t>(value)));
}

}  // namespace
}  // namespace vitamin::determinism
