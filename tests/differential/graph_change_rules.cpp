// SPDX-License-Identifier: Apache-2.0
//
// Graphs whose nodes change after they were made executable: what backends/cuda/moved_graph.h
// relies on to bring executables for parts of the device up to date.
#include <set>

#include "session.h"

namespace vitamin::differential {
namespace {

constexpr unsigned kGrid = 264, kBlock = 1024;

CUcontext context_of_green(CUgreenCtx green) {
  CUcontext context = nullptr;
  VITAMIN_MUST(cuCtxFromGreenCtx(&context, green));
  return context;
}

CUgraph captured_on(CUstream stream, const std::function<void()>& work) {
  CUgraph graph = nullptr;
  VITAMIN_MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  work();
  VITAMIN_MUST(cuStreamEndCapture(stream, &graph));
  return graph;
}

std::vector<CUgraphNode> all_nodes(CUgraph graph) {
  std::size_t count = 0;
  VITAMIN_MUST(cuGraphGetNodes(graph, nullptr, &count));
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) VITAMIN_MUST(cuGraphGetNodes(graph, nodes.data(), &count));
  return nodes;
}

void mark(CUfunction function, CUstream stream, CUdeviceptr words) {
  must(launch(function, stream, {&words}, kGrid, kBlock), "launch");
}

// How many multiprocessors the last launch of `mark_sm` used.
std::size_t processors_marked(CUdeviceptr words) {
  std::vector<std::uint32_t> sms(kGrid);
  VITAMIN_MUST(cuMemcpyDtoH(sms.data(), words, kGrid * sizeof sms[0]));
  return std::set(sms.begin(), sms.end()).size();
}

CUresult give_words(CUgraphNode node, CUfunction function, CUkernel kernel, CUcontext context,
                    CUdeviceptr words, CUgraphExec executable = nullptr) {
  CUDA_KERNEL_NODE_PARAMS parameters{};
  VITAMIN_MUST(cuGraphKernelNodeGetParams(node, &parameters));
  void* arguments[] = {&words};
  parameters.func = function;
  parameters.kern = kernel;
  parameters.ctx = context;
  parameters.kernelParams = arguments;
  return executable != nullptr ? api.cuGraphExecKernelNodeSetParams(executable, node, &parameters)
                               : api.cuGraphKernelNodeSetParams(node, &parameters);
}

}  // namespace

VITAMIN_RULE(graph_function_on_a_green_stream_given_parameters,
             "Does a function captured on a green stream stay there when its arguments change, "
             "before and after instantiation?") {
  Session session;
  CUdeviceptr before = session.memory(kGrid * 4), after = session.memory(kGrid * 4);
  const CUgreenCtx green = session.green({0});
  const CUcontext context = context_of_green(green);
  CUstream on_green = session.green_stream(green);
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  const CUfunction function = session.function("mark_sm");
  const CUgraph graph = captured_on(on_green, [&] { mark(function, on_green, before); });
  const CUgraphNode node = all_nodes(graph)[0];
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  Say{"the node's parameters {}", code(give_words(node, function, nullptr, context, after))};
  CUDA_KERNEL_NODE_PARAMS given{};
  VITAMIN_MUST(cuGraphKernelNodeGetParams(node, &given));
  Say{"  context {}", given.ctx == context             ? "green"
                      : given.ctx == session.primary() ? "primary"
                                                       : "another"};
  CUgraphExecUpdateResultInfo info{};
  Say{"the executable is updated {}", code(api.cuGraphExecUpdate(executable, graph, &info))};
  VITAMIN_MUST(cuGraphLaunch(executable, plain));
  drain();
  Say{"  {} processors", processors_marked(after)};
  for (const CUcontext asked : {context, CUcontext{nullptr}}) {
    Say{"parameters of the executable, {}: {}", asked != nullptr ? "its context" : "no context",
        code(give_words(node, function, nullptr, asked, before, executable))};
    VITAMIN_MUST(cuGraphLaunch(executable, plain));
    drain();
    Say{"  {} processors", processors_marked(before)};
  }
}

VITAMIN_RULE(graph_kernel_on_a_green_context_given_parameters,
             "Does a kernel that was moved to a green context stay there when its arguments "
             "change, before and after instantiation?") {
  Session session;
  CUdeviceptr before = session.memory(kGrid * 4), after = session.memory(kGrid * 4);
  const CUcontext context = context_of_green(session.green({0}));
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  const CUkernel kernel = session.kernel("mark_sm");
  const CUgraph graph =
      captured_on(plain, [&] { mark(reinterpret_cast<CUfunction>(kernel), plain, before); });
  const CUgraphNode node = all_nodes(graph)[0];
  must(give_words(node, nullptr, kernel, context, before), "move");
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  Say{"the node's parameters {}", code(give_words(node, nullptr, kernel, context, after))};
  CUgraphExecUpdateResultInfo info{};
  Say{"the executable is updated {}", code(api.cuGraphExecUpdate(executable, graph, &info))};
  VITAMIN_MUST(cuGraphLaunch(executable, plain));
  drain();
  Say{"  {} processors", processors_marked(after)};
  Say{"parameters of the executable {}",
      code(give_words(node, nullptr, kernel, context, before, executable))};
  VITAMIN_MUST(cuGraphLaunch(executable, plain));
  drain();
  Say{"  {} processors", processors_marked(before)};
}

