/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy that writes down what it is told of each operation, one line each, to $LISTENING_LOG.
 */
#include <stdio.h>
#include <stdlib.h>

#include "scheduler/policies/vitamin_policy.h"

static int self_;

static void* create(const char* parameters, char* error, size_t error_size) {
  (void)parameters, (void)error, (void)error_size;
  return &self_;
}
static void destroy(void* self) { (void)self; }

static long long us_from_now(uint64_t ns, uint64_t now_ns) {
  return ns == 0 ? 0 : ((long long)ns - (long long)now_ns) / 1000;
}

/* `step`: null where nothing is said of the operation. */
static void write_down(const char* what, const struct vitamin_step* step, uint32_t sms,
                       uint64_t now_ns) {
  static const char* const kinds[] = {"unknown", "prefill", "decode", "iteration", "best-effort"};
  FILE* log = fopen(getenv("LISTENING_LOG"), "a");
  if (log == NULL) return;
  const uint32_t kind = step == NULL ? VITAMIN_STEP_UNKNOWN : step->kind;
  const uint64_t due = step == NULL ? 0 : step->due_ns, ready = step == NULL ? 0 : step->ready_ns;
  fprintf(log, "%s %s sms %u due_us %lld ready_us %lld step %llu\n", what,
          kind < sizeof kinds / sizeof *kinds ? kinds[kind] : "?", sms, us_from_now(due, now_ns),
          us_from_now(ready, now_ns), step == NULL ? 0 : (unsigned long long)step->id);
  fclose(log);
}

/* The step of the stream that has begun. */
static const struct vitamin_step* step_of(const struct vitamin_snapshot* snapshot, uint32_t client,
                                          uint32_t stream) {
  for (uint32_t i = 0; i < snapshot->clients_count; ++i) {
    const struct vitamin_client* one = VITAMIN_AT(struct vitamin_client, snapshot->clients, i);
    for (uint32_t k = 0; one->id == client && k < one->steps_count; ++k) {
      const struct vitamin_step* step = VITAMIN_AT(struct vitamin_step, one->steps, k);
      if (step->stream == stream && step->begin_ns != 0) return step;
    }
  }
  return NULL;
}

static struct vitamin_choice choose(void* self, const struct vitamin_operation* operation,
                                    const uint32_t* eligible, uint32_t count,
                                    const struct vitamin_snapshot* snapshot) {
  (void)self;
  write_down("select", step_of(snapshot, operation->client, operation->stream), operation->min_sms,
             snapshot->now_ns);
  /* The whole device always has room, so each launch is asked about once. */
  const struct vitamin_choice choice = {eligible[count - 1], 1};
  return choice;
}
static struct vitamin_plan prepare(void* self, const struct vitamin_step* step,
                                   const struct vitamin_snapshot* snapshot) {
  (void)self;
  write_down("prepare", step, step->min_sms, snapshot->now_ns);
  const struct vitamin_plan nothing = {VITAMIN_NO_PARTITION, 0, 0};
  return nothing;
}

const struct vitamin_policy_functions* vitamin_policy(void) {
  static const struct vitamin_policy_functions functions = {
      .size = sizeof functions,
      .abi = VITAMIN_POLICY_ABI,
      .name = "listening",
      .summary = "writes down what it is told",
      .create = create,
      .destroy = destroy,
      .select = choose,
      .prepare = prepare,
  };
  return &functions;
}
