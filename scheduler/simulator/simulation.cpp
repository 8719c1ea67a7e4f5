// SPDX-License-Identifier: Apache-2.0
#include "scheduler/simulator/simulation.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "scheduler/policies/registry.h"

namespace vitamin::sim {
namespace {

std::string problem(const Setup& setup) {
  const std::vector<std::string> known = ModelLibrary::training_names();
  for (const std::string& name : setup.training)
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      std::string names;
      for (const std::string& other : known) names += (names.empty() ? "" : ", ") + other;
      return "the training job '" + name + "' is unknown; known: " + names;
    }
  const std::uint32_t sms = h200().sms;
  for (const Setup::Recorded& recorded : setup.jobs) {
    const RecordedJob& job = recorded.job;
    if (job.sms != sms)
      return "job " + job.name + " was recorded on " + std::to_string(job.sms) +
             " SMs; what is simulated has " + std::to_string(sms);
    if (job.serves() == recorded.requests.empty())
      return "job " + job.name +
             (job.serves() ? " answers requests, and there are none" : " answers no requests");
  }
  return "";
}

hal::Result<SimulatedRun> run_device(const Setup& setup, unsigned gpu, const std::string& policy) {
  const runtime::PoolLayout layout = runtime::PoolLayout::build(h200(), setup.pool);
  ModelLibrary library(layout.at(0).sms);
  runtime::Profile profile;
  library.measure(profile, layout);
  for (const Setup::Recorded& recorded : setup.jobs)
    for (const RecordedJob::Part& part : recorded.job.parts) {
      profile.describe(part.key, recorded.job.name + " " + part.name, 0, 0);
      for (const runtime::Partition& partition : layout.partitions())
        profile.merge(part.key,
                      {partition.sms, 100, alone_ns(recorded.job, part, partition.sms), 0});
    }
  SimulatedDeviceOptions options = setup.device;
  options.seed = setup.seed + gpu;
  SimulatedDevice device(layout, profile, library, options);
  auto made = scheduler::make(policy, device.context());
  if (!made) return tl::unexpected(made.error());
  device.use(std::move(*made));
  const unsigned all = setup.gpus * setup.services;
  for (unsigned i = 0; i < setup.services && !setup.trace.requests.empty(); ++i) {
    std::vector<ServiceRequest> requests;
    for (std::size_t r = i * setup.gpus + gpu; r < setup.trace.requests.size(); r += all)
      requests.push_back(setup.trace.requests[r]);
    device.add_service(std::move(requests));
  }
  for (const std::string& name : setup.training) device.add_training(*library.training(name));
  for (const Setup::Recorded& recorded : setup.jobs)
    device.add_job(recorded.job, recorded.requests);
  return device.run();
}

}  // namespace

hal::Result<SimulatedRun> simulate(const Setup& setup, const std::string& policy) {
  if (const std::string wrong = problem(setup); !wrong.empty())
    return hal::fail(hal::Errc::kInvalidArgument, wrong);
  if (const auto known = scheduler::check(policy, setup.device.limits); !known)
    return tl::unexpected(known.error());
  const auto start = std::chrono::steady_clock::now();
  std::vector<hal::Result<SimulatedRun>> results(setup.gpus);
  std::atomic<unsigned> next{0};
  auto work = [&] {
    for (unsigned gpu = next++; gpu < setup.gpus; gpu = next++)
      results[gpu] = run_device(setup, gpu, policy);
  };
  std::vector<std::thread> threads;
  const unsigned cores = std::min(setup.gpus, std::max(1U, std::thread::hardware_concurrency()));
  for (unsigned i = 1; i < cores; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  SimulatedRun all;
  for (const auto& result : results) {
    if (!result) return tl::unexpected(result.error());
    all.merge(*result);
  }
  all.policy = policy;
  all.wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return all;
}

double capacity(const RequestTrace& trace) {
  Setup setup;
  setup.device.warm_up_s = 0;
  const std::size_t count = std::min<std::size_t>(trace.requests.size(), 400);
  // Evenly over the whole trace, so that its mix of lengths is kept.
  for (std::size_t i = 0; i < count; ++i) {
    setup.trace.requests.push_back(trace.requests[i * trace.requests.size() / count]);
    setup.trace.requests.back().at_s = 0;
  }
  setup.device.limit_s = 1e6;
  const auto result = simulate(setup, "throughput:model=algorithm1,relative=paper");
  return result && result->simulated_s > 0 ? static_cast<double>(count) / result->simulated_s : 0;
}

}  // namespace vitamin::sim
