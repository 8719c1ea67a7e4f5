# SPDX-License-Identifier: Apache-2.0
"""An experiment: its cells, the processes that they need, and the order in which they run.

An experiment names its cells (subject x mode x repeat), starts the processes of as many settings as
fit into the memory at once, and runs the cells in ABBA order: forward in one repeat, backward in
the next. What lies in the results already is not run again.
"""
import dataclasses
import itertools
import json
import threading
import time

import harness
import modes
from processes import Job, JobFailed, Ranks, counted, counts

# GiB of device memory: what a job keeps between windows (its weights and the optimizer's states),
# and what it needs more while it runs. The sums are the most that an H200 has seen (`most_mib` of
# the records of E0 and E3) and a little more; those of -big are estimates.
MEMORY = {"D0.6": (4.5, 15.5), "D1.7": (11.5, 19.5), "D0.6-big": (4.5, 64),
          "D1.7-big": (11.5, 87), "L4": (9, 15), "L8": (17, 18), "Q8": (3.5, 18.5),
          "RN": (1, 6), "RN-big": (1, 27), "BE": (2.5, 6.5), "BE-big": (2.5, 15.5),
          "F8": (2, 20), "I-L8": (15.5, 0.5), "I-J6": (12, 0.5), "demo": (0, 0),
          "qwen-train": (9, 13), "resnet-train": (3, 6), "all": (2, 2)}
