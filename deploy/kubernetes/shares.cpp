// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/shares.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

namespace vitamin::kubernetes {

namespace {

// Empty: the driver has not read it.
std::string uuid_in(const std::filesystem::path& information) {
  constexpr std::string_view kLabel = "GPU UUID:";
  std::ifstream file(information);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kLabel)) continue;
    const std::size_t begin = line.find_first_not_of(" \t", kLabel.size());
    if (begin != line.npos && line.find('?') == line.npos) return line.substr(begin);
  }
  return "";
}

}  // namespace

NvidiaGpus nvidia_gpus(const std::string& directory) {
  NvidiaGpus present;
  std::error_code error;
  const std::filesystem::directory_iterator gpus(directory, error);
  present.complete = !error;
  for (const auto& gpu : gpus) {
    std::string uuid = uuid_in(gpu.path() / "information");
    if (uuid.empty())
      present.complete = false;
    else
      present.uuids.push_back(std::move(uuid));
  }
  std::sort(present.uuids.begin(), present.uuids.end());
  return present;
}

bool is_here(const std::string& uuid, const NvidiaGpus& present) {
  return !present.complete || uuid.starts_with("MIG-") ||
         std::binary_search(present.uuids.begin(), present.uuids.end(), uuid);
}

namespace {

// A qualified name of Kubernetes: DOMAIN/NAME.
bool is_resource(const std::string& name) {
  const std::size_t slash = name.find('/');
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (slash == 0 || slash == name.npos || name.size() - slash - 1 > 63) return false;
  if (slash + 1 == name.size() || !plain(name[slash + 1]) || !plain(name.back())) return false;
  return name.find('/', slash + 1) == name.npos &&
         std::all_of(name.begin(), name.end(), [&](char c) {
           return plain(c) || c == '.' || c == '-' || c == '_' || c == '/';
         });
}

}  // namespace

hal::Result<Offers> offers_of(std::span<const std::string> texts, std::uint32_t shares,
                              const std::string& resource) {
  constexpr std::size_t kLongestUuid = 59;  // a device's name has 63 characters at most
  Offers offers;
  std::set<std::string> known;
  for (const std::string& text : texts) {
    const std::size_t equals = std::min(text.find('='), text.size());
    const std::size_t at = std::min(text.find('@', equals), text.size());
    NodeGpu gpu{.uuid = text.substr(0, equals), .shares = shares};
    if (gpu.uuid.empty() || gpu.uuid.size() > kLongestUuid)
      return hal::fail(hal::Errc::kInvalidArgument, "'" + gpu.uuid + "' is no UUID of a GPU");
    if (equals < text.size()) {
      const char *const begin = text.data() + equals + 1, *const end = text.data() + at;
      const auto [parsed, error] = std::from_chars(begin, end, gpu.shares);
      if (error != std::errc() || parsed != end || gpu.shares < 1 || gpu.shares > 100)
        return hal::fail(hal::Errc::kInvalidArgument,
                         "'" + text + "': a GPU has 1 to 100 shares; write UUID=8");
    }
    if (!known.insert(gpu.uuid).second)
      return hal::fail(hal::Errc::kInvalidArgument, gpu.uuid + " is named twice");
    std::string name = at < text.size() ? text.substr(at + 1) : resource;
    constexpr std::string_view kPercent = "{percent}";
    if (const std::size_t hole = name.find(kPercent); hole != name.npos)
      name.replace(hole, kPercent.size(), std::to_string(100 / gpu.shares));
    if (!is_resource(name))
      return hal::fail(hal::Errc::kInvalidArgument,
                       "'" + name + "' is no name of a resource; write vitamin.dev/share");
    offers[name].push_back(gpu);
  }
  return offers;
}

std::vector<Share> shares_of(std::span<const NodeGpu> gpus) {
  std::vector<Share> shares;
  for (const NodeGpu& gpu : gpus)
    for (std::uint32_t i = 0; i < gpu.shares; ++i)
      shares.push_back({gpu.uuid + "." + std::to_string(i), gpu.healthy && gpu.offered_as.empty()});
  return shares;
}

std::string gpu_of(const std::string& id) {
  const std::size_t dot = id.rfind('.');
  return dot == std::string::npos ? "" : id.substr(0, dot);
}

bool is_of_gpu(const std::string& device, const std::string& uuid) {
  if (!device.starts_with(uuid)) return false;
  const std::string_view rest = std::string_view(device).substr(uuid.size());
  return rest.empty() || rest.starts_with("::") || rest.starts_with(".");
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

hal::Result<ContainerShare> allocate(std::span<const std::string> ids,
                                     std::span<const NodeGpu> gpus) {
  std::map<std::string, std::set<std::string>> held;  // by GPU
  for (const std::string& id : ids) {
    const auto gpu = std::find_if(gpus.begin(), gpus.end(),
                                  [&](const NodeGpu& known) { return known.uuid == gpu_of(id); });
    const auto shares = gpu != gpus.end() ? shares_of({gpu, 1}) : std::vector<Share>();
    if (std::none_of(shares.begin(), shares.end(),
                     [&](const Share& share) { return share.id == id; }))
      return hal::fail(hal::Errc::kInvalidArgument, "there is no device " + id);
    if (!gpu->offered_as.empty())
      return hal::fail(hal::Errc::kUnavailable, "device " + id + " is unhealthy: its GPU is also " +
                                                    "offered as " + gpu->offered_as);
    if (!gpu->healthy)
      return hal::fail(hal::Errc::kUnavailable,
                       "device " + id +
                           " is unhealthy: its GPU is drained or gone, or no vitamind "
                           "answers on this node, or no MPS runs");
    held[gpu->uuid].insert(id);
  }
  if (held.empty()) return hal::fail(hal::Errc::kInvalidArgument, "no device was asked for");
  ContainerShare allocation;
  for (const auto& [uuid, of_it] : held) {
    allocation.gpus.push_back(uuid);
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&name = uuid](const NodeGpu& known) {
      return known.uuid == name;
    });
    const auto percent = static_cast<std::uint32_t>(100 * of_it.size() / gpu->shares);
    allocation.percent = std::min(allocation.percent, std::max<std::uint32_t>(percent, 1));
  }
  return allocation;
}

}  // namespace vitamin::kubernetes
