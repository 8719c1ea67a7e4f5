// SPDX-License-Identifier: Apache-2.0
//
// Requests of tools; begin and end of clients' sessions.
#include <poll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "daemon/arbiter/decisions.h"
#include "daemon/from_configuration.h"
#include "daemon/json_text.h"
#include "daemon/log.h"
#include "daemon/protocol/answer.h"
#include "daemon/protocol/liveness.h"
#include "daemon/server/server.h"
#include "runtime/clock.h"
#include "runtime/problem.h"

namespace vitamin::daemon {
// --- tools -----------------------------------------------------------------------------------

namespace {

// A tool that stopped waiting has told its user that the request failed.
bool has_hung_up(const Connection& tool) {
  pollfd watched{tool.socket.get(), POLLRDHUP, 0};
  return ::poll(&watched, 1, 0) > 0 && (watched.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

}  // namespace

void Server::answer(Connection& tool, const std::string& verb) {
  if ((verb.starts_with("drain") || verb.starts_with("resume")) && has_hung_up(tool))
    return log::info("'{}' of process {} is withdrawn: it waited no longer for the answer", verb,
                     tool.peer.pid);
  if (verb.starts_with("memory-quotas")) return answer_memory_quotas(tool, verb);
  constexpr std::string_view kIsolation = "isolation ";
  const std::string text = verb.starts_with(kIsolation)
                               ? answer_isolation(tool.peer, verb.substr(kIsolation.size()))
                               : execute(verb, tool.peer);
  if (const auto sent = protocol::send_answer(tool.socket, text); !sent)
    log::warn("the answer to process {} cannot be sent: {}", tool.peer.pid, sent.error().message);
}

namespace {

std::string error_text(const std::string& sentence) {
  return json_text(nlohmann::json{{"schema", 1}, {"error", sentence}});
}

// Why the process may not do what operators do; empty: it may. The root user of a container is not
// an operator, unless the container is one of vitamind's own pod.
std::string refused_to_operate(const protocol::Peer& peer) {
  if (peer.uid != ::getuid() && peer.uid != 0) return "only the daemon's user and root may do that";
  const std::string own = cgroup_of(::getpid());
  if (own.empty()) return "";  // a kernel without control groups
  const std::string cgroup = cgroup_of(peer.pid);
  // A process that has ended may have left its number to another one.
  pollfd process{peer.pidfd.get(), POLLIN, 0};
  if (cgroup.empty() || ::poll(&process, 1, 0) != 0)
    return fmt::format(
        "vitamind cannot read the control group of process {}, which has ended or is hidden "
        "(hidepid), so it may be in a container",
        peer.pid);
  // Every container of a pod has the variable.
  if (!is_in_another_container(cgroup, own, std::getenv("KUBERNETES_SERVICE_HOST") != nullptr))
    return "";
  return fmt::format(
      "process {} is in a container: do it on the host, or in a container of vitamind's own pod",
      peer.pid);
}

}  // namespace

std::string Server::execute(const std::string& verb, const protocol::Peer& peer) {
  if (verb == "status") return json_text(status());
  if (verb == "accounting")
    return json_text(nlohmann::json{{"schema", 1}, {"clients", accounting_.records()}});
  if (verb == "ping") return json_text(nlohmann::json{{"schema", 1}});
  if (verb == "metrics") return json_text(nlohmann::json{{"schema", 1}, {"text", metrics()}});
  if (verb.starts_with("park-")) return answer_parking(verb, peer.uid);
  const auto space = verb.find(' ');
  const std::string name = verb.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : verb.substr(space + 1);
  constexpr std::array kOperators = {"drain",   "resume",      "job-begin",
                                     "job-end", "claim-begin", "claim-end"};
  if (std::find(kOperators.begin(), kOperators.end(), name) == kOperators.end())
    return error_text("the daemon does not know '" + verb + "'");
  if (const std::string refused = refused_to_operate(peer); !refused.empty())
    return error_text(refused);
  return execute_operator(name, rest);
}

std::string Server::execute_operator(const std::string& name, const std::string& rest) {
  if (name == "job-begin") {
    if (const auto begun = jobs_.begin(rest); !begun) {
      log::warn("{}", begun.error().message);
      return error_text(begun.error().message);
    }
    log::info("job {}", rest);
    return json_text(nlohmann::json{{"schema", 1}});
  }
  if (name == "claim-begin") {
    if (const auto begun = claims_.begin(rest); !begun) {
      log::warn("claim {}: {}", rest.substr(0, rest.find(' ')), begun.error().message);
      return error_text(begun.error().message);
    }
    log::info("claim {}", rest);
    apply_terms(polled_ns_);  // its clients may have come back before it was told again
    return json_text(nlohmann::json{{"schema", 1}});
  }
  if (name == "claim-end") {
    if (rest.empty()) return error_text("claim-end: which claim?");
    const std::size_t ended = claims_.end(rest);
    if (ended > 0) log::info("claim {}: ended", rest);
    return json_text(nlohmann::json{{"schema", 1}, {"claims", ended}});
  }
  if (name == "job-end") {
    if (rest.empty()) return error_text("job-end: which step or job?");
    std::vector<pid_t> left;
    for (const auto& [id, session] : sessions_) {
      const Entitlement& entitlement = session->entitlement;
      if (!Jobs::is_of(entitlement.job, rest)) continue;
      jobs_.used(entitlement.job, used_by(*session, polled_ns_).sm_ns);
      // A client that only has the share is of another step, or of none.
      if (session->peer.pid != 0 && entitlement.in_job) left.push_back(session->peer.pid);
    }
    if (!left.empty()) mps_->terminate(left);
    const Jobs::Ended ended = jobs_.end(rest);
    const double sm_seconds = static_cast<double>(ended.sm_ns) * 1e-9;
    if (ended.steps > 0)
      log::info("job {}: ended after {:.3f} SM-seconds, {} of its clients are left", rest,
                sm_seconds, left.size());
    return json_text(nlohmann::json{
        {"schema", 1}, {"steps", ended.steps}, {"left", left.size()}, {"sm_seconds", sm_seconds}});
  }
  const std::string which = rest.empty() ? "all" : rest;
  const std::size_t changed = devices_.drain(which, name == "drain");
  if (changed == 0 && which != "all") {
    std::set<std::string> used;
    for (const auto& [key, device] : devices_) used.insert(device.info.uuid);
    std::string known;
    for (const std::string& uuid : used) known += uuid + ", ";
    return error_text("no client has used a device '" + which + "'. Name one of: " + known +
                      "all, or its index as nvidia-smi has it");
  }
  if (changed == 0 && name == "drain")
    return error_text(
        "no client has used a device yet, so none is drained. Drain it when `vitamin status` shows "
        "it, or stop vitamind, with failure.absent = \"closed\" in vitamin.toml, so that no client "
        "starts: systemctl stop vitamind");
  return json_text(nlohmann::json{{"schema", 1}, {"devices", changed}});
}

// --- sessions --------------------------------------------------------------------------------

namespace {

// Equal programs of one class and user on equal devices are one program to the estimator.
scheduler::ProgramHash program_of(const std::string& name, const std::string& workload_class,
                                  uid_t uid, const std::string& device) {
  const std::hash<std::string> hash;
  return scheduler::mix(scheduler::mix(hash(name), hash(workload_class)),
                        scheduler::mix(hash(device), uid)) |
         1;
}

}  // namespace

// The number of a class's group: stable for as long as a session is in the group.
std::uint32_t Server::group_number(const std::string& key) {
  // Jobs are numbered from 1, claims from 2^30, containers from 2^31.
  constexpr std::uint32_t kFirst = 0x2000'0000;
  const auto [known, added] = group_numbers_.try_emplace(key, kFirst + groups_begun_);
  if (added) ++groups_begun_;
  return known->second;
}

// Forgets groups without a session, if there are many groups.
void Server::forget_groups() {
  constexpr std::size_t kMost = 4096;
  if (group_numbers_.size() < kMost) return;
  std::set<std::uint32_t> used;
  for (const auto& [id, session] : sessions_)
    for (const GroupShare& share : session->entitlement.shares) used.insert(share.group);
  std::erase_if(group_numbers_, [&](const auto& known) { return !used.contains(known.second); });
}

// The job is that of the control group, else the one whose share bounds the user's processes
// outside of jobs.
Member Server::member_of(const protocol::Peer& peer, const std::string& cgroup) const {
  const Container container = container_of(cgroup);
  const std::string step = slurm_step(cgroup);
  const std::string_view of = step.empty() ? jobs_.of(peer.uid, "", "").step : step;
  const std::string_view job =
      of.empty() ? claims_.of(container.pod, "").name : of.substr(0, of.find('.'));
  return {peer.pid, peer.uid, container.id, std::string(job)};
}

// The shares that bound a client; the first one is of the group that has the reservation. `job`: of
// its job or claim, number 0: none; `own`: of the process or its container.
std::vector<GroupShare> Server::shares_of(const config::WorkloadClass* workload,
                                          const Member& member, const GroupShare& job,
                                          const GroupShare& own) {
  forget_groups();
  std::vector<GroupShare> shares;
  const auto add = [&](const config::WorkloadClass& of) {
    const std::string name = group_name(of.share_of, of, member);
    shares.push_back({group_number(of.name + '\n' + name), of.share, name});
  };
  if (workload != nullptr && workload->share_of != config::GroupOf::kProcess) add(*workload);
  if (job.group != 0) shares.push_back(job);
  if (own.share < 100 || shares.empty()) shares.push_back(own);
  for (const config::WorkloadClass* const each : classes_.binding(member.user))
    if (each != workload && each->share_of != config::GroupOf::kProcess && each->share < 100)
      add(*each);
  if (const std::size_t most = 1 + scheduler::Limits().outer.size(); shares.size() > most) {
    std::sort(shares.begin() + 1, shares.end(),
              [](const GroupShare& a, const GroupShare& b) { return a.share < b.share; });
    log::warn("process {} of user {} is in {} groups with a share; the {} narrowest bound it",
              member.process, member.user, shares.size(), most);
    shares.resize(most);
  }
  return shares;
}

Server::Entitlement Server::entitlement_of(const Session& session, const std::string& stays_in) {
  const protocol::Peer& peer = session.peer;
  const protocol::Hello& hello = session.hello;
  const ServedDevice& device = *session.device;
  Entitlement entitlement;
  const protocol::Claim claim = protocol::claim_of(hello);
  const std::string cgroup = cgroup_of(peer.pid);
  entitlement.container = container_of(cgroup);
  find_names(entitlement.container);
  const auto [step, job, own] = jobs_.of(peer.uid, slurm_step(cgroup), claim.job);
  const auto [claimed, part] = claims_.of(entitlement.container.pod, claim.job);
  const config::WorkloadClass* const workload =
      stays_in.empty() ? class_told(part != nullptr ? &part->workload_class : nullptr,
                                    job != nullptr ? &job->workload_class : nullptr, claim,
                                    hello.program.get(), peer)
                       : classes_.of(stays_in, hello.program.get(), peer.uid);
  if (workload != nullptr) entitlement.workload_class = workload->name;
  entitlement.job = job != nullptr ? step : claimed;
  entitlement.in_job = own;

  GroupShare of_job, of_itself;
  if (job != nullptr)
    of_job = {job->number, job->share, "of job " + entitlement.job};
  else if (part != nullptr)
    of_job = {part->number, part->share, "of claim " + entitlement.job};
  of_itself.share = claim.share != 0 ? claim.share : 100;
  if (workload != nullptr && workload->share_of == config::GroupOf::kProcess)
    of_itself.share = std::min(of_itself.share, workload->share);
  if (of_job.group == 0 && !entitlement.container.id.empty() && of_itself.share < 100) {
    of_itself.group = group_of(entitlement.container);  // bounds all of its processes together
    of_itself.name = "of container " + entitlement.container.id.substr(0, 12);
  }
  entitlement.shares = shares_of(workload, member_of(peer, cgroup), of_job, of_itself);
  entitlement.traits = traits_of(workload, 100, device.info.sms);
  constexpr std::uint32_t kAlone = 0x6000'0000;  // numbers of single clients begin here
  set_quotas(entitlement.traits.terms.limits, entitlement.shares, device.info.sms,
             kAlone + session.id);
  entitlement.traits.minor = hello.preamble.minor;
  entitlement.traits.program =
      program_of(hello.program.get(), entitlement.workload_class, peer.uid, device.info.name);
  entitlement.traits.process = static_cast<std::uint64_t>(std::max<pid_t>(peer.pid, 0));
  return entitlement;
}

// After a reload, or when a claim is told: applies the weight, shares and latency bounds of classes
// and claims to existing clients. A client stays in the class with which it connected, but for one
// that came before its claim was told, as after a restart: it gets the class of the claim. Where
// that class is no longer configured, its weight and bounds stay.
void Server::apply_terms(std::uint64_t now_ns) {
  for (const auto& [id, session] : sessions_) {
    if (session->dying) continue;
    Entitlement& known = session->entitlement;
    Entitlement now = entitlement_of(*session);
    if (known.job.empty() && !now.job.empty()) {
      known.job = now.job;
      known.workload_class = now.workload_class;
    } else if (known.workload_class != now.workload_class &&
               settings_.configuration.find_class(known.workload_class) != nullptr) {
      now = entitlement_of(*session, known.workload_class);
    }
    known.shares = now.shares;
    if (known.workload_class == now.workload_class)
      known.traits.terms = now.traits.terms;
    else
      known.traits.terms.limits = now.traits.terms.limits;
    session->device->arbiter->set_terms(id, terms_in_force(*session), now_ns);
    session->device->touched = true;
  }
}

protocol::Welcome Server::welcome_of(const Session& session,
                                     const DeviceArbiter::Fallback& fallback) const {
  const ServedDevice& device = *session.device;
  const bool whole = settings_.configuration.failure.lost == config::OnLoss::kWhole;
  protocol::Welcome welcome;
  welcome.preamble.kind = protocol::MessageKind::kWelcome;
  welcome.epoch = epoch_;
  welcome.client = session.id;
  welcome.partitions_max = device.pool.partitions_max;
  welcome.leaf_units = device.pool.leaf_units;
  welcome.all_runs = device.pool.all_runs ? 1 : 0;
  welcome.fallback = whole ? runtime::kWholeDevice : fallback.partition;
  welcome.fallback_shared = whole || fallback.shared ? 1 : 0;
  welcome.pool_hash = protocol::hash_of(device.arbiter->layout());
  welcome.answer_within_ns = settings_.configuration.daemon.answer_within_ns;
  welcome.policy.set(device.policy);
  return welcome;
}

namespace {

std::string or_none(const std::string& name) { return name.empty() ? "none" : name; }

// CPU time of this thread, which excludes what other threads used meanwhile.
std::uint64_t processor_time_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace

// Logs, once, each bound that its client does not meet even alone, as soon as that is known: with
// the first plan if the same program ran before, else after enough of its steps.
void Server::warn_of_refused_bounds(ServedDevice& device, std::uint64_t now_ns) {
  constexpr std::uint64_t kEvery = 1'000'000'000;
  if (!device.arbiter->scheduler().policy().keeps_bounds || now_ns < device.bounds_ns + kEvery)
    return;
  device.bounds_ns = now_ns;
  for (const scheduler::SloStatus& status : device.arbiter->slo_statuses()) {
    Session* const session = this->session(status.client);
    if (session == nullptr) continue;
    const std::uint32_t kind = 1U << static_cast<unsigned>(status.kind);
    const bool told = (session->bounds_refused & kind) != 0;
    if (status.feasible) {
      session->bounds_refused &= ~kind;
    } else if (!told) {
      session->bounds_refused |= kind;
      // In the syntax of vitamin.toml, rounded up.
      const double alone_ms = std::ceil(static_cast<double>(status.alone_ns) / 1e4) / 100;
      const std::string alone = fmt::format("{:.6g}ms", alone_ms);
      log::warn(
          "device {}: client {} ({}, class '{}'): {} = {} is refused: alone it takes {} at the "
          "{:.0f}th percentile. It is served as if it were alone; bounds have cost the other "
          "clients {:.0f} % of their progress so far. Set {} to {} or more [{}]",
          device.info.uuid, session->id, session->program, session->entitlement.workload_class,
          bound_name(status.kind), config::duration_text(status.bound_ns), alone,
          100 * session->entitlement.traits.terms.slo.quantile, 100 * status.costs,
          bound_name(status.kind), alone, runtime::code_of(runtime::Problem::kBound));
    }
  }
}

// Admits a client, or queues a tool's request. Both have a share of the time of their own, so that
// tools that ask all the time do not keep clients from connecting.
void Server::receive(FirstMessage first, std::uint64_t now_ns) {
  const auto* hello = std::get_if<protocol::Hello>(&first.message);
  if (hello == nullptr) {
    const auto of_user =
        std::count_if(tool_requests_.begin(), tool_requests_.end(), [&](const FirstMessage& other) {
          return other.connection.peer.uid == first.connection.peer.uid;
        });
    if (tool_requests_.size() >= kToolRequestsMax ||
        of_user >= std::ptrdiff_t{kToolRequestsOfUserMax})
      return pending_->refuse(first.connection, "too many requests of tools at once: try again");
    tool_requests_.push_back(std::move(first));
    return answer_next_tool(now_ns);
  }
  const std::uint64_t began = processor_time_ns();
  pending_->abuse_limiter().admitted(first.connection.peer.uid, now_ns);
  admit(std::move(first.connection), *hello, now_ns);
  admission_time_.spent(now_ns, processor_time_ns() - began);
}

void Server::answer_next_tool(std::uint64_t now_ns) {
  const bool busy = this->is_busy(now_ns);
  while (!tool_requests_.empty() && !(busy && tool_time_.next(now_ns) > now_ns)) {
    const std::uint64_t began = processor_time_ns();
    // Users in turn: a user that asks all the time delays another user's tool by one answer.
    auto next = std::find_if(
        tool_requests_.begin(), tool_requests_.end(),
        [&](const FirstMessage& other) { return other.connection.peer.uid != answered_user_; });
    if (next == tool_requests_.end()) next = tool_requests_.begin();
    answered_user_ = next->connection.peer.uid;
    answer(next->connection, std::get<std::string>(next->message));
    tool_requests_.erase(next);
    tool_time_.spent(now_ns, processor_time_ns() - began);
    if (busy) return;  // one between two turns
  }
}

void Server::admit(Connection client, const protocol::Hello& hello, std::uint64_t now_ns) {
  const auto of_user = static_cast<std::size_t>(
      std::count_if(sessions_.begin(), sessions_.end(),
                    [&](const auto& other) { return other.second->peer.uid == client.peer.uid; }));
  const config::Daemon& limits = settings_.configuration.daemon;
  if (sessions_.size() >= limits.clients || of_user >= limits.clients_of_user)
    return pending_->refuse(client, "vitamind has as many clients as it may have");
  auto memory = protocol::make_session_memory();
  if (!memory) return pending_->refuse(client, memory.error().message);
  auto device = devices_.begin_session(hello, client.peer.uid, domain_of(client.peer, hello));
  if (!device) return pending_->refuse(client, device.error().message);

  auto session = std::make_unique<Session>();
  session->id = next_client_++;
  session->peer = std::move(client.peer);
  session->socket = std::move(client.socket);
  session->memory = std::move(*memory);
  session->rings = {*session->memory.daemon, *session->memory.client};
  session->device = *device;
  session->program = hello.program.get();
  session->hello = hello;
  session->entitlement = entitlement_of(*session);
  session->since_ns = now_ns;
  session->budget = RecordBudget(settings_.budgets.records_a_turn);

  // The session must be registered before attach(), which may answer it at once, and before the
  // Welcome, so that no doorbell is lost.
  const int fds[] = {session->memory.client_fd.get(), session->memory.daemon_fd.get()};
  by_socket_[session->socket.get()] = by_pidfd_[session->peer.pidfd.get()] = session->id;
  watch(session->peer.pidfd.get());
  liveness_watcher_->add(&session->memory.client->liveness);
  Session& admitted = *sessions_.emplace(session->id, std::move(session)).first->second;
  if ((*device)->key == 0) reserve_for_absent(**device, now_ns);
  const protocol::Welcome welcome = welcome_of(
      admitted, (*device)->arbiter->attach(admitted.id, admitted.entitlement.traits, now_ns));
  record_session(admitted, static_cast<PartitionId>(welcome.fallback));
  // Before the Welcome: a client that has connected is in the log.
  log::info("client {}: {} (process {}, user {}), class {}, job {}, fallback partition {}{}",
            admitted.id, admitted.program, admitted.peer.pid, admitted.peer.uid,
            or_none(admitted.entitlement.workload_class), or_none(admitted.entitlement.job),
            welcome.fallback, welcome.fallback_shared != 0 ? ", shared" : "");
  const auto sent =
      protocol::send_message(admitted.socket, protocol::bytes_of(welcome), std::span(fds));
  admitted.memory.client_fd.reset();
  admitted.memory.daemon_fd.reset();
  if (!sent) end_session(admitted.id, now_ns);
}

// Reserves what processes of the former daemon may still use until they have reported.
void Server::reserve_for_absent(ServedDevice& device, std::uint64_t now_ns) {
  device.key =
      key_of_device(device.info.uuid, device.domain, protocol::hash_of(device.arbiter->layout()));
  for (const ProcessIdentity& process : record_.absent(device.key)) {
    const auto id = static_cast<pid_t>(process.process);
    protocol::Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, id, 0)));
    if (!pidfd || identity_of(id) != process) continue;
    const ClientId absent = next_client_++;
    for (const PartitionId partition : record_.before(process, device.key))
      device.arbiter->reserve_for_absent(absent, process.process, partition,
                                         record_.believed_until(), now_ns);
    watch(pidfd.get());
    const int fd = pidfd.get();
    absent_.emplace(fd, Absent{absent, std::move(pidfd)});
  }
}

void Server::forget_absent(int pidfd, std::uint64_t now_ns) {
  const auto ended = absent_.find(pidfd);
  for (auto& [key, device] : devices_) {
    device.arbiter->forget(ended->second.id, now_ns);
    device.touched = true;
  }
  absent_.erase(ended);
}

// Records the session for the next daemon, and passes on what the former daemon recorded of its
// process.
void Server::record_session(Session& session, PartitionId fallback) {
  const std::uint64_t device = session.device->key;
  session.process = identity_of(session.peer.pid);
  for (const PartitionId partition : record_.before(session.process, device))
    session.device->arbiter->accept_earlier_work(session.id, partition, record_.believed_until());
  session.slot = record_.begin(session.process, device, fallback);
}

void Server::read_doorbell(Session& session) {
  for (int i = 0; i < 16; ++i) {
    const auto message = protocol::receive_message(session.socket, 16);
    if (!message && message.error().code == hal::Errc::kUnavailable) return;
    if (!message || message->empty()) {
      // The client closed the connection: by its end, by exec, or to reconnect.
      return end_session(session.id, polled_ns_);
    }
    ++counters_.rings;
  }
}

void Server::check_liveness(std::uint64_t now_ns) {
  for (const auto& [id, session] : sessions_) {
    if (session->dying ||
        !protocol::owner_died(session->memory.client->liveness.load(std::memory_order_acquire)))
      continue;
    session->dying = true;
    ++counters_.deaths_by_life_line;
    session->device->arbiter->dying(id, now_ns);
    session->device->touched = true;
  }
}

void Server::evict(Session& session, std::string_view why, std::uint64_t now_ns) {
  ++counters_.evicted;
  log::warn("client {} ({}, process {}) is evicted: it sent {} [{}]", session.id, session.program,
            session.peer.pid, why, runtime::code_of(runtime::Problem::kClientEvicted));
  pending_->ban(session.peer, fmt::format("{} (process {})", session.program, session.peer.pid),
                why, now_ns, now_ns + settings_.configuration.daemon.quarantine_ns);
  end_session(session.id, now_ns);
}

void Server::end_session(ClientId id, std::uint64_t now_ns) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session& session = *found->second;
  const UsageTotals used = used_by(session, now_ns);
  jobs_.used(session.entitlement.job, used.sm_ns);
  accounting_.ended(owner_of(session), used, usage_record(session, now_ns), now_ns,
                    settings_.configuration.metrics.accounting);
  session.device->arbiter->forget(id, now_ns);
  session.device->touched = true;
  devices_.end_session(*session.device);
  liveness_watcher_->remove(&session.memory.client->liveness);
  by_socket_.erase(session.socket.get());
  by_pidfd_.erase(session.peer.pidfd.get());
  std::erase(dirty_, &session);
  record_.end(session.slot);
  log::info("client {}: ended", id);
  sessions_.erase(found);
  if (sessions_.empty()) no_session_since_ns_ = now_ns;
}

}  // namespace vitamin::daemon
