// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/graph.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "backends/cuda/green_context.h"
#include "backends/cuda/moved_graph.h"
#include "backends/cuda/status.h"

namespace vitamin::cuda {

class ExecutableGraph final : public hal::GraphExecutable {
 public:
  ExecutableGraph(const Api& api, CUgraphExec executable, bool updatable)
      : api_(api), executable_(executable), updatable_(updatable) {}
  ~ExecutableGraph() override { api_.cuGraphExecDestroy(executable_); }
  ExecutableGraph(const ExecutableGraph&) = delete;
  ExecutableGraph& operator=(const ExecutableGraph&) = delete;

  hal::NativeStatus launch(hal::Queue& queue) noexcept override {
    return api_.cuGraphLaunch(executable_, static_cast<CUstream>(queue.native()));
  }
  bool updatable() const { return updatable_; }
  bool update(CUgraph graph) {
    CUgraphExecUpdateResultInfo result{};
    return updatable_ && api_.cuGraphExecUpdate_v2(executable_, graph, &result) == CUDA_SUCCESS;
  }

  // What it was made from, in the state of one reading of its source and the changes up to one.
  // Null: not kept. It takes about a kilobyte of the host's memory for a node, so that of a graph
  // whose nodes never changed is not kept.
  std::unique_ptr<MovedGraph> moved;
  std::uint64_t reading = 0, change = 0;
  std::uint64_t destroyed = 0;  // RememberOptions::destroyed, when its nodes were made

 private:
  const Api& api_;
  CUgraphExec executable_;
  bool updatable_;  // no node of it was disabled
};

bool has_graphs(const Api& api) {
  return api.cuGraphClone && api.cuGraphDestroy && api.cuGraphDestroyNode && api.cuGraphGetNodes &&
         api.cuGraphGetEdges_v2 && api.cuGraphAddDependencies_v2 && api.cuGraphNodeGetType &&
         api.cuGraphNodeFindInClone && api.cuGraphNodeSetEnabled &&
         api.cuGraphChildGraphNodeGetGraph && api.cuGraphAddChildGraphNode &&
         api.cuGraphKernelNodeGetParams_v2 && api.cuGraphKernelNodeSetParams_v2 &&
         api.cuGraphKernelNodeGetAttribute && api.cuGraphKernelNodeSetAttribute &&
         api.cuGraphMemcpyNodeGetParams && api.cuGraphMemcpyNodeSetParams &&
         api.cuGraphMemsetNodeGetParams && api.cuGraphMemsetNodeSetParams &&
         api.cuGraphInstantiateWithFlags && api.cuGraphExecUpdate_v2 && api.cuGraphExecDestroy &&
         api.cuGraphLaunch && api.cuStreamBeginCaptureToGraph && api.cuStreamEndCapture &&
         api.cuStreamGetCaptureInfo_v3 && api.cuKernelGetParamInfo && api.cuFuncGetParamInfo;
}

namespace {

bool is_child_graph(const Api& api, CUgraphNode node) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  return api.cuGraphNodeGetType(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH;
}

}  // namespace

hal::Result<std::shared_ptr<RememberedGraph>> RememberedGraph::clone(
    const Api& api, CUgraph graph, const RememberOptions& options) {
  CUgraph copy = nullptr;
  if (const CUresult status = api.cuGraphClone(&copy, graph); status != CUDA_SUCCESS)
    return failed("a graph cannot be cloned", status);
  return std::shared_ptr<RememberedGraph>(new RememberedGraph(api, copy, options));
}

RememberedGraph::~RememberedGraph() {
  api_.cuGraphDestroy(graph_);
  if (names_) api_.cuGraphDestroy(names_->graph);
}

// Makes the reading that of the graph as it is now.
hal::Status RememberedGraph::read(hal::KernelInspector& inspector) {
  ++reads_;
  for (const auto& [node, set] : children_set_)
    if (set.left_out)
      return hal::fail(hal::Errc::kBusy, "a child graph is unknown until it is set again");
  do_later();
  if (lost_) return hal::fail(hal::Errc::kUnsupported, "a change of a node cannot be followed");
  const GraphReader reader(api_, inspector, options_.hash);
  const std::size_t unread = unread_all_ && reading_ ? reading_->handles.size() : unread_.size();
  if (reading_ && unread == 0) return {};
  for (std::size_t i = 0; reading_ && i < unread; ++i) {
    const std::size_t at = unread_all_ ? i : unread_[i];
    const hal::GraphDescription::Node before = reading_->description.nodes[at];
    const hal::Result<bool> read = reader.read_again(*reading_, at, unread_all_);
    // A graph inside it may have other kernels of the same names.
    if (unread_all_ && read &&
        (reading_->description.nodes[at] != before || is_child_graph(api_, reading_->handles[at])))
      changed_in_[at] = changes_;
    if (!read || !*read) forget_reading();
    if (!read) return tl::unexpected(read.error());
  }
  if (!reading_) {
    hal::Result<GraphReading> all = reader.read(graph_);
    if (!all) return tl::unexpected(all.error());
    reading_ = std::move(*all);
    ++readings_;
    for (std::size_t i = 0; i < reading_->handles.size(); ++i)
      index_.emplace(reading_->handles[i], i);
    changed_in_.assign(reading_->handles.size(), 0);
  }
  unread_.clear();
  unread_all_ = false;
  read_in_ = changes_;
  shape_ = reading_->description.shape();
  return {};
}

void RememberedGraph::forget_reading() {
  reading_.reset();
  index_.clear();
  unread_.clear();
  unread_all_ = false;
}

hal::Result<hal::GraphContents> RememberedGraph::look(hal::KernelInspector& inspector) {
  const std::lock_guard lock(mutex_);
  if (const hal::Status status = read(inspector); !status) return tl::unexpected(status.error());
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): read() has filled it
  const GraphReading& reading = *reading_;
  for (const CUcontext context : reading.contexts)
    if (context != options_.context)
      return hal::fail(hal::Errc::kInvalidArgument,
                       "a kernel of the graph belongs to another context");
  return hal::GraphContents{shape_, reading.kernels};
}

