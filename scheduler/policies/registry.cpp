// SPDX-License-Identifier: Apache-2.0
#include "scheduler/policies/registry.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "scheduler/policies/builtin.h"
#include "scheduler/policies/loadable.h"
#include "scheduler/policies/nearest.h"
#include "scheduler/policies/parameters.h"
#include "scheduler/policies/slo.h"
#include "scheduler/policies/throughput.h"

namespace vitamin::scheduler {
namespace {

using Maker = Policy (*)(Parameters&, const PolicyContext&);

struct BuiltIn {
  std::string_view name;
  Maker make;
};

Objective objective(Parameters& parameters) {
  Objective objective;
  std::size_t aim = 0;
  parameters.word("objective", {"proportional", "sum", "fair"}, &aim);
  static constexpr Aim kAims[] = {Aim::kProportional, Aim::kSum, Aim::kFair};
  objective.aim = kAims[aim];
  return objective;
}

Policy fifo(Parameters&, const PolicyContext&) { return make_fifo(); }

// Parameters that another one leaves without effect.
void check_throughput(Parameters& parameters, const ThroughputOptions& options) {
  const bool measured = options.model == ThroughputOptions::Model::kMeasured;
  if (measured && options.against_narrowest)
    parameters.refuse("relative=paper is of model=algorithm1: add that, or remove relative");
  for (const char* name : {"objective", "min_share"})
    if (!measured && parameters.given(name))
      parameters.refuse(std::string(name) +
                        " is of model=measured, and algorithm1 has the paper's objective: remove "
                        "one of the two");
  if (parameters.given("min_share") && options.objective.aim != Aim::kSum)
    parameters.refuse("min_share is of objective=sum: add that, or remove min_share");
}

Policy throughput(Parameters& parameters, const PolicyContext& context) {
  ThroughputOptions options;
  std::size_t model = 0, relative = 0;
  parameters.word("model", {"measured", "algorithm1"}, &model);
  parameters.word("relative", {"alone", "paper"}, &relative);
  options.objective = objective(parameters);
  auto share = static_cast<std::uint32_t>(std::lround(100 * options.objective.min_share));
  parameters.number("min_share", 0, 100, &share);
  options.objective.min_share = share / 100.0;
  if (model == 1) options.model = ThroughputOptions::Model::kAlgorithm1;
  options.against_narrowest = relative == 1;
  check_throughput(parameters, options);
  return make_throughput(options, context.estimator, context.pool, context.profile);
}

Policy slo(Parameters& parameters, const PolicyContext& context) {
  SloOptions options;
  options.objective = objective(parameters);
  return make_slo(options, context.estimator, context.pool);
}

Policy tpot_first(Parameters& parameters, const PolicyContext& context) {
  SloOptions options;
  std::size_t cumulative = 0;
  parameters.word("cumulative", {"yes", "no"}, &cumulative);
  options.cumulative = cumulative == 0;
  return make_tpot_first(options, context.estimator, context.pool);
}

// Of one run of units clients get the widest partition inside. Of several runs that would be one of
// the runs, and the others would be idle.
void check_units(Parameters& parameters, hal::ComputeSet units, std::span<const Partition> pool) {
  const std::uint64_t run = units.bits() >> std::countr_zero(units.bits());
  if ((run & (run + 1)) == 0) return;
  const Partition* inside = nullptr;  // the widest
  for (const Partition& partition : pool.subspan(1)) {
    if (partition.compute == units) return;
    if (units.contains(partition.compute)) inside = &partition;
  }
  std::string why = "this device has no partition of the units " + units_text(units);
  if (inside != nullptr)
    why += "; the widest inside is units=" + units_text(inside->compute) + " (" +
           std::to_string(inside->sms) + " SMs): give this one, or one run of units";
  parameters.refuse(why);
}

Policy fixed(Parameters& parameters, const PolicyContext& context) {
  StaticOptions options;
  parameters.units("units", &options.units);
  parameters.number("parts", 1, hal::ComputeSet::kMaxUnits, &options.parts);
  if (parameters.given("units") && parameters.given("parts") && options.parts != 1)
    parameters.refuse(
        "units is one partition that all clients share, parts cuts the device into one for each: "
        "remove one of the two");
  if (!options.units.empty() && context.pool.size() > 1)
    check_units(parameters, options.units, context.pool);
  return make_static(options);
}

template <Policy (*kMake)(const TurnOptions&)>
Policy quiet(Parameters& parameters, const PolicyContext&) {
  TurnOptions options;
  parameters.duration("quiet", &options.quiet_ns);
  return kMake(options);
}

Policy temporal(Parameters& parameters, const PolicyContext&) {
  TurnOptions options;
  parameters.duration("slice", &options.slice_ns);
  return make_temporal(options);
}

Policy orion(Parameters& parameters, const PolicyContext&) {
  OrionOptions options;
  parameters.number("sms", 1, ~0U, &options.sms);
  parameters.duration("duration", &options.duration_ns);
  return make_orion(options);
}

Policy random(Parameters& parameters, const PolicyContext& context) {
  RandomOptions options;
  options.seed = context.seed;
  parameters.number("every", 1, ~0U, &options.every);
  parameters.number("min_sms", 1, ~0U, &options.min_sms);
  parameters.number("max_sms", 1, ~0U, &options.max_sms);
  parameters.flag("whole", &options.whole);
  parameters.flag("exclusive", &options.isolate_streams);
  if (options.min_sms > options.max_sms)
    parameters.refuse("min_sms is " + std::to_string(options.min_sms) +
                      ", above max_sms, which is " + std::to_string(options.max_sms) +
                      ": lower the one or raise the other");
  return make_random(options);
}

Policy extremes(Parameters& parameters, const PolicyContext&) {
  ExtremesOptions options;
  parameters.flag("narrow", &options.narrow);
  parameters.flag("wide", &options.wide);
  return make_extremes(options);
}

constexpr BuiltIn kBuiltIn[] = {{"fifo", fifo},         {"throughput", throughput},
                                {"slo", slo},           {"tpot-first", tpot_first},
                                {"static", fixed},      {"exclusive", quiet<make_exclusive>},
                                {"temporal", temporal}, {"salus", quiet<make_salus>},
                                {"orion", orion},       {"random", random},
                                {"extremes", extremes}};

// Parameters of earlier releases, or values of them, for one release.
struct Former {
  std::string_view policy, parameter, now;  // `now`: what to do
};
constexpr Former kFormer[] = {
    {"throughput", "whole", "remove it: what is shared and what is not is measured"},
    {"throughput", "objective=alone", "use model=algorithm1,relative=alone"},
    {"throughput", "objective=paper", "use model=algorithm1,relative=paper"},
    {"throughput", "look", "remove it: measurements have a budget of their own"},
    {"throughput", "launches", "remove it: rows stand until something changes"},
    {"tpot-first", "target", "use tpot of a [[class]] of vitamin.toml"},
    {"tpot-first", "margin", "use percentile of a [[class]] of vitamin.toml"},
    {"tpot-first", "reserve", "use reservation of a [[class]] of vitamin.toml"},
    {"tpot-first", "reservation", "use the policy slo, which keeps no SMs for idle clients"},
    {"tpot-first", "lookahead", "remove it: announced steps are always looked at"},
    {"tpot-first", "lend", "use the policy slo, which keeps no SMs for idle clients"},
    {"tpot-first", "quiet", "remove it: clients say when they are idle"},
    {"tpot-first", "ahead", "remove it: what clients submit ahead is bounded beside others"},
    {"tpot-first", "floor", "use policy.starving_after of vitamin.toml"},
    {"tpot-first", "beside", "remove it: what others cost is measured"},
    {"orion", "processors", "use sms"},
    {"random", "min", "use min_sms"},
    {"random", "max", "use max_sms"},
    {"temporal", "quantum", "use slice, with a unit: slice=2ms"},
};

std::string unknown(std::string_view name) {
  std::string known;
  std::vector<std::string> names;
  for (const BuiltIn& policy : kBuiltIn) {
    names.emplace_back(policy.name);
    known += (known.empty() ? "" : ", ") + names.back();
  }
  std::string message = "the policy (" + std::string(name) + ") is unknown";
  const std::string meant = did_you_mean(name, names);
  return message + (meant.empty() ? "." : meant) + " Known policies: " + known;
}

std::string parameters_of(const PolicyDescription& description) {
  std::string known;
  for (const Parameter& parameter : description.parameters)
    known += std::string(known.empty() ? "" : ", ") + std::string(parameter.name);
  return known.empty() ? "none" : known;
}

// Empty: no parameter of before is in `text`.
std::string former(std::string_view policy, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    if (std::string line = former_parameter(policy, text.substr(at, end - at)); !line.empty())
      return line;
    at = end + 1;
  }
  return "";
}

}  // namespace

