// SPDX-License-Identifier: Apache-2.0
//
// Which processes share a quota of device memory (daemon/arbiter/memory_quotas.h).
#include <doctest/doctest.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "daemon/arbiter/memory_quotas.h"
#include "daemon/protocol/quota_file.h"

namespace {

namespace config = vitamin::config;
namespace daemon = vitamin::daemon;
using config::GroupOf;
using daemon::Member;

constexpr std::uint64_t kGiB = 1 << 30;

config::WorkloadClass of(GroupOf who, const char* memory = "1GiB") {
  config::WorkloadClass made;
  made.name = "small";
  made.memory = memory;
  made.memory_of = who;
  return made;
}

// The pidfd of a process of this test or of one above it.
vitamin::protocol::Fd pidfd_of(pid_t process) {
  return vitamin::protocol::Fd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

// The quota of a process that enters with this question.
auto bound(daemon::MemoryQuotas& quotas, const config::WorkloadClass& workload,
           const Member& member, const char* uuid = "GPU-1", std::uint64_t total = 2 * kGiB) {
  using Bound = vitamin::hal::Result<daemon::MemoryQuotas::Bound>;
  const auto owner = quotas.enter(member, pidfd_of(member.process));
  return owner ? quotas.bound(*owner, workload, member, uuid, total)
               : Bound(tl::unexpected(owner.error()));
}

// A process that does nothing until it is killed.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ != 0) return;
    for (;;) ::pause();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ != 0) kill();
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

TEST_CASE("processes of one group share a ledger on each device, and no others do") {
  const Member me{::getpid(), 1000, "", ""}, other{::getppid(), 1000, "", ""},
      stranger{::getppid(), 1001, "", ""};
  const Member in_pod{::getpid(), 0, std::string(64, 'a'), ""},
      beside{::getppid(), 0, std::string(64, 'b'), ""};
  const Member in_job{::getpid(), 1000, "", "12"}, in_next{::getppid(), 1000, "", "13"};
  struct Case {
    GroupOf who;
    Member first, second;
    bool together;
    const char* whose;
  };
  for (const Case& each : {
           Case{GroupOf::kUser, me, other, true, "of user 1000"},
           {GroupOf::kUser, me, stranger, false, "of user 1000"},
           {GroupOf::kProcess, me, me, true, nullptr},
           {GroupOf::kProcess, me, other, false, nullptr},
           {GroupOf::kContainer, in_pod, in_pod, true, "of container aaaaaaaaaaaa"},
           {GroupOf::kContainer, in_pod, beside, false, "of container aaaaaaaaaaaa"},
           {GroupOf::kContainer, me, other, true, "of user 1000"},
           {GroupOf::kContainer, me, in_pod, false, "of user 1000"},
           {GroupOf::kJob, in_job, in_next, false, "of job 12"},
           {GroupOf::kJob, in_job, in_job, true, "of job 12"},
           {GroupOf::kClass, me, stranger, true, "of class small"},
       }) {
    CAPTURE(static_cast<int>(each.who));
    daemon::MemoryQuotas quotas;
    const auto first = bound(quotas, of(each.who), each.first);
    const auto second = bound(quotas, of(each.who), each.second);
    const auto elsewhere = bound(quotas, of(each.who), each.first, "GPU-2");
    REQUIRE((first && second && elsewhere));
    CHECK((first->file == second->file) == each.together);
    CHECK(first->file != elsewhere->file);
    if (each.whose != nullptr) CHECK(first->whose == each.whose);
    CHECK(first->quota == kGiB);
  }
}

TEST_CASE("a percentage is of the memory of the process's device") {
  daemon::MemoryQuotas quotas;
  const Member me{::getpid(), 1000, "", ""};
  const config::WorkloadClass half = of(GroupOf::kUser, "50%");
  CHECK(bound(quotas, half, me, "GPU-1", 2 * kGiB)->quota == kGiB);
  CHECK(bound(quotas, half, me, "GPU-2", 8 * kGiB)->quota == 4 * kGiB);
}

TEST_CASE("a process that lies about its device changes no quota of others") {
  daemon::MemoryQuotas quotas;
  const config::WorkloadClass half = of(GroupOf::kClass, "50%"), fixed = of(GroupOf::kUser);
  const Member me{::getpid(), 1000, "", ""}, other{::getppid(), 1001, "", ""};
  const auto quota_of = [&](const char* whose) {
    for (const auto& group : quotas.status())
      if (group["whose"] == whose) return group["quota"].get<std::uint64_t>();
    return std::uint64_t{0};
  };
  const auto first = bound(quotas, half, me, "GPU-1", 8 * kGiB);
  REQUIRE(first);
  CHECK(quota_of("of class small") == 4 * kGiB);
  for (const std::uint64_t lie : {std::uint64_t{0}, std::uint64_t{1}, kGiB, 800 * kGiB}) {
    Child child;
    const Member member{child.pid(), 1001, "", ""};
    const auto liar = bound(quotas, half, member, "GPU-1", lie);
    REQUIRE(liar);
    CHECK(liar->file != first->file);
    // Another lie gets no other ledger.
    CHECK(bound(quotas, half, member, "GPU-1", 80 * kGiB)->file == liar->file);
  }
  // Without what the driver has for itself: the same device.
  const auto same = bound(quotas, half, other, "GPU-1", 8 * kGiB - (600 << 20));
  REQUIRE(same);
  CHECK(same->file == first->file);
  CHECK(same->quota == 4 * kGiB);
  // The quota of others is of no lie, and a quota in bytes does not need the total.
  CHECK(vitamin::protocol::map_ledger(vitamin::protocol::Fd(::dup(first->file))).value()->quota() ==
        4 * kGiB);
  CHECK(bound(quotas, fixed, me, "GPU-1", 8 * kGiB)->file ==
        bound(quotas, fixed, {::getppid(), 1000, "", ""}, "GPU-1", 1)->file);
}

TEST_CASE("the quota of a step or claim belongs to no class and survives a reload") {
  daemon::MemoryQuotas quotas;
  const Member me{::getpid(), 1000, "", "12"};
  const auto owner = quotas.enter(me, pidfd_of(me.process));
  REQUIRE(owner);
  const auto of_step = [&](const char* whose, const config::MemoryBound& memory) {
    return quotas.bound(*owner, whose, memory, "GPU-1", 2 * kGiB);
  };
  const auto step = of_step("of job 12.0", {kGiB, 0}), other = of_step("of job 12.1", {0, 25});
  const auto of_class = bound(quotas, of(GroupOf::kJob), me);
  REQUIRE((step && other && of_class));
  CHECK(step->file != other->file);
  CHECK(step->file != of_class->file);
  CHECK(other->quota == kGiB / 2);
  CHECK(of_step("of job 12.0", {kGiB / 4, 0})->file == step->file);
  quotas.apply({});  // without classes: what has no quota is not shown
  CHECK(quotas.status().size() == 2);
  for (const auto& each : quotas.status()) {
    CHECK(each.value("class", "small").empty());
    CHECK((each["quota"] == kGiB / 4 || each["quota"] == kGiB / 2));
  }
}

TEST_CASE("what an ended process had is returned without a look at /proc, and others keep theirs") {
  daemon::MemoryQuotas quotas;
  const config::WorkloadClass together = of(GroupOf::kClass);
  const Member me{::getpid(), 1000, "", ""};
  const auto mine = bound(quotas, together, me);
  REQUIRE(mine);
  const auto ledger = vitamin::protocol::map_ledger(vitamin::protocol::Fd(::dup(mine->file)));
  REQUIRE(ledger);
  const auto charge = [&](std::uint64_t owner) {
    const auto none_dead = [](std::uint64_t) { return false; };
    (*ledger)->charge_unasked((*ledger)->claim(owner, none_dead), kGiB / 4);
  };
  charge(*quotas.enter(me, pidfd_of(me.process)));
  Child seen, hidden;
  for (const Member& member : {Member{seen.pid(), 1000, "", ""}, Member{0, 1000, "", ""}}) {
    // A process of another pid namespace has no id here.
    const auto owner =
        quotas.enter(member, pidfd_of(member.process == 0 ? hidden.pid() : seen.pid()));
    REQUIRE(owner);
    REQUIRE(quotas.bound(*owner, together, member, "GPU-1", 2 * kGiB));
    charge(*owner);
  }
  CHECK((*ledger)->add_up().used == 3 * (kGiB / 4));
  seen.kill();
  quotas.remove_ended();
  CHECK((*ledger)->add_up().used == 2 * (kGiB / 4));
  hidden.kill();
  quotas.remove_ended();
  CHECK((*ledger)->add_up().used == kGiB / 4);
  CHECK(quotas.status()[0]["processes"] == 1);
}

TEST_CASE("a process that cannot be seen enters once, however often it asks") {
  struct stat process {
  }, other{};
  const auto pidfd = pidfd_of(::getpid());
  const vitamin::protocol::Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  REQUIRE(::fstat(pidfd.get(), &process) == 0);
  REQUIRE(::fstat(epoll.get(), &other) == 0);
  if (process.st_dev == other.st_dev) return;  // before Linux 6.9 it is not known again
  daemon::MemoryQuotas quotas;
  const Member unseen{0, 1000, "", ""};
  Child first, second;
  const auto owner = [&](const Child& child) {
    return quotas.enter(unseen, pidfd_of(child.pid())).value();
  };
  const auto one = owner(first);
  const auto before = ::dup(0);
  for (int i = 0; i < 2000; ++i) REQUIRE(owner(first) == one);  // more than a user may have
  const auto after = ::dup(0);
  CHECK(after == before + 1);  // no descriptor was kept
  ::close(before);
  ::close(after);
  const auto another = owner(second);
  CHECK(another != one);
  first.kill();
  CHECK(owner(second) == another);
}

TEST_CASE("what a process was told of its quotas is known of each device, until it begins anew") {
  daemon::MemoryQuotas quotas;
  const auto me = vitamin::protocol::owner_of(::getpid());
  CHECK_FALSE(quotas.told_of(me, "GPU-1"));
  quotas.told_whether(::getpid(), true);
  CHECK_FALSE(quotas.told_of(me, "GPU-1"));  // it will ask
  quotas.told(::getpid(), "GPU-1", {"small"}, 1);
  REQUIRE(quotas.told_of(me, "GPU-1"));
  CHECK(quotas.told_of(me, "GPU-1")->classes == std::set<std::string>{"small"});
  CHECK(quotas.told_of(me, "GPU-1")->others == 1);
  CHECK_FALSE(quotas.told_of(me, "GPU-2"));
  quotas.told_whether(::getpid(), false);
  for (const char* const device : {"GPU-1", "GPU-2"}) {
    REQUIRE(quotas.told_of(me, device));
    CHECK(quotas.told_of(me, device)->classes.empty());
  }
}

TEST_CASE("a group ends with its last process") {
  daemon::MemoryQuotas quotas;
  for (int i = 0; i < 600; ++i) {  // more than there may be at once
    Child child;
    REQUIRE(bound(quotas, of(GroupOf::kProcess), {child.pid(), 1000, "", ""}));
    CHECK(quotas.status().size() == 1);
    child.kill();
  }
  CHECK(quotas.status().empty());
  Child child;
  const Member member{child.pid(), 1000, "", ""};
  auto pidfd = pidfd_of(child.pid());
  child.kill();
  CHECK_FALSE(quotas.enter(member, std::move(pidfd)));
}

// Processes that ask for quotas on as many devices as they may, each of a name of its own.
struct Askers {
  daemon::MemoryQuotas& quotas;
  int devices = 0;
  std::vector<std::unique_ptr<Child>> processes{};

