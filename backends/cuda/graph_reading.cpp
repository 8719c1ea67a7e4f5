// SPDX-License-Identifier: Apache-2.0
//
// What a graph holds, by the driver's own answers, in hashes.
#include <algorithm>
#include <map>

#include "backends/cuda/graph.h"
#include "backends/cuda/launch_attributes.h"
#include "backends/cuda/status.h"

namespace vitamin::cuda {
namespace {

using Node = hal::GraphDescription::Node;

tl::unexpected<hal::Error> unsupported(const char* what) {
  return hal::fail(hal::Errc::kUnsupported, what);
}

// A node that is made of words: what shapes it, and addresses.
class Words {
 public:
  Words(CUgraphNodeType type, hal::ArgumentHash hash) : hash_(hash) {
    shape(static_cast<std::uint64_t>(type));
  }
  void shape(std::uint64_t word) {
    structure_.add(word);
    exact_.add(word);
  }
  void value(std::uint64_t word) { argument(&word, sizeof word); }
  void address(std::uint64_t word) { value(word); }
  void argument(const void* bytes, std::size_t count) {
    arguments_.add(hash_(bytes, count));
    exact_.bytes(bytes, count);
  }
  void exactly(std::uint64_t word) { exact_.add(word); }
  Node node() const { return {structure_.value(), arguments_.value(), exact_.value()}; }

 private:
  hal::ArgumentHash hash_;
  hal::ContentHash structure_, arguments_, exact_;
};

// The packed form of arguments; false when it is none that we know.
bool add_packed(void** extra, Words& words) {
  const void* buffer = nullptr;
  std::size_t size = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[1];
    else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
      size = *static_cast<const std::size_t*>(extra[1]);
    else
      return false;
  }
  words.argument(buffer, buffer != nullptr ? size : 0);
  return true;
}

}  // namespace

std::uint64_t KernelFacts::name(hal::KernelHandle kernel) {
  std::optional<std::uint64_t>& known = known_[kernel].name;
  if (!known) {
    const std::string name = inspector_.name(kernel);
    hal::ContentHash hash;
    hash.bytes(name.data(), name.size());
    known = hash.value();
  }
  return *known;
}

const hal::Result<hal::KernelLayout>& KernelFacts::layout(hal::KernelHandle kernel) {
  std::optional<hal::Result<hal::KernelLayout>>& known = known_[kernel].layout;
  if (!known) known = inspector_.layout(kernel);
  return *known;
}

bool KernelFacts::is_kernel(const Api& api, CUfunction function) {
  std::optional<bool>& known = known_[function].is_kernel;
  CUfunction its = nullptr;
  if (!known)
    known = api.cuKernelGetFunction(&its, reinterpret_cast<CUkernel>(function)) == CUDA_SUCCESS;
  return *known;
}

// Reads one graph and those inside it.
class GraphReader::Walk {
 public:
  Walk(const GraphReader& reader, GraphReading& into)
      : reader_(reader), api_(reader.api_), reading_(into) {}

  hal::Status graph(CUgraph graph, hal::GraphDescription& description,
                    std::vector<CUgraphNode>& handles, int depth) {
    std::size_t count = 0;
    if (depth > kGraphDepthMax || api_.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS)
      return unsupported("a graph does not tell its nodes");
    handles.resize(count);
    if (count > 0 && api_.cuGraphGetNodes(graph, handles.data(), &count) != CUDA_SUCCESS)
      return unsupported("a graph does not tell its nodes");
    std::map<CUgraphNode, std::uint32_t> index;
    for (const CUgraphNode handle : handles) {
      index.emplace(handle, static_cast<std::uint32_t>(description.nodes.size()));
      hal::Result<Node> read = node(handle, depth);
      if (!read) return tl::unexpected(read.error());
      description.nodes.push_back(*read);
      if (depth == 0) reading_.kernels_end.push_back(reading_.kernels.size());
    }
    return edges(graph, index, description);
  }
  hal::Result<Node> node(CUgraphNode handle) { return node(handle, 0); }

