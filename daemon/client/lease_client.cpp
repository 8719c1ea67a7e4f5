// SPDX-License-Identifier: Apache-2.0
#include "daemon/client/lease_client.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/arbiter.h"

namespace vitamin::client {

using protocol::kLanes;
using runtime::is_eligible;
using runtime::kNoPartition;
using runtime::kUntilRevoked;
using runtime::kWholeDevice;

namespace {

constexpr std::size_t kPage = 4096;
// A request is repeated after this time, in case its answer was lost to a full ring.
constexpr std::uint64_t kAskAgain = 20'000'000;
// An operation that was not retried for this time does not wait any more: it went elsewhere.
constexpr std::uint64_t kStillWaits = 10'000'000;

// A grant that no operation claims for this time is returned: the lane seems to have nothing to
// submit, and other clients may be waiting.
constexpr std::uint64_t kUnclaimed = 200'000;

// A client that reports is idle after this time without outstanding or submitted operations.
constexpr std::uint64_t kUnused = 1'000'000;

// The word of grants without a daemon. No daemon has epoch 0.
constexpr LeaseWord kFallbackWord = protocol::lease_word(0, 1, protocol::GateState::kOpen);

// What every lane reads while there is no daemon: it equals kFallbackWord and no daemon's grant.
const protocol::LeaseWords& fallback_words() {
  static const auto* const words = [] {
    auto* made = new protocol::LeaseWords;
    for (auto& word : *made) word.store(kFallbackWord, std::memory_order_relaxed);
    return made;
  }();
  return *words;
}

static_assert(static_cast<std::uint8_t>(runtime::WorkKind::kBestEffort) + 1 == protocol::kKinds);

// 0 stays 0 (not set); a time that has passed becomes 1.
std::uint64_t from_now(std::uint64_t at_ns, std::uint64_t now_ns) {
  if (at_ns == 0) return 0;
  return at_ns > now_ns ? std::min(at_ns - now_ns, protocol::kLongest) : 1;
}

}  // namespace

Link::Link(protocol::ClientSegment& mine, const protocol::DaemonSegment& theirs)
    : requests(mine.requests, mine.request_tail, theirs.request_head),
      grants(theirs.grants, theirs.grant_tail, mine.grant_head),
      words(&theirs.leases),
      own_sleep(&mine.sleep_flag),
      daemon_sleep(&theirs.sleep_flag),
      gate_changes(&theirs.gate_changes),
      operations(&mine.operations),
      reports(&mine),
      reporting(&theirs.reporting) {}

LeaseClient::LeaseClient(const runtime::PoolLayout& layout, std::function<void()> ring)
    : layout_(layout), ring_(std::move(ring)), lanes_(kLanes) {
  void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::bad_alloc();
  ::madvise(page, kPage, MADV_WIPEONFORK);
  page_ = new (page) Page{&fallback_words()};
}

LeaseClient::~LeaseClient() { ::munmap(page_, kPage); }

void LeaseClient::lose() { page_->words.store(&fallback_words(), std::memory_order_release); }

bool LeaseClient::daemon_is_lost() const {
  return page_->words.load(std::memory_order_acquire) == &fallback_words();
}

void LeaseClient::connect(const Link& link, std::uint64_t now_ns) {
  link_ = link;
  gates_seen_ = link_.gate_changes->load(std::memory_order_acquire);
  for (LaneId id = 0; id < lanes_used_; ++id) {
    Lane& lane = lanes_[id];
    close_grant(lane);
    lane.requested = false;
    // The daemon accepts one report for each lane and partition: drains of several grants there,
    // and of fallback work, are merged into one, which lasts until the last of them has ended.
    std::vector<Drain> remain;
    for (const Drain& drain : lane.drains) {
      if (drain.outstanding == 0) continue;
      const auto same = std::find_if(remain.begin(), remain.end(), [&](const Drain& other) {
        return other.partition == drain.partition;
      });
      if (same == remain.end()) {
        remain.push_back(drain);
      } else {
        same->outstanding += drain.outstanding;
        same->shared = same->shared && drain.shared;
        if (same->word == kFallbackWord) same->word = drain.word;  // prefer a daemon's word
      }
    }
    drains_ -= static_cast<std::uint32_t>(lane.drains.size() - remain.size());
    lane.drains = std::move(remain);
  }
  earlier_work_unsent_ = false;
  for (LaneId id = 0; id < lanes_used_; ++id)
    for (Drain& drain : lanes_[id].drains) report_earlier_work(id, drain, now_ns);
  if (lanes_used_ > 0 && !earlier_work_unsent_) end_earlier_work_reports();
  flush();
  in_fallback_ = false;
  sleeps_ = false;
  operations_ = launches_ = work_ = misplaced_ = busy_ns_ = collectives_ = 0;
  reporting_ = busy_ = seen_busy_ = false;
  seen_operations_ = 0;
  page_->operations = link_.operations;
  page_->reports = link_.daemon_minor >= 6 ? link_.reports : nullptr;
  page_->words.store(link_.words, std::memory_order_release);
}

void LeaseClient::report_earlier_work(LaneId id, Drain& drain, std::uint64_t now_ns) {
  // No other client waits for the end of work under a shared grant of the whole device.
  if (drain.partition == kWholeDevice && (drain.shared || link_.daemon_minor < 8)) {
    drain.known = Known::kNo;
    return;
  }
  protocol::Holding holding;
  holding.head.lane = id;
  holding.word = drain.word;
  holding.partition = drain.partition;
  holding.outstanding = drain.outstanding;
  drain.reported_ns = now_ns;
  drain.known = send(protocol::encode(holding)) ? Known::kYes : Known::kReportPending;
  earlier_work_unsent_ = earlier_work_unsent_ || drain.known == Known::kReportPending;
}

// The first Idle of a session says that all earlier work was reported: what the process had before
// and did not report is free. No Ready is sent before it, which an Idle of the same lane would
// cancel.
void LeaseClient::end_earlier_work_reports() {
  earlier_work_unsent_ = !send(protocol::encode(protocol::Idle{}));
}

GrantTerms LeaseClient::grant(StreamId stream, const runtime::ReadyOperation& operation,
                              std::span<const PartitionId> eligible, std::uint64_t now_ns) {
  const LaneId index = stream % static_cast<LaneId>(kLanes);
  Lane& lane = lanes_[index];
  lanes_used_ = std::max<std::size_t>(lanes_used_, index + 1);
  if (page_->words.load(std::memory_order_relaxed) == nullptr) return {eligible.back(), 1};
  if (daemon_is_lost()) return place_in_fallback(lane, operation, eligible);
  take_grants(now_ns);
  if (lane.partition != kNoPartition && !is_open(index)) notice_closed();
  // What the daemon has not been told is sent at once, whatever request is open.
  const bool new_deadline =
      operation.deadline_ns != 0 && operation.deadline_ns != lane.told_deadline_ns;
  const bool news = operation.id != lane.asked_id && (operation.iteration_end || new_deadline);
  bool moves_on = false;
  if (lane.partition != kNoPartition) {
    const bool wide_enough = layout_.at(lane.partition).sms >= operation.sms;
    const bool fresh = !lane.claimed || lane.launches == kUntilRevoked;
    if (wide_enough && !is_eligible(eligible, lane.partition)) {
      // The driver refused this kernel there, or no queue is free yet: only this launch goes to the
      // whole device.
      set_waiting(lane, false);
      GrantTerms terms =
          is_eligible(eligible, kWholeDevice) ? GrantTerms{kWholeDevice, 1} : GrantTerms::none();
      terms.heard = false;
      return terms;
    }
    if (wide_enough && fresh) {
      lane.claimed = true;
      lane.unclaimed_ns = 0;
      set_waiting(lane, false);
      lane.admitted = lane.word;
      GrantTerms terms{lane.partition, lane.launches, lane.ahead_ns, lane.counts_outstanding};
      // A grant for a number of launches is meant for one iteration at most. (A step that begins
      // under a grant is announced by expect().)
      terms.heard = news && operation.iteration_end && lane.launches != kUntilRevoked &&
                    !earlier_work_unsent_ && ask(index, lane, operation, false, now_ns);
      flush();
      return terms;
    }
    close_grant(lane);
    return_drained(index, lane, now_ns);
    // Where the grant could not be returned yet, the Ready tells the daemon that it is closed.
    moves_on = !lane.drains.empty() && lane.drains.back().word == lane.word;
    lane.word = 0;
  }
  // Earlier work must be reported before the first Ready.
  GrantTerms terms = GrantTerms::none();
  terms.heard = false;
  if (!earlier_work_unsent_ &&
      (!lane.requested || moves_on || news || operation.sms != lane.asked_width ||
       now_ns - lane.asked_ns >= kAskAgain))
    // If it was not sent, the next try sends it.
    terms.heard = lane.requested = ask(index, lane, operation, moves_on, now_ns);
  lane.tried_ns = now_ns;
  set_waiting(lane, true);
  flush();
  return terms;
}

GrantTerms LeaseClient::place_in_fallback(Lane& lane, const runtime::ReadyOperation& operation,
                                          std::span<const PartitionId> eligible) {
  enter_fallback();
  set_waiting(lane, false);
  ++counters_.in_fallback;
  const bool fits = link_.fallback != kWholeDevice && is_eligible(eligible, link_.fallback) &&
                    layout_.at(link_.fallback).sms >= operation.sms;
  const PartitionId partition = fits                                  ? link_.fallback
                                : is_eligible(eligible, kWholeDevice) ? kWholeDevice
                                                                      : eligible.back();
  if (lane.partition != partition) {
    close_grant(lane);
    lane.partition = partition;
    lane.word = lane.admitted = kFallbackWord;
    lane.launches = lane.left = kUntilRevoked;
    lane.outstanding = 0;
    lane.counts_outstanding = partition != kWholeDevice;
    lane.shared = true;
  }
  return {partition, fits ? kUntilRevoked : 1, runtime::kNever, lane.counts_outstanding};
}

void LeaseClient::enter_fallback() {
  if (in_fallback_) return;
  in_fallback_ = true;
  for (LaneId id = 0; id < lanes_used_; ++id) {
    Lane& lane = lanes_[id];
    close_grant(lane);
    lane.requested = false;
    set_waiting(lane, false);
  }
}

// False: the ring is full.
bool LeaseClient::ask(LaneId id, Lane& lane, const runtime::ReadyOperation& operation,
                      bool moves_on, std::uint64_t now_ns) {
  protocol::Ready ready;
  ready.head.lane = id;
  ready.kernel = operation.kernel;
  ready.predicted_ns = operation.predicted_ns;
  ready.queued_ns = std::min(operation.queued_ns, protocol::kLongest);
  ready.ready_in_ns = from_now(operation.ready_at_ns, now_ns);
  ready.deadline_in_ns = from_now(operation.deadline_ns, now_ns);
  ready.kind = static_cast<std::uint8_t>(operation.kind);
  ready.sms = operation.sms;
  ready.last_partition = lane.last_partition;
  ready.moves_on = moves_on ? 1 : 0;
  ready.iteration_end = operation.iteration_end ? 1 : 0;
  if (!send(protocol::encode(ready))) return false;
  lane.asked_id = operation.id;
  lane.asked_width = operation.sms;
  lane.asked_ns = now_ns;
  lane.told_deadline_ns = operation.deadline_ns;
  ++counters_.asked;
  return true;
}

void LeaseClient::expect(const runtime::ExpectedOperation& expected, std::uint64_t now_ns) {
  if (page_->words.load(std::memory_order_relaxed) == nullptr || daemon_is_lost()) return;
  protocol::HintRecord said;
  said.head.lane = expected.stream % static_cast<LaneId>(kLanes);
  said.kernel = expected.kernel;
  said.ready_in_ns = from_now(expected.ready_at_ns, now_ns);
  said.deadline_in_ns = from_now(expected.deadline_ns, now_ns);
  said.queued_ns = std::min(expected.queued_ns, protocol::kLongest);
  said.sms = expected.sms;
  said.cancelled = expected.cancelled ? 1 : 0;
  said.kind = static_cast<std::uint8_t>(expected.kind);
  // Of a step to come the daemon waits to hear that it has begun.
  if (send(protocol::encode(said)) && !expected.cancelled && expected.ready_at_ns <= now_ns)
    lanes_[said.head.lane].told_deadline_ns = expected.deadline_ns;
  flush();
}

void LeaseClient::timed(const runtime::TimedLaunches& launches) {
  if (page_->words.load(std::memory_order_relaxed) == nullptr || daemon_is_lost()) return;
  if (link_.daemon_minor < 2 || link_.requests.room() < protocol::kRequests / 2) return;
  protocol::Timed said;
  said.mean_ns = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(launches.mean_ns));
  said.whole_ns = static_cast<std::uint64_t>(launches.whole_ns);
  said.sms = launches.sms;
  said.launches =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(launches.launches, 0xffffffff));
  send(protocol::encode(said));
  flush();
}

