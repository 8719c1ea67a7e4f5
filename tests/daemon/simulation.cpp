// SPDX-License-Identifier: Apache-2.0
#include "tests/daemon/simulation.h"

#include <array>
#include <memory>
#include <random>
#include <variant>
#include <vector>

#include "scheduler/policies/registry.h"
#include "tests/daemon/simulated_client.h"

namespace vitamin::tests {
namespace {

class Node final : public daemon::GrantSink {
 public:
  explicit Node(const SimulationOptions& options)
      : options_(options), random_(options.seed), layout_(runtime::PoolLayout::build(device())) {}

  void begin() {
    for (const runtime::Partition& partition : layout_.partitions())
      if (!partition.whole()) eligible_.push_back(partition.id);
    eligible_.push_back(kWholeDevice);
    constexpr auto kSome = "random:max_sms=16,every=3", kCurves = "throughput:model=algorithm1";
    static constexpr const char* kPolicies[] = {
        "random:max_sms=16", kSome,      "static:parts=2",       "fifo", "random:max_sms=8",
        "throughput",        "extremes", "temporal:slice=100us", kCurves};
    policy_ = kPolicies[below(std::size(kPolicies))];
    if (some_have_bounds()) policy_ = options_.seed % 8 == 2 ? "slo" : "tpot-first";
    settings_.scheduler.starving_after_ns = 1'000'000;
    // With every third seed lanes have so few grants that they often wait for their own work.
    if (options_.seed % 3 == 0) settings_.scheduler.grants_per_stream = 2 + options_.seed / 3 % 2;
    settings_.answer_within_ns = kAnswerWithin;
    settings_.scheduler.quantum_ns = 50'000 + below(1'000'000);
    start_daemon();
    const std::uint64_t many = 1 + below(5);
    for (std::uint64_t i = 0; i < many; ++i) new_client();
  }

  SimulationResult run() {
    const std::uint64_t faulty_steps = 2'000 + below(6'000);
    for (result_.events = 0; result_.violation.empty(); ++result_.events) {
      now_ += below(2'000);
      faults_ = options_.faults && result_.events < faulty_steps;
      if (result_.events == faulty_steps) heal();
      if (faults_ && below(400) == 0)
        fault();
      else
        step();
      if (result_.events > faulty_steps && done()) break;
      if (result_.events > faulty_steps + kAfterFaults)
        fail("work is left that never ends" + state_of_clients());
    }
    if (result_.violation.empty()) check_nothing_held();
    result_.overdue += arbiter_->counters().overdue;
    for (const auto& c : clients_) result_.ring_full += c->leases->counters().ring_full;
    return std::move(result_);
  }

