// SPDX-License-Identifier: Apache-2.0
//
// The ledger of device memory: threads and processes that charge at the same time, and owners that
// are dead.
#include "daemon/protocol/quota_ledger.h"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "daemon/protocol/quota_file.h"

namespace vitamin::protocol {
namespace {

namespace fs = std::filesystem;

constexpr auto kNoneDead = [](std::uint64_t) { return false; };
constexpr auto kAtOnce = [](unsigned) { return RetryDecision::kGiveUp; };

struct TemporaryDirectory {
  fs::path path;
  TemporaryDirectory() {
    std::string name = (fs::temp_directory_path() / "quota-XXXXXX").native();
    path = ::mkdtemp(name.data());
  }
  ~TemporaryDirectory() { fs::remove_all(path); }
};

struct Members {
  MappedLedger ledger;
  std::atomic<std::uint32_t>* words;  // shared by the test's processes
  static constexpr std::size_t kWords = 64;
  TemporaryDirectory directory;

  explicit Members(std::uint64_t quota) {
    ledger = std::move(*open_ledger(directory.path / "ledger"));
    ledger->set_quota(quota);
    words = static_cast<std::atomic<std::uint32_t>*>(::mmap(nullptr, kWords * sizeof *words,
                                                            PROT_READ | PROT_WRITE,
                                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }
  ~Members() { ::munmap(words, kWords * sizeof *words); }

  // Runs body(i) in `processes` children that begin together. Exit codes; -n: ended by signal n.
  std::vector<int> run(unsigned processes, const std::function<int(unsigned)>& body) const {
    std::vector<pid_t> children;
    for (unsigned i = 0; i < processes; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        words[0].fetch_add(1);
        while (words[0].load() < processes) ::usleep(50);
        ::_exit(body(i));
      }
      children.push_back(child);
    }
    std::vector<int> ends;
    for (const pid_t child : children) {
      int status = 0;
      ::waitpid(child, &status, 0);
      ends.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    words[0].store(0);
    return ends;
  }
  std::size_t claim() const { return ledger->claim(own_owner(*ledger), DeadOwners(*ledger)); }
  bool charge(std::size_t slot, std::uint64_t bytes) const {
    return ledger->charge(slot, bytes, DeadOwners(*ledger), LedgerWait());
  }
  // However long others take between announcing and being admitted or refused: they may be
  // preempted there for longer than LedgerWait waits.
  bool charge_in_the_end(std::size_t slot, std::uint64_t bytes) const {
    const auto wait = [limited = LedgerWait()](unsigned tries) mutable {
      const RetryDecision next = limited(tries);
      return next == RetryDecision::kGiveUp ? RetryDecision::kReturnDead : next;
    };
    return ledger->charge(slot, bytes, DeadOwners(*ledger), wait);
  }
};

}  // namespace

TEST_CASE("a charge within the quota is admitted, one beyond it is refused and counted") {
  const Members members(100);
  const std::size_t slot = members.claim();
  CHECK(members.charge(slot, 60));
  CHECK(members.charge(slot, 40));
  CHECK_FALSE(members.charge(slot, 1));
  CHECK(members.ledger->refused() == 1);
  members.ledger->give_back(slot, 50);
  CHECK(members.charge(slot, 50));
  CHECK(members.ledger->add_up().used == 100);
}

TEST_CASE("the most that an owner had is known after its end, until its slot is claimed again") {
  const Members members(100);
  constexpr std::uint64_t kFirst = 7, kNext = 8;
  NativeQuotaLedger& ledger = *members.ledger;
  CHECK_FALSE(ledger.peak_of(kFirst).has_value());
  const std::size_t slot = ledger.claim(kFirst, kNoneDead);
  CHECK(ledger.charge(slot, 60, kNoneDead, kAtOnce));
  CHECK(ledger.peak_of(kFirst) == 0);  // it may not get them yet
  ledger.note_peak(slot, 60);
  CHECK_FALSE(ledger.charge(slot, 60, kNoneDead, kAtOnce));
  ledger.give_back(slot, 40);
  ledger.note_peak(slot, 20);
  CHECK(ledger.peak_of(kFirst) == 60);
  CHECK(ledger.claim(kFirst, kNoneDead) == slot);  // after exec
  CHECK(ledger.peak_of(kFirst) == 60);
  ledger.note_peak(slot, 120);
  CHECK(ledger.peak_of(kFirst) == 120);
  ledger.release(kFirst);
  CHECK(ledger.peak_of(kFirst) == 120);
  CHECK(ledger.claim(kNext, kNoneDead) == slot);
  CHECK_FALSE(ledger.peak_of(kFirst).has_value());
  CHECK(ledger.peak_of(kNext) == 0);
}

TEST_CASE("threads that count what they were given at one time lose no byte and no peak") {
  const Members members(100);
  constexpr std::uint64_t kOwner = 7, kThreads = 4, kRounds = 2000;
  NativeQuotaLedger& ledger = *members.ledger;
  const std::size_t slot = ledger.claim(kOwner, kNoneDead);
  std::barrier together(kThreads);
  std::vector<std::thread> threads;
  std::atomic<std::uint64_t> has{0};
  std::atomic<unsigned> wrong{0};
  for (unsigned i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (std::uint64_t round = 1; round <= kRounds; ++round) {
        ledger.charge_unasked(slot, 1);
        ledger.note_peak(slot, has.fetch_add(1) + 1);
        together.arrive_and_wait();
        if (ledger.peak_of(kOwner) != round * kThreads) ++wrong;
        together.arrive_and_wait();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(ledger.slot(slot).over.load() == kThreads * kRounds);
}

TEST_CASE("the largest charge and the largest quota are taken without overflow") {
  const Members members(~std::uint64_t{0});
  CHECK(members.ledger->quota() == kMostBytes);
  const std::size_t slot = members.claim();
  CHECK_FALSE(members.charge(slot, ~std::uint64_t{0}));
  CHECK_FALSE(members.charge(slot, kMostBytes + 1));
  CHECK(members.charge(slot, kMostBytes));
  CHECK_FALSE(members.charge(slot, 1));
  members.ledger->give_back(slot, kMostBytes);
  CHECK(members.ledger->add_up().used == 0);
}

TEST_CASE("a quota that is lowered below what is in use refuses until enough was given back") {
  const Members members(100);
  const std::size_t slot = members.claim();
  REQUIRE(members.charge(slot, 80));
  members.ledger->set_quota(50);
  CHECK_FALSE(members.charge(slot, 1));
  members.ledger->give_back(slot, 40);
  CHECK(members.charge(slot, 10));
  CHECK_FALSE(members.charge(slot, 1));
  members.ledger->set_quota(51);
  CHECK(members.charge(slot, 1));
}

TEST_CASE("what is counted without being asked for may exceed the quota, and is named") {
  const Members members(100);
  const std::size_t slot = members.claim();
  members.ledger->charge_unasked(slot, 130);
  CHECK(members.ledger->add_up().used == 130);
  CHECK(members.ledger->slot(slot).over.load() == 130);
  CHECK_FALSE(members.charge(slot, 1));
}

TEST_CASE("of eight processes that want a quarter of the quota each exactly four get it") {
  const Members members(1000);
  for (int round = 0; round < 50; ++round) {
    const auto ends = members.run(8, [&](unsigned) {
      const std::size_t slot = members.claim();
      const bool admitted = members.charge_in_the_end(slot, 250);
      // All decide before the first one ends.
      members.words[1].fetch_add(1);
      while (members.words[1].load() < 8) ::usleep(50);
      return admitted ? 1 : 0;
    });
    members.words[1].store(0);
    CHECK(std::count(ends.begin(), ends.end(), 1) == 4);
    CHECK(std::count(ends.begin(), ends.end(), 0) == 4);
  }
}

TEST_CASE("eight processes that charge and give back at once are never above the quota together") {
  // What each one holds is counted a second time by one atomic word, after it was admitted and
  // until before it is given back: never more than the ledger admits.
  const Members members(10);
  auto& held = members.words[2];
  auto& most = members.words[3];
  const auto ends = members.run(8, [&](unsigned process) {
    const std::size_t slot = members.claim();
    std::uint32_t state = 1 + process;
    for (int i = 0; i < 3000; ++i) {
      state = state * 1664525 + 1013904223;
      const std::uint32_t bytes = 1 + (state >> 16) % 6;
      if (!members.charge(slot, bytes)) continue;
      const std::uint32_t now = held.fetch_add(bytes) + bytes;
      std::uint32_t before = most.load();
      while (before < now && !most.compare_exchange_weak(before, now)) {
      }
      held.fetch_sub(bytes);
      members.ledger->give_back(slot, bytes);
    }
    return bytes_in(members.ledger->slot(slot).used.load()) == 0 ? 0 : 1;
  });
  CHECK(ends == std::vector<int>(8, 0));
  CHECK(most.load() <= 10);
  CHECK(most.load() >= 6);
  CHECK(members.ledger->add_up().used == 0);
}

TEST_CASE("memory of killed processes is free at the next charge of another process") {
  const Members members(800);
  const std::size_t mine = members.claim();
  const auto ends = members.run(8, [&](unsigned) {
    const std::size_t slot = members.claim();
    if (!members.charge(slot, 100)) return 1;
    // None is killed before all are charged: claim() empties the slots of dead owners.
    members.words[1].fetch_add(1);
    while (members.words[1].load() < 8) ::usleep(50);
    return ::raise(SIGKILL);
  });
  CHECK(ends == std::vector<int>(8, -SIGKILL));
  CHECK(members.ledger->add_up().used == 800);
  CHECK(members.charge(mine, 800));
  CHECK(members.ledger->add_up().used == 800);
}

TEST_CASE("memory of a zombie is free, that of a stopped process is not") {
  const Members members(100);
  const std::size_t mine = members.claim();
  const pid_t child = ::fork();
  if (child == 0) {
    members.charge(members.claim(), 70);
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  REQUIRE(WIFSTOPPED(status));
  CHECK_FALSE(members.charge(mine, 40));
  CHECK(members.charge(mine, 30));
  ::kill(child, SIGKILL);
  siginfo_t ended;
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);
  CHECK(members.charge(mine, 70));
  ::waitpid(child, &status, 0);
}

TEST_CASE("a process that is stopped in a charge does not block charges of others for ever") {
  const Members members(100);
  const std::size_t mine = members.claim();
  const pid_t child = ::fork();
  if (child == 0) {
    // Has 30, announces 60 as charge() does, and stops before it is admitted or refused.
    const std::size_t slot = members.claim();
    auto& words = const_cast<NativeQuotaLedger::Slot&>(members.ledger->slot(slot));
    words.wanted.store(words.used.load() + 60);
    members.ledger->charge_unasked(slot, 30);
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  REQUIRE(WIFSTOPPED(status));
  CHECK(members.charge(mine, 10));
  CHECK_FALSE(members.charge(mine, 20));  // what was announced counts in the end
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  CHECK(members.charge(mine, 90));
}

TEST_CASE("a process of another pid namespace is never taken for dead") {
  const Members members(100);
  members.ledger->agree_on_space(12345);  // the namespace of the ledger's first process
  const std::uint64_t mine = own_owner(*members.ledger);
  CHECK(process_of(mine) == ::getpid());
  CHECK_FALSE(owner_is_dead(mine));
  const std::uint64_t gone = owner_of(::getpid()) ^ 1;  // started at another time
  CHECK(owner_is_dead(gone));
  CHECK_FALSE(DeadOwners(*members.ledger)(gone));
}

TEST_CASE("an owner is the same process only with the same start") {
  const std::uint64_t mine = owner_of(::getpid());
  CHECK(mine != 0);
  CHECK_FALSE(owner_is_dead(mine));
  CHECK(owner_is_dead(mine + 1));
  CHECK(owner_of(0) == 0);
  CHECK(owner_of(-1) == 0);
}

TEST_CASE("a process that executed another program takes its slot over, empty") {
  const Members members(100);
  const std::size_t slot = members.claim();
  REQUIRE(members.charge(slot, 100));
  CHECK(members.claim() == slot);
  CHECK(members.ledger->add_up().used == 0);
}

TEST_CASE("a claim fails when living processes have all slots") {
  const Members members(100);
  for (std::uint64_t owner = 1; owner <= kQuotaSlots; ++owner)
    CHECK(members.ledger->claim(owner, kNoneDead) == owner - 1);
  CHECK(members.ledger->claim(kQuotaSlots + 1, kNoneDead) == kNoQuotaSlot);
  CHECK(members.ledger->claim(kQuotaSlots + 1, [](std::uint64_t owner) { return owner == 7; }) ==
        6);
}

TEST_CASE("a charge waits for announced charges, and counts them as used when it gives up") {
  const Members members(100);
  const std::size_t low = members.ledger->claim(1, kNoneDead), high = members.claim();
  // The lower slot announces 60 and does not go on.
  const pid_t child = ::fork();
  if (child == 0) {
    members.ledger->charge_unasked(high, 50);
    members.ledger->charge(low, 50, kNoneDead, kAtOnce);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(members.ledger->add_up().used == 100);
  CHECK_FALSE(members.ledger->charge(high, 1, kNoneDead, kAtOnce));
}

TEST_CASE("processes that open a ledger at the same time share one file of mode 0600") {
  const TemporaryDirectory directory;
  const std::string path = directory.path / "ledger";
  const Members members(1);  // for its processes
  const auto ends = members.run(8, [&](unsigned process) {
    auto ledger = open_ledger(path);
    if (!ledger) return 1;
    (*ledger)->charge_unasked(process, 10);
    return 0;
  });
  CHECK(ends == std::vector<int>(8, 0));
  auto ledger = open_ledger(path);
  REQUIRE(ledger);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < 8; ++i) sum += bytes_in((*ledger)->slot(i).used.load());
  CHECK(sum == 80);
  struct stat facts {};
  CHECK(::stat(path.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0600);
  CHECK(std::distance(fs::directory_iterator(directory.path), fs::directory_iterator()) == 1);
}

TEST_CASE("a file of another size, a link and a directory are refused with an error message") {
  const TemporaryDirectory directory;
  const fs::path file = directory.path / "short", link = directory.path / "link";
  std::FILE* const made = std::fopen(file.c_str(), "w");
  std::fputs("short", made);
  std::fclose(made);
  fs::create_symlink(file, link);
  for (const fs::path& path : {file, link, directory.path, directory.path / "no" / "where"}) {
    const auto ledger = open_ledger(path);
    REQUIRE_FALSE(ledger);
    CHECK(ledger.error().message.find("ledger of device memory") != std::string::npos);
  }
}

}  // namespace vitamin::protocol
