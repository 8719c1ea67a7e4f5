// SPDX-License-Identifier: Apache-2.0
//
// vitamind's event loop: one thread that serves new connections (PendingConnections), the clients'
// sessions, and one DeviceArbiter for each device (Devices).
//
// While there is work the loop makes no system call but a poll of its descriptors every 100 us.
// After `spin` without work (20 ms while a client waits for a grant) it says that it sleeps
// (daemon/protocol/sleep_flag.h) and waits in epoll until a client rings, connects or dies, or
// until the scheduler's next wake-up time.
//
// Requests of connected clients are served before new connections: while clients send requests, one
// connection is accepted in each poll, and new clients and tools each have a small share of the
// time (LeakyBucket). So neither a flood of connections nor processes that start and end all the
// time delay a grant by more than one handshake.
//
// The server trusts no client: it identifies clients by what the kernel reports, shares only memory
// that it made and sealed, copies each record once and validates it, and bounds every resource
// (Budgets). A client that breaks the protocol is evicted, with the reason, and its leases are
// freed; other clients are not affected.
//
// Threads: all functions but stop() and reload() are called by the thread that calls run().
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
#include "daemon/metrics/prometheus_text.h"
#include "daemon/mps/domains.h"
#include "daemon/protocol/handshake.h"
#include "daemon/protocol/session_memory.h"
#include "daemon/protocol/socket.h"
#include "daemon/server/accounting.h"
#include "daemon/server/leaky_bucket.h"
#include "daemon/server/liveness_watcher.h"
#include "daemon/server/pending_connections.h"
#include "daemon/server/record_budget.h"
#include "daemon/settings.h"

namespace vitamin::daemon {

struct ServerCounters {
  std::uint64_t evicted = 0;  // sessions ended for breaking the protocol
  std::uint64_t deaths_by_life_line = 0;
  std::uint64_t deaths_by_pidfd = 0;
  std::uint64_t rings = 0;  // messages on doorbells
  std::uint64_t sleeps = 0;
};

class Server final : public GrantSink {
 public:
  // Listens at the socket; the destructor removes the socket's file if no other daemon has replaced
  // it. The error is a sentence for the user.
  static hal::Result<std::unique_ptr<Server>> create(const Settings& settings);
  ~Server() override;

  // Serves until stop(), or until there was no client for exit_when_idle. Returns the exit code.
  int run();
  // Ends run(). Any thread, or a signal handler.
  void stop();
  // Makes run() read the configuration again; an invalid one is logged and changes nothing. Any
  // thread, or a signal handler.
  void reload();

  std::string socket() const { return settings_.socket; }

 private:
  // The class, job and container of a client, and the limits that follow from them.
  struct Entitlement {
    std::string workload_class;  // empty: none
    std::string job;             // the step or claim whose share bounds it; empty: none
    bool in_job = false;         // it is a process of that step
    Container container;
    std::vector<GroupShare> shares;
    ClientTraits traits;
  };
  struct Session {
    ClientId id = scheduler::kNoClient;
    protocol::Fd socket;
    protocol::Peer peer;
    protocol::Hello hello;
    protocol::SessionMemory memory;
    protocol::DaemonEnds rings;
    RecordBudget budget;
    ServedDevice* device = nullptr;
    std::string program;
    Entitlement entitlement;
    std::uint64_t since_ns = 0;
    ProcessIdentity process;
    std::size_t slot = LeaseRecord::kNoSlot;  // in the record
    bool dying = false;
    bool granted = false;       // grants were written and not published yet
    bool gates_closed = false;  // gates were closed and the client not notified yet
    // check_domains(): how often in a row another domain's MPS named it, that domain, and
    // Whereabouts::listings of the last time.
    unsigned domain_doubts = 0;
    std::string domain_found;
    std::uint64_t domain_listings = 0;
    bool parked = false;                  // as `vitamin park` said (parking.cpp)
    std::uint64_t parked_operations = 0;  // how many it had submitted when it was parked
    std::uint32_t bounds_refused = 0;     // bits of StepKind: bounds whose refusal was logged
  };
  struct AssignedDomain {
    std::string domain;     // daemon/mps/domains.h
    std::string directory;  // CUDA_MPS_PIPE_DIRECTORY in it; empty: none
    std::string state;      // name_of(MpsState)
    std::string problem;    // of its MPS
  };
  explicit Server(const Settings& settings);
  hal::Status open();

