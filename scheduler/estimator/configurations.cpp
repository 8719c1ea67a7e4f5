// SPDX-License-Identifier: Apache-2.0
#include "scheduler/estimator/configurations.h"

#include <algorithm>
#include <cmath>

namespace vitamin::scheduler {
namespace {

// Widths that differ by less count as one.
constexpr double kAlike = 1.17;

// Splits that the model sees so far below the best split (in the logarithm) are not measured. The
// model errs by 0.3.
constexpr double kHopeless = 0.5;

// Of two clients: sharing and five splits, so that two rounds take 1.2 s.
constexpr std::size_t kMostOfTwo = 6;

// Of the SMs, the first client's in the splits of two clients that are always measured.
constexpr double kAnchors[] = {0.27, 0.5, 0.73};

// Beyond so many clients, splits of one against the others are drafted for the first ones only.
constexpr std::size_t kSingled = 8;

}  // namespace

Configurations::Configurations(std::span<const Partition> pool) : pool_(pool) {
  find_splits();
  assignments_.reserve(4096);
  drafts_.reserve(128);
}

// Of equal widths the first in the pool's order stands for all.
void Configurations::find_splits() {
  if (pool_.empty()) return;
  const hal::ComputeSet all = pool_.front().compute;
  const auto find = [&](hal::ComputeSet set) {
    for (const Partition& p : pool_)
      if (!p.whole() && p.compute == set) return p.id;
    return kNoPartition;
  };
  const auto width = [&](PartitionId id) { return pool_[id].sms; };
  for (const Partition& p : pool_) {
    if (p.whole()) continue;
    const PartitionId other = find(all - p.compute);
    if (other == kNoPartition) continue;
    if (std::none_of(splits_.begin(), splits_.end(), [&](const Split& s) {
          return width(s.left) == p.sms && width(s.right) == width(other);
        }))
      splits_.push_back({p.id, other});
  }
  for (const Partition& wide : pool_)
    for (const Partition& left : pool_) {
      if (wide.whole() || left.whole() || wide.compute.overlaps(left.compute)) continue;
      const PartitionId right = find(all - wide.compute - left.compute);
      if (right == kNoPartition || right < left.id) continue;
      if (std::none_of(triples_.begin(), triples_.end(), [&](const Triple& t) {
            return width(t.wide) == wide.sms && width(t.left) == left.sms &&
                   width(t.right) == width(right);
          }))
        triples_.push_back({wide.id, left.id, right});
    }
  // Four parts: as equal as the units allow, if the pool has them.
  const unsigned units = all.count();
  unsigned first = 0;
  has_quarters_ = units >= 4;
  for (unsigned i = 0; i < 4 && has_quarters_; ++i) {
    const unsigned count = i < 3 ? units / 4 : units - first;
    quarters_[i] = find(hal::ComputeSet::range(first, count));
    has_quarters_ = quarters_[i] != kNoPartition;
    first += count;
  }
}

bool Configurations::fits(const Client& client, const Partition& partition,
                          bool with_others) const {
  if (with_others && (!client.limits.may_share || client.limits.reserved_sms > 0)) return false;
  if (partition.sms < client.limits.reserved_sms) return false;
  const std::uint32_t most = client.limits.most_sms();
  if (most != 0 && partition.sms > most) return false;
  const std::uint32_t widest = pool_.back().sms;
  for (const StreamDemand& stream : client.streams)  // wider ones run on the whole device anyway
    if (stream.min_sms <= widest && stream.min_sms > partition.sms) return false;
  return true;
}

// The partition, or where a quota forbids it the widest inside it that the quota allows.
PartitionId Configurations::within(const Client& client, PartitionId partition) const {
  const std::uint32_t most = client.limits.most_sms();
  if (most == 0 || pool_[partition].sms <= most) return partition;
  PartitionId best = kNoPartition;
  for (const Partition& p : pool_)
    if (!p.whole() && p.sms <= most && pool_[partition].compute.contains(p.compute))
      best = p.id;  // narrowest first
  return best;
}

bool Configurations::add(std::span<const Group> groups, bool shared, bool alone) {
  Draft draft{assignments_.size(), 0, 0, shared, alone, false};
  for (const Group& group : groups) {
    const bool shares = !alone && !further_.empty() && &group == &groups.back();
    for (const std::uint8_t member : group.members) {
      const Client& client = *active_[member];
      const bool with_others = group.members.size() > 1 || shares;
      const PartitionId at =
          with_others || alone ? group.partition : within(client, group.partition);
      if (at == kNoPartition || (!alone && !fits(client, pool_[at], with_others))) {
        assignments_.resize(draft.begin);
        return false;
      }
      // A client that has the whole device to itself needs no exclusive grant: nothing else runs.
      const Mode mode = with_others || at == kWholeDevice ? Mode::kShared : Mode::kExclusive;
      assignments_.push_back({client.id, at, mode});
    }
    if (shares)
      for (const Client* const client : further_)
        assignments_.push_back({client->id, group.partition, Mode::kShared});
  }
  draft.count = assignments_.size() - draft.begin;
  std::sort(assignments_.begin() + static_cast<std::ptrdiff_t>(draft.begin), assignments_.end(),
            [](const Assignment& a, const Assignment& b) { return a.client < b.client; });
  drafts_.push_back(draft);
  return true;
}

// Everyone on everything; clients that limits keep apart on parts of their own, the rest sharing
// what is left.
void Configurations::add_shared() {
  some_.clear(), rest_.clear();
  for (const std::uint8_t i : all_)
    (fits(*active_[i], pool_.front(), all_.size() > 1) ? rest_ : some_).push_back(i);
  if (some_.empty()) {
    const Group group{kWholeDevice, all_};
    add({&group, 1}, true, false);
    return;
  }
  hal::ComputeSet left = pool_.front().compute;
  std::vector<Group> groups;
  for (const std::uint8_t& i : some_) {
    const Client& client = *active_[i];
    // No more than reserved where that is enough, an equal share elsewhere.
    const std::uint32_t equal =
        pool_.front().sms / static_cast<std::uint32_t>(std::max<std::size_t>(1, all_.size()));
    const std::uint32_t most = client.limits.most_sms();
    const std::uint32_t wanted =
        std::max(client.limits.reserved_sms, most != 0 ? std::min(most, equal) : equal);
    PartitionId best = kNoPartition;
    for (const Partition& p : pool_)
      if (!p.whole() && left.contains(p.compute) && fits(client, p, false) &&
          (best == kNoPartition || pool_[best].sms < wanted))
        best = p.id;
    if (best == kNoPartition) return;
    left = left - pool_[best].compute;
    groups.push_back({best, {&i, 1}});
  }
  if (!rest_.empty()) {
    PartitionId best = kNoPartition;
    for (const Partition& p : pool_)
      if (!p.whole() && left.contains(p.compute)) best = p.id;
    if (best == kNoPartition) return;
    groups.push_back({best, rest_});
  }
  add(groups, true, false);
}

void Configurations::add_splits(std::span<const std::uint8_t> left,
                                std::span<const std::uint8_t> right) {
  for (const Split& split : splits_) {
    const std::array<Group, 2> groups{Group{split.left, left}, Group{split.right, right}};
    add(groups, false, false);
  }
}

// One against the others, two against two, those of one phase against those of another.
void Configurations::add_pairs_of_groups() {
  const std::size_t n = all_.size();
  const std::span<const std::uint8_t> all = all_;
  if (n == 2) return add_splits(all.first(1), all.last(1));
  for (std::size_t one = 0; one < std::min(n, kSingled); ++one) {
    rest_.clear();
    for (const std::uint8_t i : all_)
      if (i != one) rest_.push_back(i);
    add_splits(all.subspan(one, 1), rest_);
  }
  if (n == 4)
    for (std::size_t partner = 1; partner < 4; ++partner) {
      some_.clear(), rest_.clear();
      for (const std::uint8_t i : all_) (i == 0 || i == partner ? some_ : rest_).push_back(i);
      add_splits(some_, rest_);
    }
  for (const StepKind kind : {StepKind::kDecode, StepKind::kPrefill, StepKind::kIteration}) {
    some_.clear(), rest_.clear();
    for (const std::uint8_t i : all_) (active_[i]->phase == kind ? some_ : rest_).push_back(i);
    if (some_.size() > 1 && rest_.size() > 1) add_splits(some_, rest_);
  }
}

// A part for each of three or four.
void Configurations::add_parts() {
  const std::span<const std::uint8_t> all = all_;
  if (all_.size() == 3)
    for (const Triple& t : triples_)
      for (std::size_t wide = 0; wide < 3; ++wide) {
        const std::array<Group, 3> groups{Group{t.wide, all.subspan(wide, 1)},
                                          Group{t.left, all.subspan((wide + 1) % 3, 1)},
                                          Group{t.right, all.subspan((wide + 2) % 3, 1)}};
        add(groups, false, false);
      }
  if (all_.size() == 4 && has_quarters_) {
    std::array<Group, 4> groups;
    for (std::size_t i = 0; i < 4; ++i) groups[i] = {quarters_[i], all.subspan(i, 1)};
    add(groups, false, false);
  }
}

void Configurations::add_alone(const Estimator& estimator) {
  if (all_.size() < 2) return;
  const std::span<const std::uint8_t> all = all_;
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), Race::kCandidates); ++i) {
    double rate = 0;
    if (estimator.alone(active_[all[i]]->id, &rate)) continue;
    const Group group{kWholeDevice, all.subspan(i, 1)};
    add({&group, 1}, false, true);
  }
}

