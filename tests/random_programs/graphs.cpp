// SPDX-License-Identifier: Apache-2.0
//
// Graphs: made by hand or captured across streams and threads, launched, changed, destroyed.
#include <algorithm>

#include "program.h"

namespace vitamin::random_programs {

namespace {

constexpr std::size_t kGraphsMax = 3;
constexpr unsigned kLaunchCost = 8;  // operations of a stream, at most

// The places of effects, once each.
void add_places(const std::vector<Effect>& effects, std::vector<std::size_t>& reads,
                std::vector<std::size_t>& writes) {
  const auto add = [](std::vector<std::size_t>& places, std::size_t place) {
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  };
  for (const Effect& effect : effects) {
    add(writes, effect.to);
    if (effect.kind == Effect::Kind::kMix || effect.kind == Effect::Kind::kCopy)
      add(reads, effect.from);
  }
}

bool conflict(const Effect& a, const Effect& b) {
  return a.to == b.to || a.to == b.from || a.from == b.to;
}

}  // namespace

// --- making --------------------------------------------------------------------------------------

void Program::fill_parameters(const GraphModel& graph, const GraphModel::Node& node,
                              CUDA_KERNEL_NODE_PARAMS& parameters) {
  parameters = {};
  parameters.func = gpu(graph.device).mix;
  parameters.gridDimX = node.blocks;
  parameters.gridDimY = parameters.gridDimZ = 1;
  parameters.blockDimX = 32;
  parameters.blockDimY = parameters.blockDimZ = 1;
}

CUgraphNode Program::add_kernel_node(GraphModel& graph, const Effect& effect,
                                     const std::vector<CUgraphNode>& after) {
  GraphModel::Node node;
  node.effect = graph.effects.size();
  node.ns = draw_time();
  node.blocks = static_cast<unsigned>(random_.one_in(4) ? 1 + random_.below(32) : 1);
  CUdeviceptr to = address(effect.to), from = address(effect.from);
  Word value = effect.value, count = kWords;
  void* arguments[] = {&to, &from, &value, &count, &node.ns, nullptr};
  CUDA_KERNEL_NODE_PARAMS parameters;
  fill_parameters(graph, node, parameters);
  parameters.kernelParams = arguments;
  MUST(cuGraphAddKernelNode(&node.handle, graph.graph, after.data(), after.size(), &parameters));
  graph.kernels.push_back(node);
  graph.effects.push_back(effect);
  return node.handle;
}

// Nodes with an edge wherever two touch the same memory. `first`: before all of them, or null.
std::vector<CUgraphNode> Program::add_graph_nodes(GraphModel& graph, CUgraphNode first) {
  std::vector<CUgraphNode> nodes;
  const std::uint64_t count = 1 + random_.below(5);
  for (std::uint64_t i = 0; i < count; ++i) {
    Effect effect;
    if (!draw_place(graph.device, false, effect.from) || !draw_place(graph.device, true, effect.to))
      continue;
    effect.value = static_cast<Word>(random_.next());
    const bool fills = random_.one_in(5);
    if (fills) effect = {Effect::Kind::kFill, effect.to, effect.to, effect.value};
    std::vector<CUgraphNode> after;
    if (first != nullptr) after.push_back(first);
    for (std::size_t k = 0; k < nodes.size(); ++k)
      if (conflict(graph.effects[k], effect)) after.push_back(nodes[k]);
    if (!fills) {
      nodes.push_back(add_kernel_node(graph, effect, after));
      continue;
    }
    CUDA_MEMSET_NODE_PARAMS parameters{};
    parameters.dst = address(effect.to);
    parameters.elementSize = sizeof(Word);
    parameters.width = kWords;
    parameters.height = 1;
    parameters.value = effect.value;
    CUgraphNode node = nullptr;
    MUST(cuGraphAddMemsetNode(&node, graph.graph, after.data(), after.size(), &parameters,
                              gpu(graph.device).context));
    nodes.push_back(node);
    graph.effects.push_back(effect);
  }
  return nodes;
}

void Program::make_graph() {
  if (graphs_.size() >= kGraphsMax) destroy_graph();
  const auto device = static_cast<unsigned>(random_.below(devices_));
  MUST(cuCtxSetCurrent(gpu(device).context));
  GraphModel& graph = graphs_.emplace_back();
  graph.device = device;
  MUST(cuGraphCreate(&graph.graph, 0));
  CUgraphNode first = nullptr;
  if (random_.one_in(5)) {
    graph.waits = &fresh_event(device);
    MUST(cuGraphAddEventWaitNode(&first, graph.graph, nullptr, 0, graph.waits->handle));
  }
  const std::vector<CUgraphNode> nodes = add_graph_nodes(graph, first);
  if (random_.one_in(3)) {
    graph.records = &fresh_event(device);
    CUgraphNode node = nullptr;
    MUST(cuGraphAddEventRecordNode(&node, graph.graph, nodes.data(), nodes.size(),
                                   graph.records->handle));
  }
  say("  instantiate %d", cuGraphInstantiate(&graph.executable, graph.graph, 0));
  if (Line* line = line_of(device, false); line != nullptr && !random_.one_in(4))
    launch_graph_on(graph, *line);
}

// --- launching -----------------------------------------------------------------------------------

GraphModel* Program::any_graph() {
  if (graphs_.empty()) return nullptr;
  auto at = graphs_.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(random_.below(graphs_.size())));
  return &*at;
}

