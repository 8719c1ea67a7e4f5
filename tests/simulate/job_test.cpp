// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/job.h"

#include <doctest/doctest.h>

#include "scheduler/simulator/simulation.h"

namespace vitamin::sim {
namespace {

// Blocks of a kernel that fills the device once, where a processor holds 8.
constexpr unsigned kFull = 132 * 8;

std::string head(const std::string& name) {
  return "vitamin-job 1\nname " + name + "\nprocessors 132\nlaunch 4000\nreturn 5000\ngap 1000\n";
}

// `kernels` of `ns` each, asked for every `host` nanoseconds.
std::string step(const std::string& name, unsigned blocks, unsigned kernels, unsigned ns,
                 unsigned host) {
  std::string text = head(name) + "kernel 0 " + std::to_string(blocks) +
                     " 8 0 1 64:" + std::to_string(2 * ns) + " 132:" + std::to_string(ns) +
                     " k\npart step\n";
  for (unsigned i = 0; i < kernels; ++i)
    text += "k 0 " + std::to_string(host) + " " + std::to_string(ns) + " -1\n";
  return text + "end 0\n";
}

RecordedJob made(const std::string& text) {
  auto job = parse_job(text);
  REQUIRE_MESSAGE(job.has_value(), (job ? "" : job.error().message));
  return std::move(*job);
}

std::string problem(const std::string& text) {
  const auto job = parse_job(text);
  return job ? "" : job.error().message;
}

SimulatedRun run(Setup setup, const std::string& policy, double seconds = 2) {
  setup.device.warm_up_s = 0;
  setup.device.limit_s = seconds;
  // No client is moved by time alone.
  setup.device.scheduler.quantum_ns = 1'000'000'000'000;
  auto result = simulate(setup, policy);
  REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error().message));
  return std::move(*result);
}

Setup pair(const std::string& a, const std::string& b) {
  Setup setup;
  setup.jobs.push_back({made(a), {}});
  setup.jobs.push_back({made(b), {}});
  return setup;
}

double rate(const SimulatedRun& result, std::size_t job = 0) {
  return result.training.at(job).steps_per_s;
}

TEST_CASE("A job's file that is wrong: the line is named") {
  const std::string good = step("a", kFull, 2, 10'000, 1'000);
  CHECK(problem(good).empty());
  CHECK(problem("").find("there is no part") != std::string::npos);
  CHECK(problem("vitamin-job 2\n").find("line 1: a job's file begins with") == 0);
  CHECK(problem(head("a") + "part step\n").find("has no kernel") != std::string::npos);
  CHECK(problem(head("a") + "k 0 1 1 -1\n").find("line 7: 'k' before the first part") == 0);
  CHECK(problem(head("a") + "kernel 1 1 1 0 1 132:5 k\n").find("numbered from 0") !=
        std::string::npos);
  CHECK(problem(head("a") + "kernel 0 1 1 2 1 132:5 k\n").find("share of the bandwidth") !=
        std::string::npos);
  CHECK(problem(head("a") + "kernel 0 1 1 0 1 200:5 k\n").find("no width and time") !=
        std::string::npos);
  CHECK(problem(good + "k 7 1 1 -1\n").find("the kernel is unknown") != std::string::npos);
  CHECK(problem(good + "k 0 1 1 9\n").find("not before it") != std::string::npos);
  CHECK(problem(good + "k 0 -1 1 -1\n").find("nanoseconds, 0 or more") != std::string::npos);
  CHECK(problem(good + "x\n").find("'x' is unknown") != std::string::npos);
  CHECK(problem(good + "part decode\nk 0 1 1 -1\n").find("one step, or prefill and decode") !=
        std::string::npos);
  CHECK(!read_job("/no/such.job").has_value());
}

TEST_CASE("A job alone takes what its host or the device takes, whichever is slower") {
  Setup setup;
  // 1,000 kernels of 9 us and 1 us between them; the host asks for one in 2 us, or in 20.
  setup.jobs.push_back({made(step("device", kFull, 1000, 9'000, 2'000)), {}});
  CHECK(rate(run(setup, "fifo")) == doctest::Approx(100).epsilon(0.01));
  CHECK(rate(run(setup, "static:units=0-7")) == doctest::Approx(52.6).epsilon(0.01));
  setup.jobs[0].job = made(step("host", kFull, 1000, 9'000, 20'000));
  CHECK(rate(run(setup, "fifo")) == doctest::Approx(50).epsilon(0.01));
  // Twice the time of each kernel is still within the host's pace.
  CHECK(rate(run(setup, "static:units=0-7")) == doctest::Approx(50).epsilon(0.02));
}