void Configurations::predict(const Objective& objective, const Estimator& estimator) {
  for (Draft& draft : drafts_) {
    const std::span<const Assignment> assignments(&assignments_[draft.begin], draft.count);
    const std::uint64_t hash = estimator.hash_of(assignments);
    speeds_.clear();
    for (const std::uint8_t i : all_) {
      const Client& client = *active_[i];
      speeds_.push_back({static_cast<double>(client.weight),
                         estimator.log_speed(client.id, assignments, hash).log_mean});
    }
    draft.predicted = value_of(objective, speeds_);
  }
}

bool Configurations::same_widths(const Draft& a, const Draft& b) const {
  if (a.count != b.count) return false;
  for (std::size_t i = 0; i < a.count; ++i) {
    const Assignment &x = assignments_[a.begin + i], &y = assignments_[b.begin + i];
    const double ratio =
        static_cast<double>(pool_[x.partition].sms) / std::max(1U, pool_[y.partition].sms);
    if (x.client != y.client || x.mode != y.mode || ratio > kAlike || ratio < 1 / kAlike)
      return false;
  }
  return true;
}

void Configurations::mark_anchors() {
  if (all_.size() != 2) return;
  for (const double anchor : kAnchors) {
    Draft* nearest = nullptr;
    double least = 1;
    for (Draft& draft : drafts_) {
      if (draft.shared || draft.alone || draft.predicted == kInfeasible) continue;
      const double part =
          static_cast<double>(pool_[assignments_[draft.begin].partition].sms) / pool_.front().sms;
      if (std::abs(part - anchor) < least) nearest = &draft, least = std::abs(part - anchor);
    }
    if (nearest != nullptr) nearest->always = true;
  }
}

