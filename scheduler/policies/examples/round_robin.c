/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Round robin over clients, on a quarter of the device each: the smallest policy in the paper's
 * three callbacks. Pick is asked when a stream waits, which it does again after LAUNCHES launches.
 * Prepare keeps a quarter that is free, or that the client has, for a decode that it has announced.
 *     cc -shared -fPIC -I.. -o round_robin.so round_robin.c
 */
#include <stdio.h>
#include <stdlib.h>

#include "vitamin_policy.h"

/* Of one turn. Without a bound a client keeps its part for good, and those for which there is none
 * wait until they starve. */
enum { LAUNCHES = 64 };

struct round_robin {
  uint32_t share;    /* each gets one share-th of the SMs */
  uint32_t last;     /* the client that was served last */
  uint64_t revision; /* of the snapshot for which units were prepared last */
  uint64_t prepared; /* those units */
};

static void* create(const char* parameters, char* error, size_t error_size) {
  struct round_robin* self = malloc(sizeof *self);
  int share = 4, end = 0;
  if (self == NULL) return NULL;
  if (*parameters != 0 &&
      (sscanf(parameters, "share=%d%n", &share, &end) != 1 || parameters[end] != 0 || share < 1)) {
    snprintf(error, error_size, "'%s' is not share=N", parameters);
    free(self);
    return NULL;
  }
  *self = (struct round_robin){(uint32_t)share, 0, 0, 0};
  return self;
}

/* The next client after the last one; the lowest number when there is none after it. */
static int64_t pick(void* state, const struct vitamin_operation* ready, uint32_t count,
                    const struct vitamin_snapshot* snapshot) {
  const struct round_robin* self = state;
  uint32_t best = 0;
  (void)snapshot;
  for (uint32_t i = 1; i < count; ++i) {
    uint32_t a = VITAMIN_AT(struct vitamin_operation, ready, i)->client - self->last - 1;
    uint32_t b = VITAMIN_AT(struct vitamin_operation, ready, best)->client - self->last - 1;
    if (a < b) best = i;
  }
  return best;
}

static uint32_t sms_of(const struct vitamin_snapshot* snapshot, uint32_t partition) {
  return VITAMIN_AT(struct vitamin_partition, snapshot->partitions, partition)->sms;
}

static struct vitamin_choice choose(void* state, const struct vitamin_operation* operation,
                                    const uint32_t* eligible, uint32_t count,
                                    const struct vitamin_snapshot* snapshot) {
  struct round_robin* self = state;
  uint32_t wanted = snapshot->partitions->sms / self->share, i = 0;
  self->last = operation->client; /* here: one that was picked may find no part */
  while (i + 1 < count && sms_of(snapshot, eligible[i]) < wanted) ++i;
  return (struct vitamin_choice){eligible[i], LAUNCHES};
}

static uint64_t units_of(const struct vitamin_snapshot* snapshot, uint32_t partition) {
  return VITAMIN_AT(struct vitamin_partition, snapshot->partitions, partition)->units;
}

/* Units that other clients hold exclusively; *own: the part that this one holds, if it does. */
static uint64_t held(const struct vitamin_snapshot* snapshot, uint32_t client, uint32_t* own) {
  uint64_t units = 0;
  for (uint32_t i = 0; i < snapshot->grants_count; ++i) {
    const struct vitamin_grant* grant = VITAMIN_AT(struct vitamin_grant, snapshot->grants, i);
    if (grant->mode != VITAMIN_EXCLUSIVE || grant->state == VITAMIN_GRANT_PENDING) continue;
    if (grant->client != client)
      units |= units_of(snapshot, grant->partition);
    else if (grant->state == VITAMIN_GRANT_OPEN)
      *own = grant->partition;
  }
  return units;
}

/* Asked for one step after the other: what was prepared for one is not prepared for the next. */
static struct vitamin_plan prepare(void* state, const struct vitamin_step* step,
                                   const struct vitamin_snapshot* snapshot) {
  struct round_robin* self = state;
  uint32_t wanted = snapshot->partitions->sms / self->share, at = VITAMIN_NO_PARTITION;
  uint64_t taken;
  if (step->kind != VITAMIN_STEP_DECODE || step->due_ns == 0)
    return (struct vitamin_plan){VITAMIN_NO_PARTITION, 0, 0};
  if (self->revision != snapshot->revision) self->prepared = 0;
  self->revision = snapshot->revision;
  taken = held(snapshot, step->client, &at) | self->prepared;
  for (uint32_t i = 1; i < snapshot->partitions_count && at == VITAMIN_NO_PARTITION; ++i)
    if (sms_of(snapshot, i) >= wanted && (units_of(snapshot, i) & taken) == 0) at = i;
  if (at != VITAMIN_NO_PARTITION) self->prepared |= units_of(snapshot, at);
  return (struct vitamin_plan){at, 0, step->due_ns};
}

const struct vitamin_policy_functions* vitamin_policy(void) {
  static const struct vitamin_policy_functions functions = {
      .size = sizeof functions,
      .abi = VITAMIN_POLICY_ABI,
      .name = "round-robin",
      .summary = "clients in turn, on a part of the device each",
      .create = create,
      .destroy = free,
      .pick = pick,
      .select = choose,
      .prepare = prepare,
  };
  return &functions;
}
