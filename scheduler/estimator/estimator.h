// SPDX-License-Identifier: Apache-2.0
//
// Finds the best of a few candidates for what runs now, by measuring them, and remembers. A
// candidate is a configuration (which client has which SMs) that may be measured. The sheltered
// candidate is sharing: every client on the whole device, as far as its limits allow. Another
// candidate replaces it only with a lead beyond doubt.
//
// A workload mix is the set of active clients with the phases of their steps. Its members are these
// clients. For each mix the estimator runs blocks of these purposes:
//
//   only    Nothing is compared: there is one candidate, a client does not report, or visits of the
//           mix are too short.
//   alone   One client runs, for its rate, where the objective needs that.
//   race    Short blocks under each candidate, in shuffled rounds (race.h), until one is best or
//           1.5 s have passed in which every client reported, besides blocks of clients alone.
//   keep    Blocks under the winner, while nothing else is due.
//   look    One block or several under another candidate, compared with the kept blocks before. The
//           time right behind the change does not count.
//             When: a look is worth more than it costs, and its cost was saved up. Kept blocks save
//             kLookShare of their time, kCreditS at most; a race leaves kProveS.
//             Exceptions: no savings are needed for a candidate that is believed to lead by more
//             than kWorthwhile, and for the proof of a race.
//
// The proof of a race that a candidate won against sharing is the first look, at sharing. Programs
// run behind a change what they submitted while the device drained, and end the steps that began
// before, so blocks right behind changes show parts as better than they are, by several per cent.
// What the proof shows of this error is remembered (flattery).
//
// A regime is a time in which the members do the same. A client may change what it does without
// saying so: two kept blocks in a row in which a client's rate, or the work of its launches, is far
// from the usual end the regime. The work of launches depends on what runs, not on where, so it
// says what follows:
//
//   the work is as before    a new race of the same regime, at most one in kCalmNs
//   an earlier regime's      that one goes on; its estimates are believed less
//   neither                  a new regime with a race; the oldest of kRegimes is forgotten
//
// A block under the same candidate as the one before counts at once; any other one, from where
// next() finds every exclusive grant open after the time that changes usually take (settled() tells
// a test's exact time), or 50 ms after it began. It is discarded when the workload mix changes
// before its middle, when a client reports nothing, or when more than 5 % of a client's work ran
// elsewhere than granted.
//
// False reports: counters are a client's own words. The best rate that a client reported since the
// race began bounds what is believed of it under another candidate: the ratio of the two may be
// four times the ratio of the widths at most. So a false report moves the choice among the
// candidates and nothing else; constraints bound what a candidate may be. Where a client says that
// it is distributed, sharing is the only candidate.
//
// Threads: one at a time. No allocation but where a workload mix is new. Deterministic.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "scheduler/estimator/estimate_store.h"
#include "scheduler/estimator/objective.h"
#include "scheduler/estimator/race.h"
#include "scheduler/policy.h"
#include "scheduler/types.h"

