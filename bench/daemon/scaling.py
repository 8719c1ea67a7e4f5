#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One vitamind for one, two, four and eight GPUs of eight processes each, all of them busy.

    scaling.py [--gpus 1,2,4,8] [--processes 8] [--seconds S] [--device cuda|soft] [--out DIR]

Each process launches kernels, at most four ahead, under `random`: every launch asks for another
partition. On a GPU a kernel takes a few µs, so requests come as fast as vitamind's processor serves
them; on a software device it takes 2 ms. Told are vitamind's processor time, decisions a second,
its time for each (which must not grow with the number of GPUs), and how long a request waits for
its grant. GPUs that the machine lacks are named. On software devices the processes share this
machine's CPUs with vitamind, so there waits say nothing of a node with GPUs.
"""
import argparse
import os
import re
import sys
import time
import urllib.request

import common
import harness

HEADINGS = ["GPUs", "processes", "vitamind CPU", "requests/s", "grants/s", "CPU µs a request",
            "wait p50 µs", "wait p99 µs"]
WAIT = re.compile(r'vitamin_gpu_wait_seconds_bucket\{.*le="([^"]+)".*\} (\S+)')
COUNTED = re.compile(r"vitamin_gpu_(requests|grants)_total\{.*\} (\S+)")


def scrape(port):
    """Totals of all GPUs: requests, grants, and the histogram of waits."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    waits, totals = {}, {"requests": 0.0, "grants": 0.0}
    for line in text.splitlines():
        if found := WAIT.match(line):
            waits[float(found[1])] = waits.get(float(found[1]), 0) + float(found[2])
        elif found := COUNTED.match(line):
            totals[found[1]] += float(found[2])
    return totals, waits


def quantile(waits, share):
    """The upper bound of the bucket that holds it, in µs."""
    bounds = sorted(waits)
    total = waits[bounds[-1]] if bounds else 0
    return next((1e6 * b for b in bounds if total and waits[b] >= share * total), None)


def measure(gpus, options, environment):
    port = harness.free_port()
    daemon = common.Daemon("random", environment, "--set", f"metrics.listen={port}", watch=False)
    jobs = [common.occupant({**environment, "CUDA_VISIBLE_DEVICES": str(gpu)}, daemon=daemon)
            for gpu in range(gpus) for _ in range(options.processes)]
    for job in jobs:
        job.tell(f"compute 0 1000 8 2000000 4 {options.seconds + 4}")
    time.sleep(2)
    (before, earlier), used, began = scrape(port), daemon.processor_seconds(), time.monotonic()
    time.sleep(options.seconds)
    after, later = scrape(port)
    used, took = daemon.processor_seconds() - used, time.monotonic() - began
    for job in jobs:
        job.next(60)
        job.end()
    counted = {name: after[name] - before[name] for name in after}
    waits = {bound: later[bound] - earlier.get(bound, 0) for bound in later}
    problems = [c["problem"] for c in (job.coverage for job in jobs) if c and c["problem"]]
    return {"gpus": gpus, "processes": len(jobs), "seconds": took, "processor_share": used / took,
            "requests_per_s": counted["requests"] / took, "grants_per_s": counted["grants"] / took,
            "us_per_request": 1e6 * used / max(1, counted["requests"]),
            "wait_p50_us": quantile(waits, 0.5), "wait_p99_us": quantile(waits, 0.99),
            "waits": {str(k): v for k, v in waits.items()}, "problems": problems,
            "log": daemon.end()[-500:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", default="1,2,4,8")
    parser.add_argument("--processes", type=int, default=8, help="of each GPU")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--device", choices=["cuda", "soft"], default="cuda")
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    wanted = [int(word) for word in options.gpus.split(",")]
    here = max(wanted)
    if options.device == "cuda":
        import torch
        here = torch.cuda.device_count()
    results, rows = harness.Results(options.out, f"scaling_{options.device}"), []
    with common.Surroundings(options.device) as surroundings:
        for gpus in wanted:
            if gpus > here:
                results.add({"not_run": f"{gpus} GPUs: {here} here"})
                print(f"not run: {gpus} GPUs: {here} here")
                continue
            environment = dict(surroundings.environment)
            if options.device == "soft":
                environment["VITAMIN_SOFT_DEVICES"] = str(gpus)
            found = measure(gpus, options, environment)
            results.add({**found, "cpus": os.cpu_count()})
            show = lambda value: "-" if value is None else f"{value:.0f}"
            rows.append([gpus, found["processes"], f"{found['processor_share']:.3f}",
                         show(found["requests_per_s"]), show(found["grants_per_s"]),
                         f"{found['us_per_request']:.2f}", show(found["wait_p50_us"]),
                         show(found["wait_p99_us"])])
            print(harness.table(rows[-1:], HEADINGS), flush=True)
    print("\n" + harness.table(rows, HEADINGS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