  // GrantSink: the answers of the arbiters
  void set_word(ClientId client, LaneId lane, protocol::LeaseWord word) override;
  bool grant(ClientId client, const protocol::Grant& grant) override;
  void gates_closed(ClientId client) override;
  void holds_partition(ClientId client, PartitionId partition, bool held) override;
  void reported_earlier_work(ClientId client) override;
  void set_reporting(ClientId client, bool wanted) override;

  bool turn(std::uint64_t now_ns);
  void read_progress(ServedDevice& device, std::uint64_t now_ns);
  bool read_requests(Session& session, std::uint64_t now_ns);
  void flush();
  void poll_descriptors(int timeout_ms);
  bool is_busy(std::uint64_t now_ns) const;
  bool try_sleep(std::uint64_t now_ns);
  int sleep_limit(std::uint64_t now_ns) const;
  void watchdog(std::uint64_t now_ns);

  // `stays_in`: the class that the client has already; empty: it is found.
  Entitlement entitlement_of(const Session& session, const std::string& stays_in = {});
  std::vector<GroupShare> shares_of(const config::WorkloadClass* workload, const Member& member,
                                    const GroupShare& job, const GroupShare& own);
  std::uint32_t group_number(const std::string& key);
  void forget_groups();
  // `cgroup`: cgroup_of() the peer.
  Member member_of(const protocol::Peer& peer, const std::string& cgroup) const;
  void apply_terms(std::uint64_t now_ns);
  protocol::Welcome welcome_of(const Session& session,
                               const DeviceArbiter::Fallback& fallback) const;
  void receive(FirstMessage first, std::uint64_t now_ns);
  void answer_next_tool(std::uint64_t now_ns);
  void admit(Connection client, const protocol::Hello& hello, std::uint64_t now_ns);
  void answer(Connection& tool, const std::string& verb);
  void answer_memory_quotas(Connection& client, const std::string& verb);
  hal::Status send_quotas(Connection& client, const std::string& uuid, std::uint64_t total,
                          const std::string& said, const std::string& program);
  std::vector<const config::WorkloadClass*> memory_classes(const config::WorkloadClass* workload,
                                                           const protocol::Peer& peer);
  void warn_of_unbounded_memory();
  bool bounds_memory() const;
  void add_memory_metrics(PrometheusText& out) const;
  void add_usage_metrics(PrometheusText& out);
  UsageOwner owner_of(const Session& session) const;
  UsageTotals used_by(const Session& session, std::uint64_t now_ns) const;
  static std::uint64_t owner_number(const ProcessIdentity& process);
  std::optional<std::uint64_t> memory_of(const Session& session) const;
  nlohmann::json usage_record(const Session& session, std::uint64_t now_ns) const;
  std::string execute(const std::string& verb, const protocol::Peer& peer);
  std::string execute_operator(const std::string& name, const std::string& rest);
  void read_doorbell(Session& session);
  void warn_of_refused_bounds(ServedDevice& device, std::uint64_t now_ns);
  void check_liveness(std::uint64_t now_ns);
  void record_session(Session& session, PartitionId fallback);
  void reserve_for_absent(ServedDevice& device, std::uint64_t now_ns);
  void forget_absent(int pidfd, std::uint64_t now_ns);
  void evict(Session& session, std::string_view why, std::uint64_t now_ns);
  void end_session(ClientId id, std::uint64_t now_ns);
  Session* session(ClientId id);
  void watch(int fd);
  nlohmann::json status() const;
  nlohmann::json client_status(const Session& session) const;
  std::string metrics();
  void label_devices();
  void add_device_counters(PrometheusText& out) const;
  nlohmann::json mps_status() const;
  nlohmann::json configuration_status() const;
  nlohmann::json domains_status() const;
  void add_domain_metrics(PrometheusText& out) const;
  // The class of a program: what its claim of devices says, else its job, else what it asks for.
  // `by_claim`, `by_job`: null where the process has none.
  const config::WorkloadClass* class_told(const std::string* by_claim, const std::string* by_job,
                                          const protocol::Claim& claim, const std::string& program,
                                          const protocol::Peer& peer);
  const config::WorkloadClass* class_of_process(const protocol::Peer& peer,
                                                const protocol::Claim& claim,
                                                const std::string& program);
  AssignedDomain assigned_domain(const protocol::Peer& peer,
                                 const config::WorkloadClass* workload) const;
  std::string domain_of(const protocol::Peer& peer, const protocol::Hello& hello);
  void check_domains(std::uint64_t now_ns);
  std::string elsewhere(Session& session);
  std::string answer_isolation(const protocol::Peer& peer, const std::string& rest);
  nlohmann::json evicted_users() const;
  std::string answer_parking(const std::string& verb, uid_t uid);
  void set_parked(Session& session, bool parked, std::uint64_t now_ns);
  static bool is_parked(const Session& session);
  scheduler::ClientTerms terms_in_force(const Session& session) const;