void Program::launch_graph() {
  GraphModel* graph = any_graph();
  if (graph == nullptr) return make_graph();
  Line* line = line_of(graph->device, false);
  for (std::uint64_t i = 1 + random_.below(4); i > 0 && line != nullptr; --i) {
    launch_graph_on(*graph, *line);
    if (random_.one_in(4)) sleep_us(random_.below(3000));
    if (random_.one_in(3)) line = line_of(graph->device, false);
  }
}

// Orders a launch; false: some place is in use.
bool Program::prepare_graph(GraphModel& graph, Line& line) {
  Places reads, writes;
  add_places(graph.effects, reads, writes);
  for (const Places& places : {reads, writes})
    for (const std::size_t place : places)
      if (!available(place)) return false;
  if (graph.executable == nullptr || !room(line, kLaunchCost + 16)) return false;
  if (graph.waits != nullptr && graph.waits->captured) return false;
  if (graph.records != nullptr && awaited(*graph.records)) return false;
  operation(line, reads, writes);
  if (graph.waits != nullptr) {
    line.before |= graph.waits->recorded;
    line.maybe |= graph.waits->maybe;
  }
  line.maybe |= graph.maybe;
  graph.maybe = line.maybe;
  return true;
}

void Program::finish_graph(GraphModel& graph, Line& line) {
  for (const Effect& effect : graph.effects) apply(effect);
  if (graph.records == nullptr) return;
  graph.records->recorded = line.before;
  graph.records->maybe = line.maybe;
  graph.records->captured = false;
}

void Program::launch_graph_on(GraphModel& graph, Line& line) {
  if (!prepare_graph(graph, line)) return;
  on(
      line, "graph", [&] { return cuGraphLaunch(graph.executable, line.handle); }, kLaunchCost);
  finish_graph(graph, line);
}

// --- changing ------------------------------------------------------------------------------------

// Another thread may not have made its call yet.
bool Program::graph_in_flight() const {
  return std::any_of(flights_.begin(), flights_.end(),
                     [](const Flight& flight) { return flight.name == "graph"; });
}

// The argument of one kernel changes, in the executable or by an update from the graph.
void Program::change_graph() {
  GraphModel* graph = any_graph();
  if (graph == nullptr || graph->executable == nullptr || graph->kernels.empty()) return;
  if (graph_in_flight()) return;
  MUST(cuCtxSetCurrent(gpu(graph->device).context));
  const GraphModel::Node& node = random_.of(graph->kernels);
  Effect& effect = graph->effects[node.effect];
  effect.value = static_cast<Word>(random_.next());
  CUdeviceptr to = address(effect.to), from = address(effect.from);
  Word value = effect.value, count = kWords;
  std::uint64_t ns = node.ns;
  void* arguments[] = {&to, &from, &value, &count, &ns, nullptr};
  CUDA_KERNEL_NODE_PARAMS parameters;
  fill_parameters(*graph, node, parameters);
  parameters.kernelParams = arguments;
  say("  change node %d", cuGraphKernelNodeSetParams(node.handle, &parameters));
  if (random_.one_in(2)) {
    say("  change executable %d",
        cuGraphExecKernelNodeSetParams(graph->executable, node.handle, &parameters));
    return;
  }
  CUgraphExecUpdateResultInfo result{};
  const CUresult answer = cuGraphExecUpdate(graph->executable, graph->graph, &result);
  say("  update executable %d %d", answer, result.result);
}

void Program::destroy_graph() {
  GraphModel* graph = any_graph();
  if (graph == nullptr) return;
  if (graph_in_flight()) return;
  MUST(cuCtxSetCurrent(gpu(graph->device).context));
  if (graph->executable != nullptr)
    say("  destroy executable %d", cuGraphExecDestroy(graph->executable));
  say("  destroy graph %d", cuGraphDestroy(graph->graph));
  graphs_.remove_if([&](const GraphModel& one) { return &one == graph; });
}

// --- capturing -----------------------------------------------------------------------------------

// A captured kernel that touches only `allowed`.
bool Program::captured_kernel(Line& line, GraphModel& graph, const Places& allowed) {
  std::vector<std::size_t> cells;
  for (const std::size_t place : allowed)
    if (is_cell(place)) cells.push_back(place);
  if (cells.empty()) return false;
  const Effect effect{Effect::Kind::kMix, random_.of(cells), random_.of(allowed),
                      static_cast<Word>(random_.next())};
  const std::uint64_t ns = draw_time();
  on(
      line, "captured kernel", [&] { return launch_mix(line, effect, ns, 1); }, 0);
  graph.effects.push_back(effect);
  return true;
}

