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

/* The one that has waited longest. */
static int64_t pick(void* state, const struct vitamin_operation* ready, uint32_t count,
                    const struct vitamin_pool* pool) {
  uint32_t best = 0;
  (void)state, (void)pool;
  for (uint32_t i = 1; i < count; ++i)
    if (VITAMIN_AT(struct vitamin_operation, ready, i)->since_ns <
        VITAMIN_AT(struct vitamin_operation, ready, best)->since_ns)
      best = i;
  return best;
}

/* The widest entry inside the client's units, or none until it is free. A launch that does not fit
 * there runs on the whole device. */
static struct vitamin_choice choose(void* state, const struct vitamin_operation* operation,
                                    const uint32_t* eligible, uint32_t count,
                                    const struct vitamin_pool* pool) {
  const uint64_t units = units_of(state, operation->client);
  const struct vitamin_entry* whole = VITAMIN_AT(struct vitamin_entry, pool->entries, 0);
  uint32_t widest = 0;
  if ((whole->units & ~units) == 0) return (struct vitamin_choice){0, VITAMIN_UNTIL_CHANGED};
  for (uint32_t i = 1; i < pool->entries_count; ++i) {
    const struct vitamin_entry* entry = VITAMIN_AT(struct vitamin_entry, pool->entries, i);
    if ((entry->units & ~units) == 0 &&
        (widest == 0 ||
         entry->processors > VITAMIN_AT(struct vitamin_entry, pool->entries, widest)->processors))
      widest = i;
  }
  for (uint32_t i = 0; i < count && widest != 0; ++i)
    if (eligible[i] == widest) return (struct vitamin_choice){widest, VITAMIN_UNTIL_CHANGED};
  if (widest != 0 &&
      operation->processors <= VITAMIN_AT(struct vitamin_entry, pool->entries, widest)->processors)
    return (struct vitamin_choice){VITAMIN_NO_ENTRY, 0}; /* its older work elsewhere drains */
  return (struct vitamin_choice){0, 1};
}

const struct vitamin_policy_functions* vitamin_policy(void) {
  static const struct vitamin_policy_functions functions = {
      sizeof functions,
      VITAMIN_POLICY_ABI,
      "fixed-parts",
      "a fixed part of the device for each client",
      create,
      free,
      pick,
      choose,
      NULL};
  return &functions;
}
