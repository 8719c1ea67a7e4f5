#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPU fault under NVIDIA's MPS, which vitamind started and watches.

    mps_fault.py [--tries N] [--out DIR]

A client computes while a kernel of another one faults: both lose their contexts, and MPS tells no
other process. vitamind must report the fault and the affected clients. When the last client has
left, MPS must be ready again (by itself, or started by vitamind), and new clients must run. Then
the control daemon is killed, and the same must hold. Times are from vitamind's status of MPS,
polled every 20 ms.
"""
import argparse
import os
import pathlib
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402
from common import Daemon, Job, occupant  # noqa: E402

CHECK_S = 0.2  # how often vitamind checks MPS here (mps.check_every)


def until(daemon, wanted, seconds=20):
    """(seconds until the facts of MPS are as wanted, or None; the facts)"""
    begin = time.monotonic()
    facts = {}
    while time.monotonic() < begin + seconds:
        facts = (daemon.status() or {}).get("mps") or {}
        if wanted(facts):
            return round(time.monotonic() - begin, 3), facts
        time.sleep(0.02)
    return None, facts


def runs(daemon):
    """Whether a new client computes the right result, and the reason if it does not."""
    job = Job([harness.program("hazards"), "meeting_streams", "3"], {}, daemon)
    result = job.wait(40)
    said = next((line for line in result.lines if "hazard" in line), None)
    return bool(said and said["right"] == said["repeats"]), result.why()


def logs(facts):
    """The end of MPS's own log."""
    directory = pathlib.Path(facts.get("directory") or "/nowhere")
    return {path.name: path.read_text(errors="replace")[-3000:]
            for path in sorted(directory.rglob("*.log"))}


def one(daemon):
    """The life of one server, from its first client to the fault and on."""
    record = {}
    neighbour = occupant({}, daemon)
    neighbour.tell("compute 0 20000 256 0 100 60")
    time.sleep(1)
    starts = until(daemon, lambda facts: facts.get("state") == "ready")[1].get("starts", 0)
    culprit = Job([harness.program("hazards"), "fault", "1"], {}, daemon)
    result = culprit.wait(40)
    record["culprit"] = {"lines": result.lines, "why": result.why()}
    record["fault_seen_s"], facts = until(daemon, lambda f: f.get("faults", 0) > 0
                                          and f.get("state") in ("fault", "ready"))
    record["said"], record["logs"] = facts.get("problem", ""), logs(facts)
    record["affected"] = facts.get("affected", [])
    begin = time.monotonic()
    record["neighbour"] = {"code": neighbour.process.poll()}
    ended = neighbour.kill()
    record["neighbour"]["why"] = ended.why()
    # Restarted or not: if the fault is over before vitamind checks, MPS goes on by itself.
    record["ready_s"], facts = until(daemon, lambda f: f.get("state") == "ready")
    record["started_again"] = facts.get("starts", 0) > starts
    record["runs_again"], record["runs_why"] = runs(daemon)
    record["back_s"] = round(time.monotonic() - begin, 3)

    # The control daemon itself.
    before = facts.get("starts", 0)
    pid_file = pathlib.Path(facts.get("directory", ""), "nvidia-cuda-mps-control.pid")
    try:
        os.kill(int(pid_file.read_text().strip("\0\n ")), signal.SIGKILL)
        record["restarted_s"], facts = until(daemon, lambda f: f.get("starts", 0) > before
                                             and f.get("state") == "ready")
        record["runs_after_kill"], record["kill_why"] = runs(daemon)
    except (OSError, ValueError) as error:
        record["restarted_s"], record["kill_why"] = None, str(error)
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    results = harness.Results(options.out, "mps_fault")
    rows, good = [], True
    for number in range(options.tries):
        daemon = Daemon("throughput", {}, "--set", "mps.mode=auto", "--set",
                        f"mps.check_every={round(1e3 * CHECK_S)}ms", watch=False)
        try:
            if until(daemon, lambda facts: facts.get("state") == "ready")[0] is None:
                print("no MPS here: " + (daemon.status() or {}).get("mps", {}).get("problem", ""),
                      file=sys.stderr)
                sys.exit(2)
            record = one(daemon)
        finally:
            log = daemon.end()
        results.add({"part": "mps_fault", "try": number, **record, "log": log[-3000:]})
        rows.append([number, record["fault_seen_s"], record["ready_s"], record["runs_again"],
                     record["restarted_s"], record.get("runs_after_kill"),
                     ", ".join(record["affected"])])
        good = good and record["fault_seen_s"] is not None and record["ready_s"] is not None \
            and record["runs_again"] and bool(record.get("runs_after_kill"))
    print(harness.table(rows, ["try", "fault named s", "ready again s", "runs",
                               "control daemon back s", "runs", "affected"]))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
