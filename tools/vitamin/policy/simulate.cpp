// SPDX-License-Identifier: Apache-2.0
//
// vitamin simulate: policies in virtual time, as a table, JSON and plots.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "scheduler/simulator/simulation.h"
#include "tools/vitamin/exit_code.h"
#include "tools/vitamin/policy/svg.h"
#include "tools/vitamin/policy/verbs.h"
#include "tools/vitamin/text.h"

namespace vitamin::tools {
namespace {

using Json = nlohmann::ordered_json;

Json quantiles_json(const sim::Quantiles& q) {
  return {{"mean", q.mean}, {"p50", q.p50}, {"p90", q.p90}, {"p95", q.p95}, {"p99", q.p99}};
}

Json result_json(const sim::SimulatedRun& result, const sim::LatencyTargets& slo) {
  const sim::Violations violations = result.violations(slo);
  Json scales = Json::array();
  for (const double scale : {0.5, 0.75, 1.0, 1.25, 1.5, 2.0}) {
    const sim::Violations at = result.violations({slo.ttft_ms * scale, slo.tpot_ms * scale});
    scales.push_back({{"slo_scale", scale},
                      {"ttft", at.ttft},
                      {"tpot", at.tpot},
                      {"goodput_per_s", at.goodput_per_s}});
  }
  Json training = Json::array();
  for (const sim::TrainingResult& job : result.training)
    training.push_back({{"name", job.name},
                        {"steps_per_s", job.steps_per_s},
                        {"alone_steps_per_s", job.alone_steps_per_s},
                        {"normalised", job.steps_per_s / job.alone_steps_per_s}});
  Json widths = Json::array();
  for (const auto& [width, seconds] : result.width_s)
    widths.push_back({{"processors", width}, {"seconds", seconds}});
  return {{"policy", result.policy},
          {"requests", result.requests.size()},
          {"simulated_s", result.simulated_s},
          {"ttft_ms", quantiles_json(result.ttft())},
          {"tpot_ms", quantiles_json(result.tpot())},
          {"latency_ms", quantiles_json(result.latency())},
          {"itl_p99_ms", result.itl_ms.quantile(0.99)},
          {"ttft_violations", violations.ttft},
          {"tpot_violations", violations.tpot},
          {"goodput_per_s", violations.goodput_per_s},
          {"slo_sweep", scales},
          {"training_normalised", result.training_normalised()},
          {"training", training},
          {"operations", result.operations},
          {"operations_per_wall_s", static_cast<double>(result.operations) / result.wall_s},
          {"wall_s", result.wall_s},
          {"deciding_s", result.deciding_s},
          {"plans", result.plans},
          {"grants", result.grants},
          {"moves", result.moves},
          {"revoked", result.revoked},
          {"aged", result.starving},
          {"faults", result.faults},
          {"message", result.message},
          {"widths", widths}};
}

void print_table(const std::vector<sim::SimulatedRun>& results, const sim::LatencyTargets& slo) {
  fmt::print("{:<30} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>9}\n", "policy",
             "TTFT p50", "p99 ms", "> limit", "TPOT p50", "p99 ms", "> limit", "ITL p99",
             "goodput/s", "training", "moves/s", "Mops/s");
  for (const sim::SimulatedRun& result : results) {
    const sim::Violations violations = result.violations(slo);
    const sim::Quantiles ttft = result.ttft(), tpot = result.tpot();
    fmt::print(
        "{:<30} {:>8.0f} {:>8.0f} {:>6.2f} % {:>8.1f} {:>8.1f} {:>6.2f} % {:>8.1f} {:>9.2f} "
        "{:>9.3f} {:>8.1f} {:>9.1f}\n",
        result.policy, ttft.p50, ttft.p99, 100 * violations.ttft, tpot.p50, tpot.p99,
        100 * violations.tpot, result.itl_ms.quantile(0.99), violations.goodput_per_s,
        result.training_normalised(), static_cast<double>(result.moves) / result.simulated_s,
        static_cast<double>(result.operations) / result.wall_s / 1e6);
  }
  for (const sim::SimulatedRun& result : results)
    if (!result.message.empty()) fmt::print("{}: {}\n", result.policy, result.message);
}

Series cdf(const std::string& name, std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  Series series{name, {}};
  const std::size_t step = std::max<std::size_t>(1, samples.size() / 500);
  for (std::size_t i = 0; i < samples.size(); i += step)
    series.points.emplace_back(samples[i],
                               static_cast<double>(i + 1) / static_cast<double>(samples.size()));
  return series;
}

bool write(const std::filesystem::path& path, const Chart& chart) {
  std::ofstream file(path);
  file << svg(chart);
  if (!file.flush())
    say(Problem::kCannotWrite, fmt::format("{} cannot be written.", path.string()));
  return static_cast<bool>(file);
}

Chart occupancy_chart(const sim::SimulatedRun& result, unsigned gpus) {
  Chart chart{"SMs in use, " + result.policy,
              "seconds",
              "SMs (mean of a GPU)",
              {{"prefill", {}}, {"decode", {}}, {"best effort", {}}}};
  chart.stacked = true;
  const std::size_t bins = result.occupancy.size(), step = std::max<std::size_t>(1, bins / 400);
  for (std::size_t i = 0; i + step <= bins; i += step)
    for (std::size_t role = 0; role < 3; ++role) {
      double sum = 0;
      for (std::size_t k = i; k < i + step; ++k) sum += result.occupancy[k][role];
      chart.series[role].points.emplace_back(static_cast<double>(i) * result.occupancy_bin_s,
                                             sum / static_cast<double>(step) / gpus);
    }
  return chart;
}

bool plot(const std::vector<sim::SimulatedRun>& results, const SimulateOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.plot, error);
  Chart ttft{"time to first token", "ms", "share of requests", {}};
  Chart tpot{"time per output token", "ms", "share of requests", {}};
  Chart itl{"gap between tokens", "ms", "share of tokens", {}};
  ttft.log_x = tpot.log_x = itl.log_x = true;
  ttft.x_mark = options.ttft_ms, tpot.x_mark = itl.x_mark = options.tpot_ms;
  ttft.x_mark_name = tpot.x_mark_name = itl.x_mark_name = "limit";
  bool good = true;
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::vector<double> first, further;
    for (const sim::RequestTimes& request : results[i].requests) {
      if (request.ttft_ms >= 0) first.push_back(request.ttft_ms);
      if (request.tpot_ms >= 0) further.push_back(request.tpot_ms);
    }
    ttft.series.push_back(cdf(results[i].policy, std::move(first)));
    tpot.series.push_back(cdf(results[i].policy, std::move(further)));
    itl.series.push_back({results[i].policy, results[i].itl_ms.cdf()});
    good = write(options.plot + fmt::format("/occupancy-{}.svg", i),
                 occupancy_chart(results[i], options.gpus)) &&
           good;
  }
  good = write(options.plot + "/ttft.svg", ttft) && good;
  good = write(options.plot + "/tpot.svg", tpot) && good;
  return write(options.plot + "/itl.svg", itl) && good;
}

