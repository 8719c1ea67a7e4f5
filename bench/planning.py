#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What planning costs, on any machine: scheduler_bench (plans and answers of every policy), and a
minute of trace on eight GPUs of a hundred clients each, simulated under every built-in policy.

    VITAMIN_PREFIX=build/release python3 bench/planning.py

Times are processor time, so that waiting for a processor does not count; it still grows with what
else uses the caches and the other thread of a core. Of a simulation it is the time of all its
threads together. Writes planning.jsonl.
"""
import argparse
import concurrent.futures
import json
import multiprocessing
import os
import resource
import sys

import harness

GPUS, SERVICES, SECONDS = 8, 50, 60  # a service is two clients: prefill and decode
TRACE = harness.ROOT / "bench" / "evaluation" / "traces" / "azure2024_conv_synth.csv"
LIMIT_S = 600


def processor_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def simulate(policy):
    command = harness.vitamin(
        "simulate", "--trace", str(TRACE), "--gpus", str(GPUS), "--services", str(SERVICES),
        "--load", "0.5", "--until", str(SECONDS), "--policy", policy, "--json")
    before = processor_s()
    ended = harness.run(command, LIMIT_S)
    record = {"simulated": policy, "clients": 2 * SERVICES * GPUS, "trace": TRACE.name,
              "ok": ended.ok, "processor_s": round(processor_s() - before, 2)}
    if not ended.ok:
        return {**record, "why": ended.why()}
    result = json.loads(ended.output)["results"][0]
    return {**record, "simulated_s": result["simulated_s"], "grants": result["grants"],
            "requests": result["requests"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output() + "/decide")
    parser.add_argument("--jobs", type=int, default=1, help="policies that are simulated at once")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs needs 1 or more")
    ended = harness.run([harness.program("scheduler_bench"), "--json"], LIMIT_S)
    if not ended.ok:
        sys.exit(f"planning.py: {ended.why()}")
    listed = harness.run(harness.vitamin("policy", "list"), LIMIT_S)
    if not listed.ok:
        sys.exit(f"planning.py: {listed.why()}")
    results = harness.Results(options.out, "planning")
    results.add({"load": os.getloadavg()[0], "clock": "processor time"})
    for record in ended.lines:
        results.add(record)
    print(harness.table([[r["policy"], f"{r['plan_us']:.1f}",
                          f"{r['answers_1_per_s'] / 1e6:.2f}", f"{r['answers_64_per_s'] / 1e6:.2f}",
                          f"{r['plans_per_answer_64']:.4f}"] for r in ended.lines],
                        ["policy", "plan (us)", "1 client (M/s)", "64 clients (M/s)",
                         "plans/answer, 64"]) + "\n")
    # A line that is indented describes a parameter of the policy above it.
    names = [line.split()[0] for line in listed.output.splitlines() if line[:1].strip()]
    simulated = []
    # A process each, whose children's processor time is that of one simulation.
    with concurrent.futures.ProcessPoolExecutor(options.jobs, max_tasks_per_child=1,
                                                mp_context=multiprocessing.get_context("spawn")
                                                ) as pool:
        for policy, record in zip(names, pool.map(simulate, names)):
            results.add(record)
            simulated.append([policy, f"{record['processor_s']:.1f}", record.get("why", "")])
    print(harness.table(simulated, ["policy", "simulated in (processor s)", ""]))


if __name__ == "__main__":
    main()
