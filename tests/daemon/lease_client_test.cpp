// SPDX-License-Identifier: Apache-2.0
//
// A client's half and the daemon's half over one pair of segments: what each knows of the other's
// state after a reconnection. Also built with rings of four and two records (VITAMIN_TINY_RINGS).
#include "daemon/client/lease_client.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <variant>
#include <vector>

#include "daemon/arbiter/device_arbiter.h"
#include "daemon/arbiter/lease_record.h"
#include "scheduler/policies/registry.h"

namespace vitamin::daemon {
namespace {

using protocol::LaneId;
using runtime::PartitionId;

const hal::DeviceInfo kInfo{hal::Vendor::kSoftware, "d", "GPU-0", 16, {4, 4, 4, 4}, 1000};
constexpr ClientId kClient = 1;

// A client, and one daemon after the other.
class Node final : public daemon::GrantSink {
 public:
  explicit Node(const char* policy_ = "static:units=0-3") : policy(policy_), client(layout, [] {}) {
    for (const runtime::Partition& partition : layout.partitions())
      if (!partition.whole()) eligible.push_back(partition.id);
    eligible.push_back(runtime::kWholeDevice);
  }

  void start_daemon() {
    arbiter = std::make_unique<DeviceArbiter>(
        layout, ArbiterSettings{{}, kAnswerWithin, 100 * kAnswerWithin}, ++epoch, *this);
    arbiter->use(std::move(*scheduler::make(policy, arbiter->context(1))));
    reported = false;
    auto old_own = std::move(own);
    auto old_daemons = std::move(daemons);
    own = std::make_unique<protocol::ClientSegment>();
    daemons = std::make_unique<protocol::DaemonSegment>();
    rings = {*daemons, *own};
    client::Link link(*own, *daemons);
    link.fallback = arbiter->attach(kClient).partition;
    link.answer_within_ns = kAnswerWithin;
    record = daemon::LeaseRecord(1, now, 100 * kAnswerWithin, epoch == 1 ? nullptr : &record);
    for (const PartitionId partition : record.before({1, 1}, 1))
      arbiter->accept_earlier_work(kClient, partition, record.believed_until());
    slot = record.begin({1, 1}, 1, link.fallback);
    client.connect(link, now);
  }

  // The daemon reads all records, and the client its answers.
  void turn() {
    now += 1000;
    protocol::Record copy;
    while (rings.requests.read(copy) == protocol::RingState::kOk) {
      const auto request = protocol::decode_request(copy, {layout.size(), kInfo.sms});
      REQUIRE(request);
      if (const auto* said = std::get_if<protocol::Ready>(&*request)) ready = *said;
      if (const auto* said = std::get_if<protocol::HintRecord>(&*request)) hinted = *said;
      arbiter->request(kClient, *request, now);
    }
    rings.requests.release();
    arbiter->step(now);
    client.service(now);
  }

  void turns(unsigned count) {
    for (unsigned i = 0; i < count; ++i) turn();
  }

  // The oldest operation of lane 0 on the partition ends, and the daemon hears of it.
  void end(PartitionId partition) {
    client.ended(partition, 0, 1);
    turns(3);
  }

  // Everything was returned, nothing twice.
  void check_all_returned() const {
    CHECK(arbiter->held().empty());
    CHECK(arbiter->counters().stale == 0);
  }

  // The partition to which the lane's operation went.
  PartitionId submit(LaneId lane) {
    runtime::ReadyOperation operation;
    operation.stream = lane;
    operation.sms = 1;
    runtime::GrantTerms terms;
    while ((terms = client.grant(lane, operation, eligible, now)).partition ==
           runtime::kNoPartition)
      turn();
    counts_outstanding = terms.counts_outstanding;
    if (counts_outstanding) client.submitted(terms.partition, lane);
    return terms.partition;
  }

