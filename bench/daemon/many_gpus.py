#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks on the same GPUs under one vitamind, at once.

    many_gpus.py [CELL ...] [--gpus N] [--policies random,throughput,slo] [--out DIR]

two       two data-parallel jobs, each on all GPUs
three     a data-parallel, a sharded (FSDP2) and a tensor-parallel job, each on all GPUs
exchange  a job of all-to-all, sends and receives beside a data-parallel one
overlap   a job on the first three quarters of the GPUs beside one on the last three quarters
late      as two, and one rank of a job joins some seconds after the others
restart   as two, and vitamind is killed, and another started, in the middle of a collective
lost      as overlap, and the last GPU answers errors from some launch on: its process ends with
          one, the other job's bits stay (software devices only)
kill      as two, and one rank is killed in the middle of a collective: the other job's bits. Comes
          last: MPS reports the faults of peers that read a killed rank's memory to programs that
          start later

Every rank sees the GPUs in an order of its own (CUDA_VISIBLE_DEVICES) and says which one it has.
Every rank's loss and weights are compared, step by step, with the same job alone, natively. A job
that does not end in time has hung. Behind the hashed steps come timed ones: each job's rate while
all of them run, over its rate alone; "MPS" are the same jobs at once without Vitamin.

--rates   two, three and exchange again, for their rates: the jobs live twice, under MPS and under
          vitamind, and take turns of --block seconds; the ratio is paired by round.

