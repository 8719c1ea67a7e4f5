// SPDX-License-Identifier: Apache-2.0
//
// Training beside a service on one device, in virtual time: the production arbiter, scheduler,
// policies, clients and rings around two programs whose launches, kernels and waits have the
// lengths that were measured on an H200 (docs/results.md): ResNet-152 training, bound by its host,
// and a lean Llama-3.1-8B decoder that answers one request after the other, 4 tokens each.
//
// Unlike `vitamin simulate`: a client keeps its grant while it has nothing to run, and the arbiter
// does not notice pauses; hosts run ahead of the device, and submitted work runs on when a gate
// closes; messages take time.
//
// The device: kernels of one client run one after the other; kernels of two clients that may
// overlap (on the whole device, under shared grants) slow each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "daemon/client/lease_client.h"
#include "scheduler/policies/registry.h"
#include "tests/daemon/device.h"

namespace vitamin::tests {

using runtime::kNoPartition;
using runtime::kWholeDevice;
using runtime::PartitionId;
using scheduler::ClientId;

inline constexpr std::uint64_t kUs = 1'000, kMs = 1'000'000, kSecond = 1'000'000'000;

struct Phase {
  std::uint32_t launches;
  double host_ns;    // for each launch
  double kernel_ns;  // on the whole device, alone
  double useful;     // SM count beyond which it gains nothing
  // How the program announces it (vitamin_expect()); kUnknown: not at all.
  runtime::WorkKind kind = runtime::WorkKind::kUnknown;
};

// A program: a round of phases for each request or step. If `waits`, its host waits for each phase.
struct Program {
  std::vector<Phase> phases;
  bool waits = true;        // the host waits for the end of each phase
  std::uint32_t ahead = 0;  // rounds in flight if it does not wait
  double step_ns = 0;       // announced time of a step
  // Announced deadline of a round, relative to its arrival; without arrivals: to the deadline of
  // the previous round, for requests of 64 rounds. 0: none.
  double due_ns = 0;
  double slower = 1.8;            // slowdown of its kernels that overlap another client's
  double beside = 1;              // slowdown while another client runs elsewhere on the device
  bool announces_rounds = false;  // calls vitamin_iteration_end()
};

// 11.8 ms of prefill and three more tokens of 6.8 ms, of which the device is busy for 4.7.
inline Program decoder() {
  const Phase prefill{330, 20e3, 35.8e3, 132}, step{330, 20e3, 14.2e3, 72};
  return {{prefill, step, step, step}, true, 0, 6.8e6};
}
// The same program, which announces the kind of each phase.
inline Program announcing_decoder() {
  Program program = decoder();
  program.phases[0].kind = runtime::WorkKind::kPrefill;
  for (std::size_t i = 1; i < program.phases.size(); ++i)
    program.phases[i].kind = runtime::WorkKind::kDecode;
  return program;
}
// A step of 50 ms during which all SMs are busy.
inline Program busy_training() { return {{{1000, 5e3, 50e3, 132}}, false, 2}; }
// A step of 62.7 ms during which the device is busy for 33.
inline Program training() { return {{{2617, 24e3, 12.7e3, 100}}, false, 2}; }

class Machine final : public daemon::GrantSink {
 public:
  // `tick_ns`: the step of the virtual clock; 32 us must be a multiple of it.
  explicit Machine(const std::string& policy, double tick_ns = 4e3)
      : tick_(tick_ns),
        look_(static_cast<std::uint64_t>(kLookNs / tick_ns)),
        layout_(runtime::PoolLayout::build(device_like_an_h200())) {
    for (const runtime::Partition& partition : layout_.partitions())
      if (!partition.whole()) eligible_.push_back(partition.id);
    eligible_.push_back(kWholeDevice);
    arbiter_ =
        std::make_unique<daemon::DeviceArbiter>(layout_, daemon::ArbiterSettings{}, 1, *this);
    arbiter_->use(std::move(*scheduler::make(policy, arbiter_->context(1))));
  }

