// SPDX-License-Identifier: Apache-2.0
//
// Whether others may go on beside those with the right of way, over services and jobs whose rates
// apart and together are made up here.
#include "policies/beside.h"

#include <cmath>
#include <random>

#include "tests/policies/fixture.h"

namespace vitamin::policies {
namespace {

using runtime::ClientId;
using runtime::Holding;
using runtime::OperationClass;
using runtime::Progress;
using runtime::ReadyOperation;

constexpr std::uint64_t kMs = 1'000'000, kSecond = 1000 * kMs, kTick = kMs / 4;

// Answers requests as they come: launches, each of which the device is busy for.
struct Service {
  ClientId client = 1;
  double slower = 1;  // beside others
  double noise = 0;   // of each request's rate
  double load = 0.5;
  double launches = 1320, launch_ns = 25'000;
  bool tells = true;
  double faster = 1;  // for the first 15 ms of a stretch

  double began_ns = 0;
  double next_ns = 0, left = 0, rate = 1, launched = 1;
  unsigned requests = 0;
  enum { kRests, kAsks, kHolds, kLeaves } state = kRests;
};

class Bench {
 public:
  // What is measured is looked at here; what patience adds to it, in the last ones.
  explicit Bench(const Beside::Options& options = {.patience = 0}, unsigned seed = 1)
      : beside(options), random_(seed) {
    services.emplace_back();
    jobs.emplace_back(10, 1);
  }

  void run(std::uint64_t for_ns) {
    for (const std::uint64_t until = now + for_ns; now < until; now += kTick) {
      for (Service& service : services) serve(service);
      for (auto& [job, done] : jobs)
        if (!idle_jobs && (!first.claimed() || beside.together())) done += 10;
      look();
      const bool busy = std::any_of(services.begin(), services.end(), [](const Service& one) {
        return one.state != Service::kRests;
      });
      (beside.together() ? together_ns : apart_ns) += busy ? kTick : 0;
    }
  }
  void count_from_now() { together_ns = apart_ns = 0; }
  double share() const {
    return static_cast<double>(together_ns) /
           static_cast<double>(std::max<std::uint64_t>(1, together_ns + apart_ns));
  }

  std::vector<Service> services;
  std::vector<std::pair<ClientId, std::uint64_t>> jobs;
  Beside beside;
  RightOfWay first{3 * kMs};
  std::uint64_t now = kSecond, together_ns = 0, apart_ns = 0;
  bool tells = true, prefills = false, idle_jobs = false;

 private:
  void serve(Service& service) {
    const auto time = static_cast<double>(now);
    for (; service.next_ns <= time; service.left += service.launches) {
      const double takes = service.launches * service.launch_ns;
      service.next_ns = std::max(service.next_ns, static_cast<double>(kSecond)) +
                        std::exponential_distribution(service.load / takes)(random_);
      ++service.requests;
    }
    if (service.state == Service::kRests && service.left > 0) {
      service.state = Service::kAsks;
      service.began_ns = time;
      service.rate = std::exp(std::normal_distribution(0.0, 1.0)(random_) * service.noise);
      return;
    }
    if (service.state == Service::kRests || service.left == 0) return;
    if (service.state == Service::kAsks) service.state = Service::kHolds;
    const double rate = service.rate / (beside.together() ? service.slower : 1) *
                        (time < service.began_ns + 15e6 ? service.faster : 1);
    const double before = std::ceil(service.left);
    service.left =
        std::max(0.0, service.left - static_cast<double>(kTick) * rate / service.launch_ns);
    const double ended = before - std::ceil(service.left);
    service.launched += ended;
    // Who waited for the device asks again for the next launch.
    if (service.state == Service::kLeaves && ended > 0)
      service.state = service.left > 0 ? Service::kAsks : Service::kRests;
  }

  void look() {
    waiting_.clear(), holdings_.clear(), draining_.clear(), progress_.clear();
    for (const Service& service : services) {
      Holding holding;
      holding.next.client = service.client;
      holding.next.right_of_way = true;
      holding.entry = 1;
      if (service.state == Service::kAsks) waiting_.push_back(holding.next);
      if (service.state == Service::kHolds) holdings_.push_back(holding);
      if (service.state == Service::kLeaves) draining_.push_back(holding);
      progress_.push_back(
          {service.client, service.tells ? static_cast<std::uint64_t>(service.launched) : 0});
    }
    for (const auto& [job, done] : jobs) {
      Holding holding;
      holding.next.client = job;
      holding.next.kind = OperationClass::kBestEffort;
      holding.entry = runtime::kWholeDevice;
      holdings_.push_back(holding);
      progress_.push_back({job, done});
    }
    runtime::PoolView view;
    view.waiting = waiting_;
    view.holdings = holdings_;
    view.draining = draining_;
    if (tells) view.progress = progress_;
    view.now_ns = now;
    view.epoch = ++epoch_;
    first.look(view, {!jobs.empty(), false});
    beside.look(view, first, prefills);
    for (Service& service : services) {
      ReadyOperation operation;
      operation.client = service.client;
      operation.right_of_way = true;
      if (service.state == Service::kHolds && first.rests(operation))
        service.state = Service::kLeaves;
      else if (service.state == Service::kLeaves && service.left == 0)
        service.state = Service::kRests;
    }
  }

