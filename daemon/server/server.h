// SPDX-License-Identifier: Apache-2.0
//
// vitamind's event loop: one thread around the connections that come (Reception), the clients'
// sessions, and one DeviceArbiter for each device (Devices).
//
// While there is work it goes round without a system call but for a look at its descriptors every
// now and then; after `spin` without any (20 ms while somebody waits for a lease) it parks
// (daemon/protocol/park.h) and sleeps in epoll until a client rings, connects or dies, or the
// scheduler's next time has come.
//
// Clients that work come first: while somebody asks, of those who connect one is taken a look, and
// who comes in, tools among them, has a small share of the time (Pace), so that neither a flood of
// connections nor processes that come and go keep a lease waiting for longer than one of them
// takes.
//
// It trusts nobody: identity is the kernel's word, memory is its own and sealed, records are
// copied once and validated, everything is bounded (Budgets). A client that breaks the protocol is
// let go, with the reason, and its leases are freed; the others notice nothing.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "daemon/arbiter/devices.h"
#include "daemon/arbiter/lease_record.h"
#include "daemon/arbiter/memory_quotas.h"
#include "daemon/from_configuration.h"
#include "daemon/jobs/claims.h"
#include "daemon/jobs/groups.h"
#include "daemon/jobs/jobs.h"
#include "daemon/jobs/pods.h"
#include "daemon/metrics/exposition.h"
#include "daemon/mps/mps.h"
#include "daemon/protocol/handshake.h"
#include "daemon/protocol/memory.h"
#include "daemon/protocol/socket.h"
#include "daemon/server/accounting.h"
#include "daemon/server/budget.h"
#include "daemon/server/death_watch.h"
#include "daemon/server/pace.h"
#include "daemon/server/reception.h"
#include "daemon/settings.h"

namespace vitamin::daemon {

struct ServerCounters {
  std::uint64_t let_go = 0;  // for breaking the protocol
  std::uint64_t deaths_by_life_line = 0;
  std::uint64_t deaths_by_pidfd = 0;
  std::uint64_t rings = 0;  // of clients' doorbells
  std::uint64_t sleeps = 0;
};

class Server final : public Outlet {
 public:
  // Listens from now on, until it ends and removes its socket's file, where that is still its own.
  // The error is a sentence for the user.
  static hal::Result<std::unique_ptr<Server>> create(const Settings& settings);
  ~Server() override;

  // Until stop(), or until it was idle for long enough. The exit code.
  int run();
  // From a signal handler or another thread.
  void stop();
  // Reads the configuration again: all of it, or, when it is invalid, nothing. From the same.
  void reload();

  std::string socket() const { return settings_.socket; }

 private:
  // Whose a client is, and what that lets it have.
  struct Standing {
    std::string workload_class;  // empty: none
    std::string job;             // the step whose share it is kept to; empty: none
    bool in_job = false;         // and it is a process of that step
    Container container;         // of a pod, or of none
    std::vector<GroupShare> shares;
    Traits traits;
  };
  struct Session {
    ClientId id = scheduler::kNoClient;
    protocol::Fd socket;
    protocol::Peer peer;
    protocol::Hello hello;
    protocol::SessionMemory memory;
    protocol::DaemonEnds rings;
    RecordBudget budget;
    Device* device = nullptr;
    std::string program;
    Standing standing;
    std::uint64_t since_ns = 0;
    ProcessIdentity process;
    std::size_t slot = LeaseRecord::kNoSlot;  // in the record
    bool dying = false;
    bool granted = false;              // grants were written and not published yet
    bool gates_closed = false;         // and gates closed
    std::uint32_t bounds_refused = 0;  // kinds of steps (StepKind) whose bound was said to be
  };
  explicit Server(const Settings& settings);
  hal::Status open();

  // Outlet: the answers of the arbiters
  void set_word(ClientId client, LaneId lane, protocol::LeaseWord word) override;
  bool grant(ClientId client, const protocol::Grant& grant) override;
  void gates_closed(ClientId client) override;
  void holds(ClientId client, EntryId entry, bool held) override;
  void told_all(ClientId client) override;
  void reports(ClientId client, bool wanted) override;

  bool turn(std::uint64_t now_ns);
  void look_at_progress(Device& device, std::uint64_t now_ns);
  bool read_requests(Session& session, std::uint64_t now_ns);
  void flush();
  void look_at_descriptors(int timeout_ms);
  bool hot(std::uint64_t now_ns) const;
  bool try_sleep(std::uint64_t now_ns);
  int sleep_limit(std::uint64_t now_ns) const;
  void watchdog(std::uint64_t now_ns);

