#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the times that are learnt beside others those that are measured alone?

    profiles.py [--jobs qwen-train,resnet-train] [--offline-steps N] [--steps N] [--out DIR]

Offline: `vitamin profile -- JOB`, each job alone, every launch timed, its width drawn anew. Online:
all jobs at once under one vitamind and MPS with the policy `random`, one launch in 97 timed, as in
any run. Compared for every kernel that both know, at every width of the pool: what a policy would
be told (measured or fitted) after the one and after the other; and, apart, where both measured.
Both with as many hardware queues a program as `vitamin run --daemon` asks for, so that others are
all that differs. Asked: 200 kernels at every width, a median error of 10 %.

A line a kernel and width ("cell") keeps what each side's answer rests on: of the launches that
were timed the mean, and up to eight as they were (`some_ns`), from which `undisturbed_ns`. Two
events with nothing between them ("bracket") are taken off of all of these already, and stand in a
line of their own. So other estimates can be tried on the same run.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
KERNELS, ERROR = 200, 0.10  # asked
sys.path[:0] = [str(HERE), str(HERE / "daemon")]

import common  # noqa: E402
import harness  # noqa: E402


def words(job, steps):
    if job.startswith("demo-"):
        return [str(harness.prefix() / "bin" / job), str(steps)]
    return [sys.executable, str(HERE / "workloads.py"), job, "--steps", str(steps)]


def told(directory):
    """By kernel and width: nanoseconds that a policy is told, and what was timed; and the brackets
    of the device."""
    curves, bracket = {}, {}
    for path in pathlib.Path(directory).glob("*.profile"):
        shown = subprocess.run(harness.vitamin("profile", "show", "--json", "--kernels", "1000000",
                                               str(path)),
                               capture_output=True, text=True, check=True)
        shown = json.loads(shown.stdout)
        bracket = {k: rounded(v) for k, v in shown["bracket"].items()}
        for kernel in shown["kernels"]:
            curves[kernel["key"]] = {"name": kernel["name"], "blocks": kernel["blocks"],
                                     "at": {c["processors"]: c for c in kernel["curve"]}}
    return curves, bracket


def rounded(value):
    return [round(v) for v in value] if isinstance(value, list) else round(value)


def timed(cell):
    return {k: rounded(cell[k]) for k in ("mean_ns", "undisturbed_ns", "some_ns") if k in cell}


def compare(offline, online, least):
    """Of each kernel and width that both tell: online / offline, and what stands behind it."""
    for key, known in offline.items():
        for processors, cell in known["at"].items():
            other = online.get(key, {"at": {}})["at"].get(processors)
            if other is None or not cell["ns"] or not other["ns"]:
                continue
            behind = [cell["samples"], other["samples"]]
            yield {"kernel": key, "name": known["name"][:60], "processors": processors,
                   "offline_ns": round(cell["ns"]), "online_ns": round(other["ns"]),
                   "samples": behind, "both_measured": min(behind) >= least,
                   "offline": timed(cell), "online": timed(other)}


