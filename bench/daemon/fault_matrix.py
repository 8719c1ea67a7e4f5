#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a fault of one client does to others under each isolation, and what isolation costs.

    fault_matrix.py [--seconds S] [--rounds N] [--policy NAME] [--device cuda|soft] [--out DIR]

A client of class a faults: an illegal address, a trap, and a kernel that hangs until its user kills
it. Beside it computes a bystander of its own class and one of another class
(bench/programs/faults.cpp): their results are compared, step by step, with those of a run alone,
and their steps per second before, during and after are counted. New clients of class a are started
from the fault on (the end of the hang) until one computes. `lingers`: an illegal address, after
which the bystander of class a does not end.

The cost: two clients in one domain, in two domains and outside of MPS, in alternating blocks; each
fills the device (full) or half of its SMs (half). Speeds are of the speed alone.

Rows are in fault_matrix.jsonl; the tables are printed last.
"""
import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402
from common import Daemon, Job, Resident  # noqa: E402

KINDS = ("illegal", "trap", "hang", "lingers")
LOADS = {"full": 1056, "half": 66}  # blocks of 256 threads
ROUNDS, SOFT_NS = 500_000, 2_000_000
BEFORE_S, HANG_S, SETTLE_S, LINGER_S = 1.2, 1.2, 0.3, 30
PROBE_S = 6  # how long new clients are tried
# What the bystanders and the faulting client are of: the configuration, the classes of the
# bystander beside it, of the other one and of itself.
ISOLATIONS = {"shared": ("shared", "a", "b", "a"), "class": ("class", "a", "b", "a"),
              "exclusive": ("exclusive", "a", "b", "a")}
COST = {"one domain": ("a", "a"), "two domains": ("a", "b"), "exclusive": ("e", "e")}


def configuration(directory, isolation):
    path = pathlib.Path(directory) / f"{isolation}.toml"
    own = {"e": "exclusive"}
    path.write_text(f'isolation = "{isolation}"\n' + "".join(
        f'[[class]]\nname = "{name}"\ncommand = "no-such-{name}"\n'
        + (f'isolation = "{own[name]}"\n' if name in own else "") for name in "abe"))
    return path


class Bench:
    def __init__(self, options, directory):
        self.options, self.directory = options, directory
        soft = options.device == "soft"
        self.environment = {}
        self.control = "nvidia-cuda-mps-control"
        if soft:
            self.environment["LD_LIBRARY_PATH"] = \
                f"{harness.prefix() / 'lib' / 'soft'}:{harness.library_path()}"
            self.control = str(harness.prefix() / "tests" / "daemon" / "mps_control")
        os.environ.pop("CUDA_MPS_PIPE_DIRECTORY", None)
        self.native = {}

    def step(self, seconds, load="full", linger=0):
        return [harness.program("faults"), "step", str(seconds), str(ROUNDS), str(LOADS[load]),
                str(SOFT_NS), str(linger)]

    def daemon(self, isolation):
        file = configuration(self.directory, isolation)
        made = Daemon(self.options.policy, self.environment, "--config", str(file),
                      "--set", "mps.mode=auto", "--set", f"mps.control={self.control}",
                      "--set", "mps.check_every=100ms", watch=False)
        made.environment_of_clients = self.environment | {"VITAMIN_CONFIG": str(file)}
        return made

    def job(self, command, daemon, workload_class, kind=Job):
        return kind(command, daemon.environment_of_clients, daemon=daemon,
                    words=("--class", workload_class))

    def alone(self, load):
        """Hashes and steps per second of a run alone, natively."""
        if load not in self.native:
            result = Job(self.step(self.options.seconds + 2, load), self.environment).wait(60)
            steps = [line for line in result.lines if "hash" in line]
            if not steps:
                raise RuntimeError("the program does not run: " + result.why())
            begin = steps[0]["ns"] + 1e9 * SETTLE_S
            self.native[load] = [step["hash"] for step in steps], rate(steps, begin,
                                                                     steps[-1]["ns"])
        return self.native[load]


def rate(steps, begin_ns, end_ns):
    """Steps per second that ended between these times; None: the time is too short to tell."""
    if end_ns - begin_ns < 2e8:
        return None
    return sum(begin_ns < step["ns"] <= end_ns for step in steps) * 1e9 / (end_ns - begin_ns)


def until_lines(job, count, seconds=30):
    limit = time.monotonic() + seconds
    while len(job.lines()) < count:
        if job.process.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"no step: {job.err.text()[-300:]}")
        time.sleep(0.005)


def described(bench, job, fault_ns, over_ns):
    """What became of a bystander."""
    steps = [line for line in job.lines() if "hash" in line]
    error = next((line for line in job.lines() if "error" in line), None)
    native, _ = bench.alone("full")
    hashes = [step["hash"] for step in steps]
    common = min(len(hashes), len(native))
    last = steps[-1]["ns"] if steps else fault_ns
    return {"survived": error is None and job.process.poll() == 0, "code": job.process.poll(),
            "error": error and error["error"], "steps": len(steps), "compared": common,
            "equal": hashes[:common] == native[:common],
            "before": rate(steps, fault_ns - 1e9 * BEFORE_S, fault_ns),
            "during": rate(steps, fault_ns, over_ns),
            "after": rate(steps, over_ns + 1e9 * SETTLE_S, last),
            "step_hashes": "".join(each[:4] for each in hashes[-50:])}


def probe(bench, daemon, workload_class, since_ns, seconds):
    """Seconds from then to the first step of a new client of this class; None: none ran."""
    tries = 0
    while time.monotonic_ns() - since_ns < 1e9 * seconds:
        tries += 1
        job = bench.job(bench.step(0), daemon, workload_class)
        result = job.wait(seconds)
        found = next((line for line in result.lines if "hash" in line), None)
        if found:
            return round((found["ns"] - since_ns) * 1e-9, 3), tries, ""
    return None, tries, result.why()


def domains(daemon):
    status = daemon.status() or {}
    mine = {"shared": status.get("mps", {})}
    mine |= {each["domain"]: each for each in status.get("domains", [])}
    return {name: {key: facts.get(key) for key in ("state", "faults", "starts", "affected")}
            for name, facts in mine.items()}


def one_fault(bench, daemon, isolation, kind):
    _, same_class, other_class, culprits = ISOLATIONS[isolation]
    life = bench.options.seconds
    same = bench.job(bench.step(life, linger=LINGER_S if kind == "lingers" else 0), daemon,
                     same_class)
    other = bench.job(bench.step(life), daemon, other_class)
    culprit = bench.job([harness.program("faults"), "illegal" if kind == "lingers" else kind],
                        daemon, culprits, Resident)
    try:
        for job in (same, other):
            until_lines(job, 1)
        culprit.next(30)
        time.sleep(BEFORE_S)
        before = domains(daemon)
        fault_ns = time.monotonic_ns()
        launched = culprit.ask("", 20)
        if kind == "hang":
            time.sleep(HANG_S)
            killed = culprit.kill()
            said = None
        else:
            said = culprit.next(20)
            killed = culprit.end()
        over_ns = time.monotonic_ns()
        accepts, tries, why = probe(bench, daemon, culprits,
                                    over_ns if kind == "hang" else fault_ns, PROBE_S)
        for job in (same, other):
            lingers = job is same and kind == "lingers" and any("error" in x for x in job.lines())
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(0.1 if lingers else life)
        row = {"part": "fault", "isolation": isolation, "fault": kind, "launched": launched,
               "answer": said and said["status"], "culprit": killed.why(),
               "same": described(bench, same, fault_ns, over_ns),
               "other": described(bench, other, fault_ns, over_ns),
               "accepts_again_s": accepts, "tries": tries, "why_not": why,
               "before": before, "after": domains(daemon)}
    finally:
        for job in (same, other, culprit):
            if job.process.poll() is None:
                job.kill()
    if accepts is None:  # a lingering client was in the way; now it has ended
        row["accepts_after_its_end_s"] = probe(bench, daemon, culprits, time.monotonic_ns(),
                                               PROBE_S)[0]
    return row


def one_cost(bench, daemon, arrangement, load):
    life = 3.0
    jobs = [bench.job(bench.step(life, load), daemon, name) for name in COST[arrangement]]
    for job in jobs:
        job.wait(60)
    steps = [[line for line in job.lines() if "hash" in line] for job in jobs]
    _, alone = bench.alone(load)
    row = {"part": "cost", "arrangement": arrangement, "load": load, "alone_per_s": alone}
    if not all(steps):
        return row | {"speeds": None, "why": [job.err.text()[-300:] for job in jobs]}
    begin = max(each[0]["ns"] for each in steps) + 1e9 * SETTLE_S
    end = min(each[-1]["ns"] for each in steps)
    rates = [rate(each, begin, end) for each in steps]
    native, _ = bench.alone(load)
    equal = all(step["hash"] == right for each in steps for step, right in zip(each, native))
    return row | {"together_s": (end - begin) * 1e-9, "per_s": rates, "equal": equal,
                  "speeds": [each / alone if each is not None else None for each in rates]}


def number(value, digits=0):
    return "-" if value is None else f"{value:.{digits}f}"


def verdict(one):
    text = "lives" if one["survived"] else f"error {one['error']}" if one["error"] else \
        f"code {one['code']}"
    return text + ("" if one["equal"] else ", WRONG BITS")


def fault_row(row):
    cells = [row["isolation"], row["fault"]]
    for who in ("same", "other"):
        one = row[who]
        cells += [verdict(one),
                  "/".join(number(one[when]) for when in ("before", "during", "after"))]
    later = row.get("accepts_after_its_end_s")
    return [*cells, number(row["accepts_again_s"], 2) if later is None else
            f"only after its end: {number(later, 2)}"]


def cost_rows(rows):
    for load in LOADS:
        for arrangement in COST:
            found = [row["speeds"] for row in rows
                     if (row["arrangement"], row["load"]) == (arrangement, load)
                     and row.get("speeds") and None not in row["speeds"]]
            sums = [sum(each) for each in found]
            yield [load, arrangement, number(harness.median(sums), 3),
                   " ".join(number(each, 3) for each in sums)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.5, help="of each bystander")
    parser.add_argument("--rounds", type=int, default=3, help="of the cost")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument("--isolations", nargs="*", default=list(ISOLATIONS), choices=ISOLATIONS)
    parser.add_argument("--policy", default="fifo")
    parser.add_argument("--device", choices=["cuda", "soft"], default="cuda")
    parser.add_argument("--limit", type=float, default=225,
                        help="seconds after which no block is begun")
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()
    over = lambda: time.monotonic() - began > options.limit
    results = harness.Results(options.out, "fault_matrix")
    faults, costs = [], []
    with tempfile.TemporaryDirectory(prefix="fault-matrix-") as directory:
        bench = Bench(options, directory)
        bench.alone("full")
        for isolation in options.isolations:
            daemon = bench.daemon(isolation)
            try:
                for kind in options.kinds:
                    if over():
                        continue
                    try:
                        row = one_fault(bench, daemon, isolation, kind)
                    except (RuntimeError, OSError) as error:
                        results.add({"part": "fault", "isolation": isolation, "fault": kind,
                                     "why": str(error)})
                        print(isolation, kind, "not run:", error, flush=True)
                        continue
                    results.add(row)
                    faults.append(row)
                    print("  ".join(fault_row(row)), flush=True)
            finally:
                results.add({"part": "log", "isolation": isolation, "log": daemon.end()[-6000:]})
        daemon = bench.daemon("class")
        try:
            for number_of_round in range(options.rounds):
                for load in LOADS:
                    for arrangement in COST:
                        if over():
                            continue
                        row = one_cost(bench, daemon, arrangement, load)
                        row["round"] = number_of_round
                        results.add(row)
                        costs.append(row)
        finally:
            results.add({"part": "log", "isolation": "cost", "log": daemon.end()[-6000:]})
    print("\n" + harness.table(map(fault_row, faults), [
        "isolation", "fault", "same class", "steps/s before/during/after", "other class",
        "steps/s before/during/after", "class accepts again after s"]))
    print("\n" + harness.table(cost_rows(costs), [
        "load", "two clients in", "sum of speeds (alone: 1)", "each block"]))
    contained = all(row["other"]["survived"] and row["other"]["equal"] for row in faults
                    if row["isolation"] != "shared")
    print(f"\n{time.monotonic() - began:.0f} s; the other class "
          + ("was untouched" if contained else "WAS TOUCHED") + " where it is isolated"
          + ("; NOT ALL WAS RUN" if over() else ""))
    sys.exit(0 if faults and contained else 1)


if __name__ == "__main__":
    main()