void LeaseClient::submitted(PartitionId partition, StreamId stream) {
  Lane& lane = lanes_[stream % kLanes];
  if (lane.partition == partition) {
    ++lane.outstanding;
    if (lane.left != kUntilRevoked && lane.left > 0) --lane.left;
    return;
  }
  // The driver accepted the launch after the grant had ended (a retry on a wider partition): count
  // it, so that its end is waited for.
  lane.drains.push_back({partition, 0, 1, 0, Known::kNo});
  ++drains_;
}

void LeaseClient::ended(PartitionId partition, StreamId stream, std::uint32_t operations) {
  if (operations == 0) return;
  Lane& lane = lanes_[stream % kLanes];
  for (Drain& drain : lane.drains) {
    if (drain.partition != partition) continue;
    const std::uint32_t ended = std::min(operations, drain.outstanding);
    drain.outstanding -= ended;
    operations -= ended;
  }
  if (lane.partition == partition) lane.outstanding -= std::min(operations, lane.outstanding);
}

void LeaseClient::completed(PartitionId partition, StreamId stream, std::uint32_t launches,
                            std::uint64_t work) {
  protocol::ClientSegment* const page = page_->reports;
  if (page == nullptr || launches == 0) return;
  if (partition != lanes_[stream % kLanes].partition) misplaced_ += work;
  launches_ += launches;
  work_ += work;
  page->launches.store(launches_, std::memory_order_relaxed);
  page->work.store(work_, std::memory_order_relaxed);
  page->misplaced.store(misplaced_, std::memory_order_relaxed);
}