  // --- GrantSink: what vitamind's server does -------------------------------------------------
  void set_word(ClientId id, LaneId lane, protocol::LeaseWord word) override {
    if (Session* s = known(id)) s->daemons.leases[lane].store(word, std::memory_order_release);
  }
  bool grant(ClientId id, const protocol::Grant& grant) override {
    Session* s = known(id);
    if (s == nullptr) return true;
    if (below(50) == 0 && faults_ && !options_.restarts_only) return false;  // as if it were full
    if (s->rings.grants.write(protocol::encode(grant)) != protocol::RingState::kOk) {
      ++result_.ring_full;
      return false;
    }
    s->rings.grants.publish();
    note('g', id, grant.head.lane, grant.partition);
    return true;
  }
  void holds_partition(ClientId id, PartitionId partition, bool held) override {
    if (const Session* s = known(id)) record_.holds(s->slot, partition, held);
  }
  void reported_earlier_work(ClientId id) override {
    if (const Session* s = known(id)) record_.reported({s->process, 1}, kDevice);
  }
  void set_reporting(ClientId id, bool wanted) override {
    if (Session* s = known(id)) s->daemons.reporting.store(wanted ? 1 : 0);
  }
  void gates_closed(ClientId id) override {
    if (Session* s = known(id)) {
      auto& changes = s->daemons.gate_changes;
      changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
      note('c', id, 0, 0);
    }
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  // True for every fourth seed. Draws no random number, so that the other seeds stay the same.
  bool some_have_bounds() const { return options_.seed % 4 == 2; }

  void fail(const std::string& what) {
    if (result_.violation.empty())
      result_.violation = what + " (seed " + std::to_string(options_.seed) + ", step " +
                          std::to_string(result_.events) + ", policy " + policy_ + ")";
  }

  void note(char what, std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    for (const std::uint64_t word : {static_cast<std::uint64_t>(what), a, b, c, now_})
      result_.hash = (result_.hash ^ word) * 0x100000001b3;
    if (options_.trace)
      result_.trace += std::to_string(now_) + " " + what + " " + std::to_string(a) + " " +
                       std::to_string(b) + " " + std::to_string(c) + "\n";
  }

  Session* known(ClientId id) {
    for (auto& c : clients_)
      for (auto& session : c->sessions)
        if (session->id == id) return session.get();
    return nullptr;
  }

  // --- processes --------------------------------------------------------------------------
  void start_daemon() {
    arbiter_ = std::make_unique<daemon::DeviceArbiter>(layout_, settings_, ++epoch_, *this);
    arbiter_->use(std::move(*scheduler::make(policy_, arbiter_->context(options_.seed))));
    record_ = daemon::LeaseRecord(kSessions, now_, settings_.drain_within_ns,
                                  epoch_ == 1 ? nullptr : &record_);
    for (const daemon::ProcessIdentity& process : record_.absent(kDevice)) {
      const ClientId absent = next_id_++;
      for (const PartitionId partition : record_.before(process, kDevice))
        arbiter_->reserve_for_absent(absent, process.process, partition, record_.believed_until(),
                                     now_);
    }
    started_ns_ = now_;
    up_ = true;
  }

  void new_client() {
    clients_.push_back(std::make_unique<Client>(++processes_, layout_));
    for (SimulatedLane& lane : clients_.back()->lanes) lane.left = below(60);
  }

  // The handshake, in one step.
  void attach(Client& c) {
    Session& session = *c.sessions.emplace_back(std::make_unique<Session>(next_id_++, c.process));
    client::Link link(session.own, session.daemons);
    daemon::ClientTraits traits;
    traits.process = c.process;
    if (below(4) == 0) {  // a client before 1.7, or before 1.4
      if (below(2) == 0) link.operations = nullptr;
      link.daemon_minor = link.operations == nullptr ? 3 : 6;
      traits.minor = link.daemon_minor;
      // It cannot report work on the whole device.
      for (SimulatedLane& lane : c.lanes)
        for (Operation& running : lane.running)
          if (running.partition == kWholeDevice) running.epoch = 0;
    }
    if (some_have_bounds() && c.process % 3 == 0)
      traits.terms.slo.latency_ns = c.process % 2 == 0 ? 2'000'000 : 1;
    if (c.process % 5 == 4) traits.terms.limits.max_sms = 12;
    if (c.process % 7 == 5) traits.terms.limits.reserved_sms = 8;
    link.fallback = arbiter_->attach(session.id, traits).partition;
    link.answer_within_ns = kAnswerWithin;
    const daemon::ProcessIdentity process{c.process, 1};
    for (const PartitionId partition : record_.before(process, kDevice))
      arbiter_->accept_earlier_work(session.id, partition, record_.believed_until());
    session.slot = record_.begin(process, kDevice, link.fallback);
    c.attached = true;
    c.leases->connect(link, now_);
    c.lost = nullptr;
    note('a', c.process, session.id, link.fallback);
  }

  // As RemoteArbiter does once all earlier work is reported.
  void close_older(Client& c) {
    if (!c.attached || c.sessions.size() < 2 || !c.leases->has_reported_earlier_work()) return;
    while (c.sessions.size() > 1) end_session(c, *c.sessions.front());
  }

  void end_session(Client& c, const Session& ended) {
    arbiter_->forget(ended.id, now_);
    record_.end(ended.slot);
    note('x', c.process, ended.id, 0);
    std::erase_if(c.sessions, [&](const auto& session) { return session.get() == &ended; });
  }

  void step() {
    const std::uint64_t which = below(10);
    if (which < 3 && up_) return daemon_step();
    Client& c = *clients_[below(clients_.size())];
    if (!c.alive) return reap(c);
    if (now_ < c.stopped_until) return;
    if (!c.attached && up_ && below(3) == 0) return attach(c);
    if (which < 8)
      submit(c);
    else if (which < 9)
      end_operations(c);
    else
      c.leases->service(now_), close_older(c);
    check_counts(c);
    if (c.leases->counters().malformed > 0)
      fail("a client takes a correct daemon's records for malformed");
  }

  void daemon_step() {
    if (arbiter_->wants_progress(now_))
      for (auto& c : clients_)
        for (auto& session : c->sessions) {
          const protocol::ClientSegment& own = session->own;
          arbiter_->set_progress(
              session->id,
              {own.work.load(), own.busy_ns.load(), own.misplaced.load(), own.launches.load()},
              now_);
        }
    for (auto& c : clients_)
      for (std::size_t i = 0; i < c->sessions.size(); ++i)
        if (!read_requests(*c, *c->sessions[i])) return evict(*c, *c->sessions[i]);
    const std::uint64_t overdue = arbiter_->counters().overdue;
    held_ = arbiter_->held();
    arbiter_->step(now_);
    if (arbiter_->counters().overdue != overdue) {
      for (auto& c : clients_) c->mark_overdue(held_, arbiter_->held());
      note('o', 0, 0, 0);
    }
    check_leases();
  }

  bool read_requests(Client& c, Session& session) {  // false: it breaks the protocol
    protocol::Record copy;
    protocol::RingState state = protocol::RingState::kEmpty;
    for (std::uint64_t i = below(8); i > 0; --i) {
      state = session.rings.requests.read(copy);
      if (state != protocol::RingState::kOk) break;
      const auto request = protocol::decode_request(copy, {layout_.size(), device().sms});
      if (!request) return false;
      note('r', session.id, copy.words[0], copy.words[1]);
      const auto before = arbiter_->counters();
      arbiter_->request(session.id, *request, now_);
      if (const auto* holding = std::get_if<protocol::Holding>(&*request))
        check_report(c, session, *holding,
                     arbiter_->counters().overlaps == before.overlaps &&
                         arbiter_->counters().stale == before.stale);
    }
    session.rings.requests.release();
    return state != protocol::RingState::kBroken;
  }

  // Work that the daemon has adopted is protected like its own grants from now on. The daemon may
  // refuse only work on units that others hold by now, and work that has become overdue.
  void check_report(Client& c, const Session& session, const protocol::Holding& holding,
                    bool adopted) {
    const auto on = static_cast<PartitionId>(holding.partition);
    if (!adopted)  // others may have its units already, also when a later session reports it
      for (Operation& one : c.lanes[holding.head.lane % kLanes].running)
        one.contested = one.contested || one.partition == on;
    if (adopted) {
      for (Operation& one : c.lanes[holding.head.lane % kLanes].running)
        if (one.counted && !one.contested && one.partition == on) one.epoch = epoch_;
      ++result_.adopted;
    } else if (!c.excused && !holds(session, holding)) {
      const hal::ComputeSet units = layout_.at(on).compute;
      // It also refuses work beyond a quota.
      bool others = !c.must_be_adopted(holding.head.lane, on) || c.process % 5 == 4;
      for (const auto& held : arbiter_->held())
        others = others || (!c.has(held.client) && !held.shared &&
                            layout_.at(held.partition).compute.overlaps(units));
      if (!others)
        fail("earlier work is not adopted, though no other client holds its units: on " +
             std::to_string(on) + " epoch " + std::to_string(protocol::epoch_of(holding.word)) +
             ", stale " + std::to_string(arbiter_->counters().stale) + ", overlaps " +
             std::to_string(arbiter_->counters().overlaps) + state_of_clients());
    }
    note('h', session.id, on, adopted ? 1 : 0);
  }

  // Others may hold it, too, if they were granted its units before it was reported.
  bool holds(const Session& session, const protocol::Holding& holding) {
    for (const auto& held : arbiter_->held())
      if (held.client == session.id && held.lane == holding.head.lane &&
          held.partition == holding.partition)
        return true;
    return false;
  }

  void evict(Client& c, Session& session) {
    if (!c.excused) fail("a correct client is evicted");
    note('l', c.process, session.id, 0);
    if (&session != c.sessions.back().get()) return end_session(c, session);
    arbiter_->forget(session.id, now_);
    record_.end(session.slot);
    lose(c);
    c.lost = std::move(c.sessions.back());
    c.sessions.pop_back();
  }

  // The client loses its daemon, which may still run.
  void lose(Client& c) {
    c.attached = false;
    c.leases->lose();
  }

  // The daemon notices a death: first by the liveness futex, later by the pidfd.
  void reap(Client& c) {
    if (!up_ || c.sessions.empty()) return;
    if (!c.reported_dying) {
      c.reported_dying = true;
      for (auto& session : c.sessions) arbiter_->dying(session->id, now_);
    } else if (now_ >= c.gone_at) {
      while (!c.sessions.empty()) end_session(c, *c.sessions.front());
      c.attached = false;
      for (SimulatedLane& lane : c.lanes) lane.running.clear(), lane.left = 0;
    }
  }

  // --- a client's work ----------------------------------------------------------------------
  void submit(Client& c) {
    const auto index = static_cast<LaneId>(below(kLanes));
    SimulatedLane& lane = c.lanes[index];
    if (lane.left == 0 || lane.running.size() >= 4) return end_operations(c);
    if (lane.terms.launches == 0 || !c.leases->admits(lane.terms.partition, index)) {
      runtime::ReadyOperation operation;
      operation.stream = index;
      operation.sms = 1 + index * 5;
      lane.terms = c.leases->grant(index, operation, eligible_, now_);
      if (lane.terms.partition == kNoPartition) return;
    }
    if (lane.terms.launches != runtime::kUntilRevoked) --lane.terms.launches;
    const PartitionId partition = lane.terms.partition;
    const bool fallback = c.leases->in_fallback();
    check_submission(c, index, partition, fallback);
    c.leases->progressed();
    const bool counted = lane.terms.counts_outstanding;
    if (counted) c.leases->submitted(partition, index);
    bool shared = partition == kWholeDevice;
    if (up_ && !fallback)
      for (const auto& held : arbiter_->held())
        if (held.open && held.client == c.id() && held.lane == index) shared = held.shared;
    // Some last for longer than a restart of the daemon takes.
    const std::uint64_t lasts_ns = 500 + below(below(16) == 0 ? 400'000 : 20'000);
    lane.running.push_back(
        {lane.next++, partition, now_ + lasts_ns, fallback ? 0 : epoch_, counted, shared});
    c.leases->set_busy(true);
    --lane.left;
    ++result_.submitted;
    result_.in_fallback += fallback ? 1 : 0;
    note('s', c.process, index, partition);
  }

  void end_operations(Client& c) {
    for (LaneId index = 0; index < kLanes; ++index) {
      SimulatedLane& lane = c.lanes[index];
      while (!lane.running.empty() && lane.running.front().ends_ns <= now_) {
        const Operation operation = lane.running.front();
        lane.running.pop_front();
        if (operation.number != ++lane.ended) fail("an operation ends twice or out of order");
        if (operation.counted) c.leases->ended(operation.partition, index, 1);
        if (c.leases->reports()) {
          c.leases->completed(operation.partition, index, 1, 1000);
          c.leases->busy(2'000);
        }
        note('e', c.process, index, operation.partition);
      }
    }
    bool any = false;
    for (const SimulatedLane& lane : c.lanes) any = any || !lane.running.empty();
    c.leases->set_busy(any);
  }

  // --- faults -----------------------------------------------------------------------------
  void fault() {
    Client& c = *clients_[below(clients_.size())];
    switch (options_.restarts_only ? 2 + below(2) : below(7)) {
      case 0:
        if (!c.alive) return;
        c.alive = false;
        c.excused = true;
        c.gone_at = now_ + below(200'000);
        ++result_.kills;
        return note('k', c.process, 0, 0);
      case 1:
        c.stopped_until = now_ + below(3 * kAnswerWithin);
        c.excused = true;
        ++result_.stops;
        return note('p', c.process, 0, 0);
      case 2: {
        if (up_) {
          result_.overdue += arbiter_->counters().overdue;
          lose_daemon();
          if (below(2) == 0) start_daemon();  // at once: earlier work still runs
        } else {
          start_daemon();
        }
        ++result_.restarts;
        return note('d', up_ ? 1 : 0, epoch_, 0);
      }
      case 3:
        if (!c.attached) return;
        lose(c);
        ++result_.losses;
        return note('q', c.process, 0, 0);
      case 4:
        if (clients_.size() < 8) new_client();
        return;
      case 5: {
        if (!c.attached) return;
        ++result_.lies;
        c.excused = true;
        protocol::ClientSegment& own = c.sessions.back()->own;
        auto& words = own.requests[below(protocol::kRequests)];
        for (auto& word : words) word.store(random_(), std::memory_order_relaxed);
        if (below(4) == 0) own.request_tail.store(random_(), std::memory_order_relaxed);
        return note('m', c.process, 0, 0);
      }
      default:
        now_ += below(kAnswerWithin);  // a slow policy, or a slow machine
    }
  }

  void lose_daemon() {
    up_ = false;
    for (auto& c : clients_) {
      lose(*c);
      if (!c->sessions.empty()) c->lost = std::move(c->sessions.back());
      c->sessions.clear();
      if (!c->alive)  // the driver ends its work, with or without a daemon
        for (SimulatedLane& lane : c->lanes) lane.running.clear(), lane.left = 0;
    }
    arbiter_ = nullptr;
  }

  void heal() {
    if (!up_) start_daemon();
    for (auto& c : clients_) c->stopped_until = 0;
  }

  bool done() {
    for (auto& c : clients_) {
      if (c->alive && c->left() > 0) return false;
      if (!c->alive && !c->sessions.empty()) return false;
    }
    return true;
  }

  std::string state_of_clients() {
    std::string text;
    for (auto& c : clients_)
      if (c->left() > 0)
        text += " of client " + std::to_string(c->process) + (c->alive ? "" : ", dead") +
                (c->attached ? "" : ", not attached") +
                (c->leases->in_fallback() ? ", in fallback" : ", waits for a grant");
    for (const auto& held : arbiter_->held())
      text += "; client " + std::to_string(held.client) + " lane " + std::to_string(held.lane) +
              " holds partition " + std::to_string(held.partition) + (held.open ? "" : ", closed");
    for (const scheduler::Planned& planned : arbiter_->scheduler().plan())
      text += "; row of client " + std::to_string(planned.row.client) + " partition " +
              std::to_string(planned.row.partition) + " mode " +
              std::to_string(static_cast<int>(planned.row.mode)) + " " +
              std::string(to_string(planned.reason));
    for (const scheduler::Grant& grant : arbiter_->scheduler().ledger().grants())
      text += "; grant of client " + std::to_string(grant.client) + " stream " +
              std::to_string(grant.stream) + " partition " + std::to_string(grant.partition) +
              " state " + std::to_string(static_cast<int>(grant.state)) + " " +
              std::string(to_string(grant.reason));
    std::vector<scheduler::Explanation> clients;
    arbiter_->scheduler().explain(clients, now_);
    for (const scheduler::Explanation& of : clients)
      text += "; client " + std::to_string(of.client) +
              (of.active ? " is active, " : " is idle, ") + std::to_string(of.waiting) + " wait";
    if (!arbiter_->scheduler().fault().empty()) text += "; " + arbiter_->scheduler().fault();
    return text;
  }

  // --- invariants -------------------------------------------------------------------------
  void check_leases() {
    held_ = arbiter_->held();
    std::size_t of_lane = 0;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const bool same =
          i > 0 && held_[i].client == held_[i - 1].client && held_[i].lane == held_[i - 1].lane;
      of_lane = same ? of_lane + 1 : 1;
      if (of_lane == settings_.scheduler.grants_per_stream) ++result_.full;
      // Only adopted grants may exceed the limit.
      if (held_[i].open && of_lane > settings_.scheduler.grants_per_stream)
        fail("a lane has more grants than it may have");
    }
    for (std::size_t i = 0; i < held_.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const auto &a = held_[i], &b = held_[j];
        if (a.client == b.client || a.shared || b.shared || a.adopted || b.adopted) continue;
        if (layout_.at(a.partition).compute.overlaps(layout_.at(b.partition).compute))
          fail("two clients hold leases that overlap");
      }
    // Units of adopted work may have been granted before it was reported, but not since.
    for (const scheduler::Grant& old : arbiter_->scheduler().ledger().grants()) {
      if (old.reason != scheduler::Reason::kAdopted || old.mode == scheduler::Mode::kShared)
        continue;
      for (const scheduler::Grant& grant : arbiter_->scheduler().ledger().grants())
        if (grant.client != old.client && grant.mode == scheduler::Mode::kExclusive &&
            grant.state == scheduler::Grant::State::kOpen && grant.opened_ns > old.opened_ns &&
            layout_.at(grant.partition).compute.overlaps(layout_.at(old.partition).compute))
          fail("units were granted on which reported earlier work runs");
    }
  }

  // The operation is of the former daemon, and its process has had little time to reconnect.
  bool is_reserved(const Operation& running) const {
    return !running.contested && running.epoch != 0 && running.epoch == epoch_ - 1 &&
           now_ < started_ns_ + kAnswerWithin;
  }

  void check_submission(const Client& c, LaneId lane, PartitionId partition, bool fallback) {
    if (fallback) return;
    if (!c.excused && c.attached) {
      bool open = false;
      for (const auto& held : arbiter_->held())
        open = open || (held.client == c.id() && held.lane == lane && held.partition == partition &&
                        held.open);
      if (!open) fail("an operation is submitted without an open grant");
    }
    for (const auto& held : arbiter_->held())
      if (c.attached && held.client == c.id() && held.lane == lane && held.open && held.shared)
        return;
    const hal::ComputeSet units = layout_.at(partition).compute;
    for (auto& other : clients_) {
      if (other.get() == &c || other->excused || c.excused) continue;
      for (const SimulatedLane& theirs : other->lanes)
        for (const Operation& running : theirs.running)
          if (running.counted && !running.shared &&
              (running.epoch == epoch_ || is_reserved(running)) && running.ends_ns > now_ &&
              layout_.at(running.partition).compute.overlaps(units))
            fail("two clients have work on the same units");
    }
  }

  // What the client counts as outstanding is what runs.
  void check_counts(const Client& c) {
    for (LaneId index = 0; index < kLanes; ++index)
      for (const Operation& one : c.lanes[index].running) {
        if (!one.counted) continue;
        std::uint32_t running = 0;
        for (const Operation& other : c.lanes[index].running)
          running += other.counted && other.partition == one.partition;
        if (c.leases->outstanding(index, one.partition) != running)
          return fail("client " + std::to_string(c.process) + " counts wrongly on partition " +
                      std::to_string(one.partition));
      }
  }

  void check_nothing_held() {
    // All remaining records are sent and read.
    for (int round = 0; round < 2'000; ++round) {
      now_ += 20'000;
      for (auto& c : clients_)
        if (c->alive && c->attached) end_operations(*c), c->leases->service(now_), close_older(*c);
      for (auto& c : clients_)
        if (c->alive && !c->attached && c->leases->counters().malformed == 0) attach(*c);
      if (up_) daemon_step();
    }
    for (auto& c : clients_)
      for (LaneId lane = 0; lane < kLanes && c->alive; ++lane)
        for (const PartitionId id : eligible_)
          if (c->leases->outstanding(lane, id) != 0) fail("a client counts work that has ended");
    for (auto& c : clients_)
      if (c->alive && c->sessions.size() > 1) fail("a lost session stays open");
    for (const auto& held : arbiter_->held()) {
      if (!held.open) fail("a closed grant is never returned");
      if (held.open && known(held.client) == nullptr) fail("a lease of a client that has ended");
    }
  }

  SimulationOptions options_;
  std::mt19937_64 random_;
  runtime::PoolLayout layout_;
  std::vector<PartitionId> eligible_;
  std::string policy_;
  daemon::ArbiterSettings settings_;
  std::unique_ptr<daemon::DeviceArbiter> arbiter_;
  daemon::LeaseRecord record_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<daemon::DeviceArbiter::GrantStatus> held_;
  std::uint32_t epoch_ = 0;
  std::uint64_t started_ns_ = 0;  // when the daemon was started
  ClientId next_id_ = 1;
  std::uint64_t processes_ = 0;
  std::uint64_t now_ = 1'000'000;
  bool up_ = false;
  bool faults_ = true;
  SimulationResult result_;
};

}  // namespace

SimulationResult simulate(const SimulationOptions& options) {
  Node node(options);
  node.begin();
  return node.run();
}

}  // namespace vitamin::tests