def summary(name, cells, of=lambda cell, side: cell[side + "_ns"]):
    """`of`: the nanoseconds of a cell's side that are compared."""
    ratios = [of(c, "online") / of(c, "offline") for c in cells]
    errors = [abs(ratio - 1) for ratio in ratios]
    if not errors:
        return {"what": name, "kernels": 0, "cells": 0}
    errors.sort()
    return {"what": name, "kernels": len({c["kernel"] for c in cells}), "cells": len(cells),
            "widths": sorted({c["processors"] for c in cells}),
            "median_error": errors[len(errors) // 2], "p90_error": errors[len(errors) * 9 // 10],
            "median_ratio": harness.median(ratios)}


def criterion(cells, widths):
    """What was asked, and whether it is reached: a record and a line. `widths`: of the pool."""
    found = summary("asked", cells)
    by_kernel = {}
    for c in cells:
        by_kernel.setdefault(c["kernel"], set()).add(c["processors"])
    everywhere = sum(1 for some in by_kernel.values() if some >= widths)
    error = found.get("median_error")
    reached = bool(widths) and everywhere >= KERNELS and error is not None and error <= ERROR
    return {"part": "criterion", "kernels": everywhere, "widths": sorted(widths),
            "median_error": error, "median_ratio": found.get("median_ratio"),
            "asked": {"kernels": KERNELS, "median_error": ERROR}, "reached": reached}, \
        f"{'reached' if reached else 'missed'}: {everywhere} kernels at all of {len(widths)} " \
        f"widths (asked: {KERNELS}), median error {harness.percent(error)} (asked: " \
        f"{harness.percent(ERROR)})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", default="qwen-train,resnet-train")
    parser.add_argument("--offline-steps", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--least", type=int, default=3, help="samples of a measured cell")
    parser.add_argument("--connections", type=int, default=8,
                        help="hardware queues of each program, as `vitamin run --daemon` has them")
    parser.add_argument("--device", default="cuda", choices=["cuda", "soft"],
                        help="soft: the demo's programs on the software device")
    parser.add_argument("--timeout", type=float, default=150)
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    jobs = ["demo-train", "demo-serve"] if options.device == "soft" else options.jobs.split(",")
    results = harness.Results(options.out, "profiles")

    with tempfile.TemporaryDirectory() as directory, common.Surroundings(options.device) as around:
        environment = around.environment | {
            "CUDA_DEVICE_MAX_CONNECTIONS": str(options.connections)}
        print(around.words, flush=True)
        alone, beside = pathlib.Path(directory, "alone"), pathlib.Path(directory, "beside")
        for job in jobs:
            run = harness.run([*harness.vitamin("profile", "--profiles", str(alone)), "--",
                               *words(job, options.offline_steps)], options.timeout, environment)
            results.add({"part": "offline", "job": job, "ok": run.ok, "why": run.why(),
                         "seconds": run.seconds})
            print(f"offline {job}: {run.seconds:.0f} s {run.why()[:200]}", flush=True)
        daemon = common.Daemon("random", environment)
        running = [common.Job(words(job, options.steps), environment, daemon,
                              ["--profiles", str(beside)]) for job in jobs]
        for job, process in zip(jobs, running):
            run = process.wait(options.timeout)
            results.add({"part": "online", "job": job, "ok": run.ok, "why": run.why(),
                         "seconds": run.seconds, "coverage": common.brief(process.coverage)})
            print(f"online {job}: {run.seconds:.0f} s {run.why()[:200]}", flush=True)
        counters = daemon.counters()
        log = daemon.end()
        results.add({"part": "online", "daemon": counters, "log": log[-1500:]})
        (offline, bracket), (online, bracket_beside) = told(alone), told(beside)
    results.add({"part": "bracket", "offline": bracket, "online": bracket_beside})
    cells = list(compare(offline, online, options.least))
    for cell in cells:
        results.add({"part": "cell", **cell})
    measured = [c for c in cells if c["both_measured"]]
    short, long = ([c for c in measured if (c["offline_ns"] < 10_000) is wanted]
                   for wanted in (True, False))
    rows = []
    for name, some, *of in (
            ("told at every width", cells),
            (f"measured {options.least} times in both", measured),
            ("measured, shorter than 10 us", short), ("measured, longer", long),
            ("means of what was measured", measured, lambda c, side: c[side]["mean_ns"])):
        record = {"part": "summary", **summary(name, some, *of)}
        results.add(record)
        rows.append([name, record["kernels"], record["cells"], len(record.get("widths", [])),
                     *(harness.percent(record.get(k)) for k in ("median_error", "p90_error")),
                     f"{record.get('median_ratio') or 0:.3f}"])
    print(harness.table(rows, ["times", "kernels", "cells", "widths", "median error", "p90",
                               "online / offline"]))
    at = lambda what, key: what.get(key, 0) / 1e3
    print("two events with nothing between them: " + ", ".join(
        f"{where} {at(what, 'undisturbed_ns'):.2f} us (mean {at(what, 'mean_ns'):.2f})"
        for where, what in (("alone", bracket), ("beside others", bracket_beside))))
    widths = {width for curves in (offline, online) for kernel in curves.values()
              for width in kernel["at"]}
    record, verdict = criterion(cells, widths)
    results.add(record)
    print(verdict)


if __name__ == "__main__":
    main()
