// SPDX-License-Identifier: Apache-2.0
//
// What an operator wants of a device that several clients share, as one number per configuration.
//
// The number is a logarithm whatever the objective is: of the weighted geometric mean of speeds, of
// their weighted mean, of the least. A difference of 0.02 between two configurations is 2 % of
// what the operator asked for, so one rule compares configurations under every objective.
//
// A speed is progress per busy time, relative to the client alone on the whole device.
//
// Pure; no allocation. Threads: any.
#pragma once

#include <cstdint>
#include <span>

namespace vitamin::scheduler {

enum class Aim : std::uint8_t {
  kProportional,  // sum of weight * log(speed): proportional fairness, the default
  kSum,           // sum of weight * speed, less what clients lack of their minimum shares
  kFair,          // 0.9 of the least speed / weight, 0.1 of kProportional
};

struct Objective {
  Aim aim = Aim::kProportional;
  // kSum: the minimum share: a speed in parts of an equal share (by weight), which turns on the
  // device would give. Less is not ruled out: a shortfall in the logarithm costs four times its
  // size.
  double min_share = 0.5;
  friend bool operator==(const Objective&, const Objective&) = default;
};

struct ClientSpeed {
  double weight = 1;
  double log_speed = 0;  // kStopped: paused
};
inline constexpr double kStopped = -1e9;
inline constexpr double kInfeasible = -1e9;

// kInfeasible where the objective forbids it (a client without any progress). For kProportional a
// constant added to a client's log_speed changes all values alike: rates may stand for speeds.
double value_of(const Objective& objective, std::span<const ClientSpeed> clients);

// d value / d log_speed of client `i`, at these speeds: how a client's noise becomes the value's.
double gradient(const Objective& objective, std::span<const ClientSpeed> clients, std::size_t i);

// Whether values need speeds, and not only rates in a unit of the client's own.
inline bool needs_alone(const Objective& objective) { return objective.aim != Aim::kProportional; }

}  // namespace vitamin::scheduler