// NAME or NAME:COUNT; false: not understood.
bool add_training(const std::string& word, std::vector<std::string>& jobs) {
  const std::size_t colon = word.find(':');
  unsigned count = 1;
  if (colon != word.npos) {
    const char* const end = word.data() + word.size();
    const auto [at, error] = std::from_chars(word.data() + colon + 1, end, count);
    if (error != std::errc() || at != end || count == 0 || count > 1000) return false;
  }
  jobs.insert(jobs.end(), count, word.substr(0, colon));
  return true;
}

// FILE, or FILE@REQUESTS; what is wrong, or "".
std::string add_job(const std::string& word, const sim::TraceWindow& window,
                    std::vector<sim::Setup::Recorded>& jobs) {
  const std::size_t at = word.rfind('@');
  auto job = sim::read_job(word.substr(0, at));
  if (!job) return job.error().message;
  sim::Setup::Recorded recorded{std::move(*job), {}};
  if (at != word.npos) {
    auto requests = sim::read_trace(word.substr(at + 1), window);
    if (!requests) return requests.error().message;
    recorded.requests = std::move(requests->requests);
  }
  jobs.push_back(std::move(recorded));
  return "";
}

int failed(const std::string& message) {
  say(Problem::kUsage, message + ". See `vitamin simulate --help`.");
  return kExitFailed;
}

