/* SPDX-License-Identifier: Apache-2.0
 *
 * The lease protocol as a model for spin. How a lease moves is not written here: it is
 * lease_moves.def, the moves that the scheduler's ledger makes.
 *
 * Two clients and a daemon; two entries of the pool that share units, so that every lease of one
 * client is in the way of every lease of the other. Client 0 has two lanes: the operation of lane 1
 * waits for that of lane 0, its ancestor. Client 1 has one lane that comes again and again.
 *
 *     lane     wants -> granted -> looks at its word, submits -> closed -> drains -> returns
 *     table    Idle  -> Leased  ------------------------------> Draining ---------> Idle
 *
 * Checked.
 *   Safety: operations of two clients are on the device at once at no time, whatever the policy asks
 *     for (-DANY_POLICY: grants, closed gates, reservations at any time), and whoever dies at
 *     whichever step (-DVICTIM=0, 1).
 *   Liveness, under weak fairness, with a scheduler that serves by age who has waited for too long:
 *     every operation of every client that lives is run.
 *
 * The policy reserves an entry for lane 1 when neither its operation nor the ancestor has been
 * submitted. The ancestor, in another lane of the client, needs the same units: it inherits the
 * reservation, or would starve under what was made for its own successor. -DNEVER_COMES: what was
 * expected is not submitted at all, and the reservation has to expire.
 *
 * Mistakes to plant, each of which must be found: NO_INHERITANCE with NO_EXPIRY, NO_EXPIRY with
 * NEVER_COMES, FORGET_AT_ONCE with VICTIM, RETURN_EARLY; and changes of the table's rows.
 */
#ifndef VICTIM
#define VICTIM 9
#endif

#define NOBODY 9
#define ITSELF 3 /* no client: a reservation that other lanes of the client do not inherit */
#define LANES 3
#define CLIENT(lane) ((lane) / 2)
#define AT(lane, entry) ((lane) * 2 + (entry))
#define LAST 2 /* grants to others, and who waits longest is overdue */

mtype = { Idle, Leased, Draining };                         /* leases */
mtype = { Acquire, Submit, Retire, Close, Reopen, Forget }; /* what happens to them */
mtype = { None, Open, Closed, Back };                       /* grants; Back: returned, not heard */

/* The table, by entry. */
mtype lease[2] = Idle;
byte lessee[2] = NOBODY;
byte count[2];              /* grants there that are not returned */
byte reserved[2] = NOBODY;
hidden mtype before;
hidden byte made;           /* the last move was */

/* Lanes. The gate of a grant is a word of memory that both sides see at once. */
mtype hold[6] = None;       /* AT(lane, entry) */
byte running[6];            /* operations on the device, AT(lane, entry) */
bool used[6];               /* something was submitted under the grant */
byte todo[LANES];
bool wants[LANES];

bool begun;

/* The daemon. */
chan queue = [LANES] of { byte }; /* lanes that wait, by age */
byte passed;                /* grants past the one that waits longest */
bool hinted;                /* the reservation was made, once */
bool expected;              /* entry 1 is reserved for what is expected of lane 1 */
byte kept_for = NOBODY;     /* entry 0 is, for the lane that was overdue */

/* The victim. */
bool dead;                  /* its process has ended: it says and submits nothing more */
bool mourned;               /* its life line told the daemon */
bool buried;                /* its pidfd told the daemon, its work is over */

#define ALIVE(c) (!dead || (c) != VICTIM)
#define BUSY(c) ((c) == 0 -> running[0] + running[1] + running[2] + running[3] > 0 \
                          : running[4] + running[5] > 0)

#define OTHERS_LEASE(c) \
  ((lease[0] != Idle && lessee[0] != (c)) || (lease[1] != Idle && lessee[1] != (c)))
#define OTHERS_RESERVED(c) \
  ((reserved[0] != NOBODY && reserved[0] != (c)) || (reserved[1] != NOBODY && reserved[1] != (c)))