  // Until one is refused for another reason than its own number: that reason.
  std::string ask(const Member& as) {
    for (;;) {
      processes.push_back(std::make_unique<Child>());
      Member member = as;
      member.process = processes.back()->pid();
      for (std::string why; why.find("one process") == why.npos;) {
        if (!why.empty()) return why;
        const std::string uuid = "GPU-" + std::to_string(devices);
        const auto one = bound(quotas, of(GroupOf::kUser), member, uuid.c_str());
        if (one)
          ++devices;
        else
          why = one.error().message;
        if (why.find("one process") != why.npos) break;
      }
    }
  }
};

TEST_CASE("a process is in so many groups at most") {
  daemon::MemoryQuotas quotas;
  const Member me{::getpid(), 0, "", ""};
  const auto ask = [&](std::size_t device) {
    return bound(quotas, of(GroupOf::kUser), me, ("GPU-" + std::to_string(device)).c_str());
  };
  for (std::size_t i = 0; i < daemon::MemoryQuotas::kGroupsOfProcess; ++i) REQUIRE(ask(i));
  const auto refused = ask(daemon::MemoryQuotas::kGroupsOfProcess);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "the process has as many memory quotas (64) as one process may");
  CHECK(ask(0));  // those that it has it keeps
  CHECK(bound(quotas, of(GroupOf::kUser), {::getppid(), 0, "", ""}, "GPU-real"));
}

