// SPDX-License-Identifier: Apache-2.0
#include "scheduler/estimator/objective.h"

#include <algorithm>
#include <cmath>

namespace vitamin::scheduler {
namespace {

// What a client lacks of its minimum share counts so many times in the logarithm of the sum. More
// than 1 is enough for a minimum that no gain of others outweighs while they at most double; 4
// leaves room for weights.
constexpr double kShortfall = 4;

// Of the least speed in kFair; the rest is the mean's, which decides between configurations in
// which the slowest client fares alike.
constexpr double kLeast = 0.9;

double total_weight(std::span<const ClientSpeed> clients) {
  double sum = 0;
  for (const ClientSpeed& client : clients) sum += client.weight;
  return std::max(sum, 1e-9);
}

bool stopped(const ClientSpeed& client) { return client.log_speed <= kStopped / 2; }

double mean_log(std::span<const ClientSpeed> clients) {
  double sum = 0;
  for (const ClientSpeed& client : clients) sum += client.weight * client.log_speed;
  return sum / total_weight(clients);
}

double mean_speed(std::span<const ClientSpeed> clients) {
  double sum = 0;
  for (const ClientSpeed& client : clients)
    if (!stopped(client)) sum += client.weight * std::exp(client.log_speed);
  return sum / total_weight(clients);
}

// log of the least speed that `client` may have.
double floor_of(const Objective& objective, const ClientSpeed& client, double weights) {
  return std::log(std::max(objective.min_share * client.weight / weights, 1e-12));
}

// Speed relative to weight, the mean weight being 1.
double normalized(const ClientSpeed& client, double weights, std::size_t count) {
  return client.log_speed - std::log(client.weight * static_cast<double>(count) / weights);
}

std::size_t slowest(std::span<const ClientSpeed> clients, double weights) {
  std::size_t least = 0;
  for (std::size_t i = 1; i < clients.size(); ++i)
    if (normalized(clients[i], weights, clients.size()) <
        normalized(clients[least], weights, clients.size()))
      least = i;
  return least;
}

double sum_value(const Objective& objective, std::span<const ClientSpeed> clients) {
  const double weights = total_weight(clients), mean = mean_speed(clients);
  if (mean <= 0) return kInfeasible;
  double value = std::log(mean);
  for (const ClientSpeed& client : clients) {
    if (stopped(client) && objective.min_share > 0) return kInfeasible;
    if (stopped(client)) continue;
    value -= kShortfall * std::max(0.0, floor_of(objective, client, weights) - client.log_speed);
  }
  return value;
}

}  // namespace

double value_of(const Objective& objective, std::span<const ClientSpeed> clients) {
  if (clients.empty()) return 0;
  if (objective.aim == Aim::kSum) return sum_value(objective, clients);
  if (std::any_of(clients.begin(), clients.end(), stopped)) return kInfeasible;
  if (objective.aim == Aim::kProportional) return mean_log(clients);
  const double weights = total_weight(clients);
  return kLeast * normalized(clients[slowest(clients, weights)], weights, clients.size()) +
         (1 - kLeast) * mean_log(clients);
}

double gradient(const Objective& objective, std::span<const ClientSpeed> clients, std::size_t i) {
  const double weights = total_weight(clients);
  if (objective.aim == Aim::kProportional) return clients[i].weight / weights;
  if (objective.aim == Aim::kFair)
    return (slowest(clients, weights) == i ? kLeast : 0) +
           (1 - kLeast) * clients[i].weight / weights;
  if (stopped(clients[i])) return 0;
  const double mean = mean_speed(clients);
  const bool lacking = clients[i].log_speed < floor_of(objective, clients[i], weights);
  return clients[i].weight * std::exp(clients[i].log_speed) / weights / std::max(mean, 1e-12) +
         (lacking ? kShortfall : 0);
}

}  // namespace vitamin::scheduler
