// SPDX-License-Identifier: Apache-2.0
#include "policies/decoders.h"

#include <algorithm>

namespace vitamin::policies {

using hal::ComputeSet;
using runtime::ClientId;
using runtime::EntryId;
using runtime::kNoEntry;
using runtime::PoolView;
using runtime::ReadyOperation;

namespace {
// For so many steps another size was right before a reservation becomes less, or more.
constexpr std::uint64_t kSteps = 50, kStepsToMore = 5;
// A longer time that a client gave its steps is forgotten in about so many of them.
constexpr std::uint64_t kForget = 64;
// Steps for which a width is tried, of which some may run elsewhere for a part.
constexpr unsigned kTries = 10;
}  // namespace

// --- who they are ----------------------------------------------------------------------------

const Decoder* Decoders::find(ClientId client) const {
  const auto at = std::lower_bound(decoders_.begin(), decoders_.end(), client, before);
  return at != decoders_.end() && at->client == client ? &*at : nullptr;
}

Decoder& Decoders::of(ClientId client) {
  const auto at = std::lower_bound(decoders_.begin(), decoders_.end(), client, before);
  if (at != decoders_.end() && at->client == client) return *at;
  Decoder fresh;
  fresh.client = client;
  return *decoders_.insert(at, std::move(fresh));
}

void Decoders::forget(ClientId client) {
  std::erase_if(decoders_, [&](const Decoder& decoder) { return decoder.client == client; });
  changed();
}

void Decoders::look(const PoolView& pool, std::span<Planner::Lane* const> lanes) {
  entries_ = pool.entries;
  for (const Planner::Lane* lane : lanes) {
    const ReadyOperation& operation = lane->operation;
    Decoder& decoder = of(operation.client);
    const bool first = std::exchange(decoder.seen, pool.epoch) != pool.epoch;
    const auto weight = [](const ReadyOperation& each) {
      return std::pair(is_step(each), work(each));
    };
    if (first || weight(operation) > weight(decoder.leads->operation)) decoder.leads = lane;
  }
  for (Decoder& decoder : decoders_)
    if (decoder.seen == pool.epoch) decoder.lane = decoder.leads->operation.lane;
}

void Decoders::follow(const Planner::Lane& lane, const PoolView& pool) {
  Decoder& decoder = of(lane.operation.client);
  set_target(decoder, lane.operation, pool);
  time(decoder, lane, pool);
  learn(decoder, lane.operation);
  if (options_.reservation != 0) size(decoder, lane.operation, pool);
}

// --- their steps -----------------------------------------------------------------------------

// What is given to a step that is late already says nothing.
void Decoders::set_target(Decoder& decoder, const ReadyOperation& operation,
                          const PoolView& pool) const {
  if (operation.target_ns != 0) {
    decoder.target_ns = operation.target_ns;
    return;
  }
  if (decoder.target_ns == 0) decoder.target_ns = target_ns_;
  if (!is_step(operation) || operation.deadline_ns == decoder.due_ns ||
      operation.deadline_ns < pool.now_ns + operation.queued_ns)
    return;
  const std::uint64_t given = operation.deadline_ns - pool.now_ns;
  decoder.target_ns =
      std::min(target_ns_, std::max(given, decoder.target_ns - decoder.target_ns / kForget));
}

// From its step's beginning to the next one's, so that what its host does between counts, too. Not
// on the whole device: others may be there. Not where two follow each other with one deadline,
// which has passed then: whether that is one step or more is not known.
void Decoders::time(Decoder& decoder, const Planner::Lane& lane, const PoolView& pool) {
  const ReadyOperation& operation = lane.operation;
  if (!is_step(operation)) return;
  const bool another = operation.deadline_ns != decoder.due_ns;
  if (lane.held != decoder.throughout || (!another && operation.id != decoder.last_id))
    decoder.throughout = kNoEntry;
  if (!another) return;
  ++decoder.tries;
  if (decoder.throughout != kNoEntry && decoder.throughout != runtime::kWholeDevice)
    decoder.curve.add(
        pool.entries[lane.held].processors,
        static_cast<double>(pool.now_ns - decoder.began_ns) / static_cast<double>(decoder.said_ns));
  decoder.due_ns = operation.deadline_ns;
  decoder.began_ns = pool.now_ns;
  decoder.said_ns = operation.queued_ns;
  decoder.throughout = lane.held;
  decoder.curve.update(pool.entries, curves_.of(operation.kernel, pool));
}

void Decoders::learn(Decoder& decoder, const ReadyOperation& operation) {
  if (decoder.usual_ns > 0 && decoder.last_id == operation.id) return;
  decoder.last_id = operation.id;
  decoder.sized_as_of = 0;
  ++decoder.steps;
  const double now = static_cast<double>(work(operation));
  const double weight = now < decoder.usual_ns ? 0.2 : 0.01;
  // Nearer the lighter steps: lookahead sees to the heavy ones.
  decoder.usual_ns += decoder.usual_ns == 0 ? now : weight * (now - decoder.usual_ns);
}

bool Decoders::known(ClientId client) const {
  const Decoder* decoder = find(client);
  return decoder != nullptr && decoder->curve.known();
}

bool Decoders::is_tried(const ReadyOperation& operation, EntryId standing,
                        const PoolView& pool) const {
  const Decoder* decoder = is_step(operation) ? find(operation.client) : nullptr;
  return decoder != nullptr && decoder->tries < kTries && decoder->curve.known() &&
         !decoder->curve.known(pool.entries[standing].processors);
}

std::uint64_t Decoders::deadline(const ReadyOperation& operation) const {
  if (operation.deadline_ns != 0) return operation.deadline_ns;
  return operation.since_ns + (operation.target_ns != 0 ? operation.target_ns : target_ns_);
}

std::uint64_t Decoders::target_ns(ClientId client) const {
  const Decoder* decoder = find(client);
  return decoder != nullptr && decoder->target_ns != 0 ? decoder->target_ns : target_ns_;
}

std::span<const float> Decoders::curve_of(const ReadyOperation& operation, const PoolView& pool) {
  const Decoder* decoder = is_step(operation) ? find(operation.client) : nullptr;
  return decoder != nullptr && !decoder->curve.values().empty()
             ? decoder->curve.values()
             : curves_.of(operation.kernel, pool);
}

std::uint64_t Decoders::takes(const ReadyOperation& operation, EntryId entry,
                              const PoolView& pool) {
  return Curves::scaled(curve_of(operation, pool), work(operation), entry);
}

ReadyOperation Decoders::what_is_left(const Planner::Lane& lane, const PoolView& pool) {
  Decoder& decoder = of(lane.operation.client);
  ReadyOperation operation = lane.operation;
  if (decoder.step != operation.id || decoder.as_of_ns < operation.since_ns) {
    decoder.step = operation.id;
    decoder.left = 1;
    decoder.as_of_ns = std::max(operation.since_ns, operation.ready_at_ns);
    if (decoder.on == kNoEntry) decoder.on = lane.held;
  }
  if (decoder.on != kNoEntry && pool.now_ns > decoder.as_of_ns) {
    const std::uint64_t all = std::max<std::uint64_t>(1, takes(operation, decoder.on, pool));
    decoder.left -= static_cast<double>(pool.now_ns - decoder.as_of_ns) / static_cast<double>(all);
    decoder.left = std::max(0.0, decoder.left);
    decoder.as_of_ns = pool.now_ns;
  }
  decoder.on = lane.held;
  operation.queued_ns =
      static_cast<std::uint64_t>(static_cast<double>(work(operation)) * decoder.left);
  operation.predicted_ns = 0;
  return operation;
}

// --- what is theirs --------------------------------------------------------------------------

// What a reservation may be depends on all others.
void Decoders::changed() {
  ++changes_;
  standing_.clear();
  for (const Decoder& decoder : decoders_)
    if (decoder.standing != kNoEntry)
      standing_.emplace_back(decoder.client, entries_[decoder.standing].compute);
}

ComputeSet Decoders::others_standing(ClientId client) const {
  ComputeSet set;
  for (const auto& [other, compute] : standing_)
    if (other != client) set |= compute;
  return set;
}

ComputeSet Decoders::idle_standing(const PoolView& pool) const {
  ComputeSet set;
  for (const Decoder& decoder : decoders_)
    if (decoder.standing != kNoEntry && decoder.seen != pool.epoch)
      set |= pool.entries[decoder.standing].compute;
  return set;
}

// Once for each step, and when another reservation or the profile has changed.
void Decoders::size(Decoder& decoder, const ReadyOperation& operation, const PoolView& pool) {
  const std::uint64_t profile = pool.profile != nullptr ? pool.profile->version() : 0;
  if (std::exchange(profile_, profile) != profile) changed();
  if (decoder.sized_as_of == changes_) return;
  const EntryId right = right_size(decoder, operation, pool);
  if (right == decoder.standing) decoder.right_at = decoder.steps;
  // Some of its kernels do not run there.
  const bool too_narrow = right != kNoEntry && decoder.standing != kNoEntry &&
                          pool.entries[decoder.standing].processors < operation.processors;
  const bool to_more = decoder.standing != kNoEntry && right != kNoEntry &&
                       pool.entries[right].processors > pool.entries[decoder.standing].processors;
  if (right != decoder.standing &&
      (decoder.standing == kNoEntry || too_narrow ||
       decoder.steps - decoder.right_at >= (to_more ? kStepsToMore : kSteps))) {
    decoder.standing = right;
    decoder.right_at = decoder.steps;
    decoder.tries = 0;
    changed();
  }
  decoder.sized_as_of = changes_;
}

EntryId Decoders::right_size(Decoder& decoder, const ReadyOperation& operation,
                             const PoolView& pool) {
  const ComputeSet others = others_standing(decoder.client);
  std::uint32_t room = pool.entries.front().processors * options_.most / 100;
  if (!others.empty())
    for (const runtime::PoolEntry& entry : pool.entries.subspan(1))
      if (entry.compute.count() == 1 && entry.compute.overlaps(others))
        room -= std::min(room, entry.processors);
  const std::span<const float> curve = curve_of(operation, pool);
  const double target = static_cast<double>(decoder.target_ns);
  double most_ns = target * options_.margin / 100;
  // Where that cannot be had anywhere, but the target can: what is nearly as good as it gets.
  const double least_ns = decoder.usual_ns * static_cast<double>(curve.back() / curve[0]);
  if (least_ns > most_ns) most_ns = std::min(target, 1.1 * least_ns);
  const double most = most_ns / decoder.usual_ns * static_cast<double>(curve[0]);
  std::uint32_t width = 0;
  EntryId best = kNoEntry;
  bool met = false;
  for (const runtime::PoolEntry& entry : pool.entries.subspan(1)) {
    if (width != 0 && entry.processors > width) break;
    if (met && entry.processors > room) break;
    const bool enough = options_.reserve != 0 ? entry.processors >= options_.reserve
                                              : static_cast<double>(curve[entry.id]) <= most;
    met = met || enough;
    if (!enough || entry.processors < operation.processors || entry.processors > room ||
        entry.compute.overlaps(others))
      continue;
    // The first of its width: narrower entries nest in wider ones from that end.
    if (width == 0 || entry.id == decoder.standing) best = entry.id;
    width = entry.processors;
  }
  if (!met) say_once(decoder, pool);
  return best;
}

void Decoders::say_once(Decoder& decoder, const PoolView& pool) {
  if (std::exchange(decoder.told, true)) return;
  message_ = "tpot-first: no width up to " + std::to_string(pool.entries.front().processors) +
             " processors lets client " + std::to_string(decoder.client) + " decode within " +
             std::to_string(decoder.target_ns / 1'000'000) +
             " ms a token; it is served at best effort. Give it a longer target (its class's "
             "tpot, or target=MS).";
}

}  // namespace vitamin::policies