  std::mt19937_64 random_;
  std::vector<ReadyOperation> waiting_;
  std::vector<Holding> holdings_, draining_;
  std::vector<Progress> progress_;
  std::uint64_t epoch_ = 0;
};

Bench with(const Service& service, unsigned seed = 1) {
  Bench bench({.patience = 0}, seed);
  bench.services = {service};
  return bench;
}

// Means over seeds, of the time in which the service was busy.
struct Shares {
  double first = 0, later = 0;  // 10 s, and 100 s after 20 more
};
Shares shares(double slower, double noise) {
  Shares mean;
  constexpr unsigned kSeeds = 6;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    Bench bench = with({.slower = slower, .noise = noise}, seed);
    bench.run(10 * kSecond);
    mean.first += bench.share() / kSeeds;
    bench.run(20 * kSecond);
    bench.count_from_now();
    bench.run(100 * kSecond);
    mean.later += bench.share() / kSeeds;
  }
  return mean;
}

TEST_CASE("Nobody is slowed down: together, after seconds, and for nearly all of the time") {
  for (const double slower : {1.0, 1.02, 1.05})
    for (const double noise : {0.0, 0.05}) {
      CAPTURE(slower);
      CAPTURE(noise);
      const Shares is = shares(slower, noise);
      CHECK(is.first > 0.6);
      CHECK(is.later > 0.93);
    }
  // Where requests differ much it takes longer to be sure.
  CHECK(shares(1, 0.1).later > 0.8);
}

TEST_CASE("Slowed down by more than is allowed: apart, and some requests in a thousand see it") {
  for (const double slower : {1.2, 1.5, 2.0, 5.0})
    for (const double noise : {0.0, 0.05, 0.1}) {
      CAPTURE(slower);
      CAPTURE(noise);
      const Shares is = shares(slower, noise);
      CHECK(is.first < (slower < 1.5 ? 0.25 : 0.12));
      CHECK(is.later < (slower < 1.5 ? 0.05 : 0.03));
      if (slower >= 2 && noise < 0.1) CHECK(is.later < 0.005);
    }
}

TEST_CASE("What is allowed can be said, up to nothing at all") {
  Bench bench({.slowdown = 60, .patience = 0});
  bench.services = {{.slower = 2}};
  bench.run(60 * kSecond);
  CHECK(bench.beside.together());
  // What cannot be shown is not done.
  Bench never({.slowdown = 0, .patience = 0});
  never.run(10 * kSecond);
  never.count_from_now();
  never.run(60 * kSecond);
  CHECK(never.share() < 0.1);
}

// Its host launches the next one when the one before has ended: long pauses, all of them busy.
TEST_CASE("A client that waits for its device between launches does not hide how slow that is") {
  for (const double launch_ms : {2.0, 6.0, 30.0}) {
    CAPTURE(launch_ms);
    const Service waits{.slower = 2, .launches = 20, .launch_ns = launch_ms * 1e6};
    Bench slowed = with(waits);
    slowed.run(30 * kSecond);
    slowed.count_from_now();
    slowed.run(300 * kSecond);
    CHECK(slowed.share() <= 0.015);
    Bench free = with(waits);
    free.services[0].slower = 1;
    free.run(30 * kSecond);
    free.count_from_now();
    free.run(60 * kSecond);
    CHECK(free.share() > 0.9);
  }
}

TEST_CASE("How many requests come says nothing") {
  Bench bench = with({.load = 0.2});
  bench.run(30 * kSecond);
  REQUIRE(bench.beside.together());
  bench.services[0].load = 0.9;
  bench.count_from_now();
  bench.run(30 * kSecond);
  CHECK(bench.share() > 0.85);
  bench.services[0].load = 0.05;
  bench.run(10 * kSecond);
  bench.count_from_now();
  bench.run(60 * kSecond);
  CHECK(bench.share() > 0.85);
}

TEST_CASE("A client that never rests is measured, too") {
  for (const double slower : {1.0, 2.0}) {
    Bench bench = with({.slower = slower, .load = 5});
    bench.run(60 * kSecond);
    bench.count_from_now();
    bench.run(100 * kSecond);
    CHECK(bench.share() >= (slower == 1 ? 0.9 : 0.0));
    CHECK(bench.share() <= (slower == 1 ? 1.0 : 0.02));
  }
}

TEST_CASE("What others do changes: seen at once where it is much, else when it is tried again") {
  Bench bench = with({});
  bench.run(20 * kSecond);
  REQUIRE(bench.beside.together());
  bench.services[0].slower = 1.8;
  bench.run(3 * kSecond);
  bench.count_from_now();
  bench.run(30 * kSecond);
  CHECK(bench.share() < 0.02);
  bench.services[0].slower = 1;
  bench.run(200 * kSecond);
  CHECK(bench.beside.together());
  bench.services[0].slower = 1.2;
  bench.run(200 * kSecond);
  CHECK(!bench.beside.together());
}

TEST_CASE("Another set of clients is another question, whose answer is remembered") {
  Bench bench = with({});
  bench.run(20 * kSecond);
  REQUIRE(bench.beside.together());
  // One more, beside whom it is slow.
  bench.jobs.emplace_back(11, 1);
  bench.services[0].slower = 2;
  bench.run(kTick);
  CHECK(!bench.beside.together());
  bench.count_from_now();
  bench.run(10 * kSecond);
  CHECK(bench.share() < 0.1);
  // Gone, but not for good: a second later it is as before.
  bench.jobs.pop_back();
  bench.services[0].slower = 1;
  bench.run(kSecond + 10 * kMs);
  CHECK(bench.beside.together());
  bench.jobs.emplace_back(11, 1);
  bench.run(kTick);
  CHECK(!bench.beside.together());
  bench.jobs.pop_back();
  bench.beside.forget(11);
  bench.run(kTick);
  CHECK(bench.beside.together());
  bench.beside.forget(10);
  bench.run(kTick);
  CHECK(!bench.beside.together());
}

TEST_CASE("Two services: neither may be slowed down by much") {
  for (const double slower : {1.0, 1.8}) {
    CAPTURE(slower);
    Bench bench;
    bench.services = {{.client = 1, .slower = slower, .load = 0.3},
                      {.client = 2, .slower = slower, .load = 0.3}};
    bench.run(30 * kSecond);
    bench.count_from_now();
    bench.run(100 * kSecond);
    if (slower == 1) CHECK(bench.share() > 0.9);
    if (slower > 1) CHECK(bench.share() < 0.02);
  }
}

TEST_CASE("Where nobody tells, or the service does not, they are apart") {
  Bench nobody;
  nobody.tells = false;
  nobody.run(20 * kSecond);
  CHECK(nobody.together_ns == 0);
  Bench silent = with({.tells = false});
  silent.run(20 * kSecond);
  CHECK(silent.together_ns == 0);
  Bench two;
  two.services = {{.client = 1, .load = 0.3}, {.client = 2, .load = 0.3, .tells = false}};
  two.run(60 * kSecond);
  CHECK(two.share() < 0.05);
}

TEST_CASE("One that tells no more is left alone; when it tells again it is as before") {
  Bench bench;
  bench.run(20 * kSecond);
  REQUIRE(bench.beside.together());
  bench.services[0].tells = false;
  bench.run(3 * kSecond);
  CHECK(!bench.beside.together());
  bench.services[0].tells = true;
  bench.run(20 * kSecond);
  CHECK(bench.beside.together());
}

TEST_CASE("Nothing is measured while others are there, or while nobody is who would go on") {
  Bench bench;
  bench.prefills = true;
  bench.run(20 * kSecond);
  CHECK(bench.together_ns == 0);
  // Who does not get on slows nobody down: that tells nothing.
  Bench idle;
  idle.idle_jobs = true;
  idle.run(60 * kSecond);
  idle.idle_jobs = false;
  idle.services[0].slower = 2;
  idle.count_from_now();
  idle.run(10 * kSecond);
  CHECK(idle.share() < 0.13);
}

TEST_CASE("Always and never are what they say") {
  for (const auto mode : {Beside::Mode::kAlways, Beside::Mode::kNever}) {
    Bench bench({.mode = mode});
    bench.services[0].slower = mode == Beside::Mode::kAlways ? 3 : 1;
    bench.run(20 * kSecond);
    CHECK(bench.share() == (mode == Beside::Mode::kAlways ? 1 : 0));
  }
}

// A request takes 33 ms alone; of those that queue, a stretch of several.
TEST_CASE("Who is slowed down is left alone in long stretches, and not in short ones") {
  for (const double slower : {1.2, 1.4}) {
    CAPTURE(slower);
    Bench bench;
    bench.beside = Beside({});
    bench.services = {{.slower = slower}};
    bench.run(30 * kSecond);
    bench.count_from_now();
    // Of each stretch that lasted: for how long others were there, and then not.
    std::vector<double> beside_ms, longer_ms;
    double stays = 0, alone = 0;
    unsigned came_back = 0;
    bool was = false;
    for (const std::uint64_t until = bench.now + 60 * kSecond; bench.now < until;) {
      bench.run(kTick);
      if (!bench.first.claimed()) {
        if (stays + alone > 0) beside_ms.push_back(stays), longer_ms.push_back(alone);
        stays = alone = 0;
        continue;
      }
      const bool together = bench.beside.together();
      came_back += together && alone > 0 && !was ? 1 : 0;
      was = together;
      (together ? stays : alone) += kTick * 1e-6;
    }
    std::vector<double> sorted = beside_ms;
    std::sort(sorted.begin(), sorted.end());
    const double most = sorted[sorted.size() * 9 / 10];
    const double throughout =
        static_cast<double>(std::count(longer_ms.begin(), longer_ms.end(), 0.0)) /
        static_cast<double>(longer_ms.size());
    MESSAGE(slower << ": " << throughout << " of " << longer_ms.size()
                   << " stretches beside others throughout, " << most << " ms of a long one, "
                   << bench.share() << " of all busy time");
    CHECK(throughout > 0.2);
    CHECK(throughout < 0.97);
    CHECK(most > 33);
    CHECK(bench.share() > 0.35);
    CHECK(bench.share() < 0.9);
    CHECK(came_back <= longer_ms.size() / 50);  // slices that measure begin at any time
  }
}

// What is measured is whole stretches in either kind of slice.
TEST_CASE("A stretch that begins faster than it goes on changes nothing of that") {
  for (const double faster : {1.0, 1.5}) {
    CAPTURE(faster);
    Bench bench;
    bench.beside = Beside({});
    bench.services = {{.slower = 1.3, .faster = faster}};
    bench.run(30 * kSecond);
    bench.count_from_now();
    bench.run(100 * kSecond);
    CHECK(bench.share() > 0.35);
    CHECK(bench.share() < 0.75);
  }
}

TEST_CASE("Who comes back in the middle of a long stretch finds no new patience") {
  Bench bench;
  bench.beside = Beside({});
  bench.services = {{.slower = 1.3}};
  bench.run(60 * kSecond);
  bench.services[0].load = 1.2;
  bench.run(20 * kSecond);
  REQUIRE(bench.first.claimed());
  const auto jobs = bench.jobs;
  double beside_ms = 0;
  for (int i = 0; i < 20; ++i) {
    bench.jobs.clear();
    bench.run(1'100 * kMs);
    bench.jobs = jobs;
    bench.count_from_now();
    bench.run(50 * kMs);
    beside_ms += static_cast<double>(bench.together_ns) * 1e-6;
  }
  // A slice that measures, perhaps.
  CHECK(beside_ms <= 110);
}

TEST_CASE("patience=0 is none at all, and neither is patience that may cost nothing") {
  for (unsigned seed = 1; seed < 10; ++seed) {
    Bench bench({.patience = 0}, seed);
    if (seed % 2 == 0) bench.beside = Beside({.slowdown = 0, .patience = 35});
    bench.services = {{.slower = 0.95, .noise = 0.6}};
    for (int i = 0; i < 40'000; ++i) {
      bench.run(kTick);
      REQUIRE(bench.beside.look_at() == runtime::kNever);
    }
  }
}

TEST_CASE("Each service has stretches of its own: the one that is soonest late ends patience") {
  Bench bench;
  bench.beside = Beside({});
  bench.services = {{.client = 1, .slower = 1.3, .load = 0.3},
                    {.client = 2, .slower = 1.3, .load = 0.2, .launches = 13'200}};
  bench.run(60 * kSecond);
  double longest = 0, one = 0;
  for (const std::uint64_t until = bench.now + 120 * kSecond; bench.now < until;) {
    bench.run(kTick);
    const bool brief = bench.services[0].state != Service::kRests;
    one = brief && bench.beside.together() ? one + kTick * 1e-6 : 0;
    longest = std::max(longest, one);
  }
  // 33 ms a request, 330 the other's: not as long as would do for those. A slice that measures may.
  CHECK(longest < 160);
}

TEST_CASE("Patience ends where it would cost too much, and with what was known") {
  for (const double slower : {1.7, 5.0}) {
    Bench much;
    much.beside = Beside({});
    much.services = {{.slower = slower}};
    much.run(30 * kSecond);
    much.count_from_now();
    much.run(60 * kSecond);
    CHECK(much.share() < 0.02);
  }
  Bench bench;
  bench.beside = Beside({});
  bench.services = {{.slower = 1.3}};
  bench.run(30 * kSecond);
  bench.count_from_now();
  bench.run(30 * kSecond);
  CHECK(bench.share() > 0.35);
  // It is measured again before long, for stretches that are left alone show what that is like.
  bench.services[0].slower = 3;
  bench.run(120 * kSecond);
  bench.count_from_now();
  bench.run(60 * kSecond);
  CHECK(bench.share() < 0.1);
}

}  // namespace
}  // namespace vitamin::policies
