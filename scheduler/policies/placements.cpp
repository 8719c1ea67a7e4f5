// SPDX-License-Identifier: Apache-2.0
//
// random, extremes: another partition for every launch. Whatever depends on the allocation, these
// show it; they are the verifier's, not policies to be fast with.
#include <algorithm>

#include "scheduler/policies/builtin.h"

namespace vitamin::scheduler {
namespace {

std::uint32_t sms_of(const PlacementRequest& launch, PartitionId id) { return launch.pool[id].sms; }

class Random final : public PlacementPolicy {
 public:
  explicit Random(const RandomOptions& options) : options_(options), state_(options.seed) {}

  Placement place(const PlacementRequest& launch, std::span<const PartitionId> eligible) override {
    const std::uint32_t all = launch.pool.front().sms;
    const std::uint32_t least = std::max(options_.min_sms, launch.demand.min_sms);
    const std::uint32_t below = options_.whole ? ~0U : all - 1;
    std::uint32_t most = std::min(options_.max_sms, below);
    // No part is that narrow: the next wider ones.
    for (const Partition& partition : launch.pool.subspan(1))
      if (partition.sms >= options_.min_sms && partition.sms <= below) {
        most = std::max(most, partition.sms);
        break;
      }
    const auto sms = [&](PartitionId id) { return sms_of(launch, id); };
    // Partitions come narrowest first: those in the range of widths are neighbors.
    const auto first = std::ranges::lower_bound(eligible, least, {}, sms);
    const auto last = std::ranges::upper_bound(first, eligible.end(), most, {}, sms);
    if (first != last) {
      const auto choices = static_cast<std::uint64_t>(last - first);
      return {first[static_cast<std::ptrdiff_t>(draw() % choices)], options_.every};
    }
    // Other clients hold what is in the range, or nothing there runs the launch.
    const bool held = std::ranges::any_of(launch.pool.subspan(1), [&](const Partition& partition) {
      return partition.sms >= least && partition.sms <= most;
    });
    return held ? Placement{} : Placement{eligible.back(), 1};
  }

 private:
  // splitmix64: any seed will do, 0 included.
  std::uint64_t draw() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  RandomOptions options_;
  std::uint64_t state_;
};

class Extremes final : public PlacementPolicy {
 public:
  explicit Extremes(const ExtremesOptions& options) : options_(options) {}

  Placement place(const PlacementRequest& launch, std::span<const PartitionId> eligible) override {
    widest_next_ = !widest_next_;
    if (options_.narrow == options_.wide ? widest_next_ : options_.wide)
      return {widest_part(eligible), 1};
    // Of the narrowest ones the next each time: other SMs.
    std::size_t count = 1;
    while (count < eligible.size() &&
           sms_of(launch, eligible[count]) == sms_of(launch, eligible[0]))
      ++count;
    return {eligible[turn_++ % count], 1};
  }

 private:
  // Not the program's own stream, so that the launch moves.
  static PartitionId widest_part(std::span<const PartitionId> eligible) {
    for (std::size_t i = eligible.size(); i-- > 0;)
      if (eligible[i] != kWholeDevice) return eligible[i];
    return eligible.back();
  }

  ExtremesOptions options_;
  bool widest_next_ = false;
  std::size_t turn_ = 0;
};

constexpr Parameter kRandomParameters[] = {
    {"every", "draw anew after this many launches of a stream (default 1)"},
    {"min_sms", "narrowest partition in SMs (default 1)"},
    {"max_sms",
     "widest partition in SMs; the narrowest one from min_sms on always counts (default: no "
     "limit)"},
    {"whole", "1: partitions as wide as the whole device count, too (default 0)"},
    {"exclusive", "1: streams of one client never overlap (default 0)"}};
constexpr Parameter kExtremesParameters[] = {
    {"narrow", "1: always the narrowest partition that runs the launch (default 0: in turn)"},
    {"wide", "1: always the widest part of the device (default 0: in turn)"}};

}  // namespace

Policy make_random(const RandomOptions& options) {
  PolicyDescription description;
  description.name = "random";
  description.summary = "a new partition for every launch, from a seed: the verifier's";
  description.parameters = kRandomParameters;
  description.isolate_streams = options.isolate_streams;
  return {description, nullptr, std::make_unique<Random>(options)};
}

Policy make_extremes(const ExtremesOptions& options) {
  PolicyDescription description;
  description.name = "extremes";
  description.summary = "the narrowest and the widest partition in turn: the verifier's";
  description.parameters = kExtremesParameters;
  return {description, nullptr, std::make_unique<Extremes>(options)};
}

}  // namespace vitamin::scheduler
