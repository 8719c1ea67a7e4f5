// SPDX-License-Identifier: Apache-2.0
//
// The makers of the built-in policies, one file each. Each takes what it knows from the parameters;
// what is left over is the caller's error to report.
#pragma once

#include <cstdint>
#include <memory>

#include "policies/parameters.h"
#include "policies/registry.h"

namespace vitamin::policies {

std::unique_ptr<runtime::Policy> make_fifo(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_static(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_random(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_extremes(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_throughput(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_tpot_first(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_exclusive(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_temporal(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_salus(Parameters& parameters, std::uint64_t seed);
std::unique_ptr<runtime::Policy> make_orion(Parameters& parameters, std::uint64_t seed);

extern const Description kFifo, kStatic, kRandom, kExtremes, kThroughput, kTpotFirst, kExclusive,
    kTemporal, kSalus, kOrion;

}  // namespace vitamin::policies
