// SPDX-License-Identifier: Apache-2.0
#include "daemon/arbiter/memory_quotas.h"

#include <nlohmann/json.hpp>

#include "daemon/config/value.h"
#include "daemon/protocol/quota_file.h"

namespace vitamin::daemon {

namespace {

constexpr std::size_t kMostGroups = 512;  // each has a descriptor
// How long a group without processes is kept: a process that was told of a ledger may not have used
// it yet.
constexpr std::uint64_t kToCome = 60'000'000'000;

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
  std::uint64_t handed_ns = 0;  // when it was last handed to a process
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

MemoryQuotas::MemoryQuotas() = default;
MemoryQuotas::~MemoryQuotas() = default;

std::uint64_t MemoryQuotas::owner(const Member& member) {
  return protocol::owner_of(member.process);
}

hal::Result<MemoryQuotas::Bound> MemoryQuotas::bound(const config::WorkloadClass& workload,
                                                     const Member& member, const std::string& uuid,
                                                     std::uint64_t total, std::uint64_t now_ns) {
  std::string whose = group_name(workload.memory_of, workload, member);
  std::string key = workload.name + '\n' + whose + '\n' + uuid;
  // A later process may have the same id.
  if (workload.memory_of == config::GroupOf::kProcess) key += std::to_string(owner(member));
  return bound(std::move(key), {uuid, workload.name, std::move(whose), total},
               bytes_of(workload.memory, total), now_ns);
}

hal::Result<MemoryQuotas::Bound> MemoryQuotas::bound(const std::string& whose,
                                                     const config::MemoryBound& memory,
                                                     const std::string& uuid, std::uint64_t total,
                                                     std::uint64_t now_ns) {
  // No class has an empty name.
  return bound('\n' + whose + '\n' + uuid, {uuid, "", whose, total}, bytes_of(memory, total),
               now_ns);
}

hal::Result<MemoryQuotas::Bound> MemoryQuotas::bound(std::string key, Group about,
                                                     std::uint64_t quota, std::uint64_t now_ns) {
  auto found = groups_.find(key);
  if (found == groups_.end()) {
    if (groups_.size() >= kMostGroups) look_after(now_ns);
    if (groups_.size() >= kMostGroups)
      return hal::fail(hal::Errc::kUnavailable, "vitamind keeps as many quotas as it may");
    auto file = protocol::new_ledger();
    if (!file) return tl::unexpected(file.error());
    auto ledger = protocol::map_ledger(*file);
    if (!ledger) return tl::unexpected(ledger.error());
    const protocol::DeadOwners here(**ledger);  // owners are ids of this pid namespace
    auto group = std::make_unique<Group>(std::move(about));
    group->file = std::move(*file);
    group->ledger = std::move(*ledger);
    found = groups_.emplace(std::move(key), std::move(group)).first;
  }
  Group& group = *found->second;
  group.handed_ns = now_ns;
  group.ledger->set_quota(quota);
  return Bound{group.file.get(), quota, group.whose};
}

void MemoryQuotas::apply(const config::Configuration& configuration) {
  for (auto& [key, group] : groups_) {
    if (group->workload_class.empty()) continue;  // of a step or claim
    const config::WorkloadClass* const workload = configuration.find_class(group->workload_class);
    // A class that was removed bounds no client.
    group->ledger->set_quota(workload != nullptr && !workload->memory.empty()
                                 ? bytes_of(workload->memory, group->total)
                                 : protocol::kMostBytes);
  }
}

void MemoryQuotas::look_after(std::uint64_t now_ns) {
  std::erase_if(groups_, [&](const auto& each) {
    Group& group = *each.second;
    group.ledger->return_dead(protocol::DeadOwners(*group.ledger));
    return group.processes() == 0 && now_ns - group.handed_ns > kToCome;
  });
}

nlohmann::json MemoryQuotas::status(std::uint64_t now_ns) {
  look_after(now_ns);
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [key, group] : groups_)
    all.push_back({{"device", group->device},
                   {"class", group->workload_class},
                   {"whose", group->whose},
                   {"quota", group->ledger->quota()},
                   {"used", group->ledger->add_up().used},
                   {"processes", group->processes()},
                   {"members", group->members()}});
  return all;
}

std::optional<std::uint64_t> MemoryQuotas::used_by(std::int32_t process,
                                                   const std::string& uuid) const {
  std::optional<std::uint64_t> used;
  const std::uint64_t owner = groups_.empty() ? 0 : protocol::owner_of(process);
  for (const auto& [key, group] : groups_)
    if (owner != 0 && group->device == uuid)
      used = std::max(used, group->ledger->used_by(owner));  // it has the same in each ledger
  return used;
}

std::map<std::pair<std::string, std::string>, MemoryQuotas::Sum> MemoryQuotas::sums(
    std::uint64_t now_ns) {
  look_after(now_ns);
  std::map<std::pair<std::string, std::string>, Sum> all;
  for (const auto& [key, group] : groups_) {
    Sum& sum = all[{group->device, group->workload_class}];
    sum.quota += group->ledger->quota();
    sum.used += group->ledger->add_up().used;
  }
  return all;
}

}  // namespace vitamin::daemon
