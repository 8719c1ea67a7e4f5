// SPDX-License-Identifier: Apache-2.0
//
// The structure audit finds a mistake of each kind where the bits happen to agree, and finds none
// where there is none. One source for every backend (platform.h).
#include <doctest/doctest.h>
#include <stdlib.h>

#include <bit>
#include <filesystem>
#include <mutex>
#include <optional>

#include "runtime/audit/argument_hash.h"
#include "runtime/audit/audit.h"
#include "tests/determinism/between.h"
#include "tests/determinism/hal_machine.h"
#include "tests/determinism/platform.h"
#include "tests/determinism/trials.h"
#include "tools/vitamin/verify/judge.h"

namespace vitamin::determinism {
namespace {

namespace fs = std::filesystem;

class Directory {
 public:
  Directory() {
    std::string name = (fs::temp_directory_path() / "vitamin-audit-XXXXXX").native();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<std::vector<Digest>> all(Machine& machine) {
  const TrialOptions options{
      .scale = Scale::kSmall, .trials = std::min(effort().trials, 4u), .seed = 3};
  std::vector<std::vector<Digest>> results;
  for (const auto& subject : all_subjects())
    if (subject->expect() != Expect::kExcluded)
      results.push_back(digests(machine, *subject, options));
  return results;
}

// A mistake of the runtime's, once in a while and not at the first occasion. The device finishes
// everything first: the bits need not show it.
class Mistake : public Between {
 public:
  std::function<void()> settle;

 protected:
  bool strikes() {
    if (++occasions_ % (effort().trials > 1 ? 16 : 5) != 0) return false;
    settle();
    return true;
  }

 private:
  unsigned occasions_ = 0;
};

class ChangedDescriptor final : public Mistake {
  hal::NativeStatus launch(hal::Queue& queue, std::uint32_t,
                           const hal::KernelLaunch& launch) override {
    hal::KernelLaunch changed = launch;
    if (strikes()) changed.shared_bytes += 16;
    return queue.launch(changed);
  }
};

class DroppedEdge final : public Mistake {
  hal::NativeStatus wait(hal::Queue& queue, hal::Event event) override {
    return strikes() ? hal::kNativeOk : queue.wait(event);
  }
};

// The wait is there, for an event that was recorded before anything else.
class OtherEvent final : public Mistake {
  void opened(hal::Device& device) override { stranger_ = needed(device.create_event()); }
  void closed(hal::Device& device) override { device.destroy_event(stranger_); }
  hal::NativeStatus wait(hal::Queue& queue, hal::Event event) override {
    return queue.wait(strikes() ? stranger_ : event);
  }
  hal::Event stranger_;
};

// The launch goes to the queue that took the one before it, which is wider or narrower.
class OtherQueue final : public Mistake {
  hal::NativeStatus launch(hal::Queue& queue, std::uint32_t,
                           const hal::KernelLaunch& launch) override {
    const std::lock_guard lock(mutex_);  // so that the other queue does not end meanwhile
    hal::Queue* const before = std::exchange(before_, &queue);
    if (before == nullptr || before == &queue || !strikes()) return queue.launch(launch);
    return before->launch(launch);
  }
  void ends(hal::Queue& queue) override {
    const std::lock_guard lock(mutex_);
    if (before_ == &queue) before_ = nullptr;
  }
  std::mutex mutex_;
  hal::Queue* before_ = nullptr;
};

class LaunchedTwice final : public Mistake {
  hal::NativeStatus launch(hal::Queue& queue, std::uint32_t,
                           const hal::KernelLaunch& launch) override {
    if (strikes()) static_cast<void>(queue.launch(launch));
    return queue.launch(launch);
  }
};

// Said to be done, and not.
class LostLaunch final : public Mistake {
  hal::NativeStatus launch(hal::Queue& queue, std::uint32_t,
                           const hal::KernelLaunch& launch) override {
    return strikes() ? hal::kNativeOk : queue.launch(launch);
  }
};

// A launch that waits for its predecessor may begin before that has ended.
class Overlapping final : public Mistake {
  hal::NativeStatus launch(hal::Queue& queue, std::uint32_t,
                           const hal::KernelLaunch& launch) override {
    hal::KernelLaunch changed = launch;
    changed.programmatic = strikes();
    return queue.launch(changed);
  }
};

struct Outcome {
  std::uint64_t operations, changed, uncovered;
  unsigned differing = 0;
};

Outcome audited(const std::shared_ptr<Mistake>& mistake, const std::string& policy = "random",
                std::uint64_t window_ns = ~0ULL) {
  const Directory directory;
  Colocation colocation{.policy = policy, .window_ns = window_ns, .tenants = 2, .seed = 9};
  colocation.audit = runtime::Audit::create(directory.path().c_str(), 0);
  REQUIRE(colocation.audit != nullptr);
  if (mistake)
    colocation.planted = [&](std::unique_ptr<hal::Device> device) {
      return device_between(mistake, std::move(device));
    };
  const auto machine = shared_machine(1, colocation);
  if (mistake) mistake->settle = [&] { machine->settle(); };
  const auto got = all(*machine);
  Outcome outcome{colocation.audit->operations(), colocation.audit->changed(),
                  colocation.audit->uncovered()};
  const auto wanted = all(*native_machine(1));
  for (std::size_t i = 0; i < got.size(); ++i) outcome.differing += differing(wanted[i], got[i]);
  return outcome;
}

TEST_CASE("where the runtime is right the audit finds nothing under any policy or window") {
  std::vector<std::pair<std::string, std::uint64_t>> treatments = {{"random", ~0ULL}};
  const bool all_of_them = effort().every_other == 1;
  for (const char* policy : {"fifo", "random", "extremes", "random:exclusive=1"})
    for (const std::uint64_t window_ns : {0ULL, 50'000ULL, ~0ULL})
      if (all_of_them || window_ns == 50'000) treatments.emplace_back(policy, window_ns);
  for (const auto& treatment : treatments) {
    CAPTURE(treatment.first);
    CAPTURE(treatment.second);
    const auto& [policy, window_ns] = treatment;
    const Outcome outcome = audited(nullptr, policy, window_ns);
    CHECK(outcome.operations > 90);
    CHECK(outcome.changed == 0);
    CHECK(outcome.uncovered == 0);
    CHECK(outcome.differing == 0);
  }
}

TEST_CASE("a changed descriptor is caught although the bits agree") {
  const Outcome outcome = audited(std::make_shared<ChangedDescriptor>());
  CHECK(outcome.changed > 1);
  CHECK(outcome.uncovered == 0);
  CHECK(outcome.differing == 0);
}

TEST_CASE("a dropped edge is caught although the bits agree") {
  const Outcome outcome = audited(std::make_shared<DroppedEdge>());
  CHECK(outcome.uncovered > 0);
  CHECK(outcome.changed == 0);
  CHECK(outcome.differing == 0);
}

TEST_CASE("a wait for another event is caught although the bits agree") {
  const Outcome outcome = audited(std::make_shared<OtherEvent>());
  CHECK(outcome.uncovered > 0);
  CHECK(outcome.changed == 0);
  CHECK(outcome.differing == 0);
}

TEST_CASE("a launch on another queue than the one it was bound to is caught") {
  CHECK(audited(std::make_shared<OtherQueue>()).changed > 0);
}

TEST_CASE("a launch that is made twice is caught") {
  CHECK(audited(std::make_shared<LaunchedTwice>()).changed > 1);
}

TEST_CASE("a launch that is never made is caught") {
  CHECK(audited(std::make_shared<LostLaunch>()).changed > 1);
}

TEST_CASE("a launch that may overlap its predecessor without having asked for it is caught") {
  CHECK(audited(std::make_shared<Overlapping>()).changed > 1);
}

// What the subjects launched, as the audit of a run wrote it down. `leaked`: the SMs that
// the program is told.
// The audit's files lie in `directory` and are read when they are compared.
tools::Observation structure_of(const Directory& directory, const std::string& policy,
                                unsigned leaked) {
  Colocation colocation{.policy = policy, .tenants = 0, .leaked_sms = leaked};
  colocation.audit = runtime::Audit::create(directory.path().c_str(), 0);
  all(*shared_machine(1, colocation));
  tools::Observation run;
  run.audited = true;
  run.processes = tools::read_audit(directory.path());
  return run;
}

TEST_CASE("a leaked processor count is caught, and the launch that it changed is named") {
  const Directory of_alone, of_random, of_leaked;
  const tools::Observation alone = structure_of(of_alone, "fifo", 0);
  CHECK_FALSE(tools::structure_difference(alone, structure_of(of_random, "random", 0)));
  const auto found = tools::structure_difference(alone, structure_of(of_leaked, "random", 24));
  const std::string said = found.value_or("no difference");
  CHECK_MESSAGE(said.find("sum_pieces_bf16") != std::string::npos, said);
}

TEST_CASE("two small numbers side by side are no address, so a leaked count in a structure shows") {
  const auto pair = [](std::uint32_t first, std::uint32_t second) {
    return std::uint64_t{second} << 32 | first;
  };
  for (const std::uint64_t word : {pair(132, 33), pair(66, 16), pair(4096, 4096), pair(0, 1),
                                   pair(1'000'000, 132), std::uint64_t{132}})
    CHECK_FALSE(runtime::looks_like_address(word));
  for (const std::uint64_t word :
       {0x7f1234567000ULL, 0x7f1200000000ULL, 0x555555556000ULL, 0x302000000ULL, 0x10'0200'0000ULL})
    CHECK(runtime::looks_like_address(word));
  for (const double value : {1.0, -0.5, 1e-30})  // exponents put doubles above all addresses
    CHECK_FALSE(runtime::looks_like_address(std::bit_cast<std::uint64_t>(value)));
}

}  // namespace
}  // namespace vitamin::determinism
