// SPDX-License-Identifier: Apache-2.0
#include "daemon/mps/domains.h"

#include <algorithm>
#include <thread>

#include "daemon/config/isolation.h"

namespace vitamin::daemon {

using config::Isolation;

MpsDomains::MpsDomains(const config::Configuration& configuration, const std::string& directory)
    : shared_(std::make_unique<Mps>(configuration.mps, directory)) {
  directory_ = shared_->facts().directory;
  if (directory_.empty()) directory_ = configuration.mps.directory;
  if (directory_.empty()) directory_ = directory;
  apply(configuration);
}

MpsDomains::~MpsDomains() {
  std::vector<std::thread> ends;
  for (auto& [workload_class, mps] : classes_) ends.emplace_back([&own = mps] { own.reset(); });
  shared_.reset();
  for (std::thread& end : ends) end.join();
}

void MpsDomains::apply(const config::Configuration& configuration) {
  for (const config::WorkloadClass& each : configuration.classes) {
    if (isolation_of(configuration, &each) != Isolation::kClass || classes_.contains(each.name))
      continue;
    config::MpsSettings own = configuration.mps;
    own.directory = config::directory_of_class(directory_, each.name);
    classes_.emplace(each.name, std::make_unique<Mps>(own, own.directory, MpsRole::kClass,
                                                      "MPS of class '" + each.name + "'"));
  }
  if (!config::isolates(configuration)) return;
  shared_->watch_clients();
  for (const auto& [workload_class, mps] : classes_) mps->watch_clients();
}

std::vector<DomainFacts> MpsDomains::classes() const {
  std::vector<DomainFacts> all;
  for (const auto& [workload_class, mps] : classes_)
    all.push_back({"class " + workload_class, workload_class, mps->facts()});
  return all;
}

MpsFacts MpsDomains::facts_of_class(const std::string& workload_class) const {
  const auto found = classes_.find(workload_class);
  return found == classes_.end() ? MpsFacts() : found->second->facts();
}

MpsDomains::Whereabouts MpsDomains::whereabouts(pid_t process, const std::string& claimed) const {
  Whereabouts known;
  const auto look = [&](const std::string& domain, const Mps& mps) {
    const MpsClients clients = mps.clients();
    const bool names_it = std::find(clients.processes.begin(), clients.processes.end(), process) !=
                          clients.processes.end();
    if (!names_it && domain != claimed) return;
    if (names_it && (domain == claimed || !known.found)) {
      known.found = domain;
      known.listings = clients.listings;
    }
    known.complete = known.complete && clients.complete;
    known.others.insert(known.others.end(), clients.processes.begin(), clients.processes.end());
  };
  look("", *shared_);
  for (const auto& [workload_class, mps] : classes_) look("class " + workload_class, *mps);
  std::erase(known.others, process);
  return known;
}

std::string MpsDomains::directory_without_mps() const {
  return config::directory_without_mps(directory_);
}

void MpsDomains::terminate(const std::vector<pid_t>& processes) {
  shared_->terminate(processes);
  for (const auto& [workload_class, mps] : classes_) mps->terminate(processes);
}

}  // namespace vitamin::daemon
