// SPDX-License-Identifier: Apache-2.0
#include "daemon/arbiter/memory_quotas.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "daemon/config/value.h"
#include "daemon/protocol/quota_file.h"
#include "hal/read_file.h"

namespace vitamin::daemon {

namespace {

// Whether there is room for one more of those that `counts` accepts. The error is a sentence for
// the user. `who`: "user 1000 has", `whom`: "one user".
template <class All, class Counts>
hal::Status room(const All& all, std::size_t most, const char* what, const std::string& who,
                 const char* whom, const Counts& counts) {
  const auto of_them = static_cast<std::size_t>(
      std::count_if(all.begin(), all.end(), [&](const auto& each) { return counts(each.second); }));
  if (of_them < most) return {};
  return hal::fail(hal::Errc::kUnavailable, who + " as many " + what + " (" +
                                                std::to_string(of_them) + ") as " + whom + " may");
}

const std::string& place_of(const Member& member) {
  return member.job.empty() ? member.container : member.job;
}

std::string user_has(std::uint32_t user) { return "user " + std::to_string(user) + " has"; }

// Whether these are totals that programs may have of one device: NVML's leaves out what the driver
// has for itself, or does not.
bool alike(std::uint64_t one, std::uint64_t other) {
  const std::uint64_t most = std::max(one, other);
  return most - std::min(one, other) <= most / 8;
}

std::uint64_t bytes_of(const config::MemoryBound& bound, std::uint64_t total) {
  if (bound.percent == 0) return bound.bytes;
  return total / 100 * bound.percent + total % 100 * bound.percent / 100;
}

std::uint64_t bytes_of(const std::string& memory, std::uint64_t total) {
  const auto bound = config::memory_bound(memory);
  return bound ? bytes_of(*bound, total) : total;
}

}  // namespace

struct MemoryQuotas::Group {
  std::string device, workload_class, whose;  // workload_class empty: of a step or claim
  std::uint64_t total = 0;
  std::uint32_t user = 0;  // of the first member
  std::string place{};     // of the first member
  bool listed = false;     // the device is
  bool bounded = true;     // its class may have lost its quota meanwhile
  std::size_t joined = 0;  // processes that were handed it and live
  protocol::Fd file{};
  protocol::MappedLedger ledger{};

  // Calls `visit` with the owner of each process that has a slot.
  template <class Visit>
  void for_each_owner(Visit visit) const {
    for (std::size_t i = 0; i < ledger->end(); ++i)
      if (const std::uint64_t owner = ledger->slot(i).owner.load(std::memory_order_relaxed))
        visit(owner);
  }
  std::size_t processes() const {
    std::size_t count = 0;
    for_each_owner([&](std::uint64_t) { ++count; });
    return count;
  }
  // What each process has: of which process, bytes.
  nlohmann::json members() const {
    nlohmann::json all = nlohmann::json::array();
    for_each_owner([&](std::uint64_t owner) {
      nlohmann::json member{{"process", protocol::process_of(owner)}};
      member["used"] = ledger->used_by(owner).value_or(0);
      all.push_back(std::move(member));
    });
    return all;
  }
};

MemoryQuotas::MemoryQuotas(std::string listing)
    : listing_(std::move(listing)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}
MemoryQuotas::~MemoryQuotas() = default;

// --- members -------------------------------------------------------------------------------------

hal::Result<std::uint64_t> MemoryQuotas::enter(const Member& member, protocol::Fd pidfd) {
  remove_ended();
  std::uint64_t owner = protocol::owner_of(member.process);
  // Its number may have been another process's by then.
  pollfd ended{pidfd.get(), POLLIN, 0};
  if (::poll(&ended, 1, 0) != 0) return hal::fail(hal::Errc::kUnavailable, "the process has ended");
  const std::uint64_t inode = inode_of(pidfd);
  if (owner == 0) owner = unseen_owner(inode);
  if (const auto known = processes_.find(owner); known != processes_.end()) {
    known->second.user = member.user;  // it may have changed its user
    known->second.place = place_of(member);
    return owner;
  }
  constexpr const char* kWhat = "processes with a memory quota";
  if (auto may = room(processes_, kProcessesOfUser, kWhat, user_has(member.user), "one user",
                      [&](const Process& process) { return process.user == member.user; });
      !may)
    return tl::unexpected(may.error());
  if (auto may = room(processes_, kProcesses, kWhat, "vitamind has", "it",
                      [](const Process&) { return true; });
      !may)
    return tl::unexpected(may.error());
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = owner;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pidfd.get(), &event) != 0)
    return hal::fail(hal::Errc::kUnavailable, "the end of the process cannot be watched", errno);
  processes_[owner] = {std::move(pidfd), member.user, place_of(member), {}, inode};
  return owner;
}

