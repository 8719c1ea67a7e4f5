// SPDX-License-Identifier: Apache-2.0
//
// Launches of graphs: where they go, and what is made for them off the path (graph.h).
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>

#include "runtime/audit.h"
#include "runtime/dispatcher.h"
#include "runtime/internal.h"

namespace vitamin::runtime {

using hal::NativeStatus;
using stats::GraphReason;

namespace {

// What an executable takes at least before anybody has seen one, and what it is believed to take at
// most: others may allocate while it is made.
constexpr std::uint64_t kLeastBytes = 16 << 10, kLeastNodeBytes = 2 << 10;
constexpr std::uint64_t kMostBytes = 1 << 20, kMostNodeBytes = 64 << 10;

std::uint64_t least_bytes(const Graph& graph) {
  return kLeastBytes + graph.shape.nodes * kLeastNodeBytes;
}
std::uint64_t most_bytes(const Graph& graph) {
  return kMostBytes + graph.shape.nodes * kMostNodeBytes;
}

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

// --- on the launch path ------------------------------------------------------------------------

Attempt Dispatcher::attempt_graph(Stream& stream, Request& request) {
  const auto& operation = *static_cast<GraphOperation*>(request.operation);
  Graph& graph = *operation.graph();
  const bool elsewhere = graph.last_stream != nullptr && graph.last_stream != &stream;
  if (elsewhere) {
    request.marker = graph.last;
    request.gate = graph.gate;
  }
  const bool gated_by_others = others_gated(request);
  if (!request.own_stream && (gated_by_others || gated(stream))) return {Blocked::kGate};
  const std::uint32_t width = stream.grant.entry != kNoEntry && stream.grant.launches > 0
                                  ? layout_.at(stream.grant.entry).processors
                                  : layout_.at(kWholeDevice).processors;
  const std::uint64_t predicted =
      bounded(stream) ? predicted_ns(graph.kernel, &graph.launch, width) : 0;
  if (!room(stream, request.after, !request.own_stream, 1, predicted)) return {Blocked::kWindow};
  GraphPlace place{&stream.own, nullptr, operation.stays().value_or(GraphReason::kHostGated)};
  if (!request.own_stream) {
    place.reason = GraphReason::kFresh;
    if (const auto reason = stays(graph)) {
      place.reason = *reason;
    } else if (!may_move(stream, graph.kernel, graph.needed)) {
      return {Blocked::kWindow};
    } else if (elsewhere && !graph.last) {
      // Only the application's own executable comes behind the one before, by the driver's rule.
      place.reason = GraphReason::kNotMade;
    } else {
      place = place_graph(stream, graph, request.may_prepare);
      if (place.prepare) return {Blocked::kGraph, hal::kNativeOk, *place.prepare};
    }
  }
  if (gated_by_others) close_segment(stream);
  NativeStatus status = launch_graph(stream, request, place);
  if (status != hal::kNativeOk && place.made != nullptr) {
    // Whatever is wrong with ours, the application's own executable answers what it would natively.
    graph.kernel.refused.set(place.made->entry);
    leave_waits(stream, *place.queue);
    place = {&stream.own, nullptr, GraphReason::kRefused};
    stream.grant = {kWholeDevice, 0};
    status = launch_graph(stream, request, place);
  }
  if (status != hal::kNativeOk) return {Blocked::kNo, status};
  count(stream, graph, place);
  commit(stream, *place.queue, 1, !place.queue->whole(), predicted, graph.kernel.work);
  // The driver keeps the application's own executable from running beside itself. A marker says to
  // others of the graph where this launch was.
  const bool others = graph.looked && !graph.stays;
  const MarkerRef marker = others || gated_by_others ? tail_marker(stream) : MarkerRef();
  if (gated_by_others) note_gate(stream, marker);
  if (!graph.gone) {
    graph.last_stream = &stream;
    graph.last = marker;
    graph.gate = stream.gate;
  }
  return {};
}

// Why the graph stays whatever the policy says; nothing: it may go.
std::optional<GraphReason> Dispatcher::stays(Graph& graph) {
  if (options_.graph_bytes == 0 || by_width_.size() == 1) return GraphReason::kUnsupported;
  if (graph.stays) return graph.stays;
  if (graph.kernel.resident) return GraphReason::kNarrow;
  return std::nullopt;
}

Dispatcher::GraphPlace Dispatcher::place_graph(Stream& stream, Graph& graph, bool may_prepare) {
  const LaunchOperation stands_for(device_, graph.launch);
  const Binding binding = bind(stream, graph.kernel, &stands_for, graph.needed);
  if (binding.queue == nullptr) return {&stream.own, nullptr, GraphReason::kNoLease};
  if (binding.queue->whole()) return {&stream.own, nullptr, reason_of(binding.reason)};
  const EntryId entry = binding.queue->entry;
  if (Graph::Made* made = graph.ready(entry)) return {binding.queue, made};
  // It never was this stream's, unless its earlier work is there: then it still is.
  if (!lanes_share_ && binding.queue != stream.tail) arbiter_->release(entry, stream.lane);
  if (!graph.looked) {
    if (may_prepare) return {&stream.own, nullptr, GraphReason::kFresh, kNoEntry};
    if (!graph.asked && !graph.gone) {
      graph.asked = true;
      want(graph.shared_from_this(), kNoEntry);
    }
    return {&stream.own, nullptr, GraphReason::kFresh};
  }
  // Meanwhile the policy chooses among the entries that there are executables for.
  ready_.clear();
  for (const EntryId id : eligible(stream, graph.kernel, graph.needed))
    if (graph.ready(id) != nullptr) ready_.push_back(id);
  if (ready_.empty() && may_prepare) return {&stream.own, nullptr, GraphReason::kNotMade, entry};
  want(graph.shared_from_this(), entry);
  if (!ready_.empty()) {
    const Choice choice = ask(stream, graph.kernel, &stands_for, graph.needed, ready_);
    stream.grant = {kWholeDevice, 0};  // what it did not choose first stands for one launch only
    if (choice.entry != kNoEntry && choice.entry != kWholeDevice) {
      if (PhysicalQueue* queue = free_queue(stream, choice.entry))
        return {queue, graph.ready(choice.entry)};
      if (!lanes_share_) arbiter_->release(choice.entry, stream.lane);
    }
  }
  return {&stream.own, nullptr, GraphReason::kNotMade};
}

NativeStatus Dispatcher::launch_graph(Stream& stream, Request& request, const GraphPlace& place) {
  auto& operation = *static_cast<GraphOperation*>(request.operation);
  Graph& graph = *operation.graph();
  hal::Queue& queue = *place.queue->queue;
  unsigned waits = 0;
  NativeStatus status = order(stream, queue, place.queue, request.after, waits);
  if (status == hal::kNativeOk && request.marker && !request.marker->fired) {
    status = wait_for(stream, queue, request.marker);
    page_.other.edges.add();
  }
  if (status != hal::kNativeOk) return status;
  operation.use(place.made != nullptr ? place.made->executable : nullptr);
  // How long graphs run without a lease is measured, and how long with one while we learn.
  const bool timed =
      place.made != nullptr
          ? profiler_.learns() && Profiler::times_graph(place.made->launches)
          : Profiler::times_graph(page_.other.graph_launches.get() - page_.graphs.bound.get());
  Profiler::Stopwatch* stopwatch = timed ? profiler_.start(queue) : nullptr;
  if (stopwatch != nullptr) put_beside(stream, 2);
  status = operation.submit(queue);
  if (options_.audit && status == hal::kNativeOk && operation.asked())
    options_.audit->launched_graph(*place.queue,
                                   place.made != nullptr ? &operation.used()->shape : nullptr);
  if (stopwatch == nullptr) return status;
  if (status != hal::kNativeOk) {
    profiler_.abandon(stopwatch);
    return status;
  }
  if (!profiler_.awaits()) wake_.notify_one();
  std::function<void(double)> told;
  if (place.queue->whole())
    told = [&work = page_.other](double ns) {
      work.graphs_timed.add();
      work.graph_unleased_ns.add(static_cast<std::uint64_t>(ns));
    };
  if (profiler_.learns() && graph.looked)
    profiler_.stop(stopwatch, queue, launch_key(graph.kernel.name_hash, graph.launch),
                   graph.kernel.name, graph.launch, place.queue->processors, false,
                   std::move(told));
  else
    profiler_.stop(stopwatch, queue, std::move(told));
  return status;
}

void Dispatcher::count(Stream& stream, Graph& graph, const GraphPlace& place) {
  stats::Graphs& graphs = page_.graphs;
  const EntryId entry = place.queue->entry;
  page_.other.graph_launches.add();
  if (graph.last_entry != kNoEntry) {
    graphs.successors.add();
    if (graph.last_entry != entry) graphs.moved.add();
  }
  graph.last_entry = entry;
  for (const auto& [library, kernels] : graph.libraries) {
    library->graph_kernels.add(kernels);
    if (place.made != nullptr) library->graph_kernels_bound.add(kernels);
  }
  if (place.made == nullptr) {
    page_.graph_whole[static_cast<unsigned>(place.reason)].add();
    return;
  }
  graphs.bound.add();
  widths_[entry]->graphs.add();
  if (place.queue->processors < layout_.at(kWholeDevice).processors) graphs.narrow.add();
  stream.last_entry = entry;
  place.made->used = ++graph_clock_;
  ++place.made->launches;
  watch(graph.shared_from_this(), stream, *place.queue);
}

// A graph whose kernels wait for each other may hang where they do not all fit.
void Dispatcher::watch(const std::shared_ptr<Graph>& graph, Stream& stream, PhysicalQueue& queue) {
  if (graph->kernel.proven_processors <= queue.processors || watched_.size() >= kWatchedMax) return;
  const MarkerRef marker = tail_marker(stream);
  if (!marker) return;
  if (watched_.empty()) wake_.notify_one();
  watched_.push_back({&graph->kernel,
                      queue.processors,
                      predicted_ns(graph->kernel, &graph->launch, queue.processors),
                      marker,
                      std::chrono::steady_clock::now(),
                      false,
                      graph,
                      {}});
}

// --- what the application does with it -----------------------------------------------------------

void Dispatcher::graph_changed(Graph& graph, bool followed) {
  graph.changed();
  if (!followed) graph.stays = GraphReason::kUnfollowed;
}

std::vector<Graph::Made> Dispatcher::forget_graph(Graph& graph) {
  graph.gone = true;
  std::erase_if(wanted_graphs_,
                [&](const WantedGraph& want) { return want.graph.get() == &graph; });
  std::erase(graphs_, &graph);
  for (Graph::Made& made : graph.made) drop(made);
  graph.last_stream = nullptr;
  graph.last.reset();
  graph.gate.reset();
  return std::exchange(graph.made, {});
}

// --- off the path --------------------------------------------------------------------------------

void Dispatcher::want(const std::shared_ptr<Graph>& graph, EntryId entry) {
  if (graph->gone || graphs_finished_) return;
  if (entry != kNoEntry) {
    auto& wanted = graph->wanted;
    if (std::find(wanted.begin(), wanted.end(), entry) != wanted.end()) return;
    wanted.push_back(entry);
  }
  wanted_graphs_.push_back({graph, entry});
  work_.notify_one();
}

// What was wanted first is made first; the lock is dropped meanwhile.
void Dispatcher::make_graphs(Lock& lock) {
  while (graphs_awaited() && !stopping_) {
    const WantedGraph want = std::move(wanted_graphs_.front());
    wanted_graphs_.erase(wanted_graphs_.begin());
    ++graphs_in_work_;
    if (want.entry == kNoEntry)
      look_at(lock, want.graph);
    else
      make(lock, want.graph, want.entry, true);
    --graphs_in_work_;
  }
  graph_made_.notify_all();
}

void Dispatcher::prepare_graph(Lock& lock, const std::shared_ptr<Graph>& graph, EntryId entry) {
  if (graphs_finished_ || stopping_) return;
  ++graphs_in_work_;
  if (entry == kNoEntry)
    look_at(lock, graph);
  else
    make(lock, graph, entry, false);
  --graphs_in_work_;
  graph_made_.notify_all();
}

void Dispatcher::finish_graphs() {
  Lock lock(mutex_);
  graphs_finished_ = true;
  graph_made_.wait(lock, [&] { return graphs_in_work_ == 0; });
}

void Dispatcher::look_at(Lock& lock, const std::shared_ptr<Graph>& graph) {
  const std::uint64_t version = graph->version;
  lock.unlock();
  const hal::Result<hal::GraphContents> contents = [&] {
    const Internal internal(device_);
    return graph->source->look(device_);
  }();
  lock.lock();
  if (graph->gone || graph->version != version) return;
  if (contents)
    describe(*graph, *contents);
  else
    graph->stays = contents.error().code == hal::Errc::kInvalidArgument ? GraphReason::kContexts
                                                                        : GraphReason::kRefused;
  graph->looked = true;
}

// What no launch of one of its kernels could have, the whole cannot have either.
void Dispatcher::describe(Graph& graph, const hal::GraphContents& contents) {
  graph.shape = contents.shape;
  graph.needed = 1;
  graph.libraries.clear();
  for (const hal::KernelLaunch& launch : contents.kernels) {
    Kernel& kernel = kernels_.find(launch.kernel);
    graph.needed = std::max(graph.needed, kernel.processors_needed(device_, launch));
    if (kernel.collective || (options_.cooperative_collective && launch.cooperative))
      graph.stays = GraphReason::kCollective;
    const auto known = std::find_if(graph.libraries.begin(), graph.libraries.end(),
                                    [&](const auto& one) { return one.first == kernel.library; });
    if (known != graph.libraries.end())
      ++known->second;
    else
      graph.libraries.emplace_back(kernel.library, 1);
  }
  if (graph.needed > widest_ && !graph.stays) graph.stays = GraphReason::kNarrow;
  if (least_bytes(graph) > options_.graph_bytes && !graph.stays) graph.stays = GraphReason::kMemory;
  char name[64];
  std::snprintf(name, sizeof name, "graph of %u nodes (%016llx)", contents.shape.nodes,
                static_cast<unsigned long long>(contents.shape.structure));
  graph.kernel.name = name;
  graph.kernel.name_hash = name_hash(name);
  graph.kernel.resident = kernels_.wide_only(name);
  graph.kernel.work =
      std::max<std::uint32_t>(1, static_cast<std::uint32_t>(contents.kernels.size()));
  graph.launch.grid = {contents.shape.nodes, 1, 1};
}

void Dispatcher::make(Lock& lock, const std::shared_ptr<Graph>& graph, EntryId entry,
                      bool may_wait) {
  if (may_wait) std::erase(graph->wanted, entry);
  if (graph->gone || graph->stays || !graph->looked || graph->ready(entry) != nullptr) return;
  const std::uint64_t version = graph->version;
  std::shared_ptr<hal::GraphExecutable> older;
  if (Graph::Made* stale = graph->find(entry)) older = stale->executable;
  std::vector<Graph::Made> dropped;
  if (older == nullptr) dropped = make_room(least_bytes(*graph), *graph);
  hal::PhysicalContext& context =
      options_.audit != nullptr ? Audit::watched(pool_.context(entry)) : pool_.context(entry);
  lock.unlock();
  dropped.clear();
  const std::uint64_t free_before = device_.free_bytes();
  hal::Result<std::shared_ptr<hal::GraphExecutable>> made = [&] {
    const Internal internal(device_);
    return graph->source->make(device_, context, older, may_wait);
  }();
  const std::uint64_t free_after = device_.free_bytes();
  lock.lock();
  if (graph->gone || graph->version != version) {
    lock.unlock();
    made = std::shared_ptr<hal::GraphExecutable>();
    older.reset();
    return lock.lock();
  }
  if (!made) {
    if (!may_wait && made.error().code == hal::Errc::kBusy) return want(graph, entry);
    // This entry's own refusal, or one that every entry will answer.
    if (device_.classify(made.error().native) == hal::Outcome::kEntryRefused)
      graph->kernel.refused.set(entry);
    else
      graph->stays = made.error().code == hal::Errc::kUnsupported ? GraphReason::kNodes
                                                                  : GraphReason::kRefused;
    return;
  }
  hal::GraphExecutable& executable = **made;
  if (older == *made) {
    graph->find(entry)->version = version;
    page_.graphs.updated.add();
    return;
  }
  executable.bytes = std::clamp(free_before - std::min(free_before, free_after),
                                least_bytes(*graph), most_bytes(*graph));
  std::erase_if(graph->made, [&](Graph::Made& one) {
    if (one.entry != entry) return false;
    drop(one);
    dropped.push_back(std::move(one));
    return true;
  });
  graph->made.push_back({entry, std::move(*made), version, ++graph_clock_});
  if (std::find(graphs_.begin(), graphs_.end(), graph.get()) == graphs_.end())
    graphs_.push_back(graph.get());
  graph_bytes_ += executable.bytes;
  page_.graphs.made.add();
  page_.graphs.held.add();
  page_.graphs.held_bytes.set(graph_bytes_);
  // It took more than anybody thought.
  auto more = make_room(0, *graph);
  std::move(more.begin(), more.end(), std::back_inserter(dropped));
  lock.unlock();
  dropped.clear();
  older.reset();
  lock.lock();
}

// Takes out what was launched longest ago, until so many bytes more are within the budget. What
// this graph was made last is left: else two of its launches would keep making it.
std::vector<Graph::Made> Dispatcher::make_room(std::uint64_t bytes, const Graph& but) {
  std::vector<Graph::Made> dropped;
  while (graph_bytes_ + bytes > options_.graph_bytes) {
    Graph* owner = nullptr;
    std::size_t oldest = 0;
    std::uint64_t used = std::numeric_limits<std::uint64_t>::max();
    for (Graph* graph : graphs_)
      for (std::size_t i = 0; i < graph->made.size(); ++i) {
        const bool newest = bytes == 0 && graph == &but && i + 1 == graph->made.size();
        if (newest || graph->made[i].used >= used) continue;
        owner = graph;
        oldest = i;
        used = graph->made[i].used;
      }
    if (owner == nullptr) break;
    drop(owner->made[oldest]);
    page_.graphs.evicted.add();
    dropped.push_back(std::move(owner->made[oldest]));
    owner->made.erase(owner->made.begin() + static_cast<std::ptrdiff_t>(oldest));
  }
  return dropped;
}

void Dispatcher::drop(Graph::Made& made) {
  graph_bytes_ -= made.executable->bytes;
  page_.graphs.held.set(page_.graphs.held.get() - 1);
  page_.graphs.held_bytes.set(graph_bytes_);
}

}  // namespace vitamin::runtime
