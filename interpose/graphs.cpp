// SPDX-License-Identifier: Apache-2.0
#include "interpose/graphs.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "interpose/advice.h"
#include "interpose/handle_map.h"
#include "interpose/manual_overrides.h"

namespace vitamin::interpose {
namespace {

using runtime::stats::GraphReason;

constinit HandleMap<GraphRecord> graphs;

// Adds what the nodes of a graph need.
void look_at(Graph graph, GraphRecord& record, int depth) {
  constexpr int kDeepest = 16;
  std::size_t count = 0;
  if (depth > kDeepest || nodes_of(graph, nullptr, count) != kSuccess) {
    record = {};
    return;
  }
  std::vector<GraphNode> nodes(count);
  if (count > 0) static_cast<void>(nodes_of(graph, nodes.data(), count));
  for (const GraphNode node : nodes) {
    Graph child{};
    switch (kind_of(node, child)) {
      case NodeKind::kWork:
        break;
      case NodeKind::kStays:
        record.stays = GraphReason::kNodes;
        break;
      case NodeKind::kGraph:
        look_at(child, record, depth + 1);
        break;
      case NodeKind::kWaitsEvent:
        record.waits_events = record.host_wait = true;
        record.stays = GraphReason::kNodes;
        break;
      case NodeKind::kHostWait:
        record.host_wait = true;
        record.stays = GraphReason::kNodes;
        break;
      case NodeKind::kUnreadable:
        record = {};
        break;
    }
  }
}

// A launch that the pipeline places. Everything that it holds is a value: launches that wait are
// submitted before the application's next change of the executable, or its end.
class GraphLaunch final : public runtime::GraphOperation {
 public:
  GraphLaunch(EntryPoint<ApiStatus(GraphExec, NativeStream)> entry, GraphExec executable,
              std::shared_ptr<FollowedGraph> followed, std::optional<GraphReason> stays)
      : GraphOperation(followed->graph, stays, current_advice()),
        entry_(entry),
        executable_(executable),
        followed_(std::move(followed)),
        asked_(followed_->asked()) {}
  std::unique_ptr<runtime::Operation> keep() const override {
    return std::make_unique<GraphLaunch>(*this);
  }
  std::optional<hal::GraphShape> asked() const override { return asked_; }

