// SPDX-License-Identifier: Apache-2.0
//
// Memory of graphs' allocation nodes.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "interpose/handle_map.h"
#include "interpose/memory.h"
#include VITAMIN_VENDOR_HOOKS

namespace vitamin::interpose {

namespace {

// What an executable's nodes take of one device: the addresses that they are given, of which those
// of lifetimes that do not overlap are the same.
struct GraphNeed {
  std::uint64_t bytes = 0;
  bool leaves = false;  // memory allocated: it is freed elsewhere, if at all
};
using GraphNeeds = std::map<int, GraphNeed>;  // by device

// What a process's graphs have of one device.
struct DeviceGraphs {
  std::mutex mutex;  // of `taken`
  ReservedMemory memory;
  // The most that was taken since the device was trimmed: by the executables that were launched
  // into a stream, which share it there, or by one that leaves memory allocated.
  std::map<const void*, std::uint64_t> taken;
};
constinit std::atomic<DeviceGraphs*> graphs_of_device[kMaxContexts]{};

constinit HandleMap<GraphNeeds> graph_needs;

DeviceGraphs* graphs_of(int ordinal) {
  if (ordinal < 0 || ordinal >= kMaxContexts) return nullptr;
  DeviceQuotas* const quotas = quotas_of(ordinal);
  if (quotas == nullptr) return nullptr;
  DeviceGraphs* graphs = graphs_of_device[ordinal].load(std::memory_order_acquire);
  if (graphs != nullptr) return graphs;
  auto made = std::make_unique<DeviceGraphs>();
  made->memory.begin(quotas);
  if (!graphs_of_device[ordinal].compare_exchange_strong(graphs, made.get(),
                                                         std::memory_order_acq_rel))
    return graphs;
  return made.release();
}

// The addresses of a graph's allocation nodes on one device.
struct GraphAddresses {
  // Of drivers: smaller pieces are not mapped.
  static constexpr std::uint64_t kGranularity = std::uint64_t{2} << 20;
  std::map<std::uint64_t, std::uint64_t> ranges;  // begin, end