namespace vitamin::scheduler {

// A configuration that may be measured. Clients that it does not list are paused.
struct Candidate {
  std::span<const Assignment> assignments;  // by client
  double predicted = 0;  // of the model, as value_of(); decides nothing but the order
  bool shared = false;   // the whole device, as far as limits allow: the sheltered candidate
  bool alone = false;    // one client runs: measured for its rate, where the objective needs that
};

enum class Purpose : std::uint8_t { kOnly, kAlone, kRace, kKeep, kLook };

// The configuration of now, and when to ask again.
struct MeasurementBlock {
  std::span<const Assignment> configuration;  // valid until the next call
  std::uint64_t wake_ns = kNever;
  std::uint64_t number = 0;  // grows with every block
  Purpose purpose = Purpose::kOnly;
};

// Why the chosen configuration is the chosen one.
enum class ChoiceReason : std::uint8_t {
  kOnly,        // there is no other
  kUnmeasured,  // the race has not ended: nothing is known yet
  kUncounted,   // a client reports no progress, so nothing can be measured
  kShort,       // visits of the workload mix end before a block could
  kWon,         // the race
  kNoLead,      // no other leads sharing beyond doubt
  kLooked,      // a look showed it to be better
  kRemembered,  // from an earlier visit, another process or a file
  // Of policies that keep bounds of latency:
  kBounds,   // of those that keep every bound, the others get on best
  kLate,     // none keeps every bound: the worst bound is missed by least
  kTried,    // how fast a service is there is being measured
  kNoSlack,  // a service is late, or has no time left to lose: the others are paused
};

struct ClientReport {
  ClientId client = kNoClient;
  double speed = 0, error = 0;  // relative to alone; 0: not known
  // Relative to the same client in the chosen configuration; 0: unknown.
  double rate = 0, rate_error = 0;
  double costs = 0;  // what this client lacks against the candidate that is best for it, 0 to 1
  bool measured = false;  // here, in this workload mix; else the model's
};

struct CandidateReport {
  std::vector<Assignment> assignments;  // by client
  std::vector<ClientReport> clients;    // of the same index
  double lead = 0, error = 0;  // of the objective over the chosen one, relative; 0: not known
  double predicted = 0;        // the lead, as the model has it
  unsigned blocks = 0;         // measured, in this regime
  bool chosen = false, dropped = false;
  bool remembered = false;   // `lead` is of an earlier visit, another process or a file
  bool keeps_bounds = true;  // of latency, as far as is known
};

struct Findings {
  ChoiceReason choice = ChoiceReason::kUnmeasured;
  // What `lead` is of: "proportional", "sum", "fair", or "others": the progress of the clients
  // without a bound.
  std::string_view objective;
  unsigned workloads = 0, regime = 0, regimes = 0;
  std::uint64_t left_ns = 0;  // the workload mix was left then; 0: it is the present one
  double decided_s = 0;       // workload time from the first block to the choice
  double spent = 0;           // part of the workload mix's time that races, looks and changes cost
  std::vector<CandidateReport> candidates;
};

// For a file: what a candidate was known to give. Together with EstimateRecord all that is
// remembered.
struct CandidateRecord {
  std::uint64_t workload = 0, configuration = 0, terms = 0;
  double gap = 0, variance = 0;
  std::uint32_t blocks = 0;
  bool chosen = false;
};

struct CandidateState;

class Estimator final : public Estimates {
 public:
  // `pool` outlives the object.
  explicit Estimator(std::span<const Partition> pool, std::uint64_t seed = 1);
  ~Estimator() override;

  // Which program a client runs. Without it the client is a program of its own, of which nothing
  // was learned before.
  void identify(ClientId client, ProgramHash program);
  void forget(ClientId client);

  // First of a plan: the clients as they are now. True: candidates of this workload mix are wanted,
  // since it is new, or since weights, limits or the objective changed; offer() them.
  bool enter(std::span<const Client> clients, const Objective& objective, std::uint64_t now_ns);
  // Up to Race::kCandidates, and as many that run one client alone; others are left out. A new
  // workload mix begins with [0].
  void offer(std::span<const Candidate> candidates);
  // What to run now. Closes a block that has ended, with the counters that enter() was given.
  // `exclusive_open`: no exclusive grant is pending or revoked. While one is, a block does not
  // begin to count.
  MeasurementBlock next(std::uint64_t now_ns, bool exclusive_open = true);
  // For tests: the present block's allocation is in force. In production next() finds that out.
  void settled(std::span<const Client> clients, std::uint64_t now_ns);

  // log(speed) relative to alone, and its standard error: measured in this workload mix, else
  // modelled.
  struct LogSpeed {
    double log_mean = 0, error = 1;
    bool measured = false;
  };
  LogSpeed log_speed(ClientId client, std::span<const Assignment> configuration) const {
    return log_speed(client, configuration, hash_of(configuration));
  }
  // Many clients of one configuration: its hash is computed once.
  LogSpeed log_speed(ClientId client, std::span<const Assignment> configuration,
                     std::uint64_t hash) const;
  std::uint64_t hash_of(std::span<const Assignment> configuration) const;
  // The same as a ratio, measured or not; 0: paused.
  Estimates::Speed speed(ClientId client, Assignments configuration) const override;
  // Whether alone has been measured; work per busy nanosecond.
  bool alone(ClientId client, double* rate) const;

  // The choice of the present workload mix; without one there are no candidates.
  void explain(Findings& out) const;
  // The same of the last workload mix before it in which there was a choice. False: there was none.
  bool explain_before(Findings& out) const;

