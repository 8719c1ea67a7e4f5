// SPDX-License-Identifier: Apache-2.0
//
// The choice between the whole device for everybody and parts, over jobs whose rates under either
// are made up here.
#include "policies/whole_or_parts.h"

#include <cmath>
#include <numbers>
#include <random>

#include "tests/policies/fixture.h"
#include "tests/property.h"

namespace vitamin::policies {
namespace {

using runtime::ClientId;
using runtime::Holding;
using runtime::Progress;
using runtime::ReadyOperation;

constexpr std::uint64_t kMs = 1'000'000, kSecond = 1000 * kMs;

struct Job {
  ClientId client = 1;
  double whole = 40'000, parts = 40'000;  // operations a second
  // Its step: some of it has few operations that take long.
  std::uint64_t step_ns = 100 * kMs;
  double uneven = 0;  // 0: operations come evenly; below 1
  double done = 0;
  bool stopped = false;
  bool silent = false;
  // Of a service: requests of so many operations that come when they come, a second on average.
  double requests_per_s = 0, request = 1320;
  std::mt19937_64 random{1};
  double next_ns = 0, left = 0;

  void serve(double from_ns, double to_ns, double rate) {
    while (from_ns < to_ns) {
      for (; next_ns <= from_ns; left += request)
        next_ns += std::exponential_distribution(requests_per_s * 1e-9)(random);
      const double until = std::min(to_ns, next_ns);
      const double served = std::min(left, rate * 1e-9 * (until - from_ns));
      done += served, left -= served, from_ns = until;
    }
  }
  void run(std::uint64_t from_ns, std::uint64_t to_ns, bool is_whole) {
    if (stopped) return;
    const double rate = is_whole ? whole : parts;
    if (requests_per_s > 0)
      return serve(static_cast<double>(from_ns), static_cast<double>(to_ns), rate);
    const double turn = 2 * std::numbers::pi / static_cast<double>(step_ns) * (rate / whole);
    const double from = static_cast<double>(from_ns), to = static_cast<double>(to_ns);
    done +=
        rate * 1e-9 * (to - from + uneven / turn * (std::sin(turn * to) - std::sin(turn * from)));
  }
};

// Jobs that hold something all the time; asked for the kind whenever it wants to look.
class Bench {
 public:
  explicit Bench(std::vector<Job> with, const WholeOrParts::Options& options = {})
      : jobs(std::move(with)), choice(options) {}

  bool ask() {
    holdings_.clear(), progress_.clear();
    for (const Job& job : jobs) {
      Holding holding;
      holding.next.client = job.client;
      holding.granted_at_ns = 0;
      holdings_.push_back(holding);
      if (!job.silent) progress_.push_back({job.client, static_cast<std::uint64_t>(job.done)});
      if (job.silent) progress_.push_back({job.client, 0});
    }
    runtime::PoolView view;
    view.holdings = holdings_;
    view.waiting = waiting;
    view.progress = tells ? std::span<const Progress>(progress_) : std::span<const Progress>();
    view.set_aside = set_aside;
    view.all_share = all_share;
    view.now_ns = now;
    view.epoch = ++epoch_;
    const bool before = is_whole;
    is_whole = choice.whole(view);
    changes += before != is_whole ? 1 : 0;
    return is_whole;
  }
  // Looks as it wishes.
  void run(std::uint64_t for_ns) {
    const std::uint64_t until = now + for_ns;
    while (now < until) {
      const std::uint64_t next = std::min(until, std::max(now + 1, choice.look_at()));
      for (Job& job : jobs) job.run(now, next, is_whole);
      (is_whole ? whole_ns : parts_ns) += next - now;
      now = next;
      ask();
    }
  }
  void count_from_now() { whole_ns = parts_ns = changes = 0; }
  double share_of_parts() const {
    return static_cast<double>(parts_ns) / static_cast<double>(whole_ns + parts_ns);
  }

  std::vector<Job> jobs;
  std::vector<ReadyOperation> waiting;
  WholeOrParts choice;
  std::uint64_t now = kSecond, whole_ns = 0, parts_ns = 0, changes = 0;
  hal::ComputeSet set_aside;
  bool all_share = true, tells = true, is_whole = false;