hal::Result<std::shared_ptr<hal::GraphExecutable>> RememberedGraph::make(
    hal::KernelInspector& inspector, hal::PhysicalContext& partition,
    std::shared_ptr<hal::GraphExecutable> older, hal::WaitsUntil waits) {
  auto& context = static_cast<GreenContext&>(partition);
  auto* known = static_cast<ExecutableGraph*>(older.get());
  if (known != nullptr && known->destroyed != destroyed()) known = nullptr;
  auto moved = std::make_unique<MovedGraph>(api_, inspector, context, options_);
  std::vector<std::size_t> disabled;
  hal::GraphShape shape;
  std::uint64_t reading = 0, change = 0, destroyed_before = 0;
  GraphReader reader(api_, inspector, options_.hash);
  AttributeSet attributes;
  {
    // The application's changes do not wait for what follows: that goes on with a copy.
    const std::lock_guard lock(mutex_);
    if (const hal::Status status = read(inspector); !status) return tl::unexpected(status.error());
    if (known != nullptr && bring_up_to_date(*known)) return older;
    shape = shape_;
    reading = readings_;
    change = changes_;
    destroyed_before = destroyed();
    for (const CUgraphNode node : disabled_) {
      const auto found = index_.find(node);
      if (found == index_.end())
        return hal::fail(hal::Errc::kUnsupported, "a node of a child graph is disabled");
      disabled.push_back(found->second);
    }
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): read() has filled it
    const GraphReading& source = *reading_;
    attributes = source.attributes;
    if (compared_ == std::pair(reading, attributes)) reader.ask_for(attributes);
    const bool named = change > 0 || !disabled.empty();
    const std::span<const CUgraphNode> names(source.handles.data(),
                                             named ? source.handles.size() : 0);
    if (const hal::Status status = moved->clone(graph_, names); !status)
      return tl::unexpected(status.error());
  }
  if (const hal::Status status = moved->move(reader, attributes, waits); !status)
    return tl::unexpected(status.error());
  if (const hal::Status same = moved->compare(reader, shape); !same)
    return tl::unexpected(same.error());
  {
    const std::lock_guard lock(mutex_);
    compared_ = {reading, attributes};
  }

  std::shared_ptr<ExecutableGraph> executable;
  if (known != nullptr && disabled.empty() && known->update(moved->graph())) {
    executable = std::static_pointer_cast<ExecutableGraph>(std::move(older));
  } else {
    CUgraphExec made = nullptr;
    CUresult status = api_.cuGraphInstantiateWithFlags(&made, moved->graph(), options_.flags);
    if (status != CUDA_SUCCESS) return failed("a graph cannot be made executable", status);
    executable = std::make_shared<ExecutableGraph>(api_, made, disabled.empty());
    for (const std::size_t at : disabled) {
      const CUgraphNode there = moved->node(at);
      status =
          there != nullptr ? api_.cuGraphNodeSetEnabled(made, there, 0) : CUDA_ERROR_INVALID_VALUE;
      if (status != CUDA_SUCCESS) return failed("a node cannot be disabled", status);
    }
  }
  executable->shape = moved->shape();
  executable->reading = reading;
  executable->change = change;
  executable->destroyed = destroyed_before;
  if (change > 0)
    executable->moved = std::move(moved);
  else
    executable->moved.reset();
  return executable;
}