TEST_CASE("On the whole device full kernels alternate: the longer ones get on better") {
  const SimulatedRun result =
      run(pair(step("long", kFull, 100, 90'000, 1'000), step("short", kFull, 100, 30'000, 1'000)),
          "fifo");
  // One kernel of each in turn: 120 us, and the gap is hidden behind the other's kernel.
  CHECK(rate(result, 0) == doctest::Approx(1e9 / (100 * 120'000.0)).epsilon(0.02));
  CHECK(rate(result, 1) == doctest::Approx(1e9 / (100 * 120'000.0)).epsilon(0.02));
}

TEST_CASE("On a part that they share full kernels alternate as well") {
  // Two full waves on 64 SMs, where kernels take twice as long.
  constexpr unsigned kTwice = 128 * 8;
  const Setup setup =
      pair(step("long", kTwice, 100, 90'000, 1'000), step("short", kTwice, 100, 30'000, 1'000));
  const SimulatedRun result = run(setup, "static:units=0-7");
  for (const std::size_t job : {0, 1})
    CHECK(rate(result, job) == doctest::Approx(1e9 / (100 * 240'000.0)).epsilon(0.05));
}

TEST_CASE("Kernels that leave places to each other do not meet") {
  const Setup setup =
      pair(step("a", kFull / 4, 100, 50'000, 1'000), step("b", kFull / 4, 100, 50'000, 1'000));
  const SimulatedRun result = run(setup, "fifo");
  for (const std::size_t job : {0, 1})
    CHECK(rate(result, job) ==
          doctest::Approx(result.training[job].alone_steps_per_s).epsilon(0.001));
}

TEST_CASE("A host that is slower than the device loses nothing where it catches up") {
  // The device is busy for 40 % alone, and for 80 % with both.
  const SimulatedRun result = run(
      pair(step("a", kFull, 1000, 8'000, 20'000), step("b", kFull, 1000, 8'000, 20'000)), "fifo");
  for (const std::size_t job : {0, 1})
    CHECK(rate(result, job) > 0.97 * result.training[job].alone_steps_per_s);
}

// Kernels that take `share` of the bandwidth, and three times as long where there is none left.
std::string mover(const std::string& name, const std::string& share) {
  std::string text =
      head(name) + "kernel 0 10560 8 " + share + " 3 64:20000 132:20000 k\n" + "part step\n";
  for (int i = 0; i < 100; ++i) text += "k 0 1000 20000 -1\n";
  return text;
}

TEST_CASE("Memory: on parts, who meets others that take all of it is as slow as was measured") {
  // Half of the bandwidth costs an eighth of that.
  for (const auto& [share, slower] : {std::pair{"1", 3.0}, {"0.5", 1.25}, {"0", 1.0}}) {
    const SimulatedRun result = run(pair(mover("a", "0"), mover("b", share)), "static:parts=2");
    const double kernel = 1 + 20 * slower;  // b's gaps, 1 us in 21, do not empty the cache
    CHECK(rate(result, 0) == doctest::Approx(1e6 / (100 * kernel)).epsilon(0.05));
    CHECK(rate(result, 1) == doctest::Approx(result.training[1].alone_steps_per_s).epsilon(0.01));
  }
}

TEST_CASE("Turns: each has the device half of the time, and what a change costs is lost") {
  Setup setup = pair(step("a", kFull, 100, 90'000, 1'000), step("b", kFull, 100, 90'000, 1'000));
  setup.device.turn_ns = 2e6;
  const SimulatedRun free = run(setup, "fifo", 4);
  setup.device.switch_ns = 500'000;
  const SimulatedRun costly = run(setup, "fifo", 4);
  for (const std::size_t job : {0, 1}) {
    const double alone = free.training[job].alone_steps_per_s;
    CHECK(rate(free, job) == doctest::Approx(0.5 * alone).epsilon(0.03));
    CHECK(rate(costly, job) == doctest::Approx(0.4 * alone).epsilon(0.03));
  }
}

TEST_CASE("A kernel waits for its copy; copies of two jobs share the link") {
  // A copy of 80 us ahead of each kernel, one ahead at a time on a stream of its own.
  std::string text = "kernel 0 1056 8 0 1 132:10000 k\npart step\n";
  for (int i = 0; i < 100; ++i)
    text += "c 1 1000 80000 -1\nk 0 1000 10000 " + std::to_string(2 * i) + "\n";
  Setup setup;
  setup.jobs.push_back({made(head("a") + text), {}});
  CHECK(rate(run(setup, "fifo")) == doctest::Approx(1e9 / (100 * 80'000.0)).epsilon(0.02));
  setup.jobs.push_back({made(head("b") + text), {}});
  const SimulatedRun both = run(setup, "fifo");
  CHECK(rate(both, 0) + rate(both, 1) == doctest::Approx(1e9 / (100 * 80'000.0)).epsilon(0.02));
}

// A prefill of 10 kernels of 100 us and decodes of 10 of 20 us; the host waits for each token.
std::string service() {
  std::string text = head("service") +
                     "kernel 0 10560 8 0 1 64:200000 132:100000 p\n"
                     "kernel 1 1056 8 0 1 64:40000 132:20000 d\npart prefill\n";
  for (int i = 0; i < 10; ++i) text += "k 0 1000 100000 -1\n";
  text += "w 1000 9\nend 0\npart decode\n";
  for (int i = 0; i < 10; ++i) text += "k 1 1000 20000 -1\n";
  return text + "w 1000 9\nend 0\n";
}

TEST_CASE("Requests are answered one after the other; each waits for those ahead of it") {
  Setup setup;
  // Three at once, and one much later; a prefill and two decodes each.
  setup.jobs.push_back({made(service()), {{0.1, 1, 3}, {0.1, 1, 3}, {0.1, 1, 3}, {0.5, 1, 3}}});
  const SimulatedRun result = run(setup, "fifo", 0);
  REQUIRE(result.requests.size() == 4);
  // 5 us to the first kernel, 10 kernels and 9 gaps, 5 us back to the host.
  const double prefill = 0.005 + 1.009 + 0.005, decode = 0.005 + 0.209 + 0.005;
  const double whole = prefill + 2 * decode;
  for (std::size_t i = 0; i < 4; ++i) {
    const RequestTimes& times = result.requests[i];
    CHECK(times.finished);
    const double ahead = i == 3 ? 0 : static_cast<double>(i) * whole;
    CHECK(times.ttft_ms == doctest::Approx(ahead + prefill).epsilon(0.01));
    CHECK(times.tpot_ms == doctest::Approx(decode).epsilon(0.01));
  }
  CHECK(result.latency().p50 > whole);
}

TEST_CASE("Beside a training job every request ends under every policy, and none is replaced") {
  std::vector<ServiceRequest> requests;
  for (int i = 0; i < 60; ++i) requests.push_back({0.02 * i, 1, 4});
  Setup setup;
  setup.jobs.push_back({made(step("train", 4 * kFull, 200, 50'000, 5'000)), {}});
  setup.jobs.push_back({made(service()), requests});
  for (const char* policy : {"fifo", "static:parts=2", "throughput", "throughput:model=algorithm1",
                             "slo", "tpot-first", "temporal", "orion"}) {
    CAPTURE(std::string(policy));
    auto result = simulate(setup, policy);
    REQUIRE(result.has_value());
    CHECK(result->faults == 0);
    for (const RequestTimes& request : result->requests) CHECK(request.finished);
    CHECK(rate(*result) > 0);
  }
}

TEST_CASE("A job of another device, and requests where none are answered, are refused") {
  Setup setup;
  std::string small = step("a", kFull, 2, 1'000, 1'000);
  small.replace(small.find("processors 132"), 14, "processors 140");
  setup.jobs.push_back({made(small), {}});
  CHECK(simulate(setup, "fifo").error().message.find("recorded on 140 SMs") != std::string::npos);
  setup.jobs[0] = {made(service()), {}};
  CHECK(simulate(setup, "fifo").error().message.find("there are none") != std::string::npos);
}

}  // namespace
}  // namespace vitamin::sim
