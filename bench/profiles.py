#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the times that are learnt beside others those that are measured alone?

    profiles.py [--jobs qwen-train,resnet-train] [--offline-steps N] [--steps N] [--out DIR]

Offline: `vitamin profile -- JOB`, each job alone, every launch timed, its width drawn anew. Online:
all jobs at once under one vitamind and MPS with the policy `random`, one launch in 97 timed, as in
any run. Compared for every kernel that both know, at every width of the pool: what a policy would
be told (measured or fitted) after the one and after the other; and, apart, where both measured.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "daemon")]

import common  # noqa: E402
import harness  # noqa: E402


def words(job, steps):
    if job.startswith("demo-"):
        return [str(harness.prefix() / "bin" / job), str(steps)]
    return [sys.executable, str(HERE / "workloads.py"), job, "--steps", str(steps)]


def told(folder):
    """By kernel and width: nanoseconds that a policy is told, and how many launches were timed."""
    curves = {}
    for path in pathlib.Path(folder).glob("*.profile"):
        shown = subprocess.run(harness.vitamin("profile", "show", "--json", "--kernels", "1000000",
                                               str(path)),
                               capture_output=True, text=True, check=True)
        for kernel in json.loads(shown.stdout)["kernels"]:
            curves[kernel["key"]] = {"name": kernel["name"], "blocks": kernel["blocks"],
                                     "at": {c["processors"]: c for c in kernel["curve"]}}
    return curves


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
                   "samples": behind, "both_measured": min(behind) >= least}


def summary(name, cells):
    errors = [abs(c["online_ns"] / c["offline_ns"] - 1) for c in cells]
    if not errors:
        return {"what": name, "kernels": 0, "cells": 0}
    errors.sort()
    return {"what": name, "kernels": len({c["kernel"] for c in cells}), "cells": len(cells),
            "widths": sorted({c["processors"] for c in cells}),
            "median_error": errors[len(errors) // 2], "p90_error": errors[len(errors) * 9 // 10],
            "median_ratio": harness.median([c["online_ns"] / c["offline_ns"] for c in cells])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", default="qwen-train,resnet-train")
    parser.add_argument("--offline-steps", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--least", type=int, default=3, help="samples of a measured cell")
    parser.add_argument("--device", default="cuda", choices=["cuda", "soft"],
                        help="soft: the demo's programs on the software device")
    parser.add_argument("--timeout", type=float, default=150)
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    jobs = ["demo-train", "demo-serve"] if options.device == "soft" else options.jobs.split(",")
    results = harness.Results(options.out, "profiles")

    with tempfile.TemporaryDirectory() as folder, common.Surroundings(options.device) as around:
        environment = around.environment
        print(around.words, flush=True)
        alone, beside = pathlib.Path(folder, "alone"), pathlib.Path(folder, "beside")
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
        cells = list(compare(told(alone), told(beside), options.least))
    for cell in cells:
        results.add({"part": "cell", **cell})
    measured = [c for c in cells if c["both_measured"]]
    rows = []
    for name, some in (("told at every width", cells),
                       (f"measured {options.least} times in both", measured),
                       ("measured, 20 us and longer", [c for c in measured
                                                       if c["offline_ns"] >= 20_000])):
        record = {"part": "summary", **summary(name, some)}
        results.add(record)
        rows.append([name, record["kernels"], record["cells"], len(record.get("widths", [])),
                     *(harness.percent(record.get(k)) for k in ("median_error", "p90_error")),
                     f"{record.get('median_ratio') or 0:.3f}"])
    print(harness.table(rows, ["times", "kernels", "cells", "widths", "median error", "p90",
                               "online / offline"]))


if __name__ == "__main__":
    main()