// Does to it what single nodes of the source have changed since; false: it takes more.
bool RememberedGraph::bring_up_to_date(ExecutableGraph& executable) {
  if (executable.moved == nullptr || executable.reading != readings_ || !executable.updatable() ||
      !disabled_.empty())
    return false;
  bool same = true, done = true;
  for (std::size_t at = 0; done && at < changed_in_.size(); ++at) {
    if (changed_in_[at] <= executable.change) continue;
    same = false;
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the executable is of this reading
    done = executable.moved->renew(at, reading_->handles[at], reading_->description.nodes[at])
               .has_value();
  }
  if (done && !same) done = executable.update(executable.moved->graph());
  if (!done) {
    executable.moved.reset();
    return false;
  }
  executable.change = changes_;
  executable.shape = shape_;
  return true;
}

// --- changes -----------------------------------------------------------------------------------

bool RememberedGraph::index_names() {
  Names& names = *names_;
  if (!names.outline) names.outline = GraphOutline::of(api_, names.graph, false);
  if (!names.outline) return false;
  const std::vector<CUgraphNode>& nodes = names.outline->nodes;
  for (std::size_t i = names.index.size(); i < nodes.size(); ++i) names.index.emplace(nodes[i], i);
  return true;
}

CUgraphNode RememberedGraph::own_node(CUgraphNode node) {
  std::optional<std::size_t> at;
  for (const auto& [original, place] : replaced_)
    if (original == node) at = place;
  if (!at) {
    CUgraphNode found = nullptr;
    if (api_.cuGraphNodeFindInClone(&found, node, names_ ? names_->graph : graph_) != CUDA_SUCCESS)
      return nullptr;
    if (!names_) return found;
    if (!index_names()) return nullptr;
    const auto place = names_->index.find(found);
    if (place == names_->index.end()) return nullptr;  // of a graph inside it
    at = place->second;
  }
  if (names_ && (!names_known() || !names_->distinct[*at])) return nullptr;
  return outline_ ? outline_->nodes[*at] : nullptr;
}

// Whether graph_ has the nodes of the graph that was instantiated, in the same order.
bool RememberedGraph::names_known() {
  Names& names = *names_;
  if (names.known) return *names.known;
  if (!index_names() || !names.outline) return false;
  if (!outline_) outline_ = GraphOutline::of(api_, graph_, false);
  if (names.distinct.empty()) names.distinct = names.outline->distinct();
  const bool known = outline_ && outline_->same_nodes(*names.outline);
  names.known = known;
  return known;
}

