# SPDX-License-Identifier: Apache-2.0
"""The time from a closed gate until another client has the lease.

Two processes want the whole device and get it in turns of 2 ms (`temporal`). vitamind's trace has
the times of each closed gate, return and next grant; the kernels record, by the device's clock,
when they ran (bench/programs/occupy.cpp). The cost of reclaiming a lease is the time that it was
held after its holder's last kernel had ended, or after the gate was closed if no kernel ran.
"""
import array
import bisect
import os
import tempfile
import time

import common
import harness

LENGTHS_US = {"0": (10, 100, 1000, 10_000), "1ms": (10, 100)}


def spans(path):
    """Ends and begins of kernels, both in the order of the ends."""
    raw = array.array("Q", open(path, "rb").read())
    both = sorted(zip(raw[1::2], raw[::2]))
    return [e for e, _ in both], [b for _, b in both]


def judge(closures, ran, slack_ns):
    """A record for each closed gate: the time of outstanding work, and the time beyond that."""
    found = []
    for c in closures:
        ends, begins = ran[c["client"]]
        first = bisect.bisect_right(ends, c["closed"])
        until = bisect.bisect_right(ends, c["granted"] + slack_ns)
        last = ends[until - 1] if until > first else c["closed"]
        mine = ran[c["to"]]
        begun = min((b for b in mine[1][bisect.bisect_left(mine[0], c["granted"]):][:4]
                     if b >= c["granted"] - slack_ns), default=None)
        found.append({
            "outstanding_us": max(0, last - c["closed"]) / 1e3, "kernels": until - first,
            "beyond_us": (c["granted"] - max(c["closed"], last)) / 1e3,
            "noticed_us": (c["returned"] - max(c["closed"], last)) / 1e3 if c["returned"] else None,
            "to_first_kernel_us": (begun - c["granted"]) / 1e3 if begun else None})
    return found


def overlaps(some, others, slack_ns):
    """How many kernels of one client ran when a kernel of the other began.

    By the kernels' own time stamps: a recorded begin is never early and an end never late, so what
    overlaps here did overlap. vitamind's time stamps cannot show it: each is that of the begin of
    an iteration of its event loop, and too early if vitamind was preempted in it.
    """
    count = 0
    for (ends, begins), (_, other_begins) in ((some, others), (others, some)):
        starts = sorted(other_begins)
        for end, begin in zip(ends, begins):
            first = bisect.bisect_right(starts, begin + slack_ns)
            count += first < len(starts) and starts[first] + slack_ns < end
    return count


TRIES = 10


def measured(window, lengths, options, environment):
    """The kernels of both clients at each length, vitamind's decisions and log, and the reason if
    the run is invalid: a client without an answer of vitamind for 200 ms goes to its fallback
    partition and reconnects as another client; one that does not answer for a second loses its
    lease while its kernels run; beside work on a fallback partition a client gets a part only."""
    daemon = common.Daemon("temporal", environment, "--quantum", "2", trace=True, watch=False)
    pair = []
    cells = []
    with tempfile.TemporaryDirectory() as directory:
        for name in "ab":  # one after the other: clients are numbered as they connect
            pair.append(common.occupant(environment, daemon, ("--window", window)))
            pair[-1].ask(f"occupy 0 20000 0.05 2 {directory}/warm-{name}")
        for us in lengths:
            at = time.monotonic_ns() + 50_000_000
            ahead = 4 if window == "0" else max(4, 4 * 1000 // us)
            for index, one in enumerate(pair):
                one.tell(f"occupy {at} {1000 * us} {options.seconds} {ahead} "
                         f"{directory}/{us}-{index}")
            answers = [one.next(60 + 10 * options.seconds) for one in pair]
            cells.append((us, at, time.monotonic_ns(), answers,
                          [spans(f"{directory}/{us}-{i}") for i in range(2)]))
        status = daemon.status()
        for one in pair:
            one.end()
        log = daemon.end()
    sessions = sum(e.kind == "attach" for e in daemon.decisions.events)
    overdue = sum(device["overdue"] for device in status["devices"]) if status else None
    widest = max(daemon.decisions.processors)
    parts = sum(e.kind == "grant" and daemon.decisions.processors[e.entry] < widest
                for e in daemon.decisions.events)
    undisturbed = (sessions, overdue, parts) == (2, 0, 0)
    why = "" if undisturbed else f"{sessions} sessions, {overdue} overdue, {parts} grants of parts"
    return cells, daemon.decisions, log, why


def run(options, results, environment):
    rows = []
    for window, lengths in LENGTHS_US.items():
        for _ in range(TRIES):  # on a machine that is too busy
            cells, decided, log, disturbed = measured(window, lengths, options, environment)
            if not disturbed:
                break
            print(f"window {window}: measured again ({disturbed})", flush=True)
        else:
            raise RuntimeError(f"window {window}: the machine is too busy ({disturbed})")
        clients = [e.client for e in decided.events if e.kind == "attach"]
        closures = decided.closures()
        for us, begin, end, answers, ran in cells:
            slack = 2000 + max(a["clock_error_ns"] for a in answers)
            # The last turn of a cell does not count: no client waits any more.
            mine = [c for c in closures if begin <= c["closed"] and
                    c["granted"] <= begin + int(options.seconds * 1e9) <= end]
            seen = judge(mine, dict(zip(clients, ran)), slack)
            column = lambda key: [s[key] for s in seen if s[key] is not None]
            beyond, outstanding = column("beyond_us"), column("outstanding_us")
            within = sum(b <= 50 for b in beyond)
            limit = (0 if window == "0" else 1000) + us
            record = {"part": "reclaim", "window": window, "kernel_us": us, "closures": len(seen),
                      "overlaps": overlaps(*ran, slack), "clock_error_us": slack / 1e3,
                      "kernels": [a["kernels"] for a in answers], "dropped": decided.dropped,
                      "within_50_us": within,
                      "outstanding_beyond_window": sum(o > limit + slack / 1e3
                                                       for o in outstanding),
                      "samples": seen, "log": log[-300:]}
            for key in ("outstanding_us", "beyond_us", "noticed_us", "to_first_kernel_us"):
                record[key] = {str(p): common.percentile(column(key), p) for p in (0.5, 0.99, 1)}
            results.add(record)
            show = lambda key: " / ".join(f"{v:.0f}" if v is not None else "-"
                                          for v in record[key].values())
            rows.append([window, us, len(seen), show("outstanding_us"), show("beyond_us"),
                         f"{within} of {len(seen)}", show("noticed_us"),
                         show("to_first_kernel_us"), record["overlaps"]])
    return harness.table(rows, ["window", "kernel us", "closed gates",
                                "outstanding us p50/p99/max", "beyond us", "at most 50 us",
                                "of it until returned", "grant to first kernel", "overlaps"])
