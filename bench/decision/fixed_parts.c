/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fixed_parts: a fixed part of the device for each client, in any arrangement. The arms of
 * bench/decision switch between arrangements by reading vitamin.toml again.
 *
 *     fixed_parts.so:plan=0-7/8-15        in the order in which clients are first seen
 *     fixed_parts.so:plan=4@0-11/7@12-15  by the clients' numbers in `vitamin status`
 *
 * Units are those of the pool, first and last. Every unit of the device: the whole device, shared.
 * A client that is not in the plan gets the parts in turn.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vitamin_policy.h"

enum { kMost = 16 };

struct part {
  uint32_t client; /* 0: whichever comes */
  uint64_t units;
};

struct fixed_parts {
  struct part parts[kMost];
  uint32_t count;
  uint32_t seen[kMost]; /* clients of parts without a number, in the order of the parts */
  uint32_t seen_count;
};

/* One `[CLIENT@]FIRST-LAST`; null when it is none, else what stands behind it. */
static const char* read_part(const char* text, struct part* part) {
  unsigned client = 0, first = 0, last = 0;
  int used = 0;
  if (sscanf(text, "%u@%u-%u%n", &client, &first, &last, &used) != 3 || used == 0) {
    client = 0, used = 0;
    if (sscanf(text, "%u-%u%n", &first, &last, &used) != 2 || used == 0) return NULL;
  }
  if (last < first || last > 63) return NULL;
  part->client = client;
  part->units = (last - first == 63 ? ~0ull : ((1ull << (last - first + 1)) - 1)) << first;
  return text + used;
}

static void* create(const char* parameters, char* error, size_t error_size) {
  struct fixed_parts* self = calloc(1, sizeof *self);
  const char* at = strncmp(parameters, "plan=", 5) == 0 ? parameters + 5 : "";
  if (self == NULL) return NULL;
  while (self->count < kMost && (at = read_part(at, &self->parts[self->count])) != NULL) {
    ++self->count;
    if (*at == 0) return self;
    if (*at++ != '/') break;
  }
  snprintf(error, error_size, "'%s' is not plan=[CLIENT@]FIRST-LAST[/...]", parameters);
  free(self);
  return NULL;
}

static uint64_t units_of(struct fixed_parts* self, uint32_t client) {
  uint32_t i = 0;
  for (i = 0; i < self->count; ++i)
    if (self->parts[i].client == client && client != 0) return self->parts[i].units;
  for (i = 0; i < self->seen_count && self->seen[i] != client; ++i) {
  }
  if (i == self->seen_count && i < kMost) self->seen[self->seen_count++] = client;
  return self->parts[i % self->count].units;
}

/* The widest partition inside the client's units; of all units the whole device. */
static uint32_t partition_of(const struct vitamin_snapshot* snapshot, uint64_t units) {
  uint32_t widest = VITAMIN_WHOLE_DEVICE;
  if ((snapshot->partitions->units & ~units) == 0) return widest;
  for (uint32_t i = 1; i < snapshot->partitions_count; ++i) {
    const struct vitamin_partition* one =
        VITAMIN_AT(struct vitamin_partition, snapshot->partitions, i);
    if ((one->units & ~units) == 0 &&
        (widest == VITAMIN_WHOLE_DEVICE ||
         one->sms > VITAMIN_AT(struct vitamin_partition, snapshot->partitions, widest)->sms))
      widest = i;
  }
  return widest;
}

/* Who is alone on its part has it exclusively. What does not fit there waits until it is overdue. */
static int64_t allocate(void* state, const struct vitamin_snapshot* snapshot,
                        struct vitamin_row* rows, uint32_t capacity, uint64_t* wake_ns) {
  uint32_t count = 0;
  (void)wake_ns;
  for (uint32_t i = 0; i < snapshot->clients_count && count < capacity; ++i) {
    const struct vitamin_client* client =
        VITAMIN_AT(struct vitamin_client, snapshot->clients, i);
    if (!client->active) continue;
    rows[count] = vitamin_row_for(client->id);
    rows[count].partition = partition_of(snapshot, units_of(state, client->id));
    if (rows[count].partition != VITAMIN_WHOLE_DEVICE) rows[count].mode = VITAMIN_EXCLUSIVE;
    for (uint32_t j = 0; j < count; ++j)
      if (rows[j].partition == rows[count].partition)
        rows[j].mode = rows[count].mode = VITAMIN_SHARED;
    ++count;
  }
  return count;
}

const struct vitamin_policy_functions* vitamin_policy(void) {
  static struct vitamin_policy_functions functions;
  functions.size = sizeof functions;
  functions.abi = VITAMIN_POLICY_ABI;
  functions.name = "fixed-parts";
  functions.summary = "a fixed part of the device for each client";
  functions.create = create;
  functions.destroy = free;
  functions.allocate = allocate;
  return &functions;
}
