// SPDX-License-Identifier: Apache-2.0
#include "deploy/kubernetes/dra/claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

namespace vitamin::kubernetes {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

template <class... Words>
auto fail(fmt::format_string<Words...> format, Words&&... words) {
  return hal::fail(hal::Errc::kInvalidArgument, fmt::format(format, std::forward<Words>(words)...));
}

// Empty where there is no such text.
std::string text_at(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// An object or an array; empty where there is none.
const json& part(const json& object, const char* name) {
  static const json kNone = json::object();
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && (found->is_object() || found->is_array()) ? *found : kNone;
}

struct Parameters {
  std::string workload_class;
  std::uint64_t slo_ns = 0;
  bool exclusive = false;
};

hal::Result<std::uint64_t> duration_ns(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"ms", 1e6}, {"us", 1e3}, {"s", 1e9}};
  for (const auto& [unit, ns] : kUnits) {
    if (!text.ends_with(unit)) continue;
    double value = 0;
    const char* const end = text.data() + text.size() - unit.size();
    const auto [parsed, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || parsed != end || !(value > 0) || value * ns > 1e15) break;
    return static_cast<std::uint64_t>(value * ns);
  }
  return fail("'{}' is no duration; write 30ms", text);
}

// Over what earlier parameters said.
hal::Status read_parameters(const json& object, Parameters& parameters) {
  if (!object.is_object()) return fail("parameters: no object");
  if (text_at(object, "apiVersion") != "vitamin.dev/v1alpha1" ||
      text_at(object, "kind") != "ShareParameters")
    return fail("parameters: not ShareParameters of vitamin.dev/v1alpha1");
  for (const auto& [name, value] : object.items()) {
    if (name == "apiVersion" || name == "kind") continue;
    if (!value.is_string()) return fail("parameters.{}: no text", name);
    const std::string text = value.get<std::string>();
    if (name == "class") {
      parameters.workload_class = text;
    } else if (name == "slo") {
      const auto slo = duration_ns(text);
      if (!slo) return fail("parameters.slo: {}", slo.error().message);
      parameters.slo_ns = *slo;
    } else if (name == "isolation") {
      if (text != "shared" && text != "exclusive")
        return fail("parameters.isolation: '{}' is neither shared nor exclusive", text);
      parameters.exclusive = text == "exclusive";
    } else {
      return fail("parameters.{}: unknown; known are class, slo and isolation", name);
    }
  }
  return {};
}

// Of one request: those of the device class first, then the claim's own.
hal::Result<Parameters> parameters_of(const json& allocation, const std::string& request) {
  Parameters parameters;
  const std::string main = request.substr(0, request.find('/'));
  for (const char* source : {"FromClass", "FromClaim"})
    for (const json& entry : part(part(allocation, "devices"), "config")) {
      const json& opaque = part(entry, "opaque");
      const json& requests = part(entry, "requests");
      const bool here = requests.empty() ||
                        std::find(requests.begin(), requests.end(), main) != requests.end() ||
                        std::find(requests.begin(), requests.end(), request) != requests.end();
      if (text_at(entry, "source") != source || text_at(opaque, "driver") != kDriver || !here)
        continue;
      if (const auto read = read_parameters(part(opaque, "parameters"), parameters); !read)
        return tl::unexpected(read.error());
    }
  return parameters;
}

hal::Result<std::string> class_for(const Parameters& parameters,
                                   std::span<const ClaimableClass> classes) {
  const ClaimableClass* best = nullptr;
  std::string known;
  for (const ClaimableClass& each : classes) {
    known += (known.empty() ? "" : ", ") + each.name;
    if (each.name == parameters.workload_class) return each.name;
    const bool meets = each.tpot_ns != 0 && each.tpot_ns <= parameters.slo_ns;
    if (meets && (best == nullptr || each.tpot_ns > best->tpot_ns)) best = &each;
  }
  if (!parameters.workload_class.empty())
    return fail("vitamin.toml has no class '{}'; it has {}", parameters.workload_class,
                known.empty() ? "none" : known);
  if (parameters.slo_ns == 0) return std::string();
  if (best == nullptr)
    return fail("no class of vitamin.toml has a target of {} ms or less",
                static_cast<double>(parameters.slo_ns) / 1e6);
  return best->name;
}

