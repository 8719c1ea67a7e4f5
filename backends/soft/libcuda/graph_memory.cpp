// SPDX-License-Identifier: Apache-2.0
#include "backends/soft/libcuda/graph_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "backends/soft/libcuda/capture.h"
#include "backends/soft/libcuda/entry.h"
#include "backends/soft/libcuda/memory.h"

namespace vitamin::soft::driver {
namespace {

constexpr std::size_t kGraphGranularity = std::size_t{2} << 20;

void* address_of(const GraphBlock& block) { return reinterpret_cast<void*>(block.base); }

// Replaces what is at the block's addresses. Without this a failure, for example too many mappings
// in this process, would show as an invalid access of a kernel, or not at all.
void map_over(const GraphBlock& block, int protection, int flags, int fd, off_t offset) {
  if (mmap(address_of(block), block.bytes, protection, flags | MAP_FIXED, fd, offset) != MAP_FAILED)
    return;
  std::perror("software driver: memory of a graph cannot be mapped");
  std::abort();
}

void hide(const GraphBlock& block) {
  map_over(block, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

std::shared_ptr<GraphBlock> reserve_block(std::size_t bytes) {
  void* const address =
      mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto block = std::make_shared<GraphBlock>();
  block->base = reinterpret_cast<std::uintptr_t>(address);
  block->bytes = bytes;
  return block;
}

// Whether `node` is among the nodes, or comes before one of them on some way.
bool comes_before(const GraphNode* node, const std::vector<GraphNode*>& nodes) {
  std::set<const GraphNode*> seen;
  std::vector<const GraphNode*> open(nodes.begin(), nodes.end());
  while (!open.empty()) {
    const GraphNode* const next = open.back();
    open.pop_back();
    if (next == node) return true;
    if (seen.insert(next).second)
      open.insert(open.end(), next->dependencies.begin(), next->dependencies.end());
  }
  return false;
}

std::vector<std::shared_ptr<GraphBlock>> blocks_of(const GraphExec& exec) {
  std::vector<std::shared_ptr<GraphBlock>> blocks;
  for (const ExecNode& node : exec.nodes)
    if (const auto* allocation = std::get_if<GraphAllocCommand>(&node.command);
        allocation != nullptr &&
        std::find(blocks.begin(), blocks.end(), allocation->block) == blocks.end())
      blocks.push_back(allocation->block);
  return blocks;
}

// What the graph allocates and does not free.
std::set<std::shared_ptr<GraphBlock>> left_by(const GraphExec& exec) {
  std::set<std::shared_ptr<GraphBlock>> left;
  for (const ExecNode& node : exec.nodes) {
    if (const auto* allocation = std::get_if<GraphAllocCommand>(&node.command))
      left.insert(allocation->block);
    else if (const auto* free = std::get_if<GraphFreeCommand>(&node.command))
      left.erase(free->block);
  }
  return left;
}

bool has_ended(const GraphExec& exec) { return exec.device->engine->query(exec.done.get()) == kOk; }

bool idle(const GraphSlab& slab) {
  return slab.live.empty() && slab.freeing == 0 &&
         std::all_of(slab.executables.begin(), slab.executables.end(),
                     [](const GraphExec* exec) { return has_ended(*exec); });
}

// The slab for launches into this stream, or of an executable that leaves memory allocated.
std::shared_ptr<GraphSlab> slab_for(Device& device, const void* user) {
  auto& slabs = device.graph_slabs;
  if (const auto found = slabs.find(user); found != slabs.end()) return found->second;
  const auto unused = std::find_if(slabs.begin(), slabs.end(), [](const auto& each) {
    return each.second->executables.empty() && each.second->live.empty() &&
           each.second->freeing == 0;
  });
  std::shared_ptr<GraphSlab> slab;
  if (unused != slabs.end()) {
    slab = unused->second;
    slabs.erase(unused);
  } else {
    slab = std::make_shared<GraphSlab>(&device);
  }
  slabs[user] = slab;
  return slab;
}

void count(Device& device) {
  std::size_t reserved = 0, used = 0;
  for (const auto& [user, slab] : device.graph_slabs) {
    reserved += slab->bytes;
    if (!slab->executables.empty() || !slab->live.empty() || slab->freeing != 0)
      used += slab->bytes;
  }
  device.graph_memory.reserved = reserved;
  device.graph_memory.used = used;
  device.graph_memory.reserved_high = std::max(device.graph_memory.reserved_high, reserved);
  device.graph_memory.used_high = std::max(device.graph_memory.used_high, used);
}

}  // namespace

GraphBlock::~GraphBlock() {
  driver().allocations.erase(base);
  munmap(address_of(*this), bytes);
}

GraphSlab::GraphSlab(Device* owner)
    : device(owner), fd(memfd_create("graph-memory", MFD_CLOEXEC)) {}
GraphSlab::~GraphSlab() {
  if (fd >= 0) close(fd);
}

CUresult make_graph_block(Graph& graph, const std::vector<GraphNode*>& dependencies,
                          std::size_t bytes, Context& context, GraphAllocCommand* command) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t rounded =
      (bytes + kGraphGranularity - 1) / kGraphGranularity * kGraphGranularity;
  std::shared_ptr<GraphBlock> block;
  for (const auto& node : graph.nodes) {
    const auto* allocation = std::get_if<GraphAllocCommand>(&node->command);
    if (allocation == nullptr || allocation->block->freed_by == nullptr ||
        allocation->block->bytes < rounded ||
        !comes_before(allocation->block->freed_by, dependencies))
      continue;
    block = allocation->block;
    block->freed_by = nullptr;
    break;
  }
  if (block == nullptr) {
    block = reserve_block(rounded);
    if (block == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    MemoryAllocation allocation;
    allocation.base = block->base;
    allocation.bytes = rounded;
    allocation.kind = MemoryKind::kGraph;
    allocation.context = context.root;
    allocation.id = driver().next_id++;
    driver().allocations[block->base] = allocation;
  }
  *command = GraphAllocCommand{std::move(block), bytes, context.device->ordinal};
  return CUDA_SUCCESS;
}

CUresult free_in_graph(const Graph& graph, std::uintptr_t base, GraphFreeCommand* command) {
  for (const auto& node : graph.nodes) {
    const auto* allocation = std::get_if<GraphAllocCommand>(&node->command);
    if (allocation == nullptr || allocation->block->base != base ||
        allocation->block->freed_by != nullptr)
      continue;
    command->block = allocation->block;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

void note_graph_free(GraphNode& node) {
  if (const auto* free = std::get_if<GraphFreeCommand>(&node.command))
    free->block->freed_by = &node;
}

bool allocates(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const auto& node) {
    return std::holds_alternative<GraphAllocCommand>(node->command);
  });
}

CUresult back_graph(GraphExec& exec, const Stream& stream, Queue* queue) {
  auto blocks = std::make_shared<std::vector<std::shared_ptr<GraphBlock>>>(blocks_of(exec));
  if (blocks->empty()) return CUDA_SUCCESS;
  const auto left = left_by(exec);
  if (exec.slab != nullptr && (exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0 &&
      std::any_of(left.begin(), left.end(),
                  [&](const auto& block) { return exec.slab->live.contains(block); }))
    return CUDA_ERROR_INVALID_VALUE;  // it is allocated still
  const void* const user = left.empty() ? static_cast<const void*>(&stream) : &exec;
  const std::shared_ptr<GraphSlab> slab = slab_for(*exec.device, user);
  std::size_t bytes = 0;
  for (const auto& block : *blocks) bytes += block->bytes;
  if (slab->bytes < bytes) {
    const CUresult error = result_of(exec.device->engine->take_memory(bytes - slab->bytes));
    if (error != CUDA_SUCCESS) return error;
    slab->bytes = bytes;
    if (ftruncate(slab->fd, static_cast<off_t>(bytes)) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (exec.slab == slab) return CUDA_SUCCESS;
  if (exec.slab != nullptr) exec.slab->executables.erase(&exec);
  slab->executables.insert(&exec);
  exec.slab = slab;
  count(*exec.device);
  // Behind the executable's launch before, which may use other memory at these addresses.
  return result_of(exec.device->engine->work(
      queue,
      [blocks, slab] {
        off_t offset = 0;
        for (const auto& block : *blocks) {
          map_over(*block, PROT_READ | PROT_WRITE, MAP_SHARED, slab->fd, offset);
          offset += static_cast<off_t>(block->bytes);
        }
      },
      0));
}

void note_graph_launch(GraphExec& exec) {
  if (exec.slab == nullptr) return;
  exec.slab->live.merge(left_by(exec));
  for (const ExecNode& node : exec.nodes)
    if (const auto* free = std::get_if<GraphFreeCommand>(&node.command))
      exec.slab->live.erase(free->block);
  count(*exec.device);
}

void leave_graph_memory(GraphExec& exec) {
  if (exec.slab == nullptr) return;
  exec.slab->executables.erase(&exec);
  // Work of it may be running.
  auto blocks = blocks_of(exec);
  auto& retired = exec.slab->retired_blocks;
  retired.insert(retired.end(), blocks.begin(), blocks.end());
  count(*exec.device);
}

CUresult free_graph_allocation(std::uintptr_t base, Stream* stream) {
  for (const auto& device : driver().devices)
    for (const auto& [user, slab] : device->graph_slabs) {
      const auto found = std::find_if(slab->live.begin(), slab->live.end(),
                                      [&](const auto& block) { return block->base == base; });
      if (found == slab->live.end()) continue;
      slab->live.erase(found);
      count(*device);
      if (stream == nullptr) return CUDA_SUCCESS;
      ++slab->freeing;
      const CUresult freed = result_of(stream->engine().work(
          stream->queue.get(),
          [slab = slab] {
            const std::lock_guard lock(driver().mutex);
            --slab->freeing;
            count(*slab->device);
          },
          0));
      stream->work_ticket = stream->engine().last_ticket(stream->queue.get());
      return freed;
    }
  return CUDA_ERROR_INVALID_VALUE;
}

// ---------------------------------------------------------------------------------- entry points

CUresult api::cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                           void* value) {
  const std::lock_guard lock(driver().mutex);
  Device* const device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  cuuint64_t number = 0;
  switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      number = device->graph_memory.used;
      break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      number = device->graph_memory.used_high;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      number = device->graph_memory.reserved;
      break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      number = device->graph_memory.reserved_high;
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  *static_cast<cuuint64_t*>(value) = number;
  return CUDA_SUCCESS;
}

// The high-water marks can be reset and not set.
CUresult api::cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                           void* value) {
  const std::lock_guard lock(driver().mutex);
  Device* const device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (value == nullptr || *static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  GraphMemoryUse& use = device->graph_memory;
  if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
    use.used_high = use.used;
  else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
    use.reserved_high = use.reserved;
  else
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult api::cuDeviceGraphMemTrim(CUdevice ordinal) {
  const std::lock_guard lock(driver().mutex);
  Device* const device = driver().device(ordinal);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::erase_if(device->graph_slabs, [](const auto& each) {
    GraphSlab& slab = *each.second;
    if (!idle(slab)) return false;
    for (GraphExec* exec : slab.executables) {
      for (const auto& block : blocks_of(*exec)) hide(*block);
      exec->slab.reset();
    }
    slab.device->engine->give_memory(slab.bytes);
    return true;
  });
  count(*device);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphMemAllocNodeGetParams(CUgraphNode handle,
                                           CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  const std::lock_guard lock(driver().mutex);
  const GraphNode* const node = find_node(handle);
  const auto* allocation =
      node != nullptr ? std::get_if<GraphAllocCommand>(&node->command) : nullptr;
  if (allocation == nullptr || parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *parameters = CUDA_MEM_ALLOC_NODE_PARAMS{};
  parameters->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters->poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, allocation->ordinal};
  parameters->bytesize = allocation->bytes;
  parameters->dptr = static_cast<CUdeviceptr>(allocation->block->base);
  return CUDA_SUCCESS;
}

CUresult api::cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr* pointer) {
  const std::lock_guard lock(driver().mutex);
  const GraphNode* const node = find_node(handle);
  const auto* free = node != nullptr ? std::get_if<GraphFreeCommand>(&node->command) : nullptr;
  if (free == nullptr || pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pointer = static_cast<CUdeviceptr>(free->block->base);
  return CUDA_SUCCESS;
}

}  // namespace vitamin::soft::driver