// Since Linux 6.9 each process has one inode for its pidfds, which no other process gets. Before,
// all descriptors without a file shared one: that of the epoll descriptor.
std::uint64_t MemoryQuotas::inode_of(const protocol::Fd& pidfd) const {
  struct stat process {
  }, other{};
  if (::fstat(pidfd.get(), &process) != 0 || ::fstat(epoll_.get(), &other) != 0) return 0;
  return process.st_dev != other.st_dev ? process.st_ino : 0;
}

// A process that cannot be seen has the number that it was given first, where it is known again.
std::uint64_t MemoryQuotas::unseen_owner(std::uint64_t inode) {
  if (inode != 0)
    for (const auto& [owner, process] : processes_)
      if (process.inode == inode) return owner;
  return protocol::unseen_owner(++unseen_);
}

void MemoryQuotas::remove_ended() {
  std::array<epoll_event, 64> events;
  int count = 0;
  do {
    count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    for (int i = 0; i < count; ++i) remove(events[static_cast<std::size_t>(i)].data.u64);
  } while (count == static_cast<int>(events.size()));
}

void MemoryQuotas::remove(std::uint64_t owner) {
  const auto process = processes_.find(owner);
  for (const std::string& key : process->second.groups) {
    const auto of = groups_.find(key);
    if (const auto peak = of->second->ledger->peak_of(owner))
      ended_.push_back({owner, of->second->device, *peak});
    of->second->ledger->release(owner);
    if (--of->second->joined == 0) groups_.erase(of);
  }
  // A forked child may have the descriptor for a moment, so that closing it does not end the watch.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, process->second.pidfd.get(), nullptr);
  processes_.erase(process);
  while (ended_.size() > kEnded) ended_.pop_front();
}

// --- groups --------------------------------------------------------------------------------------

hal::Result<MemoryQuotas::Bound> MemoryQuotas::bound(std::uint64_t owner,
                                                     const config::WorkloadClass& workload,
                                                     const Member& member, const std::string& uuid,
                                                     std::uint64_t total) {
  std::string whose = group_name(workload.memory_of, workload, member);
  std::string prefix = workload.name + '\n' + whose + '\n' + uuid + '\n';
  // A later process may have the same id.
  if (workload.memory_of == config::GroupOf::kProcess) prefix += std::to_string(owner) + '\n';
  return bound(owner, prefix, {uuid, workload.name, std::move(whose), total},
               config::memory_bound(workload.memory).value_or(config::MemoryBound{0, 100}));
}

hal::Result<MemoryQuotas::Bound> MemoryQuotas::bound(std::uint64_t owner, const std::string& whose,
                                                     const config::MemoryBound& memory,
                                                     const std::string& uuid, std::uint64_t total) {
  // No class has an empty name.
  return bound(owner, '\n' + whose + '\n' + uuid + '\n', {uuid, "", whose, total}, memory);
}