  struct Client {
    Client(ClientId id_, const runtime::PoolLayout& layout)
        : id(id_), leases(std::make_unique<client::LeaseClient>(layout, [] {})) {}
    ClientId id;
    Program program;
    protocol::ClientSegment own;
    protocol::DaemonSegment daemons;
    protocol::DaemonEnds rings;
    std::unique_ptr<client::LeaseClient> leases;

    std::vector<double> arrivals;  // of requests; empty: rounds without a pause
    std::size_t round = 0, phase = 0;
    std::uint32_t in_phase = 0;
    double host_ns = 0;  // from when on it has something to launch
    double due_ns = 0;   // deadline of the newest round
    bool pauses = false;
    struct Kernel {
      double left_ns;  // on the whole device, alone
      double useful, whole_ns;
      bool ends_round, ends_phase;
      PartitionId partition = kNoPartition;
      bool counts_outstanding = false;
    };
    std::deque<Kernel> made;     // launched, and not yet submitted
    std::deque<Kernel> running;  // submitted
    double ahead_ns = 0;         // predicted time of what is submitted
    std::uint64_t rounds_ended = 0, phases_ended = 0, phases_made = 0;
    runtime::GrantTerms terms{kNoPartition, 0};
    std::uint64_t submitted = 0;      // kernels
    bool round_ended = false;         // and the arbiter has not heard of it
    std::vector<double> answered_ms;  // latency of each completed request
    std::uint64_t kernels_ended = 0;
  };

  // Without arrivals: a training job.
  Client& add(Program program, const daemon::ClientTraits& traits,
              std::vector<double> arrivals = {}) {
    auto& c = *clients_.emplace_back(std::make_unique<Client>(next_id_++, layout_));
    c.program = std::move(program);
    c.arrivals = std::move(arrivals);
    c.pauses = !c.arrivals.empty();
    c.host_ns = c.pauses ? c.arrivals[0] : now_;
    c.rings = {c.daemons, c.own};
    client::Link link(c.own, c.daemons);
    link.fallback = arbiter_->attach(c.id, traits).partition;
    link.answer_within_ns = kSecond;
    c.leases->connect(link, static_cast<std::uint64_t>(now_));
    // What its library has timed by now, at every SM count.
    double whole_ns = 0, launches = 0;
    for (const Phase& phase : c.program.phases)
      whole_ns += phase.launches * phase.kernel_ns, launches += phase.launches;
    for (const runtime::Partition& partition : layout_.partitions()) {
      double ns = 0;
      for (const Phase& phase : c.program.phases)
        ns += phase.launches * phase.kernel_ns *
              std::max(1.0, phase.useful / static_cast<double>(partition.sms));
      c.leases->timed({partition.sms, 100, ns / launches, whole_ns / launches});
    }
    return c;
  }

  // The program ends here.
  void remove(Client& c) {
    arbiter_->forget(c.id, static_cast<std::uint64_t>(now_));
    std::erase_if(clients_, [&](const auto& one) { return one.get() == &c; });
  }

  void run(double until_ns) {
    for (; now_ < until_ns; now_ += tick_) {
      for (auto& c : clients_) host(*c);
      advance();
      if (++ticks_ % look_ == 0)  // the clients' threads run, then the daemon
        for (auto& c : clients_) {
          if (c->leases->reports() && !c->running.empty())
            c->leases->busy(static_cast<std::uint64_t>(kLookNs));
          c->leases->set_busy(!c->running.empty());
          c->leases->service(static_cast<std::uint64_t>(now_));
        }
      if (ticks_ % look_ == look_ / 2) daemon();
    }
  }

  daemon::DeviceArbiter& arbiter() { return *arbiter_; }
  const runtime::PoolLayout& layout() const { return layout_; }
  double now() const { return now_; }