std::string problem(const SimulateOptions& o) {
  if (o.gpus == 0 || o.gpus > 1024) return "--gpus must be 1 to 1024";
  if (o.services == 0 || o.services > 1000) return "--services must be 1 to 1000";
  if (o.load < 0 || o.load > 100) return "--load must be a share like 0.7";
  if (o.ttft_ms <= 0 || o.tpot_ms <= 0) return "--ttft and --tpot must be above 0 ms";
  if (o.trace.empty() && o.jobs.empty()) return "--trace or --job is needed";
  if (o.trace.empty() && (o.load > 0 || !o.training.empty()))
    return "--load and --training need --trace";
  if (o.until_s < 0 || o.warm_up_s < 0 || o.turn_ms < 0 || o.switch_us < 0)
    return "times must not be negative";
  if (o.from_s < 0 || o.seconds < 0 || o.window_us < 0 || o.creation_ms < 0 || o.quantum_ms <= 0)
    return "times must not be negative";
  if (o.most_prompt == 0 || o.most_output == 0) return "--max-prompt and --max-output: at least 1";
  return "";
}

}  // namespace

int simulate(const SimulateOptions& options) {
  if (const std::string wrong = problem(options); !wrong.empty()) return failed(wrong);
  const sim::TraceWindow window{options.from_s, options.seconds, options.most_prompt,
                                options.most_output};
  auto trace = options.trace.empty() ? sim::RequestTrace() : sim::read_trace(options.trace, window);
  if (!trace) return failed(trace.error().message);
  sim::Setup setup;
  for (const std::string& word : options.jobs)
    if (const std::string wrong = add_job(word, window, setup.jobs); !wrong.empty())
      return failed(wrong);
  const bool serves = std::any_of(setup.jobs.begin(), setup.jobs.end(),
                                  [](const auto& recorded) { return recorded.job.serves(); });
  if (options.trace.empty() && !serves && options.until_s == 0)
    return failed("jobs that repeat their step never end: --until is needed");
  setup.device.limit_s = options.until_s;
  setup.device.warm_up_s = options.warm_up_s;
  setup.device.turn_ns = options.turn_ms * 1e6;
  setup.device.switch_ns = options.switch_us * 1e3;
  setup.gpus = options.gpus;
  setup.services = options.services;
  setup.seed = options.seed;
  setup.device.target_tpot_ms = options.tpot_ms;
  setup.device.target_ttft_ms = options.ttft_ms;
  setup.device.window_ns = options.window_us * 1e3;
  setup.device.says_steps = !options.silent;
  setup.device.latency_class = options.latency_class;
  setup.device.creation_ns = options.creation_ms * 1e6;
  setup.device.scheduler.quantum_ns = static_cast<std::uint64_t>(options.quantum_ms * 1e6);
  for (const std::string& word : options.training)
    if (!add_training(word, setup.training))
      return failed("--training '" + word + "' is not NAME or NAME:COUNT");
  double factor = 1, capacity = 0;
  if (options.load > 0) {
    capacity = sim::capacity(*trace);
    factor = trace->scale_to(capacity * options.load * options.gpus);
  }
  setup.trace = std::move(*trace);

  const sim::LatencyTargets slo{options.ttft_ms, options.tpot_ms};
  std::vector<std::string> policies = options.policies;
  if (policies.empty()) policies.emplace_back("throughput");
  std::vector<sim::SimulatedRun> results;
  for (const std::string& policy : policies) {
    auto result = sim::simulate(setup, policy);
    if (!result) return failed(result.error().message);
    results.push_back(std::move(*result));
  }
  if (!options.plot.empty() && !plot(results, options)) return kExitFailed;
  if (options.json) {
    Json out = {{"schema", 1},
                {"trace", std::filesystem::path(options.trace).filename().string()},
                {"requests", setup.trace.requests.size()},
                {"cut_requests", setup.trace.cut},
                {"time_factor", factor},
                {"capacity_per_gpu_per_s", capacity},
                {"load", options.load},
                {"gpus", options.gpus},
                {"services_per_gpu", options.services},
                {"slo", {{"ttft_ms", slo.ttft_ms}, {"tpot_ms", slo.tpot_ms}}},
                {"training", setup.training},
                {"jobs", options.jobs},
                {"results", Json::array()}};
    for (const sim::SimulatedRun& result : results)
      out["results"].push_back(result_json(result, slo));
    fmt::print("{}\n", out.dump(2));
    return 0;
  }
  fmt::print(
      "{} requests in {:.0f} s (times x {:.3g}), {} cut; {} GPU, {} clients each; limits "
      "TTFT {:g} ms, TPOT {:g} ms; simulated, not measured\n\n",
      setup.trace.requests.size(), setup.trace.span_s(), factor, setup.trace.cut, options.gpus,
      (setup.trace.requests.empty() ? 0 : 2 * options.services) + setup.training.size() +
          setup.jobs.size(),
      slo.ttft_ms, slo.tpot_ms);
  print_table(results, slo);
  return 0;
}

