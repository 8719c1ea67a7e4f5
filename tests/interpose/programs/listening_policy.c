/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy that writes down what it is told of each operation, one line each, to $LISTENING_LOG.
 */
#include <stdio.h>
#include <stdlib.h>

#include "policies/vitamin_policy.h"

static int self_;

static void* create(const char* parameters, char* error, size_t error_size) {
  (void)parameters, (void)error, (void)error_size;
  return &self_;
}
static void destroy(void* self) { (void)self; }

static void write_down(const char* what, uint32_t kind, uint32_t processors, uint64_t ready_at_ns,
                       uint64_t deadline_ns, uint64_t now_ns, uint32_t flag) {
  static const char* const kinds[] = {"unknown", "prefill", "decode", "best-effort"};
  FILE* log = fopen(getenv("LISTENING_LOG"), "a");
  if (log == NULL) return;
  const long long due = deadline_ns == 0 ? 0 : ((long long)deadline_ns - (long long)now_ns) / 1000;
  const long long ready =
      ready_at_ns == 0 ? 0 : ((long long)ready_at_ns - (long long)now_ns) / 1000;
  fprintf(log, "%s %s processors %u due_us %lld ready_us %lld flag %u\n", what,
          kind < 4 ? kinds[kind] : "?", processors, due, ready, flag);
  fclose(log);
}

static int64_t pick(void* self, const struct vitamin_operation* ready, uint32_t count,
                    const struct vitamin_pool* pool) {
  (void)self, (void)ready, (void)count, (void)pool;
  return 0;
}
static struct vitamin_choice choose(void* self, const struct vitamin_operation* operation,
                                    const uint32_t* eligible, uint32_t count,
                                    const struct vitamin_pool* pool) {
  (void)self;
  write_down("select", operation->kind, pool->entries[eligible[0]].processors,
             operation->ready_at_ns, operation->deadline_ns, pool->now_ns,
             operation->iteration_end);
  /* The whole device always has room, so each launch is asked about once. */
  const struct vitamin_choice choice = {eligible[count - 1], 1};
  return choice;
}
static struct vitamin_plan prepare(void* self, const struct vitamin_hint* hint,
                                   const struct vitamin_pool* pool) {
  (void)self;
  write_down("prepare", hint->kind, hint->processors, hint->ready_at_ns, hint->deadline_ns,
             pool->now_ns, hint->cancelled);
  const struct vitamin_plan nothing = {VITAMIN_NO_ENTRY, 0, 0, VITAMIN_NO_ENTRY};
  return nothing;
}

const struct vitamin_policy_functions* vitamin_policy(void) {
  static const struct vitamin_policy_functions functions = {sizeof functions,
                                                            VITAMIN_POLICY_ABI,
                                                            "listening",
                                                            "writes down what it is told",
                                                            create,
                                                            destroy,
                                                            pick,
                                                            choose,
                                                            prepare};
  return &functions;
}