 private:
  std::vector<Holding> holdings_;
  std::vector<Progress> progress_;
  std::uint64_t epoch_ = 0;
};

std::vector<Job> two(double gain) {
  return {{.client = 1, .parts = 40'000 * std::exp(gain)},
          {.client = 2, .whole = 9'000, .parts = 9'000 * std::exp(gain)}};
}

TEST_CASE("A client alone is on the whole device, and nothing is tried") {
  Bench bench({{.client = 1, .parts = 80'000}});
  CHECK(bench.ask());
  bench.count_from_now();
  bench.run(20 * kSecond);
  CHECK(bench.parts_ns == 0);
}

TEST_CASE("Parts are taken where they gain, after seconds, and kept") {
  Bench bench(two(0.15));
  CHECK(bench.ask());  // the whole device until it is known
  bench.run(5 * kSecond);
  CHECK(!bench.is_whole);
  bench.count_from_now();
  bench.run(300 * kSecond);
  CHECK(bench.share_of_parts() > 0.97);
}

TEST_CASE("The whole device is kept where parts lose, and trying them costs a hundredth at most") {
  for (const double loss : {0.05, 0.1, 0.3, 0.7}) {
    CAPTURE(loss);
    Bench bench(two(-loss));
    bench.ask();
    bench.count_from_now();
    bench.run(10 * kSecond);
    CHECK(bench.is_whole);
    // A pair or some to begin with.
    CHECK(bench.share_of_parts() * loss < 0.045);
    bench.count_from_now();
    bench.run(600 * kSecond);
    CHECK(bench.is_whole);
    CHECK(bench.changes > 1);  // it was tried again
    CHECK(bench.share_of_parts() * loss <= 0.01);
    CHECK(bench.share_of_parts() <= 0.02);
  }
}

// Who answers requests gets on as they come, whatever he runs on: training beside it, slower on
// parts, is the only one who tells the kinds apart, in all that noise.
TEST_CASE("Beside requests that come in bursts parts are not taken for gaining by chance") {
  double first = 0, later = 0, most = 0;
  constexpr int kSeeds = 40;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    Bench bench({{.client = 1, .whole = 48'000, .parts = 39'000},
                 {.client = 2,
                  .whole = 39'000,
                  .parts = 37'000,
                  .requests_per_s = 15,
                  .random = std::mt19937_64(static_cast<unsigned>(seed)),
                  .next_ns = 1e9}});
    bench.ask();
    bench.count_from_now();
    bench.run(10 * kSecond);
    first += bench.share_of_parts() / kSeeds;
    bench.count_from_now();
    bench.run(120 * kSecond);
    later += bench.share_of_parts() / kSeeds;
    most = std::max(most, bench.share_of_parts());
  }
  MESSAGE("on parts in the first 10 s: " << first << ", in the 120 s after: " << later
                                         << ", at most " << most);
  CHECK(first <= 0.32);
  CHECK(later <= 0.05);
  CHECK(most <= 0.15);
}

TEST_CASE("What happened while others decided counts for neither kind") {
  for (const std::uint64_t away : {1 * kSecond, 7 * kSecond, 60 * kSecond}) {
    CAPTURE(away);
    Bench bench(two(0.15));
    bench.ask();
    bench.run(5 * kSecond);
    CHECK(!bench.is_whole);
    for (int time = 0; time < 5; ++time) {
      // Nobody gets on, or ten times as fast.
      for (Job& job : bench.jobs)
        job.done += time % 2 == 0 ? 0 : 10 * job.whole * 1e-9 * static_cast<double>(away);
      bench.now += away;
      bench.count_from_now();
      bench.run(4 * kSecond);
      CHECK(bench.share_of_parts() > 0.75);
    }
  }
}

TEST_CASE("What one gains and the other loses counts in proportion, not in operations") {
  // The one with four times the operations gains a tenth; the other one loses a third.
  Bench bench({{.client = 1, .whole = 40'000, .parts = 44'000},
               {.client = 2, .whole = 9'000, .parts = 6'000}});
  bench.run(10 * kSecond);
  CHECK(bench.is_whole);
  bench.jobs[1].parts = 9'600;
  bench.run(120 * kSecond);
  CHECK(!bench.is_whole);
}

TEST_CASE("No gain to speak of: the whole device") {
  Bench bench(two(0.005));
  bench.run(60 * kSecond);
  CHECK(bench.is_whole);
}

TEST_CASE("A gain that turns into a loss is noticed, and one that appears") {
  Bench bench(two(0.2));
  bench.run(60 * kSecond);
  REQUIRE(!bench.is_whole);
  for (Job& job : bench.jobs) job.parts = 0.7 * job.whole;  // the rate drops: other work
  bench.run(5 * kSecond);
  CHECK(bench.is_whole);
  for (Job& job : bench.jobs) job.parts = 1.3 * job.whole;  // seen only when it is tried again
  bench.run(160 * kSecond);
  CHECK(!bench.is_whole);
}

TEST_CASE("What is known of a set of clients is known when it comes back, while all live") {
  Bench bench(two(0.2));
  bench.run(10 * kSecond);
  REQUIRE(!bench.is_whole);
  bench.jobs.push_back({.client = 3, .parts = 10'000});
  CHECK(bench.ask());  // of three nothing is known
  bench.run(10 * kSecond);
  CHECK(bench.is_whole);
  bench.jobs.pop_back();
  CHECK(!bench.ask());
  bench.choice.forget(2);
  CHECK(bench.ask());
}

TEST_CASE("Who does not get on is asleep, till it asks or gets on again") {
  Bench bench(two(0.2));
  bench.jobs.push_back({.client = 3, .parts = 60'000});
  bench.run(10 * kSecond);
  CHECK(!bench.choice.asleep(3));
  bench.jobs[2].stopped = true;
  bench.run(kSecond);
  CHECK(bench.choice.asleep(3));
  CHECK(!bench.choice.asleep(1));
  bench.run(10 * kSecond);
  CHECK(!bench.is_whole);  // of the two that are left
  ReadyOperation asks;
  asks.client = 3;
  bench.waiting.push_back(asks);
  bench.ask();
  CHECK(!bench.choice.asleep(3));
  bench.waiting.clear();
  bench.jobs[2].stopped = false;
  bench.run(kSecond);
  CHECK(!bench.choice.asleep(3));
  // All of them: looks become rare.
  for (Job& job : bench.jobs) job.stopped = true;
  bench.run(10 * kSecond);
  CHECK(bench.choice.look_at() - bench.now <= 1'600 * kMs);
  const std::uint64_t before = bench.now;
  while (bench.now < before + 100 * kSecond) bench.run(bench.choice.look_at() - bench.now);
  CHECK(bench.choice.look_at() - bench.now == 1'600 * kMs);
}

TEST_CASE(
    "Where somebody may not share, or nobody tells, there are parts; where one never told, all") {
  Bench bounded(two(-0.5));
  bounded.all_share = false;
  bounded.run(10 * kSecond);
  CHECK(bounded.whole_ns < 200 * kMs);
  CHECK(!bounded.is_whole);
  Bench reserved(two(-0.5));
  reserved.set_aside = hal::ComputeSet(3);
  reserved.run(10 * kSecond);
  CHECK(!reserved.is_whole);
  Bench silent(two(0.5));
  silent.jobs[1].silent = true;
  silent.ask();
  silent.count_from_now();
  silent.run(10 * kSecond);
  CHECK(silent.parts_ns == 0);
  Bench nobody(two(-0.5));
  nobody.tells = false;
  CHECK(!nobody.ask());
  CHECK(nobody.choice.look_at() == runtime::kNever);
  for (const auto mode : {WholeOrParts::Mode::kAlways, WholeOrParts::Mode::kNever}) {
    Bench fixed(two(mode == WholeOrParts::Mode::kAlways ? 0.5 : -0.5), {mode});
    fixed.ask();
    fixed.count_from_now();
    fixed.run(60 * kSecond);
    CHECK(fixed.changes == 0);
    CHECK(fixed.is_whole == (mode == WholeOrParts::Mode::kAlways));
    fixed.set_aside = hal::ComputeSet(3);
    CHECK(!fixed.ask());
  }
}

// How far the gain that two slices show may be off for a job whose steps are uneven: either slice
// may hold the dense part of one step more, and all pairs of slices may begin at the same place of
// one.
double error_of_gain(const Job& job) {
  constexpr double kSliceSeconds = 0.5;  // at least, of those that count
  const double step_s = static_cast<double>(job.step_ns) * 1e-9;
  const auto off = [&](double rate) {
    return -std::log(1 -
                     job.uneven * step_s * job.whole / rate / (std::numbers::pi * kSliceSeconds));
  };
  return off(job.whole) + off(job.parts);
}

TEST_CASE("Jobs of any steps: the better kind, and nearly all of what it gives") {
  const auto property = [] {
    const auto many = *rc::gen::inRange(2, 6);
    std::vector<Job> jobs;
    std::vector<double> gains;
    for (int i = 0; i < many; ++i) {
      Job job;
      job.client = static_cast<ClientId>(i + 1);
      job.whole = *rc::gen::inRange(2'000, 60'000);
      gains.push_back(*rc::gen::inRange(-400, 400) * 1e-3);
      job.parts = job.whole * std::exp(gains.back());
      job.step_ns = static_cast<std::uint64_t>(*rc::gen::inRange(20, 600)) * kMs;
      job.uneven = *rc::gen::inRange(0, 90) * 1e-2;
      jobs.push_back(job);
    }
    const double calm = *rc::gen::element(1.0, 0.3, 0.1, 0.0);
    double truth = 0, error = 0;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].uneven *= calm;
      truth += gains[i] / many;
      error += error_of_gain(jobs[i]) / many;
    }
    // A mean that is off by as much as each of its values, and a spread of as much.
    const double unclear = 0.08 + 1.7 * error;
    Bench bench(jobs);
    bench.ask();
    bench.run(30 * kSecond);
    // Over a few seconds: at any one moment the other kind may be having its slice.
    bench.count_from_now();
    bench.run(5 * kSecond);
    if (truth > unclear) RC_ASSERT(bench.share_of_parts() > 0.5);
    if (truth < -0.03 - error) RC_ASSERT(bench.share_of_parts() < 0.5);
    bench.count_from_now();
    bench.run(300 * kSecond);
    // What is lost against the better kind all the time: a gain that is not clear at most.
    const double wrong = truth > 0 ? 1 - bench.share_of_parts() : bench.share_of_parts();
    RC_ASSERT(std::abs(truth) * wrong < unclear);
  };
  CHECK(test::holds(property, {5593509640016435668U, 760237, 1813464, 2985476}));
}

// What the seed above falsified when the kind was read at one moment.
TEST_CASE("The kind that loses is tried again after half a minute, for a slice and no longer") {
  Bench bench({{.client = 1,
                .whole = 2'000,
                .parts = 2'000 * std::exp(-0.397),
                .step_ns = 533 * kMs,
                .uneven = 0.81},
               {.client = 2,
                .whole = 2'000,
                .parts = 2'000 * std::exp(-0.165),
                .step_ns = 440 * kMs,
                .uneven = 0.05}});
  bench.ask();
  bench.run(30 * kSecond);
  CHECK(!bench.is_whole);
  bench.count_from_now();
  bench.run(5 * kSecond);
  CHECK(bench.is_whole);
  CHECK(bench.parts_ns < kSecond);
}

TEST_CASE("Nonsense instead of progress: an answer all the same") {
  std::mt19937_64 random(3);
  Bench bench(two(0.1));
  for (int i = 0; i < 3000; ++i) {
    for (Job& job : bench.jobs) job.done = static_cast<double>(random() >> (random() % 64));
    bench.now += random() % (300 * kMs);
    bench.ask();
    CHECK(bench.choice.look_at() > bench.now);
  }
  for (Job& job : bench.jobs) job.done = 1;
  bench.run(60 * kSecond);  // and it is measured again
  CHECK(!bench.is_whole);
}

}  // namespace
}  // namespace vitamin::policies
