# SPDX-License-Identifier: Apache-2.0
"""One cell: its processes, which arm runs now, and the blocks that are measured.

Processes of all groups wait beside each other. A job that an arm does not need is paused: it ends
its step, waits for the GPU and answers its marks. A block begins when everything that has to be
paused is paused, vitamind has read its policy, everything that has to run runs, and --settle has
passed where the policy was changed: a submitted step ends on the SMs that it was bound to.
"""

import os
import time

import arms
import progress
from experiment import end
from processes import Job, JobFailed

PAUSE_TIMEOUT = 60  # seconds: a step of the slowest job, many times over


def now():
    return time.monotonic()


def stolen_s():
    """Seconds of all processors that the host gave to other virtual machines, so far."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


class Cell:
    def __init__(self, name, specs, options, surroundings, results, directory):
        """specs: experiment.JobSpec of each job."""
        self.name, self.specs, self.options = name, specs, options
        self.surroundings, self.results = surroundings, results
        self.directory = directory
        self.jobs = {}  # by group, the processes in the order of specs
        self.clients = {}  # by index, the number of the job's client in vitamind's status
        self.running, self.runs = set(), {}  # (group, index); of each its runs
        self.policy, self.begin = None, now()

    # ------------------------------------------------------------------------------ processes

    def start(self, groups):
        """Builds the processes of all groups at once, and waits for them."""
        begin = now()
        for group in groups:
            urgent = [s.class_ in ("latency", "tokens") for s in self.specs]
            jobs = self.jobs[group] = []
            for index, spec in enumerate(self.specs):
                preferred = urgent[index] or index == 0 and not any(urgent)
                words, environment = arms.place(self.surroundings, group, index, spec.class_,
                                                preferred)
                jobs.append(Job(f"{spec.kind} {spec.name} ({group})",
                                self._arguments(spec, index), words, environment,
                                program=spec.program()))
        for jobs in self.jobs.values():
            for job in jobs:
                job.wait_ready(self.options.start_timeout)
        self.add({"started": {g: [j.ready for j in jobs] for g, jobs in self.jobs.items()},
                  "jobs": [[s.kind, s.name, s.class_] for s in self.specs],
                  "seconds": round(now() - begin, 1)})
        self.say(f"processes of {', '.join(groups)} ready after {now() - begin:.0f} s")
        if "ours" in groups:
            self._find_clients()

    def _arguments(self, spec, index):
        o, words = self.options, [spec.kind, spec.name]
        if o.tiny:
            words.append("--tiny")
        if o.trim:
            words.append("--trim")
        if o.device == "cpu":
            words += ["--device", "cpu"]
        if o.device != "soft":
            words += ["--nice", o.nice]
            if o.pin:
                words += ["--cpus", f"{o.pin * index}-{o.pin * index + o.pin - 1}"]
        return words

    def _find_clients(self):
        status = self.surroundings.daemon.status()
        by_process = {c["process"]: c["client"] for c in status.get("clients", [])}
        self.clients = {i: by_process.get(j.ready["process"])
                        for i, j in enumerate(self.jobs["ours"])}
        if self.options.device == "cuda" and None in self.clients.values():
            raise JobFailed(f"vitamind does not know every job: {self.clients}")
        self.add({"clients": self.clients, "devices": [
            {k: d.get(k) for k in ("name", "processors", "policy")}
            for d in status.get("devices", [])]})

    def close(self):
        for jobs in self.jobs.values():
            end(jobs)
        self.jobs = {}

    # --------------------------------------------------------------------------------- arms

    def add(self, record):
        self.results.add({"cell": self.name, **record})

    def say(self, text):
        print(f"[{now() - self.begin:5.1f} s] {self.name}: {text}", flush=True)

    def pause(self, which):
        """Pauses these, all at once, and keeps their marks."""
        which = [x for x in which if x in self.running]
        for group, index in which:
            self.jobs[group][index].tell(do="pause")
        for group, index in which:
            answer = self.jobs[group][index].answer(PAUSE_TIMEOUT)
            self.running.discard((group, index))
            if answer["marks"]:
                self.runs.setdefault((group, index), []).append(answer["marks"])
                self.add({"run": [group, index], **answer["marks"]})

    def resume(self, which):
        which = [x for x in which if x not in self.running]
        for group, index in which:
            self.jobs[group][index].tell(do="run")
        for group, index in which:
            self.jobs[group][index].answer(PAUSE_TIMEOUT)
            self.running.add((group, index))

    def use(self, arm, without=()):
        """Until exactly this arm's jobs run, `without` some. Seconds that the policy took."""
        wanted = {(arm.group, i) for i in range(len(self.specs))
                  if arm.only in (-1, i) and i not in without}
        self.pause(self.running - wanted)
        took = self.set_policy(arm) if arm.group == "ours" else 0.0
        self.resume(sorted(wanted - self.running))
        return took

    def set_policy(self, arm):
        policy = arms.policy_of(arm, self.library(), [self.clients.get(i)
                                                      for i in range(len(self.specs))])
        if policy == self.policy:
            return 0.0
        self.policy = policy
        return self.surroundings.daemon.switch(policy)

    def library(self):
        if not hasattr(self, "_library"):
            self._library = arms.fixed_parts_library(self.directory)
        return self._library

    def rest(self):
        self.pause(list(self.running))

    # ------------------------------------------------------------------------------- blocks

    def block(self, arm, seconds, **more):
        """One block; the record of when it was."""
        switch, stolen = now(), stolen_s()
        took = self.use(arm)
        if took:  # steps that were submitted before end where they were bound to
            time.sleep(self.options.settle)
        elif self.options.trim:  # memory is allocated again in the first step
            time.sleep(2 * self.options.settle)
        begin = now()
        time.sleep(seconds)
        record = {"block": arm.name, "switch": round(switch, 6), "begin": round(begin, 6),
                  "end": round(now(), 6), "policy_s": round(took, 6),
                  "stolen_s": round(stolen_s() - stolen, 3), **more}
        self.add(record)
        return record


