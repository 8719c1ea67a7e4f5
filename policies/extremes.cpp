// SPDX-License-Identifier: Apache-2.0
//
// extremes: the narrowest eligible entry and the widest in turn, or always one of them. The
// verifier's adversary: whatever depends on the allocation, this shows it.
#include "policies/builtin.h"
#include "policies/whole_device.h"

namespace vitamin::policies {
namespace {

using runtime::EntryId;

class Extremes final : public runtime::Policy {
 public:
  Extremes(bool narrow, bool wide) : narrow_(narrow), wide_(wide) {}
  std::string_view name() const override { return "extremes"; }

  runtime::Choice select(const runtime::ReadyOperation& operation,
                         std::span<const EntryId> eligible,
                         const runtime::PoolView& pool) override {
    if (pool.entries[eligible[0]].whole() && waits_for_a_part(operation, pool))
      return {runtime::kNoEntry, 0};
    widest_next_ = !widest_next_;
    const bool widest = narrow_ == wide_ ? widest_next_ : wide_;
    if (widest) return {widest_partition(eligible, pool), 1};
    // Entries come narrowest first. Among the narrowest ones, the next each time: other processors.
    std::size_t count = 1;
    while (count < eligible.size() && width(pool, eligible[count]) == width(pool, eligible[0]))
      ++count;
    return {eligible[turn_++ % count], 1};
  }

 private:
  static std::uint32_t width(const runtime::PoolView& pool, EntryId id) {
    return pool.entries[id].processors;
  }
  // The widest that is not the application's own stream, so that the launch really moves.
  static EntryId widest_partition(std::span<const EntryId> eligible,
                                  const runtime::PoolView& pool) {
    for (std::size_t i = eligible.size(); i-- > 0;)
      if (!pool.entries[eligible[i]].whole()) return eligible[i];
    return eligible.back();
  }

  bool narrow_, wide_;
  bool widest_next_ = false;
  std::size_t turn_ = 0;
};

constexpr Parameter kParameters[] = {
    {"narrow", "1: always the narrowest entry that can run the launch (default 0: in turn)"},
    {"wide", "1: always the widest part of the device (default 0: in turn)"}};

}  // namespace

const Description kExtremes = {
    "extremes", "the narrowest and the widest entry in turn: the verifier's", kParameters};

std::unique_ptr<runtime::Policy> make_extremes(Parameters& parameters, std::uint64_t) {
  std::uint32_t narrow = 0, wide = 0;
  parameters.number("narrow", 0, 1, &narrow);
  parameters.number("wide", 0, 1, &wide);
  return std::make_unique<Extremes>(narrow != 0, wide != 0);
}

}  // namespace vitamin::policies
