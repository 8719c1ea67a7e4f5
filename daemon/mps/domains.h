// SPDX-License-Identifier: Apache-2.0
//
// The isolation domains of a machine (daemon/config/isolation.h), and the MPS control daemon of
// each: that of the shared domain, and one for each class that is isolated from the others. A
// reload adds domains of new classes; a domain ends with vitamind only, because programs may have
// its pipe directory.
//
// Names: "" is the shared domain, "class NAME" that of a class, "process NUMBER" that of a process
// outside of MPS.
//
// Threads: all functions are called by one thread.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/config/configuration.h"
#include "daemon/mps/mps.h"

namespace vitamin::daemon {

struct DomainFacts {
  std::string name;  // of the domain
  std::string workload_class;
  MpsFacts mps;
};

class MpsDomains {
 public:
  // Starts what is to be started, and waits for the shared domain's MPS. `directory`: its directory
  // unless the configuration sets one.
  MpsDomains(const config::Configuration& configuration, const std::string& directory);
  // Ends what was started, all at once: each may take seconds.
  ~MpsDomains();
  MpsDomains(const MpsDomains&) = delete;
  MpsDomains& operator=(const MpsDomains&) = delete;

  void apply(const config::Configuration& configuration);
  // Of the shared domain.
  MpsFacts facts() const { return shared_->facts(); }
  // Of the domains of classes, by name.
  std::vector<DomainFacts> classes() const;
  // Of the domain of a class; state kOff: it has none.
  MpsFacts facts_of_class(const std::string& workload_class) const;
  // Where MPS says that a process is, against the domain that it says. Known only while
  // config::isolates().
  struct Whereabouts {
    // The domain whose MPS names it, that of its own claim first; nothing: none does.
    std::optional<std::string> found;
    std::uint64_t listings = 0;  // how often that MPS was asked so far
    // Of every MPS that names it, and of that of its claim: whether they named nothing but
    // processes, and which others.
    bool complete = true;
    std::vector<pid_t> others;
  };
  Whereabouts whereabouts(pid_t process, const std::string& claimed) const;
  // Pipe directory of a process that is to be outside of MPS.
  std::string directory_without_mps() const;
  // Mps::terminate() of each domain.
  void terminate(const std::vector<pid_t>& processes);

 private:
  std::string directory_;  // of the shared domain, also where it has no MPS
  std::unique_ptr<Mps> shared_;
  std::map<std::string, std::unique_ptr<Mps>> classes_;
};

}  // namespace vitamin::daemon
