/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy of your own, as a shared object: C, no other header of Vitamin, no library to link.
 *
 * Export one function, vitamin_policy(). Its table sets one of three interfaces:
 *
 *   allocate   what each client is to have, for all clients at once; asked when demand changes
 *   place      a partition for one grant of one stream; asked for each grant
 *   select     with pick and prepare, which may be null: the three callbacks of the paper
 *              (section "Policy Interface"), asked for streams and announced steps
 *
 * Answers are values; each is validated and clipped to quotas, reservations and the starvation
 * bound before anything changes. A policy whose allocate() returns -1, that returns invalid rows or
 * a partition that is not eligible, or takes longer than 50 ms of processor time (150 ms by the
 * clock) is replaced by fifo, and the reason is logged. No other call can say that it failed: -1 of
 * pick() is "none for now".
 * No exception may leave a call: vitamind and vitamin have a C++ library of their own, and end.
 * Calls come one at a time, on a thread of their own, create() first, which has 150 ms; where that
 * fails the policy is refused. vitamin_policy() and destroy() are called without a limit. Whatever
 * a call is given is valid during the call.
 *
 * Compatibility: every structure that is passed by address begins with its size and only ever grows
 * at its end; step through arrays with VITAMIN_AT. Of a structure of a policy that was compiled
 * before it grew, the fields that it lacks are 0. A policy that was compiled for another
 * VITAMIN_POLICY_ABI is refused with a message. Version 1 asked Pick, Select and Prepare for one
 * stream at a time.
 *
 * Units: times are nanoseconds of one clock; sms are SMs or CUs. In what a policy is given, a time
 * of 0 is "none" or "unknown" unless a field says otherwise. In what it answers, "no bound" is
 * VITAMIN_NEVER, and 0 is a time that has passed or a bound of nothing: see vitamin_row.
 *
 * Rows: at most one for each client and each stream; a stream's overrides its client's. An active
 * client without a row waits. `current` has the rows in force as they were clipped.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VITAMIN_POLICY_ABI 2u
#define VITAMIN_WHOLE_DEVICE 0u
#define VITAMIN_NO_PARTITION 0xffffu
#define VITAMIN_ALL_STREAMS 0xffffffffu
#define VITAMIN_NEVER 0xffffffffffffffffull
#define VITAMIN_AS_ALONE_NS 1ull /* a latency bound that is no number, see vitamin_client */

/* The i-th element of an array of structures that may be larger than the ones declared here. */
#define VITAMIN_AT(type, array, i) \
  ((const type*)((const char*)(array) + (size_t)(i) * ((const type*)(array))->size))

/* More kinds may follow: treat one that you do not know as unknown. */
enum vitamin_step_kind {
  VITAMIN_STEP_UNKNOWN,
  VITAMIN_STEP_PREFILL,
  VITAMIN_STEP_DECODE,
  VITAMIN_STEP_ITERATION,  /* between two ends of an iteration that the client announced */
  VITAMIN_STEP_BEST_EFFORT /* its end is not waited for */
};
/* Rows are placed by rank; of one rank, exclusive ones first. Units of an exclusive row are in no
 * row of another client: a later row that overlaps it, exclusive or shared, is narrowed to what is
 * left, or paused. A shared row overlaps shared ones and promises nothing. A paused client waits.
 */
enum vitamin_mode { VITAMIN_EXCLUSIVE, VITAMIN_SHARED, VITAMIN_PAUSED };
enum vitamin_stream_state { VITAMIN_STREAM_IDLE, VITAMIN_STREAM_WAITING, VITAMIN_STREAM_RUNNING };
enum vitamin_grant_state { VITAMIN_GRANT_PENDING, VITAMIN_GRANT_OPEN, VITAMIN_GRANT_REVOKED };

/* A fixed set of SMs. Partition 0 is the whole device; the others come narrowest first. The index
 * in vitamin_snapshot.partitions is what rows name. */
struct vitamin_partition {
  uint32_t size;
  uint32_t sms;
  uint64_t units; /* one bit each: two partitions overlap when their words share a bit */
};

struct vitamin_stream {
  uint32_t size;
  uint32_t id;
  uint32_t state;   /* enum vitamin_stream_state */
  uint32_t min_sms; /* narrowest partition that its next launch fits */
  /* Of that launch: equal for equal launches of a process without vitamind. Under vitamind one for
   * all launches of a client. */
  uint64_t kernel;
  uint64_t predicted_ns;     /* of that launch, on the whole device */
  uint64_t waiting_since_ns; /* VITAMIN_STREAM_WAITING: without a grant since then */
};

/* A unit of work that a client announced: a prefill, one token, one iteration. A step that is
 * cancelled or has ended is not in the next snapshot. */
struct vitamin_step {
  uint32_t size;
  uint32_t client;
  uint32_t stream; /* or VITAMIN_ALL_STREAMS */
  uint32_t kind;   /* enum vitamin_step_kind */
  uint64_t id, request;
  uint64_t ready_ns, begin_ns; /* begin 0: expected */
  uint64_t due_ns, work_ns;
  uint32_t min_sms;
};

