// SPDX-License-Identifier: Apache-2.0
#include "tests/daemon/simulation.h"

#include <array>
#include <deque>
#include <memory>
#include <random>
#include <variant>
#include <vector>

#include "client/lease_client.h"
#include "daemon/device_arbiter.h"
#include "policies/registry.h"

namespace vitamin::tests {
namespace {

using protocol::Gate;
using runtime::ClientId;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::kWholeDevice;
using runtime::LaneId;

constexpr std::size_t kLanes = 3;
constexpr std::uint64_t kAnswerWithin = 3'000'000;
constexpr std::uint64_t kAfterFaults = 100'000;  // steps

const hal::DeviceInfo& device() {
  static const hal::DeviceInfo info{hal::Vendor::kSoftware,   "simulated", "GPU-0", 36,
                                    {4, 4, 4, 4, 4, 4, 4, 8}, 1000};
  return info;
}

struct Operation {
  std::uint64_t number;
  EntryId entry;
  std::uint64_t ends_ns;
  std::uint64_t epoch;  // of the daemon; at home: 0
};

struct SimulatedLane {
  std::uint64_t left = 0;  // operations not yet submitted
  std::uint64_t next = 1, ended = 0;
  runtime::Choice choice{kNoEntry, 0};
  std::deque<Operation> running;
};

// A client process.
struct Client {
  Client(ClientId id_, const runtime::PoolLayout& layout)
      : id(id_), leases(std::make_unique<client::LeaseClient>(layout, [this] { rang = true; })) {}
  ClientId id;
  std::unique_ptr<protocol::ClientSegment> own;
  std::unique_ptr<protocol::DaemonSegment> daemons;
  protocol::RequestConsumer requests;
  protocol::GrantProducer grants;
  std::unique_ptr<client::LeaseClient> leases;
  std::array<SimulatedLane, kLanes> lanes;
  bool rang = false;
  bool alive = true;
  bool attached = false;  // the daemon knows it
  bool told_dying = false;
  bool excused = false;  // it was stopped, or killed: its work may overlap others'
  std::uint64_t stopped_until = 0;
  std::uint64_t gone_at = 0;  // dead: when the daemon sees the pidfd

  std::uint64_t left() const {
    std::uint64_t sum = 0;
    for (const SimulatedLane& lane : lanes) sum += lane.left + lane.running.size();
    return sum;
  }
};

class Node final : public daemon::Outlet {
 public:
  explicit Node(const SimulationOptions& options)
      : options_(options), random_(options.seed), layout_(runtime::PoolLayout::build(device())) {}

  void begin() {
    for (const runtime::PoolEntry& entry : layout_.entries())
      if (!entry.whole()) eligible_.push_back(entry.id);
    eligible_.push_back(kWholeDevice);
    static constexpr const char* kPolicies[] = {
        "random:max=16", "random:max=16,every=3", "static:units=0-3",      "fifo",
        "random:max=8",  "throughput:look=30",    "throughput:whole=never"};
    policy_ = kPolicies[below(std::size(kPolicies))];
    if (some_come_first()) {
      policy_ = "tpot-first:quiet=100,ahead=50";
      settings_.scheduler.overdue_ns = 1'000'000;  // the bound for who comes last
    }
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
        fail("work is left that never ends" + whose());
    }
    if (result_.violation.empty()) check_nothing_held();
    result_.overdue += arbiter_->counters().overdue;
    for (const auto& c : clients_) result_.ring_full += c->leases->counters().ring_full;
    return std::move(result_);
  }

  // --- Outlet: what vitamind's server does -------------------------------------------------
  void set_word(ClientId id, LaneId lane, protocol::LeaseWord word) override {
    if (Client* c = known(id)) c->daemons->leases[lane].store(word, std::memory_order_release);
  }
  bool grant(ClientId id, const protocol::Grant& grant) override {
    Client* c = known(id);
    if (c == nullptr) return true;
    if (below(50) == 0 && faults_ && !options_.restarts_only) return false;  // as if it were full
    if (c->grants.write(protocol::encode(grant)) != protocol::RingState::kOk) {
      ++result_.ring_full;
      return false;
    }
    c->grants.publish();
    note('g', id, grant.head.lane, grant.entry);
    return true;
  }
  void gates_closed(ClientId id) override {
    if (Client* c = known(id)) {
      auto& changes = c->daemons->gate_changes;
      changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
      note('c', id, 0, 0);
    }
  }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

