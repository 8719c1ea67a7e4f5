/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round robin over clients, on a quarter of the device each: the smallest policy worth the name.
 *     cc -shared -fPIC -I.. -o round_robin.so round_robin.c
 */
#include <stdio.h>
#include <stdlib.h>

#include "vitamin_policy.h"

struct round_robin {
  uint32_t share; /* each gets one share-th of the processors */
  uint32_t last;  /* the client that was served last */
};

static void* create(const char* parameters, char* error, size_t error_size) {
  struct round_robin* self = malloc(sizeof *self);
  if (self == NULL) return NULL;
  *self = (struct round_robin){4, 0};
  if (*parameters != 0 && (sscanf(parameters, "share=%u", &self->share) != 1 || !self->share)) {
    snprintf(error, error_size, "'%s' is not share=N", parameters);
    free(self);
    return NULL;
  }
  return self;
}

/* The next client behind the last one; the lowest number when there is none behind it. */
static int64_t pick(void* state, const struct vitamin_operation* ready, uint32_t count,
                    const struct vitamin_pool* pool) {
  struct round_robin* self = state;
  uint32_t best = 0;
  (void)pool;
  for (uint32_t i = 1; i < count; ++i) {
    uint32_t a = VITAMIN_AT(struct vitamin_operation, ready, i)->client - self->last - 1;
    uint32_t b = VITAMIN_AT(struct vitamin_operation, ready, best)->client - self->last - 1;
    if (a < b) best = i;
  }
  self->last = VITAMIN_AT(struct vitamin_operation, ready, best)->client;
  return best;
}

static struct vitamin_choice choose(void* state, const struct vitamin_operation* operation,
                                    const uint32_t* eligible, uint32_t count,
                                    const struct vitamin_pool* pool) {
  uint32_t wanted = pool->entries->processors / ((struct round_robin*)state)->share, i = 0;
  (void)operation;
  while (i + 1 < count &&
         VITAMIN_AT(struct vitamin_entry, pool->entries, eligible[i])->processors < wanted)
    ++i;
  return (struct vitamin_choice){eligible[i], VITAMIN_UNTIL_CHANGED};
}

const struct vitamin_policy_functions* vitamin_policy(void) {
  static const struct vitamin_policy_functions functions = {
      sizeof functions, VITAMIN_POLICY_ABI, "round-robin",
      "clients in turn, on a share of the device each", create, free, pick, choose, NULL};
  return &functions;
}