namespace {

// Bursts, a steady stream and training jobs, more clients than there are units.
constexpr int kTestRequests = 400, kTestServices = 6;
constexpr double kTestLimitS = 60;

sim::Setup test_setup() {
  sim::Setup setup;
  setup.services = kTestServices;
  setup.training = {"resnet152", "qwen3-0.6b", "resnet152", "qwen3-0.6b"};
  for (int i = 0; i < kTestRequests; ++i) {
    const int burst = i / 10;  // ten requests each half second
    setup.trace.requests.push_back({burst * 0.5, 64U << (i % 6), 1U + (i * 37U) % 60U});
  }
  setup.device.limit_s = kTestLimitS;
  setup.device.warm_up_s = 0;
  return setup;
}

void print_test(const std::string& specification, const sim::Setup& setup,
                const sim::SimulatedRun& result, std::size_t finished, double us) {
  fmt::print(
      "{}, on a simulated H200 (132 SMs)\n"
      "tried     {} requests, ten each half second, to {} clients that prefill and {} that decode; "
      "{} training jobs\n"
      "asked     {} times, {:.1f} us a decision; {} grants, {} of them moves; {} revoked\n"
      "finished  {} of {} requests within {:.0f} s\n",
      specification, setup.trace.requests.size(), setup.services, setup.services,
      setup.training.size(), result.asked, us, result.grants, result.moves, result.revoked,
      finished, result.requests.size(), result.simulated_s);
  if (result.starving > 0)
    fmt::print(
        "starving  {} times a stream had waited for a second: the scheduler served it, not the "
        "policy\n",
        result.starving);
  if (result.faults > 0)
    fmt::print("FAILED    at {:.6f} s the policy was replaced by fifo: {}\n", result.fault_s,
               result.message);
  else
    fmt::print("not replaced by fifo: every answer was valid and in time\n");
  fmt::print("repeat    vitamin policy test {}\n", shell_word(specification));
}

}  // namespace

int test_policy(const std::string& specification, bool json) {
  const sim::Setup setup = test_setup();
  const auto result = sim::simulate(setup, specification);
  if (!result) {
    say(Problem::kPolicy, sentence(result.error().message) + " See `vitamin policy list`.");
    return kExitFailed;
  }
  const bool behaved = result->faults == 0;
  const auto finished = static_cast<std::size_t>(
      std::count_if(result->requests.begin(), result->requests.end(),
                    [](const sim::RequestTimes& request) { return request.finished; }));
  const double us = result->decisions == 0
                        ? 0
                        : result->deciding_s * 1e6 / static_cast<double>(result->decisions);
  if (json) {
    fmt::print("{}\n", Json{{"schema", 1},
                            {"policy", specification},
                            {"behaved", behaved},
                            {"faults", result->faults},
                            {"message", result->message},
                            {"fault_s", behaved ? Json() : Json(result->fault_s)},
                            {"asked", result->asked},
                            {"grants", result->grants},
                            {"moves", result->moves},
                            {"revoked", result->revoked},
                            {"aged", result->starving},
                            {"requests", result->requests.size()},
                            {"finished", finished},
                            {"simulated_s", result->simulated_s},
                            {"training", setup.training},
                            {"decision_us", us},
                            {"repeat", "vitamin policy test " + shell_word(specification)}}
                           .dump(2));
  } else {
    print_test(specification, setup, *result, finished, us);
  }
  return behaved ? 0 : 1;
}

}  // namespace vitamin::tools