  // Of every fourth seed; it draws no number, so that the others stay what they were.
  bool some_come_first() const { return options_.seed % 4 == 2; }

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

  Client* known(ClientId id) {
    for (auto& c : clients_)
      if (c->id == id && c->attached) return c.get();
    return nullptr;
  }

  // --- processes --------------------------------------------------------------------------
  void start_daemon() {
    auto policy = policies::make(policy_, options_.seed);
    arbiter_ = std::make_unique<daemon::DeviceArbiter>(layout_, std::move(*policy), settings_,
                                                       ++epoch_, *this);
    up_ = true;
  }

  void new_client() {
    clients_.push_back(std::make_unique<Client>(next_id_++, layout_));
    for (SimulatedLane& lane : clients_.back()->lanes) lane.left = below(60);
  }

  // The handshake, as one step.
  void attach(Client& c) {
    auto own = std::make_unique<protocol::ClientSegment>();
    auto daemons = std::make_unique<protocol::DaemonSegment>();
    c.requests = {own->requests, own->request_tail, daemons->request_head};
    c.grants = {daemons->grants, daemons->grant_tail, own->grant_head};
    client::Link link;
    link.requests = {own->requests, own->request_tail, daemons->request_head};
    link.grants = {daemons->grants, daemons->grant_tail, own->grant_head};
    link.words = &daemons->leases;
    link.own_park = &own->park;
    link.daemon_park = &daemons->park;
    link.gate_changes = &daemons->gate_changes;
    if (below(4) != 0) link.progress = &own->progress;  // else it is of before 1.4
    daemon::Traits traits;
    if (some_come_first()) {
      static constexpr runtime::OperationClass kKinds[] = {runtime::OperationClass::kDecode,
                                                           runtime::OperationClass::kBestEffort,
                                                           runtime::OperationClass::kUnknown};
      traits.kind = kKinds[c.id % 3];
      traits.tpot_ns = c.id % 6 == 3 ? 2'000'000 : 0;
    }
    link.home = arbiter_->attach(c.id, traits).entry;
    link.answer_within_ns = kAnswerWithin;
    c.attached = true;
    c.leases->connect(link, now_);
    std::swap(c.own, own);
    std::swap(c.daemons, daemons);
    note('a', c.id, link.home, 0);
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
      c.leases->service(now_);
    check_counts(c);
    if (c.leases->counters().malformed > 0) fail("a client distrusts an honest daemon");
  }

  void daemon_step() {
    if (arbiter_->wants_progress(now_))
      for (auto& c : clients_)
        if (c->attached)
          arbiter_->progressed(c->id, c->own->progress.load(std::memory_order_relaxed), now_);
    for (auto& c : clients_) {
      if (!c->attached) continue;
      protocol::Record copy;
      protocol::RingState state = protocol::RingState::kEmpty;
      for (std::uint64_t i = below(8); i > 0; --i) {
        if ((state = c->requests.read(copy)) != protocol::RingState::kOk) break;
        const auto request = protocol::decode_request(copy, {layout_.size(), device().processors});
        if (!request) return let_go(*c);
        note('r', c->id, copy.words[0], copy.words[1]);
        const std::uint64_t refused = arbiter_->counters().overlaps;
        arbiter_->request(c->id, *request, now_);
        if (const auto* holding = std::get_if<protocol::Holding>(&*request))
          told_of_old_work(*c, *holding, arbiter_->counters().overlaps == refused);
      }
      if (state == protocol::RingState::kBroken) return let_go(*c);
      c->requests.release();
    }
    const std::uint64_t overdue = arbiter_->counters().overdue;
    arbiter_->step(now_);
    if (arbiter_->counters().overdue != overdue) note('o', 0, 0, 0);
    check_leases();
  }

