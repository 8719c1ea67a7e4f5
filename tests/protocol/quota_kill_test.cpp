// SPDX-License-Identifier: Apache-2.0
//
// SIGKILL at every instruction of a process that charges device memory: nothing of what it had
// stays in use, and all of it can be charged again. The memory that the ledger lies in after an
// instruction is what the others would find if the process had been killed there: so it is copied
// after each one, and the others act on the copy.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>
#include <new>

#include "daemon/protocol/quota_ledger.h"

namespace vitamin::protocol {
namespace {

constexpr std::uint64_t kQuota = 1000;
constexpr std::uint64_t kSurvivor = 1, kKilled = 2, kOther = 3;
constexpr auto kNobody = [](std::uint64_t) { return false; };
constexpr auto kAllButSurvivor = [](std::uint64_t owner) { return owner != kSurvivor; };
constexpr auto kAtOnce = [](unsigned) { return RetryDecision::kGiveUp; };
using Ledger = QuotaLedger<Native, 3>;

// What is wrong with a ledger in which all but the first owner are gone.
int faults_of(Ledger& ledger) {
  int faults = 0;
  faults += !ledger.charge(0, kQuota - 300, kAllButSurvivor, kAtOnce);
  faults += ledger.add_up().used != kQuota || ledger.add_up().wanted != 0;
  faults += ledger.charge(0, 1, kAllButSurvivor, kAtOnce);
  ledger.give_back(0, kQuota);
  // A successor has the slot, and nothing in it.
  faults += ledger.claim(kKilled, kAllButSurvivor) == kNoQuotaSlot;
  faults += ledger.add_up().used != 0;
  return faults;
}

template <class Body>
long kill_member_everywhere(Body body, long& bad) {
  void* const memory =
      ::mmap(nullptr, sizeof(Ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* const ledger = new (memory) Ledger{};
  ledger->set_quota(kQuota);
  ledger->claim(kSurvivor, kNobody);
  ledger->charge_unasked(0, 300);
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, 0, 0);
    ::raise(SIGSTOP);
    body(*ledger);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  const auto copy = std::make_unique<Ledger>();
  long points = 0;
  for (; !WIFEXITED(status); ++points) {
    std::memcpy(static_cast<void*>(copy.get()), memory, sizeof(Ledger));
    bad += faults_of(*copy);
    ::ptrace(PTRACE_SINGLESTEP, child, 0, 0);
    ::waitpid(child, &status, 0);
  }
  ::munmap(memory, sizeof(Ledger));
  return points;
}

}  // namespace

TEST_CASE("a process killed at any instruction of its charges leaves no byte in use") {
  long bad = 0;
  const long points = kill_member_everywhere(
      [](Ledger& ledger) {
        const std::size_t slot = ledger.claim(kKilled, kNobody);
        ledger.charge(slot, 400, kNobody, kAtOnce);
        ledger.charge(slot, 500, kNobody, kAtOnce);  // refused
        ledger.give_back(slot, 150);
        ledger.charge_unasked(slot, 50);
        ledger.release(kKilled);
      },
      bad);
  MESSAGE(points << " kill points");
  CHECK(points > 300);
  CHECK(bad == 0);
}

TEST_CASE("a process killed at any instruction of giving back for a dead one loses no byte") {
  long bad = 0;
  const long points = kill_member_everywhere(
      [](Ledger& ledger) {
        ledger.charge_unasked(ledger.claim(kOther, kNobody), 77);
        ledger.charge_unasked(ledger.claim(kKilled, kNobody), 33);
        ledger.return_dead([](std::uint64_t owner) { return owner == kOther; });
        // Its slot has an owner again.
        ledger.charge_unasked(ledger.claim(kOther + 1, kNobody), 11);
      },
      bad);
  MESSAGE(points << " kill points");
  CHECK(points > 300);
  CHECK(bad == 0);
}

TEST_CASE("the same test finds bytes that are counted apart from their owner") {
  long bad = 0;
  kill_member_everywhere(
      [](Ledger& ledger) {
        // The planted mistake: in the slot of the survivor.
        ledger.charge_unasked(0, 100);
        ledger.give_back(0, 100);
      },
      bad);
  CHECK(bad > 0);
}

}  // namespace vitamin::protocol
