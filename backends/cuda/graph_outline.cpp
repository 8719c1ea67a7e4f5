// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/graph_outline.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "hal/content_hash.h"

namespace vitamin::cuda {
namespace {

// For each node a hash of its type and of all that comes before it, or behind it.
std::vector<std::uint64_t> hashes(const GraphOutline& outline, bool before) {
  const std::size_t count = outline.nodes.size();
  std::vector<std::vector<std::size_t>> next(count);
  std::vector<std::size_t> missing(count, 0);
  for (const GraphOutline::Edge& edge : outline.edges) {
    const auto [from, to] = before ? std::pair(edge.from, edge.to) : std::pair(edge.to, edge.from);
    next[from].push_back(to);
    ++missing[to];
  }
  std::vector<std::uint64_t> sums(count, 0), result(count, 0);
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < count; ++i)
    if (missing[i] == 0) ready.push_back(i);
  for (std::size_t at = 0; at < ready.size(); ++at) {
    const std::size_t node = ready[at];
    hal::ContentHash hash;
    hash.add(static_cast<std::uint64_t>(outline.types[node]));
    hash.add(sums[node]);
    result[node] = hash.value();
    for (const std::size_t to : next[node]) {
      sums[to] += result[node];
      if (--missing[to] == 0) ready.push_back(to);
    }
  }
  return result;
}

}  // namespace

std::optional<std::vector<CUgraphNode>> nodes_of(const Api& api, CUgraph graph) {
  std::size_t count = 0;
  if (api.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return std::nullopt;
  std::vector<CUgraphNode> nodes(count);
  if (count > 0 && api.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS)
    return std::nullopt;
  return nodes;
}

std::optional<GraphOutline> GraphOutline::of(const Api& api, CUgraph graph, bool kernels,
                                             std::vector<CUgraphNode> order) {
  GraphOutline outline;
  outline.nodes = std::move(order);
  if (outline.nodes.empty()) {
    auto nodes = nodes_of(api, graph);
    if (!nodes) return std::nullopt;
    outline.nodes = std::move(*nodes);
  }
  std::unordered_map<CUgraphNode, std::size_t> index;
  for (const CUgraphNode node : outline.nodes) {
    index.emplace(node, index.size());
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    if (api.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return std::nullopt;
    outline.types.push_back(type);
    if (!kernels) continue;
    CUDA_KERNEL_NODE_PARAMS parameters{};
    if (type == CU_GRAPH_NODE_TYPE_KERNEL &&
        api.cuGraphKernelNodeGetParams_v2(node, &parameters) != CUDA_SUCCESS)
      return std::nullopt;
    outline.kernels.push_back(handle_of(parameters));
  }
  std::size_t count = 0;
  if (api.cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count) != CUDA_SUCCESS)
    return std::nullopt;
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  if (count > 0 &&
      api.cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &count) != CUDA_SUCCESS)
    return std::nullopt;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = index.find(from[i]), end = index.find(to[i]);
    if (begin == index.end() || end == index.end()) return std::nullopt;
    outline.edges.push_back({begin->second, end->second,
                             std::uint64_t{data[i].from_port} |
                                 std::uint64_t{data[i].to_port} << 8 |
                                 std::uint64_t{data[i].type} << 16});
  }
  std::sort(outline.edges.begin(), outline.edges.end(), [](const Edge& a, const Edge& b) {
    return std::tie(a.from, a.to, a.data) < std::tie(b.from, b.to, b.data);
  });
  return outline;
}

std::vector<bool> GraphOutline::distinct() const {
  const std::vector<std::uint64_t> before = hashes(*this, true), behind = hashes(*this, false);
  std::map<std::pair<std::uint64_t, std::uint64_t>, unsigned> seen;
  for (std::size_t i = 0; i < nodes.size(); ++i) ++seen[{before[i], behind[i]}];
  std::vector<bool> distinct;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    distinct.push_back(seen[{before[i], behind[i]}] == 1);
  return distinct;
}

}  // namespace vitamin::cuda