VITAMIN_RULE(graph_attributes_outlive_parameters,
             "Does a kernel node keep its attributes when its parameters are set?") {
  Session session;
  CUdeviceptr words = session.memory(kGrid * 4);
  CUstream plain = session.stream(CU_STREAM_NON_BLOCKING);
  const CUfunction function = session.function("mark_sm");
  const CUgraph graph = captured_on(plain, [&] { mark(function, plain, words); });
  const CUgraphNode node = all_nodes(graph)[0];
  CUlaunchAttributeValue priority{};
  priority.priority = -1;
  VITAMIN_MUST(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority));
  CUlaunchAttributeValue cluster{};
  cluster.clusterDim.x = 2;
  cluster.clusterDim.y = cluster.clusterDim.z = 1;
  VITAMIN_MUST(
      cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster));
  must(give_words(node, function, nullptr, nullptr, words), "parameters");
  priority = cluster = {};
  VITAMIN_MUST(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority));
  VITAMIN_MUST(
      cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &cluster));
  Say{"priority {}, cluster of {}", priority.priority, cluster.clusterDim.x};
}

VITAMIN_RULE(graph_executable_given_another_child_graph,
             "Can a child graph of an executable be replaced, and an executable be updated from "
             "its own graph in which the child's node was replaced?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const auto graph_of = [&](std::uint32_t value, unsigned kernels) {
    return captured_on(stream, [&] {
      for (unsigned i = 0; i < kernels; ++i) must(log.append(stream, value + i), "launch");
    });
  };
  CUgraph graph = graph_of(1, 1);
  const CUgraphNode first = all_nodes(graph)[0];
  CUgraphNode child = nullptr;
  CUgraph body = graph_of(10, 2);
  VITAMIN_MUST(cuGraphAddChildGraphNode(&child, graph, &first, 1, body));
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph, 0));
  const auto run = [&] {
    VITAMIN_MUST(cuGraphLaunch(executable, stream));
    drain();
    Say{"  kernels {}", log.text()};
  };
  CUgraph other = graph_of(20, 2), larger = graph_of(30, 3);
  Say{"the executable's {}",
      code(api.cuGraphExecChildGraphNodeSetParams(executable, child, other))};
  run();
  Say{"a larger one {}", code(api.cuGraphExecChildGraphNodeSetParams(executable, child, larger))};
  run();
  // As backends/cuda does it.
  CUgraphNode made = nullptr;
  CUgraph third = graph_of(40, 2);
  VITAMIN_MUST(cuGraphAddChildGraphNode(&made, graph, &first, 1, third));
  VITAMIN_MUST(cuGraphDestroyNode(child));
  CUgraphExecUpdateResultInfo info{};
  Say{"updated from its graph {}", code(api.cuGraphExecUpdate(executable, graph, &info))};
  run();
}

VITAMIN_RULE(graph_nodes_of_a_chain_after_an_update,
             "Which node of an executable does a node in the middle of its first graph name, once "
             "it was updated from another graph?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  const auto chain_of = [&](std::uint32_t value) {
    return captured_on(stream, [&] {
      for (unsigned i = 0; i < 3; ++i) must(log.append(stream, value + i), "launch");
    });
  };
  const CUgraph first = chain_of(1), second = chain_of(11);
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuGraphInstantiate(&executable, first, 0));
  CUgraphExecUpdateResultInfo info{};
  Say{"update {}", code(api.cuGraphExecUpdate(executable, second, &info))};
  const CUgraphNode node = all_nodes(first)[1];
  CUDA_KERNEL_NODE_PARAMS parameters{};
  VITAMIN_MUST(cuGraphKernelNodeGetParams(node, &parameters));
  CUdeviceptr words = log.words();
  std::uint32_t value = 7;
  void* arguments[] = {&words, &value};
  parameters.kernelParams = arguments;
  Say{"its parameters {}", code(api.cuGraphExecKernelNodeSetParams(executable, node, &parameters))};
  VITAMIN_MUST(cuGraphLaunch(executable, stream));
  drain();
  Say{"kernels {}", log.text()};
}

VITAMIN_RULE(graph_executable_after_a_refused_update,
             "What does an executable hold after an update that was refused, and after the next "
             "one?") {
  Session session;
  const Log log(session);
  CUstream stream = session.stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr filled = session.memory(4);
  const auto graph_of = [&](std::uint32_t value, bool with_a_fill) {
    return captured_on(stream, [&] {
      must(log.append(stream, value), "launch");
      if (with_a_fill)
        VITAMIN_MUST(cuMemsetD32Async(filled, value, 1, stream));
      else
        must(log.append(stream, value + 1), "launch");
    });
  };
  CUgraphExec executable = nullptr;
  VITAMIN_MUST(cuGraphInstantiate(&executable, graph_of(1, false), 0));
  const auto update = [&](const char* what, CUgraph graph) {
    CUgraphExecUpdateResultInfo info{};
    Say{"{} {}", what, code(api.cuGraphExecUpdate(executable, graph, &info))};
    VITAMIN_MUST(cuGraphLaunch(executable, stream));
    drain();
    Say{"  kernels {}", log.text()};
  };
  update("another second node", graph_of(11, true));
  update("the same nodes", graph_of(21, false));
}

}  // namespace vitamin::differential