  Standing standing_of(const Session& session);
  std::vector<GroupShare> shares_of(const config::WorkloadClass* workload, const Member& member,
                                    const GroupShare& job, const GroupShare& own);
  std::uint32_t group_number(const std::string& key);
  void forget_groups();
  // `cgroup`: cgroup_of() the peer.
  Member member_of(const protocol::Peer& peer, const std::string& cgroup) const;
  void limit_again(std::uint64_t now_ns);
  protocol::Welcome welcome_of(const Session& session, const DeviceArbiter::Home& home) const;
  void receive(Visitor visitor, std::uint64_t now_ns);
  void answer_next(std::uint64_t now_ns);
  void admit(Connection client, const protocol::Hello& hello, std::uint64_t now_ns);
  void answer(const Connection& tool, const std::string& verb);
  void tell_of_memory(const Connection& client, const std::string& verb);
  hal::Status send_quotas(const Connection& client, const std::string& uuid, std::uint64_t total,
                          const std::string& said, const std::string& program);
  bool bounds_memory() const;
  void memory_figures(Exposition& out) const;
  void usage_figures(Exposition& out);
  UsageOwner owner_of(const Session& session) const;
  UsageTotals used_by(const Session& session, std::uint64_t now_ns) const;
  nlohmann::json usage_record(const Session& session, std::uint64_t now_ns) const;
  std::string obey(const std::string& verb, uid_t uid);
  std::string obey_operator(const std::string& name, const std::string& rest);
  void hear(Session& session);
  void tell_of_bounds(Device& device, std::uint64_t now_ns);
  void look_for_dying(std::uint64_t now_ns);
  void remember(Session& session, EntryId home);
  void expect_back(Device& device, std::uint64_t now_ns);
  void end_absent(int pidfd, std::uint64_t now_ns);
  void let_go(Session& session, std::string_view why, std::uint64_t now_ns);
  void end_session(ClientId id, std::uint64_t now_ns);
  Session* session(ClientId id);
  void watch(int fd);
  nlohmann::json status() const;
  nlohmann::json client_status(const Session& session) const;
  std::string metrics();
  void name_devices();
  void device_counters(Exposition& out) const;
  nlohmann::json mps_status() const;
  nlohmann::json let_go_users() const;

  void read_configuration();

  Settings settings_;
  std::uint32_t epoch_;
  protocol::PlacedFile file_;
  protocol::Fd epoll_, stop_, reload_;
  std::unique_ptr<Reception> reception_;
  std::unique_ptr<DeathWatch> deaths_;
  std::unique_ptr<Mps> mps_;
  LeaseRecord record_;
  Devices devices_;
  Classes classes_;
  std::map<ClientId, std::unique_ptr<Session>> sessions_;
  std::map<int, ClientId> by_socket_, by_pidfd_;
  struct Absent {  // a process of the daemon before this one that is not back
    ClientId id;
    protocol::Fd pidfd;
  };
  std::map<int, Absent> absent_;  // by pidfd, until it ends
  std::vector<Session*> dirty_;
  Accounting accounting_;
  Jobs jobs_;
  Claims claims_;
  std::map<std::string, std::uint32_t> group_numbers_;  // of groups of classes; by class and name
  std::uint32_t groups_begun_ = 0;
  mutable MemoryQuotas memory_quotas_;  // a look at them takes back what the dead had
  std::string configuration_problem_;   // of the last reload; empty: it was good
  ClientId next_client_ = 1;
  std::uint64_t turns_ = 0;
  std::uint64_t started_ns_ = 0;
  std::uint64_t busy_ns_ = 0;      // when there was work last
  std::uint64_t looked_ns_ = 0;    // at the descriptors
  std::uint64_t alone_ns_ = 0;     // since when there is no client
  std::uint64_t watchdog_ns_ = 0;  // when the service manager is told next
  std::uint64_t watchdog_every_ns_ = 0;
  bool stopping_ = false;
  // While clients ask for leases, those who come have a 64th of the time, of which they may have
  // saved so much, and so have tools. A session's beginning takes some 100 us, a look at the status
  // more.
  Pace visits_{64, 20'000'000}, questions_{64, 20'000'000};
  // By tools, and not answered yet: of all users and of one. Who asks beyond that is refused, so
  // that tools keep no client from coming.
  static constexpr std::size_t kMostAsked = 64, kMostAskedOfUser = 32;
  std::deque<Visitor> asked_;
  uid_t answered_ = static_cast<uid_t>(-1);  // whose was answered last
  bool postponed_ = false;                   // at the last look: somebody waits for that
  ServerCounters counters_;
};

}  // namespace vitamin::daemon