 private:
  hal::NativeStatus launch_own(void* native) noexcept override {
    const CurrentContext current(followed_->context->handle);
    return hal::NativeStatus(entry_.real(executable_, static_cast<NativeStream>(native)));
  }
  EntryPoint<ApiStatus(GraphExec, NativeStream)> entry_;
  GraphExec executable_;
  std::shared_ptr<FollowedGraph> followed_;
  std::optional<hal::GraphShape> asked_;
};

void release(GraphRecord* record) {
  if (record != nullptr && record->followed != nullptr)
    record->followed->context->virtual_context->forget(*record->followed->graph);
  delete record;
}

}  // namespace

ApiStatus graph_instantiated(ApiStatus answer, const GraphExec* executable, Graph graph,
                             std::uint64_t flags) {
  if (answer != kSuccess) return answer;
  auto* record = new GraphRecord{false, false, nullptr, GraphReason::kCount};
  look_at(graph, *record, 0);
  const ReentrancyGuard ours;
  if (record->stays == GraphReason::kCount) record->followed = follow(graph, flags, record->stays);
  release(graphs.insert(*executable, record));
  return answer;
}

std::shared_ptr<FollowedGraph> followed_graph(GraphExec executable) {
  const GraphRecord* known = graphs.find(executable);
  return known == nullptr ? nullptr : known->followed;
}

void forget_graphs(const Context& context) {
  graphs.for_each([&](GraphRecord& record) {
    if (record.followed == nullptr || record.followed->context != &context) return;
    context.virtual_context->forget(*record.followed->graph);
    record.followed.reset();
    record.stays = GraphReason::kContexts;
  });
}

constinit std::atomic<std::uint64_t> GraphsQuiesced::count_{0};

GraphsQuiesced::GraphsQuiesced() {
  {
    const std::lock_guard lock(registry_mutex());  // a context is not torn down meanwhile
    std::size_t held = 0;
    for_each_context([&](Context& context) {
      held_[held++] = context.virtual_context.get();
      context.virtual_context->hold_graphs();
    });
  }
  for (runtime::VirtualContext* const context : held_)
    if (context != nullptr) context->await_held_graphs();
  graphs.for_each([](GraphRecord& record) {
    if (record.followed != nullptr) record.followed->catch_up();
  });
  count_.fetch_add(1);
}

GraphsQuiesced::~GraphsQuiesced() {
  for (runtime::VirtualContext* const context : held_)
    if (context != nullptr) context->release_graphs();
}

void note_recorded(NativeEvent event) {
  if (event != nullptr) mark_shared(find_event(event));
}

ApiStatus end_capture(EntryPoint<ApiStatus(NativeStream, Graph*)> entry, NativeStream stream,
                      Graph* graph) {
  const StreamRecord* record = known_stream(stream, entry.per_thread);
  const NativeStream native =
      record == nullptr || record->legacy ? stream : record->context->native(*record);
  const ApiStatus answer = entry.real(native, graph);
  // Also a capture that was broken has ended now, with an error.
  capture_may_have_ended(native, false);
  return answer;
}

ApiStatus graph_launch(EntryPoint<ApiStatus(GraphExec, NativeStream)> entry, GraphExec graph,
                       NativeStream stream) {
  const Destination destination = destination_of(stream, entry.per_thread);
  const GraphRecord* known = graphs.find(graph);
  const GraphRecord record = known != nullptr ? *known : GraphRecord{};
  // Events that the graph waits for must have been recorded for real.
  if (record.waits_events) flush_deferred();
  const bool here = record.followed != nullptr && destination.route == Route::kManaged &&
                    record.followed->context == destination.record->context;
  // Behind launches of it that wait in its own context, also where the vendor takes the executable
  // for something else than a launch.
  if (record.followed != nullptr && !here) {
    const ReentrancyGuard ours;
    record.followed->context->virtual_context->submit_launches(*record.followed->graph);
  }
  if (destination.route == Route::kForeign) return entry.real(graph, stream);
  if (destination.route == Route::kCaptured) return entry.real(graph, destination.native());
  const ReentrancyGuard ours;
  // A legacy operation goes to the real stream while any thread captures.
  const bool real_legacy = captures_open() && destination.record->legacy;
  const auto stays = real_legacy                    ? std::optional(GraphReason::kCapture)
                     : destination.record->confined ? std::optional(GraphReason::kConfined)
                                                    : std::nullopt;
  if (here) {
    GraphLaunch launch(entry, graph, record.followed, stays);
    return result(destination.context().launch_graph(destination.stream(), launch));
  }
  auto operation = runtime::call(
      [&](void* native) {
        return hal::NativeStatus(entry.real(graph, static_cast<NativeStream>(native)));
      },
      Keep::kNo);
  return result(destination.context().bridge_graph(
      destination.stream(), operation, record.host_wait ? CallKind::kHostWait : CallKind::kWork,
      record.followed != nullptr ? GraphReason::kContexts : stays.value_or(record.stays),
      current_advice()));
}

ApiStatus graph_exec_destroy(EntryPoint<ApiStatus(GraphExec)> entry, GraphExec executable) {
  const std::unique_ptr<GraphRecord> record(graphs.erase(executable));
  if (record == nullptr || record->followed == nullptr) return entry.real(executable);
  const ReentrancyGuard ours;
  return result(record->followed->context->virtual_context->destroy(
      *record->followed->graph, [&] { return hal::NativeStatus(entry.real(executable)); }));
}

}  // namespace vitamin::interpose
