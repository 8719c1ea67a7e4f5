#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several processes on one GPU under one vitamind: are the bits, the leases and the speed right?

    processes.py [jobs] [loops] [partition] [kill] [reclaim] [--policies random,throughput]
                 [--out DIR]

jobs       two and four PyTorch jobs at once for each policy: their bytes equal those of each job
           alone, and in no status of vitamind do two open leases overlap
loops      two and four loops of computing kernels, each on a fixed partition: the rate beside the
           others against the rate alone on the same partition, with leases and without vitamind
partition  PyTorch jobs on leases of fixed halves against the same jobs on a static partition
           without vitamind, beside the same other job
kill       SIGKILL of one job in the middle of a step, again and again: bytes and coverage of the
           survivor, and how soon the dead job's SMs are leased again
reclaim    time from a closed gate to the grant to another client, without that of outstanding work

Everything runs under an MPS daemon of its own; a run without one says so, since processes then take
turns. `--device soft`: loops, partition (of the demo programs), kill and reclaim on the software
device, to try them; `--device cpu`: partition and kill with PyTorch and no launch.
"""
import argparse
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "evaluation")]

import harness  # noqa: E402
import reclaim  # noqa: E402
from common import Daemon, Job, Resident, Surroundings, brief, occupant, percentile  # noqa: E402

JOBS = {"qwen": ["qwen-train"], "resnet": ["resnet-train"], "llama": ["llama-generate"]}


def words_of(job, options, go=None):
    words = [sys.executable, str(HERE.parent / "workloads.py"), *JOBS[job]]
    words += ["--go", str(go)] if go else []
    return words + (["--steps", str(options.steps)] if options.steps else [])


def start_together(running, go, seconds):
    """Waits until all jobs are built, or one has ended."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and all(job.process.poll() is None for job in running) and \
            not all(any("ready" in line for line in job.lines()) for job in running):
        time.sleep(0.01)
    go.touch()


def jobs(options, results, mps):
    alone = {}
    for job in {job for names in options.sets for job in names}:
        for _ in range(2):
            result = Job(words_of(job, options), mps).wait(options.timeout)
            results.add({"part": "jobs", "job": job, "mode": "alone", "ok": result.ok,
                         "why": result.why(), "seconds": result.seconds,
                         "hashes": len(result.hashes())})
            if job in alone and alone[job] != result.hashes():
                print(f"{job}: differs from itself natively", flush=True)
            alone[job] = result.hashes()
    rows = []
    for policy in options.policies.split(","):
        for names in options.sets:
            daemon = Daemon(policy, mps)
            go = pathlib.Path(daemon.directory.name) / "go"
            running = [Job(words_of(job, options, go), mps, daemon) for job in names]
            start_together(running, go, options.timeout)
            before, started = daemon.counters(), time.monotonic()
            ended = [job.wait(options.timeout) for job in running]
            seconds = time.monotonic() - started
            counters = {k: v - before.get(k, 0) for k, v in daemon.counters().items()}
            together = daemon.most == len(names)  # all held a lease in one status
            log = daemon.end()
            for job, process, result in zip(names, running, ended):
                cover = process.coverage
                same = sum(a == b for a, b in zip(alone[job], result.hashes()))
                record = {"part": "jobs", "job": job, "mode": policy, "beside": len(names) - 1,
                          "ok": result.ok and together,
                          "why": result.why(), "seconds": result.seconds,
                          "hashes": len(alone[job]), "equal": same, "coverage": brief(cover),
                          "said": result.errors[-600:]}
                results.add(record)
                rows.append([policy, len(names), job, f"{same} of {len(alone[job])}",
                             harness.percent(cover and cover["bound_share"]),
                             harness.percent(cover and cover["moved_share"]),
                             f"{result.seconds:.1f}", result.why()[:60]])
            results.add({"part": "jobs", "mode": policy, "jobs": names, "seconds": seconds,
                         "looks": daemon.looks, "overlaps": daemon.overlaps[:3],
                         "clients_holding_at_once": daemon.most, "daemon": counters,
                         "log": log[-1500:]})
            rate = (counters.get("grants") or 0) / seconds / len(names)
            rows.append([policy, len(names), "daemon", f"{len(daemon.overlaps)} overlaps",
                         f"{daemon.looks} looks", f"{rate:.0f} grants/s a job", f"{seconds:.1f}",
                         "" if together else f"only {daemon.most} of them held at one time"])
    return harness.table(rows, ["policy", "jobs", "job", "equal", "bound", "moved", "s", "problem"])