TEST_CASE("a user has so many groups at most, which leaves room for other users and containers") {
  daemon::MemoryQuotas quotas;
  const auto begun = [&](const Member& as, const std::string& why) {
    const std::size_t before = quotas.status().size();
    Askers askers{quotas, static_cast<int>(before)};
    const std::string said = askers.ask(as);
    CHECK(said == (why.empty() ? "vitamind has as many memory quotas (1024) as it may"
                               : "user 0 has as many memory quotas " + why + " may"));
    const std::size_t now = quotas.status().size();
    // They stay.
    static std::vector<std::unique_ptr<Child>> all;
    for (auto& each : askers.processes) all.push_back(std::move(each));
    return now - before;
  };
  const char* const of_place = "(512) as one user in one job or container";
  CHECK(begun({0, 0, std::string(64, 'a'), ""}, of_place) == daemon::MemoryQuotas::kGroupsOfPlace);
  CHECK(begun({0, 0, "", "12"}, "(768) as one user") == 256);
  CHECK(begun({0, 1000, "", ""}, "") == 256);
  // A member of a group that there is needs no room.
  CHECK(bound(quotas, of(GroupOf::kUser), {::getppid(), 1000, "", ""}, "GPU-768"));
}

TEST_CASE("devices that a process made up take no room of those that the driver lists") {
  namespace fs = std::filesystem;
  std::string name = (fs::temp_directory_path() / "gpus-XXXXXX").native();
  const fs::path listing = ::mkdtemp(name.data());
  fs::create_directory(listing / "0000:01:00.0");
  std::ofstream(listing / "0000:01:00.0" / "information")
      << "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-real\nIRQ: 1\n";
  daemon::MemoryQuotas quotas(listing);
  Askers askers{quotas};
  askers.ask({0, 0, "", ""});
  CHECK(quotas.status().size() == daemon::MemoryQuotas::kGroupsOfPlace);
  const Member next{::getpid(), 0, "", ""};
  CHECK(bound(quotas, of(GroupOf::kUser), next, "GPU-real"));
  CHECK_FALSE(bound(quotas, of(GroupOf::kUser), next, "GPU-rea"));
  fs::remove_all(listing);
}

}  // namespace
