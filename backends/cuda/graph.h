// SPDX-License-Identifier: Apache-2.0
//
// A CUDA graph of the application and executables of the same nodes for partitions.
//
// Kernel nodes run on the SMs of the context that they belong to, whatever stream the graph
// is launched into, and the context of an instantiated node cannot change (measured on an H200:
// error 1, and 910 for an update). So the graph is cloned when the application instantiates or
// updates it, and for a partition the clone is cloned again and its kernel nodes are moved: by
// parameters that name the kernel (`func` null, `kern`, `ctx`) or, where there is only a function
// of a module, with which `ctx` is ignored, by capturing the same launch on a stream of the
// partition. Copies and fills keep their context: they take no part of the device that we hand out.
//
// Every moved graph is read back and compared with the application's before it is used.
#pragma once

#include <atomic>
#include <bitset>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backends/cuda/api.h"
#include "backends/cuda/copied_arguments.h"
#include "backends/cuda/graph_outline.h"
#include "hal/graph.h"

namespace vitamin::cuda {

// Attributes of kernel nodes are asked for up to here, with room for newer ones: the driver refuses
// numbers that it does not know.
inline constexpr int kAttributes = 32;
using AttributeSet = std::bitset<kAttributes>;

inline constexpr int kGraphDepthMax = 16;  // of graphs inside graphs

// What the driver tells of kernels: asked once for each of them, however many nodes have it. Used
// while no code can be unloaded: later its handle may be that of another kernel.
class KernelFacts {
 public:
  explicit KernelFacts(hal::KernelInspector& inspector) : inspector_(inspector) {}

  std::uint64_t name(hal::KernelHandle kernel);  // its hash
  const hal::Result<hal::KernelLayout>& layout(hal::KernelHandle kernel);
  // Whether what the driver calls a function is a kernel of a library, as those of cudart are.
  bool is_kernel(const Api& api, CUfunction function);

 private:
  struct Facts {
    std::optional<std::uint64_t> name;
    std::optional<hal::Result<hal::KernelLayout>> layout;
    std::optional<bool> is_kernel;
  };
  hal::KernelInspector& inspector_;
  std::unordered_map<hal::KernelHandle, Facts> known_;
};

// A graph in hashes, and what its kernels need, from the driver's own answers.
struct GraphReading {
  hal::GraphDescription description;
  std::vector<CUgraphNode> handles;  // of description.nodes
  // Of all kernel nodes, those of graphs inside it, too, in the order of `handles`; and for each of
  // these where its kernels end.
  std::vector<hal::KernelLaunch> kernels;
  std::vector<CUcontext> contexts;
  std::vector<std::size_t> kernels_end;
  AttributeSet attributes;  // that some kernel node told
};

// Describes graphs and nodes. Borrows what it is made of, and remembers kernels (KernelFacts).
class GraphReader {
 public:
  GraphReader(const Api& api, hal::KernelInspector& inspector, hal::ArgumentHash hash)
      : api_(api), hash_(hash), kernels_(inspector) {
    asked_.set();
  }

  // Of kernel nodes no other attributes are asked for.
  void ask_for(const AttributeSet& attributes) { asked_ = attributes; }
  KernelFacts& kernels() const { return kernels_; }

  // kUnsupported: it holds something that is not read here.
  hal::Result<GraphReading> read(CUgraph graph) const;
  // One node: description.nodes[0], and its kernels.
  hal::Result<GraphReading> read_node(CUgraphNode node) const;
  // A node that holds this graph.
  hal::Result<hal::GraphDescription::Node> read_child(CUgraph graph) const;
  // Reads node `at` again, after its parameters changed. Attributes are no parameters: those of a
  // kernel node are asked for again with `attributes` only. False: the node has another kernel or
  // other attributes now, read all anew.
  hal::Result<bool> read_again(GraphReading& reading, std::size_t at, bool attributes) const;
  // A kernel node with these parameters and attributes (GraphDescription::Node::attributes).
  hal::Result<hal::GraphDescription::Node> kernel(const CUDA_KERNEL_NODE_PARAMS& parameters,
                                                  std::uint64_t attributes) const;
  hal::GraphDescription::Node copy(const CUDA_MEMCPY3D& box) const;
  hal::GraphDescription::Node fill(const CUDA_MEMSET_NODE_PARAMS& fill) const;

 private:
  class Walk;
  const Api& api_;
  hal::ArgumentHash hash_;
  AttributeSet asked_;
  mutable KernelFacts kernels_;
};

// Whether the driver has all that this needs.
bool has_graphs(const Api& api);

// No capture of ours may be open while the application makes a call that concerns a whole context:
// the driver refuses such a call then (capture_relaxed_same_thread.trace).
class CaptureGuard {
 public:
  virtual ~CaptureGuard() = default;
  enum class Locked { kYes, kBusy, kNoMore };
  // Waits as long as such a call lasts, or kBusy. kNoMore: there will be no captures any more.
  // unlock() belongs to kYes alone.
  virtual Locked lock(hal::WaitsUntil waits) = 0;
  virtual void unlock() = 0;
};

struct RememberOptions {
  unsigned long long flags = 0;      // that the application instantiated it with
  CUcontext context = nullptr;       // of the kernel nodes of graphs that may move
  CaptureGuard* captures = nullptr;  // null: no other code makes calls
  hal::ArgumentHash hash = nullptr;  // required
  // Counts the calls that destroyed what nodes name, which is told by catch_up() before; null: none
  // are made. Handles may be given out again then, and what named the old ones is not read again.
  const std::atomic<std::uint64_t>* destroyed = nullptr;
};

class ExecutableGraph;

// Threads: any; it has a lock of its own.
class RememberedGraph final : public hal::GraphSource {
 public:
  static hal::Result<std::shared_ptr<RememberedGraph>> clone(const Api& api, CUgraph graph,
                                                             const RememberOptions& options);
  ~RememberedGraph() override;