struct vitamin_client {
  uint32_t size;
  uint32_t id;
  float weight; /* of its class: how much its progress counts; 1 unless it is set */
  /* 0: none. max_sms: the least of all quotas that bind the client; reserved_sms: kept for it also
   * while it is idle; group: clients of one group share both. may_share 0: as a quota cannot hold
   * on shared SMs, the client gets exclusive partitions only. */
  uint32_t max_sms, reserved_sms, group, may_share;
  /* enum vitamin_step_kind, of the step under way that began last; between two, of the one before
   */
  uint32_t phase;
  /* active: a stream of it waits or runs, or ended less than 5 ms ago. */
  uint32_t active, reports_progress;
  /* Its SLO: bounds of a prefill, of a further token, of a request whose steps are not announced,
   * of an iteration; 0: none. Under vitamind a client with any of them has latency_ns, too: what
   * its class says, else its tpot, ttft or step. A class of kind "latency" without any bound has
   * VITAMIN_AS_ALONE_NS there: latencies as if the client were alone. `quantile` of the latencies
   * are to meet their bound. */
  uint64_t ttft_ns, tpot_ns, latency_ns, step_ns;
  float quantile;
  uint32_t streams_count, steps_count;
  const struct vitamin_stream* streams; /* that wait or run */
  const struct vitamin_step* steps;     /* unfinished, by due time */
  /* Cumulative progress. It is reported to a policy of allocate() while several clients are
   * connected; else it is 0 or stands still. `work` is completed launches, weighted by what they
   * take: it has no unit, and compares only with the same client's at another time. `misplaced`:
   * the part of it that ran elsewhere than on the granted partition. */
  uint64_t work, busy_ns, misplaced, launches;
  uint64_t active_since_ns; /* when it last became active, not when it connected */
  uint64_t collectives;     /* progress: launches that wait for kernels of other processes */
  uint32_t distributed; /* such launches within the last minute: other devices set its pace, too */
};

struct vitamin_grant {
  uint32_t size;
  uint32_t client, stream, partition;
  uint32_t mode;  /* enum vitamin_mode */
  uint32_t state; /* enum vitamin_grant_state */
  uint32_t launches;
  uint64_t id, run_ahead_ns;
  uint64_t requested_ns, opened_ns, revoked_ns;
  uint64_t heard_ns; /* equal to revoked_ns; kept for policies that are built already */
};

/* What a client, or one stream of it, is to have. Zero bytes are no valid row: see
 * vitamin_row_for(). */
struct vitamin_row {
  uint32_t size;
  uint32_t client, stream, partition;
  uint32_t mode;     /* enum vitamin_mode */
  uint32_t rank;     /* among rows that want the same SMs: lower first; 0 to 255 */
  uint32_t hold;     /* kept while the client is idle */
  uint32_t launches; /* each grant ends after so many; 0: only when it is revoked */
  /* Predicted work that is submitted and not complete, at most. 0: a launch is submitted when the
   * one before it has ended. VITAMIN_NEVER: as far as the client goes. */
  uint64_t run_ahead_ns;
  /* The policy is asked then; the row stands until it is. A time that has passed, as 0, is in 50
   * us. VITAMIN_NEVER: when something changes. */
  uint64_t until_ns;
};

struct vitamin_snapshot {
  uint32_t size;
  uint32_t partitions_count, clients_count, grants_count, changed_count, current_count;
  uint64_t now_ns, revision;
  const struct vitamin_partition* partitions;
  /* Ordered by id, which grows with each client that connects: those that are active or have a
   * reservation, an unfinished step, an SLO, or a row with `hold`. */
  const struct vitamin_client* clients;
  const struct vitamin_grant* grants;
  const uint32_t* changed;           /* clients */
  const struct vitamin_row* current; /* rows in force */
  /* Speed of the client when it is alone on the partition, relative to the whole device, and its
   * standard error. Returns 1, or 0 when nothing is known. Where the client was not measured at
   * this width, which only blocks of `throughput` do, it is a model's: a large `error` says so. */
  int (*speed)(const struct vitamin_snapshot* snapshot, uint32_t client, uint32_t partition,
               float* mean, float* error);
  const void* host;
};

/* One launch that is to be placed. */
struct vitamin_launch {
  uint32_t size;
  uint32_t client, stream, min_sms;
  uint32_t last; /* where the stream's grant before was, or VITAMIN_NO_PARTITION */
  uint32_t partitions_count;
  uint64_t kernel, predicted_ns, waiting_since_ns, now_ns;
  const struct vitamin_partition* partitions;
};

/* The next launch of a stream that waits. */
struct vitamin_operation {
  uint32_t size;
  uint32_t client, stream;
  uint32_t phase; /* enum vitamin_step_kind, of its client */
  uint32_t min_sms;
  uint64_t kernel, predicted_ns, since_ns, due_ns;
};