// After a call that changes a node.
hal::Followed RememberedGraph::changed(CUgraphNode own, CUresult status) {
  if (status != CUDA_SUCCESS) return hal::Followed::kNot;
  ++changes_;
  if (!reading_) return hal::Followed::kNodes;
  const auto found = index_.find(own);
  if (found == index_.end()) {  // of a graph inside it
    forget_reading();
    return hal::Followed::kAnew;
  }
  std::uint64_t& in = changed_in_[found->second];
  if (in <= read_in_) unread_.push_back(found->second);
  in = changes_;
  return hal::Followed::kNodes;
}

hal::Followed RememberedGraph::replace(CUgraph graph, bool keep_names) {
  const std::lock_guard lock(mutex_);
  CUgraph copy = nullptr;
  // The driver does not say which of the new nodes is disabled.
  if (!disabled_.empty() || disabled_unknown_ || api_.cuGraphClone(&copy, graph) != CUDA_SUCCESS)
    return hal::Followed::kNot;
  std::optional<GraphOutline> was = std::exchange(outline_, std::nullopt);
  // Where nothing was read, as where no part is used, no node is looked at.
  bool alike = true;
  if (std::exchange(destroyed_, destroyed()) != destroyed()) {
    alike = false;
  } else if (reading_ || !alike_) {
    if (!was || was->kernels.size() < was->nodes.size()) was = GraphOutline::of(api_, graph_, true);
    outline_ = GraphOutline::of(api_, copy, true);
    alike = was && outline_ && outline_->same_nodes(*was) && outline_->kernels == was->kernels &&
            read_from_now_on(*was);
  }
  alike_ = alike;
  later_.clear();  // an update sets every node
  children_set_.clear();
  lost_ = false;
  const CUgraph before = std::exchange(graph_, copy);
  if (!names_ && keep_names) {
    names_ = std::make_unique<Names>();
    names_->graph = before;
    names_->outline = std::move(was);
  }
  if (names_)
    names_->known.reset();
  else
    replaced_.clear();
  if (!names_ || before != names_->graph) api_.cuGraphDestroy(before);
  ++changes_;
  if (alike) return hal::Followed::kReplacedAlike;
  forget_reading();
  return hal::Followed::kReplaced;
}

// What was read of a graph that had this outline, which is that of graph_, is read again, and what
// has not changed stands.
bool RememberedGraph::read_from_now_on(const GraphOutline& before) {
  if (!reading_) return true;
  std::unordered_map<CUgraphNode, CUgraphNode> now;
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access): the caller has compared it
  for (std::size_t i = 0; i < before.nodes.size(); ++i) now[before.nodes[i]] = outline_->nodes[i];
  index_.clear();
  for (CUgraphNode& handle : reading_->handles) {
    const auto found = now.find(handle);
    if (found == now.end()) return false;
    index_.emplace(found->second, index_.size());
    handle = found->second;
  }
  unread_all_ = true;
  return true;
}

hal::Followed RememberedGraph::set_kernel(hal::KernelInspector& inspector, CUgraphNode node,
                                          CUDA_KERNEL_NODE_PARAMS parameters) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t destroyed_before = destroyed();
  if (const auto known = later_.find(node);
      known != later_.end() && known->second.destroyed == destroyed_before &&
      parameters.kernelParams != nullptr &&
      handle_of(known->second.parameters) == handle_of(parameters)) {
    known->second.parameters = parameters;
    known->second.arguments.copy_again(parameters.kernelParams);
    return hal::Followed::kNodes;
  }
  Later later{parameters, {}, destroyed_before};
  // After an update it may be unknown which node that is, which is to be said at once.
  if (names_ || parameters.kernelParams == nullptr ||
      !later.arguments.copy(inspector, handle_of(parameters), parameters.kernelParams)) {
    later_.erase(node);
    return set_kernel_now(node, parameters);
  }
  later_.insert_or_assign(node, std::move(later));
  return hal::Followed::kNodes;
}

