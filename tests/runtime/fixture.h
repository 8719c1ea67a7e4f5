// SPDX-License-Identifier: Apache-2.0
//
// A VirtualContext over the software device, for tests that say what one rule does.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "backends/soft/device.h"
#include "daemon/client/local_arbiter.h"
#include "runtime/audit/audit.h"
#include "runtime/virtual_context.h"

namespace vitamin::tests {

// One kernel's stay on the device, from the engine's trace.
struct Stay {
  std::uint64_t queue = 0, queue_tag = 0, hash = 0;
  soft::Nanoseconds enqueued = 0, start = 0, end = 0;
  soft::SmSet sms;
  hal::Dim3 grid;
};

struct FixtureOptions {
  std::string policy = "random";
  std::uint64_t seed = 1;
  std::uint64_t window_ns = ~0ULL;
  unsigned units = 8;
  unsigned pool_queues_max = 0;  // 0: as many as there are partitions
  std::chrono::milliseconds slots_stay{1};
  soft::Clock clock = soft::Clock::kVirtual;
  std::chrono::milliseconds hang_after{5000};
  void (*on_hang)(const char*, std::uint32_t, double) = nullptr;
  std::unordered_set<std::string> resident_kernels = {};
  runtime::ProfilerOptions profiler = {};
  std::function<void(const runtime::Profile&)> keep_profile = {};
  std::uint64_t graph_bytes = runtime::DispatchOptions().graph_bytes;
  std::shared_ptr<runtime::Audit> audit = {};
  runtime::MakeArbiter make_arbiter = {};  // instead of one in this process
  bool blocking_covers_legacy = false;
  bool ended_wait_covers_legacy = true;
  bool markers_take_places = true;     // hal::DeviceInfo's
  std::function<void()> on_idle = {};  // the runtime has looked at all that it waits for
};

class Fixture {
 public:
  explicit Fixture(const FixtureOptions& options = {}) {
    soft::EngineOptions engine_options;
    engine_options.device = soft::DeviceDescription::uniform(options.units, 2);
    engine_options.device.pool_queues_max = options.pool_queues_max;
    engine_options.seed = options.seed;
    engine_options.clock = options.clock;
    auto opened = soft::open_device(engine_options);
    REQUIRE(opened.has_value());
    device_ = opened->get();
    if (!options.markers_take_places) device_->keep_places_from_markers();
    engine = &device_->engine();
    runtime::DispatchOptions dispatch;
    dispatch.window.ahead_ns = options.window_ns;
    dispatch.hang_after = options.hang_after;
    dispatch.on_hang = options.on_hang;
    dispatch.resident_kernels = options.resident_kernels;
    dispatch.profiler = options.profiler;
    dispatch.keep_profile = options.keep_profile;
    dispatch.page = &page;
    dispatch.make_arbiter = options.make_arbiter;
    dispatch.slots_stay = options.slots_stay;
    dispatch.graph_bytes = options.graph_bytes;
    dispatch.blocking_covers_legacy = options.blocking_covers_legacy;
    dispatch.ended_wait_covers_legacy = options.ended_wait_covers_legacy;
    dispatch.thread = options.clock == soft::Clock::kReal;
    if (options.clock == soft::Clock::kVirtual)
      dispatch.idle = [this, on_idle = options.on_idle] {
        if (on_idle) on_idle();
        if (engine->advance() != soft::AdvanceResult::kMoved && ++stuck > 20'000)
          FAIL("nothing can move");
      };
    const auto policy = client::local_arbiter(options.policy, options.seed);
    REQUIRE(policy.has_value());
    void* legacy = device_->legacy_stream();
    std::unique_ptr<hal::Device> device = std::move(*opened);
    if (options.audit != nullptr) {
      dispatch.audit = options.audit;
      device = runtime::Audit::watch(options.audit, std::move(device));
    }
    auto made = runtime::VirtualContext::create(std::move(device), *policy, dispatch, legacy);
    REQUIRE(made.has_value());
    context = std::move(*made);
    engine->set_trace([this](const soft::TraceRecord& r) { note(r); });
  }
  ~Fixture() {
    engine->set_trace({});
    context.reset();
  }

  runtime::Stream& stream(runtime::StreamKind kind = runtime::StreamKind::kNonBlocking,
                          int priority = 0) {
    const auto sync = kind == runtime::StreamKind::kBlocking ? soft::SyncClass::kBlocking
                                                             : soft::SyncClass::kNonBlocking;
    return context->adopt(*device_->create_stream(sync, priority), kind, priority);
  }
  hal::NativeStatus launch(runtime::Stream& stream, const soft::KernelDescriptor* kernel,
                           std::vector<void*> arguments, unsigned blocks = 1,
                           bool cooperative = false) {
    hal::KernelLaunch launch;
    launch.kernel = kernel;
    launch.grid = {blocks, 1, 1};
    launch.block = {32, 1, 1};
    launch.arguments = arguments.data();
    launch.cooperative = cooperative;
    if (cooperative) launch.form = hal::LaunchForm::kCooperative;
    return context->launch(stream, launch);
  }
  // Host-gated work on the stream; release(gate) ends it.
  soft::Gate* hold(runtime::Stream& stream) {
    soft::Gate* gate = engine->create_gate();
    auto wait = runtime::call(
        [=, this](void* q) { return engine->wait_gate(static_cast<soft::Queue*>(q), gate); });
    REQUIRE(context->bridge(stream, wait, runtime::CallKind::kHostWait) == hal::kNativeOk);
    return gate;
  }

  soft::Device::EventQueries event_queries() const { return device_->event_queries(); }
  // Operations of this kind that native queues were given.
  std::uint64_t enqueued(soft::EngineOperationKind kind) { return enqueued_[kind]; }
  // Operations of any kind that one native queue held at once, at most.
  std::uint64_t most_outstanding() const { return most_outstanding_; }

  runtime::stats::DevicePage page{};
  soft::Engine* engine = nullptr;
  std::unique_ptr<runtime::VirtualContext> context;
  std::vector<Stay> stays;  // kernels, in the order of their ends
  unsigned stuck = 0;

 private:
  void note(const soft::TraceRecord& r) {
    if (r.phase == soft::TraceRecord::Phase::kEnqueue) ++enqueued_[r.kind];
    std::uint64_t& held = held_[r.queue];
    if (r.phase == soft::TraceRecord::Phase::kEnqueue)
      most_outstanding_ = std::max(most_outstanding_, ++held);
    else if (r.phase == soft::TraceRecord::Phase::kEnd && held > 0)
      --held;
    if (r.kind != soft::EngineOperationKind::kKernel) return;
    const auto key = std::pair(r.queue, r.ticket);
    if (r.phase == soft::TraceRecord::Phase::kEnqueue) {
      open_[key] = {r.queue, r.queue_tag, r.launch_hash, r.at,
                    0,       0,           *r.sms,        {r.grid.x, r.grid.y, r.grid.z}};
    } else if (r.phase == soft::TraceRecord::Phase::kStart) {
      open_[key].start = r.at;
    } else {
      Stay stay = open_[key];
      stay.end = r.at;
      stays.push_back(stay);
    }
  }
  soft::Device* device_ = nullptr;
  std::map<std::pair<std::uint64_t, std::uint64_t>, Stay> open_;
  std::map<soft::EngineOperationKind, std::uint64_t> enqueued_;
  std::map<std::uint64_t, std::uint64_t> held_;  // by queue
  std::uint64_t most_outstanding_ = 0;
};

}  // namespace vitamin::tests