NVLink multicast is left off. `--device soft`: the same jobs as programs of the driver's interface
(bench/programs/ranks.cpp) on software devices. `--device cpu`: PyTorch without a GPU, and without
launches.
"""
import argparse
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import harness  # noqa: E402
from decision import paired  # noqa: E402
from common import Daemon, Job, Surroundings, brief  # noqa: E402

NCCL = {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo"}
CELLS = ("two", "three", "exchange", "overlap", "late", "restart", "lost", "kill")
# What the driver answers for a GPU that is gone: CUDA_ERROR_DEVICE_UNAVAILABLE.
LOST = "cuLaunchKernel@20+=46;cuLaunchKernelEx@20+=46;cuStreamSynchronize@20+=46"
HEADINGS = ["cell", "mode", "job", "GPUs", "equal to alone", "hung", "right GPU", "bound",
            "steps/s", "of alone", "problem"]


class Spec:
    """A job: a name, what kind, on which GPUs. Jobs that are equal are compared with each other."""

    def __init__(self, kind, gpus, seed, late=0):
        self.kind, self.gpus, self.seed, self.late = kind, tuple(gpus), seed, late
        self.key = (kind, self.gpus, seed)
        self.name = f"{kind} {seed}"


def jobs_of(cell, gpus):
    """None: the cell needs more GPUs."""
    every = range(gpus)
    wide = gpus * 3 // 4
    halves = ([Spec("ddp", range(wide), 6), Spec("ddp", range(gpus - wide, gpus), 7)]
              if wide > 1 else None)
    return {"two": [Spec("ddp", every, 1), Spec("ddp", every, 2)],
            "three": [Spec("ddp", every, 1), Spec("fsdp", every, 3), Spec("tensor", every, 4)],
            "exchange": [Spec("exchange", every, 5), Spec("ddp", every, 2)],
            "overlap": halves, "lost": halves,
            "late": [Spec("ddp", every, 1, late=5), Spec("ddp", every, 2)],
            "kill": [Spec("ddp", every, 1), Spec("ddp", every, 2)],
            "restart": [Spec("ddp", every, 1), Spec("ddp", every, 2)]}[cell]


def per_second(spans, dropped=0.0):
    """Steps/s of each job while all of them ran, without the first part of that time. `spans`: of
    each job the ends of its steps. None of a job: fewer than three of them were then."""
    if not spans:
        return []
    begin, until = max(s[0] for s in spans), min(s[-1] for s in spans)
    begin += dropped * (until - begin)
    inside = [[t for t in ends if begin <= t <= until] for ends in spans]
    return [(len(ends) - 1) / (ends[-1] - ends[0]) if len(ends) > 2 else None for ends in inside]


class Group:
    """Jobs that run at once."""

    def __init__(self, specs, options, environment, daemon, timed, loses=None):
        """`loses`: the job whose last rank loses its GPU."""
        self.specs, self.options, self.daemon, self.loses = specs, options, daemon, loses
        self.directory = tempfile.TemporaryDirectory(prefix="vitamin-ranks-")
        self.ranks = {spec: [self.rank(spec, i, environment, timed)
                             for i in range(len(spec.gpus))] for spec in specs}

    def rank(self, spec, i, environment, timed):
        options = self.options
        order = list(range(options.gpus))
        place = (7 * i + spec.seed) % options.gpus  # an order of this rank's own
        order = order[place:] + order[:place]
        place = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, order))}
        command = [spec.kind, "--rank", str(i),
                   "--world", str(len(spec.gpus)), "--gpu", str(order.index(spec.gpus[i])),
                   "--store", f"{self.directory.name}/{spec.name}.store",
                   "--seed", str(spec.seed), "--go", self.directory.name,
                   "--steps", str(options.steps), "--timed", str(timed or 0)]
        if options.device == "soft":
            command = [harness.program("ranks"), *command]
        else:
            command = [sys.executable, str(HERE / "ranks.py"), *command,
                       "--size", options.size if options.device == "cuda" else "tiny",
                       "--device", options.device]
        if i == 0:
            command += ["--late", str(spec.late)]
        if timed is None:  # blocks(): each says how many steps
            command += ["--blocks", "1"] if options.device == "soft" else ["--blocks"]
        words = ("--class", "bounded") if self.bounded(spec) else ()
        if spec is self.loses and i == len(spec.gpus) - 1:
            place["VITAMIN_SOFT_FAULTS"] = LOST
        if self.daemon is not None:  # which names the class
            place["VITAMIN_CONFIG"] = self.daemon.configuration.name
        return Job(command, {**environment, **NCCL, **place}, self.daemon, words)

    def bounded(self, spec):
        return self.daemon is not None and self.daemon.bounds and spec is self.specs[0]

    def all(self):
        return [rank for ranks in self.ranks.values() for rank in ranks]

    def alive(self):
        return all(rank.process.poll() is None for rank in self.all())

    def begin(self, limit):
        """Waits until all are built; then all begin at once."""
        while time.monotonic() < limit and self.alive() and not all(
                any("ready" in line for line in rank.lines()) for rank in self.all()):
            time.sleep(0.01)
        for spec in self.specs:
            (pathlib.Path(self.directory.name) / str(spec.seed)).touch()

    def await_hashes(self, count, limit):
        """Until every rank has told so many hashes."""
        while time.monotonic() < limit and self.alive() and not all(
                sum("hash" in line for line in rank.lines()) >= count for rank in self.all()):
            time.sleep(0.002)

    def block(self, number, steps, limit):
        """So many steps of each job, 0 to end them: steps/s by spec while all of them ran, without
        the first fifth of that time; {} where they were not beside each other. None: a job ended,
        or the time did."""
        for spec in self.specs:
            path = pathlib.Path(self.directory.name) / f"{spec.seed}.{number}"
            path.with_suffix(".new").write_text(str(steps.get(spec, 0)))
            path.with_suffix(".new").rename(path)
        if not steps:
            return None
        firsts = [ranks[0] for ranks in self.ranks.values()]
        spans = []
        for rank in firsts:
            told = None
            while told is None and time.monotonic() < limit and self.alive():
                told = next((line["ends"] for line in rank.lines()
                             if line.get("block") == number), None)
                time.sleep(0.005)
            if told is None:
                return None
            spans.append(told)
        rates = per_second(spans, 0.2)
        return {} if None in rates else dict(zip(self.specs, rates))

    def end(self, limit):
        """{spec: what became of it}."""
        found = {}
        for spec, ranks in self.ranks.items():
            results = [rank.wait(max(1, limit - time.monotonic())) for rank in ranks]
            found[spec] = {
                "ok": all(r.ok for r in results), "why": [r.why()[-300:] for r in results],
                "hung": any(r.timed_out for r in results),
                "hashes": [r.hashes() for r in results],
                "gpus": [next((line["gpu"] for line in r.lines if "gpu" in line), None)
                         for r in results],
                "ends": next((line["ends"] for line in results[0].lines
                              if "ends" in line and "block" not in line), []),
                "coverage": [brief(rank.coverage) for rank in ranks],
                "said": results[0].errors[-400:]}
        timed = [f for f in found.values() if len(f["ends"]) > 2]
        for f in found.values():
            f["per_s"] = None
        for f, rate in zip(timed, per_second([f["ends"] for f in timed])):
            f["per_s"] = rate
        self.directory.cleanup()
        return found


def end_ranks(ranks):
    for rank in ranks:
        if rank.process.poll() is None:
            os.killpg(rank.process.pid, signal.SIGKILL)


def kill_rank(group, limit):
    """The last rank of the second job; the rest of that job waits in its collective for ever, and
    is ended."""
    group.await_hashes(3, limit)
    victims = group.ranks[group.specs[1]]
    os.killpg(victims[-1].process.pid, signal.SIGKILL)
    time.sleep(1)
    end_ranks(victims[:-1])


def await_loss(group, limit):
    """Until the rank that lost its GPU has ended; then the rest of its job is ended, as by the
    launcher of a job."""
    *others, loser = group.ranks[group.loses]
    while loser.process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    end_ranks(others)


def restart_daemon(group, limit):
    group.await_hashes(3, limit)
    group.daemon.restart()


class Bounded(Daemon):
    """A vitamind; `bounds`: the first job is of a class with a bound of its steps."""

    CLASS = '[[class]]\nname = "bounded"\nkind = "latency"\nstep = "1s"\n'

    def __init__(self, policy, environment):
        self.bounds = policy == "slo"
        self.configuration = tempfile.NamedTemporaryFile("w", suffix=".toml")
        if self.bounds:
            self.configuration.write(self.CLASS)
            self.configuration.flush()
        super().__init__(policy, environment, "--config", self.configuration.name)


class Measurement:
    def __init__(self, options, results, environment):
        self.options, self.results, self.environment = options, results, environment
        self.reference, self.alone, self.rows = {}, {}, []
        lists = {"cuda": ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"],
                 "soft": [harness.program("ranks"), "gpus"], "cpu": ["true"]}
        uuids = subprocess.run(lists[options.device], capture_output=True, text=True, check=False,
                               env=harness.environment_with(environment)).stdout.split()
        self.uuids = [uuid.removeprefix("GPU-") for uuid in uuids]

    def right_gpus(self, spec, found):
        if not self.uuids:
            return None
        return found["gpus"] == [self.uuids[gpu] for gpu in spec.gpus]

    def natively(self, spec):
        """The job alone, which the others are compared with."""
        if spec.key in self.reference:
            return
        group = Group([spec], self.options, self.environment, None, self.options.timed)
        limit = time.monotonic() + self.options.timeout
        group.begin(limit)
        found = group.end(limit)[spec]
        self.reference[spec.key], self.alone[spec.key] = found["hashes"], found["per_s"]
        self.keep("alone", "native", spec, found)

    def keep(self, cell, mode, spec, found, killed=False):
        reference = self.reference[spec.key]
        # A job whose rank was killed, or that is not timed, has told less.
        told = [dict(rank) for rank in found["hashes"]]
        wanted = [[(n, h) for n, h in rank if n in mine] if killed else
                  [(n, h) for n, h in rank if found["ends"] or not n.startswith("after")]
                  for rank, mine in zip(reference, told)]
        of = sum(map(len, wanted))
        equal = sum(mine.get(name) == value for rank, mine in zip(wanted, told)
                    for name, value in rank)
        base = self.alone.get(spec.key)
        share = found["per_s"] / base if found["per_s"] and base else None
        right = self.right_gpus(spec, found)
        record = {"cell": cell, "mode": mode, "job": spec.name, "gpus_asked": spec.gpus,
                  "equal": equal, "of": of, "share": share, "killed": killed,
                  "right_gpus": right, **found}
        self.results.add(record)
        self.rows.append([
            cell, mode, spec.name, f"{spec.gpus[0]}-{spec.gpus[-1]}", f"{equal} of {of}",
            "killed" if killed else "HUNG" if found["hung"] else "no",
            {None: "-", True: "yes", False: "NO"}[right],
            " ".join(harness.percent(c and c["bound_share"]) for c in found["coverage"]),
            f"{found['per_s']:.2f}" if found["per_s"] else "-", f"{share:.3f}" if share else "-",
            "" if killed else " ".join(filter(None, found["why"]))[-70:]])
        return share

    def run(self, cell, specs, mode):
        options, begin = self.options, time.monotonic()
        policy = None if mode == "MPS" else mode
        daemon = Bounded(policy, self.environment) if policy else None
        # Moved at every launch a job's rate says nothing, and beside a kill neither.
        ends_a_job = cell in ("kill", "lost")
        timed = 0 if policy == "random" or ends_a_job or cell == "restart" else options.timed
        group = Group(specs, options, self.environment, daemon, timed,
                      specs[1] if cell == "lost" else None)
        limit = time.monotonic() + options.timeout
        group.begin(limit)
        before, working = (daemon.processor_seconds(), time.monotonic()) if daemon else (None, 0)
        act = {"kill": kill_rank, "restart": restart_daemon, "lost": await_loss}.get(cell)
        if act:
            act(group, limit)
        found = group.end(limit)
        more = {}
        if daemon:
            after, seconds = daemon.processor_seconds(), time.monotonic() - working
            more = {"daemon": daemon.counters(), "overlaps": daemon.overlaps[:3],
                    "overlaps_seen": len(daemon.overlaps),
                    "looks": daemon.looks, "clients_at_once": daemon.most,
                    "processor_share": (after - before) / seconds
                    if None not in (after, before) and cell != "restart" else None,
                    "log": daemon.end()[-1500:]}
        shares = [self.keep(cell, mode, spec, f, ends_a_job and spec is specs[1])
                  for spec, f in found.items()]
        total = sum(shares) if all(shares) else None
        self.results.add({"cell": cell, "mode": mode, "jobs": [s.name for s in specs],
                          "seconds": time.monotonic() - begin, "sum": total, **more})
        load = more.get("processor_share")
        self.rows.append([cell, mode, "sum", "", f"{more['overlaps_seen']} overlaps" if more else
                          "", "", "", f"vitamind {load:.2f} CPU" if load is not None else "", "",
                          f"{total:.3f}" if total else "-",
                          f"{time.monotonic() - begin:.0f} s"])
        print(harness.table(self.rows[-len(specs) - 1:], HEADINGS), flush=True)


    def rates(self, cell, specs, policy):
        """The jobs' rates under the policy over those under MPS, in turns of living processes."""
        options, begin = self.options, time.monotonic()
        name, _, connections = policy.partition(":")
        environment = {**self.environment, **({"CUDA_DEVICE_MAX_CONNECTIONS": connections}
                                              if connections else {})}
        daemon = None if name == "MPS" else Bounded(name, self.environment)
        groups = {"MPS": Group(specs, options, self.environment, None, None),
                  policy: Group(specs, options, environment, daemon, None)}
        limit = time.monotonic() + options.timeout
        for group in groups.values():
            group.begin(limit)
            group.await_hashes(options.steps + 1, limit)
        # As many steps as take the time of a block where each job has its part of the GPUs.
        steps = {spec: max(12, round(options.block * self.alone[spec.key] / len(specs)))
                 for spec in specs}
        rounds, number = [], 0
        draw = random.Random(1)
        while len(rounds) < options.rounds and time.monotonic() < limit:
            found = {}
            for mode in draw.sample(list(groups), len(groups)):
                found[mode] = groups[mode].block(number, steps, limit)
            number += 1
            if None in found.values():
                break
            if {} in found.values():  # on a busy machine one may end before another begins
                continue
            rounds.append({mode: {s.name: r for s, r in f.items()} for mode, f in found.items()})
        for mode, group in groups.items():
            group.block(number, {}, limit)
            for spec, found in group.end(time.monotonic() + 20).items():
                self.keep(cell, mode, spec, found)
        counters, log = (daemon.counters(), daemon.end()[-1500:]) if daemon else ({}, "")
        jobs = {}
        kept = rounds[1:]  # the first: vitamind knows nothing yet
        if len(kept) > 1:
            total = lambda mode: [sum(r[mode][s.name] / self.alone[s.key] for s in specs)
                                  for r in kept]
            jobs["sum"] = paired.ratio(total(policy), total("MPS")).json()
            for s in specs:
                jobs[s.name] = paired.ratio([r[policy][s.name] for r in kept],
                                            [r["MPS"][s.name] for r in kept]).json()
        self.results.add({"cell": cell, "rates": policy, "over_MPS": jobs, "rounds": rounds,
                          "steps": {s.name: n for s, n in steps.items()}, "log": log,
                          "daemon": counters, "seconds": time.monotonic() - begin})
        rows = [[cell, policy, job, f"{value:.3f} ± {(high - low) / 2:.3f}", len(kept)]
                for job, (value, low, high) in jobs.items()]
        print(harness.table(rows or [[cell, policy, "no rounds", "-", len(rounds)]],
                            ["cell", "policy", "job", "rate / MPS", "rounds"]), flush=True)
        return bool(jobs)