std::string former_parameter(std::string_view policy, std::string_view parameter) {
  const std::string_view name = parameter.substr(0, parameter.find('='));
  for (const Former& one : kFormer) {
    if (one.policy != policy) continue;
    const bool with_value = one.parameter.find('=') != one.parameter.npos;
    if ((with_value ? parameter : name) != one.parameter) continue;
    return "the policy '" + std::string(policy) + "' has no parameter '" +
           std::string(one.parameter) + "' any more: " + std::string(one.now);
  }
  return "";
}

std::span<const PolicyDescription> list() {
  // Never destroyed: a preloaded library may be asked after its own destructors ran.
  static const auto* const descriptions = [] {
    static constexpr Partition kNothing{};
    Estimator estimator({&kNothing, 1});
    auto* const all = new std::vector<PolicyDescription>;
    for (const BuiltIn& policy : kBuiltIn) {
      Parameters none = Parameters::parse("");
      all->push_back(policy.make(none, {{&kNothing, 1}, estimator}).description);
    }
    return all;
  }();
  return *descriptions;
}

hal::Result<Policy> make(std::string_view specification, const PolicyContext& context) {
  const std::size_t colon = specification.find(':');
  const std::string_view name = specification.substr(0, colon);
  const std::string_view text =
      colon == specification.npos ? std::string_view() : specification.substr(colon + 1);
  if (name.find('/') != name.npos)
    return load(std::string(name), std::string(text), context.limits);
  const auto* const found =
      std::find_if(std::begin(kBuiltIn), std::end(kBuiltIn),
                   [&](const BuiltIn& policy) { return policy.name == name; });
  if (found == std::end(kBuiltIn)) return hal::fail(hal::Errc::kInvalidArgument, unknown(name));
  if (const std::string gone = former(name, text); !gone.empty())
    return hal::fail(hal::Errc::kInvalidArgument, gone);
  Parameters parameters = Parameters::parse(text);
  Policy policy = found->make(parameters, context);
  if (const std::string error = parameters.error(policy.description.parameters); !error.empty())
    return hal::fail(hal::Errc::kInvalidArgument,
                     "policy " + std::string(name) + ": " + error +
                         ". Known parameters: " + parameters_of(policy.description));
  return policy;
}

hal::Result<Checked> check(std::string_view specification, const SandboxLimits& limits) {
  static constexpr Partition kNothing{};
  Estimator estimator({&kNothing, 1});
  auto made = make(specification, {{&kNothing, 1}, estimator, nullptr, 0, limits});
  if (!made) return tl::unexpected(made.error());
  const PolicyDescription& description = made->description;
  return Checked{description.uses_kernel_times, description.keeps_bounds, description.weighs};
}

}  // namespace vitamin::scheduler