// Sharing first, then what is always measured, then the best by the model that differ, then those
// alone.
void Configurations::select() {
  std::stable_sort(drafts_.begin(), drafts_.end(), [](const Draft& a, const Draft& b) {
    if (a.alone != b.alone) return b.alone;
    if (a.shared != b.shared) return a.shared;
    if (a.always != b.always) return a.always;
    return a.predicted > b.predicted;
  });
  const std::size_t most = all_.size() == 2 ? kMostOfTwo : Race::kCandidates;
  std::size_t kept = 0, racing = 0;
  double best = kInfeasible;
  for (const Draft& draft : drafts_)
    if (!draft.alone && !draft.shared) best = std::max(best, draft.predicted);
  for (const Draft& draft : drafts_) {
    if (!draft.alone) {
      const bool hopeless = !draft.shared && !draft.always && draft.predicted < best - kHopeless;
      const bool again = std::any_of(drafts_.begin(), drafts_.begin() + static_cast<long>(kept),
                                     [&](const Draft& d) { return same_widths(d, draft); });
      if (hopeless || again || racing == most) continue;
      ++racing;
    }
    drafts_[kept++] = draft;
  }
  drafts_.resize(kept);
}

bool Configurations::one_is_distributed() const {
  return std::any_of(active_.begin(), active_.end(),
                     [](const Client* client) { return client->distributed; });
}

std::span<const Candidate> Configurations::generate(std::span<const Client> clients,
                                                    const Objective& objective,
                                                    const Estimator& estimator) {
  active_.clear(), further_.clear(), all_.clear(), assignments_.clear(), drafts_.clear(),
      candidates_.clear();
  for (const Client& client : clients)
    if (client.active && active_.size() < kClients) {
      all_.push_back(static_cast<std::uint8_t>(active_.size()));
      active_.push_back(&client);
    } else if (client.active) {
      further_.push_back(&client);
    }
  if (active_.empty() || pool_.empty()) return {};
  add_shared();
  if (active_.size() > 1 && pool_.size() > 1 && (!one_is_distributed() || drafts_.empty())) {
    add_pairs_of_groups();
    add_parts();
    if (needs_alone(objective)) add_alone(estimator);
  }
  predict(objective, estimator);
  mark_anchors();
  select();
  for (const Draft& draft : drafts_)
    candidates_.push_back(
        {{&assignments_[draft.begin], draft.count}, draft.predicted, draft.shared, draft.alone});
  return candidates_;
}

}  // namespace vitamin::scheduler