class Loops:
    """Resident loops of computing kernels, each always on its own partition: by leases of a
    vitamind, or by a static partition in each process."""

    def __init__(self, parts, setting, environment):
        self.daemon = None
        if setting == "leases":
            self.daemon = Daemon(f"static:parts={parts}", environment, watch=False)
        self.jobs, each = [], 16 // parts
        for i in range(parts):  # clients get partitions in the order in which they connect
            policy = None if self.daemon else f"static:units={each * i}-{each * (i + 1) - 1}"
            self.jobs.append(occupant(environment, self.daemon, policy=policy))
            self.rate(self.jobs[-1:], 64, 1000, 50_000, 4, 0.1)
        # Blocks of 256 threads: as many as are resident at once on the narrowest partition.
        self.blocks = 8 * each * 8

    @staticmethod
    def rate(jobs, blocks, rounds, ns, batch, seconds):
        """Microseconds for each kernel of each job, while all jobs run."""
        at = time.monotonic_ns() + 20_000_000
        for job in jobs:
            job.tell(f"compute {at} {rounds} {blocks} {ns} {batch} {seconds}")
        return [job.next(30 + seconds)["us"] for job in jobs]

    def end(self):
        for job in self.jobs:
            job.end()
        return self.daemon.end() if self.daemon else ""


