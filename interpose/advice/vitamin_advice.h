/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine can tell Vitamin of its work. C or C++, no library to link: without Vitamin every
 * call does nothing and answers VITAMIN_INACTIVE.
 *
 *     struct vitamin_work decode = {sizeof decode, VITAMIN_WORK_DECODE, 0, 0, 0, 30000000, 0};
 *     vitamin_work_begin(&decode);       this thread's launches are a decode step, due in 30 ms
 *     ... launch ...
 *     vitamin_work_end();
 *
 * Advice changes where and when a launch runs, never its results. Engines that mark phases with
 * NVTX need no call of these: see README.md.
 *
 * Units: nanoseconds from now; processors are SMs or CUs.
 * Threads: any. vitamin_work_begin() and _end() are of the calling thread and nest, 64 deep; work
 * of a stream is what follows on that stream, whichever thread submits it. The innermost of the
 * thread comes before that of the stream.
 * A stream is the vendor's handle (CUstream, cudaStream_t, hipStream_t); null: the default stream
 * of the current device.
 */
#pragma once

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define VITAMIN_ADVICE_ABI 1u

enum vitamin_work_kind {
  VITAMIN_WORK_UNKNOWN,
  VITAMIN_WORK_PREFILL,
  VITAMIN_WORK_DECODE,
  VITAMIN_WORK_BEST_EFFORT
};

enum vitamin_answer {
  VITAMIN_OK = 0,
  VITAMIN_INACTIVE = -1, /* Vitamin is not there, or does not manage the device */
  VITAMIN_INVALID = -2,  /* a null pointer, an unknown kind, an end without a begin */
  VITAMIN_TOO_DEEP = -3  /* more than 64 ranges are open on this thread: it is not used */
};

/* Zero means unknown, everywhere. */
struct vitamin_work {
  uint32_t size;       /* sizeof(struct vitamin_work) */
  uint32_t kind;       /* enum vitamin_work_kind */
  uint32_t processors; /* wanted at least */
  uint32_t unused;
  uint64_t ready_in_ns;    /* it can begin then */
  uint64_t deadline_in_ns; /* it should have ended by then */
  uint64_t queued_ns;      /* predicted time of all that must be done by then */
};

/* What the preloaded library offers; it only ever grows at its end. */
struct vitamin_advice_functions {
  uint32_t size;
  uint32_t abi;
  int (*active)(void);
  int (*work_begin)(const struct vitamin_work* work);
  int (*work_end)(void);
  int (*work_deadline)(uint64_t deadline_in_ns);
  int (*stream_begin)(void* stream, const struct vitamin_work* work);
  int (*stream_end)(void* stream);
  int (*expect)(void* stream, const struct vitamin_work* work);
  int (*cancel)(void* stream);
  int (*iteration_end)(void* stream);
};

/* One library for each vendor; a process may have both. */
static inline const struct vitamin_advice_functions* vitamin_advice_of(int vendor) {
  static const struct vitamin_advice_functions* found[2];
  static int looked[2];
  typedef const struct vitamin_advice_functions* (*Offer)(void);
  if (!looked[vendor]) {
    union {
      void* address;
      Offer offer;
    } symbol;
    symbol.address =
        dlsym(RTLD_DEFAULT, vendor == 0 ? "vitamin_advice_cuda" : "vitamin_advice_hip");
    // NOLINTBEGIN(modernize-use-nullptr): C, too, reads this header
    if (symbol.address != NULL) {
      found[vendor] = symbol.offer();
      if (found[vendor] != NULL && found[vendor]->abi != VITAMIN_ADVICE_ABI) found[vendor] = NULL;
    }
    // NOLINTEND(modernize-use-nullptr)
    looked[vendor] = 1;
  }
  return found[vendor];
}

#define VITAMIN_ADVISE(call)                                                      \
  do {                                                                            \
    int answer = VITAMIN_INACTIVE;                                                \
    for (int vendor = 0; vendor < 2; ++vendor) {                                  \
      const struct vitamin_advice_functions* vitamin = vitamin_advice_of(vendor); \
      if (vitamin == NULL) continue;                                              \
      const int one = vitamin->call;                                              \
      if (one != VITAMIN_INACTIVE) answer = one;                                  \
    }                                                                             \
    return answer;                                                                \
  } while (0)

/* The ABI that this program was compiled for. */
static inline unsigned vitamin_advice_version(void) { return VITAMIN_ADVICE_ABI; }
/* VITAMIN_OK when launches of this process are bound by Vitamin (from its first launch on). */
static inline int vitamin_active(void) { VITAMIN_ADVISE(active()); }
/* The calling thread's launches are this, until the end. */
static inline int vitamin_work_begin(const struct vitamin_work* work) {
  VITAMIN_ADVISE(work_begin(work));
}
static inline int vitamin_work_end(void) { VITAMIN_ADVISE(work_end()); }
/* Another deadline for the innermost. */
static inline int vitamin_work_deadline(uint64_t deadline_in_ns) {
  VITAMIN_ADVISE(work_deadline(deadline_in_ns));
}
/* What follows on the stream is this, until the end. */
static inline int vitamin_stream_begin(void* stream, const struct vitamin_work* work) {
  VITAMIN_ADVISE(stream_begin(stream, work));
}
static inline int vitamin_stream_end(void* stream) { VITAMIN_ADVISE(stream_end(stream)); }
/* Work is expected on the stream that is not submitted yet: room may be made for it. */
static inline int vitamin_expect(void* stream, const struct vitamin_work* work) {
  VITAMIN_ADVISE(expect(stream, work));
}
/* It is not any more. */
static inline int vitamin_cancel(void* stream) { VITAMIN_ADVISE(cancel(stream)); }
/* The stream has ended an iteration (a training step, a token): a good moment to hand over. */
static inline int vitamin_iteration_end(void* stream) { VITAMIN_ADVISE(iteration_end(stream)); }

#undef VITAMIN_ADVISE

#ifdef __cplusplus
}
#endif
