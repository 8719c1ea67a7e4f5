// SPDX-License-Identifier: Apache-2.0
//
// A node of GPUs under one policy: requests and training jobs spread over the GPUs, each GPU
// simulated on its own (scheduler/simulator/device.h), as many at once as there are cores.
#pragma once

#include <string>
#include <vector>

#include "hal/result.h"
#include "scheduler/simulator/device.h"

namespace vitamin::sim {

struct Setup {
  RequestTrace trace;
  unsigned gpus = 1;
  unsigned services = 1;              // on each GPU; requests go round robin over all of them
  std::vector<std::string> training;  // on each GPU; names of ModelLibrary::training_names()
  struct Recorded {
    RecordedJob job;
    std::vector<ServiceRequest> requests;  // for a job that serves
  };
  std::vector<Recorded> jobs;  // on each GPU
  SimulatedDeviceOptions device;
  runtime::PoolLimits pool;
  std::uint64_t seed = 1;
};

// The same setup gives the same result, whatever the number of cores.
hal::Result<SimulatedRun> simulate(const Setup& setup, const std::string& policy);

// Requests a second that one GPU with one service of its own finishes under the paper's
// `throughput` when all of `trace` (at most 400 requests of it) waits at once: what a load of 1 is.
double capacity(const RequestTrace& trace);

}  // namespace vitamin::sim