CONTEXT = 1.0  # GiB of a process besides: its context, the pool's entries
# NVLink multicast is left off; one algorithm, so that what is compared is the sharing.
NCCL = {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo"}
PACKAGES = {"RN": ("torchvision",), "RN-big": ("torchvision",), "resnet-train": ("torchvision",),
            "I-L8": (), "I-J6": (), "demo": (), "all": (),
            **dict.fromkeys(("L4", "L8", "F8"), ("transformers", "peft"))}


def packages(name):
    return () if name == "demo" else ("torch", "numpy", *PACKAGES.get(name, ("transformers",)))


@dataclasses.dataclass(frozen=True)
class Spec:
    role: str
    name: str
    class_: str = "batch"  # of workload (modes.CLASSES)
    more: tuple = ()  # further words
    gib: tuple = (0, 0)  # of each GPU
    ranks: int = 1  # processes, each on a GPU of its own


def spec(role, name, class_="batch", more=(), gib=None, ranks=1):
    return Spec(role, name, class_, tuple(map(str, more)), gib or MEMORY[name], ranks)


class OutOfTime(Exception):
    pass


class Session:
    """One command: its clock, results, surroundings and jobs."""

    def __init__(self, options, results, old, directory, surroundings, free_gib):
        self.options, self.results, self.directory = options, results, directory
        self.surroundings, self.free_gib, self.old = surroundings, free_gib, old
        self.begin = time.monotonic()
        # Unique, so that results of several machines can be put into one file.
        self.number = max([time.time_ns() // 1_000_000, *(1 + r.get("session", 0) for r in old)])
        self.done = {self._key(r) for r in old
                     if r.get("ok") and "cell" in r and not r.get("void")}
        self.cells, self.ended, self.started = 0, 0, 0
        self.clocks = lambda: []

    @staticmethod
    def _key(record):
        return json.dumps([record["experiment"], record["subject"], record["cell"],
                           record["repeat"]])

    def is_done(self, experiment, subject, mode, repeat):
        return self._key({"experiment": experiment, "subject": subject, "cell": mode,
                          "repeat": repeat}) in self.done

    def elapsed(self):
        return time.monotonic() - self.begin

    def allow(self, seconds):
        harness.check_interruption()
        if self.elapsed() + seconds > self.options.budget:
            raise OutOfTime

    def add(self, experiment, subject, mode, repeat, record):
        record = {"experiment": experiment, "subject": subject, "cell": mode, "repeat": repeat,
                  "session": self.number, **record}
        self.results.add(record)
        self.ended += 1

    def note_clocks(self, experiment, subject):
        """Before the cells of a subject and behind them."""
        if seen := self.clocks():
            self.results.add({"clocks": seen, "experiment": experiment, "of": subject,
                              "session": self.number, "at_s": round(self.elapsed(), 1)})

    def say(self, text, left=None):
        eta = "" if left is None else f", about {left:.0f} s left"
        print(f"[{self.elapsed():4.0f} s, {self.ended} of {max(self.cells, self.ended)}{eta}] "
              f"{text}", flush=True)

    def start(self, setting, specs):
        """Processes of one setting; not yet ready."""
        jobs = []
        link = f"{self.directory}/{setting.replace(':', '-').replace('/', '-')}"
        self.started += 1
        try:
            for index, s in enumerate(specs):
                urgent = [x.class_ in modes.URGENT for x in specs]
                preferred = urgent[index] or index == 0 and not any(urgent)
                words, environment = self.surroundings.place(setting, index, s.class_, preferred)
                arguments = [s.role, s.name, *s.more]
                if s.role in ("prefill", "decode"):
                    arguments += ["--link", link]
                if setting.startswith("green"):
                    arguments += ["--green", setting]
                if self.options.tiny:
                    arguments.append("--tiny")
                if self.options.device != "soft":
                    arguments += ["--device", self.options.device]
                    if self.options.nice:
                        arguments += ["--nice", self.options.nice]
                ranks = []
                jobs.append(ranks)
                for rank in range(s.ranks):
                    ranks.append(self._process(setting, index * s.ranks + rank, s, [
                        *arguments, *(["--rank", rank, "--world", s.ranks, "--link",
                                       f"{link}-{index}-{self.started}"] if s.ranks > 1 else [])],
                        words, environment | (NCCL if s.ranks > 1 else {})))
        except BaseException:
            end(itertools.chain.from_iterable(jobs))
            raise
        jobs = [Ranks(ranks) if len(ranks) > 1 else ranks[0] for ranks in jobs]
        for job, s in zip(jobs, specs):
            job.spec = s.name
        return jobs

    def _process(self, setting, place, s, arguments, words, environment):
        pin = self.options.pin
        if self.options.device != "soft" and pin:
            arguments += ["--cpus", f"{pin * place}-{pin * place + pin - 1}"]
        return Job(f"{s.name} ({s.role}, {setting})", arguments, words, environment)


def end(jobs):
    threads = [threading.Thread(target=job.end) for job in jobs]
    [t.start() for t in threads]
    [t.join() for t in threads]


def needs(specs):
    """GiB: kept by the processes of one setting, a context each included; more while they run."""
    return (sum(s.gib[0] + CONTEXT for s in specs), sum(s.gib[1] for s in specs))


def batches(settings, specs, free):
    """Settings that fit into the memory together; the first setting stays through all."""
    kept, more = needs(specs)
    together_ = max(1, int((free - more) // kept)) if kept else len(settings)
    if free < kept + more:
        raise harness.Refusal(
            f"too little memory: {' and '.join(s.name for s in specs)} need about "
            f"{kept + more:.0f} GiB, {free:.0f} GiB are free")
    first, rest = settings[0], settings[1:]
    if together_ < 2:
        return [[s] for s in settings]
    size = together_ - 1
    return [[first, *rest[i:i + size]] for i in range(0, len(rest), size)] or [[first]]


def waves(settings, held, specs, free):
    """Settings whose processes are built at once, beside `held` settings that wait: a job needs its
    most while it is built."""
    kept, more = needs(specs)
    while settings:
        size = max(1, int((free - kept * held) // (kept + more))) if kept + more else len(settings)
        yield settings[:size]
        settings, held = settings[size:], held + size


class Experiment:
    name = ""
    lead = 0.5
    RESTARTS = 3  # of a setting's jobs, in a run
    TRIES = 2  # of a mode's cells that may fail before it is not tried again
    keep = False  # the processes stay for the next run(), of the same specs, until close()

    def __init__(self, session):
        self.session, self.options = session, session.options
        # By setting: its jobs; why it cannot be run; why its jobs have failed in a cell and are to
        # be started again; how often that was done. By mode: why its cells have failed.
        self.live, self.broken, self.lost, self.again, self.failed = {}, {}, {}, {}, {}

    def close(self):
        end(list(itertools.chain.from_iterable(self.live.values())))
        self.live.clear()

    def modes(self):
        return [modes.mode(name) for name in self.options.modes]

    def prepare(self, setting, jobs):
        """Once for each run, with jobs that are ready."""

    def cell(self, jobs, specs, mode, repeat):
        """One measurement: a record."""
        raise NotImplementedError

    def seconds(self, mode, specs):
        """An estimate of one cell's."""
        jobs = len(specs) if mode.alone else 1
        return jobs * (self.options.warm_up + self.options.window + self.lead + 0.5)

    def run(self, subject, specs):
        s, o = self.session, self.options
        chosen = self.modes()
        repeats = range(o.repeats)
        todo = [(m, r) for m in chosen for r in repeats
                if not s.is_done(self.name, subject, m.name, r)]
        if all(m.name == "exclusive" for m, _ in todo):
            if todo == [] or len(todo) < o.repeats:
                s.say(f"{self.name} {subject}: nothing left to run")
                return
        # Ratios are formed within one session: exclusive is measured again with whatever is left.
        wanted = {(m.name, r) for m, r in todo}
        for m in chosen:
            if m.name == "exclusive":
                wanted |= {(m.name, r) for r in repeats}
        s.cells += len(wanted)
        settings = list(dict.fromkeys(m.setting for m in chosen
                                      if any((m.name, r) in wanted for r in repeats)))
        live, broken = self.live, self.broken
        self.lost, self.again, self.failed = {}, {}, {}
        work, prepared = batches(settings, specs, s.free_gib), False
        try:
            while work:
                batch = work.pop(0)
                for gone in [x for x in live if x not in batch]:
                    end(live.pop(gone))
                later = self._start(batch, specs, live, broken, subject)
                if later:  # there was less room than was thought
                    work.insert(0, [batch[0], *later])
                prepared = prepared or self._prepare(live, broken)
                if batch[0] in live:
                    try:
                        self.settle(live[batch[0]])
                    except JobFailed:
                        pass  # the next cell says so
                s.note_clocks(self.name, subject)
                mine = [m for m in chosen if m.setting in batch and m.setting not in later]
                for repeat in repeats:
                    for m in mine if repeat % 2 == 0 else reversed(mine):
                        if (m.name, repeat) not in wanted:
                            continue
                        wanted.discard((m.name, repeat))
                        self._one(subject, specs, live, broken, m, repeat)
        except BaseException:
            self.close()
            raise
        s.note_clocks(self.name, subject)
        if not self.keep:
            self.close()

    def _prepare(self, live, broken):
        for setting in list(live):
            try:
                self.prepare(setting, live[setting])
                return True
            except JobFailed as error:
                broken[setting] = str(error)
                end(live.pop(setting))
                self.session.say(f"{setting}: {error}")
        return False

    def _start(self, batch, specs, live, broken, subject):
        """Builds what is not there yet; answers settings that found no room beside others."""
        s = self.session
        s.allow(self.options.start_s)
        begin, fresh = s.elapsed(), [x for x in batch if x not in live and x not in broken]
        later = []
        for wave in waves(fresh, len(live), specs, s.free_gib):
            for setting in wave:
                try:
                    live[setting] = s.start(setting, specs)
                except (harness.Refusal, OSError) as error:
                    broken[setting] = str(error)
                    s.say(f"{setting}: {error}")
            for setting in wave:
                try:
                    for job in live.get(setting, []):
                        job.wait_ready(self.options.start_timeout)
                except JobFailed as error:
                    end(live.pop(setting))
                    if "out of memory" in str(error) and set(live) - {batch[0]}:
                        later.append(setting)
                    else:
                        broken[setting] = str(error)
                    s.say(f"{setting}: {error}")
        if fresh:
            ready = {x: [{"name": j.name, **j.ready} for j in live[x]] for x in fresh if x in live}
            s.results.add({"started": subject, "experiment": self.name, "session": s.number,
                           "seconds": round(s.elapsed() - begin, 1), "jobs": ready})
            s.say(f"{self.name} {subject}: processes of {', '.join(ready) or 'nothing'} ready "
                  f"after {s.elapsed() - begin:.0f} s")
        return later

    def _start_again(self, mode, specs, subject):
        """The jobs of a setting in which one has failed: the cells of its other modes are not lost.
        Under the policy of this mode, which is not the one that they failed under."""
        s, setting = self.session, mode.setting
        why = self.lost.get(setting, "")
        if self.again.get(setting, 0) >= self.RESTARTS:
            raise JobFailed(f"its jobs were started again {self.RESTARTS} times: {why}")
        if s.elapsed() + self.options.start_s + self.seconds(mode, specs) > self.options.budget:
            raise JobFailed(f"no time to start its jobs again: {why}")
        self.again[setting] = self.again.get(setting, 0) + 1
        s.say(f"{subject}: the jobs of '{setting}' are started again ({why})")
        self._start([setting], specs, self.live, self.broken, subject)
        if setting not in self.live:
            raise JobFailed(self.broken.get(setting, "no room to start its jobs again: " + why))
        self.settle(self.live[setting])

    def settle(self, jobs):
        """A machine that has just built many processes is slow for a while: the first cell of all
        would not be like the last. Nothing is kept of this."""

    def _one(self, subject, specs, live, broken, mode, repeat):
        s = self.session
        seconds = self.seconds(mode, specs)
        s.allow(seconds)
        try:
            if mode.setting in broken:
                raise JobFailed(broken[mode.setting])
            if len(tries := self.failed.get(mode.name, [])) >= self.TRIES:
                raise harness.Refusal(f"not tried again after {len(tries)} times: {tries[-1]}")
            s.surroundings.use(mode)
            if mode.setting not in live:
                self._start_again(mode, specs, subject)
            jobs = live[mode.setting]
            before, begin = [counts(job) for job in jobs], time.monotonic()
            with s.surroundings.watch(mode, self.seconds(mode, specs)) as watch:
                record = {"ok": True, **self.cell(jobs, specs, mode, repeat)}
            took = time.monotonic() - begin
            if any(before):
                record["launches"] = [b and counted(b, counts(job), took)
                                      for job, b in zip(jobs, before)]
            if watch:
                record["daemon"] = watch.record([j.process.pid for j in jobs])
            record["words"] = record.get("words", "") + binding(record)
        except (JobFailed, harness.Refusal) as error:
            record = {"ok": False, "why": str(error)}
            # A job that has failed once is not trusted again; a refusal says nothing of it.
            if isinstance(error, JobFailed) and mode.setting in live:
                end(live.pop(mode.setting))
                self.lost[mode.setting] = str(error)
                self.failed.setdefault(mode.name, []).append(str(error))
        s.add(self.name, subject, mode.name, repeat, record)
        left = (s.cells - s.ended) * seconds
        s.say(f"{subject} {mode.name} {repeat}: " + (record.pop("words", "")
                                                     if record["ok"] else record["why"]), left)


def bindings(record):
    """Of a cell with Vitamin, a second: launches, rebinds (launches on another partition than
    the one before in their stream), moves of leases of a job; and the share of launches on each
    number of processors. None where nothing was counted."""
    told = [c for c in record.get("launches") or [] if c]
    if not told:
        return None
    seconds, widths = told[0]["seconds"], {}
    for c in told:
        for width, launches in c["widths"].items():
            widths[int(width)] = widths.get(int(width), 0) + launches
    every, total = lambda key: sum(c[key] for c in told) / seconds, sum(widths.values())
    of_daemon = (record.get("daemon") or {}).get("counted") or {}
    per_job = lambda key: of_daemon.get(key, 0) / seconds / len(told)
    return {"launches": every("seen"), "rebinds": every("moved"), "moves": per_job("moves"),
            "grants": per_job("grants"),
            "widths": {w: n / total for w, n in sorted(widths.items())} if total else {}}


def binding(record):
    b = bindings(record)
    if b is None:
        return ""
    widths = " ".join(f"{w}: {100 * share:.0f} %" for w, share in b["widths"].items()
                      if share >= 0.005)
    kind = "" if b["moves"] >= 100 else " (static)"
    return (f"; {b['launches']:.0f} launches/s, {b['rebinds']:.0f} rebinds/s, {b['moves']:.1f} "
            f"lease moves/s a job{kind}, {b['grants']:.0f} grants/s, widths {widths or '-'}")


def rate(ends, begin, until):
    """Steps a second between the first and the last end within [begin, until]."""
    inside = [t for t in ends if begin <= t <= until]
    if len(inside) >= 2:
        return (len(inside) - 1) / (inside[-1] - inside[0])
    return len(inside) / (until - begin)