  // What the daemon has taken over is guarded like its own grants from now on. It refuses only what
  // others hold by now.
  void told_of_old_work(Client& c, const protocol::Holding& holding, bool taken) {
    const auto entry = static_cast<EntryId>(holding.entry);
    if (taken) {
      for (Operation& running : c.lanes[holding.head.lane % kLanes].running)
        if (running.entry == entry) running.epoch = epoch_;
      ++result_.adopted;
    } else if (!c.excused) {
      const hal::ComputeSet units = layout_.at(entry).compute;
      bool others = false;
      for (const auto& held : arbiter_->held())
        others = others || (held.client != c.id && held.entry != kWholeDevice &&
                            layout_.at(held.entry).compute.overlaps(units));
      if (!others) fail("work of before is not taken over, though nobody else is there");
    }
    note('h', c.id, entry, taken ? 1 : 0);
  }

  void let_go(Client& c) {
    if (!c.excused) fail("an honest client is let go");
    arbiter_->forget(c.id, now_);
    c.attached = false;
    c.leases->lose();
    note('l', c.id, 0, 0);
  }

  // The daemon learns of a death: the life line first, the pidfd later.
  void reap(Client& c) {
    if (!up_ || !c.attached) return;
    if (!c.told_dying) {
      c.told_dying = true;
      arbiter_->dying(c.id, now_);
    } else if (now_ >= c.gone_at) {
      arbiter_->forget(c.id, now_);
      c.attached = false;
      for (SimulatedLane& lane : c.lanes) lane.running.clear(), lane.left = 0;
      note('x', c.id, 0, 0);
    }
  }

