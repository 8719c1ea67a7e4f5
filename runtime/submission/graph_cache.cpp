// SPDX-License-Identifier: Apache-2.0
#include "runtime/submission/graph_cache.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>

#include "runtime/audit/audit.h"
#include "runtime/capture_safe_scope.h"

namespace vitamin::runtime {

using stats::GraphReason;

namespace {

// What an executable takes at least before one was made, and what it is believed to take at
// most: others may allocate while it is made.
constexpr std::uint64_t kLeastBytes = 16 << 10, kLeastNodeBytes = 2 << 10;
constexpr std::uint64_t kMostBytes = 1 << 20, kMostNodeBytes = 64 << 10;

std::uint64_t least_bytes(const Graph& graph) {
  return kLeastBytes + graph.shape.nodes * kLeastNodeBytes;
}
GraphReason reason_of(hal::Errc of_look) {
  switch (of_look) {
    case hal::Errc::kInvalidArgument:
      return GraphReason::kContexts;
    case hal::Errc::kBusy:
      return GraphReason::kFresh;
    default:
      return GraphReason::kRefused;
  }
}
std::uint64_t most_bytes(const Graph& graph) {
  return kMostBytes + graph.shape.nodes * kMostNodeBytes;
}

}  // namespace

// The worker gives up a wait for the application's calls meanwhile: these may wait for work that
// the calling thread is to end.
template <class Ended>
void GraphCache::wait_for_work(Lock& lock, Ended ended) {
  if (ended()) return;
  ++awaiting_;
  hurry_ = true;
  made_.wait(lock, ended);
  hurry_ = --awaiting_ > 0;
}

void GraphCache::hold() {
  const Lock lock(core_.mutex);
  ++held_;
}

void GraphCache::await_held() {
  Lock lock(core_.mutex);
  wait_for_work(lock, [&] { return in_work_ == 0; });
}

void GraphCache::release() {
  const Lock lock(core_.mutex);
  for (const Wanted& want : wanted_) {
    want.graph->wanted.clear();
    if (want.partition == kNoPartition) want.graph->asked = false;
  }
  wanted_.clear();
  if (--held_ == 0) made_.notify_all();
}

void GraphCache::await_released() {
  Lock lock(core_.mutex);
  made_.wait(lock, [&] { return held_ == 0; });
}

std::vector<Graph::Made> GraphCache::forget(Lock& lock, Graph& graph) {
  graph.gone = true;
  wait_for_work(lock, [&] { return !graph.in_work; });
  std::erase_if(wanted_, [&](const Wanted& want) { return want.graph.get() == &graph; });
  std::erase(graphs_, &graph);
  if (!graph.anywhere)
    for (Graph::Made& made : graph.made) drop(made);
  graph.last_stream = nullptr;
  graph.last.reset();
  graph.host_wait.reset();
  return std::exchange(graph.made, {});
}

void GraphCache::want(const std::shared_ptr<Graph>& graph, PartitionId partition) {
  if (graph->gone || finished_) return;
  if (partition != kNoPartition) {
    auto& wanted = graph->wanted;
    if (std::find(wanted.begin(), wanted.end(), partition) != wanted.end()) return;
    wanted.push_back(partition);
  }
  wanted_.push_back({graph, partition});
  core_.work.notify_one();
}

// What was wanted first is made first; the lock is dropped meanwhile.
void GraphCache::make_wanted(Lock& lock) {
  while (awaited() && !core_.stopping) {
    const Wanted want = std::move(wanted_.front());
    wanted_.erase(wanted_.begin());
    ++in_work_;
    made_.wait(lock, [&] { return !want.graph->in_work; });
    work(lock, want, &hurry_);
  }
}

// What another thread works at is not waited for: the worker may have to wait for a call of the
// application.
void GraphCache::prepare(Lock& lock, const std::shared_ptr<Graph>& graph, PartitionId partition) {
  if (!works() || core_.stopping || graph->in_work) return;
  ++in_work_;
  work(lock, {graph, partition}, nullptr);
}

void GraphCache::work(Lock& lock, const Wanted& want, hal::WaitsUntil waits) {
  want.graph->in_work = true;
  if (want.partition == kNoPartition)
    look_at(lock, want.graph);
  else
    make(lock, want.graph, want.partition, waits);
  want.graph->in_work = false;
  --in_work_;
  made_.notify_all();
}

void GraphCache::finish() {
  Lock lock(core_.mutex);
  finished_ = true;
  wait_for_work(lock, [&] { return in_work_ == 0; });
}

void GraphCache::look_at(Lock& lock, const std::shared_ptr<Graph>& graph) {
  if (graph->gone) return;  // while the worker waited for another thread's work at it
  const std::uint64_t version = graph->version;
  lock.unlock();
  const hal::Result<hal::GraphContents> contents = [&] {
    const CaptureSafeScope safe(core_.device);
    return graph->source->look(core_.inspector);
  }();
  lock.lock();
  if (graph->gone || graph->version != version) return;
  if (contents)
    describe(*graph, *contents);
  else
    graph->stays = reason_of(contents.error().code);
  graph->looked = true;
}

// What no launch of one of its kernels could have, the whole cannot have either.
void GraphCache::describe(Graph& graph, const hal::GraphContents& contents) {
  graph.shape = contents.shape;
  graph.needed = 1;
  graph.ends_by_itself = true;
  graph.libraries.clear();
  if (graph.stays == GraphReason::kCollective || graph.stays == GraphReason::kNarrow ||
      graph.stays == GraphReason::kMemory)
    graph.stays.reset();
  for (const hal::KernelLaunch& launch : contents.kernels) {
    Kernel& kernel = core_.kernels.find(launch.kernel);
    graph.needed = std::max(graph.needed, kernel.sms_needed(core_.device, launch));
    if (kernel.collective || (core_.options.cooperative_collective && launch.cooperative)) {
      graph.stays = GraphReason::kCollective;
      graph.ends_by_itself = false;
    }
    const auto known = std::find_if(graph.libraries.begin(), graph.libraries.end(),
                                    [&](const auto& one) { return one.first == kernel.library; });
    if (known != graph.libraries.end())
      ++known->second;
    else
      graph.libraries.emplace_back(kernel.library, 1);
  }
  if (graph.needed > widest_ && !graph.stays) graph.stays = GraphReason::kNarrow;
  if (!graph.anywhere && least_bytes(graph) > core_.options.graph_bytes && !graph.stays)
    graph.stays = GraphReason::kMemory;
  // Of a vendor that takes the nodes one by one. A larger graph is launched all the same, as
  // natively, and may block the caller then.
  if (graph.anywhere)
    graph.places =
        std::clamp<std::uint64_t>(graph.shape.nodes, 1, core_.device.info().queue_depth / 2);
  char name[64];
  std::snprintf(name, sizeof name, "graph of %u nodes (%016llx)", contents.shape.nodes,
                static_cast<unsigned long long>(contents.shape.structure));
  graph.kernel.name = name;
  graph.kernel.name_hash = name_hash(name);
  graph.kernel.resident = core_.kernels.is_resident(name);
  graph.kernel.work =
      std::max<std::uint32_t>(1, static_cast<std::uint32_t>(contents.kernels.size()));
  graph.launch.grid = {contents.shape.nodes, 1, 1};
}

void GraphCache::make(Lock& lock, const std::shared_ptr<Graph>& graph, PartitionId partition,
                      hal::WaitsUntil waits) {
  if (waits != nullptr) std::erase(graph->wanted, partition);
  if (graph->gone || graph->stays || !graph->looked || graph->ready(partition) != nullptr) return;
  const std::uint64_t version = graph->version;
  std::shared_ptr<hal::GraphExecutable> older;
  if (Graph::Made* stale = graph->find(partition)) older = stale->executable;
  std::vector<Graph::Made> dropped;
  if (older == nullptr) dropped = make_room(least_bytes(*graph), *graph);
  hal::PhysicalContext& context = core_.options.audit != nullptr
                                      ? Audit::watched(core_.pool.context(partition))
                                      : core_.pool.context(partition);
  lock.unlock();
  dropped.clear();
  const std::uint64_t free_before = core_.device.free_bytes();
  hal::Result<std::shared_ptr<hal::GraphExecutable>> made = [&] {
    const CaptureSafeScope safe(core_.device);
    return graph->source->make(core_.inspector, context, older, waits);
  }();
  const std::uint64_t free_after = core_.device.free_bytes();
  lock.lock();
  // What was made of a version that has passed meanwhile is kept: it is brought up to date sooner
  // than another is made.
  const bool passed = graph->version != version;
  if (graph->gone || (passed && (!made || older == *made || graph->unsettled()))) {
    lock.unlock();
    made = std::shared_ptr<hal::GraphExecutable>();
    older.reset();
    return lock.lock();
  }
  if (!made) {
    if (made.error().code == hal::Errc::kBusy) return want(graph, partition);
    // This partition's own refusal, or one that every partition will answer.
    if (core_.errors.classify(made.error().native) == hal::Outcome::kPartitionRefused)
      graph->kernel.refused.set(partition);
    else
      graph->stays = made.error().code == hal::Errc::kUnsupported ? GraphReason::kNodes
                                                                  : GraphReason::kRefused;
    return;
  }
  hal::GraphExecutable& executable = **made;
  if (older == *made) {
    core_.page.graphs.updated.add();
    if (Graph::Made* known = graph->find(partition)) {
      known->version = version;
      return;
    }
    // It went meanwhile, to make room for another graph's: as if it were made anew.
  } else {
    executable.bytes = std::clamp(free_before - std::min(free_before, free_after),
                                  least_bytes(*graph), most_bytes(*graph));
  }
  std::erase_if(graph->made, [&](Graph::Made& one) {
    if (one.partition != partition) return false;
    drop(one);
    dropped.push_back(std::move(one));
    return true;
  });
  graph->made.push_back({partition, std::move(*made), version, ++clock_});
  if (std::find(graphs_.begin(), graphs_.end(), graph.get()) == graphs_.end())
    graphs_.push_back(graph.get());
  bytes_ += executable.bytes;
  core_.page.graphs.made.add();
  core_.page.graphs.held.add();
  core_.page.graphs.held_bytes.set(bytes_);
  // It took more than was believed.
  auto more = make_room(0, *graph);
  std::move(more.begin(), more.end(), std::back_inserter(dropped));
  lock.unlock();
  dropped.clear();
  older.reset();
  lock.lock();
}

// Takes out what was launched longest ago, until so many bytes more are within the budget. What
// this graph was made last is left: else two of its launches would keep making it.
std::vector<Graph::Made> GraphCache::make_room(std::uint64_t bytes, const Graph& but) {
  std::vector<Graph::Made> dropped;
  while (bytes_ + bytes > core_.options.graph_bytes) {
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
    core_.page.graphs.evicted.add();
    dropped.push_back(std::move(owner->made[oldest]));
    owner->made.erase(owner->made.begin() + static_cast<std::ptrdiff_t>(oldest));
  }
  return dropped;
}

void GraphCache::drop(Graph::Made& made) {
  bytes_ -= made.executable->bytes;
  core_.page.graphs.held.set(core_.page.graphs.held.get() - 1);
  core_.page.graphs.held_bytes.set(bytes_);
}

}  // namespace vitamin::runtime