  void set_word(ClientId, LaneId lane, protocol::LeaseWord word) override {
    daemons->leases[lane].store(word, std::memory_order_release);
  }
  bool grant(ClientId, const protocol::Grant& grant) override {
    if (rings.grants.write(protocol::encode(grant)) != protocol::RingState::kOk) return false;
    rings.grants.publish();
    return true;
  }
  void holds_partition(ClientId, PartitionId partition, bool held) override {
    record.holds(slot, partition, held);
  }
  void gates_closed(ClientId) override {
    daemons->gate_changes.store(daemons->gate_changes.load(std::memory_order_relaxed) + 1,
                                std::memory_order_seq_cst);
  }

  void reported_earlier_work(ClientId) override { reported = true; }

  static constexpr std::uint64_t kAnswerWithin = 10'000'000;
  const char* policy;
  runtime::PoolLayout layout = runtime::PoolLayout::build(kInfo);
  std::vector<PartitionId> eligible;
  std::unique_ptr<protocol::ClientSegment> own;
  std::unique_ptr<protocol::DaemonSegment> daemons;
  protocol::DaemonEnds rings;
  std::unique_ptr<DeviceArbiter> arbiter;
  daemon::LeaseRecord record;
  std::size_t slot = daemon::LeaseRecord::kNoSlot;
  client::LeaseClient client;
  bool counts_outstanding = false;  // the last submission counts as outstanding
  bool reported = false;            // all earlier work was, to the present daemon
  protocol::Ready ready;            // the last one that the daemon received
  protocol::HintRecord hinted;      // the last one that the daemon received
  std::uint32_t epoch = 0;
  std::uint64_t now = 1'000'000;
};

}  // namespace

TEST_CASE("work that runs at a reconnection keeps its lease until it ends, and no longer") {
  for (const bool fallback : {false, true}) {
    CAPTURE(fallback);
    Node node;
    node.start_daemon();
    const PartitionId before = node.submit(0);
    node.turn();
    node.client.lose();
    PartitionId partition = before;
    if (fallback) {  // the lease's work ends, and new work begins in the fallback partition
      node.client.ended(before, 0, 1);
      partition = node.submit(0);
      CHECK(partition != before);
    }
    node.start_daemon();
    node.turn();
    const auto held = node.arbiter->held();
    REQUIRE(held.size() == 1);
    CHECK(held[0].partition == partition);
    CHECK_FALSE(held[0].open);
    node.end(partition);
    CHECK(node.arbiter->held().empty());
    CHECK(node.arbiter->counters().overdue == 0);
    CHECK(node.arbiter->counters().stale == 0);
  }
}

// The fallback partition is the one that was leased: a lane has work of both on one partition.
TEST_CASE("work of a lease and fallback work on one partition hold it until both have ended") {
  Node node("static:units=0-0,parts=1");
  node.start_daemon();
  const PartitionId partition = node.submit(0);
  node.client.lose();
  REQUIRE(node.submit(0) == partition);
  node.start_daemon();
  node.turn();
  CHECK(node.arbiter->counters().overlaps == 0);
  node.end(partition);
  REQUIRE(node.arbiter->held().size() == 1);  // the newer work still runs
  CHECK(node.client.outstanding(0, partition) == 1);
  node.end(partition);
  node.check_all_returned();
  CHECK_FALSE(node.client.draining());
}

TEST_CASE("all running work is reported even if the ring was full at the reconnection") {
  constexpr LaneId kMany = 12;
  Node node;
  node.start_daemon();
  node.client.lose();
  std::vector<PartitionId> partitions;
  for (LaneId lane = 0; lane < kMany; ++lane) partitions.push_back(node.submit(lane));
  node.start_daemon();
  node.turns(6);
  CHECK(node.arbiter->held().size() == kMany);
  for (LaneId lane = 0; lane < kMany; ++lane) node.client.ended(partitions[lane], lane, 1);
  node.turns(6);
  CHECK(node.arbiter->held().empty());
  CHECK(node.arbiter->counters().overdue == 0);
}

// Until then other clients are not granted what the former daemon had granted to the process. One
// report for each lane fills the ring, so the record that ends the reports is sent by service().
TEST_CASE("the end of the reports is sent without a launch even if the ring was full") {
  Node node;
  node.start_daemon();
  node.client.lose();
  for (LaneId lane = 0; lane < protocol::kLanes; ++lane) node.submit(lane);
  node.start_daemon();
  CHECK_FALSE(node.client.has_reported_earlier_work());
  node.turns(protocol::kLanes);
  CHECK(node.arbiter->held().size() == protocol::kLanes);
  CHECK(node.reported);
  CHECK(node.client.has_reported_earlier_work());
}

TEST_CASE("the end of the reports is sent if all earlier work ended while the ring was full") {
  Node node;
  node.start_daemon();
  node.client.lose();
  std::vector<PartitionId> partitions;
  for (LaneId lane = 0; lane < protocol::kLanes; ++lane) partitions.push_back(node.submit(lane));
  node.start_daemon();
  for (LaneId lane = 0; lane < protocol::kLanes; ++lane)
    node.client.ended(partitions[lane], lane, 1);
  node.client.service(node.now);
  CHECK_FALSE(node.client.sleeps());
  node.turns(protocol::kLanes);
  CHECK(node.reported);
  CHECK(node.arbiter->held().empty());
  CHECK(node.client.sleeps());
}

// A program's advice becomes records of this client: it must not get the client evicted.
TEST_CASE("advice out of range is clamped, and the client is not evicted for it") {
  constexpr std::uint64_t kEver = ~std::uint64_t{0};
  constexpr std::uint64_t kSoon = 500;  // becomes relative to now
  struct Case {
    std::uint64_t said, told;
  };
  Node node;
  node.start_daemon();
  for (const auto& [advised, told] :
       {Case{0, 0}, Case{1, 1}, Case{kSoon, kSoon}, Case{kEver / 2, protocol::kLongest},
        Case{kEver, protocol::kLongest}}) {
    const std::uint64_t said = advised == kSoon ? kSoon + node.now : advised;
    CAPTURE(said);
    runtime::ReadyOperation operation;
    operation.queued_ns = kEver;
    operation.ready_at_ns = said;
    operation.deadline_ns = said;
    operation.sms = 17;  // of 16 SMs: only the whole device takes it
    const std::uint64_t at = node.now;
    node.client.grant(0, operation, node.eligible, at);
    runtime::ExpectedOperation expected;
    expected.stream = 1;
    expected.sms = 4;
    expected.ready_at_ns = said;
    expected.deadline_ns = said;
    expected.queued_ns = kEver;
    node.client.expect(expected, at);
    node.turn();  // decodes all records
    CHECK(node.ready.queued_ns == protocol::kLongest);
    CHECK(node.hinted.queued_ns == protocol::kLongest);
    for (const std::uint64_t heard : {node.ready.ready_in_ns, node.ready.deadline_in_ns,
                                      node.hinted.ready_in_ns, node.hinted.deadline_in_ns})
      CHECK(heard == told);
    node.now += 30'000'000;  // long enough for a repeated request
  }
}

TEST_CASE("the end of an iteration and a new deadline are sent whatever request is open") {
  Node node("salus");
  node.start_daemon();
  runtime::ReadyOperation operation;
  operation.sms = 1;
  operation.id = 1;
  const auto ask = [&] { return node.client.grant(0, operation, node.eligible, node.now); };
  CHECK(ask().heard);
  CHECK_FALSE(ask().heard);  // the same question
  operation.id = 2;          // the first one went elsewhere
  CHECK_FALSE(ask().heard);
  operation.iteration_end = true;
  operation.id = 3;
  CHECK(ask().heard);
  CHECK_FALSE(ask().heard);
  operation.iteration_end = false;
  operation.id = 4;
  operation.deadline_ns = 5'000'000;
  CHECK(ask().partition == runtime::kNoPartition);
  operation.id = 5;
  CHECK_FALSE(ask().heard);  // of the same step
  // Under a grant that no launch has used, too: it is meant for one iteration at most.
  node.turns(3);
  operation = {};
  operation.sms = 1;
  operation.id = 6;
  operation.iteration_end = true;
  const runtime::GrantTerms terms = ask();
  CHECK(terms.partition != runtime::kNoPartition);
  CHECK(terms.heard);
  node.ready = {};
  node.turn();
  CHECK(node.ready.iteration_end == 1);
}

TEST_CASE("an end of an iteration that finds the ring full is not heard") {
  Node node("salus");
  node.start_daemon();
  runtime::ReadyOperation operation;
  operation.sms = 1;
  operation.iteration_end = true;
  bool heard = true;
  for (std::size_t i = 0; i <= protocol::kRequests && heard; ++i) {
    operation.id = i + 1;
    heard = node.client.grant(0, operation, node.eligible, node.now).heard;
  }
  CHECK_FALSE(heard);
  node.ready = {};
  node.turn();
  CHECK(node.client.grant(0, operation, node.eligible, node.now).heard);
}

TEST_CASE("an operation that is retried still waits, however long the process had no CPU time") {
  Node node;
  node.start_daemon();
  runtime::ReadyOperation operation;
  operation.sms = 1;
  const auto try_again = [&] {
    return node.client.grant(0, operation, node.eligible, node.now).partition ==
           runtime::kNoPartition;
  };
  for (int i = 0; i < 20; ++i) {  // the daemon does not answer
    REQUIRE(try_again());
    node.now += 50'000'000;
    node.client.service(node.now);
    CHECK(node.client.waiting());
  }
  // The operation is not retried any more: it went elsewhere.
  for (int i = 0; i < 5; ++i) node.client.service(node.now += 5'000'000);
  CHECK_FALSE(node.client.waiting());
}

TEST_CASE("completions are counted while the daemon wants them, misplaced ones separately") {
  Node node;
  node.start_daemon();
  const PartitionId partition = node.submit(0);
  node.turn();
  CHECK_FALSE(node.client.reports());
  node.daemons->reporting.store(2, std::memory_order_release);
  node.gates_closed(kClient);
  node.turn();
  REQUIRE(node.client.reports());
  node.client.completed(partition, 0, 3, 30);
  node.client.completed(runtime::kNoPartition, 0, 1, 10);
  node.client.completed(partition + 1, 0, 0, 0);
  node.client.busy(500);
  node.client.busy(70);
  CHECK(node.own->launches.load() == 4);
  CHECK(node.own->work.load() == 40);
  CHECK(node.own->misplaced.load() == 10);
  CHECK(node.own->busy_ns.load() == 570);
  node.client.collective();
  node.client.collective();
  CHECK(node.own->collectives.load() == 2);
  node.daemons->reporting.store(0, std::memory_order_release);
  node.gates_closed(kClient);
  node.turn();
  CHECK_FALSE(node.client.reports());
}

TEST_CASE("a lost daemon gets no reports, and the next one counts from zero") {
  Node node;
  node.start_daemon();
  const PartitionId partition = node.submit(0);
  node.daemons->reporting.store(1, std::memory_order_release);
  node.gates_closed(kClient);
  node.turn();
  REQUIRE(node.client.reports());
  node.client.completed(partition, 0, 3, 3);
  node.client.lose();
  node.client.service(node.now);
  CHECK_FALSE(node.client.reports());
  node.start_daemon();
  node.turn();
  CHECK_FALSE(node.client.reports());
  CHECK(node.own->work.load() == 0);
}

TEST_CASE("a forked child reports nothing") {
  Node node;
  node.start_daemon();
  const PartitionId partition = node.submit(0);
  node.daemons->reporting.store(1, std::memory_order_release);
  node.gates_closed(kClient);
  node.turn();
  const pid_t child = ::fork();
  if (child == 0) {
    node.client.completed(partition, 0, 3, 3);
    node.client.busy(3);
    ::_exit(node.own->work.load() == 0 && node.own->busy_ns.load() == 0 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

// Other clients may use the SMs meanwhile.
TEST_CASE("a client that reports returns grants after a millisecond without work") {
  for (const bool reports : {false, true}) {
    CAPTURE(reports);
    Node node;
    node.start_daemon();
    const PartitionId partition = node.submit(0);
    node.daemons->reporting.store(reports ? 1 : 0, std::memory_order_release);
    node.gates_closed(kClient);
    node.client.set_busy(true);
    node.turns(3'000);
    CHECK(node.arbiter->held().size() == 1);
    node.client.ended(partition, 0, 1);
    node.client.set_busy(false);
    CHECK(node.client.sleeps() != reports);
    node.turns(900);
    CHECK(node.arbiter->held().size() == 1);
    node.turns(300);
    CHECK(node.arbiter->held().empty() == reports);
    CHECK(node.client.sleeps());
    CHECK(node.submit(0) == partition);
    CHECK(node.arbiter->counters().stale == 0);
  }
}

// A process that sleeps while the GPU works checks its grants when the work has ended.
TEST_CASE("a millisecond without work begins when the last work ended") {
  Node node;
  node.start_daemon();
  const PartitionId partition = node.submit(0);
  node.daemons->reporting.store(1, std::memory_order_release);
  node.gates_closed(kClient);
  node.client.set_busy(true);
  node.turn();
  node.now += 30'000'000;
  node.client.ended(partition, 0, 1);
  node.client.set_busy(false);
  node.turns(900);
  CHECK(node.arbiter->held().size() == 1);
  node.turns(300);
  CHECK(node.arbiter->held().empty());
}

// A graph launch requests a grant without waiting for it; the next one, a step later, uses it.
TEST_CASE("an unclaimed grant is kept while a client that reports has work") {
  Node node;
  node.start_daemon();
  node.daemons->reporting.store(1, std::memory_order_release);
  node.gates_closed(kClient);
  node.turn();
  runtime::ReadyOperation graph;
  graph.sms = 1;
  for (int step = 0; step < 4; ++step) {
    CAPTURE(step);
    const PartitionId partition = node.client.grant(0, graph, node.eligible, node.now).partition;
    CHECK((partition == runtime::kNoPartition) == (step == 0));
    node.client.set_busy(true);
    node.turns(27'000);
    node.client.set_busy(false);
    node.turns(300);
    CHECK(node.arbiter->held().size() == 1);
  }
  node.turns(1'200);
  CHECK(node.arbiter->held().empty());
}

TEST_CASE(
    "a lease of the whole device is returned when its work has ended, a shared grant at once") {
  for (const bool counts_outstanding : {true, false}) {
    CAPTURE(counts_outstanding);
    Node node(counts_outstanding ? "exclusive" : "fifo");
    node.start_daemon();
    CHECK(node.submit(0) == runtime::kWholeDevice);
    CHECK(node.submit(0) == runtime::kWholeDevice);
    CHECK(node.counts_outstanding == counts_outstanding);
    CHECK(node.client.outstanding(0, runtime::kWholeDevice) == (counts_outstanding ? 2 : 0));
    node.set_word(kClient, 0, 0);
    node.gates_closed(kClient);
    node.turns(3);
    CHECK(node.arbiter->held().empty() == !counts_outstanding);
    if (!counts_outstanding) continue;
    node.end(runtime::kWholeDevice);
    CHECK(node.arbiter->held().size() == 1);
    node.end(runtime::kWholeDevice);
    node.check_all_returned();
  }
}

// `launches` bounds what is in flight (orion). Such a grant was returned when the next launch
// asked, while the one before it ran.
TEST_CASE("a shared grant of one launch is returned unasked when that launch has ended") {
  Node node("orion");
  node.start_daemon();
  CHECK(node.submit(0) == runtime::kWholeDevice);
  CHECK(node.counts_outstanding);
  node.turns(3);
  REQUIRE(node.arbiter->held().size() == 1);
  CHECK(node.arbiter->held()[0].shared);
  // The next launch has a grant of its own; the one before it drains.
  CHECK(node.submit(0) == runtime::kWholeDevice);
  node.turns(3);
  CHECK(node.arbiter->held().size() == 2);
  node.end(runtime::kWholeDevice);
  CHECK(node.arbiter->held().size() == 1);
  node.end(runtime::kWholeDevice);
  node.check_all_returned();
}

TEST_CASE("work under a shared grant of one launch is not reported as earlier work") {
  Node node("orion");
  node.start_daemon();
  CHECK(node.submit(0) == runtime::kWholeDevice);
  node.client.lose();
  node.start_daemon();
  node.turns(3);
  CHECK(node.arbiter->held().empty());
  node.end(runtime::kWholeDevice);
  CHECK(node.arbiter->counters().stale == 0);
  CHECK_FALSE(node.client.draining());
}

// The client may lose the daemon between the two, as long as the process lives.
TEST_CASE("work under a lease of the whole device is reported, under a shared grant it is not") {
  for (const bool counts_outstanding : {true, false}) {
    CAPTURE(counts_outstanding);
    Node node(counts_outstanding ? "exclusive" : "fifo");
    node.start_daemon();
    CHECK(node.submit(0) == runtime::kWholeDevice);
    node.client.lose();
    node.start_daemon();
    node.turns(3);
    REQUIRE(node.arbiter->held().size() == (counts_outstanding ? 1 : 0));
    if (counts_outstanding) {
      CHECK(node.arbiter->held()[0].partition == runtime::kWholeDevice);
      CHECK(node.arbiter->held()[0].adopted);
      CHECK_FALSE(node.arbiter->held()[0].shared);
      node.client.ended(runtime::kWholeDevice, 0, 1);
    }
    node.turns(3);
    node.check_all_returned();
    CHECK_FALSE(node.client.draining());
  }
}

// An amendment keeps outstanding work under its grant, whenever the client notices it.
TEST_CASE("an amendment applies unless the grant was returned") {
  Node node("exclusive");
  node.start_daemon();
  node.submit(0);
  const auto amend = [&](std::uint64_t ahead_ns) {
    const protocol::LeaseWord before = node.daemons->leases[0].load();
    const protocol::LeaseWord word = protocol::lease_word(
        node.epoch, protocol::generation_of(before) + 1, protocol::GateState::kOpen);
    protocol::Grant grant;
    grant.word = word;
    grant.amends = before;
    grant.partition = runtime::kWholeDevice;
    grant.exclusive = 1;
    grant.launches = runtime::kUntilRevoked;
    grant.ahead_ns = ahead_ns;
    node.set_word(kClient, 0, word);
    return grant;
  };
  runtime::ReadyOperation operation;
  operation.sms = 1;
  const auto granted = [&] { return node.client.grant(0, operation, node.eligible, node.now); };
  for (const bool noticed : {false, true}) {
    CAPTURE(noticed);
    const protocol::Grant grant = amend(noticed ? 5'000 : 4'000);
    if (noticed) {  // the new word was seen before the record
      node.gates_closed(kClient);
      node.client.service(node.now);
    }
    REQUIRE(node.grant(kClient, grant));
    CHECK(granted().ahead_ns == (noticed ? 5'000 : 4'000));
    CHECK(node.client.admits(runtime::kWholeDevice, 0));
  }
}

}  // namespace vitamin::daemon