def loops(options, results, environment):
    rows, until = [], time.monotonic() + options.budget
    for parts in (2, 4):
        groups = {s: Loops(parts, s, environment) for s in ("leases", "static")}
        blocks = groups["leases"].blocks
        for us in (11, 100):
            rounds = 100_000
            if options.device == "cuda":
                probe, = Loops.rate(groups["leases"].jobs[:1], blocks, rounds, 0, 4, 0.3)
                rounds = max(1, int(rounds * us / probe))
            run = lambda jobs: Loops.rate(jobs, blocks, rounds, 1000 * us, max(4, 3000 // us),
                                          options.seconds / 4)
            samples = {setting: [] for setting in groups}
            for repeat in range(options.repeats):
                if repeat and time.monotonic() > until:
                    break
                for setting in list(groups)[::1 if repeat % 2 else -1]:
                    jobs = groups[setting].jobs
                    alone = [run([job])[0] for job in jobs]
                    samples[setting].append({"alone": alone, "beside": run(jobs)})
            record = {"part": "loops", "loops": parts, "kernel_us": us, "rounds": rounds,
                      "blocks": blocks, "samples": samples}
            ratios = {s: [[sample["alone"][i] / sample["beside"][i] for sample in samples[s]]
                          for i in range(parts)] for s in samples}
            medians = {s: [harness.median(r) for r in ratios[s]] for s in ratios}
            against = [harness.median([a["beside"][i] / b["beside"][i] for a, b in zip(
                samples["static"], samples["leases"])]) for i in range(parts)]
            record.update(ratios=ratios["leases"], medians=medians["leases"],
                          static_medians=medians["static"], against_static=against)
            results.add(record)
            together = samples["leases"][0]["beside"]
            show = lambda values: " ".join(harness.percent(v) for v in values)
            rows.append([parts, us, len(samples["leases"]),
                         " ".join(f"{t:.2f}" for t in samples["leases"][0]["alone"]),
                         " ".join(f"{t:.2f}" for t in together), show(medians["leases"]),
                         show(medians["static"]), show(against),
                         f"{sum(1e3 / t for t in together):.0f}"])
        logs = {setting: group.end() for setting, group in groups.items()}
        results.add({"part": "loops", "loops": parts, "log": logs["leases"][-500:],
                     "coverage": [brief(job.coverage) for job in groups["leases"].jobs]})
    return harness.table(rows, ["loops", "kernel us", "repeats", "alone us", "beside us",
                                "rate beside / alone", "the same without a daemon",
                                "leases / static, beside", "kernels a ms in all"])


def partition(options, results, environment):
    """Two resident jobs (evaluation/job.py) on leases of fixed halves, and on the same halves
    without vitamind: short windows in turns, in alternating order."""
    import experiment
    from processes import Job as Trainer, together  # bench/evaluation's
    names = (options.pair or ("demo+demo" if options.device == "soft" else "RN+D0.6")).split("+")
    daemon = Daemon("static:parts=2", environment, watch=False)
    reports = tempfile.TemporaryDirectory(prefix="vitamin-partition-")
    more = ["--tiny", "--device", "cpu"] if options.device != "cuda" else []

    def report(setting, index):
        return pathlib.Path(reports.name) / f"{setting}{index}.json"

    def start(setting, index):
        first = 5 * index
        words = ["--policy", f"static:units={('0-7', '8-15')[index]}"] if setting == "static" else \
            ["--daemon", "--socket", str(daemon.socket)]
        words += ["--report", str(report(setting, index))]
        return Trainer(f"{names[index]} {setting}",
                       ["train", names[index], "--cpus", f"{first}-{first + 4}", *more],
                       [*harness.vitamin("run", "--quiet", *words), "--"],
                       {**environment, "VITAMIN_CONFIG": "/dev/null"})

    running = {"static": [start("static", i) for i in range(2)], "leases": []}
    found = {setting: [] for setting in running}
    try:
        for i in range(2):  # clients get halves in the order in which they connect
            running["leases"].append(start("leases", i))
            running["leases"][i].wait_ready(120)
        for job in running["static"]:
            job.wait_ready(120)
        warm, window = 0.5 * options.seconds, 3 * options.seconds
        for repeat in range(options.repeats):
            order = list(found) if repeat % 2 == 0 else list(found)[::-1]
            for setting in order:
                answers = together([(job, {"do": "window", "seconds": warm + window})
                                    for job in running[setting]], lead=0.2, timeout=90)
                rates = [experiment.rate(a["ends"], warm, warm + window) for a in answers]
                found[setting].append(rates)
                results.add({"part": "partition", "setting": setting, "repeat": repeat,
                             "per_s": rates, "ends": [a["ends"] for a in answers]})
                print(f"partition {setting}: " + ", ".join(
                    f"{n} {r:.3f}/s" for n, r in zip(names, rates)), flush=True)
    finally:
        for job in [*running["static"], *running["leases"]]:
            job.end()
        log = daemon.end()
    rows = []
    for i, name in enumerate(names):
        ratios = [a[i] / b[i] for a, b in zip(found["leases"], found["static"]) if b[i]]
        again = [b[i] / a[i] for a, b in zip(found["static"], found["static"][1:]) if a[i]]
        covers = {s: harness.coverage(harness.read_report(report(s, i))) for s in found}
        results.add({"part": "partition", "job": name, "beside": names[1 - i], "ratios": ratios,
                     "median": harness.median(ratios), "static_again": again,
                     "coverage": {s: brief(cover) for s, cover in covers.items()},
                     "log": log[-400:]})
        rows.append([name, names[1 - i], harness.percent(harness.median(ratios)),
                     harness.percent(min(ratios)), harness.percent(max(ratios)),
                     harness.percent(harness.median(again)),
                     f"{harness.percent(min(again))} to {harness.percent(max(again))}"
                     if again else "-",
                     " | ".join(share_by_width(covers[s]) for s in ("leases", "static"))])
    reports.cleanup()
    return harness.table(rows, ["job", "beside", "leases / static partition, median", "least",
                                "most", "static against itself, median", "from to",
                                "launches by processors: leases | static"])


def share_by_width(cover):
    """Where launches ran: equal in both settings, or they cannot be compared."""
    widths = sorted((cover or {}).get("widths", []), key=lambda w: -w["launches"])
    return ", ".join(f"{w['processors']}: {harness.percent(w['launches'] / cover['launches'])}"
                     for w in widths[:3]) or "none seen"


class SmallModels:
    """PyTorch: the survivor, and victims forked by a nursery, so that they start quickly."""

    def __init__(self, environment, daemon, count, more=()):
        self.directory = tempfile.TemporaryDirectory(prefix="vitamin-victims-")
        self.environment = environment
        self.words = [sys.executable, str(HERE / "small_model.py"), *more]
        self.survivor = Resident([*self.words, "--until-told"], environment, daemon)
        self.nursery = Resident([*self.words, "--nursery", "--go", self.directory.name],
                                environment, daemon)
        for i in range(count):
            self.nursery.tell(str(100 + i))
        self.process = {}
        while len(self.process) < count:
            line = self.nursery.next(120)
            self.process[line["seed"] - 100] = line["process"]
        while self.survivor.next(60).get("name") != "step 2":
            pass

    def begin(self, i):
        (pathlib.Path(self.directory.name) / str(100 + i)).touch()

    def in_mid_step(self, i):
        """Waits until the victim has reported a few steps."""
        while True:
            line = self.nursery.next(30)
            if line["seed"] == 100 + i and line.get("name") == "step 2":
                return

    def goes_on(self):
        """Waits until the survivor has reported three more steps."""
        seen = len(self.survivor.lines())
        limit = time.monotonic() + 20
        while len(self.survivor.lines()) < seen + 3 and time.monotonic() < limit:
            time.sleep(0.002)

    def end(self):
        result = self.survivor.end()
        self.nursery.kill()
        self.directory.cleanup()
        self.lines = [line for line in result.lines if "hash" in line]
        self.hashes = [(line["name"], line["hash"]) for line in self.lines]
        return result

    def alone(self, daemon=None):
        """The survivor's steps, alone: its job."""
        steps = sum(line["name"].startswith("step") for line in self.lines)
        job = Job([*self.words, "--steps", str(steps)], self.environment, daemon)
        result = job.wait(120)
        return job, result, [(line["name"], line["hash"]) for line in result.lines
                             if "hash" in line]


class DemoPrograms:
    """The same on the software device: a demo program and occupants."""
    STEPS = "400"

    def __init__(self, environment, daemon, count):
        self.environment = environment
        self.victims = [occupant(environment, daemon) for _ in range(count)]
        self.process = {i: child_of(v.process.pid) for i, v in enumerate(self.victims)}
        self.command = [str(harness.prefix() / "bin" / "demo-train"), self.STEPS]
        self.survivor = Job(self.command, environment, daemon)
        time.sleep(0.3)

    def begin(self, i):
        self.victims[i].tell("compute 0 1000 64 2000000 4 60")

    def in_mid_step(self, _):
        time.sleep(0.05)

    def goes_on(self):
        time.sleep(0.05)

    def end(self):
        result = self.survivor.wait(120)
        for victim in self.victims:
            victim.wait(20)
        self.lines, self.hashes = [], self.hash_of(result)
        return result

    @staticmethod
    def hash_of(result):
        return [("result", line.split("hash ")[1].split(",")[0])
                for line in result.output.splitlines() if "hash " in line]

    def alone(self, daemon=None):
        job = Job(self.command, self.environment, daemon)
        result = job.wait(120)
        return job, result, self.hash_of(result)


def child_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def kill(options, results, environment):
    rows = []
    for policy in options.policies.split(","):
        daemon = Daemon(policy, environment, trace=True, watch=False)
        if options.device == "soft":
            group = DemoPrograms(environment, daemon, options.kills)
        else:
            more = ["--size", "tiny", "--device", "cpu"] if options.device == "cpu" else []
            group = SmallModels(environment, daemon, options.kills, more)
        killed, draw = [], random.Random(7)
        for i in range(options.kills):
            group.begin(i)
            group.in_mid_step(i)
            time.sleep(draw.uniform(0, 0.02))  # anywhere in a step
            killed.append(time.monotonic_ns())
            os.kill(group.process[i], signal.SIGKILL)
            group.goes_on()
        result = group.end()
        counters, log = daemon.counters(), daemon.end()
        # Alone: natively, and under a vitamind of its own for the coverage.
        _, native, reference = group.alone()
        other = Daemon(policy, environment, watch=False)
        job, leased, again = group.alone(other)
        other.end()
        decided = daemon.decisions.reuse() if daemon.decisions else []
        # The first to die behind each kill.
        gone = [g for g in (min((d for d in decided if d["dying"] >= t), default=None,
                                key=lambda d: d["dying"]) for t in killed) if g and g["forget"]]
        ms = lambda a, b: [(g[b] - g[a]) / 1e6 for g in gone if g["units"] and g[b]]
        closed = [(g["dying"] - max(t for t in killed if t <= g["dying"])) / 1e6 for g in gone]
        again_ms, all_ms = ms("forget", "again"), ms("forget", "all_again")
        equal = sum(a == b for a, b in zip(reference, group.hashes))
        mine, theirs = group.survivor.coverage, job.coverage
        for cover in filter(None, (mine, theirs)):
            cover["libraries_bound"] = {l["name"]: [l["seen"], l["bound"]]
                                        for l in cover["libraries"]}
        same = mine and theirs and all(mine[k] == theirs[k] for k in (
            "launches", "bound", "not_bound", "libraries_bound"))
        ends = [line["at"] for line in group.lines]
        results.add({
            "part": "kill", "policy": policy, "kills": len(killed), "ok": result.ok,
            "why": [result.why(), native.why(), leased.why()], "equal": equal,
            "of": len(reference), "told": len(group.hashes),
            "leased_alone_equal": again == reference,
            "coverage": brief(mine), "coverage_alone": brief(theirs), "coverage_same": bool(same),
            "gates_closed_ms": closed, "gone": gone, "killed_ns": killed,
            "leased_again_ms": again_ms, "all_leased_again_ms": all_ms,
            "longest_step_s": max((b - a for a, b in zip(ends, ends[1:])), default=None),
            "daemon": counters, "log": log[-1500:], "said": result.errors[-600:]})
        show = lambda v: f"{percentile(v, 0.5):.1f} / {max(v):.1f} of {len(v)}" if v else "-"
        rows.append([policy, len(killed), f"{equal} of {len(reference)}",
                     ("the same" if same else "DIFFERS") + " " + harness.percent(
                         mine and mine["bound_share"]), show(closed), show(ms("dying", "forget")),
                     show(again_ms), show(all_ms),
                     (result.why() or native.why() or leased.why())[:60]])
    return harness.table(rows, ["policy", "kills", "survivor equal", "coverage",
                                "kill to gates closed ms p50/max", "to process gone",
                                "gone to first of its processors leased", "to all of them",
                                "problem"])


PARTS = {"jobs": jobs, "loops": loops, "partition": partition, "kill": kill,
         "reclaim": reclaim.run}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--policies", default="random,throughput")
    parser.add_argument("--sets", default="qwen+resnet,qwen+resnet+qwen+resnet")
    parser.add_argument("--steps", type=int, default=8, help="jobs: of each")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=4, help="loops, partition")
    parser.add_argument("--seconds", type=float, default=1.0, help="scale of the windows")
    parser.add_argument("--budget", type=float, default=45, help="loops: seconds")
    parser.add_argument("--pair", help="partition: two of evaluation/training.py (RN+D0.6)")
    parser.add_argument("--timeout", type=float, default=150)
    parser.add_argument("--device", choices=["cuda", "soft", "cpu"], default="cuda",
                        help="soft: the software device; cpu: PyTorch without a GPU")
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    options.sets = [names.split("+") for names in options.sets.split(",")]
    tables = []
    with Surroundings(options.device) as surroundings:
        print(surroundings.words, flush=True)
        for part in options.parts:
            begin = time.monotonic()
            results = harness.Results(options.out, f"processes_{part}")
            try:
                tables.append(PARTS[part](options, results, surroundings.environment))
            except Exception as error:  # the other parts are still wanted
                tables.append(f"{part}: {type(error).__name__}: {error}")
            print(f"{tables[-1]}\n{part}: {time.monotonic() - begin:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