  void add(std::uint64_t address, std::uint64_t bytes) {
    std::uint64_t& end = ranges[address / kGranularity * kGranularity];
    end = std::max(end, (address + bytes + kGranularity - 1) / kGranularity * kGranularity);
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0, reached = 0;
    for (const auto& [begin, end] : ranges) {
      if (end > reached) sum += end - std::max(begin, reached);
      reached = std::max(reached, end);
    }
    return sum;
  }
};

GraphNeeds needs_of(Graph graph, int depth = 0) {
  constexpr int kDeepestGraph = 16;
  std::size_t count = 0;
  if (depth > kDeepestGraph || nodes_of(graph, nullptr, count) != kSuccess) return {};
  std::vector<GraphNode> nodes(count);
  if (count > 0 && nodes_of(graph, nodes.data(), count) != kSuccess) return {};
  GraphNeeds needs;
  std::map<int, GraphAddresses> addresses;
  std::map<std::uint64_t, std::pair<int, int>> times;  // allocated more often than freed; device
  for (const GraphNode node : nodes) {
    Graph child{};
    const MemoryNode memory = memory_node(node);
    if (memory.kind == MemoryNode::Kind::kFrees) {
      --times[memory.address].first;
    } else if (memory.kind == MemoryNode::Kind::kAllocates) {
      auto& [more, ordinal] = times[memory.address];
      ++more;
      ordinal = memory.ordinal;
      addresses[memory.ordinal].add(memory.address, memory.bytes);
    } else if (kind_of(node, child) == NodeKind::kGraph) {
      for (const auto& [ordinal, inner] : needs_of(child, depth + 1)) {
        needs[ordinal].bytes += inner.bytes;
        needs[ordinal].leaves = needs[ordinal].leaves || inner.leaves;
      }
    }
  }
  for (const auto& [ordinal, each] : addresses) needs[ordinal].bytes += each.bytes();
  for (const auto& [address, each] : times)
    if (each.first > 0) needs[each.second].leaves = true;
  return needs;
}

// False: refused.
bool charge_need(int ordinal, const GraphNeed& need, const void* user, GraphCharges& charges) {
  DeviceGraphs* const graphs = graphs_of(ordinal);
  if (graphs == nullptr) return true;
  std::uint64_t bytes = 0;
  const auto take = [&] {
    const std::lock_guard lock(graphs->mutex);
    const auto found = graphs->taken.find(user);
    const std::uint64_t had = found != graphs->taken.end() ? found->second : 0;
    bytes = need.bytes > had ? need.bytes - had : 0;
    if (!graphs->memory.charge(bytes)) {
      // Of executables that are no more the device may have kept enough.
      const std::uint64_t reserved = graph_memory(ordinal, Figure::kReserved);
      const std::uint64_t used = graph_memory(ordinal, Figure::kUsed);
      bytes -= std::min(bytes, reserved - std::min(reserved, used));
      if (!graphs->memory.charge(bytes)) return false;
    }
    graphs->taken[user] = std::max(had, need.bytes);
    return true;
  };
  bool taken = take();
  if (!taken) {
    make_room(*graphs->memory.quotas());
    taken = take();
  }
  if (taken)
    charges.devices.push_back({ordinal, user, bytes});
  else
    graphs->memory.quotas()->explain(need.bytes);
  return taken;
}

GraphCharges charge_needs(const GraphNeeds& needs, GraphExec executable, NativeStream stream) {
  GraphCharges charges;
  for (const auto& [ordinal, need] : needs) {
    const void* const user =
        need.leaves && executable != nullptr ? static_cast<const void*>(executable) : stream;
    if (charge_need(ordinal, need, user, charges)) continue;
    charges.refused = true;
    static_cast<void>(settle_graph(charges, kOutOfMemory));
    break;
  }
  return charges;
}

// What was taken is not known any more if the device gave some of it back.
void graphs_trimmed(int ordinal, DeviceGraphs& graphs, std::uint64_t reserved_before) {
  const std::uint64_t reserved = graph_memory(ordinal, Figure::kReserved);
  if (reserved < reserved_before) {
    const std::lock_guard lock(graphs.mutex);
    graphs.taken.clear();
  }
  graphs.memory.settle(reserved);
}

}  // namespace

void trim_graphs_of(const DeviceQuotas& quotas) {
  for (int ordinal = 0; ordinal < kMaxContexts; ++ordinal) {
    DeviceGraphs* const graphs = graphs_of_device[ordinal].load(std::memory_order_acquire);
    if (graphs == nullptr || graphs->memory.quotas() != &quotas) continue;
    const std::uint64_t before = graph_memory(ordinal, Figure::kReserved);
    if (before == 0) continue;
    trim_graph_memory(ordinal);
    graphs_trimmed(ordinal, *graphs, before);
  }
}

GraphCharges charge_graph(GraphExec executable, NativeStream stream) {
  const GraphNeeds* const needs = graph_needs.find(executable);
  if (needs != nullptr) return charge_needs(*needs, executable, stream);
  // Of nodes that the vendor does not tell the memory is counted when it was taken.
  return kTellsMemoryNodes ? GraphCharges{}
                           : charge_needs({{current_ordinal(), {}}}, executable, stream);
}

// One that leaves memory allocated is charged again, for itself, when it is launched.
GraphCharges charge_graph_of(Graph graph, NativeStream stream) {
  return charge_needs(needs_of(graph), GraphExec{}, stream);
}

ApiStatus settle_graph(const GraphCharges& charges, ApiStatus answer) {
  for (const GraphCharge& charge : charges.devices) {
    DeviceGraphs& graphs = *graphs_of(charge.ordinal);
    const std::uint64_t reserved = graph_memory(charge.ordinal, Figure::kReserved);
    graphs.memory.landed(charge.bytes);
    graphs.memory.settle(reserved);
    // Work that is submitted cannot be taken back: what it took is counted.
    graphs.memory.settle_at_any_price(reserved);
    if (answer == kSuccess) continue;
    const std::lock_guard lock(graphs.mutex);
    graphs.taken.erase(charge.user);
    if (answer == kOutOfMemory && !charges.refused)
      vendor_refused(*graphs.memory.quotas(), charge.bytes);
  }
  return answer;
}

void note_graph_memory(GraphExec executable, Graph graph) {
  GraphNeeds needs = needs_of(graph);
  if (needs.empty()) return forget_graph_memory(executable);
  delete graph_needs.insert(executable, std::make_unique<GraphNeeds>(std::move(needs)).release());
}

void forget_graph_memory(GraphExec executable) { delete graph_needs.erase(executable); }

ApiStatus graph_trim(EntryPoint<ApiStatus(int)> entry, int ordinal) {
  DeviceGraphs* const graphs = no_quotas() ? nullptr : graphs_of(ordinal);
  const std::uint64_t before = graphs != nullptr ? graph_memory(ordinal, Figure::kReserved) : 0;
  const ApiStatus answer = Flushed::run(entry, ordinal);
  if (graphs != nullptr) graphs_trimmed(ordinal, *graphs, before);
  return answer;
}

}  // namespace vitamin::interpose
