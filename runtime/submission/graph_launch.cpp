// SPDX-License-Identifier: Apache-2.0
//
// Launches of graphs: where they go, and with which executable (graph.h).
#include <algorithm>
#include <utility>

#include "runtime/audit/audit.h"
#include "runtime/submission/pipeline.h"

namespace vitamin::runtime {

using hal::NativeStatus;
using stats::GraphReason;

namespace {

GraphReason reason_of(stats::WholeReason reason) {
  switch (reason) {
    case stats::WholeReason::kNoQueue:
      return GraphReason::kNoQueue;
    case stats::WholeReason::kPoolMissing:
      return GraphReason::kUnsupported;
    case stats::WholeReason::kPolicy:
      return GraphReason::kPolicy;
    default:
      return GraphReason::kNarrow;
  }
}

}  // namespace

SubmitResult Pipeline::launch_graph_now(Stream& stream, Submission& submission,
                                        std::span<const Predecessor> predecessors, bool own_stream,
                                        bool may_prepare) {
  GraphOperation& operation = *submission.operation->as_graph();
  Graph& graph = *operation.graph();
  // Behind the launch before, which another executable may have made.
  const bool elsewhere =
      !graph.anywhere && graph.last_stream != nullptr && graph.last_stream != &stream;
  const MarkerRef behind = elsewhere ? graph.last : MarkerRef();
  const bool others_wait_for_host = ordering_.others_wait_for_host(
      predecessors, behind, elsewhere ? graph.host_wait : MarkerRef());
  const bool waits_for_host = others_wait_for_host || completion_.waits_for_host(stream);
  if (!own_stream && waits_for_host && !placer_.claim_free_sharing(stream))
    return {Blocked::kHostWait};
  const std::uint64_t predicted = predicted_now(stream, graph.kernel, &graph.launch);
  if (!completion_.room(stream, predecessors, !own_stream, graph.places, predicted))
    return {Blocked::kTooMuchOutstanding};
  GraphBinding binding{&stream.app_stream, nullptr,
                       operation.stays().value_or(GraphReason::kHostWait)};
  if (!own_stream) {
    if (must_look(stream, graph)) {
      if (may_prepare) return {Blocked::kGraph};
      want_look(graph);
    }
    binding.reason = GraphReason::kFresh;
    binding.counts_outstanding = placer_.counts_whole(stream);
    const Advice* const advice = Placer::advice_for(stream, operation.advice());
    const std::uint32_t needed = placer_.widened(advice, graph.needed);
    if (const auto reason = stays(graph)) {
      binding.reason = *reason;
    } else if (!placer_.prepare_move(stream, graph.kernel, needed, submission.flushing)) {
      return {Blocked::kTooMuchOutstanding};
    } else if (elsewhere && !graph.last) {
      // Only the application's own executable comes behind the one before, by the driver's rule.
      binding.reason = GraphReason::kNotMade;
    } else {
      binding = bind_graph(stream, operation, needed, may_prepare);
      if (const auto blocked = binding.blocked()) return *blocked;
    }
    placer_.announce_step(stream, advice);  // who was asked knows of it
  }
  if (!own_stream && waits_for_host && (binding.counts_outstanding || binding.made != nullptr)) {
    placer_.give_up(stream, *binding.queue);  // the grant has just changed
    return {Blocked::kHostWait};
  }
  if (others_wait_for_host) completion_.close_batch(stream);
  NativeStatus status = launch_graph_on(stream, operation, predecessors, behind, binding);
  if (status != hal::kNativeOk && binding.made != nullptr) {
    // Whatever is wrong with ours, the application's own executable answers what it would natively.
    graph.kernel.refused.set(binding.made->partition);
    leave_waits(stream, *binding.queue);
    binding = {&stream.app_stream, nullptr, GraphReason::kRefused};
    stream.placing.grant = {kWholeDevice, 0};
    status = launch_graph_on(stream, operation, predecessors, behind, binding);
  }
  if (status != hal::kNativeOk) return {Blocked::kNo, status};
  count(stream, graph, binding);
  completion_.submitted(stream, *binding.queue,
                        {.places = graph.places,
                         .predicted_ns = predicted,
                         .work = graph.kernel.work,
                         .counts_outstanding = binding.counts_outstanding &&
                                               (binding.made != nullptr || graph.ends_by_itself)});
  if (graph.stays == GraphReason::kCollective) core_.arbiter->collective();
  // A graph whose kernels wait for each other may hang where they do not all fit.
  if (binding.made != nullptr && watchdog_.wants(graph.kernel, binding.queue->sms))
    watchdog_.watch(graph.kernel, binding.queue->sms,
                    core_.predicted_ns(graph.kernel, &graph.launch, binding.queue->sms),
                    completion_.tail_marker(stream), graph.shared_from_this());
  // The driver keeps the application's own executable from running beside itself. A marker says to
  // others of the graph where this launch was.
  const bool others = !graph.anywhere && graph.looked && !graph.stays;
  const MarkerRef marker =
      others || others_wait_for_host ? completion_.tail_marker(stream) : MarkerRef();
  if (others_wait_for_host) completion_.note_host_wait(stream, marker);
  if (!graph.gone) {
    graph.last_stream = &stream;
    graph.last = marker;
    graph.host_wait = stream.submitted.host_wait;
  }
  return {};
}

// Whether a launch counts under the stream's grant depends on what the graph holds, also where it
// stays.
bool Pipeline::must_look(const Stream& stream, const Graph& graph) const {
  return !graph.looked && !graph.gone && graph.knowable() && placer_.counts_whole(stream);
}

// Why the graph stays whatever is granted; nothing: it may go.
std::optional<GraphReason> Pipeline::stays(const Graph& graph) const {
  if (core_.options.graph_bytes == 0 || !placer_.parts()) return GraphReason::kUnsupported;
  if (graph.stays) return graph.stays;
  if (graph.kernel.resident) return GraphReason::kNarrow;
  return std::nullopt;
}

Pipeline::GraphBinding Pipeline::bind_graph(Stream& stream, const GraphOperation& operation,
                                            std::uint32_t needed, bool may_prepare) {
  if (!stream.placing.iteration_ends.empty()) Placer::pass_iteration_ends(stream);
  Graph& graph = *operation.graph();
  const LaunchOperation stands_for(core_.inspector, graph.launch, operation.advice());
  if (graph.unsettled())
    return {&stream.app_stream, nullptr, GraphReason::kFresh, placer_.counts_whole(stream)};
  const Placer::Binding binding = placer_.bind(stream, graph.kernel, &stands_for, needed);
  if (binding.queue == nullptr) return without_grant(stream, graph, may_prepare);
  if (binding.queue->whole()) {
    // Whether it counts depends on what it holds.
    if (!graph.looked && binding.counts_outstanding) {
      if (may_prepare)
        return {&stream.app_stream, nullptr, GraphReason::kFresh, false, kNoPartition};
      want_look(graph);
    }
    return {&stream.app_stream, nullptr, reason_of(binding.reason), binding.counts_outstanding};
  }
  const PartitionId partition = binding.queue->partition;
  if (Graph::Made* made = graph.ready(partition))
    return {binding.queue, made, GraphReason::kPolicy, binding.counts_outstanding};
  placer_.give_up(stream, *binding.queue);
  if (!graph.looked) {
    if (may_prepare) return {&stream.app_stream, nullptr, GraphReason::kFresh, false, kNoPartition};
    want_look(graph);
    return {&stream.app_stream, nullptr, GraphReason::kFresh};
  }
  // Meanwhile an arbiter in this process chooses among the partitions that there are executables
  // for. vitamind grants none of these at once: the launch goes to the whole device without a
  // grant.
  ready_.clear();
  for (const PartitionId id : placer_.eligible(stream, graph.kernel, needed))
    if (graph.ready(id) != nullptr) ready_.push_back(id);
  if (ready_.empty() && may_prepare)
    return {&stream.app_stream, nullptr, GraphReason::kNotMade, false,
            soonest_made(stream, graph, partition)};
  // Not of a version that may have passed when it is made: the next launch would find the graph in
  // work.
  if (graph.version == 1 || graph.launches > 0 || ready_.empty())
    graphs_.want(graph.shared_from_this(), partition);
  if (!ready_.empty()) {
    const GrantTerms terms = placer_.ask(stream, graph.kernel, &stands_for, needed, ready_);
    // What it did not choose first stands for one launch only.
    stream.placing.grant = {kWholeDevice, 0};
    if (terms.partition != kNoPartition && terms.partition != kWholeDevice) {
      if (PhysicalQueue* queue = queues_.free_queue(stream, terms.partition))
        return {queue, graph.ready(terms.partition), GraphReason::kPolicy,
                terms.counts_outstanding};
      if (!core_.streams_share) core_.arbiter->release(terms.partition, stream.id);
    }
  }
  return {&stream.app_stream, nullptr, GraphReason::kNotMade};
}

// Whether the launch waits for a grant depends on what the graph holds: one whose kernels wait for
// other processes does not, since the client that has the grant may wait for these.
Pipeline::GraphBinding Pipeline::without_grant(Stream& stream, Graph& graph, bool may_prepare) {
  if (!graph.looked && !graph.gone && graphs_.works()) {
    if (may_prepare)
      return {&stream.app_stream, nullptr, GraphReason::kNoGrant, false, kNoPartition};
    want_look(graph);
  }
  const bool waits = graph.looked ? graph.ends_by_itself : graph.asked && graphs_.works();
  return {waits ? nullptr : &stream.app_stream, nullptr, GraphReason::kNoGrant};
}

// What a launch that is deferred would wait for then: the graph is to be looked at (kNoPartition),
// or an executable to be made for the partition; nothing: there is one, or none is wanted. A thread
// that submits deferred work makes none.
std::optional<PartitionId> Pipeline::prepared_ahead(Stream& stream, Graph& graph) {
  if (must_look(stream, graph)) return kNoPartition;
  if (stays(graph) || graph.gone || graph.unsettled()) return std::nullopt;
  if (graph.anywhere && graph.looked) return std::nullopt;
  for (const Graph::Made& made : graph.made)
    if (made.version == graph.version) return std::nullopt;
  const PartitionId partition = placer_.likely_part(stream, graph.kernel, graph.needed);
  if (partition == kNoPartition) return std::nullopt;
  return graph.looked ? soonest_made(stream, graph, partition) : kNoPartition;
}

// Where an executable is made for a launch that has none: for `partition`, unless that stands for
// this launch only and there are executables of former versions for others. To bring one up to date
// is less work: of these the one that was launched last.
PartitionId Pipeline::soonest_made(Stream& stream, Graph& graph, PartitionId partition) {
  const GrantTerms& grant = stream.placing.grant;
  const bool stands = grant.partition == partition && grant.launches == kUntilRevoked;
  if (stands || graph.find(partition) != nullptr) return partition;
  const std::span<const PartitionId> wide = placer_.eligible(stream, graph.kernel, graph.needed);
  std::uint64_t used = 0;
  PartitionId soonest = partition;
  for (const Graph::Made& made : graph.made) {
    if (made.used < used || std::find(wide.begin(), wide.end(), made.partition) == wide.end())
      continue;
    used = made.used;
    soonest = made.partition;
  }
  return soonest;
}

// By the worker, once for each version.
void Pipeline::want_look(Graph& graph) {
  if (graph.asked || graph.gone) return;
  graph.asked = true;
  graphs_.want(graph.shared_from_this(), kNoPartition);
}

NativeStatus Pipeline::launch_graph_on(Stream& stream, GraphOperation& operation,
                                       std::span<const Predecessor> predecessors,
                                       const MarkerRef& behind, const GraphBinding& binding) {
  Graph& graph = *operation.graph();
  Profiler& profiler = core_.profiler;
  hal::Queue& queue = *binding.queue->queue;
  unsigned waits = 0;
  NativeStatus status = ordering_.order(stream, queue, binding.queue, predecessors, waits);
  if (status == hal::kNativeOk && behind && !behind->fired) {
    status = completion_.wait_for(stream, queue, behind->event);
    core_.page.other.edges.add();
  }
  if (status != hal::kNativeOk) return status;
  operation.use(binding.made != nullptr ? binding.made->executable : nullptr);
  // How long graphs run without a grant is measured, and how long with one while we learn.
  const stats::Graphs& graphs = core_.page.graphs;
  const bool timed =
      binding.made != nullptr
          ? profiler.learns() && Profiler::times_graph(binding.made->launches)
          : Profiler::times_graph(core_.page.other.graph_launches.get() - graphs.bound.get());
  Profiler::Stopwatch* stopwatch = timed ? profiler.start(queue) : nullptr;
  if (stopwatch != nullptr) completion_.put_beside(stream, 2);
  status = operation.submit(queue);
  if (Audit* audit = core_.audit();
      audit != nullptr && status == hal::kNativeOk && operation.asked())
    audit->launched_graph(*binding.queue,
                          operation.used() != nullptr ? &operation.used()->shape : nullptr);
  if (stopwatch == nullptr) return status;
  if (status != hal::kNativeOk) {
    profiler.abandon(stopwatch);
    return status;
  }
  if (!profiler.awaits()) core_.wake.notify_one();
  std::function<void(double)> told;
  if (binding.queue->whole())
    told = [&work = core_.page.other](double ns) {
      work.graphs_timed.add();
      work.graph_whole_ns.add(static_cast<std::uint64_t>(ns));
    };
  if (profiler.learns() && graph.looked)
    profiler.stop(stopwatch, queue, launch_key(graph.kernel.name_hash, graph.launch),
                  graph.kernel.name, graph.launch, binding.queue->sms, false, std::move(told));
  else
    profiler.stop(stopwatch, queue, std::move(told));
  return status;
}

void Pipeline::count(Stream& stream, Graph& graph, const GraphBinding& binding) {
  stats::Graphs& graphs = core_.page.graphs;
  const PartitionId partition = binding.queue->partition;
  core_.page.other.graph_launches.add();
  ++graph.launches;
  graph.replaced = false;
  if (graph.last_partition != kNoPartition) {
    graphs.successors.add();
    if (graph.last_partition != partition) graphs.moved.add();
  }
  graph.last_partition = partition;
  for (const auto& [library, kernels] : graph.libraries) {
    library->graph_kernels.add(kernels);
    if (binding.made != nullptr) library->graph_kernels_bound.add(kernels);
  }
  if (binding.made == nullptr) {
    core_.page.graph_whole[static_cast<unsigned>(binding.reason)].add();
    return;
  }
  graphs.bound.add();
  widths_[partition]->graphs.add();
  if (binding.queue->sms < core_.whole()) graphs.narrow.add();
  stream.placing.last_partition = partition;
  graphs_.used(*binding.made);
  ++binding.made->launches;
}

}  // namespace vitamin::runtime
