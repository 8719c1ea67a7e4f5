// SPDX-License-Identifier: Apache-2.0
//
// A graph: work that the application described once and launches as a whole.
//
// A launch of it can be bound to a partition if the backend can make an executable of the same
// nodes there (GraphSource). Both graphs are read back from the vendor and hashed; the executable
// is used only if the hashes are equal (GraphDescription).
//
// Threads: one thread at a time calls a GraphSource, whose functions never take the runtime's lock;
// an executable is launched under the rules of Queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "hal/content_hash.h"
#include "hal/device.h"

namespace vitamin::hal {

// What a graph is, independent of its handle and of the order in which its nodes are listed.
struct GraphShape {
  std::uint32_t nodes = 0, edges = 0;  // those of child graphs included
  std::uint64_t structure = 0;  // hash of node kinds, kernels, geometry, attributes, dependencies
  std::uint64_t arguments = 0;  // by an ArgumentHash
  std::uint64_t exact = 0;      // everything, to the byte
  friend bool operator==(const GraphShape&, const GraphShape&) = default;
};

// A graph as it was read back from the vendor.
struct GraphDescription {
  struct Node {
    std::uint64_t structure = 0, arguments = 0, exact = 0;
    std::uint64_t attributes = 0;        // of a kernel; also in `structure`
    std::uint32_t nodes = 1, edges = 0;  // more for a child graph
    friend bool operator==(const Node&, const Node&) = default;
  };
  struct Edge {
    std::uint32_t from = 0, to = 0;
    std::uint64_t data = 0;  // hash of the vendor's edge data
  };
  std::vector<Node> nodes;
  std::vector<Edge> edges;

  // The hash of each node includes all of its predecessors, so that two graphs of the same nodes
  // whose edges differ anywhere have different shapes.
  GraphShape shape() const {
    GraphShape shape;
    std::vector<std::vector<const Edge*>> out(nodes.size());
    std::vector<std::uint32_t> missing(nodes.size(), 0);
    for (const Edge& edge : edges) {
      out[edge.from].push_back(&edge);
      ++missing[edge.to];
    }
    std::vector<Node> past(nodes.size(), Node{0, 0, 0, 0, 0, 0});  // hashes of predecessors
    std::vector<std::uint32_t> ready;
    for (std::uint32_t i = 0; i < nodes.size(); ++i)
      if (missing[i] == 0) ready.push_back(i);
    for (std::size_t at = 0; at < ready.size(); ++at) {
      const Node& node = nodes[ready[at]];
      const Node& before = past[ready[at]];
      const Node now{folded(node.structure, before.structure, 0),
                     folded(node.arguments, before.arguments, 0),
                     folded(node.exact, before.exact, 0)};
      shape.structure += now.structure;
      shape.arguments += now.arguments;
      shape.exact += now.exact;
      shape.nodes += node.nodes;
      shape.edges += node.edges;
      for (const Edge* edge : out[ready[at]]) {
        Node& next = past[edge->to];
        next.structure += folded(now.structure, 1, edge->data);
        next.arguments += folded(now.arguments, 1, edge->data);
        next.exact += folded(now.exact, 1, edge->data);
        if (--missing[edge->to] == 0) ready.push_back(edge->to);
      }
    }
    shape.edges += static_cast<std::uint32_t>(edges.size());
    return shape;
  }

 private:
  static std::uint64_t folded(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
    ContentHash hash;
    for (const std::uint64_t word : {a, b, c}) hash.add(word);
    return hash.value();
  }
};

// An executable of a graph for one partition. Its destruction does not wait for launches of it that
// have not ended.
class GraphExecutable {
 public:
  virtual ~GraphExecutable() = default;
  // On a queue of its partition.
  virtual NativeStatus launch(Queue& queue) noexcept = 0;

  GraphShape shape;         // of the graph that it was made from, read back
  std::uint64_t bytes = 0;  // of device memory, as far as is known
};

// The kernels of a graph, by which the runtime decides where it can run.
struct GraphContents {
  GraphShape shape;
  // Of each kernel: handle, geometry and what else decides where it can run; no arguments.
  std::vector<KernelLaunch> kernels;
};

// What a GraphSource did when the application changed its executable.
enum class Followed : std::uint8_t {
  kNot,    // nothing: it is unknown what the executable holds
  kAnew,   // it holds another graph: an executable is brought up to date as one is made
  kNodes,  // the same to single nodes: an executable is brought up to date at the price of these
  // It holds another graph, which is known whether what it held before was or not. `kReplaced`: as
  // kAnew. `kReplacedAlike`: of the same kernels, as kNodes.
  kReplaced,
  kReplacedAlike,
};

// Whether a call may wait for calls of the application. Null: it does not. Else it waits until the
// flag is set.
using WaitsUntil = const std::atomic<bool>*;

// A graph of the application, in the state in which it was last instantiated or updated.
class GraphSource {
 public:
  virtual ~GraphSource() = default;
  // kUnsupported: it can run only on the stream to which the application launches it. kBusy: what
  // it holds now is unknown, but may be known once the application has changed it again.
  virtual Result<GraphContents> look(KernelInspector& inspector) = 0;
  // An executable of the same nodes for the partition `context`; it may be `older`, an executable
  // of an earlier state, after an update. kUnsupported: as look(); kInternal: the result is not the
  // same graph; kBusy: it would have to wait for the application's calls, and `waits` forbids it.
  virtual Result<std::shared_ptr<GraphExecutable>> make(KernelInspector& inspector,
                                                        PhysicalContext& context,
                                                        std::shared_ptr<GraphExecutable> older,
                                                        WaitsUntil waits) = 0;
  // The application's executable runs on the partition of whatever queue it is launched to, and
  // natively beside other launches of it: there is nothing to make, and make() is not called.
  virtual bool runs_anywhere() const { return false; }
};

}  // namespace vitamin::hal