  hal::Result<hal::GraphContents> look(hal::KernelInspector& inspector) override;
  hal::Result<std::shared_ptr<hal::GraphExecutable>> make(
      hal::KernelInspector& inspector, hal::PhysicalContext& partition,
      std::shared_ptr<hal::GraphExecutable> older, hal::WaitsUntil waits) override;

  // What the application did to its executable. Nodes are those of the graph that it was made from,
  // also after it was updated from another one
  // (graph_nodes_name_their_executable_after_an_update.trace).
  // `keep_names`: a second clone may be kept, without which no node is known any more.
  hal::Followed replace(CUgraph graph, bool keep_names);
  // Done to the clone when that is looked at next (later_); a child graph at once or not at all
  // (children_set_).
  hal::Followed set_kernel(hal::KernelInspector& inspector, CUgraphNode node,
                           CUDA_KERNEL_NODE_PARAMS parameters);
  hal::Followed set_copy(CUgraphNode node, const CUDA_MEMCPY3D& box);
  hal::Followed set_fill(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS& fill);
  hal::Followed set_child(CUgraphNode node, CUgraph child);
  hal::Followed set_enabled(CUgraphNode node, bool enabled);
  // Something that nodes name is about to be destroyed: what was put off is done while it is there.
  void catch_up();

 private:
  RememberedGraph(const Api& api, CUgraph graph, const RememberOptions& options)
      : api_(api), options_(options), graph_(graph), destroyed_(destroyed()) {}
  // What the application calls `node`; null: that is not known for sure.
  CUgraphNode own_node(CUgraphNode node);
  bool index_names();
  bool names_known();
  hal::Status read(hal::KernelInspector& inspector);
  hal::Followed set_kernel_now(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS parameters);
  hal::Followed set_child_now(CUgraphNode node, CUgraph child);
  void do_later();
  std::uint64_t destroyed() const {
    return options_.destroyed != nullptr ? options_.destroyed->load() : 0;
  }
  void forget_reading();
  hal::Followed changed(CUgraphNode own, CUresult status);
  bool bring_up_to_date(ExecutableGraph& executable);
  bool read_from_now_on(const GraphOutline& before);

  const Api& api_;
  const RememberOptions options_;
  std::mutex mutex_;
  const hal::LockRule::Watched watched_{mutex_, "the lock of a graph is held"};
  CUgraph graph_;
  // What the application's kernel nodes have become since graph_ was looked at, by the
  // application's names. XLA sets every kernel of a graph before each launch: where no part is
  // used, nothing of it is ever done to graph_.
  struct Later {
    CUDA_KERNEL_NODE_PARAMS parameters;
    CopiedArguments arguments;
    std::uint64_t destroyed = 0;  // destroyed() before: the kernel is still what it was
  };
  std::unordered_map<CUgraphNode, Later> later_;
  bool lost_ = false;  // one of them could not be done
  // The nodes whose child graph the application set, by its names, and how often graph_ had been
  // read then. One that is set again although nothing has read graph_ since is left out, and graph_
  // is unknown until it is set once more behind a read: XLA sets every child graph before each
  // launch, and to keep one costs as much as to set it.
  struct ChildSet {
    std::uint64_t reads = 0;
    bool left_out = false;
  };
  std::unordered_map<CUgraphNode, ChildSet> children_set_;
  std::uint64_t reads_ = 0;
  std::vector<CUgraphNode> disabled_;    // of graph_
  bool disabled_unknown_ = false;        // an update leaves disabled nodes disabled
  bool alike_ = true;                    // the last update was from a graph of the same kernels
  std::optional<GraphOutline> outline_;  // of graph_, once it was asked for
  // Nodes of the application, and where in the outline, whose clones were replaced.
  std::vector<std::pair<CUgraphNode, std::size_t>> replaced_;
  // By what the application's nodes are found once graph_ is the clone of another graph than that
  // which it instantiated: the clone of that one, and its nodes.
  struct Names {
    CUgraph graph = nullptr;
    // What follows is made when a name is asked for.
    std::optional<GraphOutline> outline;
    std::unordered_map<CUgraphNode, std::size_t> index;  // of outline->nodes
    std::vector<bool> distinct;
    std::optional<bool> known;  // graph_ has the same nodes
  };
  std::unique_ptr<Names> names_;
  // Of graph_, but for the nodes `unread_`; none: it was not read since it was cloned, unless from
  // a graph of the same kernels.
  std::optional<GraphReading> reading_;
  std::unordered_map<CUgraphNode, std::size_t> index_;  // of its handles
  std::vector<std::size_t> unread_;
  bool unread_all_ = false;  // and attributes, too
  // By which change each of its nodes came to be as it is; and the number of the last one.
  std::vector<std::uint64_t> changed_in_;
  std::uint64_t changes_ = 0;
  std::uint64_t read_in_ = 0;   // the last one that the reading knows
  std::uint64_t readings_ = 0;  // how often all of it was read
  // In which reading, and with which of its attributes, a graph was made for a partition and every
  // attribute of it was asked for. Which ones kernel nodes tell is the driver's, not the
  // partition's, so for others those are asked for that the source tells.
  std::optional<std::pair<std::uint64_t, AttributeSet>> compared_;
  std::uint64_t destroyed_ = 0;  // destroyed() when graph_ became what it is
  hal::GraphShape shape_;        // if nothing is unread
};

}  // namespace vitamin::cuda