def modes_of(cell, options):
    policies = options.policies.split(",")
    if cell in ("kill", "restart"):
        return [policy for policy in policies if policy != "slo"][-1:]
    if cell in ("overlap", "late"):
        return policies[:1]
    return ["MPS", *policies]


def bad(row):
    _, _, job, _, equal, hung, right_gpu, *_ = row
    if job == "sum":
        return equal not in ("", "0 overlaps")
    return hung == "HUNG" or right_gpu == "NO" or len(set(equal.split(" of "))) > 1


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL", help="default: all of them")
    parser.add_argument("--gpus", type=int, default=None, help="default: all of the machine")
    parser.add_argument("--policies", default="random,slo,throughput",
                        help="with --rates also MPS, and NAME:N with N hardware connections of a "
                             "process (MPS gives 2, vitamin run asks for 8)")
    parser.add_argument("--steps", type=int, default=6, help="hashed ones")
    parser.add_argument("--timed", type=int, default=60, help="steps behind them")
    parser.add_argument("--rates", action="store_true", help="rates by turns, instead of bits")
    parser.add_argument("--block", type=float, default=0.8, help="seconds of a turn")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--size", choices=["small", "large"], default="large")
    parser.add_argument("--timeout", type=float, default=75, help="of one group of jobs")
    parser.add_argument("--budget", type=float, default=None, help="seconds; what is left is named")
    parser.add_argument("--device", choices=["cuda", "soft", "cpu"], default="cuda")
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    for cell in options.cells:
        if cell not in CELLS:
            parser.error(f"there is no cell '{cell}': {', '.join(CELLS)}")
    cells = [cell for cell in CELLS if cell in options.cells or not options.cells]
    if options.gpus is None:
        options.gpus = 2
        if options.device == "cuda":
            import torch
            options.gpus = torch.cuda.device_count()
    if options.gpus < 2:
        parser.error(f"{options.gpus} GPU(s) here: two are needed")
    results = harness.Results(options.out, f"gpus_{options.gpus}")
    until = time.monotonic() + options.budget if options.budget else float("inf")
    left, measured = [], True
    turns = [policy for policy in options.policies.split(",") if policy != "random"]
    if options.rates:
        cells = [cell for cell in cells if cell in ("two", "three", "exchange")]
        options.timed = options.timed or 60
    with Surroundings(options.device) as surroundings:
        print(surroundings.words, flush=True)
        if options.device == "soft":
            surroundings.environment["VITAMIN_SOFT_DEVICES"] = str(options.gpus)
        measurement = Measurement(options, results, surroundings.environment)
        for cell in cells:
            specs = jobs_of(cell, options.gpus)
            if specs is None or cell == "lost" and options.device != "soft":
                why = "needs four GPUs" if specs is None else "needs software devices"
                left.append(f"{cell} ({why})")
                continue
            for spec in specs:
                if time.monotonic() < until:
                    measurement.natively(spec)
            for mode in turns if options.rates else modes_of(cell, options):
                if time.monotonic() > until or any(s.key not in measurement.reference
                                                   for s in specs):
                    left.append(f"{cell}, {mode} (the budget was over)")
                elif options.rates:
                    measured = measurement.rates(cell, specs, mode) and measured
                else:
                    measurement.run(cell, specs, mode)
    results.add({"not_run": left})
    print("\n" + harness.table(measurement.rows, HEADINGS))
    if left:
        print("not run: " + "; ".join(left))
    return 1 if any(map(bad, measurement.rows)) or not measured else 0


if __name__ == "__main__":
    sys.exit(main())
