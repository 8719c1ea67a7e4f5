/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy of your own, as a shared object: C, no other header of Vitamin, no library to link.
 *
 *     vitamin policy test ./my_policy.so          is it well-behaved?
 *     vitamin run --policy ./my_policy.so -- ...
 *     vitamin simulate --policy ./my_policy.so:speed=2 --policy throughput --trace FILE
 *
 * Export one function, vitamin_policy(). Answers are values; each is validated before anything
 * changes. A policy that throws, answers nonsense, or takes longer than 8 ms of processor time (150
 * ms by the clock) to answer is replaced by fifo for good, and that is counted and logged. Calls
 * come one at a time, on a thread of their own; whatever a call is given is valid during the call
 * only.
 *
 * Compatibility: every structure begins with its size and only ever grows at its end; step through
 * arrays with VITAMIN_AT. A policy compiled for another VITAMIN_POLICY_ABI is refused with a
 * message. Times are nanoseconds, processors are SMs or CUs.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VITAMIN_POLICY_ABI 1u
#define VITAMIN_NO_ENTRY 0xffffu
#define VITAMIN_UNTIL_CHANGED 0xffffffffu

/* The i-th element of an array of structures that may be larger than the ones declared here. */
#define VITAMIN_AT(type, array, i) \
  ((const type*)((const char*)(array) + (size_t)(i) * ((const type*)(array))->size))

enum vitamin_kind { VITAMIN_UNKNOWN, VITAMIN_PREFILL, VITAMIN_DECODE, VITAMIN_BEST_EFFORT };

/* A set of processors that an operation can run on. Entry 0 is the whole device, which is shared
 * and never leased; the others come narrowest first. */
struct vitamin_entry {
  uint32_t size;
  uint32_t processors;
  uint64_t units; /* one bit each: two entries overlap when their words share a bit */
};

struct vitamin_operation {
  uint32_t size;
  uint32_t client, lane;
  uint32_t kind;       /* enum vitamin_kind */
  uint32_t processors; /* the narrowest width that runs it */
  uint32_t last_entry; /* where the lane's last operation ran, or VITAMIN_NO_ENTRY */
  uint64_t id, kernel; /* `kernel`: equal for equal launches */
  uint64_t since_ns;   /* it has been ready since then */
  uint64_t ready_at_ns, deadline_ns;       /* 0: now; none */
  uint64_t predicted_ns, queued_ns;        /* on the whole device; queued: all until the deadline */
  const float* times_ns;                   /* predicted, by entry; only ratios count if unknown */
  uint32_t iteration_end;
  uint64_t target_ns; /* that a step may take, by its client's class; 0: it has none */
};

struct vitamin_holding {
  uint32_t size;
  uint32_t entry;
  uint64_t granted_at_ns;
  struct vitamin_operation next;
};

struct vitamin_pool {
  uint32_t size;
  uint32_t entries_count, waiting_count, holdings_count;
  const struct vitamin_entry* entries;
  const struct vitamin_operation* waiting; /* ready, and without a grant */
  const struct vitamin_holding* holdings;  /* grants whose gate is open */
  uint64_t barred, set_aside;              /* units: not this client's; reserved for one client */
  uint64_t now_ns;
  uint64_t epoch; /* changes with every change of demand or leases */
};

struct vitamin_hint {
  uint32_t size;
  uint32_t client, lane, kind, processors;
  uint32_t held; /* the entry that the lane holds, or VITAMIN_NO_ENTRY */
  uint64_t kernel, ready_at_ns, deadline_ns, queued_ns;
  uint32_t cancelled;
};

struct vitamin_choice {
  uint32_t entry;    /* one of the eligible ones, or VITAMIN_NO_ENTRY: not now */
  uint32_t launches; /* for how many launches, or VITAMIN_UNTIL_CHANGED */
};

struct vitamin_plan {
  uint32_t target;      /* reserve this for the lane's next grant, or VITAMIN_NO_ENTRY */
  uint32_t close_gates; /* of the leases that overlap it */
  uint64_t expires_ns;  /* 0: soon */
  uint32_t standing;    /* the client's own, also while it is idle, or VITAMIN_NO_ENTRY */
};

struct vitamin_policy_functions {
  uint32_t size;
  uint32_t abi; /* VITAMIN_POLICY_ABI */
  const char* name;
  const char* summary;
  /* `parameters`: what stands behind the colon. Null, and a sentence in `error`: refused. */
  void* (*create)(const char* parameters, char* error, size_t error_size);
  void (*destroy)(void* self);
  /* An index into `ready`, or -1 to let all of them wait. */
  int64_t (*pick)(void* self, const struct vitamin_operation* ready, uint32_t count,
                  const struct vitamin_pool* pool);
  /* `eligible`: entries that run the operation and conflict with nobody, narrowest first. */
  struct vitamin_choice (*select)(void* self, const struct vitamin_operation* operation,
                                  const uint32_t* eligible, uint32_t count,
                                  const struct vitamin_pool* pool);
  /* May be null. Asked for every lane when demand has changed, and for what is announced. */
  struct vitamin_plan (*prepare)(void* self, const struct vitamin_hint* hint,
                                 const struct vitamin_pool* pool);
};

/* Exported by the shared object; valid as long as it is loaded. */
__attribute__((visibility("default")))
const struct vitamin_policy_functions* vitamin_policy(void);

#ifdef __cplusplus
}
#endif
