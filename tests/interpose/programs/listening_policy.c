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

static void write_down(const char* what, uint32_t kind, uint32_t processors, uint64_t ready_at_ns,
                       uint64_t deadline_ns, uint64_t now_ns, uint32_t flag) {
  static const char* const kinds[] = {"unknown", "prefill", "decode", "iteration"};
  FILE* log = fopen(getenv("LISTENING_LOG"), "a");
  if (log == NULL) return;
  const long long due = deadline_ns == 0 ? 0 : ((long long)deadline_ns - (long long)now_ns) / 1000;
  const long long ready =
      ready_at_ns == 0 ? 0 : ((long long)ready_at_ns - (long long)now_ns) / 1000;
  fprintf(log, "%s %s processors %u due_us %lld ready_us %lld flag %u\n", what,
          kind < 4 ? kinds[kind] : "?", processors, due, ready, flag);
  fclose(log);
}

static uint32_t sms_of(const struct vitamin_snapshot* snapshot, uint32_t partition) {
  return VITAMIN_AT(struct vitamin_partition, snapshot->partitions, partition)->sms;
}
static struct vitamin_choice choose(void* self, const struct vitamin_operation* operation,
                                    const uint32_t* eligible, uint32_t count,
                                    const struct vitamin_snapshot* snapshot) {
  (void)self;
  write_down("select", operation->phase, sms_of(snapshot, eligible[0]), 0, operation->due_ns,
             snapshot->now_ns, 0);
  /* The whole device always has room, so each launch is asked about once. */
  const struct vitamin_choice choice = {eligible[count - 1], 1};
  return choice;
}
static struct vitamin_plan prepare(void* self, const struct vitamin_step* step,
                                   const struct vitamin_snapshot* snapshot) {
  (void)self;
  write_down("prepare", step->kind, step->min_sms, step->ready_ns, step->due_ns, snapshot->now_ns,
             0);
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
