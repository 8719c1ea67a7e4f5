// SPDX-License-Identifier: Apache-2.0
//
// Which isolation domain a client is in (daemon/config/isolation.h), and what tools learn of
// domains.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "daemon/config/isolation.h"
#include "daemon/json_text.h"
#include "daemon/log.h"
#include "daemon/server/server.h"
#include "runtime/clock.h"
#include "runtime/problem.h"

namespace vitamin::daemon {

using config::Isolation;
using nlohmann::json;

namespace {

constexpr std::uint16_t kSinceMpsDirectory = 10;  // minor version of the protocol

std::uint64_t since(std::uint64_t time_ns) {
  return time_ns != 0 ? runtime::now_ns() - time_ns : 0;
}

json facts_status(const MpsFacts& facts) {
  return {{"state", name_of(facts.state)},  {"directory", facts.directory},
          {"problem", facts.problem},       {"starts", facts.starts},
          {"faults", facts.faults},         {"checks", facts.checks},
          {"terminated", facts.terminated}, {"since_fault_ns", since(facts.last_fault_ns)},
          {"affected", facts.affected}};
}

}  // namespace

json Server::mps_status() const { return facts_status(mps_->facts()); }

// Only what is isolated from the shared domain.
json Server::domains_status() const {
  json all = json::array();
  const auto clients_of = [this](const std::string& name) {
    return std::count_if(sessions_.begin(), sessions_.end(), [&](const auto& session) {
      return session.second->device->domain == name;
    });
  };
  for (const DomainFacts& domain : mps_->classes()) {
    json one = facts_status(domain.mps);
    one["domain"] = domain.name;
    one["class"] = domain.workload_class;
    one["clients"] = clients_of(domain.name);
    one["since_start_ns"] = since(domain.mps.last_start_ns);
    all.push_back(std::move(one));
  }
  return all;
}

void Server::add_domain_metrics(PrometheusText& out) const {
  const std::vector<DomainFacts> domains = mps_->classes();
  if (domains.empty()) return;
  const auto family = [&](const char* name, const char* type, const char* help, auto value) {
    out.family(name, type, help);
    for (const DomainFacts& domain : domains)
      out.sample({{"domain", domain.name}}, static_cast<double>(value(domain.mps)));
  };
  family("vitamind_domain_ready", "gauge", "1 when the MPS of the isolation domain takes clients.",
         [](const MpsFacts& facts) { return facts.state == MpsState::kReady ? 1 : 0; });
  family("vitamind_domain_faults_total", "counter",
         "Faults on the GPU that took their contexts from clients of the isolation domain.",
         [](const MpsFacts& facts) { return facts.faults; });
  family("vitamind_domain_starts_total", "counter",
         "Times that vitamind started the MPS of the isolation domain.",
         [](const MpsFacts& facts) { return facts.starts; });
}

const config::WorkloadClass* Server::class_told(const std::string* by_claim,
                                                const std::string* by_job,
                                                const protocol::Claim& claim,
                                                const std::string& program,
                                                const protocol::Peer& peer) {
  const std::string& told = by_claim != nullptr ? *by_claim
                            : by_job != nullptr ? *by_job
                                                : claim.workload_class;
  return classes_.of(told.empty() ? claim.workload_class : told, program, peer.uid);
}

const config::WorkloadClass* Server::class_of_process(const protocol::Peer& peer,
                                                      const protocol::Claim& claim,
                                                      const std::string& program) {
  const std::string cgroup = cgroup_of(peer.pid);
  const auto [step, job, own] = jobs_.of(peer.uid, slurm_step(cgroup), claim.job);
  const auto [claimed, part] = claims_.of(container_of(cgroup).pod, claim.job);
  return class_told(part != nullptr ? &part->workload_class : nullptr,
                    job != nullptr ? &job->workload_class : nullptr, claim, program, peer);
}

Server::AssignedDomain Server::assigned_domain(const protocol::Peer& peer,
                                               const config::WorkloadClass* workload) const {
  switch (isolation_of(settings_.configuration, workload)) {
    case Isolation::kShared:
      break;
    case Isolation::kClass: {
      const MpsFacts facts = mps_->facts_of_class(workload->name);
      if (facts.directory.empty()) break;  // mps.mode was changed to "off" by a reload
      return {"class " + workload->name, facts.directory, name_of(facts.state), facts.problem};
    }
    case Isolation::kExclusive:
      return {"process " + std::to_string(peer.pid), mps_->directory_without_mps(),
              name_of(MpsState::kReady), ""};
  }
  const MpsFacts facts = mps_->facts();
  return {"", facts.directory, name_of(facts.state), facts.problem};
}

// A client is in its class's domain if it has that domain's pipe directory, else in the shared one:
// its context is elsewhere, and its leases there would only restrain others.
std::string Server::domain_of(const protocol::Peer& peer, const protocol::Hello& hello) {
  if (!config::isolates(settings_.configuration)) return {};
  if (hello.vendor == static_cast<std::uint32_t>(hal::Vendor::kAmd)) return {};  // it has no MPS
  const protocol::Claim claim = protocol::claim_of(hello);
  const std::string program = hello.program.get();
  const AssignedDomain wanted = assigned_domain(peer, class_of_process(peer, claim, program));
  if (wanted.domain.empty()) return {};
  const auto misplaced = misplaced_.find(peer.pid);
  const bool lied = misplaced != misplaced_.end() && misplaced->second == identity_of(peer.pid) &&
                    mps_->whereabouts(peer.pid, wanted.domain).found != wanted.domain;
  if (claim.mps_directory == wanted.directory && !lied) return wanted.domain;
  const std::string has = lied ? "it named that directory, and MPS does not have it there"
                          : hello.preamble.minor < kSinceMpsDirectory
                              ? "it is of an earlier release, which does not name it"
                          : claim.mps_directory.empty() ? "it has none"
                                                        : "it has " + claim.mps_directory;
  log::warn(
      "{} (process {}, user {}) should be in the isolation domain '{}', whose "
      "CUDA_MPS_PIPE_DIRECTORY is {}: {}. A fault may spread between it and others. Start it by "
      "vitamin run --daemon, without that variable [{}]",
      program, peer.pid, peer.uid, wanted.domain, wanted.directory, has,
      runtime::code_of(runtime::Problem::kNotIsolated));
  return {};
}

// Why a client is not in the domain that it claims, after a further listing of MPS; empty: it may
// be there. MPS names the clients of each server, and no client tells vitamind that. Only a name in
// another domain proves anything: MPS names none that has no context yet, or whose server ended.
std::string Server::elsewhere(Session& session) {
  const std::string& claimed = session.device->domain;
  const MpsDomains::Whereabouts known = mps_->whereabouts(session.peer.pid, claimed);
  // A number that is no client's may be of another PID namespace, and so may this one.
  const auto is_client = [this](pid_t process) {
    return std::any_of(sessions_.begin(), sessions_.end(),
                       [&](const auto& other) { return other.second->peer.pid == process; });
  };
  if (!known.found || *known.found == claimed || !known.complete ||
      !std::all_of(known.others.begin(), known.others.end(), is_client)) {
    session.domain_doubts = 0;
    return {};
  }
  if (session.domain_found == *known.found && session.domain_listings == known.listings) return {};
  session.domain_doubts = session.domain_found == *known.found ? session.domain_doubts + 1 : 1;
  session.domain_found = *known.found;
  session.domain_listings = known.listings;
  constexpr unsigned kDoubts = 3;  // listings; a client may join or leave MPS between two
  if (session.domain_doubts < kDoubts) return {};
  return "is a client of the MPS of " + (known.found->empty() ? "the shared domain" : *known.found);
}

// A client that is not in the domain whose leases it has loses its session. It connects again and
// is then in the shared domain.
void Server::check_domains(std::uint64_t now_ns) {
  if (now_ns < domains_ns_ || !config::isolates(settings_.configuration)) return;
  domains_ns_ = now_ns + settings_.configuration.mps.check_every_ns;
  std::erase_if(misplaced_,
                [](const auto& each) { return identity_of(each.first) != each.second; });
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    Session& session = *(it++)->second;  // end_session() removes it
    if (session.device->domain.empty() || session.dying) continue;
    const std::string why = elsewhere(session);
    if (why.empty()) continue;
    log::warn(
        "client {} ({}, process {}, user {}) {}, not in the isolation domain '{}' as it said: "
        "its session ends",
        session.id, session.program, session.peer.pid, session.peer.uid, why,
        session.device->domain);
    misplaced_[session.peer.pid] = session.process;
    end_session(session.id, now_ns);
  }
}

// "isolation JOB/PROGRAM/CLASS": the domain of a program that this process is about to start.
std::string Server::answer_isolation(const protocol::Peer& peer, const std::string& rest) {
  const std::size_t first = rest.find('/');
  const std::size_t second = first == rest.npos ? first : rest.find('/', first + 1);
  if (second == rest.npos)
    return json_text(json{{"schema", 1}, {"error", "isolation: which JOB/PROGRAM/CLASS?"}});
  protocol::Claim claim;
  claim.job = rest.substr(0, first);
  claim.workload_class = rest.substr(second + 1);
  const std::string program = rest.substr(first + 1, second - first - 1);
  const config::WorkloadClass* const workload = class_of_process(peer, claim, program);
  const AssignedDomain assigned = assigned_domain(peer, workload);
  return json_text(json{{"schema", 1},
                        {"isolated", !assigned.domain.empty()},
                        {"domain", assigned.domain},
                        {"directory", assigned.directory},
                        {"state", assigned.state},
                        {"problem", assigned.problem}});
}

}  // namespace vitamin::daemon