  EstimateStore& store() { return store_; }
  const EstimateStore& store() const { return store_; }
  // Of store(), for what a policy learns itself: advances without jumps.
  std::uint64_t time_ns() const { return time_ns_; }
  // The present block is not to be counted: something else than its configuration is in force.
  void discard() { open_ = counting_ = false; }
  ProgramHash program(ClientId client) const;
  void save(std::vector<CandidateRecord>& out);
  void load(std::span<const CandidateRecord> records);

 private:
  struct WorkloadMix;
  struct Regime;
  struct Member {
    ClientId client = kNoClient;
    ProgramHash program = 0;
    StepKind phase = StepKind::kUnknown;
    double weight = 1;
    bool reports = false;
    friend bool operator==(const Member&, const Member&) = default;
  };
  struct Named {
    ClientId client;
    ProgramHash program;
  };
  struct BlockRate {                           // of one member in one block
    double log_rate = 0, log_launch_work = 0;  // work per busy ns; work per launch
    bool paused = false;
  };

  void find_members(std::span<const Client> clients);
  static constexpr std::size_t kNoMember = ~std::size_t{0};
  std::size_t member_of(ClientId client) const;
  WorkloadMix& find_workload(std::uint64_t hash);
  void leave(std::uint64_t now_ns);
  void recall(WorkloadMix& workload) const;
  void remember(const WorkloadMix& workload);

  void begin_block(unsigned candidate, Purpose purpose, std::uint64_t now_ns);
  bool close_block(std::uint64_t now_ns, bool cut);  // false: it goes on
  bool take(std::uint64_t now_ns);
  void choose(std::uint64_t now_ns);
  void baseline(std::uint64_t now_ns);
  void bound_false_report(BlockRate& rate, std::size_t member, unsigned candidate) const;
  double log_alone(const Member& member) const;
  double log_alone(std::size_t member) const { return log_alone(members_[member]); }
  void report(const WorkloadMix& workload, std::span<const Member> members, Findings& out) const;
  ClientReport report(const WorkloadMix& workload, std::span<const Member> members,
                      std::size_t member, unsigned candidate, unsigned chosen) const;
  double value() const;
  void learn(unsigned candidate, double weight);
  bool unfinished() const;
  void kept(double value, double length_s);
  void in_force(std::uint64_t now_ns);
  void looked(double value, double length_s);
  bool worth_staying() const;
  void pay(double cost_s);
  bool differs();
  bool alike(const Regime& regime) const;
  void change_regime();
  void begin_race(Regime& regime);
  void settle_race(Regime& regime);
  void change_chosen(unsigned candidate, ChoiceReason why);
  unsigned worth_a_look() const;
  double dwell_ns() const;
  bool too_short() const;  // the visit is expected to end before a block could
  std::uint64_t block_ns(Purpose purpose) const;
  double look_cost_s(const CandidateState& candidate) const;
  static EstimateKey rate_key(const WorkloadMix& workload, std::span<const Member> members,
                              std::size_t member, std::uint64_t configuration);
  EstimateKey rate_key(std::size_t member, std::uint64_t configuration) const;
  EstimateKey rate_key(std::size_t member, unsigned candidate) const;
  void materialize(unsigned candidate);

  std::span<const Partition> pool_;
  std::uint32_t whole_sms_;
  EstimateStore store_;
  Random random_;
  std::vector<Named> names_;  // by client
  std::vector<Member> members_, next_members_;
  std::vector<std::pair<ClientId, std::size_t>> by_client_;  // index into members_
  std::vector<std::unique_ptr<WorkloadMix>> workloads_;
  WorkloadMix* workload_ = nullptr;
  std::vector<CandidateRecord> memory_;  // of workload mixes that are not in workloads_
  Objective objective_;

  // The present block.
  std::vector<Assignment> configuration_;
  unsigned candidate_ = 0;
  Purpose purpose_ = Purpose::kOnly;
  bool open_ = false, counting_ = false, told_ = false;
  std::uint64_t number_ = 0, began_ns_ = 0, counted_ns_ = 0, length_ns_ = 0;
  std::uint64_t counts_from_ns_ = 0;  // in force, and counts from then; 0: not known yet
  std::vector<Progress> base_, now_;  // by member
  std::vector<bool> seen_;            // by member: in the last call's clients
  std::vector<BlockRate> block_rates_;
  mutable std::vector<ClientSpeed> speeds_;

  std::uint64_t now_ns_ = 0;   // monotone
  std::uint64_t time_ns_ = 0;  // of all workload mixes, without jumps
  double settle_ns_;
};

}  // namespace vitamin::scheduler
