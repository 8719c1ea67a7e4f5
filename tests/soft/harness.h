// SPDX-License-Identifier: Apache-2.0
//
// Short words for the tests of the software device.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/soft/engine.h"

namespace vitamin::soft {

inline std::unique_ptr<Engine> make_engine(DeviceDescription device, std::uint64_t seed = 1,
                                           Clock clock = Clock::kVirtual) {
  EngineOptions options;
  options.device = std::move(device);
  options.seed = seed;
  options.clock = clock;
  auto engine = Engine::create(std::move(options));
  REQUIRE(engine.has_value());
  return std::move(*engine);
}

inline Queue* make_queue(Engine& engine, const SmSet& sms, SyncClass sync = SyncClass::kNonBlocking,
                         int priority = 0) {
  QueueOptions options;
  options.sms = sms;
  options.sync = sync;
  options.priority = priority;
  Queue* queue = nullptr;
  REQUIRE(engine.create_queue(options, &queue) == kOk);
  return queue;
}

inline Queue* make_queue(Engine& engine, SyncClass sync = SyncClass::kNonBlocking) {
  return make_queue(engine, engine.device().all(), sync);
}

// A launch with its packed parameters. The types must be the kernel's own.
template <class... Parameters>
class Call {
 public:
  Call(const KernelDescriptor* kernel, Index3 grid, Index3 block, Parameters... parameters) {
    REQUIRE(sizeof...(Parameters) == kernel->parameter_count);
    std::size_t i = 0;
    [[maybe_unused]] const auto put = [&](const auto& value) {
      REQUIRE(sizeof value == kernel->parameters[i].size);
      std::memcpy(packed_ + kernel->parameters[i++].offset, &value, sizeof value);
    };
    (put(parameters), ...);
    launch_.kernel = kernel;
    launch_.grid = grid;
    launch_.block = block;
    launch_.parameters = packed_;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  Launch& operator*() { return launch_; }
  Launch* operator->() { return &launch_; }

 private:
  Launch launch_;
  alignas(16) unsigned char packed_[256] = {};
};

}  // namespace vitamin::soft