void LeaseClient::busy(std::uint64_t ns) {
  protocol::ClientSegment* const page = page_->reports;
  if (page == nullptr) return;
  busy_ns_ += ns;
  page->busy_ns.store(busy_ns_, std::memory_order_relaxed);
}

// --- answers of the daemon -------------------------------------------------------------------

void LeaseClient::take_grants(std::uint64_t now_ns) {
  const protocol::Bounds bounds{layout_.size(), layout_.at(kWholeDevice).sms};
  protocol::Record copy;
  protocol::RingState state = protocol::RingState::kOk;
  while ((state = link_.grants.read(copy)) == protocol::RingState::kOk) {
    const auto reply = protocol::decode_reply(copy, bounds);
    if (!reply) return protocol_error();
    const auto& grant = std::get<protocol::Grant>(*reply);
    Lane& lane = lanes_[grant.head.lane];
    lanes_used_ = std::max<std::size_t>(lanes_used_, grant.head.lane + 1);
    // An amendment of a grant that was closed meanwhile: the grant is returned by its former word.
    if (grant.amends != 0 && !reopen_grant(lane, grant.amends)) continue;
    // An amended grant keeps its outstanding work. Daemons before 1.7 amend by granting the same
    // partition again.
    const bool same =
        lane.partition == grant.partition && (grant.amends != 0 || link_.daemon_minor < 7);
    const std::uint32_t outstanding = same ? lane.outstanding : 0;
    if (!same) close_grant(lane);
    lane.partition = static_cast<PartitionId>(grant.partition);
    lane.word = grant.word;
    lane.launches = lane.left = grant.launches;
    lane.ahead_ns = grant.ahead_ns != protocol::kNoAheadBound ? grant.ahead_ns : runtime::kNever;
    lane.outstanding = outstanding;
    lane.shared = grant.exclusive == 0;
    // A bound of launches is one of what is in flight: the policy hears when they have ended.
    lane.counts_outstanding =
        lane.partition != kWholeDevice || !lane.shared || lane.launches != kUntilRevoked;
    lane.claimed = false;
    lane.used_ns = now_ns;
    // The time without a claim goes on when one unclaimed grant replaces another.
    if (lane.unclaimed_ns == 0) lane.unclaimed_ns = now_ns;
    ++counters_.granted;
    if (lane.last_partition != kNoPartition && lane.last_partition != lane.partition)
      ++counters_.moves;
    lane.last_partition = lane.partition;
  }
  if (state == protocol::RingState::kBroken) return protocol_error();
  link_.grants.release();
}

