// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/core.h"

#include <limits>

#include "runtime/audit/audit.h"

namespace vitamin::runtime {

Core::Core(hal::Device& of, std::unique_ptr<Arbiter> made, const DispatchOptions& chosen,
           PoolLayout of_pool)
    : device(of),
      inspector(of.inspector()),
      errors(of.errors()),
      options(chosen),
      page(*chosen.page),
      layout(std::move(of_pool)),
      markers(device, options.markers),
      profiler(device, options.profiler),
      arbiter(std::move(made)),
      kernels(device, page, options.resident_kernels, options.collectives, options.cautious),
      streams_share(arbiter->streams_share()),
      driver_orders_legacy_stream(of.info().driver_orders_legacy_stream),
      between_processes(arbiter->between_processes()) {
  // What takes a place is bounded by the queue; what takes none blocks no caller natively.
  if (device.info().queue_depth_measured)
    options.deferred_max = std::numeric_limits<std::size_t>::max();
  if (between_processes) options.slots_stay = options.remote_slots_stay;
  profiler.on_sample([this](const TimedLaunches& timed) { arbiter->timed(timed); });
}

std::uint64_t Core::predicted_ns(const Kernel& kernel, const hal::KernelLaunch* launch,
                                 std::uint32_t sms) const {
  if (launch == nullptr || profiler.profile().kernels().empty()) return options.predicted_kernel_ns;
  const Prediction prediction =
      profiler.profile().predict(launch_key(kernel.name_hash, *launch), sms);
  return prediction.ns > 0 ? static_cast<std::uint64_t>(prediction.ns)
                           : options.predicted_kernel_ns;
}

void Core::trace(trace::TraceKind kind, const Stream& stream, std::uint64_t serial,
                 PartitionId partition, std::uint64_t a) {
  trace::TraceEntry record;
  record.time = trace::Recorder::ticks();
  record.kind = kind;
  record.partition = partition;
  record.stream = stream.id;
  record.serial = serial;
  record.a = a;
  options.trace->add(record);
}

}  // namespace vitamin::runtime