#define WHEN_Always(e, c) true
#define WHEN_Free(e, c) (!OTHERS_LEASE(c) && !OTHERS_RESERVED(c))
#define WHEN_Unreserved(e, c) (!OTHERS_RESERVED(c))
#define WHEN_Busy(e, c) (count[e] > 0)
#define WHEN_Quiet(e, c) (count[e] == 0)
#define LEASE_MOVE(event, from, when, to) \
  :: happens == event && before == from && WHEN_##when(e, c) -> lease[e] = to; made = true;

/* As in the ledger: what the table does not have is refused. */
inline move(happens, e, c) {
  before = lease[e];
  made = false;
  if
#include "lease_moves.def"
  :: else
  fi;
  if
  :: lease[e] == Idle -> lessee[e] = NOBODY; count[e] = 0
  :: else
  fi
}

/* Nothing more is submitted under the grant. Another lane of the client may still submit there. */
inline close(l, e) {
  hold[AT(l, e)] = Closed;
  if
  :: l < 2 && hold[AT(1 - l, e)] == Open
  :: else -> move(Close, e, CLIENT(l))
  fi
}

inline unreserve(e) { reserved[e] = NOBODY }

/* A lane that has not returned its grant there is not given another one. */
#define GRANTABLE(l, e) \
  (wants[l] && hold[AT(l, e)] == None && (lease[e] == Idle || lessee[e] == CLIENT(l)))

inline grant(l, e) {
  move(Acquire, e, CLIENT(l));
  if
  :: !made && lease[e] == Draining -> move(Reopen, e, CLIENT(l))
  :: else
  fi;
  if
  :: made ->
       lessee[e] = CLIENT(l);
       move(Submit, e, CLIENT(l));
       count[e]++;
       hold[AT(l, e)] = Open;
       used[AT(l, e)] = false;
       if
       :: hold[AT(l, 1 - e)] == Open -> close(l, 1 - e)
       :: else
       fi;
       wants[l] = false;
       if
       :: queue?[eval(l)] -> passed = 0
       :: else -> passed = (passed < LAST -> passed + 1 : LAST)
       fi;
       queue??eval(l);
       /* What was reserved for it is fulfilled. */
       if
       :: l == 1 && expected -> expected = false; unreserve(1)
       :: else
       fi;
       if
       :: kept_for == l -> kept_for = NOBODY; unreserve(0)
       :: else
       fi
  :: else
  fi
}

/* --- clients -------------------------------------------------------------------------------- */

/* A successor may be submitted when its ancestor was: the device keeps their order. */
#define BINDABLE(l) (todo[l] > 0 && (l != 1 || todo[0] == 0))
#ifdef RETURN_EARLY
#define DRAINED(l, e) true
#else
#define DRAINED(l, e) (running[AT(l, e)] == 0)
#endif
#ifdef ANY_POLICY
#define SPENT(l) todo[l]--
#else /* client 1 never ends */
#define SPENT(l) todo[l] = (l == 2 -> todo[l] : todo[l] - 1)
#endif
#define SUBMITS(l, e) (hold[AT(l, e)] == Open && running[AT(l, e)] == 0) /* a window of one */
#define RETURNS(l, e) \
  ((hold[AT(l, e)] == Closed || (hold[AT(l, e)] == Open && todo[l] == 0)) && DRAINED(l, e))

proctype lane(byte l) {
  byte e;
  do
  :: atomic { ALIVE(CLIENT(l)) && BINDABLE(l) && !wants[l] && hold[AT(l, 0)] != Open &&
       hold[AT(l, 1)] != Open -> wants[l] = true; queue!l }
  /* The launch path: one look at the word, and then the submission, whatever happens between. */
  :: atomic { ALIVE(CLIENT(l)) && BINDABLE(l) && (SUBMITS(l, 0) || SUBMITS(l, 1)) ->
       e = (hold[AT(l, 0)] == Open -> 0 : 1) };
     if
     :: atomic { ALIVE(CLIENT(l)) -> running[AT(l, e)]++; used[AT(l, e)] = true; SPENT(l);
          assert(!BUSY(1 - CLIENT(l))) }
     :: !ALIVE(CLIENT(l)) -> break
     fi
  :: atomic { ALIVE(CLIENT(l)) && RETURNS(l, 0) -> hold[AT(l, 0)] = Back }
  :: atomic { ALIVE(CLIENT(l)) && RETURNS(l, 1) -> hold[AT(l, 1)] = Back }
  :: !ALIVE(CLIENT(l)) -> break
  :: todo[l] == 0 && hold[AT(l, 0)] == None && hold[AT(l, 1)] == None -> break
  od
}

