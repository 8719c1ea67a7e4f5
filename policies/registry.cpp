// SPDX-License-Identifier: Apache-2.0
#include "policies/registry.h"

#include <algorithm>
#include <vector>

#include "policies/builtin.h"
#include "policies/loadable.h"
#include "policies/nearest.h"

namespace vitamin::policies {
namespace {

using Maker = std::unique_ptr<runtime::Policy> (*)(Parameters&, std::uint64_t);

struct BuiltIn {
  Description description;
  Maker make;
};

const std::vector<BuiltIn>& built_in() {
  // Never destroyed: a preloaded library may be asked after its own destructors ran.
  static const auto* const policies = new std::vector<BuiltIn>{
      {kFifo, make_fifo},           {kThroughput, make_throughput}, {kTpotFirst, make_tpot_first},
      {kStatic, make_static},       {kExclusive, make_exclusive},   {kTemporal, make_temporal},
      {kSalus, make_salus},         {kOrion, make_orion},           {kRandom, make_random},
      {kExtremes, make_extremes}};
  return *policies;
}

std::string unknown(std::string_view name) {
  std::string known;
  std::vector<std::string> names;
  for (const BuiltIn& policy : built_in()) {
    names.emplace_back(policy.description.name);
    known += (known.empty() ? "" : ", ") + names.back();
  }
  std::string message = "the policy (" + std::string(name) + ") is unknown";
  message += did_you_mean(name, names);
  return message + " Known policies: " + known + ".";
}

}  // namespace

std::span<const Description> list() {
  static const auto* const descriptions = [] {
    auto* all = new std::vector<Description>;
    for (const BuiltIn& policy : built_in()) all->push_back(policy.description);
    return all;
  }();
  return *descriptions;
}

hal::Result<std::unique_ptr<runtime::Policy>> make(std::string_view specification,
                                                   std::uint64_t seed, Sink sink) {
  if (specification.find('/') != specification.npos) {
    const std::size_t end = specification.find(':');
    const std::string path(specification.substr(0, end));
    const std::string parameters(
        end == specification.npos ? std::string_view() : specification.substr(end + 1));
    auto loaded = load(path, parameters, std::move(sink));
    if (!loaded) return tl::unexpected(loaded.error());
    return std::move(*loaded);
  }
  const std::size_t colon = specification.find(':');
  const std::string_view name = specification.substr(0, colon);
  const std::string_view text =
      colon == specification.npos ? std::string_view() : specification.substr(colon + 1);
  const auto found =
      std::find_if(built_in().begin(), built_in().end(),
                   [&](const BuiltIn& policy) { return policy.description.name == name; });
  if (found == built_in().end()) return hal::fail(hal::Errc::kInvalidArgument, unknown(name));

  Parameters parameters = Parameters::parse(text);
  std::unique_ptr<runtime::Policy> policy = found->make(parameters, seed);
  if (const std::string error = parameters.error(); !error.empty()) {
    std::string known;
    for (const Parameter& parameter : found->description.parameters)
      known += std::string(known.empty() ? "" : ", ") + parameter.name;
    if (known.empty()) known = "none";
    return hal::fail(hal::Errc::kInvalidArgument, "policy " + std::string(name) + ": " + error +
                                                      ". Known parameters: " + known + ".");
  }
  return std::make_unique<Guarded>(std::move(policy), std::move(sink));
}

}  // namespace vitamin::policies