void RememberedGraph::catch_up() {
  const std::lock_guard lock(mutex_);
  do_later();
}

void RememberedGraph::do_later() {
  for (auto& [node, later] : later_) {
    later.parameters.kernelParams = later.arguments.pointers();
    lost_ = set_kernel_now(node, later.parameters) == hal::Followed::kNot || lost_;
  }
  later_.clear();
}

hal::Followed RememberedGraph::set_kernel_now(CUgraphNode node,
                                              CUDA_KERNEL_NODE_PARAMS parameters) {
  const CUgraphNode own = own_node(node);
  if (own == nullptr) return hal::Followed::kNot;
  if (parameters.func == nullptr && parameters.ctx == nullptr) parameters.ctx = options_.context;
  if (outline_) outline_->kernels.clear();  // not known any more
  return changed(own, api_.cuGraphKernelNodeSetParams_v2(own, &parameters));
}

hal::Followed RememberedGraph::set_copy(CUgraphNode node, const CUDA_MEMCPY3D& box) {
  const std::lock_guard lock(mutex_);
  const CUgraphNode own = own_node(node);
  return own == nullptr ? hal::Followed::kNot
                        : changed(own, api_.cuGraphMemcpyNodeSetParams(own, &box));
}

hal::Followed RememberedGraph::set_fill(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS& fill) {
  const std::lock_guard lock(mutex_);
  const CUgraphNode own = own_node(node);
  return own == nullptr ? hal::Followed::kNot
                        : changed(own, api_.cuGraphMemsetNodeSetParams(own, &fill));
}

hal::Followed RememberedGraph::set_child(CUgraphNode node, CUgraph child) {
  const std::lock_guard lock(mutex_);
  const auto [known, first] = children_set_.try_emplace(node);
  ChildSet& set = known->second;
  set.left_out = !first && set.reads == reads_;
  set.reads = reads_;
  return set.left_out ? hal::Followed::kNodes : set_child_now(node, child);
}

hal::Followed RememberedGraph::set_child_now(CUgraphNode node, CUgraph child) {
  do_later();  // of nodes inside the child that goes, too
  const CUgraphNode own = own_node(node);
  CUgraphNode made = nullptr;
  if (!outline_) outline_ = GraphOutline::of(api_, graph_, false);
  if (own == nullptr || !outline_) return hal::Followed::kNot;
  auto& nodes = outline_->nodes;
  const auto place = std::find(nodes.begin(), nodes.end(), own);
  if (place == nodes.end() ||  // of a graph inside it
      api_.cuGraphAddChildGraphNode(&made, graph_, nullptr, 0, child) != CUDA_SUCCESS ||
      !take_place(api_, graph_, own, made))
    return hal::Followed::kNot;
  std::erase_if(replaced_, [&](const auto& pair) { return pair.first == node; });
  replaced_.emplace_back(node, static_cast<std::size_t>(place - nodes.begin()));
  *place = made;
  if (const auto found = index_.find(own); found != index_.end()) {
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): what is in the index was read
    reading_->handles[found->second] = made;
    index_.emplace(made, found->second);
    index_.erase(own);
  }
  return changed(made, CUDA_SUCCESS);
}

hal::Followed RememberedGraph::set_enabled(CUgraphNode node, bool enabled) {
  const std::lock_guard lock(mutex_);
  const CUgraphNode own = own_node(node);
  disabled_unknown_ = disabled_unknown_ || own == nullptr;
  if (own == nullptr) return hal::Followed::kNot;
  std::erase(disabled_, own);
  if (!enabled) disabled_.push_back(own);
  return hal::Followed::kAnew;
}

}  // namespace vitamin::cuda