/* Operations end by themselves, whoever lives. */
active proctype device() {
end:
  do
  :: atomic { running[0] > 0 -> running[0]-- }
  :: atomic { running[1] > 0 -> running[1]-- }
  :: atomic { running[2] > 0 -> running[2]-- }
  :: atomic { running[3] > 0 -> running[3]-- }
  :: atomic { running[4] > 0 -> running[4]-- }
  :: atomic { running[5] > 0 -> running[5]-- }
  od
}

#if VICTIM != NOBODY
active proctype killer() {
  atomic { true -> dead = true }
}
#endif

/* --- the daemon ----------------------------------------------------------------------------- */

inline heard(l, e) {
  hold[AT(l, e)] = None;
  count[e]--;
  move(Retire, e, CLIENT(l));
  if
  :: lease[e] != Idle && count[e] == 0 -> move(Close, e, CLIENT(l))
  :: else
  fi
}

inline close_if_open(l, e) {
  if
  :: hold[AT(l, e)] == Open -> close(l, e)
  :: else
  fi
}
inline close_all(c) {
  if
  :: c == 0 -> close_if_open(0, 0); close_if_open(0, 1); close_if_open(1, 0); close_if_open(1, 1)
  :: else -> close_if_open(2, 0); close_if_open(2, 1)
  fi
}

/* Scheduler::idle */
inline leave(l) {
  wants[l] = false;
  if
  :: kept_for == l -> kept_for = NOBODY; unreserve(0)
  :: else
  fi;
  if
  :: queue??[eval(l)] -> queue??eval(l)
  :: else
  fi
}

inline bury(l, e) {
  hold[AT(l, e)] = None;
  if
  :: lessee[e] == CLIENT(l) -> move(Forget, e, CLIENT(l))
  :: else
  fi;
  if
  :: reserved[e] == CLIENT(l) -> unreserve(e)
  :: else
  fi;
  if
  :: CLIENT(l) == 0 -> expected = false
  :: else
  fi
}

#ifdef FORGET_AT_ONCE
#define OVER true
#else
#define OVER (!BUSY(VICTIM))
#endif

#define TRY(l, e) :: atomic { GRANTABLE(l, e) -> grant(l, e) }
#define HEAR(l, e) :: atomic { hold[AT(l, e)] == Back && !(mourned && CLIENT(l) == VICTIM) -> heard(l, e) }

/* Scheduler::can_grant */
#define CAN(l, e) (GRANTABLE(l, e) && WHEN_Free(e, CLIENT(l)))
#define FIRST(l) (passed == LAST && queue?[l])
/* Somebody is to be served now, and no reservation of others forbids it. */
#define OVERDUE ((FIRST(0) || FIRST(1)) && !OTHERS_RESERVED(0) || FIRST(2) && !OTHERS_RESERVED(1))
#define OFFER(l, e) :: atomic { !OVERDUE && CAN(l, e) -> grant(l, e) }
#define OPEN_OF(c) ((c) == 0 -> hold[0] == Open || hold[1] == Open || hold[2] == Open || \
                                hold[3] == Open : hold[4] == Open || hold[5] == Open)
/* The times of the scheduler are longer than a submission takes. */
#define USED(l, e) (hold[AT(l, e)] != Open || used[AT(l, e)] || !ALIVE(CLIENT(l)))
#define TIME_PASSES \
  (USED(0, 0) && USED(0, 1) && USED(1, 0) && USED(1, 1) && USED(2, 0) && USED(2, 1))