// A daemon that breaks the protocol is treated as lost.
void LeaseClient::protocol_error() {
  ++counters_.malformed;
  lose();
}

// Makes the grant of this word the lane's open grant: it is already, or it was closed because the
// lease word changed before the record arrived. False: that grant was returned.
bool LeaseClient::reopen_grant(Lane& lane, LeaseWord word) {
  if (lane.partition != kNoPartition) return lane.word == word;
  const auto drain = std::find_if(lane.drains.begin(), lane.drains.end(), [&](const Drain& closed) {
    return closed.word == word && closed.known == Known::kYes;
  });
  if (drain == lane.drains.end()) return false;
  // It was not returned, so the daemon still has the grant.
  lane.partition = drain->partition;
  lane.word = word;
  lane.outstanding = drain->outstanding;
  lane.drains.erase(drain);
  --drains_;
  return true;
}

void LeaseClient::close_grant(Lane& lane) {
  if (lane.partition == kNoPartition) return;
  const Known known = lane.word == kFallbackWord ? Known::kNo : Known::kYes;
  lane.drains.push_back({lane.partition, lane.word, lane.outstanding, 0, known, lane.shared});
  ++drains_;
  sleeps_ = false;
  lane.partition = kNoPartition;
  lane.outstanding = 0;
}