  // --- a client's work ----------------------------------------------------------------------
  void submit(Client& c) {
    const auto index = static_cast<LaneId>(below(kLanes));
    SimulatedLane& lane = c.lanes[index];
    if (lane.left == 0 || lane.running.size() >= 4) return end_operations(c);
    if (lane.choice.launches == 0 || !c.leases->admits(lane.choice.entry, index)) {
      runtime::ReadyOperation operation;
      operation.lane = index;
      operation.processors = 1 + index * 5;
      lane.choice = c.leases->grant(index, operation, eligible_, now_);
      if (lane.choice.entry == kNoEntry) return;
    }
    if (lane.choice.launches != runtime::kUntilChanged) --lane.choice.launches;
    const EntryId entry = lane.choice.entry;
    const bool home = c.leases->at_home();
    check_submission(c, index, entry, home);
    c.leases->progressed();
    if (entry != kWholeDevice) c.leases->submitted(entry, index);
    lane.running.push_back({lane.next++, entry, now_ + 500 + below(20'000), home ? 0 : epoch_});
    --lane.left;
    ++result_.submitted;
    result_.at_home += home ? 1 : 0;
    note('s', c.id, index, entry);
  }

  void end_operations(Client& c) {
    for (LaneId index = 0; index < kLanes; ++index) {
      SimulatedLane& lane = c.lanes[index];
      while (!lane.running.empty() && lane.running.front().ends_ns <= now_) {
        const Operation operation = lane.running.front();
        lane.running.pop_front();
        if (operation.number != ++lane.ended) fail("an operation ends twice or out of order");
        if (operation.entry != kWholeDevice) c.leases->retired(operation.entry, index, 1);
        note('e', c.id, index, operation.entry);
      }
    }
  }

  // --- faults -----------------------------------------------------------------------------
  void fault() {
    Client& c = *clients_[below(clients_.size())];
    switch (options_.restarts_only ? 2 : below(6)) {
      case 0:
        if (!c.alive) return;
        c.alive = false;
        c.excused = true;
        c.gone_at = now_ + below(200'000);
        ++result_.kills;
        return note('k', c.id, 0, 0);
      case 1:
        c.stopped_until = now_ + below(3 * kAnswerWithin);
        c.excused = true;
        ++result_.stops;
        return note('p', c.id, 0, 0);
      case 2: {
        if (up_) {
          result_.overdue += arbiter_->counters().overdue;
          lose_daemon();
        } else {
          start_daemon();
        }
        ++result_.restarts;
        return note('d', up_ ? 1 : 0, epoch_, 0);
      }
      case 3:
        if (clients_.size() < 8) new_client();
        return;
      case 4: {
        if (!c.attached) return;
        ++result_.lies;
        c.excused = true;
        auto& words = c.own->requests[below(protocol::kRequests)];
        for (auto& word : words) word.store(random_(), std::memory_order_relaxed);
        if (below(4) == 0) c.own->request_tail.store(random_(), std::memory_order_relaxed);
        return note('m', c.id, 0, 0);
      }
      default:
        now_ += below(kAnswerWithin);  // a policy, or the machine, that takes its time
    }
  }

  void lose_daemon() {
    up_ = false;
    for (auto& c : clients_) {
      c->attached = false;
      c->leases->lose();
      if (!c->alive)  // the driver ends its work, whoever watches
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
      if (!c->alive && c->attached) return false;
    }
    return true;
  }

  std::string whose() {
    std::string text;
    for (auto& c : clients_)
      if (c->left() > 0)
        text += " of client " + std::to_string(c->id) + (c->alive ? "" : ", dead") +
                (c->attached ? "" : ", not attached") +
                (c->leases->at_home() ? ", at home" : ", wants what it does not get");
    for (const auto& held : arbiter_->held())
      text += "; client " + std::to_string(held.client) + " lane " + std::to_string(held.lane) +
              " holds entry " + std::to_string(held.entry) + (held.open ? "" : ", closed");
    return text;
  }

  // --- invariants -------------------------------------------------------------------------
  void check_leases() {
    held_ = arbiter_->held();
    for (std::size_t i = 0; i < held_.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) {
        const auto &a = held_[i], &b = held_[j];
        if (a.client == b.client || a.entry == kWholeDevice || b.entry == kWholeDevice) continue;
        if (layout_.at(a.entry).compute.overlaps(layout_.at(b.entry).compute))
          fail("two clients hold leases that overlap");
      }
  }

  void check_submission(const Client& c, LaneId lane, EntryId entry, bool home) {
    if (home || entry == kWholeDevice) return;
    if (!c.excused && up_) {
      bool open = false;
      for (const auto& held : arbiter_->held())
        open =
            open || (held.client == c.id && held.lane == lane && held.entry == entry && held.open);
      if (!open) fail("an operation is submitted without an open grant");
    }
    const hal::ComputeSet units = layout_.at(entry).compute;
    for (auto& other : clients_) {
      if (other.get() == &c || other->excused || c.excused) continue;
      for (const SimulatedLane& theirs : other->lanes)
        for (const Operation& running : theirs.running)
          if (running.entry != kWholeDevice && running.epoch == epoch_ && running.ends_ns > now_ &&
              layout_.at(running.entry).compute.overlaps(units))
            fail("two clients have work on the same units");
    }
  }

  // The client counts as outstanding what runs, no more and no less.
  void check_counts(const Client& c) {
    for (LaneId index = 0; index < kLanes; ++index)
      for (const Operation& one : c.lanes[index].running) {
        if (one.entry == kWholeDevice) continue;
        std::uint32_t running = 0;
        for (const Operation& other : c.lanes[index].running) running += other.entry == one.entry;
        if (c.leases->outstanding(index, one.entry) != running)
          return fail("client " + std::to_string(c.id) + " counts wrongly on entry " +
                      std::to_string(one.entry));
      }
  }

  void check_nothing_held() {
    // What is left to say is said, and heard.
    for (int round = 0; round < 2'000; ++round) {
      now_ += 20'000;
      for (auto& c : clients_)
        if (c->alive && c->attached) end_operations(*c), c->leases->service(now_);
      for (auto& c : clients_)
        if (c->alive && !c->attached && c->leases->counters().malformed == 0) attach(*c);
      if (up_) daemon_step();
    }
    for (auto& c : clients_)
      for (LaneId lane = 0; lane < kLanes && c->alive; ++lane)
        for (const EntryId entry : eligible_)
          if (c->leases->outstanding(lane, entry) != 0) fail("a client counts work that has ended");
    for (const auto& held : arbiter_->held()) {
      if (!held.open) fail("a closed grant is never returned");
      if (held.open && known(held.client) == nullptr) fail("a lease of nobody");
    }
  }

  SimulationOptions options_;
  std::mt19937_64 random_;
  runtime::PoolLayout layout_;
  std::vector<EntryId> eligible_;
  std::string policy_;
  daemon::ArbiterSettings settings_;
  std::unique_ptr<daemon::DeviceArbiter> arbiter_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::vector<daemon::DeviceArbiter::Held> held_;
  std::uint32_t epoch_ = 0;
  ClientId next_id_ = 1;
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