class Rounds:
    """Blocks of every arm by round, and what they say so far."""

    def __init__(self, runs, blocks, jobs, trim=0.2):
        """runs: by (group, index); blocks: records; `trim`: the share of a block's beginning that
        does not count."""
        self.blocks, self.jobs, self.trim = blocks, jobs, trim
        self.timelines = timelines(runs, blocks)

    def window(self, block):
        return block["begin"] + self.trim * (block["end"] - block["begin"]), block["end"]

    def speed(self, block, arm, index):
        if arm.only not in (-1, index):
            return 0.0
        line = self.timelines.get((arm.group, index))
        return line and line.speed(*self.window(block))

    def table(self):
        """By arm's name, in the order of names: of each job its speeds by round; rounds that lack
        a block of an arm, or a speed, are left out of all."""
        by_round = {}
        for block in self.blocks:
            by_round.setdefault(block["round"], {})[block["block"]] = block
        names = sorted({b["block"] for b in self.blocks})
        table = {name: [[] for _ in range(self.jobs)] for name in names}
        for number in sorted(by_round):
            row = {name: [self.speed(by_round[number][name], arms.arm(name, self.jobs), i)
                          for i in range(self.jobs)]
                   for name in names if name in by_round[number]}
            if len(row) < len(names) or any(s is None for speeds in row.values() for s in speeds):
                continue
            for name, speeds in row.items():
                for i, speed in enumerate(speeds):
                    table[name][i].append(speed)
        return table


def alone_windows(blocks, jobs):
    """(group, index): windows in which the job ran alone."""
    found = {}
    for block in blocks:
        arm = arms.arm(block["block"], jobs)
        if arm.only >= 0:
            found.setdefault((arm.group, arm.only), []).append((block["begin"], block["end"]))
    return found


def clipped(run, windows):
    """The marks of a run inside windows, as runs: whole steps are looked for in each."""
    pieces, at, count = [], run["begin"], run["first"]
    for begin, until in windows:
        piece = None
        t, n = at, count
        for us in run["us"]:
            t, n = t + us / 1e6, n + 1
            if begin <= t <= until:
                if piece is None:
                    piece = {"begin": t, "first": n, "groups": run["groups"], "us": []}
                else:
                    piece["us"].append(us)
        if piece:
            pieces.append(piece)
    return pieces


def timelines(runs, blocks):
    """Of each (group, index), with the weights of its segments alone where they were measured (in
    its own group, else in another)."""
    jobs = 1 + max((i for _, i in runs), default=0)
    alone = alone_windows(blocks, jobs)
    shares = {}
    for key, windows in alone.items():
        pieces = [p for run in runs.get(key, []) for p in clipped(run, windows)]
        if found := progress.weights(pieces):
            shares[key] = found
    of = lambda group, index: shares.get((group, index)) or next(
        (s for (_, i), s in shares.items() if i == index), None)
    return {key: progress.Timeline(some, of(*key)) for key, some in runs.items()}