void LeaseClient::notice_closed() {
  gates_seen_ = link_.gate_changes->load(std::memory_order_acquire);
  for (LaneId id = 0; id < lanes_used_; ++id) {
    Lane& lane = lanes_[id];
    if (lane.partition == kNoPartition || is_open(id)) continue;
    close_grant(lane);
    ++counters_.closed;
  }
}

void LeaseClient::return_drained(LaneId id, Lane& lane, std::uint64_t now_ns) {
  std::erase_if(lane.drains, [&](Drain& drain) {
    bool over = drain.outstanding == 0;
    if (in_fallback_ || drain.known == Known::kNo) {
      // The daemon does not know of it.
    } else if (drain.known == Known::kReportPending) {  // the ring was full
      if (!over) report_earlier_work(id, drain, now_ns);
    } else if (over) {
      protocol::Returned returned;
      returned.head.lane = id;
      returned.word = drain.word;
      returned.partition = drain.partition;
      over = send(protocol::encode(returned));
    } else if (now_ns - drain.reported_ns >= link_.answer_within_ns / 4) {
      protocol::Draining draining;
      draining.head.lane = id;
      draining.word = drain.word;
      draining.partition = drain.partition;
      draining.outstanding = drain.outstanding;
      if (send(protocol::encode(draining))) drain.reported_ns = now_ns;
    }
    drains_ -= over ? 1 : 0;
    return over;
  });
}

