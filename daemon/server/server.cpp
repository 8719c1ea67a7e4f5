// SPDX-License-Identifier: Apache-2.0
//
// The loop: rings, sleep, descriptors.
#include "daemon/server/server.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "daemon/config/isolation.h"
#include "daemon/log.h"
#include "daemon/protocol/liveness.h"
#include "daemon/server/notify.h"
#include "hal/processor.h"
#include "runtime/clock.h"
#include "runtime/problem.h"
#include "scheduler/policies/registry.h"

namespace vitamin::daemon {
namespace {

using runtime::now_ns;
using std::chrono::nanoseconds;

// While a client waits for a grant, the client whose gate was closed answers soon, and in a virtual
// machine a sleeping CPU wakes up 50 to 100 us late. So the loop spins for this time, yielding the
// CPU to other threads.
constexpr std::uint64_t kSpinWhileAwaited = 20'000'000;
constexpr std::uint64_t kPollEvery = 100'000;  // ns between polls of the descriptors
// After a request, clients are expected to send further ones within this time.
constexpr std::uint64_t kBusyFor = 10'000'000;

std::uint64_t in_ns(nanoseconds duration) { return static_cast<std::uint64_t>(duration.count()); }

std::uint32_t new_epoch() {
  std::uint32_t epoch = 0;
  while (epoch == 0)  // 0 marks fallback work (daemon/client/lease_client.cpp)
    if (::getrandom(&epoch, sizeof epoch, 0) < 0) epoch = 1;
  return epoch;
}

}  // namespace

hal::Result<std::unique_ptr<Server>> Server::create(const Settings& settings) {
  // Find out now, not with the first client, whether the policy can be made.
  const config::PolicySettings& wanted = settings.configuration.policy;
  if (auto policy = scheduler::check(wanted.specification()); !policy)
    return tl::unexpected(policy.error());
  std::unique_ptr<Server> server(new Server(settings));
  if (auto opened = server->open(); !opened) return tl::unexpected(opened.error());
  return server;
}

Server::Server(const Settings& settings)
    : settings_(settings),
      epoch_(new_epoch()),
      devices_(settings_, epoch_, *this),
      classes_(settings_) {}

Server::~Server() {
  // First, so that the record keeps what the clients hold now.
  record_.close(now_ns());
  for (auto& [id, session] : sessions_) session->slot = LeaseRecord::kNoSlot;
  while (!sessions_.empty()) end_session(sessions_.begin()->first, now_ns());
  pending_.reset();
  file_.remove();
}

hal::Status Server::open() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  auto listener = protocol::listen_at(settings_.socket, settings_.socket_mode, &file_);
  if (!listener) return tl::unexpected(listener.error());
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  reload_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !stop_ || !reload_ || memory_quotas_.descriptor() < 0)
    return hal::fail(hal::Errc::kOutOfMemory, "no more descriptors can be made", errno);
  liveness_watcher_ = std::make_unique<LivenessWatcher>();
  for (const int fd :
       {stop_.get(), reload_.get(), liveness_watcher_->descriptor(), memory_quotas_.descriptor()})
    watch(fd);
  pending_ = std::make_unique<PendingConnections>(std::move(*listener), settings_,
                                                  [this](int fd) { watch(fd); });
  const auto directory = std::filesystem::path(settings_.socket).parent_path();
  mps_ = std::make_unique<MpsDomains>(settings_.configuration, (directory / "mps").native());
  started_ns_ = no_session_since_ns_ = worked_ns_ = configured_ns_ = now_ns();
  // Room for as many sessions again, for clients that reconnect or replace others.
  const std::size_t sessions = std::size_t{2} * settings_.configuration.daemon.clients;
  std::string problem;
  record_ = LeaseRecord::at(settings_.socket + ".leases", sessions, started_ns_,
                            ArbiterSettings().drain_within_ns, problem);
  if (!problem.empty())
    log::warn(
        "leases cannot be recorded ({}): after a restart of vitamind, leases may overlap work that "
        "still runs [{}]",
        problem, runtime::code_of(runtime::Problem::kDaemonDirectory));
  if (const auto interval = watchdog_interval()) watchdog_every_ns_ = in_ns(*interval) / 3;
  return {};
}