// What was allocated of a capacity; `all` where nothing is said.
hal::Result<std::uint64_t> consumed(const json& result, const std::string& capacity,
                                    std::uint64_t all) {
  const json& consumed = part(result, "consumedCapacity");
  for (const std::string& name : {capacity, std::string(kDriver) + "/" + capacity})
    if (const std::string text = text_at(consumed, name.c_str()); !text.empty())
      return quantity(text);
  return all;
}

}  // namespace

hal::Result<ClaimableGpu> claimable_gpu(const std::string& text) {
  const std::size_t equals = std::min(text.find('='), text.size());
  ClaimableGpu gpu{.uuid = text.substr(0, equals)};
  if (gpu.uuid.empty() || gpu.uuid.size() > 59 || gpu.uuid.find_first_of(" ,@") != text.npos)
    return fail("'{}' is no UUID of a GPU", gpu.uuid);
  if (equals == text.size()) return gpu;
  const auto memory = gpu_memory(text.substr(equals + 1));
  if (!memory) return fail("{}: {}", gpu.uuid, memory.error().message);
  gpu.memory = *memory;
  return gpu;
}

hal::Result<std::uint64_t> gpu_memory(const std::string& text) {
  const auto bytes = quantity(text);
  if (bytes && *bytes < 1U << 20)
    return fail("'{}' is less than a GPU has: write 141Gi, with its unit", text);
  return bytes;
}

hal::Result<std::uint64_t> quantity(const std::string& text) {
  constexpr std::pair<std::string_view, double> kSuffixes[] = {
      {"Ki", 1024.0}, {"Mi", 1048576.0}, {"Gi", 1073741824.0}, {"Ti", 1099511627776.0},
      {"Pi", 0x1p50}, {"k", 1e3},        {"M", 1e6},           {"G", 1e9},
      {"T", 1e12},    {"P", 1e15},       {"m", 1e-3},          {"", 1},
  };
  long double value = 0;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [known, factor] : kSuffixes) {
    if (error != std::errc() || suffix != known) continue;
    // 1e-3 is no binary fraction: thousandths are divided.
    value = suffix == "m" ? static_cast<long double>(number) / 1000
                          : static_cast<long double>(number) * factor;
    if (!(value >= 0) || value >= 0x1p63L || value != std::floor(value)) break;
    // Digits beyond a double's 53 bits stand for themselves.
    std::uint64_t whole = 0;
    const auto [last, exact] = std::from_chars(text.data(), end, whole);
    return known.empty() && exact == std::errc() && last == end ? whole
                                                                : static_cast<std::uint64_t>(value);
  }
  return fail("'{}' is no whole quantity", text);
}

std::string device_name(const std::string& uuid) {
  std::string name;
  for (const char c : uuid) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    name += plain ? c : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : '-';
  }
  name.resize(std::min<std::size_t>(name.size(), 63));
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name;
}

ordered_json resource_slice(const std::string& node, std::span<const ClaimableGpu> gpus,
                            std::uint64_t generation) {
  ordered_json devices = ordered_json::array();
  for (const ClaimableGpu& gpu : gpus) {
    // A claim that says nothing has the whole GPU, as with any other driver.
    ordered_json capacity = {
        {"share",
         {{"value", "100"},
          {"requestPolicy",
           {{"default", "100"}, {"validRange", {{"min", "1"}, {"max", "100"}, {"step", "1"}}}}}}}};
    if (gpu.memory != 0)
      capacity["memory"] = {
          {"value", std::to_string(gpu.memory)},
          {"requestPolicy",
           {{"default", "0"},
            {"validRange", {{"min", "0"}, {"max", std::to_string(gpu.memory)}}}}}};
    devices.push_back({{"name", device_name(gpu.uuid)},
                       {"attributes", {{"uuid", {{"string", gpu.uuid}}}}},
                       {"allowMultipleAllocations", true},
                       {"capacity", capacity}});
  }
  return {{"apiVersion", "resource.k8s.io/v1"},
          {"kind", "ResourceSlice"},
          {"metadata", {{"name", node + "-" + kDriver}}},
          {"spec",
           {{"driver", kDriver},
            {"nodeName", node},
            {"pool", {{"name", node}, {"generation", generation}, {"resourceSliceCount", 1}}},
            {"devices", devices}}}};
}

