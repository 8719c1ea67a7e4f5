// SPDX-License-Identifier: Apache-2.0
//
// vitamind's event loop: one thread around one DeviceArbiter for each device.
//
// While there is work it goes round without a system call but for a look at its descriptors every
// now and then; after `spin` without any (20 ms while somebody waits for a lease) it parks
// (protocol/park.h) and sleeps in epoll until somebody rings, connects or dies, or the scheduler's
// next time has come.
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

#include "daemon/death_watch.h"
#include "daemon/device_arbiter.h"
#include "daemon/exposition.h"
#include "daemon/jobs.h"
#include "daemon/mps.h"
#include "daemon/placement.h"
#include "daemon/settings.h"
#include "policies/bounded.h"
#include "protocol/handshake.h"
#include "protocol/memory.h"
#include "protocol/socket.h"

namespace vitamin::daemon {

struct ServerCounters {
  std::uint64_t connections = 0;
  std::uint64_t refused = 0;  // with a sentence
  std::uint64_t let_go = 0;   // for breaking the protocol
  std::uint64_t deaths_by_life_line = 0;
  std::uint64_t deaths_by_pidfd = 0;
  std::uint64_t rings = 0;  // of clients' doorbells
  std::uint64_t sleeps = 0;
};

class Server final : public Outlet {
 public:
  // Listens from now on. The error is a sentence for the user.
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
  struct Device {
    hal::DeviceInfo info;
    protocol::Fd lock;
    std::unique_ptr<runtime::trace::Recorder> trace;  // null: none
    std::unique_ptr<DeviceArbiter> arbiter;
    policies::Bounded* bounded = nullptr;  // the arbiter's policy
    std::string policy;
    std::uint64_t seed = 0;
    runtime::PoolLimits pool;
    bool drained = false;  // no new client
    bool touched = false;  // something was said since the last step
  };
  // A connection that has not said Hello yet, or a tool.
  struct Greeting {
    protocol::Fd socket;
    protocol::Peer peer;
    std::uint64_t until_ns = 0;
    std::string refused = {};  // why, told once it has said what it wants
  };
  struct Session {
    ClientId id = runtime::kNobody;
    protocol::Fd socket;
    protocol::Peer peer;
    protocol::SessionMemory memory;
    protocol::RequestConsumer requests;
    protocol::GrantProducer grants;
    Device* device = nullptr;
    std::string program;
    std::string workload_class;  // empty: none
    std::string job;             // the step whose share it is kept to; empty: none
    bool in_job = false;         // and it is a process of that step
    Traits traits;
    std::uint64_t since_ns = 0;
    bool dying = false;
    bool granted = false;       // grants were written and not published yet
    bool gates_closed = false;  // and gates closed
  };
  struct Banned {
    uid_t uid;
    pid_t pid;
    std::uint64_t until_ns;
    std::string why;
  };

  explicit Server(const Settings& settings);
  hal::Status open();

  // Outlet: the answers of the arbiters
  void set_word(ClientId client, LaneId lane, protocol::LeaseWord word) override;
  bool grant(ClientId client, const protocol::Grant& grant) override;
  void gates_closed(ClientId client) override;

  bool turn(std::uint64_t now_ns);
  void look_at_progress(Device& device, std::uint64_t now_ns);
  bool read_requests(Session& session, std::uint64_t now_ns);
  void flush();
  void look_at_descriptors(int timeout_ms);
  bool somebody_waits() const;
  bool try_sleep(std::uint64_t now_ns);
  int sleep_limit(std::uint64_t now_ns) const;
  void watchdog(std::uint64_t now_ns);

  void accept_all();
  void greet(int fd, std::uint64_t now_ns);
  void drop_late_greetings(std::uint64_t now_ns);
  void admit(Greeting greeting, const protocol::Hello& hello, std::uint64_t now_ns);
  hal::Result<Device*> device_for(const protocol::Hello& hello);
  void refuse(const Greeting& greeting, const std::string& sentence);
  void answer(const Greeting& greeting, const std::string& verb);
  std::string obey(const std::string& verb, uid_t uid);
  std::string obey_operator(const std::string& name, const std::string& rest);
  hal::Status allowed(const protocol::Peer& peer, std::uint64_t now_ns) const;
  void hear(Session& session);
  void look_for_dying(std::uint64_t now_ns);
  void let_go(Session& session, std::string_view why, std::uint64_t now_ns);
  void end_session(ClientId id, std::uint64_t now_ns);
  Session* session(ClientId id);
  void watch(int fd);
  nlohmann::json status() const;
  std::string metrics();
  void start_trace(Device& device, const ArbiterSettings& settings);
  void device_counters(Exposition& out) const;
  nlohmann::json mps_status() const;

  void move_next_to_gpus();
  void read_configuration();
  hal::Status apply(const config::Configuration& configuration);
  const config::WorkloadClass* class_for(const std::string& name, const std::string& program,
                                         uid_t uid);
  const std::vector<std::string>& user_names(uid_t uid);

  Settings settings_;
  std::uint32_t epoch_ = 0;
  protocol::Fd listener_, epoll_, stop_, reload_;
  std::unique_ptr<DeathWatch> deaths_;
  std::unique_ptr<Mps> mps_;
  std::unique_ptr<Placement> placement_;   // null: there is one NUMA node, or pinning is off
  std::vector<unsigned> allowed_;          // processors that the loop was given
  std::map<std::string, Device> devices_;  // by UUID
  std::map<std::string, Exposition::Labels> labels_;  // of the metrics, by UUID
  std::map<int, Greeting> greetings_;                 // by descriptor
  std::map<ClientId, std::unique_ptr<Session>> sessions_;
  std::map<int, ClientId> by_socket_, by_pidfd_;
  std::vector<Session*> dirty_;
  std::deque<Banned> banned_;
  Jobs jobs_;
  std::map<uid_t, std::vector<std::string>> user_names_;
  std::string configuration_problem_;  // of the last reload; empty: it was good
  ClientId next_client_ = 1;
  std::uint64_t turns_ = 0;
  std::uint64_t started_ns_ = 0;
  std::uint64_t busy_ns_ = 0;      // when there was work last
  std::uint64_t looked_ns_ = 0;    // at the descriptors
  std::uint64_t alone_ns_ = 0;     // since when there is no client
  std::uint64_t watchdog_ns_ = 0;  // when the service manager is told next
  std::uint64_t watchdog_every_ns_ = 0;
  bool stopping_ = false;
  ServerCounters counters_;
};

}  // namespace vitamin::daemon
