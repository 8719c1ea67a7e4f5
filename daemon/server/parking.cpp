// SPDX-License-Identifier: Apache-2.0
//
// Clients whose device memory `vitamin park` has moved to host memory. vitamind opens no device, so
// it knows what that command says: its user's own processes, or all if it is root.
//
// A parked client keeps its session, its class, its quotas and its weight. Its reservation does not
// hold: others may use those SMs until it is resumed.
#include <charconv>
#include <nlohmann/json.hpp>

#include "daemon/json_text.h"
#include "daemon/log.h"
#include "daemon/server/server.h"

namespace vitamin::daemon {

using nlohmann::json;

// Submitting needs the driver: a client that does has been resumed, by whatever program.
bool Server::is_parked(const Session& session) {
  return session.parked && session.memory.client->operations.load(std::memory_order_relaxed) ==
                               session.parked_operations;
}

scheduler::ClientTerms Server::terms_in_force(const Session& session) const {
  scheduler::ClientTerms terms = session.entitlement.traits.terms;
  if (session.parked) terms.limits.reserved_sms = 0;
  return terms;
}

void Server::set_parked(Session& session, bool parked, std::uint64_t now_ns) {
  session.parked_operations = session.memory.client->operations.load(std::memory_order_relaxed);
  if (session.parked == parked || session.dying) return;
  session.parked = parked;
  log::info("client {} ({}, process {}) is {}", session.id, session.program, session.peer.pid,
            parked ? "parked" : "resumed");
  session.device->arbiter->set_terms(session.id, terms_in_force(session), now_ns);
  session.device->touched = true;
}

// "park-begin PROCESS", "park-end PROCESS": of that process's user, vitamind's, or root.
std::string Server::answer_parking(const std::string& verb, uid_t uid) {
  const auto error = [](const std::string& sentence) {
    return json_text(json{{"schema", 1}, {"error", sentence}});
  };
  const auto space = verb.find(' ');
  const std::string name = verb.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : verb.substr(space + 1);
  if (name != "park-begin" && name != "park-end")
    return error("the daemon does not know '" + verb + "'");
  pid_t process = 0;
  const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), process);
  if (code != std::errc() || end != rest.data() + rest.size() || process <= 0)
    return error(name + ": which process?");
  std::size_t changed = 0;
  for (const auto& [id, session] : sessions_) {
    if (session->peer.pid != process) continue;
    if (uid != session->peer.uid && uid != ::getuid() && uid != 0)
      return error("only that process's user, the daemon's user and root may do that");
    set_parked(*session, name == "park-begin", polled_ns_);
    ++changed;
  }
  return json_text(json{{"schema", 1}, {"clients", changed}});
}

}  // namespace vitamin::daemon
