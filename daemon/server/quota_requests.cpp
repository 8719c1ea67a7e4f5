// SPDX-License-Identifier: Apache-2.0
//
// Answers processes that ask for their quotas of device memory.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "daemon/log.h"
#include "daemon/metrics/prometheus_text.h"
#include "daemon/protocol/answer.h"
#include "daemon/server/server.h"
#include "runtime/problem.h"

namespace vitamin::daemon {

namespace {

constexpr std::size_t kMostQuotas = 4;  // of one process on a device: the files of one message

// A UUID or PCI address. A process may say any text, which becomes a key and a label.
bool names_device(const std::string& uuid) {
  constexpr std::size_t kLongest = 64;
  return uuid.size() <= kLongest && std::all_of(uuid.begin(), uuid.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == ':' || c == '.';
         });
}

}  // namespace

bool Server::bounds_memory() const {
  const auto& classes = settings_.configuration.classes;
  return jobs_.bounds_memory() || claims_.bounds_memory() ||
         std::any_of(classes.begin(), classes.end(),
                     [](const config::WorkloadClass& each) { return !each.memory.empty(); });
}

// "memory-quotas" asks whether there are any. "memory-quotas UUID BYTES CLASS PROGRAM" asks for
// those of the sender on a device with BYTES of memory; CLASS "-": it names none.
void Server::answer_memory_quotas(Connection& client, const std::string& verb) {
  std::istringstream words(verb);
  std::string name, uuid, said, program;
  std::uint64_t total = 0;
  words >> name >> uuid;
  hal::Status sent;
  if (uuid.empty()) {
    memory_quotas_.told_whether(client.peer.pid, bounds_memory());
    sent = protocol::send_answer(client.socket, bounds_memory() ? "some" : "none");
  } else {
    words >> total >> said >> std::ws;
    std::getline(words, program);
    sent = send_quotas(client, uuid, total, said == "-" ? "" : said, program);
  }
  // The client asks again: one line is enough.
  if (!sent && !quotas_failed_)
    log::warn("process {} of user {} gets no memory quotas: {}", client.peer.pid, client.peer.uid,
              sent.error().message);
  if (!sent) pending_->refuse(client, sent.error().message);
  quotas_failed_ = !sent;
}

// The classes whose groups bound the process's memory.
std::vector<const config::WorkloadClass*> Server::memory_classes(
    const config::WorkloadClass* workload, const protocol::Peer& peer) {
  std::vector<const config::WorkloadClass*> bounding;
  if (workload != nullptr && !workload->memory.empty()) bounding.push_back(workload);
  for (const config::WorkloadClass* const each : classes_.binding(peer.uid))
    if (each != workload && !each->memory.empty() && each->memory_of != config::GroupOf::kProcess)
      bounding.push_back(each);
  return bounding;
}

hal::Status Server::send_quotas(Connection& client, const std::string& uuid, std::uint64_t total,
                                const std::string& said, const std::string& program) {
  if (!names_device(uuid))
    return hal::fail(hal::Errc::kInvalidArgument, "this is the name of no device");
  const protocol::Peer& peer = client.peer;
  const std::string cgroup = cgroup_of(peer.pid);
  const Container container = container_of(cgroup);
  const auto [step, job, own] = jobs_.of(peer.uid, slurm_step(cgroup), "");
  const auto [claimed, part] = claims_.of(container.pod, "");
  const std::string& told = part != nullptr  ? part->workload_class
                            : job != nullptr ? job->workload_class
                                             : said;
  const config::WorkloadClass* const workload =
      classes_.of(told.empty() ? said : told, program, peer.uid);
  // As for its share: the quota of its job, else of its claim.
  std::optional<config::MemoryBound> of_job;
  if (job != nullptr)
    of_job = job->memory;
  else if (part != nullptr && part->memory != 0)
    of_job = config::MemoryBound{part->memory, 0};
  auto bounding = memory_classes(workload, peer);
  const std::size_t others = of_job ? 1 : 0;
  if (others + bounding.size() > kMostQuotas) {
    log::warn("process {} of user {} is in {} groups with a memory quota; the first {} bound it",
              peer.pid, peer.uid, others + bounding.size(), kMostQuotas);
    bounding.resize(kMostQuotas - others);
  }
  memory_quotas_.told(peer.pid, uuid, {}, others);  // until it has them
  if (!of_job && bounding.empty()) return protocol::send_answer(client.socket, "owner 0\n");

  const Member member = member_of(peer, cgroup);
  const auto owner = memory_quotas_.enter(member, std::move(client.peer.pidfd));
  if (!owner) return tl::unexpected(owner.error());
  std::string text = "owner " + std::to_string(*owner) + "\n";
  std::vector<int> files;
  const auto add = [&](const hal::Result<MemoryQuotas::Bound>& bound) -> hal::Status {
    if (!bound) return tl::unexpected(bound.error());
    text += std::to_string(bound->quota) + " " + bound->whose + "\n";
    files.push_back(bound->file);
    return {};
  };
  if (of_job) {
    const std::string whose =
        job != nullptr ? "of job " + std::string(step) : "of claim " + std::string(claimed);
    if (auto added = add(memory_quotas_.bound(*owner, whose, *of_job, uuid, total)); !added)
      return added;
  }
  for (const config::WorkloadClass* const each : bounding)
    if (auto added = add(memory_quotas_.bound(*owner, *each, member, uuid, total)); !added)
      return added;
  auto sent = protocol::send_answer(client.socket, text, files);
  if (!sent) return sent;
  std::set<std::string> classes;
  for (const config::WorkloadClass* const each : bounding) classes.insert(each->name);
  memory_quotas_.told(peer.pid, uuid, std::move(classes), others);
  return sent;
}

// A process that was told of no quota of the class has not counted its memory for it, so none can
// bound it later. One that has not asked yet will be told.
void Server::warn_of_unbounded_memory() {
  std::map<std::string, std::set<pid_t>> unbounded;  // by class
  for (const auto& [id, session] : sessions_) {
    const auto told =
        memory_quotas_.told_of(owner_number(session->process), session->device->info.uuid);
    if (!told) continue;
    auto bounding = memory_classes(
        settings_.configuration.find_class(session->entitlement.workload_class), session->peer);
    bounding.resize(std::min(bounding.size(), kMostQuotas - told->others));
    for (const config::WorkloadClass* const each : bounding)
      if (!told->classes.contains(each->name)) unbounded[each->name].insert(session->peer.pid);
  }
  for (const auto& [name, processes] : unbounded)
    log::warn(
        "class '{}' has a memory quota, but {} processes that run, such as {}, began without one: "
        "their memory is not bounded until they are started again [{}]",
        name, processes.size(), *processes.begin(),
        runtime::code_of(runtime::Problem::kMemoryQuota));
}

void Server::add_memory_metrics(PrometheusText& out) const {
  const auto memory = memory_quotas_.sums();
  const auto figure = [&](const char* name, const char* help, auto value) {
    out.family(name, "gauge", help);
    for (const auto& [where, sum] : memory)
      out.sample({{"UUID", where.first}, {"class", where.second}}, static_cast<double>(sum.*value));
  };
  figure("vitamin_memory_quota_bytes", "Device memory that programs of the class may have.",
         &MemoryQuotas::Sum::quota);
  figure("vitamin_memory_used_bytes", "Device memory that they have.", &MemoryQuotas::Sum::used);
}

}  // namespace vitamin::daemon
