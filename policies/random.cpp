// SPDX-License-Identifier: Apache-2.0
//
// random: a new entry, drawn from a seed, for every launch. Nothing shows more plainly that the
// bits do not depend on the allocation; it is the verifier's policy, not one to be fast with.
#include <algorithm>

#include "policies/builtin.h"
#include "policies/whole_device.h"

namespace vitamin::policies {
namespace {

using runtime::EntryId;

struct Options {
  std::uint32_t every = 1;
  std::uint32_t narrowest = 1;
  std::uint32_t widest = ~0U;
  std::uint32_t whole = 0;
  std::uint32_t exclusive = 0;
};

class Random final : public runtime::Policy {
 public:
  Random(const Options& options, std::uint64_t seed) : options_(options), state_(seed) {}
  std::string_view name() const override { return "random"; }

  runtime::Choice select(const runtime::ReadyOperation& operation,
                         std::span<const EntryId> eligible,
                         const runtime::PoolView& pool) override {
    // Entries come narrowest first, so those in the range of widths are neighbours.
    const auto width = [&](EntryId id) { return pool.entries[id].processors; };
    const std::uint32_t all = pool.entries.front().processors;
    auto first = std::partition_point(eligible.begin(), eligible.end(),
                                      [&](EntryId id) { return width(id) < options_.narrowest; });
    auto last = std::partition_point(first, eligible.end(), [&](EntryId id) {
      return width(id) <= options_.widest && (options_.whole != 0 || width(id) < all);
    });
    if (first == last) {  // others hold what is in the range, or nothing there can run it
      const std::uint32_t widest =
          options_.whole != 0 ? options_.widest : std::min(options_.widest, all - 1);
      if (waits_for_a_part(operation, pool, options_.narrowest, widest))
        return {runtime::kNoEntry, 0};
      return {eligible.back(), 1};
    }
    const auto choices = static_cast<std::uint64_t>(last - first);
    return {first[static_cast<std::ptrdiff_t>(draw() % choices)], options_.every};
  }

  bool lanes_share() const override { return options_.exclusive == 0; }

 private:
  // splitmix64: any seed will do, 0 included.
  std::uint64_t draw() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  Options options_;
  std::uint64_t state_;
};

constexpr Parameter kParameters[] = {
    {"every", "draw anew after this many launches of a stream (default 1)"},
    {"min", "narrowest entry in processors (default 1)"},
    {"max", "widest entry in processors (default: no limit)"},
    {"whole", "1: entries as wide as the whole device count too (default 0)"},
    {"exclusive", "1: streams of one process never overlap (default 0)"}};

}  // namespace

const Description kRandom = {"random", "a new entry for every launch, from --seed: the verifier's",
                             kParameters};

std::unique_ptr<runtime::Policy> make_random(Parameters& parameters, std::uint64_t seed) {
  Options options;
  parameters.number("every", 1, 1'000'000, &options.every);
  parameters.number("min", 1, 100'000, &options.narrowest);
  parameters.number("max", 1, 100'000, &options.widest);
  parameters.number("whole", 0, 1, &options.whole);
  parameters.number("exclusive", 0, 1, &options.exclusive);
  return std::make_unique<Random>(options, seed);
}

}  // namespace vitamin::policies