void Server::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    log::error("a descriptor cannot be watched, so what comes there is not noticed: {}",
               std::strerror(errno));
}

void Server::stop() { ::eventfd_write(stop_.get(), 1); }

void Server::reload() { ::eventfd_write(reload_.get(), 1); }

int Server::run() {
  notify("READY=1");
  while (!stopping_) {
    const std::uint64_t now_ns = runtime::now_ns();
    if (turn(now_ns)) worked_ns_ = now_ns;
    watchdog(now_ns);
    check_domains(now_ns);
    const std::uint64_t quiet = now_ns - worked_ns_, spin = settings_.configuration.daemon.spin_ns;
    const bool stays = quiet < spin ||
                       (spin > 0 && quiet < kSpinWhileAwaited && devices_.waits_for_answer()) ||
                       (work_postponed_ && is_busy(now_ns));
    if (!stays) {
      if (try_sleep(now_ns)) continue;
    } else if (now_ns - polled_ns_ >= kPollEvery) {
      poll_descriptors(0);
    } else if (quiet >= spin && !work_postponed_) {  // postponed work must not wait for the CPU
      ::sched_yield();
    } else {
      hal::spin_pause();
    }
  }
  notify("STOPPING=1");
  log::info("ending: {} clients go on in their fallback partitions", sessions_.size());
  return 0;
}

// --- one turn --------------------------------------------------------------------------------

// True: there was work.
bool Server::turn(std::uint64_t now_ns) {
  ++turns_;
  bool busy = false;
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    Session& session = *(it++)->second;  // read_requests() may evict it
    busy = read_requests(session, now_ns) || busy;
  }
  for (auto& [key, device] : devices_) {
    if (!device.touched && device.arbiter->wake_at() > now_ns) continue;
    device.touched = false;
    if (device.arbiter->wants_progress(now_ns)) read_progress(device, now_ns);
    device.arbiter->step(now_ns);
    devices_.report_policy_fault(device);
    warn_of_refused_bounds(device, now_ns);
    busy = true;
  }
  flush();
  return busy;
}

bool Server::read_requests(Session& session, std::uint64_t now_ns) {
  if (session.parked && !is_parked(session)) set_parked(session, false, now_ns);
  protocol::DaemonSegment& segment = *session.memory.daemon;
  segment.turns.store(turns_, std::memory_order_relaxed);
  if (!session.dying &&
      protocol::owner_died(session.memory.client->liveness.load(std::memory_order_relaxed)))
    check_liveness(now_ns);
  const protocol::Bounds bounds{session.device->arbiter->layout().size(), session.device->info.sms};
  protocol::Record copy;
  std::size_t taken = 0;
  protocol::RingState state = protocol::RingState::kOk;
  while (taken < session.budget.left() &&
         (state = session.rings.requests.read(copy)) == protocol::RingState::kOk) {
    const auto request = protocol::decode_request(copy, bounds);
    if (!request) {
      evict(session, request.error().what, now_ns);
      return true;
    }
    session.device->arbiter->request(session.id, *request, now_ns);
    ++taken;
  }
  if (state == protocol::RingState::kBroken) {
    evict(session, "an impossible ring index", now_ns);
    return true;
  }
  session.budget.took(taken);
  if (taken == 0) return false;
  session.rings.requests.release();
  session.device->touched = true;
  return true;
}

// Reads one cache line of each client, and is called only when the policy needs it.
void Server::read_progress(ServedDevice& device, std::uint64_t now_ns) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  for (const auto& [id, session] : sessions_) {
    if (session->device != &device) continue;
    const protocol::ClientSegment& own = *session->memory.client;
    device.arbiter->set_progress(
        id,
        {own.work.load(kRelaxed), own.busy_ns.load(kRelaxed), own.misplaced.load(kRelaxed),
         own.launches.load(kRelaxed), own.collectives.load(kRelaxed)},
        now_ns);
  }
}

