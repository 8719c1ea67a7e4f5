// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/shares.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace vitamin::kubernetes {

std::vector<std::string> nvidia_gpus(const std::string& folder) {
  constexpr std::string_view kLabel = "GPU UUID:";
  std::vector<std::string> uuids;
  std::error_code none;
  for (const auto& gpu : std::filesystem::directory_iterator(folder, none)) {
    std::ifstream information(gpu.path() / "information");
    for (std::string line; std::getline(information, line);) {
      if (!line.starts_with(kLabel)) continue;
      const std::size_t begin = line.find_first_not_of(" \t", kLabel.size());
      if (begin != std::string::npos) uuids.push_back(line.substr(begin));
    }
  }
  std::sort(uuids.begin(), uuids.end());
  return uuids;
}

std::vector<Share> shares_of(std::span<const Gpu> gpus, std::uint32_t per_gpu) {
  std::vector<Share> shares;
  for (const Gpu& gpu : gpus)
    for (std::uint32_t i = 0; i < per_gpu; ++i)
      shares.push_back({gpu.uuid + "." + std::to_string(i), gpu.healthy});
  return shares;
}

std::string gpu_of(const std::string& id) {
  const std::size_t dot = id.rfind('.');
  return dot == std::string::npos ? "" : id.substr(0, dot);
}

std::vector<std::string> preferred(std::vector<std::string> available,
                                   const std::vector<std::string>& must, std::size_t size) {
  std::vector<std::string> chosen = must;
  std::map<std::string, std::vector<std::string>> left;  // by GPU
  std::sort(available.begin(), available.end());
  for (const std::string& id : available)
    if (std::find(must.begin(), must.end(), id) == must.end()) left[gpu_of(id)].push_back(id);
  while (chosen.size() < size && !left.empty()) {
    const std::size_t wanted = size - chosen.size();
    // One that is in use by this container, then one that has enough, of those the emptiest; where
    // none has enough, the one that has most.
    const auto better = [&](const auto& a, const auto& b) {
      const auto used = [&](const std::string& gpu) {
        return std::any_of(chosen.begin(), chosen.end(),
                           [&](const std::string& id) { return gpu_of(id) == gpu; });
      };
      const std::size_t a_has = a.second.size(), b_has = b.second.size();
      if (used(a.first) != used(b.first)) return used(a.first);
      if ((a_has >= wanted) != (b_has >= wanted)) return a_has >= wanted;
      return a_has >= wanted ? a_has < b_has : a_has > b_has;
    };
    const auto best = std::min_element(left.begin(), left.end(), better);
    const std::size_t taken = std::min(wanted, best->second.size());
    chosen.insert(chosen.end(), best->second.begin(),
                  best->second.begin() + static_cast<std::ptrdiff_t>(taken));
    left.erase(best);
  }
  return chosen;
}

hal::Result<Allocation> allocate(std::span<const std::string> ids, std::span<const Gpu> gpus,
                                 std::uint32_t per_gpu) {
  const std::vector<Share> shares = shares_of(gpus, per_gpu);
  std::map<std::string, std::set<std::string>> held;  // by GPU
  for (const std::string& id : ids) {
    const auto share = std::find_if(shares.begin(), shares.end(),
                                    [&](const Share& known) { return known.id == id; });
    if (share == shares.end())
      return hal::fail(hal::Errc::kInvalidArgument, "there is no device " + id);
    if (!share->healthy)
      return hal::fail(hal::Errc::kUnavailable,
                       "device " + id +
                           " is unhealthy: its GPU is drained or gone, or no vitamind "
                           "answers on this node");
    held[gpu_of(id)].insert(id);
  }
  if (held.empty()) return hal::fail(hal::Errc::kInvalidArgument, "no device was asked for");
  Allocation allocation;
  std::size_t least = per_gpu;
  for (const auto& [gpu, of_it] : held) {
    allocation.gpus.push_back(gpu);
    least = std::min(least, of_it.size());
  }
  allocation.percent =
      std::max<std::uint32_t>(static_cast<std::uint32_t>(100 * least / per_gpu), 1);
  return allocation;
}

}  // namespace vitamin::kubernetes
