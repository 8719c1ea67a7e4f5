#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which jobs go well together on one GPU, said to Kubernetes' scheduler.

    advise.py --job FILE --job FILE... [--pod POD.yaml]

Each FILE is a job recorded alone (`vitamin simulate --help`). Every pair is simulated; a job's
slowdown is its rate alone over its rate beside the other. Prints the pairs as JSON or, with --pod,
a pod whose label vitamin.dev/job names one of the jobs, with what the scheduler understands: it
must not be on a node with a pod that it does not go well with, and is preferred where it does.
Beside each prediction stands the error that was measured of such predictions on a GPU
(bench/results/policies/predictions.jsonl). The scheduler itself needs no extender.
"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

import yaml

LABEL = "vitamin.dev/job"
PREFIX = "advice.vitamin.dev/"
HOST = "kubernetes.io/hostname"


def simulated(vitamin, files, policy, seconds):
    """{job: (rate beside the other, rate alone)} of two recorded jobs."""
    words = [vitamin, "simulate", "--json", "--warm-up", "0", "--until", seconds, "--policy",
             policy, *(word for file in files for word in ("--job", file))]
    done = subprocess.run([str(word) for word in words], text=True, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"advise.py: {done.stderr.strip()}")
    jobs = [(job["name"], job["steps_per_s"], job["alone_steps_per_s"])
            for job in json.loads(done.stdout)["results"][0]["training"]]
    for name, rate, alone in jobs:
        # It becomes the value of a label and, behind a prefix, the name of an annotation.
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,38}[A-Za-z0-9])?", name):
            sys.exit(f"advise.py: the job's name '{name}' is no value of a label: at most 40 of "
                     "letters, digits, '.', '_' and '-'")
        if not rate > 0 or not alone > 0:
            sys.exit(f"advise.py: {name} ends no step in {seconds:g} s; give more --seconds")
    return jobs


def measured_errors(path):
    """Relative errors of predicted rates under Vitamin, by job and of all (None)."""
    errors = {None: []}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        if not record.get("mode", "").startswith("ours") or " steps/s" not in record["what"]:
            continue
        for key in (None, record["what"].split(" ")[0]):
            errors.setdefault(key, []).append(abs(record["error"]))
    return errors


def pairs_of(options):
    """One record for each pair of jobs, and each job beside itself."""
    errors = measured_errors(options.errors) if options.errors else {None: []}
    pairs = []
    for at, first in enumerate(options.job):
        for second in options.job[at:]:
            beside = simulated(options.vitamin, (first, second), options.policy, options.seconds)
            names = [name for name, _, _ in beside]
            slowdowns = [alone / rate for _, rate, alone in beside]
            known = [error for name in names for error in errors.get(name, [])] or errors[None]
            pairs.append({
                "jobs": names,
                "slowdown": [round(slowdown, 3) for slowdown in slowdowns],
                # Of the two together: above 1 the GPU does more than one after the other.
                "together": round(sum(1 / slowdown for slowdown in slowdowns), 3),
                "share": max(slowdowns) <= options.limit,
                "measured_error": round(statistics.median(known), 3) if known else None,
                "measured_predictions": len(known)})
    return pairs


def term(jobs):
    return {"labelSelector": {"matchExpressions": [
        {"key": LABEL, "operator": "In", "values": sorted(jobs)}]}, "topologyKey": HOST}


def advised(pod, pairs):
    """The pod with annotations and affinities; its other fields stay."""
    metadata = pod.setdefault("metadata", {})
    job = metadata.get("labels", {}).get(LABEL)
    mine = [pair for pair in pairs if job in pair["jobs"]]
    if not mine:
        known = sorted({name for pair in pairs for name in pair["jobs"]})
        sys.exit(f"advise.py: the label {LABEL} of the pod is '{job}'; recorded are "
                 f"{', '.join(known)}")
    annotations = metadata.setdefault("annotations", {})
    avoid, good = set(), {}
    for pair in mine:
        at = pair["jobs"].index(job)
        other = pair["jobs"][1 - at]
        slowdown, error = pair["slowdown"][at], pair["measured_error"]
        annotations[PREFIX + f"slowdown-beside-{other}"] = str(slowdown) + (
            "" if error is None else f" (median error of {pair['measured_predictions']} such "
            f"predictions: {100 * error:.0f} %)")
        if pair["share"]:
            good[other] = max(1, min(100, round(100 * (pair["together"] - 1))))
        else:
            avoid.add(other)
            annotations[PREFIX + f"do-not-share-with-{other}"] = "true"
    affinity = pod["spec"].setdefault("affinity", {})
    if avoid:
        affinity.setdefault("podAntiAffinity", {}).setdefault(
            "requiredDuringSchedulingIgnoredDuringExecution", []).append(term(avoid))
    if good:
        affinity.setdefault("podAffinity", {}).setdefault(
            "preferredDuringSchedulingIgnoredDuringExecution", []).extend(
                {"weight": weight, "podAffinityTerm": term([other])}
                for other, weight in sorted(good.items()))
    return pod


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", action="append", required=True, type=pathlib.Path,
                        help="a job recorded alone; its name is that in the file")
    parser.add_argument("--pod", type=pathlib.Path, help="print this pod with the advice")
    parser.add_argument("--policy", default="throughput", help="of vitamind (throughput)")
    parser.add_argument("--limit", type=float, default=1.5,
                        help="slowdown from which on two jobs do not share (1.5)")
    parser.add_argument("--seconds", type=float, default=12, help="of virtual time (12)")
    parser.add_argument("--errors", type=pathlib.Path, help="predictions.jsonl, for their errors")
    parser.add_argument("--vitamin", default="vitamin", help="the program")
    options = parser.parse_args()
    pairs = pairs_of(options)
    if options.pod is None:
        print(json.dumps({"schema": 1, "policy": options.policy, "limit": options.limit,
                          "pairs": pairs}, indent=2))
    else:
        print(yaml.safe_dump(advised(yaml.safe_load(options.pod.read_text()), pairs),
                             sort_keys=False), end="")


if __name__ == "__main__":
    main()