  // --- GrantSink
  void set_word(ClientId id, protocol::LaneId lane, protocol::LeaseWord word) override {
    if (Client* c = find(id)) c->daemons.leases[lane].store(word, std::memory_order_release);
  }
  bool grant(ClientId id, const protocol::Grant& grant) override {
    Client* c = find(id);
    if (c == nullptr || c->rings.grants.write(protocol::encode(grant)) != protocol::RingState::kOk)
      return false;
    c->rings.grants.publish();
    return true;
  }
  void set_reporting(ClientId id, bool wanted) override {
    if (Client* c = find(id)) c->daemons.reporting.store(wanted ? 1 : 0);
  }
  void gates_closed(ClientId id) override {
    Client* c = find(id);
    if (c == nullptr) return;
    auto& changes = c->daemons.gate_changes;
    changes.store(changes.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  }

 private:
  static constexpr double kLookNs = 32e3;          // between two runs of a thread
  static constexpr double kBetweenRounds = 300e3;  // pause of a host that has waited
  static constexpr std::size_t kDepth = 900;       // operations that a queue accepts

  Client* find(ClientId id) {
    for (auto& c : clients_)
      if (c->id == id) return c.get();
    return nullptr;
  }

  // Launches until now, and submits what can be submitted.
  void host(Client& c) {
    while (c.host_ns <= now_) {
      const std::vector<Phase>& phases = c.program.phases;
      if (c.pauses && c.round >= c.arrivals.size()) break;
      if (c.in_phase == 0) {
        if (c.program.waits && c.phases_ended < c.phases_made) break;  // waits for the device
        if (!c.program.waits && c.round >= c.rounds_ended + c.program.ahead) break;
      }
      const Phase& phase = phases[c.phase];
      if (c.in_phase == 0 && phase.kind != runtime::WorkKind::kUnknown) {  // vitamin_expect()
        runtime::ExpectedOperation step;
        step.sms = 1;
        step.kind = phase.kind;
        step.queued_ns = static_cast<std::uint64_t>(c.program.step_ns);
        if (c.program.due_ns > 0) {
          const bool first = c.pauses || c.round % 64 == 0;
          c.due_ns = c.program.due_ns + (c.pauses ? c.arrivals[c.round] : first ? now_ : c.due_ns);
          step.deadline_ns = static_cast<std::uint64_t>(std::max(c.due_ns, now_ + 1));
        }
        c.leases->expect(step, static_cast<std::uint64_t>(now_));
      }
      const bool ends_phase = ++c.in_phase == phase.launches;
      const bool ends_round = ends_phase && c.phase + 1 == phases.size();
      c.made.push_back({phase.kernel_ns, phase.useful, phase.kernel_ns, ends_round, ends_phase});
      c.host_ns = std::max(c.host_ns, now_ - tick_) + phase.host_ns;
      if (!ends_phase) continue;
      ++c.phases_made;
      c.in_phase = 0;
      c.phase = ends_round ? 0 : c.phase + 1;
      c.round += ends_round ? 1 : 0;
    }
    submit(c);
  }

  void submit(Client& c) {
    while (!c.made.empty() && c.running.size() < kDepth) {
      if (!c.running.empty() && c.ahead_ns + c.made.front().whole_ns > window(c)) return;
      if (c.terms.launches == 0 || !c.leases->admits(c.terms.partition, 0)) {
        runtime::ReadyOperation operation;
        operation.sms = 1;
        operation.queued_ns = static_cast<std::uint64_t>(c.program.step_ns);
        operation.id = c.submitted + 1;
        operation.iteration_end = c.round_ended;
        c.terms = c.leases->grant(0, operation, eligible_, static_cast<std::uint64_t>(now_));
        if (c.terms.heard || c.terms.launches == runtime::kUntilRevoked) c.round_ended = false;
        if (c.terms.partition == kNoPartition) return;
      }
      if (c.terms.launches != runtime::kUntilRevoked) --c.terms.launches;
      Client::Kernel kernel = c.made.front();
      c.made.pop_front();
      kernel.partition = c.terms.partition;
      kernel.counts_outstanding = c.terms.counts_outstanding;
      c.ahead_ns += kernel.whole_ns;
      if (kernel.counts_outstanding) c.leases->submitted(kernel.partition, 0);
      c.leases->progressed();
      c.running.push_back(kernel);
      ++c.submitted;
      if (!kernel.ends_round || !c.program.announces_rounds) continue;
      // Like VirtualContext::iteration_ends().
      c.round_ended = true;
      if (c.terms.launches != runtime::kUntilRevoked) c.terms.launches = 0;
    }
  }

  static double window(const Client& c) { return static_cast<double>(c.terms.ahead_ns); }

  static bool meet(const Client::Kernel& a, const Client::Kernel& b, const runtime::PoolLayout& l) {
    return a.partition == kWholeDevice || b.partition == kWholeDevice ||
           l.at(a.partition).compute.overlaps(l.at(b.partition).compute);
  }

  // Speed of the client's first kernel now, relative to the whole device alone.
  double rate(const Client& c) const {
    const Client::Kernel& kernel = c.running.front();
    const double wide = std::min<double>(layout_.at(kernel.partition).sms, kernel.useful);
    double slower = kernel.useful / wide;
    for (const auto& other : clients_)
      if (other.get() != &c && !other->running.empty())
        slower *=
            meet(kernel, other->running.front(), layout_) ? c.program.slower : c.program.beside;
    return 1 / slower;
  }

  void advance() {
    std::vector<double> rates(clients_.size(), 0);
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (!clients_[i]->running.empty()) rates[i] = rate(*clients_[i]);
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      Client& c = *clients_[i];
      double done = tick_ * rates[i];
      while (!c.running.empty() && done > 0) {
        Client::Kernel& kernel = c.running.front();
        const double part = std::min(done, kernel.left_ns);
        done -= part;
        kernel.left_ns -= part;
        if (kernel.left_ns > 0) break;
        ended(c, kernel);
        c.running.pop_front();
      }
    }
  }