std::map<std::string, std::string> published_by_others(const json& slices) {
  std::map<std::string, std::string> published;
  for (const json& slice : part(slices, "items")) {
    const json& spec = part(slice, "spec");
    const std::string driver = text_at(spec, "driver");
    if (driver == kDriver) continue;
    for (const json& device : part(spec, "devices"))
      for (const auto& [name, value] : part(device, "attributes").items())
        if (name == "uuid" || name.ends_with("/uuid"))
          published.emplace(text_at(value, "string"), driver);
  }
  published.erase("");
  return published;
}

hal::Result<AllocatedClaim> allocated_claim(const json& claim, const std::string& node,
                                            std::span<const ClaimableGpu> gpus,
                                            std::span<const ClaimableClass> classes) {
  const json &metadata = part(claim, "metadata"), &status = part(claim, "status");
  AllocatedClaim read{.uid = text_at(metadata, "uid"),
                      .name = text_at(metadata, "name"),
                      .of_namespace = text_at(metadata, "namespace"),
                      .pods = {},
                      .of_one_pod = false,
                      .shares = {}};
  for (const json& owner : part(metadata, "ownerReferences"))
    read.of_one_pod = read.of_one_pod || text_at(owner, "kind") == "Pod";
  const json& allocation = part(status, "allocation");
  if (allocation.empty()) return fail("the claim is not allocated");
  for (const json& consumer : part(status, "reservedFor"))
    if (text_at(consumer, "resource") == "pods") read.pods.push_back(text_at(consumer, "uid"));
  for (const json& result : part(part(allocation, "devices"), "results")) {
    if (text_at(result, "driver") != kDriver || text_at(result, "pool") != node) continue;
    AllocatedShare share{.request = text_at(result, "request"),
                         .pool = node,
                         .device = text_at(result, "device"),
                         .uuid = {},
                         .id = text_at(result, "shareID"),
                         .workload_class = {}};
    const auto gpu = std::find_if(gpus.begin(), gpus.end(), [&](const ClaimableGpu& known) {
      return device_name(known.uuid) == share.device;
    });
    if (gpu == gpus.end()) return fail("this node has no device {}", share.device);
    share.uuid = gpu->uuid;
    const auto percent = consumed(result, "share", 100);
    const auto memory = consumed(result, "memory", 0);
    if (!percent || *percent < 1 || *percent > 100)
      return fail("request {}: a share is 1 to 100 percent", share.request);
    if (!memory) return fail("request {}: memory: {}", share.request, memory.error().message);
    share.percent = static_cast<std::uint32_t>(*percent);
    share.memory = *memory;
    const auto parameters = parameters_of(allocation, share.request);
    if (!parameters) return fail("request {}: {}", share.request, parameters.error().message);
    if (parameters->exclusive && share.percent != 100)
      return fail("request {}: isolation is exclusive, but {} percent were allocated",
                  share.request, share.percent);
    const auto chosen = class_for(*parameters, classes);
    if (!chosen) return fail("request {}: {}", share.request, chosen.error().message);
    share.workload_class = *chosen;
    read.shares.push_back(share);
  }
  if (read.shares.empty()) return fail("nothing of the claim is of {} on {}", kDriver, node);
  return read;
}

}  // namespace vitamin::kubernetes