/* Scheduler::serve_overdue: what is in the way is closed, and kept for it. */
#define SERVE(l) \
  :: atomic { FIRST(l) && CAN(l, 0) -> grant(l, 0) } \
  :: atomic { FIRST(l) && !CAN(l, 0) && CAN(l, 1) -> grant(l, 1) } \
  :: atomic { FIRST(l) && !CAN(l, 0) && !CAN(l, 1) && !OTHERS_RESERVED(CLIENT(l)) && \
       (reserved[0] == NOBODY || OPEN_OF(1 - CLIENT(l))) -> \
       reserved[0] = CLIENT(l); kept_for = l; close_all(1 - CLIENT(l)) }

active proctype daemon() {
end:
  do
  HEAR(0, 0) HEAR(0, 1) HEAR(1, 0) HEAR(1, 1) HEAR(2, 0) HEAR(2, 1)
#if VICTIM != NOBODY
  /* Its life line breaks: nothing more is submitted, what was still runs. */
  :: atomic { dead && !mourned -> mourned = true; close_all(VICTIM);
       if
       :: VICTIM == 0 -> leave(0); leave(1)
       :: else -> leave(2)
       fi }
  /* Its pidfd: the process is gone, and the driver has ended its work. */
  :: atomic { mourned && !buried && OVER -> buried = true;
       if
       :: VICTIM == 0 -> bury(0, 0); bury(0, 1); bury(1, 0); bury(1, 1)
       :: else -> bury(2, 0); bury(2, 1)
       fi }
#endif

#ifdef ANY_POLICY
  TRY(0, 0) TRY(0, 1) TRY(1, 0) TRY(1, 1) TRY(2, 0) TRY(2, 1)
  :: atomic { hold[0] == Open -> close(0, 0) }
  :: atomic { hold[1] == Open -> close(0, 1) }
  :: atomic { hold[2] == Open -> close(1, 0) }
  :: atomic { hold[3] == Open -> close(1, 1) }
  :: atomic { hold[4] == Open -> close(2, 0) }
  :: atomic { hold[5] == Open -> close(2, 1) }
  :: atomic { reserved[0] == NOBODY && !OTHERS_RESERVED(0) && ALIVE(0) -> reserved[0] = 0 }
  :: atomic { reserved[0] == NOBODY && !OTHERS_RESERVED(1) && ALIVE(1) -> reserved[0] = 1 }
  :: atomic { reserved[1] == NOBODY && !OTHERS_RESERVED(0) && ALIVE(0) -> reserved[1] = 0 }
  :: atomic { reserved[1] == NOBODY && !OTHERS_RESERVED(1) && ALIVE(1) -> reserved[1] = 1 }
  :: atomic { reserved[0] != NOBODY -> unreserve(0) }
  :: atomic { reserved[1] != NOBODY -> unreserve(1) }
#else
  OFFER(0, 0) OFFER(0, 1) OFFER(1, 0) OFFER(1, 1) OFFER(2, 0) OFFER(2, 1)
  SERVE(0) SERVE(1) SERVE(2)
  /* Time passes for those who wait. */
  :: atomic { len(queue) > 0 && passed < LAST && TIME_PASSES -> passed++ }
  /* Something is expected of lane 1, and the policy makes room for it. */
  :: atomic { !hinted && todo[0] > 0 && ALIVE(0) && !OTHERS_RESERVED(0) && reserved[1] == NOBODY ->
       hinted = true;
       expected = true;
#ifdef NO_INHERITANCE
       reserved[1] = ITSELF;
#else
       reserved[1] = 0;
#endif
       close_all(1) }
#ifndef NO_EXPIRY
  :: atomic { expected -> expected = false; unreserve(1) }
#endif
#endif
  od
}

init {
  atomic {
    todo[0] = 1;
#ifndef NEVER_COMES
    todo[1] = 1;
#endif
    todo[2] = (VICTIM == 9 -> 2 : 1);
    begun = true;
    run lane(0); run lane(1); run lane(2)
  }
}

/* Client 1 has no end of work where liveness is asked about, so it is to be served for ever. */
#define ZERO_SERVED (begun && todo[0] + todo[1] == 0)
#define ONE_RUNS (running[4] + running[5] > 0)
#if VICTIM == 0
ltl served { [] <> ONE_RUNS }
#elif VICTIM == 1
ltl served { <> ZERO_SERVED }
#else
ltl served { <> ZERO_SERVED && [] <> ONE_RUNS }
#endif