 private:
  hal::Status edges(CUgraph graph, const std::map<CUgraphNode, std::uint32_t>& index,
                    hal::GraphDescription& description) {
    std::size_t count = 0;
    if (api_.cuGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count) != CUDA_SUCCESS)
      return unsupported("a graph does not tell its edges");
    std::vector<CUgraphNode> from(count), to(count);
    std::vector<CUgraphEdgeData> data(count);
    if (count > 0 &&
        api_.cuGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &count) != CUDA_SUCCESS)
      return unsupported("a graph does not tell its edges");
    for (std::size_t i = 0; i < count; ++i)
      description.edges.push_back({index.at(from[i]), index.at(to[i]),
                                   std::uint64_t{data[i].from_port} |
                                       std::uint64_t{data[i].to_port} << 8 |
                                       std::uint64_t{data[i].type} << 16});
    return {};
  }

  hal::Result<Node> node(CUgraphNode handle, int depth) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    if (api_.cuGraphNodeGetType(handle, &type) != CUDA_SUCCESS)
      return unsupported("a node does not tell its type");
    switch (type) {
      case CU_GRAPH_NODE_TYPE_KERNEL:
        return kernel(handle);
      case CU_GRAPH_NODE_TYPE_MEMCPY: {
        CUDA_MEMCPY3D box{};
        if (api_.cuGraphMemcpyNodeGetParams(handle, &box) != CUDA_SUCCESS)
          return unsupported("a copy does not tell its parameters");
        return reader_.copy(box);
      }
      case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill{};
        if (api_.cuGraphMemsetNodeGetParams(handle, &fill) != CUDA_SUCCESS)
          return unsupported("a fill does not tell its parameters");
        return reader_.fill(fill);
      }
      case CU_GRAPH_NODE_TYPE_EMPTY:
        return Words(type, reader_.hash_).node();
      case CU_GRAPH_NODE_TYPE_GRAPH:
        return child(handle, depth);
      default:
        return unsupported("a node of the graph stays where the application put it");
    }
  }

  hal::Result<Node> child(CUgraphNode handle, int depth) {
    CUgraph inner = nullptr;
    if (api_.cuGraphChildGraphNodeGetGraph(handle, &inner) != CUDA_SUCCESS)
      return unsupported("a child graph does not tell its nodes");
    return child_of(inner, depth);
  }

 public:
  hal::Result<Node> child_of(CUgraph inner, int depth) {
    hal::GraphDescription description;
    std::vector<CUgraphNode> handles;
    if (const hal::Status read = graph(inner, description, handles, depth + 1); !read)
      return tl::unexpected(read.error());
    const hal::GraphShape shape = description.shape();
    Words words(CU_GRAPH_NODE_TYPE_GRAPH, reader_.hash_);
    words.shape(shape.structure);
    words.value(shape.arguments);
    words.exactly(shape.exact);
    Node node = words.node();
    node.nodes += shape.nodes;
    node.edges += shape.edges;
    return node;
  }

 private:
  hal::Result<Node> kernel(CUgraphNode handle) {
    CUDA_KERNEL_NODE_PARAMS parameters{};
    if (api_.cuGraphKernelNodeGetParams_v2(handle, &parameters) != CUDA_SUCCESS)
      return unsupported("a kernel node does not tell its parameters");
    hal::KernelLaunch launch;
    launch.kernel = handle_of(parameters);
    launch.grid = {parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ};
    launch.block = {parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ};
    launch.shared_bytes = parameters.sharedMemBytes;
    hal::ContentHash attributes;
    LaunchAttributes facts;
    for (int id = 1; id < kAttributes; ++id) {
      CUlaunchAttributeValue value{};
      const auto attribute = static_cast<CUlaunchAttributeID>(id);
      if (!reader_.asked_.test(static_cast<std::size_t>(id)) ||
          api_.cuGraphKernelNodeGetAttribute(handle, attribute, &value) != CUDA_SUCCESS)
        continue;
      reading_.attributes.set(static_cast<std::size_t>(id));
      attributes.add(static_cast<std::uint64_t>(id));
      attributes.add(reader_.hash_(&value, sizeof value));
      facts.read(attribute, value);
    }
    if (facts.updatable_node) return unsupported("kernels change a node of the graph");
    facts.describe(launch);
    launch.programmatic = false;  // of a node, its edges say so
    reading_.kernels.push_back(launch);
    reading_.contexts.push_back(parameters.ctx);
    return reader_.kernel(parameters, attributes.value());
  }

  const GraphReader& reader_;
  const Api& api_;
  GraphReading& reading_;
};

hal::Result<GraphReading> GraphReader::read(CUgraph graph) const {
  GraphReading reading;
  Walk walk(*this, reading);
  if (const hal::Status read = walk.graph(graph, reading.description, reading.handles, 0); !read)
    return tl::unexpected(read.error());
  return reading;
}

hal::Result<GraphReading> GraphReader::read_node(CUgraphNode node) const {
  GraphReading reading;
  const hal::Result<Node> read = Walk(*this, reading).node(node);
  if (!read) return tl::unexpected(read.error());
  reading.description.nodes.push_back(*read);
  return reading;
}

hal::Result<Node> GraphReader::read_child(CUgraph graph) const {
  GraphReading reading;
  return Walk(*this, reading).child_of(graph, 0);
}

