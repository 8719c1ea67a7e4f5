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
#include <filesystem>

#include "daemon/log.h"
#include "daemon/protocol/life.h"
#include "daemon/server/notify.h"
#include "runtime/clock.h"
#include "runtime/problem.h"
#include "scheduler/policies/registry.h"

namespace vitamin::daemon {
namespace {

using runtime::now_ns;
using std::chrono::nanoseconds;

// While somebody waits for a lease, its holder's answer is next: a processor that sleeps hears it
// 50 to 100 us late in a virtual machine. So long, and giving way to whoever wants the processor.
constexpr std::uint64_t kWaitedFor = 20'000'000;
constexpr std::uint64_t kLookEvery = 100'000;  // ns between looks at the descriptors while busy
// Clients that asked so lately ask again soon.
constexpr std::uint64_t kHot = 10'000'000;

std::uint64_t in_ns(nanoseconds duration) { return static_cast<std::uint64_t>(duration.count()); }

std::uint32_t new_epoch() {
  std::uint32_t epoch = 0;
  while (epoch == 0)  // 0 means "at home" to clients
    if (::getrandom(&epoch, sizeof epoch, 0) < 0) epoch = 1;
  return epoch;
}

}  // namespace

hal::Result<std::unique_ptr<Server>> Server::create(const Settings& settings) {
  // A policy that cannot be made is found out now, not when the first client comes.
  const config::Policy& wanted = settings.configuration.policy;
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
  // First: what the clients have now is what the next daemon believes.
  record_.close(now_ns());
  for (auto& [id, session] : sessions_) session->slot = LeaseRecord::kNoSlot;
  while (!sessions_.empty()) end_session(sessions_.begin()->first, now_ns());
  reception_.reset();
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
  if (!epoll_ || !stop_ || !reload_)
    return hal::fail(hal::Errc::kOutOfMemory, "no more descriptors can be made", errno);
  deaths_ = std::make_unique<DeathWatch>();
  for (const int fd : {stop_.get(), reload_.get(), deaths_->descriptor()}) watch(fd);
  reception_ =
      std::make_unique<Reception>(std::move(*listener), settings_, [this](int fd) { watch(fd); });
  const auto directory = std::filesystem::path(settings_.socket).parent_path();
  mps_ = std::make_unique<Mps>(settings_.configuration.mps, (directory / "mps").native());
  started_ns_ = alone_ns_ = busy_ns_ = now_ns();
  // Clients that come and go beside those that stay.
  const std::size_t sessions = std::size_t{2} * settings_.configuration.daemon.clients;
  std::string problem;
  record_ = LeaseRecord::at(settings_.socket + ".leases", sessions, started_ns_,
                            ArbiterSettings().drain_within_ns, problem);
  if (!problem.empty())
    log::warn(
        "who holds which leases cannot be recorded ({}): after a restart of vitamind, work that "
        "runs then is not waited for [{}]",
        problem, runtime::code_of(runtime::Problem::kDaemonDirectory));
  if (const auto interval = watchdog_interval()) watchdog_every_ns_ = in_ns(*interval) / 3;
  return {};
}

void Server::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Server::stop() { ::eventfd_write(stop_.get(), 1); }

void Server::reload() { ::eventfd_write(reload_.get(), 1); }

int Server::run() {
  notify("READY=1");
  while (!stopping_) {
    const std::uint64_t time = now_ns();
    if (turn(time)) busy_ns_ = time;
    watchdog(time);
    const std::uint64_t quiet = time - busy_ns_, spin = settings_.configuration.daemon.spin_ns;
    const bool stays = quiet < spin ||
                       (spin > 0 && quiet < kWaitedFor && devices_.somebody_waits()) ||
                       (postponed_ && hot(time));
    if (!stays) {
      if (try_sleep(time)) continue;
    } else if (time - looked_ns_ >= kLookEvery) {
      look_at_descriptors(0);
    } else if (quiet >= spin && !postponed_) {  // who knocks waits for us, not for a processor
      ::sched_yield();
    } else {
      __builtin_ia32_pause();
    }
  }
  notify("STOPPING=1");
  log::info("ending: {} clients go home", sessions_.size());
  return 0;
}

// --- one turn --------------------------------------------------------------------------------

// True: there was something to do.
bool Server::turn(std::uint64_t time) {
  ++turns_;
  bool busy = false;
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    Session& session = *(it++)->second;  // it may be let go meanwhile
    busy = read_requests(session, time) || busy;
  }
  for (auto& [key, device] : devices_) {
    if (!device.touched && device.arbiter->wake_at() > time) continue;
    device.touched = false;
    if (device.arbiter->wants_progress(time)) look_at_progress(device, time);
    device.arbiter->step(time);
    devices_.tell_of_fault(device);
    tell_of_bounds(device, time);
    busy = true;
  }
  flush();
  return busy;
}

