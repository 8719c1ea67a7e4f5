/* SPDX-License-Identifier: Apache-2.0
 *
 * The lease protocol as a model for spin: two clients, one entry, one daemon that grants, closes
 * gates, keeps a reservation with an expiry, and is told of deaths. The client with the reservation waits for an operation whose ancestor, not submitted
 * yet when the reservation is made, needs the same units in the other lane of the same client: the
 * reservation must be inherited, or it starves its own predecessor.
 *
 * Checked: no two clients are on the units at once, everything that can end ends (no invalid end
 * state), and under weak fairness every operation of the first client runs.
 *
 *   -DNO_INHERITANCE, -DNO_EXPIRY, -DGRANT_WHILE_DRAINING   plant a mistake; the check must fail
 */
#define NONE 2  /* nobody; clients are 0 and 1 */

mtype = { idle, open, closed };

mtype gate = idle;      /* of the one entry that covers the contended units */
byte holder = NONE;
byte reserved = NONE;   /* who holds the reservation */
bool expiring = false;
byte outstanding[2];    /* operations of each client on the units */
bool alive[2] = true;
bool told_dead[2];
bool wants[2];          /* an operation is bindable and waits for the units */
byte todo[2] = 2;       /* operations to run; client 0: ancestor first, then the reserved one */
byte last = 1;          /* who was served last: the scheduler serves by age */
bool used = false;      /* the holder has submitted: a quantum is longer than that takes */

inline grant(c) { gate = open; holder = c; wants[c] = false; last = c; used = false; }

proctype client(byte c) {
  do
  :: atomic { todo[c] > 0 && !wants[c] && !(holder == c && gate == open) -> wants[c] = true }
  /* inline path: one look at the gate and the count, in one critical section */
  :: atomic { todo[c] > 0 && holder == c && gate == open && outstanding[c] == 0 ->
       outstanding[c]++; todo[c]--; used = true }
  :: atomic { outstanding[c] > 0 -> outstanding[c]-- }          /* it ends */
  /* returned: only with the gate closed and nothing outstanding, or when there is no more to do */
  :: atomic { holder == c && gate == closed && outstanding[c] == 0 -> gate = idle; holder = NONE }
  :: atomic { holder == c && gate == open && todo[c] == 0 && outstanding[c] == 0 ->
       gate = idle; holder = NONE; wants[c] = false }
#ifdef DEATHS
  :: atomic { c == 1 && todo[c] > 0 -> alive[c] = false; wants[c] = false; todo[c] = 0; break }
#endif
  :: todo[c] == 0 && outstanding[c] == 0 && holder != c -> wants[c] = false; break
  od
}

active proctype daemon() {
  byte c;
end:
  do
  /* fifo among those who wait, unless somebody else's reservation stands */
  :: atomic { gate == idle && wants[0] && (reserved == NONE || reserved == 0) &&
       (last == 1 || !wants[1] || reserved == 0) -> grant(0) }
  :: atomic { gate == idle && wants[1] && (reserved == NONE || reserved == 1) &&
       (last == 0 || !wants[0]) -> grant(1) }
#ifdef GRANT_WHILE_DRAINING
  :: atomic { gate == closed && holder == 1 && wants[0] -> grant(0) }
#endif
  /* a reservation for client 0's second operation, whose ancestor is not submitted yet */
  :: atomic { reserved == NONE && todo[0] == 2 && !expiring ->
#ifdef NO_INHERITANCE
       reserved = 3;  /* for the operation alone: not for the ancestor in another lane */
#else
       reserved = 0;
#endif
       expiring = true }
  /* the gates of overlapping leases are closed for whoever waits */
  :: atomic { gate == open && used && holder == 1 && (reserved == 0 || wants[0]) -> gate = closed }
  :: atomic { gate == open && used && holder == 0 && wants[1] && reserved != 0 -> gate = closed }
  /* fulfilled, cancelled or expired: gates may open again */
#ifndef NO_EXPIRY
  :: atomic { reserved != NONE && reserved != 1 && (todo[0] < 2 || expiring) -> reserved = NONE }
#endif
  /* a death: the gate closes at once, the units are free when the work is known to be over */
  :: atomic { !alive[1] && !told_dead[1] -> told_dead[1] = true;
       if :: holder == 1 -> gate = closed :: else fi }
  :: atomic { told_dead[1] && holder == 1 -> outstanding[1] = 0; gate = idle; holder = NONE }
  od
}

init { atomic { run client(0); run client(1) } }

/* Safety: work of two clients on the same units at no time. */
active proctype watch() {
end:
  atomic { outstanding[0] > 0 && outstanding[1] > 0 -> assert(false) }
}

/* Liveness: client 0's operations all run. */
ltl served { <> (todo[0] == 0) }