  void read_configuration();

  Settings settings_;
  std::uint32_t epoch_;
  protocol::PlacedFile file_;
  protocol::Fd epoll_, stop_, reload_;
  std::unique_ptr<PendingConnections> pending_;
  std::unique_ptr<LivenessWatcher> liveness_watcher_;
  std::unique_ptr<MpsDomains> mps_;
  LeaseRecord record_;
  Devices devices_;
  Classes classes_;
  std::map<ClientId, std::unique_ptr<Session>> sessions_;
  std::map<int, ClientId> by_socket_, by_pidfd_;
  struct Absent {  // a process of a former daemon that has not connected yet
    ClientId id;
    protocol::Fd pidfd;
  };
  std::map<int, Absent> absent_;  // by pidfd, until the process ends
  std::vector<Session*> dirty_;
  Accounting accounting_;
  Jobs jobs_;
  Claims claims_;
  std::map<std::string, std::uint32_t> group_numbers_;  // of classes' groups, by class and name
  std::uint32_t groups_begun_ = 0;
  mutable MemoryQuotas memory_quotas_;  // reading them removes members that have ended
  bool quotas_failed_ = false;  // the last request for memory quotas, so that it is logged once
  std::string configuration_problem_;   // of the last reload; empty: it succeeded
  std::uint64_t configured_ns_ = 0;     // when the configuration in force was read
  std::uint64_t reload_failed_ns_ = 0;  // when the last reload failed
  ClientId next_client_ = 1;
  std::uint64_t turns_ = 0;
  std::uint64_t started_ns_ = 0;
  std::uint64_t worked_ns_ = 0;                 // when a turn last had work
  std::uint64_t polled_ns_ = 0;                 // when the descriptors were last polled
  std::uint64_t no_session_since_ns_ = 0;       // when the last session ended
  std::uint64_t domains_ns_ = 0;                // when check_domains() looks next
  std::map<pid_t, ProcessIdentity> misplaced_;  // processes that claimed a domain they are not in
  std::uint64_t watchdog_ns_ = 0;               // when the service manager is notified next
  std::uint64_t watchdog_every_ns_ = 0;
  bool stopping_ = false;
  // While clients send requests, new clients have a 64th of the time, and so have tools, with
  // bursts of 20 ms each. Beginning a session takes some 100 us, writing the status longer.
  LeakyBucket admission_time_{64, 20'000'000}, tool_time_{64, 20'000'000};
  // The most requests of tools that are not answered yet, of all users and of one. Further ones are
  // refused, so that tools do not keep clients from connecting.
  static constexpr std::size_t kToolRequestsMax = 64, kToolRequestsOfUserMax = 32;
  std::deque<FirstMessage> tool_requests_;
  uid_t answered_user_ = static_cast<uid_t>(-1);  // whose tool was answered last
  bool work_postponed_ = false;  // at the last poll: connections or tools wait for their share
  ServerCounters counters_;
};

}  // namespace vitamin::daemon