/* There is no mode to choose: a part is granted exclusively, the whole device shared. */
struct vitamin_choice {
  uint32_t partition; /* one of the eligible ones, or VITAMIN_NO_PARTITION: not now */
  uint32_t launches;  /* the grant ends after so many; 0: only when it is revoked */
};

/* A row of the step's stream (or client, for all streams): it replaces the row that the same stream
 * (or client) has, so that a stream that runs elsewhere moves at once. */
struct vitamin_plan {
  /* Kept for the step, exclusively, or VITAMIN_NO_PARTITION. One that the snapshot lacks is
   * ignored; from select() it is a fault. */
  uint32_t target;
  /* 1: exclusive grants of others that overlap it are revoked. 0: it gets what they leave. */
  uint32_t revoke_others;
  uint64_t until_ns; /* it is kept until this time; one that has passed, as 0: it is not kept */
};

/* What a policy declares (flags). A policy of select() is asked for all three VITAMIN_USES_...
 * without declaring them. No policy in C can declare that it keeps latency bounds, or that weights
 * count: vitamind says of `weight` or a bound of a class that it has no effect under it. */
#define VITAMIN_MAY_STARVE 1u      /* starving streams are not served first */
#define VITAMIN_ISOLATE_STREAMS 2u /* streams of one client conflict, too */
#define VITAMIN_USES_STEPS 4u      /* allocate when steps change */
#define VITAMIN_USES_RETURNS 8u    /* allocate when a grant is returned while a stream waits */
#define VITAMIN_USES_STREAMS 16u   /* allocate when a stream waits that no row covers */

struct vitamin_policy_functions {
  uint32_t size;
  uint32_t abi; /* VITAMIN_POLICY_ABI */
  const char* name;
  const char* summary;
  uint32_t flags;
  /* `parameters`: what stands behind the colon. Null, and a sentence in `error`: refused. */
  void* (*create)(const char* parameters, char* error, size_t error_size);
  void (*destroy)(void* self);
  /* Rows written, at most `capacity`; -1: failed. `wake_ns`: when to ask again, if not before
   * (VITAMIN_NEVER, unless it is set). */
  int64_t (*allocate)(void* self, const struct vitamin_snapshot* snapshot, struct vitamin_row* rows,
                      uint32_t capacity, uint64_t* wake_ns);
  /* `eligible`: partitions that run the launch and conflict with no other client (under
   * VITAMIN_ISOLATE_STREAMS with no other stream), narrowest first, the whole device last. */
  struct vitamin_choice (*place)(void* self, const struct vitamin_launch* launch,
                                 const uint32_t* eligible, uint32_t count);
  void (*forget)(void* self, uint32_t client); /* may be null */
  /* The three callbacks in one call of the policy: rows of open grants are kept, prepare() is asked
   * for each step, then pick() and select() in turn. `snapshot` is the same in all of them and
   * shows nothing that was chosen in this call; `eligible` does.
   *
   * The stream to serve next: an index into `ready`, the streams that wait without an open grant
   * and that no row of prepare() covers, the longest wait first; -1: none of them for now. Asked
   * again without that one, whether or not select() gave it a partition, until none is left. Keep
   * no account here of what was served: select() is not called where nothing is eligible. An index
   * beyond `ready` is a fault. Null: the first. */
  int64_t (*pick)(void* self, const struct vitamin_operation* ready, uint32_t count,
                  const struct vitamin_snapshot* snapshot);
  /* A partition of `eligible`, as for place(), for the launch that was picked. Quotas and
   * reservations are applied to what is chosen. */
  struct vitamin_choice (*select)(void* self, const struct vitamin_operation* operation,
                                  const uint32_t* eligible, uint32_t count,
                                  const struct vitamin_snapshot* snapshot);
  /* Asked for each step that has not begun, whenever the policy is asked. It does not see what it
   * kept for another step in the same call: remember that by `revision`, as round_robin.c does. May
   * be null. */
  struct vitamin_plan (*prepare)(void* self, const struct vitamin_step* step,
                                 const struct vitamin_snapshot* snapshot);
};

/* A shared row of the whole device for all streams of the client, without an end. */
static inline struct vitamin_row vitamin_row_for(uint32_t client) {
  struct vitamin_row row;
  row.size = (uint32_t)sizeof row;
  row.client = client;
  row.stream = VITAMIN_ALL_STREAMS;
  row.partition = VITAMIN_WHOLE_DEVICE;
  row.mode = VITAMIN_SHARED;
  row.rank = 0;
  row.hold = 0;
  row.launches = 0;
  row.run_ahead_ns = VITAMIN_NEVER;
  row.until_ns = VITAMIN_NEVER;
  return row;
}

/* Exported by the shared object; valid as long as it is loaded. */
__attribute__((visibility("default"))) const struct vitamin_policy_functions* vitamin_policy(void);

#ifdef __cplusplus
}
#endif
