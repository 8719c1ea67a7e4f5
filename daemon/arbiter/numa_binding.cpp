// SPDX-License-Identifier: Apache-2.0
#include "daemon/arbiter/numa_binding.h"

#include <hwloc.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace vitamin::daemon {
namespace {

struct FreeBitmap {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

Bitmap bitmap_of(const std::vector<unsigned>& processors) {
  Bitmap bitmap(hwloc_bitmap_alloc());
  for (const unsigned processor : processors) hwloc_bitmap_set(bitmap.get(), processor);
  return bitmap;
}

std::vector<unsigned> processors_of(hwloc_const_bitmap_t bitmap) {
  std::vector<unsigned> processors;
  for (int i = hwloc_bitmap_first(bitmap); i >= 0; i = hwloc_bitmap_next(bitmap, i))
    processors.push_back(static_cast<unsigned>(i));
  return processors;
}

}  // namespace

NumaBinding::NumaBinding(const std::string& synthetic) {
  if (hwloc_topology_init(&topology_) != 0) return;
  hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (!synthetic.empty()) hwloc_topology_set_synthetic(topology_, synthetic.c_str());
  if (hwloc_topology_load(topology_) == 0) return;
  hwloc_topology_destroy(topology_);
  topology_ = nullptr;
}

NumaBinding::~NumaBinding() {
  if (topology_ != nullptr) hwloc_topology_destroy(topology_);
}

std::size_t NumaBinding::nodes() const {
  if (topology_ == nullptr) return 0;
  const int count = hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_NUMANODE);
  return static_cast<std::size_t>(std::max(0, count));
}

std::optional<unsigned> NumaBinding::node_of(const std::string& pci) const {
  if (topology_ == nullptr) return std::nullopt;
  const hwloc_obj_t found = hwloc_get_pcidev_by_busidstring(topology_, pci.c_str());
  if (found == nullptr) return std::nullopt;
  const hwloc_obj_t near = hwloc_get_non_io_ancestor_obj(topology_, found);
  // A device that is attached to several nodes gives no preference.
  if (near == nullptr || hwloc_bitmap_weight(near->nodeset) != 1) return std::nullopt;
  return static_cast<unsigned>(hwloc_bitmap_first(near->nodeset));
}

std::vector<unsigned> NumaBinding::choose(const std::vector<unsigned>& nodes_of_gpus,
                                          const std::vector<unsigned>& allowed) const {
  if (nodes() < 2 || nodes_of_gpus.empty()) return {};
  std::map<unsigned, std::size_t> gpus;
  for (const unsigned node : nodes_of_gpus) ++gpus[node];
  const auto most = std::max_element(
      gpus.begin(), gpus.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(topology_, most->first);
  if (node == nullptr) return {};
  const Bitmap near = bitmap_of(allowed);
  hwloc_bitmap_and(near.get(), near.get(), node->cpuset);
  const std::vector<unsigned> processors = processors_of(near.get());
  return processors.size() < 2 ? std::vector<unsigned>{} : processors;
}

std::vector<unsigned> NumaBinding::allowed() const {
  if (topology_ == nullptr) return {};
  const Bitmap bound(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(topology_, bound.get(), HWLOC_CPUBIND_THREAD) != 0) return {};
  return processors_of(bound.get());
}

bool NumaBinding::bind(const std::vector<unsigned>& processors) const {
  return topology_ != nullptr &&
         hwloc_set_cpubind(topology_, bitmap_of(processors).get(), HWLOC_CPUBIND_THREAD) == 0;
}

std::map<std::string, std::string> pci_of_gpus(const std::string& directory) {
  std::map<std::string, std::string> found;
  std::error_code unreadable;
  for (const auto& gpu : std::filesystem::directory_iterator(directory, unreadable)) {
    std::ifstream lines(gpu.path() / "information");
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("GPU UUID:")) continue;
      const std::size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
      if (begin != line.npos) found[line.substr(begin)] = gpu.path().filename().native();
    }
  }
  return found;
}

}  // namespace vitamin::daemon
