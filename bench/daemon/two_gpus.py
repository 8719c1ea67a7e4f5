#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two data-parallel jobs of two ranks each on two GPUs under one vitamind, at once.

    two_gpus.py [--policies random,throughput] [--steps N] [--timed M] [--out DIR]

Every rank's loss and weights are compared, step by step, with the same job alone: natively, and
beside the other one under MPS alone. A job that does not end in time has hung. Behind the hashed
steps come timed ones: each job's rate while both run, over its rate alone (as W7 of the plan, with
a model of our own). NVLink multicast is left off.
"""
import argparse
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402
from common import Daemon, Job, Surroundings, brief  # noqa: E402

JOBS = {"a": 1, "b": 2}  # name, seed
RANKS = 2
NCCL = {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo"}


def ranks_of(job, options, environment, directory, daemon, timed):
    more = ["--size", "tiny", "--device", "cpu"] if options.device != "cuda" else \
        ["--size", options.size]
    return [Job([sys.executable, str(HERE / "small_model.py"), "--rank", str(rank), "--world",
                 str(RANKS), "--store", f"{directory}/{job}.store", "--seed", str(JOBS[job]),
                 "--go", directory, "--steps", str(options.steps), "--timed", str(timed), *more],
                {**environment, **NCCL}, daemon) for rank in range(RANKS)]


def ready(ranks):
    return sum(any("ready" in line for line in rank.lines()) for rank in ranks)


def together(names, options, environment, daemon, timed):
    """Runs jobs at once; for each its ranks' results, hashes, rates."""
    limit = time.monotonic() + options.timeout
    with tempfile.TemporaryDirectory(prefix="vitamin-ddp-") as directory:
        jobs = {name: ranks_of(name, options, environment, directory, daemon, timed)
                for name in names}
        all_ranks = [rank for ranks in jobs.values() for rank in ranks]
        while ready(all_ranks) < len(all_ranks) and time.monotonic() < limit and \
                all(rank.process.poll() is None for rank in all_ranks):
            time.sleep(0.01)
        for name in names:  # all begin at once
            (pathlib.Path(directory) / str(JOBS[name])).touch()
        ended = {name: [rank.wait(max(1, limit - time.monotonic())) for rank in ranks]
                 for name, ranks in jobs.items()}
    found = {}
    for name, results in ended.items():
        found[name] = {
            "ok": all(r.ok for r in results), "why": [r.why() for r in results],
            "hung": any(r.timed_out for r in results),
            "hashes": [r.hashes() for r in results],
            "ends": next((line["ends"] for line in results[0].lines if "ends" in line), []),
            "coverage": [brief(rank.coverage) for rank in jobs[name]],
            "said": results[0].errors[-400:]}
    # Rates while all of them run.
    spans = [f["ends"] for f in found.values() if len(f["ends"]) > 2]
    begin, until = (max(s[0] for s in spans), min(s[-1] for s in spans)) if spans else (0, 0)
    for f in found.values():
        inside = [t for t in f["ends"] if begin <= t <= until]
        f["per_s"] = (len(inside) - 1) / (inside[-1] - inside[0]) if len(inside) > 2 else None
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default="random,throughput")
    parser.add_argument("--steps", type=int, default=8, help="hashed ones")
    parser.add_argument("--timed", type=int, default=60, help="steps behind them")
    parser.add_argument("--size", choices=["small", "large"], default="large")
    parser.add_argument("--timeout", type=float, default=75, help="of one group of jobs")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    results = harness.Results(options.out, "two_gpus")
    rows, reference, alone = [], {}, {name: [] for name in JOBS}

    def one(mode, names, environment, policy=None):
        begin = time.monotonic()
        daemon = Daemon(policy, environment) if policy else None
        # A new partition for every launch tests bits, not speed.
        timed = 0 if policy and policy.startswith("random") else options.timed
        found = together(names, options, environment, daemon, timed)
        more = {}
        if daemon:
            more = {"daemon": daemon.counters(), "overlaps": daemon.overlaps[:3],
                    "looks": daemon.looks, "log": daemon.end()[-1500:]}
        shares = []
        for name, f in found.items():
            if mode == "alone" and name not in reference:
                reference[name] = f["hashes"]
            wanted = [[h for h in rank if timed or not h[0].startswith("after")]
                      for rank in reference.get(name, [])]
            equal = sum(a == b for x, y in zip(wanted, f["hashes"]) for a, b in zip(x, y))
            of = sum(map(len, wanted))
            if mode == "alone" and f["per_s"]:
                alone[name].append(f["per_s"])
            base = harness.median(alone[name])
            share = f["per_s"] / base if f["per_s"] and base else None
            shares.append(share)
            results.add({"mode": mode, "policy": policy, "job": name, "beside": len(names) - 1,
                         "equal": equal, "of": of, "share": share, **f})
            rows.append([mode, name, f"{equal} of {of}", "HUNG" if f["hung"] else "no",
                         " ".join(harness.percent(c and c["bound_share"])
                                  for c in f["coverage"]),
                         f"{f['per_s']:.2f}" if f["per_s"] else "-",
                         f"{share:.3f}" if share else "-", " ".join(filter(None, f["why"]))[:70]])
        seconds = time.monotonic() - begin
        total = sum(shares) if len(shares) > 1 and all(shares) else None
        results.add({"mode": mode, "policy": policy, "jobs": list(names), "seconds": seconds,
                     "sum": total, **more})
        if len(names) > 1:
            rows.append([mode, "sum", f"{len(more.get('overlaps', []))} overlaps" if more else "",
                         "", "", "", f"{total:.3f}" if total else "-", f"{seconds:.0f} s"])
        print(harness.table(rows[-len(names) - 1:], HEADINGS), flush=True)

    with Surroundings(options.device) as surroundings:
        print(surroundings.words, flush=True)
        environment = surroundings.environment
        one("alone", ["a"], environment)
        one("alone", ["b"], environment)
        one("MPS", ["a", "b"], environment)
        for policy in options.policies.split(","):
            one(policy, ["a", "b"], environment, policy)
        one("alone", ["a"], environment)  # what the machine did meanwhile
    print("\n" + harness.table(rows, HEADINGS))


HEADINGS = ["mode", "job", "equal to alone", "hung", "bound, by rank", "steps/s", "of alone",
            "problem"]

if __name__ == "__main__":
    main()