// --- answers ---------------------------------------------------------------------------------

Server::Session* Server::session(ClientId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void Server::set_word(ClientId client, LaneId lane, protocol::LeaseWord word) {
  if (Session* session = this->session(client))
    session->memory.daemon->leases[lane].store(word, std::memory_order_release);
}

bool Server::grant(ClientId client, const protocol::Grant& grant) {
  Session* session = this->session(client);
  if (session == nullptr) return true;
  if (session->rings.grants.write(protocol::encode(grant)) != protocol::RingState::kOk)
    return false;
  if (!session->granted && !session->gates_closed) dirty_.push_back(session);
  session->granted = true;
  return true;
}

void Server::gates_closed(ClientId client) {
  Session* session = this->session(client);
  if (session == nullptr) return;
  if (!session->granted && !session->gates_closed) dirty_.push_back(session);
  session->gates_closed = true;
}

void Server::holds_partition(ClientId client, PartitionId partition, bool held) {
  if (const Session* session = this->session(client)) record_.holds(session->slot, partition, held);
}

void Server::reported_earlier_work(ClientId client) {
  if (const Session* session = this->session(client))
    record_.reported(session->process, session->device->key);
}

void Server::set_reporting(ClientId client, bool wanted) {
  Session* session = this->session(client);
  if (session == nullptr) return;
  session->memory.daemon->reporting.store(wanted ? 1 : 0, std::memory_order_release);
  gates_closed(client);
}

// Publishes what the arbiters wrote: one store and at most one doorbell for each client.
void Server::flush() {
  for (Session* session : dirty_) {
    protocol::DaemonSegment& segment = *session->memory.daemon;
    if (session->gates_closed) {
      const std::uint32_t changes = segment.gate_changes.load(std::memory_order_relaxed);
      segment.gate_changes.store(changes + 1, std::memory_order_seq_cst);
    }
    if (session->granted) session->rings.grants.publish();
    session->granted = session->gates_closed = false;
    if (session->memory.client->sleep_flag.asleep()) protocol::ring_doorbell(session->socket);
  }
  dirty_.clear();
}

// --- sleep -----------------------------------------------------------------------------------

int Server::sleep_limit(std::uint64_t now_ns) const {
  std::uint64_t until = std::min(devices_.wake_at(), pending_->wake_at(now_ns));
  if (watchdog_every_ns_ > 0) until = std::min(until, watchdog_ns_);
  if (!tool_requests_.empty()) until = now_ns;
  if (!sessions_.empty() && config::isolates(settings_.configuration))
    until = std::min(until, domains_ns_);
  const std::uint64_t idle_ns = settings_.configuration.daemon.exit_when_idle_ns;
  if (idle_ns > 0 && sessions_.empty()) until = std::min(until, no_session_since_ns_ + idle_ns);
  if (until == kNever) return -1;
  // Rounded up: a wake-up before the time would find no work.
  return until <= now_ns ? 0
                         : static_cast<int>(std::min<std::uint64_t>(
                               (until - now_ns + 999'999) / 1'000'000, 1'000'000));
}

// Tells every session to ring, then sleeps unless a request arrived meanwhile. False: there is
// work.
bool Server::try_sleep(std::uint64_t now_ns) {
  bool idle = true;
  for (const auto& [id, session] : sessions_) {
    const auto nothing = [&rings = session->rings] { return rings.requests.empty(); };
    idle = session->memory.daemon->sleep_flag.try_sleep(nothing) && idle;
  }
  if (idle) ++counters_.sleeps;
  poll_descriptors(idle ? sleep_limit(now_ns) : 0);
  for (const auto& [id, session] : sessions_) session->memory.daemon->sleep_flag.wake();
  if (!idle) worked_ns_ = now_ns;
  return idle;
}

// Whether a turn had work lately, so that clients are expected to send further requests.
bool Server::is_busy(std::uint64_t now_ns) const { return now_ns - worked_ns_ < kBusyFor; }

void Server::poll_descriptors(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  const std::uint64_t now_ns = polled_ns_ = runtime::now_ns();
  const bool busy = this->is_busy(now_ns);
  // One tool is answered and one first message received between two turns: an answer may take
  // milliseconds.
  answer_next_tool(now_ns);
  bool receives = !busy || admission_time_.next(now_ns) <= now_ns;
  bool connection_pending = false;
  work_postponed_ = !receives && pending_->wake_at(now_ns) <= now_ns;
  // Clients that had to wait are few, so they may come before the others.
  if (receives)
    if (auto first = pending_->next_admitted(now_ns)) {
      receives = false;
      receive(std::move(*first), now_ns);
    }
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == stop_.get()) {
      stopping_ = true;
    } else if (fd == reload_.get()) {
      eventfd_t told = 0;
      ::eventfd_read(fd, &told);
      read_configuration();
    } else if (fd == pending_->descriptor()) {
      connection_pending = true;
    } else if (fd == liveness_watcher_->descriptor()) {
      eventfd_t told = 0;
      ::eventfd_read(fd, &told);
      check_liveness(now_ns);
    } else if (fd == memory_quotas_.descriptor()) {
      memory_quotas_.remove_ended();
    } else if (const auto pidfd = by_pidfd_.find(fd); pidfd != by_pidfd_.end()) {
      ++counters_.deaths_by_pidfd;
      end_session(pidfd->second, now_ns);
    } else if (absent_.contains(fd)) {
      forget_absent(fd, now_ns);
    } else if (const auto socket = by_socket_.find(fd); socket != by_socket_.end()) {
      read_doorbell(*sessions_.at(socket->second));
    } else if (!receives) {
      work_postponed_ = true;
    } else if (auto first = pending_->read(fd, now_ns)) {
      receives = false;
      receive(std::move(*first), now_ns);
    }
  }
  // Last: a new connection may get a descriptor number that was closed above, and later events of
  // this poll may still refer to the old one.
  if (connection_pending) pending_->accept(now_ns, busy ? 1 : 16);
  work_postponed_ = work_postponed_ || (connection_pending && busy) || !tool_requests_.empty();
  pending_->drop_expired(now_ns);
  const std::uint64_t idle_ns = settings_.configuration.daemon.exit_when_idle_ns;
  if (idle_ns > 0 && sessions_.empty() && pending_->empty() &&
      now_ns - no_session_since_ns_ >= idle_ns) {
    log::info("no client for {}", config::duration_text(idle_ns));
    stopping_ = true;
  }
}

void Server::read_configuration() {
  if (!settings_.reload) return;
  const config::Loaded loaded = settings_.reload();
  hal::Status applied = {};
  if (loaded.valid()) applied = devices_.apply(loaded.configuration);
  configuration_problem_ = !loaded.valid() ? loaded.why() : applied ? "" : applied.error().message;
  if (configuration_problem_.empty()) {
    settings_.configuration = loaded.configuration;
    settings_.files = loaded.files;
    configured_ns_ = polled_ns_;
    mps_->apply(settings_.configuration);
    memory_quotas_.apply(settings_.configuration);
    apply_terms(polled_ns_);
    warn_of_unbounded_memory();
    log::info("the configuration was read again ({} files)", loaded.files.size());
    return;
  }
  reload_failed_ns_ = polled_ns_;
  const char* const code = runtime::code_of(runtime::Problem::kConfiguration);
  for (const config::ConfigProblem& problem : loaded.problems)
    log::error("{} [{}]", config::text_of(problem, false), code);
  if (!applied) log::error("{} [{}]", applied.error().message, code);
  log::error("the configuration is invalid: the former one stays in force [{}]", code);
}

void Server::watchdog(std::uint64_t now_ns) {
  if (watchdog_every_ns_ == 0 || now_ns < watchdog_ns_) return;
  notify("WATCHDOG=1");
  watchdog_ns_ = now_ns + watchdog_every_ns_;
}

}  // namespace vitamin::daemon
