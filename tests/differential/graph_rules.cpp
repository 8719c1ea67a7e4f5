// SPDX-License-Identifier: Apache-2.0
//
// Graphs and the contexts of their nodes: what backends/cuda/graph.h relies on to let the launches
// of a graph follow the allocation.
#include <set>

#include "session.h"

namespace vitamin::differential {
namespace {

constexpr unsigned kBlocks = 264, kThreads = 1024;

CUcontext context_of(CUgreenCtx green) {
  CUcontext context = nullptr;
  VITAMIN_MUST(cuCtxFromGreenCtx(&context, green));
  return context;
}

// How many multiprocessors the blocks of `mark_sm` used.
std::string processors(Session& session, CUgraph graph, CUdeviceptr words) {
  CUgraphExec executable = nullptr;
  if (const CUresult made = api.cuGraphInstantiate(&executable, graph, 0); made != CUDA_SUCCESS)
    return "instantiate " + code(made);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  if (const CUresult run = api.cuGraphLaunch(executable, stream); run != CUDA_SUCCESS)
    return "launch " + code(run);
  drain();
  std::vector<std::uint32_t> sms(kBlocks);
  VITAMIN_MUST(cuMemcpyDtoH(sms.data(), words, kBlocks * sizeof sms[0]));
  return std::to_string(std::set(sms.begin(), sms.end()).size()) + " processors";
}

CUgraph captured(CUstream stream, CUfunction function, CUdeviceptr words) {
  CUgraph graph = nullptr;
  VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  must(launch(function, stream, {&words}, kBlocks, kThreads), "launch");
  VITAMIN_MUST(cuStreamEndCapture(stream, &graph));
  return graph;
}

CUgraphNode only_node(CUgraph graph) {
  CUgraphNode node = nullptr;
  std::size_t count = 1;
  VITAMIN_MUST(cuGraphGetNodes(graph, &node, &count));
  return node;
}

CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

}  // namespace

VITAMIN_RULE(graph_node_parameters,
             "What do captured kernel nodes say of their function, kernel and context?") {
  Session session;
  CUdeviceptr words = session.memory(kBlocks * 4);
  CUgreenCtx green = session.green({0});
  const CUcontext converted = context_of(green);
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream on_green = session.green_stream(green);
  const CUfunction function = session.function("mark_sm");
  const CUkernel kernel = session.kernel("mark_sm");
  for (CUstream stream : {plain, on_green})
    for (CUfunction launched : {function, as_function(kernel)}) {
      CUDA_KERNEL_NODE_PARAMS parameters{};
      const CUgraph graph = captured(stream, launched, words);
      Say{"{} on {}: {}", launched == function ? "a function" : "a kernel",
          stream == plain ? "a stream" : "a green stream",
          code(api.cuGraphKernelNodeGetParams(only_node(graph), &parameters))};
      Say{"  the kernel is named: {}",
          parameters.kern == kernel || parameters.func == as_function(kernel) ? "yes" : "no"};
      Say{"  context {}", parameters.ctx == session.primary() ? "primary"
                          : parameters.ctx == converted       ? "green"
                          : parameters.ctx == nullptr         ? "none"
                                                              : "another"};
    }
}

VITAMIN_RULE(graph_node_given_a_kernel_and_a_context,
             "Where does a node run that was given a kernel and a green context?") {
  Session session;
  CUdeviceptr words = session.memory(kBlocks * 4);
  CUgreenCtx green = session.green({0});
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  const CUkernel kernel = session.kernel("mark_sm");
  for (const bool clone : {false, true})
    for (const bool with_function : {false, true}) {
      CUgraph graph = captured(plain, as_function(kernel), words);
      CUgraph used = graph;
      if (clone) VITAMIN_MUST(cuGraphClone(&used, graph));
      CUDA_KERNEL_NODE_PARAMS parameters{};
      VITAMIN_MUST(cuGraphKernelNodeGetParams(only_node(used), &parameters));
      void* arguments[] = {&words};
      parameters.func = with_function ? session.function("mark_sm") : nullptr;
      parameters.kern = kernel;
      parameters.ctx = context_of(green);
      parameters.kernelParams = arguments;
      Say{"{}{}: {}", clone ? "of a clone" : "of a captured graph",
          with_function ? ", with a function" : "",
          code(api.cuGraphKernelNodeSetParams(only_node(used), &parameters))};
      Say{"  {}", processors(session, used, words)};
      if (!clone) continue;
      Say{"  the original: {}", processors(session, graph, words)};
    }
}

VITAMIN_RULE(graph_function_captured_again,
             "Can a function be captured into a graph on a green stream, in another's place?") {
  Session session;
  const Log log(session);
  CUdeviceptr words = session.memory(kBlocks * 4);
  CUgreenCtx green = session.green({0});
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream on_green = session.green_stream(green);
  CUgraph graph = captured(plain, session.function("mark_sm"), words);
  const CUgraphNode old = only_node(graph);
  Say{"begin {}", code(api.cuStreamBeginCaptureToGraph(on_green, graph, nullptr, nullptr, 0,
                                                       CU_STREAM_CAPTURE_MODE_RELAXED))};
  Say{"launch {}",
      code(launch(session.function("mark_sm"), on_green, {&words}, kBlocks, kThreads))};
  CUstreamCaptureStatus status{};
  const CUgraphNode* tail = nullptr;
  std::size_t count = 0;
  Say{"information {}", code(api.cuStreamGetCaptureInfo(on_green, &status, nullptr, nullptr, &tail,
                                                        nullptr, &count))};
  Say{"  {} nodes at the end, another one: {}", count, count == 1 && tail[0] != old ? "yes" : "no"};
  CUgraph ended = nullptr;
  Say{"end {}", code(api.cuStreamEndCapture(on_green, &ended))};
  Say{"  the same graph: {}", ended == graph ? "yes" : "no"};
  Say{"destroy the old node {}", code(api.cuGraphDestroyNode(old))};
  CUDA_KERNEL_NODE_PARAMS parameters{};
  VITAMIN_MUST(cuGraphKernelNodeGetParams(only_node(graph), &parameters));
  Say{"context {}", parameters.ctx == context_of(green) ? "green" : "another"};
  Say{"{}", processors(session, graph, words)};
}

VITAMIN_RULE(
    graph_attributes_of_captured_nodes,
    "Do a captured and an added kernel node tell the same cluster scheduling preference?") {
  Session session;
  CUdeviceptr words = session.memory(kBlocks * 4);
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream on_green = session.green_stream(session.green({0}));
  constexpr auto kPreference = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
  const auto preference = [](CUgraphNode node) {
    CUlaunchAttributeValue value{};
    const CUresult asked = api.cuGraphKernelNodeGetAttribute(node, kPreference, &value);
    return code(asked) + " " + std::to_string(value.clusterSchedulingPolicyPreference);
  };
  for (CUstream stream : {plain, on_green}) {
    const CUgraph graph = captured(stream, session.function("mark_sm"), words);
    Say{"captured on {}: {}", stream == plain ? "a stream" : "a green stream",
        preference(only_node(graph))};
  }
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUDA_KERNEL_NODE_PARAMS parameters{};
  void* arguments[] = {&words};
  parameters.func = session.function("mark_sm");
  parameters.gridDimX = kBlocks;
  parameters.gridDimY = parameters.gridDimZ = 1;
  parameters.blockDimX = kThreads;
  parameters.blockDimY = parameters.blockDimZ = 1;
  parameters.kernelParams = arguments;
  VITAMIN_MUST(cuGraphCreate(&graph, 0));
  VITAMIN_MUST(cuGraphAddKernelNode(&node, graph, nullptr, 0, &parameters));
  Say{"added: {}", preference(node)};
}

VITAMIN_RULE(graph_functions_captured_again_with_a_programmatic_edge,
             "Can an edge of programmatic serialisation be given to functions captured again?") {
  Session session;
  CUdeviceptr words = session.memory(kBlocks * 4);
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream on_green = session.green_stream(session.green({0}));
  const CUfunction function = session.function("mark_sm");
  void* arguments[] = {&words};
  const auto launch_behind = [&](CUstream stream) {
    CUlaunchAttribute serialised{};
    serialised.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    serialised.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = kBlocks;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.blockDimX = kThreads;
    config.hStream = stream;
    config.attrs = &serialised;
    config.numAttrs = 1;
    return api.cuLaunchKernelEx(&config, function, arguments, nullptr);
  };
  const auto edges = [](CUgraph graph) {
    std::vector<CUgraphNode> from(8), to(8);
    std::vector<CUgraphEdgeData> data(8);
    std::size_t count = data.size();
    const CUresult asked = api.cuGraphGetEdges(graph, from.data(), to.data(), data.data(), &count);
    std::string text = code(asked);
    for (std::size_t i = 0; asked == CUDA_SUCCESS && i < count; ++i)
      text += ", from port " + std::to_string(data[i].from_port) + " to port " +
              std::to_string(data[i].to_port) + " type " + std::to_string(data[i].type);
    return text;
  };
  CUgraph graph = nullptr;
  VITAMIN_MUST(cuStreamBeginCapture(plain, CU_STREAM_CAPTURE_MODE_RELAXED));
  must(launch(function, plain, {&words}, kBlocks, kThreads), "launch");
  must(launch_behind(plain), "launch");
  VITAMIN_MUST(cuStreamEndCapture(plain, &graph));
  Say{"edges {}", edges(graph)};
  CUgraphNode old[2] = {};
  std::size_t count = 2;
  VITAMIN_MUST(cuGraphGetNodes(graph, old, &count));
  CUgraphNode made[2] = {};
  for (int i = 0; i < 2; ++i) {
    VITAMIN_MUST(cuStreamBeginCaptureToGraph(on_green, graph, nullptr, nullptr, 0,
                                             CU_STREAM_CAPTURE_MODE_RELAXED));
    must(i == 0 ? launch(function, on_green, {&words}, kBlocks, kThreads) : launch_behind(on_green),
         "launch");
    CUstreamCaptureStatus status{};
    const CUgraphNode* tail = nullptr;
    VITAMIN_MUST(
        cuStreamGetCaptureInfo(on_green, &status, nullptr, nullptr, &tail, nullptr, &count));
    made[i] = tail[0];
    CUgraph ended = nullptr;
    VITAMIN_MUST(cuStreamEndCapture(on_green, &ended));
    // That of a node which was added, not captured.
    const CUlaunchAttributeValue none{};
    Say{"set the cluster scheduling preference {}",
        code(api.cuGraphKernelNodeSetAttribute(
            made[i], CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, &none))};
  }
  CUgraphEdgeData data{};
  data.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  data.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  Say{"add {}", code(api.cuGraphAddDependencies(graph, &made[0], &made[1], &data, 1))};
  for (CUgraphNode node : old) VITAMIN_MUST(cuGraphDestroyNode(node));
  Say{"edges {}", edges(graph)};
  Say{"{}", processors(session, graph, words)};
}

VITAMIN_RULE(graph_context_of_an_instantiated_node,
             "Can the context of an instantiated node change, by parameters or by an update?") {
  Session session;
  CUdeviceptr words = session.memory(kBlocks * 4);
  CUgreenCtx green = session.green({0});
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream on_green = session.green_stream(green);
  const CUkernel kernel = session.kernel("mark_sm");
  CUgraph graph = captured(plain, as_function(kernel), words);
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  CUDA_KERNEL_NODE_PARAMS parameters{};
  VITAMIN_MUST(cuGraphKernelNodeGetParams(only_node(graph), &parameters));
  void* arguments[] = {&words};
  parameters.func = nullptr;
  parameters.kern = kernel;
  parameters.ctx = context_of(green);
  parameters.kernelParams = arguments;
  Say{"by parameters {}",
      code(api.cuGraphExecKernelNodeSetParams(executable, only_node(graph), &parameters))};
  CUgraphExecUpdateResultInfo info{};
  Say{"by an update {}", code(api.cuGraphExecUpdate(
                             executable, captured(on_green, as_function(kernel), words), &info))};
  Say{"by an update in its own context {}",
      code(api.cuGraphExecUpdate(executable, captured(plain, as_function(kernel), words), &info))};
}

VITAMIN_RULE(graph_clones, "Does a clone outlive its graph, and do nodes find theirs in it?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUgraph graph = nullptr, clone = nullptr, again = nullptr;
  VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  must(log.append(stream, 1), "launch");
  must(log.append(stream, 2), "launch");
  VITAMIN_MUST(cuStreamEndCapture(stream, &graph));
  Say{"clone {}", code(api.cuGraphClone(&clone, graph))};
  CUgraphNode nodes[2] = {}, found = nullptr, second = nullptr;
  std::size_t count = 2;
  VITAMIN_MUST(cuGraphGetNodes(graph, nodes, &count));
  Say{"find a node {}", code(api.cuGraphNodeFindInClone(&found, nodes[1], clone))};
  Say{"clone the clone {}", code(api.cuGraphClone(&again, clone))};
  Say{"find its node there {}", code(api.cuGraphNodeFindInClone(&second, found, again))};
  Say{"find the first graph's node there {}",
      code(api.cuGraphNodeFindInClone(&second, nodes[1], again))};
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  Say{"destroy the graph {}", code(api.cuGraphDestroy(graph))};
  for (CUgraph each : {clone, again}) {
    CUgraphExec copy = nullptr;
    Say{"instantiate {}", code(api.cuGraphInstantiate(&copy, each, 0))};
    Say{"launch {}", code(api.cuGraphLaunch(copy, stream))};
  }
  Say{"launch the first {}", code(api.cuGraphLaunch(executable, stream))};
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(graph_nodes_name_their_executable_after_an_update,
             "Whose nodes name those of an executable once it was updated from another graph?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const auto graph_of = [&](std::uint32_t value) {
    CUgraph graph = nullptr;
    VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    must(log.append(stream, value), "launch");
    VITAMIN_MUST(cuStreamEndCapture(stream, &graph));
    return graph;
  };
  CUgraph first = graph_of(1), second = graph_of(2);
  CUgraphExec executable = nullptr;
  CUgraphExecUpdateResultInfo info{};
  VITAMIN_MUST(cuGraphInstantiate(&executable, first, 0));
  Say{"disable {}", code(api.cuGraphNodeSetEnabled(executable, only_node(first), 0))};
  Say{"update {}", code(api.cuGraphExecUpdate(executable, second, &info))};
  VITAMIN_MUST(cuGraphLaunch(executable, stream));
  drain();
  Say{"still disabled: kernels {}", log.text()};
  Say{"enable the first graph's node {}",
      code(api.cuGraphNodeSetEnabled(executable, only_node(first), 1))};
  Say{"enable the second graph's node {}",
      code(api.cuGraphNodeSetEnabled(executable, only_node(second), 1))};
  VITAMIN_MUST(cuGraphLaunch(executable, stream));
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(graph_calls_behind_a_gate,
             "Which calls that make, change or destroy executables wait for work of the device?") {
  Session session;
  const Log log(session);
  CUgreenCtx green = session.green({0});
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream on_green = session.green_stream(green);
  CUgraph graph = nullptr, clone = nullptr;
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuStreamBeginCapture(on_green, CU_STREAM_CAPTURE_MODE_RELAXED));
  must(log.append(on_green, 1), "launch");
  VITAMIN_MUST(cuStreamEndCapture(on_green, &graph));
  Gate gate(session, held);
  must(log.append(held, 9), "launch");
  Say{"clone {}", waits_for(gate, [&] { return api.cuGraphClone(&clone, graph); })};
  Say{"instantiate {}",
      waits_for(gate, [&] { return api.cuGraphInstantiate(&executable, clone, 0); })};
  CUgraphExecUpdateResultInfo info{};
  Say{"update {}",
      waits_for(gate, [&] { return api.cuGraphExecUpdate(executable, graph, &info); })};
  Say{"launch {}", waits_for(gate, [&] { return api.cuGraphLaunch(executable, on_green); })};
  Say{"it is {}", soon(on_green)};
  Say{"destroy {}", waits_for(gate, [&] { return api.cuGraphExecDestroy(executable); })};
  gate.open();
  drain();
}

VITAMIN_RULE(graph_executables_of_one_graph,
             "Does one executable of a graph wait for another one of the same graph?") {
  Session session;
  const Log log(session);
  CUgreenCtx green = session.green({0});
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream held = session.stream(CU_STREAM_NON_BLOCKING);
  CUstream on_green = session.green_stream(green);
  CUgraph graph = nullptr;
  CUgraphExec one = nullptr, other = nullptr;
  VITAMIN_MUST(cuStreamBeginCapture(plain, CU_STREAM_CAPTURE_MODE_RELAXED));
  must(log.append(plain, 1), "launch");
  VITAMIN_MUST(cuStreamEndCapture(plain, &graph));
  VITAMIN_MUST(cuGraphInstantiate(&one, graph, 0));
  VITAMIN_MUST(cuGraphInstantiate(&other, graph, 0));
  Gate gate(session, held);
  VITAMIN_MUST(cuGraphLaunch(one, held));
  Say{"the other on a green stream {}", code(api.cuGraphLaunch(other, on_green))};
  Say{"it is {}", soon(on_green)};
  gate.open();
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(context_wait_while_a_green_stream_captures,
             "Which waits does the capture of a green stream forbid to others?") {
  Session session;
  CUdeviceptr words = session.memory(kBlocks * 4);
  CUstream on_green = session.green_stream(session.green({0}));
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr more = session.memory(4096);
  const auto while_capturing = [&](const char* name, const std::function<CUresult()>& call) {
    CUgraph graph = nullptr;
    VITAMIN_MUST(cuStreamBeginCapture(on_green, CU_STREAM_CAPTURE_MODE_RELAXED));
    must(launch(session.function("mark_sm"), on_green, {&words}), "launch");
    Say{"{} {}", name, code(call())};
    Say{"  end {}", code(api.cuStreamEndCapture(on_green, &graph))};
  };
  while_capturing("cuStreamSynchronize", [&] { return api.cuStreamSynchronize(plain); });
  while_capturing("cuStreamSynchronize of NULL", [&] { return api.cuStreamSynchronize(nullptr); });
  while_capturing("cuCtxSynchronize", [&] { return api.cuCtxSynchronize(); });
  while_capturing("cuMemFree", [&] { return api.cuMemFree(more); });
}

}  // namespace vitamin::differential