void LeaseClient::service(std::uint64_t now_ns) {
  if (page_->words.load(std::memory_order_relaxed) == nullptr) return;
  if (daemon_is_lost()) enter_fallback();
  if (!in_fallback_) {
    take_grants(now_ns);
    if (link_.gate_changes->load(std::memory_order_acquire) != gates_seen_) notice_closed();
  }
  reporting_ = !in_fallback_ && page_->reports != nullptr && link_.reporting != nullptr &&
               link_.reporting->load(std::memory_order_acquire) != 0;
  bool any_unclaimed = false;
  // return_drained() sets it if the ring is full again.
  const bool reports_due = std::exchange(earlier_work_unsent_, false) && !in_fallback_;
  for (LaneId id = 0; id < lanes_used_; ++id) {
    Lane& lane = lanes_[id];
    if (lane.waiting) stop_waiting(lane, now_ns);
    // A grant that is used up and has nothing outstanding is returned without being asked.
    if (lane.partition != kNoPartition && lane.left == 0 && lane.outstanding == 0)
      close_grant(lane);
    if (!in_fallback_ && lane.partition != kNoPartition && !lane.waiting) {
      if (reporting_)
        any_unclaimed = close_unused(lane, now_ns) || any_unclaimed;
      else if (!lane.claimed)
        any_unclaimed = close_unclaimed(lane, now_ns) || any_unclaimed;
    }
    if (!lane.drains.empty()) return_drained(id, lane, now_ns);
    if (!in_fallback_ && lane.requested && !lane.waiting && lane.partition == kNoPartition) {
      protocol::Idle idle;
      idle.head.lane = id;
      lane.requested = !send(protocol::encode(idle));
    }
  }
  if (reports_due && !earlier_work_unsent_) end_earlier_work_reports();
  seen_operations_ = operations_;
  seen_busy_ = busy_;
  flush();
  if (in_fallback_) {
    sleeps_ = true;
  } else {
    link_.own_sleep->wake();
    sleeps_ = waiting_ == 0 && drains_ == 0 && !earlier_work_unsent_ && !any_unclaimed &&
              link_.own_sleep->try_sleep([&] {
                return link_.grants.empty() &&
                       link_.gate_changes->load(std::memory_order_seq_cst) == gates_seen_;
              });
  }
}

// Closes the lane's grant when the client has been idle for kUnused, so that the daemon sees it
// idle. A grant that no operation claimed is kept until then, too: a graph launch goes elsewhere
// while there is no grant, and the next one may be a step away. True: check again soon.
bool LeaseClient::close_unused(Lane& lane, std::uint64_t now_ns) {
  if (busy_ || seen_busy_ || operations_ != seen_operations_) {
    lane.used_ns = now_ns;
    return !busy_;
  }
  if (now_ns - lane.used_ns < kUnused) return true;
  close_grant(lane);
  return false;
}

// Closes the lane's grant when no operation has claimed it for kUnclaimed. True: check again soon.
bool LeaseClient::close_unclaimed(Lane& lane, std::uint64_t now_ns) {
  if (now_ns - lane.unclaimed_ns < kUnclaimed) return true;
  close_grant(lane);
  lane.unclaimed_ns = 0;
  return false;
}

// Ends the lane's wait when the operation was not retried for kStillWaits. The time counts from
// when service() saw the last try, not from the try itself: in a process that gets no CPU time the
// operation still waits, and a daemon that is stopped meanwhile must be noticed.
void LeaseClient::stop_waiting(Lane& lane, std::uint64_t now_ns) {
  if (lane.seen_try_ns != lane.tried_ns) {
    lane.seen_try_ns = lane.tried_ns;
    lane.seen_ns = now_ns;
  } else if (now_ns - lane.seen_ns >= kStillWaits) {
    set_waiting(lane, false);
  }
}

void LeaseClient::set_waiting(Lane& lane, bool waiting) {
  if (lane.waiting == waiting) return;
  lane.waiting = waiting;
  waiting_ += waiting ? 1 : ~0U;
  if (waiting && !in_fallback_) link_.own_sleep->wake();
  if (waiting) sleeps_ = false;
}

bool LeaseClient::send(const protocol::Record& record) {
  switch (link_.requests.write(record)) {
    case protocol::RingState::kOk:
      return unsent_ = true;
    case protocol::RingState::kBroken:
      protocol_error();
      return false;
    default:
      break;
  }
  ++counters_.ring_full;
  return false;
}

void LeaseClient::flush() {
  if (!unsent_) return;
  unsent_ = false;
  link_.requests.publish();
  if (link_.daemon_sleep->asleep()) ring_();
}

std::uint32_t LeaseClient::outstanding(StreamId stream, PartitionId partition) const {
  const Lane& lane = lanes_[stream % kLanes];
  std::uint32_t sum = lane.partition == partition ? lane.outstanding : 0;
  for (const Drain& drain : lane.drains)
    sum += drain.partition == partition ? drain.outstanding : 0;
  return sum;
}

}  // namespace vitamin::client
