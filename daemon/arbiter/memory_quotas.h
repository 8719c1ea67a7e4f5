// SPDX-License-Identifier: Apache-2.0
//
// Quotas of device memory: of vitamin.toml's classes, of Slurm steps and of Kubernetes claims that
// have one (daemon/jobs). For each group and device there is a ledger
// (daemon/protocol/quota_ledger.h), in shared memory, in which the group's processes count their
// memory themselves.
//
// A process is a member of a group from when it asks for its quotas until it ends. The daemon holds
// its pidfd, so the end is known at once, whatever ended it and in whatever pid namespace it was:
//
//   * A charge is returned when its process frees the memory or ends.
//   * A group, with its ledger, ends with its last member.
//
// A process says itself how much memory its device has, and a percentage is of that. So a group has
// a ledger for each total, but for small differences, and a process keeps its first one: no process
// changes the quota of others by what it says.
//
// The number of groups and of members is bounded: for all users, for each one, for each job or
// container of a user, and for each process. A process says itself on which device it is, so groups
// on devices that NVIDIA's driver lists have bounds of their own: no device that a process made up
// takes their room. (MIG devices and AMD's are not listed.)
//
// Every member can write its ledger, so quotas bind cooperating programs only. The daemon's end
// drops its ledgers: clients go on with theirs, and processes that start later get new ones.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>

#include "daemon/config/configuration.h"
#include "daemon/config/value.h"
#include "daemon/jobs/groups.h"
#include "daemon/protocol/fd.h"
#include "hal/result.h"

namespace vitamin::daemon {

class MemoryQuotas {
 public:
  // Each has a descriptor. A group counts for its first member's user and job or container. Of all,
  // of a user, and of a user in one job or container: on listed devices, and as many on others.
  static constexpr std::size_t kGroups = 1024, kGroupsOfUser = 768, kGroupsOfPlace = 512;
  static constexpr std::size_t kGroupsOfProcess = 64;
  static constexpr std::size_t kProcesses = 4096, kProcessesOfUser = 1024;
  static constexpr std::size_t kEnded = 1024;

  // `listing`: the directory in which NVIDIA's driver lists its devices.
  explicit MemoryQuotas(std::string listing = "/proc/driver/nvidia/gpus");
  ~MemoryQuotas();

  // A process that asks for its quotas: its owner number in ledgers. `pidfd`: of the member's
  // process. The error is a sentence for the user.
  hal::Result<std::uint64_t> enter(const Member& member, protocol::Fd pidfd);

  struct Bound {
    int file = -1;            // the ledger's descriptor, owned by this object
    std::uint64_t quota = 0;  // bytes
    std::string whose;        // "of user 1000"
  };
  // The quota that the class sets for the group of the member, which entered as `owner`, on a
  // device that it says has `total` bytes. The class has a memory quota.
  hal::Result<Bound> bound(std::uint64_t owner, const config::WorkloadClass& workload,
                           const Member& member, const std::string& uuid, std::uint64_t total);
  // The quota of a step or claim; `whose`: "of job 12.0".
  hal::Result<Bound> bound(std::uint64_t owner, const std::string& whose,
                           const config::MemoryBound& memory, const std::string& uuid,
                           std::uint64_t total);
  // Remembers what a process was told: whether there are quotas at all, and which of its classes
  // bound it on a device, beside `others` quotas of no class. Of the last kProcesses processes;
  // nothing of one that cannot be seen.
  void told_whether(std::int32_t process, bool some);
  void told(std::int32_t process, const std::string& uuid, std::set<std::string> classes,
            std::size_t others);
  // What a process was told of the device; empty: it has not asked yet.
  struct Told {
    std::set<std::string> classes;
    std::size_t others = 0;
  };
  std::optional<Told> told_of(std::uint64_t owner, const std::string& uuid) const;
  // Applies the classes' quotas of another configuration.
  void apply(const config::Configuration& configuration);

  // Readable when a member has ended: then call remove_ended(). Below 0: there is none.
  int descriptor() const { return epoll_.get(); }
  // All functions that tell or hand out call it first.
  void remove_ended();

  // What each group that has a quota has.
  nlohmann::json status();
  struct Sum {
    std::uint64_t quota = 0, used = 0;
  };
  // Sums of these by device and class; class "": all steps and claims.
  std::map<std::pair<std::string, std::string>, Sum> sums();

  // Bytes that a process has of the device, and the most that it had, by its owner number; empty:
  // it is in no ledger there. The most is known of the last kEnded processes that ended, too.
  std::optional<std::uint64_t> used_by(std::uint64_t owner, const std::string& uuid) const;
  std::optional<std::uint64_t> peak_of(std::uint64_t owner, const std::string& uuid) const;

 private:
  struct Group;
  struct Process {
    protocol::Fd pidfd;
    std::uint32_t user = 0;
    std::string place;             // its job, else its container; empty: none
    std::set<std::string> groups;  // keys in groups_
    std::uint64_t inode = 0;       // of its pidfd; 0: it has none of its own
  };
  hal::Result<Bound> bound(std::uint64_t owner, const std::string& prefix, Group about,
                           const config::MemoryBound& memory);
  std::string key_of(const std::string& prefix, std::uint64_t total, bool percent) const;
  std::uint64_t inode_of(const protocol::Fd& pidfd) const;
  std::uint64_t unseen_owner(std::uint64_t inode);
  bool lists(const std::string& uuid) const;
  hal::Status room_for(const Group& group) const;
  hal::Result<Group*> begin_group(std::string key, Group about);
  // Visits the groups of the device of which the process is a member.
  template <class Visit>
  void for_each_group(std::uint64_t owner, const std::string& uuid, Visit visit) const;
  void remove(std::uint64_t owner);

  std::string listing_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
  std::map<std::uint64_t, Process> processes_;  // by owner number
  struct Ended {
    std::uint64_t owner;
    std::string uuid;
    std::uint64_t peak;
  };
  std::deque<Ended> ended_;  // the newest last
  struct Asked {
    std::uint64_t number = 0;  // in the order in which processes asked first
    bool none = false;         // it was told that there is no quota: it does not ask again
    std::map<std::string, Told> devices;
  };
  Asked* asked_by(std::int32_t process);
  std::map<std::uint64_t, Asked> asked_;  // by owner number
  std::uint64_t asked_before_ = 0;
  protocol::Fd epoll_;        // of their pidfds
  std::uint64_t unseen_ = 0;  // processes whose owner number was invented
};

}  // namespace vitamin::daemon