// Keys are a prefix and the total that the group's first member said. A quota in bytes needs no
// total, so one ledger serves all.
std::string MemoryQuotas::key_of(const std::string& prefix, std::uint64_t total,
                                 bool percent) const {
  std::string any;
  for (auto it = groups_.lower_bound(prefix); it != groups_.end() && it->first.starts_with(prefix);
       ++it) {
    if (alike(it->second->total, total)) return it->first;
    if (any.empty()) any = it->first;
  }
  return percent || any.empty() ? prefix + std::to_string(total) : any;
}

hal::Result<MemoryQuotas::Bound> MemoryQuotas::bound(std::uint64_t owner, const std::string& prefix,
                                                     Group about,
                                                     const config::MemoryBound& memory) {
  remove_ended();
  const auto process = processes_.find(owner);
  if (process == processes_.end())
    return hal::fail(hal::Errc::kUnavailable, "the process has ended");
  about.user = process->second.user;
  about.place = process->second.place;
  std::set<std::string>& joined = process->second.groups;
  // What a process said of a device first stays: it gets no ledgers by other totals.
  const auto had = joined.lower_bound(prefix);
  std::string key = had != joined.end() && had->starts_with(prefix)
                        ? *had
                        : key_of(prefix, about.total, memory.percent != 0);
  const auto known = groups_.find(key);
  if (!joined.contains(key) && joined.size() >= kGroupsOfProcess)
    return hal::fail(hal::Errc::kUnavailable, "the process has as many memory quotas (" +
                                                  std::to_string(joined.size()) +
                                                  ") as one process may");
  const auto group = known != groups_.end() ? hal::Result<Group*>(known->second.get())
                                            : begin_group(key, std::move(about));
  if (!group) return tl::unexpected(group.error());
  if (joined.insert(std::move(key)).second) ++(*group)->joined;
  const std::uint64_t quota = bytes_of(memory, (*group)->total);
  (*group)->ledger->set_quota(quota);
  (*group)->bounded = true;
  return Bound{(*group)->file.get(), quota, (*group)->whose};
}

bool MemoryQuotas::lists(const std::string& uuid) const {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(listing_, none)) {
    std::istringstream words(hal::read_file(entry.path() / "information").value_or(""));
    for (std::string word; words >> word;)
      if (word == uuid) return true;
  }
  return false;
}

hal::Status MemoryQuotas::room_for(const Group& group) const {
  constexpr const char* kWhat = "memory quotas";
  const std::string has = user_has(group.user);
  const auto of_user = [&](const auto& each) {
    return each->listed == group.listed && each->user == group.user;
  };
  if (auto may =
          room(groups_, kGroupsOfPlace, kWhat, has, "one user in one job or container",
               [&](const auto& each) { return of_user(each) && each->place == group.place; });
      !may)
    return may;
  if (auto may = room(groups_, kGroupsOfUser, kWhat, has, "one user", of_user); !may) return may;
  return room(groups_, kGroups, kWhat, "vitamind has", "it",
              [&](const auto& each) { return each->listed == group.listed; });
}

hal::Result<MemoryQuotas::Group*> MemoryQuotas::begin_group(std::string key, Group about) {
  about.listed = lists(about.device);
  if (auto may = room_for(about); !may) return tl::unexpected(may.error());
  auto file = protocol::new_ledger();
  if (!file) return tl::unexpected(file.error());
  auto ledger = protocol::map_ledger(*file);
  if (!ledger) return tl::unexpected(ledger.error());
  const protocol::DeadOwners here(**ledger);  // owners are ids of this pid namespace
  auto group = std::make_unique<Group>(std::move(about));
  group->file = std::move(*file);
  group->ledger = std::move(*ledger);
  return groups_.emplace(std::move(key), std::move(group)).first->second.get();
}

// --- what processes were told --------------------------------------------------------------------

// Null: it cannot be seen. Forgets the process that asked first where there are too many.
MemoryQuotas::Asked* MemoryQuotas::asked_by(std::int32_t process) {
  const std::uint64_t owner = protocol::owner_of(process);
  if (owner == 0) return nullptr;
  const auto known = asked_.find(owner);
  if (known != asked_.end()) return &known->second;
  if (asked_.size() >= kProcesses)
    asked_.erase(std::min_element(asked_.begin(), asked_.end(), [](const auto& a, const auto& b) {
      return a.second.number < b.second.number;
    }));
  Asked& asked = asked_[owner];
  asked.number = ++asked_before_;
  return &asked;
}