bool Server::read_requests(Session& session, std::uint64_t time) {
  protocol::DaemonSegment& segment = *session.memory.daemon;
  segment.turns.store(turns_, std::memory_order_relaxed);
  if (!session.dying &&
      protocol::life_ended(session.memory.client->life.load(std::memory_order_relaxed)))
    look_for_dying(time);
  const protocol::Bounds bounds{session.device->arbiter->layout().size(),
                                session.device->info.processors};
  protocol::Record copy;
  std::size_t taken = 0;
  protocol::RingState state = protocol::RingState::kOk;
  while (taken < session.budget.left() &&
         (state = session.rings.requests.read(copy)) == protocol::RingState::kOk) {
    const auto request = protocol::decode_request(copy, bounds);
    if (!request) {
      let_go(session, request.error().what, time);
      return true;
    }
    session.device->arbiter->request(session.id, *request, time);
    ++taken;
  }
  if (state == protocol::RingState::kBroken) {
    let_go(session, "a ring index that cannot be", time);
    return true;
  }
  session.budget.took(taken);
  if (taken == 0) return false;
  session.rings.requests.release();
  session.device->touched = true;
  return true;
}

// A line of memory for each client, and only when the policy looks.
void Server::look_at_progress(Device& device, std::uint64_t time) {
  constexpr auto relaxed = std::memory_order_relaxed;
  for (const auto& [id, session] : sessions_) {
    if (session->device != &device) continue;
    const protocol::ClientSegment& own = *session->memory.client;
    device.arbiter->progressed(id,
                               {own.work.load(relaxed), own.busy_ns.load(relaxed),
                                own.misplaced.load(relaxed), own.launches.load(relaxed)},
                               time);
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

void Server::holds(ClientId client, EntryId entry, bool held) {
  if (const Session* session = this->session(client)) record_.holds(session->slot, entry, held);
}

void Server::told_all(ClientId client) {
  if (const Session* session = this->session(client))
    record_.told(session->process, session->device->key);
}

void Server::reports(ClientId client, bool wanted) {
  Session* session = this->session(client);
  if (session == nullptr) return;
  session->memory.daemon->reporting.store(wanted ? 1 : 0, std::memory_order_release);
  gates_closed(client);
}

// Publishes what the step wrote: one store, and at most one ring of the doorbell, for each client.
void Server::flush() {
  for (Session* session : dirty_) {
    protocol::DaemonSegment& segment = *session->memory.daemon;
    if (session->gates_closed) {
      const std::uint32_t changes = segment.gate_changes.load(std::memory_order_relaxed);
      segment.gate_changes.store(changes + 1, std::memory_order_seq_cst);
    }
    if (session->granted) session->rings.grants.publish();
    session->granted = session->gates_closed = false;
    if (session->memory.client->park.asleep()) protocol::ring_doorbell(session->socket);
  }
  dirty_.clear();
}

// --- sleep -----------------------------------------------------------------------------------

int Server::sleep_limit(std::uint64_t time) const {
  std::uint64_t until = std::min(devices_.wake_at(), reception_->next_ns(time));
  if (watchdog_every_ns_ > 0) until = std::min(until, watchdog_ns_);
  if (!asked_.empty()) until = time;
  const std::uint64_t idle_ns = settings_.configuration.daemon.exit_when_idle_ns;
  if (idle_ns > 0 && sessions_.empty()) until = std::min(until, alone_ns_ + idle_ns);
  if (until == kNever) return -1;
  // Rounded up: a millisecond early would be a turn for nothing.
  return until <= time ? 0
                       : static_cast<int>(std::min<std::uint64_t>(
                             (until - time + 999'999) / 1'000'000, 1'000'000));
}

// Parks in every session, then sleeps unless something came meanwhile. False: there is work.
bool Server::try_sleep(std::uint64_t time) {
  bool idle = true;
  for (const auto& [id, session] : sessions_)
    idle = session->memory.daemon->park.try_park([&] { return session->rings.requests.empty(); }) &&
           idle;
  if (idle) ++counters_.sleeps;
  look_at_descriptors(idle ? sleep_limit(time) : 0);
  for (const auto& [id, session] : sessions_) session->memory.daemon->park.unpark();
  if (!idle) busy_ns_ = time;
  return idle;
}

// Somebody has asked for something lately.
bool Server::hot(std::uint64_t time) const { return time - busy_ns_ < kHot; }

void Server::look_at_descriptors(int timeout_ms) {
  std::array<epoll_event, 64> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  const std::uint64_t time = looked_ns_ = now_ns();
  const bool hot = this->hot(time);
  // Between two turns one visitor is received: what tools are told takes milliseconds.
  answer_next(time);
  bool receives = !hot || visits_.next(time) <= time;
  bool knocks = false;
  postponed_ = !receives && reception_->next_ns(time) <= time;
  // They come rarely, so that nobody else is kept waiting for them.
  if (receives)
    if (auto visitor = reception_->due(time)) {
      receives = false;
      receive(std::move(*visitor), time);
    }
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == stop_.get()) {
      stopping_ = true;
    } else if (fd == reload_.get()) {
      eventfd_t told = 0;
      ::eventfd_read(fd, &told);
      read_configuration();
    } else if (fd == reception_->descriptor()) {
      knocks = true;
    } else if (fd == deaths_->descriptor()) {
      eventfd_t told = 0;
      ::eventfd_read(fd, &told);
      look_for_dying(time);
    } else if (const auto pidfd = by_pidfd_.find(fd); pidfd != by_pidfd_.end()) {
      ++counters_.deaths_by_pidfd;
      end_session(pidfd->second, time);
    } else if (absent_.contains(fd)) {
      end_absent(fd, time);
    } else if (const auto socket = by_socket_.find(fd); socket != by_socket_.end()) {
      hear(*sessions_.at(socket->second));
    } else if (!receives) {
      postponed_ = true;
    } else if (auto visitor = reception_->hear(fd, time)) {
      receives = false;
      receive(std::move(*visitor), time);
    }
  }
  // Last: who came gets the descriptors of those who have just gone, of whom more may be told
  // above.
  if (knocks) reception_->accept(time, hot ? 1 : 16);
  postponed_ = postponed_ || (knocks && hot) || !asked_.empty();
  reception_->drop_late(time);
  const std::uint64_t idle_ns = settings_.configuration.daemon.exit_when_idle_ns;
  if (idle_ns > 0 && sessions_.empty() && reception_->empty() && time - alone_ns_ >= idle_ns) {
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
    memory_quotas_.apply(settings_.configuration);
    limit_again(looked_ns_);
    log::info("the configuration was read again ({} files)", loaded.files.size());
    return;
  }
  for (const config::Problem& problem : loaded.problems)
    log::error("{}", config::text_of(problem, false));
  if (!applied) log::error("{}", applied.error().message);
  log::error("the configuration is invalid: what held before goes on");
}

void Server::watchdog(std::uint64_t time) {
  if (watchdog_every_ns_ == 0 || time < watchdog_ns_) return;
  notify("WATCHDOG=1");
  watchdog_ns_ = time + watchdog_every_ns_;
}

}  // namespace vitamin::daemon
