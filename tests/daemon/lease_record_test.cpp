// SPDX-License-Identifier: Apache-2.0
//
// The record of leases that a daemon leaves for the next one, however the daemon has ended and
// whatever has happened to the file.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "daemon/arbiter/lease_record.h"

namespace vitamin::daemon {
namespace {

using runtime::PartitionId;

constexpr std::uint64_t kSecond = 1'000'000'000, kBelieved = 60 * kSecond;
constexpr ProcessIdentity kOne{40, 7}, kOther{41, 7}, kLater{40, 8};

class Directory {
 public:
  Directory() {
    char name[] = "/tmp/vitamin-record-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string file() const { return path_ + "/s.leases"; }
  std::string path() const { return path_; }

 private:
  std::string path_;
};

LeaseRecord open(const Directory& directory, std::uint64_t now_ns, std::size_t sessions = 4) {
  std::string problem;
  LeaseRecord record = LeaseRecord::at(directory.file(), sessions, now_ns, kBelieved, problem);
  CHECK(problem.empty());
  return record;
}

using Partitions = std::vector<PartitionId>;

}  // namespace

TEST_CASE("the next daemon knows what each process held, and its fallback partition") {
  const Directory directory;
  {
    LeaseRecord record = open(directory, kSecond);
    const std::size_t slot = record.begin(kOne, 5, 3);
    record.holds(slot, 9, true);
    record.holds(slot, 511, true);
    record.holds(slot, 12, true);
    record.holds(slot, 12, false);
    const std::size_t gone = record.begin(kOther, 5, 4);
    record.holds(gone, 20, true);
    record.end(gone);
  }
  LeaseRecord next = open(directory, 2 * kSecond);
  CHECK(next.absent(5) == std::vector{kOne});
  CHECK(next.absent(6).empty());
  next.begin(kOne, 6, 3);  // on another device
  CHECK(next.absent(5) == std::vector{kOne});
  next.begin(kOne, 5, 3);
  CHECK(next.absent(5).empty());
  CHECK(next.before(kOne, 5) == Partitions{3, 9, 511});
  CHECK(next.believed_until() == 62 * kSecond);
  CHECK(next.before(kOne, 6).empty());    // another device or another pool
  CHECK(next.before(kOther, 5).empty());  // its session had ended
  CHECK(next.before(kLater, 5).empty());  // another process of the same id
  CHECK(next.before({}, 5).empty());
}

TEST_CASE(
    "what a process has reported to its daemon no longer counts for that and the next daemon") {
  const Directory directory;
  {
    LeaseRecord record = open(directory, kSecond);
    record.holds(record.begin(kOne, 5, 3), 9, true);
    record.holds(record.begin(kOther, 5, 4), 8, true);
  }
  {
    LeaseRecord record = open(directory, 2 * kSecond);
    const std::size_t slot = record.begin(kOne, 5, 2);
    record.reported(kOne, 6);
    CHECK(record.before(kOne, 5) == Partitions{3, 9});
    record.reported(kOne, 5);
    CHECK(record.before(kOne, 5).empty());
    CHECK(record.before(kOther, 5) == Partitions{4, 8});
    record.holds(slot, 10, true);
  }
  const LeaseRecord next = open(directory, 3 * kSecond);
  CHECK(next.before(kOne, 5) == Partitions{2, 10});
  CHECK(next.before(kOther, 5) == Partitions{4, 8});
}

TEST_CASE("the next daemon knows the whole device as a lease, not as a fallback partition") {
  const Directory directory;
  {
    LeaseRecord record = open(directory, kSecond);
    record.holds(record.begin(kOne, 5, runtime::kWholeDevice), runtime::kWholeDevice, true);
    static_cast<void>(record.begin(kOther, 5, runtime::kWholeDevice));
  }
  const LeaseRecord next = open(directory, 2 * kSecond);
  CHECK(next.before(kOne, 5) == Partitions{runtime::kWholeDevice});
  CHECK(next.before(kOther, 5).empty());
}

TEST_CASE("what a former daemon's clients held outlives one short-lived daemon and no other") {
  const Directory directory;
  {
    LeaseRecord record = open(directory, kSecond);
    record.holds(record.begin(kOne, 5, 3), 9, true);
  }
  { LeaseRecord soon = open(directory, 2 * kSecond); }
  {
    LeaseRecord again = open(directory, 2 * kSecond + kBelieved - 1);
    CHECK(again.before(kOne, 5) == Partitions{3, 9});
    // It reconnects and has another fallback partition now.
    again.begin(kOne, 5, 4);
  }
  const LeaseRecord late = open(directory, 3 * kSecond + 2 * kBelieved);
  CHECK(late.before(kOne, 5) == Partitions{4});
}

TEST_CASE("a daemon that is killed between any two instructions leaves a correct record") {
  const Directory directory;
  int begun[2];
  REQUIRE(::pipe(begun) == 0);
  const pid_t daemon = ::fork();
  if (daemon == 0) {
    std::string problem;
    LeaseRecord record = LeaseRecord::at(directory.file(), 4, kSecond, kBelieved, problem);
    const std::size_t slot = record.begin(kOne, 5, 3);
    record.holds(slot, 9, true);
    for (PartitionId partition = 10;; partition = partition == 100 ? 10 : partition + 1) {
      record.holds(slot, partition, true);
      record.holds(slot, partition, false);
      record.end(record.begin(kOther, 5, partition));
      if (partition == 100) (void)!::write(begun[1], "", 1);
    }
  }
  char byte;
  REQUIRE(::read(begun[0], &byte, 1) == 1);
  ::close(begun[0]), ::close(begun[1]);
  ::usleep(5'000);
  ::kill(daemon, SIGKILL);
  ::waitpid(daemon, nullptr, 0);
  const LeaseRecord next = open(directory, 2 * kSecond);
  const Partitions had = next.before(kOne, 5);
  CHECK(had.size() >= 2);
  CHECK(had.size() <= 3);
  CHECK(had[0] == 3);
  CHECK(had[1] == 9);
  CHECK(next.before(kOther, 5).size() <= 1);
}

TEST_CASE("closing removes the file unless it names a process that still runs") {
  const Directory directory;
  SUBCASE("it never had a session") {
    LeaseRecord record = open(directory, kSecond);
    record.end(record.begin(kOne, 5, 3));
    record.close(2 * kSecond);
    CHECK(std::filesystem::is_empty(directory.path()));
  }
  SUBCASE("a process still runs") {
    const ProcessIdentity self = identity_of(::getpid());
    LeaseRecord record = open(directory, kSecond);
    record.begin(self, 5, 3);
    record.close(2 * kSecond);
    CHECK(open(directory, 3 * kSecond).before(self, 5) == Partitions{3});
  }
  SUBCASE("its process has ended") {
    LeaseRecord record = open(directory, kSecond);
    record.begin({static_cast<std::uint64_t>(::getpid()), 1}, 5, 3);
    record.close(2 * kSecond);
    CHECK(std::filesystem::is_empty(directory.path()));
  }
  SUBCASE("another daemon has the path now") {
    LeaseRecord record = open(directory, kSecond);
    LeaseRecord other = open(directory, kSecond);
    record.close(2 * kSecond);
    CHECK(std::filesystem::exists(directory.file()));
    other.close(2 * kSecond);
    CHECK(std::filesystem::is_empty(directory.path()));
  }
}

TEST_CASE("a damaged file, or one that is not the user's own, is ignored") {
  const Directory directory;
  const auto write = [&](const std::string& bytes) {
    std::filesystem::remove(directory.file());
    std::ofstream(directory.file(), std::ios::binary) << bytes;
  };
  std::string good;
  {
    LeaseRecord record = open(directory, kSecond);
    record.begin(kOne, 5, 3);
    std::ifstream file(directory.file(), std::ios::binary);
    good.assign((std::istreambuf_iterator<char>(file)), {});
  }
  write(good);
  CHECK(open(directory, 2 * kSecond).before(kOne, 5) == Partitions{3});
  SUBCASE("cut") {
    for (std::size_t size = 0; size < good.size(); size += 37) {
      write(good.substr(0, size));
      CHECK(open(directory, 2 * kSecond).before(kOne, 5).empty());
    }
  }
  SUBCASE("scribbled over") {
    for (std::size_t at = 0; at < 128; ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0xff);
      write(bad);
      static_cast<void>(open(directory, 2 * kSecond));
    }
    write(std::string(5000, '\xff'));
    CHECK(open(directory, 2 * kSecond).before(kOne, 5).empty());
  }
  SUBCASE("others may write it") {
    write(good);
    ::chmod(directory.file().c_str(), 0666);
    CHECK(open(directory, 2 * kSecond).before(kOne, 5).empty());
  }
  SUBCASE("a link") {
    std::filesystem::rename(directory.file(), directory.path() + "/elsewhere");
    std::filesystem::create_symlink("elsewhere", directory.file());
    CHECK(open(directory, 2 * kSecond).before(kOne, 5).empty());
  }
  SUBCASE("from before the machine was restarted") {
    write(good);
    CHECK(open(directory, kSecond - 1).before(kOne, 5).empty());
  }
}

TEST_CASE("without a file the daemon runs and accepts what the former one recorded") {
  const Directory directory;
  {
    LeaseRecord record = open(directory, kSecond);
    record.begin(kOne, 5, 3);
  }
  std::filesystem::create_directory(directory.file() + ".new");  // in the place of the new file
  std::string problem;
  LeaseRecord record = LeaseRecord::at(directory.file(), 4, 2 * kSecond, kBelieved, problem);
  CHECK(problem.find(directory.file()) != std::string::npos);
  CHECK(record.before(kOne, 5) == Partitions{3});
  CHECK(record.believed_until() == 62 * kSecond);
  const std::size_t slot = record.begin(kOne, 5, 3);
  CHECK(slot == LeaseRecord::kNoSlot);
  record.holds(slot, 9, true);
  record.end(slot);
  record.close(3 * kSecond);
  CHECK_FALSE(std::filesystem::exists(directory.file()));  // it would not be updated
}

TEST_CASE("sessions beyond the room of the record are not recorded and do no harm") {
  const Directory directory;
  LeaseRecord record = open(directory, kSecond, 2);
  const std::size_t a = record.begin(kOne, 5, 3), b = record.begin(kOther, 5, 4);
  CHECK(record.begin(kLater, 5, 5) == LeaseRecord::kNoSlot);
  record.end(a);
  CHECK(record.begin(kLater, 5, 5) == a);
  record.holds(b, 1, true);
  CHECK(LeaseRecord(2, 2 * kSecond, kBelieved, &record).before(kOther, 5) == Partitions{1, 4});
}

TEST_CASE("a process is identified by its id and start time, and one that has ended is not") {
  const ProcessIdentity self = identity_of(::getpid());
  CHECK(self);
  CHECK(self == identity_of(::getpid()));
  const pid_t child = ::fork();
  if (child == 0) ::pause();
  CHECK(identity_of(child));
  CHECK_FALSE(identity_of(child) == self);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_FALSE(identity_of(child));
  CHECK_FALSE(identity_of(0));
}

}  // namespace vitamin::daemon
