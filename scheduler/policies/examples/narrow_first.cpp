// SPDX-License-Identifier: Apache-2.0
//
// Each client on the narrowest free partition that runs its next launches and loses less than a
// tenth of the best speed, the one with the shortest next launch first, those of unknown time last;
// clients for which nothing is left, or nothing is known, share the rest: a policy in C++, with the
// estimator's speeds.
//
//     c++ -std=c++20 -shared -fPIC -I.. -o narrow_first.so narrow_first.cpp
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "vitamin_policy.h"

namespace {

struct NarrowFirst {
  float tolerated = 1.1F;
  std::vector<const vitamin_client*> order;
};

void* create(const char* parameters, char* error, size_t error_size) {
  auto* const self = new (std::nothrow) NarrowFirst;
  if (self == nullptr) return nullptr;
  if (*parameters == 0) return self;
  char* end = nullptr;
  if (std::strncmp(parameters, "tolerated=", 10) == 0)
    self->tolerated = std::strtof(parameters + 10, &end);
  if (end != nullptr && *end == 0 && self->tolerated >= 1) return self;
  delete self;
  std::strncpy(error, "the parameter is tolerated=FACTOR, at least 1", error_size - 1);
  return nullptr;
}

const vitamin_partition& partition_at(const vitamin_snapshot& snapshot, uint32_t index) {
  return *VITAMIN_AT(vitamin_partition, snapshot.partitions, index);
}

// predicted_ns 0: unknown.
uint64_t next_launch_ns(const vitamin_client& client) {
  uint64_t shortest = VITAMIN_NEVER;
  for (uint32_t i = 0; i < client.streams_count; ++i)
    if (const auto* stream = VITAMIN_AT(vitamin_stream, client.streams, i);
        stream->predicted_ns != 0)
      shortest = std::min(shortest, stream->predicted_ns);
  return shortest;
}

uint32_t needed_sms(const vitamin_client& client) {
  uint32_t needed = 1;
  for (uint32_t i = 0; i < client.streams_count; ++i)
    needed = std::max(needed, VITAMIN_AT(vitamin_stream, client.streams, i)->min_sms);
  return needed;
}

// Beside the units that are taken; 0: none, or the speed is not known.
uint32_t choose(const NarrowFirst& self, const vitamin_snapshot& snapshot,
                const vitamin_client& client, uint64_t taken) {
  for (uint32_t i = 1; i < snapshot.partitions_count; ++i) {
    float speed = 0, error = 0;
    if ((partition_at(snapshot, i).units & taken) == 0 &&
        partition_at(snapshot, i).sms >= needed_sms(client) &&
        snapshot.speed(&snapshot, client.id, i, &speed, &error) != 0 && speed * self.tolerated >= 1)
      return i;
  }
  return VITAMIN_WHOLE_DEVICE;
}

// The widest partition of which nothing is taken.
uint32_t rest(const vitamin_snapshot& snapshot, uint64_t taken) {
  for (uint32_t i = snapshot.partitions_count; i-- > 1 && taken != 0;)
    if ((partition_at(snapshot, i).units & taken) == 0) return i;
  return VITAMIN_WHOLE_DEVICE;
}

// No exception may leave a call (vitamin_policy.h).
int64_t allocate(void* state, const vitamin_snapshot* snapshot, vitamin_row* rows,
                 uint32_t capacity, uint64_t*) try {
  auto& self = *static_cast<NarrowFirst*>(state);
  self.order.clear();
  for (uint32_t i = 0; i < snapshot->clients_count; ++i)
    if (const auto* client = VITAMIN_AT(vitamin_client, snapshot->clients, i); client->active != 0)
      self.order.push_back(client);
  std::stable_sort(self.order.begin(), self.order.end(), [](const auto* a, const auto* b) {
    return next_launch_ns(*a) < next_launch_ns(*b);
  });
  uint64_t taken = 0;
  uint32_t count = 0;
  for (const vitamin_client* client : self.order) {
    if (count == capacity) return -1;
    vitamin_row& row = rows[count++] = vitamin_row_for(client->id);
    row.partition = choose(self, *snapshot, *client, taken);
    if (row.partition == VITAMIN_WHOLE_DEVICE) continue;
    row.mode = VITAMIN_EXCLUSIVE;
    taken |= partition_at(*snapshot, row.partition).units;
  }
  for (uint32_t i = 0; i < count; ++i)
    if (rows[i].mode == VITAMIN_SHARED) rows[i].partition = rest(*snapshot, taken);
  return count;
} catch (...) {
  return -1;
}

}  // namespace

const vitamin_policy_functions* vitamin_policy() {
  static const vitamin_policy_functions functions = [] {
    vitamin_policy_functions table{};
    table.size = sizeof table;
    table.abi = VITAMIN_POLICY_ABI;
    table.name = "narrow-first";
    table.summary = "each client on the narrowest part that loses less than a tenth";
    table.create = create;
    table.destroy = [](void* self) { delete static_cast<NarrowFirst*>(self); };
    table.allocate = allocate;
    return table;
  }();
  return &functions;
}