void Program::capture() {
  if (graphs_.size() >= kGraphsMax) destroy_graph();
  if (graphs_.size() >= kGraphsMax || !flights_.empty()) return;
  const auto device = static_cast<unsigned>(random_.below(devices_));
  Line* origin = nullptr;
  for (Line& line : lines_)  // those of the application's own contexts more often
    if (line.kind == LineKind::kGreen && line.device == device && random_.one_in(3)) origin = &line;
  if (origin == nullptr) origin = line_of(device, true);
  if (origin == nullptr || !room(*origin, 24)) return;
  Line* helper = random_.one_in(4) ? nullptr : line_of(device, true);
  if (helper == origin) helper = nullptr;
  // Work that must not become part of it, nor be overtaken because of it.
  for (Line* line : {origin, helper})
    if (line != nullptr && random_.one_in(2)) kernel(*line, draw_time() * 2);
  capture_on(*origin, helper);
  for (Line* line : {helper, origin})
    if (line != nullptr && random_.one_in(2)) kernel(*line, draw_time());
}

void Program::capture_on(Line& origin, Line* helper) {
  GraphModel graph;
  graph.device = origin.device;
  Places origins, helpers;  // disjoint, so that the two may run side by side
  for (std::size_t place = 0; place < expected_.size(); ++place) {
    if (is_cell(place) && device_of(place) != origin.device) continue;
    if (available(place)) (random_.one_in(2) ? origins : helpers).push_back(place);
  }
  EventModel& fork = fresh_event(origin.device);
  EventModel& join = fresh_event(origin.device);
  if (&fork == &join) helper = nullptr;
  const auto mode = static_cast<CUstreamCaptureMode>(random_.below(3));
  const unsigned thread = thread_for(origin);
  const auto here = [&](const char* name, const std::function<CUresult()>& what) {
    const CUresult answer = call(thread, origin.device, what);
    say("  %s, thread %u: %d", name, thread, static_cast<int>(answer));
    return answer;
  };
  if (here("begin capture", [&] { return cuStreamBeginCapture(origin.handle, mode); }) !=
      CUDA_SUCCESS)
    return;
  captured_kernel(origin, graph, origins);
  if (helper != nullptr) {
    on(
        origin, "fork", [&] { return cuEventRecord(fork.handle, origin.handle); }, 0);
    fork.captured = true;
    on(
        *helper, "fork", [&] { return cuStreamWaitEvent(helper->handle, fork.handle, 0); }, 0);
    captured_kernel(*helper, graph, helpers);
    captured_kernel(origin, graph, origins);
    on(
        *helper, "join", [&] { return cuEventRecord(join.handle, helper->handle); }, 0);
    join.captured = true;
  }
  if (random_.one_in(10)) {  // breaks the capture
    break_capture(helper != nullptr && random_.one_in(2) ? *helper : origin, fork);
  }
  if (helper != nullptr && !random_.one_in(12))
    on(
        origin, "join", [&] { return cuStreamWaitEvent(origin.handle, join.handle, 0); }, 0);
  if (random_.one_in(2)) captured_kernel(origin, graph, origins);
  const CUresult ended =
      here("end capture", [&] { return cuStreamEndCapture(origin.handle, &graph.graph); });
  if (ended != CUDA_SUCCESS) return;
  MUST(cuCtxSetCurrent(gpu(graph.device).context));
  std::size_t nodes = 0;
  MUST(cuGraphGetNodes(graph.graph, nullptr, &nodes));
  say("  instantiate %zu nodes: %d", nodes, cuGraphInstantiate(&graph.executable, graph.graph, 0));
  graphs_.push_back(graph);
}

// Calls that a stream which is captured does not allow.
void Program::break_capture(Line& line, const EventModel& event) {
  const auto which = static_cast<unsigned>(random_.below(6));
  const std::string name = "illegal in a capture " + std::to_string(which);
  on(
      line, name.c_str(),
      [&] {
        switch (which) {
          case 0:
            return cuStreamSynchronize(line.handle);
          case 1:
            return event.captured ? cuEventQuery(event.handle) : cuStreamQuery(line.handle);
          case 2:
            return event.captured ? cuEventSynchronize(event.handle) : cuStreamQuery(line.handle);
          case 3:
            return cuStreamAddCallback(
                line.handle, [](CUstream, CUresult, void*) {}, nullptr, 0);
          case 4:
            return cuStreamWaitValue32(line.handle, page_addresses_[0] + 1024, 0,
                                       CU_STREAM_WAIT_VALUE_GEQ);
          default:
            return cuStreamQuery(line.handle);
        }
      },
      0);
}

}  // namespace vitamin::random_programs