void MemoryQuotas::told_whether(std::int32_t process, bool some) {
  // It begins anew: it may be another program by now.
  if (Asked* const asked = asked_by(process)) {
    asked->none = !some;
    asked->devices.clear();
  }
}

void MemoryQuotas::told(std::int32_t process, const std::string& uuid,
                        std::set<std::string> classes, std::size_t others) {
  Asked* const asked = asked_by(process);
  if (asked == nullptr) return;
  asked->none = false;
  if (asked->devices.size() < kGroupsOfProcess || asked->devices.contains(uuid))
    asked->devices[uuid] = {std::move(classes), others};
}

std::optional<MemoryQuotas::Told> MemoryQuotas::told_of(std::uint64_t owner,
                                                        const std::string& uuid) const {
  const auto asked = asked_.find(owner);
  if (asked == asked_.end()) return std::nullopt;
  const auto device = asked->second.devices.find(uuid);
  if (device != asked->second.devices.end()) return device->second;
  return asked->second.none ? std::optional(Told{}) : std::nullopt;
}

void MemoryQuotas::apply(const config::Configuration& configuration) {
  for (auto& [key, group] : groups_) {
    if (group->workload_class.empty()) continue;  // of a step or claim
    const config::WorkloadClass* const workload = configuration.find_class(group->workload_class);
    // A class that was removed bounds no client.
    group->bounded = workload != nullptr && !workload->memory.empty();
    group->ledger->set_quota(group->bounded ? bytes_of(workload->memory, group->total)
                                            : protocol::kMostBytes);
  }
}

nlohmann::json MemoryQuotas::status() {
  remove_ended();
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [key, group] : groups_) {
    if (!group->bounded) continue;
    all.push_back({{"device", group->device},
                   {"class", group->workload_class},
                   {"whose", group->whose},
                   {"quota", group->ledger->quota()},
                   {"used", group->ledger->add_up().used},
                   {"processes", group->processes()},
                   {"members", group->members()}});
  }
  return all;
}

template <class Visit>
void MemoryQuotas::for_each_group(std::uint64_t owner, const std::string& uuid, Visit visit) const {
  const auto process = processes_.find(owner);
  if (process == processes_.end()) return;
  for (const std::string& key : process->second.groups)
    if (const Group& group = *groups_.at(key); group.device == uuid) visit(group);
}

// It has the same in each ledger.
std::optional<std::uint64_t> MemoryQuotas::used_by(std::uint64_t owner,
                                                   const std::string& uuid) const {
  std::optional<std::uint64_t> used;
  for_each_group(owner, uuid,
                 [&](const Group& group) { used = std::max(used, group.ledger->used_by(owner)); });
  return used;
}

std::optional<std::uint64_t> MemoryQuotas::peak_of(std::uint64_t owner,
                                                   const std::string& uuid) const {
  std::optional<std::uint64_t> peak;
  for_each_group(owner, uuid,
                 [&](const Group& group) { peak = std::max(peak, group.ledger->peak_of(owner)); });
  for (const Ended& ended : ended_)
    if (ended.owner == owner && ended.uuid == uuid)
      peak = std::max(peak, std::optional(ended.peak));
  return peak;
}

std::map<std::pair<std::string, std::string>, MemoryQuotas::Sum> MemoryQuotas::sums() {
  remove_ended();
  std::map<std::pair<std::string, std::string>, Sum> all;
  for (const auto& [key, group] : groups_) {
    if (!group->bounded) continue;
    Sum& sum = all[{group->device, group->workload_class}];
    sum.quota += group->ledger->quota();
    sum.used += group->ledger->add_up().used;
  }
  return all;
}

}  // namespace vitamin::daemon