  void ended(Client& c, const Client::Kernel& kernel) {
    c.ahead_ns -= kernel.whole_ns;
    ++c.kernels_ended;
    if (c.leases->reports())
      c.leases->completed(kernel.partition, 0, 1, static_cast<std::uint64_t>(kernel.whole_ns));
    if (kernel.counts_outstanding) c.leases->ended(kernel.partition, 0, 1);
    if (!kernel.ends_phase) return;
    ++c.phases_ended;
    if (c.program.waits) c.host_ns = std::max(c.host_ns, now_ + kBetweenRounds);
    if (!kernel.ends_round) return;
    if (c.pauses) {
      c.answered_ms.push_back((now_ - c.arrivals[c.rounds_ended]) * 1e-6);
      if (c.round < c.arrivals.size()) c.host_ns = std::max(c.host_ns, c.arrivals[c.round]);
    }
    ++c.rounds_ended;
  }

  void daemon() {
    const auto now = static_cast<std::uint64_t>(now_);
    for (auto& c : clients_) {
      protocol::Record copy;
      while (c->rings.requests.read(copy) == protocol::RingState::kOk)
        arbiter_->request(c->id, *protocol::decode_request(copy, {layout_.size(), 132}), now);
      c->rings.requests.release();
    }
    if (arbiter_->wants_progress(now))
      for (auto& c : clients_)
        arbiter_->set_progress(c->id,
                               {c->own.work.load(), c->own.busy_ns.load(), c->own.misplaced.load(),
                                c->own.launches.load()},
                               now);
    arbiter_->step(now);
  }

  double tick_;
  std::uint64_t look_;  // ticks
  runtime::PoolLayout layout_;
  std::vector<PartitionId> eligible_;
  std::unique_ptr<daemon::DeviceArbiter> arbiter_;
  std::vector<std::unique_ptr<Client>> clients_;
  ClientId next_id_ = 1;
  double now_ = 1e6;
  std::uint64_t ticks_ = 0;
};

// Arrival times from `from_ns` on, for the given time.
inline std::vector<double> poisson(double per_second, double from_ns, double for_ns,
                                   std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> times;
  // Not std::exponential_distribution, whose results differ between standard libraries.
  for (double at = from_ns;;) {
    at -= std::log(1 - static_cast<double>(random() >> 11) * 0x1p-53) / per_second * 1e9;
    if (at >= from_ns + for_ns) return times;
    times.push_back(at);
  }
}

inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.at(
      static_cast<std::size_t>(std::lround(share * static_cast<double>(values.size() - 1))));
}

}  // namespace vitamin::tests
