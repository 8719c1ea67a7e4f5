// SPDX-License-Identifier: Apache-2.0
//
// Who comes and who goes.
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "daemon/device_lock.h"
#include "daemon/from_configuration.h"
#include "daemon/server.h"
#include "policies/registry.h"
#include "protocol/life.h"
#include "runtime/problem.h"

namespace vitamin::daemon {
namespace {

std::uint64_t in_ns(std::chrono::nanoseconds duration) {
  return static_cast<std::uint64_t>(duration.count());
}

}  // namespace

// --- greetings -------------------------------------------------------------------------------

void Server::accept_all() {
  // Not all that wait at once: a flood of connections must not starve those who have one.
  for (int i = 0; i < 16; ++i) {
    auto socket = protocol::accept_from(listener_);
    if (!socket) return;
    ++counters_.connections;
    auto peer = protocol::peer_of(*socket);
    if (!peer) continue;
    Greeting greeting{std::move(*socket), std::move(*peer), 0};
    const std::uint64_t time = looked_ns_;
    greeting.until_ns = time + in_ns(settings_.budgets.greeting);
    // Told behind its greeting: the kernel throws an answer away whose sender closes with something
    // unread.
    if (const auto may = allowed(greeting.peer, time); !may) greeting.refused = may.error().message;
    const auto of_user = static_cast<std::size_t>(std::count_if(
        greetings_.begin(), greetings_.end(),
        [&](const auto& other) { return other.second.peer.uid == greeting.peer.uid; }));
    if (of_user >= settings_.budgets.greetings_of_user ||
        greetings_.size() >= settings_.budgets.greetings) {
      refuse(greeting, "too many connections at once: try again");
      continue;
    }
    const int fd = greeting.socket.get();
    watch(fd);
    greetings_.emplace(fd, std::move(greeting));
  }
}

hal::Status Server::allowed(const protocol::Peer& peer, std::uint64_t time) const {
  if (!settings_.any_user && peer.uid != ::getuid() && peer.uid != 0)
    return hal::fail(hal::Errc::kUnsupported,
                     "this vitamind belongs to another user: start one of your own, or ask for the "
                     "machine's (vitamind --system)");
  for (const Banned& banned : banned_)
    if (banned.uid == peer.uid && banned.pid == peer.pid && time < banned.until_ns)
      return hal::fail(hal::Errc::kUnsupported, "this process was let go because it sent " +
                                                    banned.why +
                                                    ": it stays on its home part of the device");
  return {};
}

void Server::refuse(const Greeting& greeting, const std::string& sentence) {
  ++counters_.refused;
  (void)protocol::send_message(greeting.socket, protocol::bytes_of(protocol::refusal(sentence)));
}

void Server::drop_late_greetings(std::uint64_t time) {
  std::erase_if(greetings_, [&](const auto& greeting) { return greeting.second.until_ns <= time; });
}

void Server::greet(int fd, std::uint64_t time) {
  auto node = greetings_.extract(fd);
  Greeting& greeting = node.mapped();
  const auto message = protocol::receive_message(greeting.socket, protocol::kGreetingMax);
  if (!message || message->empty()) return;  // gone: the descriptor closes with the greeting
  if (!greeting.refused.empty()) {
    refuse(greeting, greeting.refused);
  } else if (const auto control = protocol::parse<protocol::Control>(*message)) {
    answer(greeting, control->verb.get());
  } else if (const auto hello = protocol::parse<protocol::Hello>(*message)) {
    admit(std::move(greeting), *hello, time);
  } else {
    refuse(greeting, hello.error().message);
  }
}

void Server::answer(const Greeting& greeting, const std::string& verb) {
  std::string text = obey(verb, greeting.peer.uid);
  protocol::Preamble preamble;
  preamble.kind = protocol::Kind::kAnswer;
  std::string message(reinterpret_cast<const char*>(&preamble), sizeof preamble);
  message += text.substr(0, protocol::kMessageMax - sizeof preamble);
  (void)protocol::send_message(greeting.socket, std::as_bytes(std::span(message)));
}

namespace {

std::string error_text(const std::string& sentence) {
  return nlohmann::json{{"schema", 1}, {"error", sentence}}.dump();
}

}  // namespace

std::string Server::obey(const std::string& verb, uid_t uid) {
  if (verb == "status") return status().dump();
  if (verb == "ping") return nlohmann::json{{"schema", 1}}.dump();
  if (verb == "metrics") return nlohmann::json{{"schema", 1}, {"text", metrics()}}.dump();
  const auto space = verb.find(' ');
  const std::string name = verb.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : verb.substr(space + 1);
  if (name != "drain" && name != "resume" && name != "job-begin" && name != "job-end")
    return error_text("the daemon does not know '" + verb + "'");
  if (uid != ::getuid() && uid != 0)
    return error_text("only the daemon's user and root may do that");
  return obey_operator(name, rest);
}

std::string Server::obey_operator(const std::string& name, const std::string& rest) {
  if (name == "job-begin") {
    if (const auto begun = jobs_.begin(rest); !begun) {
      spdlog::warn("{}", begun.error().message);
      return error_text(begun.error().message);
    }
    spdlog::info("job {}", rest);
    return nlohmann::json{{"schema", 1}}.dump();
  }
  if (name == "job-end") {
    if (rest.empty()) return error_text("job-end: which step or job?");
    // Not who is only kept to its share: that is another step's, or outside of any.
    std::vector<pid_t> left;
    for (const auto& [id, session] : sessions_)
      if (session->peer.pid != 0 && session->in_job && Jobs::is_of(session->job, rest))
        left.push_back(session->peer.pid);
    if (!left.empty()) mps_->terminate(left);
    const std::size_t ended = jobs_.end(rest);
    if (ended > 0) spdlog::info("job {}: gone, {} of its clients are left", rest, left.size());
    return nlohmann::json{{"schema", 1}, {"steps", ended}, {"left", left.size()}}.dump();
  }
  const std::string which = rest.empty() ? "all" : rest;
  std::size_t changed = 0;
  for (auto& [uuid, device] : devices_) {
    if (which != "all" && uuid != which) continue;
    device.drained = name == "drain";
    ++changed;
    spdlog::info("device {}: {}", uuid, device.drained ? "takes no new client" : "takes clients");
  }
  if (changed == 0 && which != "all")
    return error_text("no client has used a device '" + which + "'");
  return nlohmann::json{{"schema", 1}, {"devices", changed}}.dump();
}

// --- sessions --------------------------------------------------------------------------------

hal::Result<Server::Device*> Server::device_for(const protocol::Hello& hello) {
  auto info = protocol::device_of(hello);
  if (!info) return tl::unexpected(info.error());
  const auto known = devices_.find(info->uuid);
  if (known != devices_.end()) {
    if (known->second.info.processors_per_unit != info->processors_per_unit ||
        known->second.info.processors != info->processors)
      return hal::fail(hal::Errc::kUnsupported,
                       "this process sees device " + info->uuid +
                           " with other processors than the ones before: is an MPS thread "
                           "percentage set?");
    return &known->second;
  }
  Device device;
  const config::Configuration mine = settings_.configuration.for_device(info->uuid, info->name);
  auto lock = lock_device(mine.daemon.lock_directory, info->uuid);
  if (!lock) return tl::unexpected(lock.error());
  device.policy = mine.policy.specification();
  device.seed = mine.policy.seed;
  device.pool = mine.pool;
  auto policy = policies::make(device.policy, device.seed);
  if (!policy) return tl::unexpected(policy.error());
  auto bounded = std::make_unique<policies::Bounded>(std::move(*policy), info->processors_per_unit,
                                                     seeded(device.policy, device.seed));
  device.lock = std::move(*lock);
  device.bounded = bounded.get();
  device.arbiter =
      std::make_unique<DeviceArbiter>(runtime::PoolLayout::build(*info, device.pool),
                                      std::move(bounded), arbiter_settings(mine), epoch_, *this);
  spdlog::info("device {} ({}): {} processors in {} units, {} entries, policy {}", info->uuid,
               info->name, info->processors, info->units(), device.arbiter->layout().size(),
               device.policy);
  device.info = std::move(*info);
  start_trace(device, arbiter_settings(mine));
  const std::string uuid = device.info.uuid;
  Device* const added = &devices_.emplace(uuid, std::move(device)).first->second;
  move_next_to_gpus();
  return added;
}

// Called by the loop, when it has heard of another GPU.
void Server::move_next_to_gpus() {
  if (placement_ == nullptr) return;
  const auto addresses = pci_of_gpus();
  std::vector<unsigned> nodes;
  for (const auto& [uuid, device] : devices_)
    if (const auto address = addresses.find(uuid); address != addresses.end())
      if (const auto node = placement_->node_of(address->second)) nodes.push_back(*node);
  const std::vector<unsigned> processors = placement_->choose(nodes, allowed_);
  if (!processors.empty() && placement_->bind(processors))
    spdlog::info("runs on {} processors from {}, next to the GPUs", processors.size(),
                 processors.front());
}

void Server::start_trace(Device& device, const ArbiterSettings& settings) {
  if (settings_.trace.empty()) return;
  runtime::trace::Header header;
  header.writer = runtime::trace::Writer::kDaemon;
  header.epoch = epoch_;
  header.seed = device.seed;
  header.quantum_ns = settings.scheduler.quantum_ns;
  header.overdue_ns = settings.scheduler.overdue_ns;
  header.reservation_ns = settings.scheduler.reservation_ns;
  header.answer_within_ns = settings.answer_within_ns;
  device.policy.copy(header.policy, sizeof header.policy - 1);
  describe(header, device.info, device.pool);
  device.trace = runtime::trace::Recorder::create(settings_.trace.c_str(), header);
  if (device.trace == nullptr)
    spdlog::error("the trace cannot be written to {} ({}); nothing is recorded [{}]",
                  settings_.trace, std::strerror(errno),
                  runtime::code_of(runtime::Problem::kTraceFile));
  device.arbiter->record(device.trace.get());
}

void Server::admit(Greeting greeting, const protocol::Hello& hello, std::uint64_t time) {
  const auto of_user = static_cast<std::size_t>(std::count_if(
      sessions_.begin(), sessions_.end(),
      [&](const auto& other) { return other.second->peer.uid == greeting.peer.uid; }));
  const config::Daemon& limits = settings_.configuration.daemon;
  if (sessions_.size() >= limits.clients || of_user >= limits.clients_of_user)
    return refuse(greeting, "vitamind has as many clients as it may have");
  auto device = device_for(hello);
  if (!device) return refuse(greeting, device.error().message);
  if ((*device)->drained)
    return refuse(greeting, "the device is drained: vitamin resume ends that");
  auto memory = protocol::make_session_memory();
  if (!memory) return refuse(greeting, memory.error().message);

  auto session = std::make_unique<Session>();
  session->id = next_client_++;
  session->peer = std::move(greeting.peer);
  session->socket = std::move(greeting.socket);
  session->memory = std::move(*memory);
  session->device = *device;
  session->program = hello.program.get();
  session->since_ns = time;
  const protocol::Claim claim = protocol::claim_of(hello);
  const Jobs::Found job =
      jobs_.of(session->peer.uid, slurm_step(cgroup_of(session->peer.pid)), claim.job);
  const bool classed = job.job != nullptr && !job.job->workload_class.empty();
  const config::WorkloadClass* const workload =
      class_for(classed ? job.job->workload_class : claim.workload_class, session->program,
                session->peer.uid);
  session->job = job.step;
  session->in_job = job.own;
  if (workload != nullptr) session->workload_class = workload->name;
  const protocol::ClientSegment& theirs = *session->memory.client;
  protocol::DaemonSegment& mine = *session->memory.daemon;
  session->requests = {theirs.requests, theirs.request_tail, mine.request_head};
  session->grants = {mine.grants, mine.grant_tail, theirs.grant_head};

  std::uint32_t share = claim.share != 0 ? claim.share : 100;
  if (job.job != nullptr) share = std::min(share, job.job->share);
  Traits& traits = session->traits = traits_of(workload, share, (*device)->info.processors);
  if (job.job != nullptr) traits.group = job.job->number;
  (*device)->bounded->bound(session->id, {traits.most, traits.reserved, traits.group});
  const DeviceArbiter::Home home = (*device)->arbiter->attach(session->id, traits);
  protocol::Welcome welcome;
  welcome.preamble.kind = protocol::Kind::kWelcome;
  welcome.epoch = epoch_;
  welcome.client = session->id;
  welcome.entries_max = (*device)->pool.entries_max;
  welcome.leaf_units = (*device)->pool.leaf_units;
  welcome.all_runs = (*device)->pool.all_runs ? 1 : 0;
  const bool whole = settings_.configuration.failure.lost == config::OnLoss::kWhole;
  welcome.home = whole ? runtime::kWholeDevice : home.entry;
  welcome.home_shared = whole || home.shared ? 1 : 0;
  welcome.pool_hash = protocol::hash_of((*device)->arbiter->layout());
  welcome.answer_within_ns = settings_.configuration.daemon.answer_within_ns;
  welcome.policy.set((*device)->policy);

  // The session is known before the client is told, so that its doorbell is heard from the start.
  const int fds[] = {session->memory.client_fd.get(), session->memory.daemon_fd.get()};
  by_socket_[session->socket.get()] = by_pidfd_[session->peer.pidfd.get()] = session->id;
  watch(session->peer.pidfd.get());
  deaths_->add(&theirs.life);
  Session& admitted = *sessions_.emplace(session->id, std::move(session)).first->second;
  const auto sent =
      protocol::send_message(admitted.socket, protocol::bytes_of(welcome), std::span(fds));
  admitted.memory.client_fd.reset();
  admitted.memory.daemon_fd.reset();
  spdlog::info("client {}: {} (process {}, user {}), class {}, job {}, home {}{}", admitted.id,
               admitted.program, admitted.peer.pid, admitted.peer.uid,
               workload != nullptr ? workload->name : "none",
               admitted.job.empty() ? "none" : admitted.job, welcome.home,
               welcome.home_shared != 0 ? ", shared" : "");
  if (!sent) end_session(admitted.id, time);
}

void Server::hear(Session& session) {
  for (int i = 0; i < 16; ++i) {
    const auto message = protocol::receive_message(session.socket, 16);
    if (!message && message.error().code == hal::Errc::kUnavailable) return;
    if (!message || message->empty()) {
      // It closed the connection: because it ended, because of exec, or to connect again.
      return end_session(session.id, looked_ns_);
    }
    ++counters_.rings;
  }
}

void Server::look_for_dying(std::uint64_t time) {
  for (const auto& [id, session] : sessions_) {
    if (session->dying ||
        !protocol::life_ended(session->memory.client->life.load(std::memory_order_acquire)))
      continue;
    session->dying = true;
    ++counters_.deaths_by_life_line;
    session->device->arbiter->dying(id, time);
    session->device->touched = true;
  }
}

void Server::let_go(Session& session, std::string_view why, std::uint64_t time) {
  ++counters_.let_go;
  spdlog::warn("client {} ({}, process {}) is let go: it sent {} [{}]", session.id, session.program,
               session.peer.pid, why, runtime::code_of(runtime::Problem::kClientLetGo));
  const config::Daemon& limits = settings_.configuration.daemon;
  if (banned_.size() >= limits.clients) banned_.pop_front();
  banned_.push_back(
      {session.peer.uid, session.peer.pid, time + limits.quarantine_ns, std::string(why)});
  end_session(session.id, time);
}

void Server::end_session(ClientId id, std::uint64_t time) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  Session& session = *found->second;
  session.device->arbiter->forget(id, time);
  session.device->touched = true;
  deaths_->remove(&session.memory.client->life);
  by_socket_.erase(session.socket.get());
  by_pidfd_.erase(session.peer.pidfd.get());
  std::erase(dirty_, &session);
  spdlog::info("client {}: gone", id);
  sessions_.erase(found);
  if (sessions_.empty()) alone_ns_ = time;
}

}  // namespace vitamin::daemon
