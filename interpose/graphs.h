// SPDX-License-Identifier: Apache-2.0
//
// Captures and graphs. What is captured belongs to the graph and never comes to the runtime. A
// graph's launch is one operation, which follows the allocation where the vendor has a way
// (runtime/graph.h); else it is work of the whole device on the program's own stream.
#pragma once

#include <memory>
#include <optional>

#include "interpose/call_wrappers.h"
#include "interpose/hook.h"
#include "runtime/graph.h"

namespace vitamin::interpose {

// An executable graph whose launches may follow the allocation.
struct FollowedGraph {
  virtual ~FollowedGraph() = default;
  // What the application's executable holds, for the audit; empty: not asked for.
  virtual std::optional<hal::GraphShape> asked() const { return std::nullopt; }
  // Something that its nodes name is about to be destroyed: what was put off is done before.
  virtual void catch_up() {}

  Context* context = nullptr;  // of its kernels
  std::shared_ptr<runtime::Graph> graph;
};

// What is known of an executable graph. Unknown ones are taken for the worst.
struct GraphRecord {
  bool host_wait = true;                    // the host or another device must act before it ends
  bool waits_events = true;                 // events of the application, when it is launched
  std::shared_ptr<FollowedGraph> followed;  // null: it stays on the whole device, because:
  runtime::stats::GraphReason stays = runtime::stats::GraphReason::kUnknown;
};

enum class NodeKind : std::uint8_t {
  kWork,        // ends by itself
  kStays,       // the same, and runs only where the application put it
  kGraph,       // of nodes of its own
  kWaitsEvent,  // of the application's
  kHostWait,    // host functions, value waits, semaphores, and what is newer than this code
  kUnreadable,
};
// By the vendor. `child`: set for kGraph.
NodeKind kind_of(GraphNode node, Graph& child);
// By the vendor: how many nodes, and, with `nodes`, which; not kSuccess: it does not tell.
ApiStatus nodes_of(Graph graph, GraphNode* nodes, std::size_t& count);
// By the vendor: what it takes to follow the allocation with a graph that was instantiated with
// these flags; null: it stays, because `stays`.
std::shared_ptr<FollowedGraph> follow(Graph graph, std::uint64_t flags,
                                      runtime::stats::GraphReason& stays);

// After the vendor's instantiation answered.
ApiStatus graph_instantiated(ApiStatus answer, const GraphExec* executable, Graph graph,
                             std::uint64_t flags);
// Null: its launches do not follow.
std::shared_ptr<FollowedGraph> followed_graph(GraphExec executable);
// The context goes away.
void forget_graphs(const Context& context);
// While one is there no thread of ours works at a graph (GraphCache::hold). For the vendor's call
// that destroys what nodes name, code or an array, and behind what waits for submitted work: only
// the call itself.
class GraphsQuiesced {
 public:
  GraphsQuiesced();
  ~GraphsQuiesced();
  GraphsQuiesced(const GraphsQuiesced&) = delete;
  GraphsQuiesced& operator=(const GraphsQuiesced&) = delete;
  // How many there have been.
  static const std::atomic<std::uint64_t>& count() { return count_; }

 private:
  static constinit std::atomic<std::uint64_t> count_;
  runtime::VirtualContext* held_[kMaxContexts] = {};
};
// What is deferred anywhere is flushed first (Flushed), and no graph is worked at meanwhile.
struct FlushedAndQuiesced {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    return flush_deferred_then([&] {
      const GraphsQuiesced quiesced;
      return hal::NativeStatus(entry.real(args...));
    });
  }
};
// A graph that records an event does so whenever it is launched: the calls do not tell when.
void note_recorded(NativeEvent event);

template <class Call>
ApiStatus begin_capture_with(NativeStream stream, bool per_thread, Call call) {
  const Destination destination = destination_of(stream, per_thread);
  // The legacy stream cannot be captured, and a stream that is captured already not again.
  if (destination.route == Route::kForeign || destination.record->legacy) {
    capture_begins(stream);
    const ApiStatus answer = call(stream);
    if (answer != kSuccess) capture_did_not_begin(stream);
    return answer;
  }
  if (destination.route == Route::kCaptured) return call(destination.native());
  auto operation = runtime::call(
      [&](void* native) { return hal::NativeStatus(call(static_cast<NativeStream>(native))); },
      Keep::kNo);
  const NativeStream native = destination.native();
  const ReentrancyGuard ours;
  capture_begins(native);
  const ApiStatus answer =
      result(destination.context().begin_capture(destination.stream(), operation));
  if (answer != kSuccess) capture_did_not_begin(native);
  return answer;
}

// --- treatments ----------------------------------------------------------------------------------

// (stream, ...)
struct BeginsCapture {
  template <class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(NativeStream, Rest...)> entry, NativeStream stream,
                       Rest... rest) {
    return begin_capture_with(stream, entry.per_thread,
                              [&](NativeStream native) { return entry.real(native, rest...); });
  }
};

// (executable, graph, ...)
struct Instantiates {
  template <class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(GraphExec*, Graph, Rest...)> entry,
                       GraphExec* executable, Graph graph, Rest... rest) {
    const std::uint64_t flags = instantiation_flags(rest...);  // by the vendor
    return graph_instantiated(entry.real(executable, graph, rest...), executable, graph, flags);
  }
};

// The event that an argument makes a graph record: the vendor's vendor_traits.h knows of more than
// these.
inline NativeEvent recorded_event(NativeEvent event) { return event; }
template <class T>
NativeEvent recorded_event(T) {
  return nullptr;
}

struct RecordsInGraph {
  template <class... Args>
  static ApiStatus run(EntryPoint<ApiStatus(Args...)> entry, Args... args) {
    (note_recorded(recorded_event(args)), ...);
    return entry.real(args...);
  }
};

// (executable, ...): changes what its launches do. `kFollow`: (followed, answer, ...), by the
// vendor, does the same to what is followed, and says how.
template <auto kFollow>
struct ChangesGraph {
  template <class... Rest>
  static ApiStatus run(EntryPoint<ApiStatus(GraphExec, Rest...)> entry, GraphExec executable,
                       Rest... rest) {
    (note_recorded(recorded_event(rest)), ...);
    const std::shared_ptr<FollowedGraph> followed = followed_graph(executable);
    if (followed == nullptr) return entry.real(executable, rest...);
    const ReentrancyGuard ours;
    return result(followed->context->virtual_context->change(
        *followed->graph, [&] { return hal::NativeStatus(entry.real(executable, rest...)); },
        [&](hal::NativeStatus answer) { return kFollow(*followed, result(answer), rest...); }));
  }
};

}  // namespace vitamin::interpose