hal::Result<bool> GraphReader::read_again(GraphReading& reading, std::size_t at,
                                          bool attributes) const {
  const CUgraphNode handle = reading.handles[at];
  Node& node = reading.description.nodes[at];
  const std::size_t begin = at > 0 ? reading.kernels_end[at - 1] : 0;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (api_.cuGraphNodeGetType(handle, &type) != CUDA_SUCCESS)
    return unsupported("a node does not tell its type");
  const bool kernel_only = type == CU_GRAPH_NODE_TYPE_KERNEL;
  if (kernel_only && !attributes) {
    CUDA_KERNEL_NODE_PARAMS parameters{};
    if (api_.cuGraphKernelNodeGetParams_v2(handle, &parameters) != CUDA_SUCCESS)
      return unsupported("a kernel node does not tell its parameters");
    hal::KernelLaunch& launch = reading.kernels[begin];
    if (handle_of(parameters) != launch.kernel) return false;
    const hal::Result<Node> read = kernel(parameters, node.attributes);
    if (!read) return tl::unexpected(read.error());
    node = *read;
    launch.grid = {parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ};
    launch.block = {parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ};
    launch.shared_bytes = parameters.sharedMemBytes;
    reading.contexts[begin] = parameters.ctx;
    return true;
  }
  const hal::Result<GraphReading> part = read_node(handle);
  if (!part) return tl::unexpected(part.error());
  if (kernel_only && (part->kernels[0].kernel != reading.kernels[begin].kernel ||
                      part->description.nodes[0].attributes != node.attributes))
    return false;
  node = part->description.nodes[0];
  reading.attributes |= part->attributes;
  const std::size_t end = reading.kernels_end[at];
  const auto replace = [&](auto& all, const auto& by) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
    all.insert(all.erase(first, first + static_cast<std::ptrdiff_t>(end - begin)), by.begin(),
               by.end());
  };
  replace(reading.kernels, part->kernels);
  replace(reading.contexts, part->contexts);
  for (std::size_t i = at; i < reading.kernels_end.size(); ++i)
    reading.kernels_end[i] = reading.kernels_end[i] - end + begin + part->kernels.size();
  return true;
}

hal::Result<Node> GraphReader::kernel(const CUDA_KERNEL_NODE_PARAMS& parameters,
                                      std::uint64_t attributes) const {
  const void* const kernel = handle_of(parameters);
  Words words(CU_GRAPH_NODE_TYPE_KERNEL, hash_);
  words.shape(kernels_.name(kernel));
  for (const unsigned size :
       {parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ, parameters.blockDimX,
        parameters.blockDimY, parameters.blockDimZ, parameters.sharedMemBytes})
    words.shape(size);
  words.shape(attributes);
  if (parameters.extra != nullptr && parameters.kernelParams == nullptr) {
    if (!add_packed(parameters.extra, words)) return unsupported("arguments of an unknown form");
  } else {
    const hal::Result<hal::KernelLayout>& layout = kernels_.layout(kernel);
    if (!layout) return tl::unexpected(layout.error());
    if (!layout->parameters.empty() && parameters.kernelParams == nullptr)
      return unsupported("a kernel node does not tell its arguments");
    for (std::size_t i = 0; i < layout->parameters.size(); ++i)
      words.argument(parameters.kernelParams[i], layout->parameters[i].size);
  }
  Node node = words.node();
  node.attributes = attributes;
  return node;
}

// The driver tells a copy in other words than it was given: where its first byte lies and how far
// apart rows and layers are is what both agree on.
Node GraphReader::copy(const CUDA_MEMCPY3D& box) const {
  const std::uint64_t rows = std::max<std::size_t>(box.Height, 1);
  const std::uint64_t layers = std::max<std::size_t>(box.Depth, 1);
  Words words(CU_GRAPH_NODE_TYPE_MEMCPY, hash_);
  for (const std::uint64_t size : {std::uint64_t{box.WidthInBytes}, rows, layers})
    words.shape(size);
  const auto side = [&](CUmemorytype type, const void* host, CUdeviceptr device, CUarray array,
                        std::uint64_t x, std::uint64_t y, std::uint64_t z, std::uint64_t pitch,
                        std::uint64_t height) {
    if (type == CU_MEMORYTYPE_ARRAY) {
      for (const std::uint64_t place : {x, y, z}) words.shape(place);
      return words.address(reinterpret_cast<std::uintptr_t>(array));
    }
    words.shape(rows > 1 || layers > 1 ? pitch : 0);
    words.shape(layers > 1 ? height : 0);
    const std::uint64_t base =
        type == CU_MEMORYTYPE_HOST ? reinterpret_cast<std::uintptr_t>(host) : std::uint64_t{device};
    words.address(base + x + (y + z * height) * pitch);
  };
  side(box.srcMemoryType, box.srcHost, box.srcDevice, box.srcArray, box.srcXInBytes, box.srcY,
       box.srcZ, box.srcPitch, box.srcHeight);
  side(box.dstMemoryType, box.dstHost, box.dstDevice, box.dstArray, box.dstXInBytes, box.dstY,
       box.dstZ, box.dstPitch, box.dstHeight);
  return words.node();
}

Node GraphReader::fill(const CUDA_MEMSET_NODE_PARAMS& fill) const {
  Words words(CU_GRAPH_NODE_TYPE_MEMSET, hash_);
  for (const std::uint64_t word :
       {std::uint64_t{fill.width}, std::uint64_t{fill.height}, std::uint64_t{fill.elementSize},
        std::uint64_t{fill.height > 1 ? fill.pitch : 0}})
    words.shape(word);
  words.value(fill.value);
  words.address(fill.dst);
  return words.node();
}

}  // namespace vitamin::cuda
