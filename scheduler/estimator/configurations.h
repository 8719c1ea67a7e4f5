// SPDX-License-Identifier: Apache-2.0
//
// Which configurations are worth measuring: at most eight for the race, ranked by the model, and
// each client alone where its rate alone is unknown.
//
//   shared   every client on the whole device, as far as quotas and reservations allow: always
//   split    the device in two complementary parts of the pool, each client or group on its own;
//            three and four parts where there are so many clients
//
// Of two clients three splits are always measured, near a quarter, a half and three quarters of the
// SMs, whatever the model says: a model that errs must not keep the best split out of the race.
//
// Parts that differ by less than a sixth for every client are one split: a race could not tell them
// apart, and the model's choice among them rests on measured widths, whose staircase of waves it
// keeps (EstimateStore::log_width).
//
// Beside a distributed client (scheduler/types.h) sharing is the only candidate where limits allow
// it. Such a client is as fast as the slowest of its devices lets it be, so a measurement on one
// device says nothing of a split there, and devices that decide alone keep each other in bad splits
// (docs/decisions/0026-distributed-jobs-share-the-whole-device.md).
//
// Every candidate keeps within Limits: widths between reserved_sms and max_sms, exclusive use where
// sharing is not allowed or units are reserved. Where no candidate can, there is none, and
// constraints decide.
//
// Threads: one at a time. No allocation once its vectors have grown.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/estimator/estimator.h"
#include "scheduler/estimator/objective.h"
#include "scheduler/types.h"

namespace vitamin::scheduler {

class Configurations {
 public:
  // `pool` outlives the object: [0] the whole device, then narrowest first.
  explicit Configurations(std::span<const Partition> pool);

  // Of the active clients (at most kClients; further ones share what the last group has, count for
  // no prediction, and are kept within their limits by constraints only). Valid until the next
  // call.
  std::span<const Candidate> generate(std::span<const Client> clients, const Objective& objective,
                                      const Estimator& estimator);

  static constexpr std::size_t kClients = 256;

 private:
  struct Split {  // complementary
    PartitionId left, right;
  };
  struct Triple {
    PartitionId wide, left, right;
  };
  struct Draft {
    std::size_t begin = 0, count = 0;  // in assignments_
    double predicted = 0;
    bool shared = false, alone = false;
    bool always = false;  // raced whatever the model says of it
  };
  struct Group {
    PartitionId partition = kWholeDevice;
    std::span<const std::uint8_t> members;  // indices into active_
  };

  void find_splits();
  void add_shared();
  void add_splits(std::span<const std::uint8_t> left, std::span<const std::uint8_t> right);
  void add_pairs_of_groups();
  void add_parts();
  void add_alone(const Estimator& estimator);
  bool add(std::span<const Group> groups, bool shared, bool alone);
  bool one_is_distributed() const;
  bool fits(const Client& client, const Partition& partition, bool with_others) const;
  PartitionId within(const Client& client, PartitionId partition) const;
  bool same_widths(const Draft& a, const Draft& b) const;
  void predict(const Objective& objective, const Estimator& estimator);
  void mark_anchors();
  void select();

  std::span<const Partition> pool_;
  std::vector<Split> splits_;
  std::vector<Triple> triples_;
  std::array<PartitionId, 4> quarters_{};
  bool has_quarters_ = false;

  std::vector<const Client*> active_, further_;  // the first kClients; the others
  std::vector<std::uint8_t> all_, some_, rest_;
  std::vector<Assignment> assignments_;
  std::vector<Draft> drafts_;
  std::vector<ClientSpeed> speeds_;
  std::vector<Candidate> candidates_;
};

}  // namespace vitamin::scheduler
