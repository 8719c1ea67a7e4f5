# SPDX-License-Identifier: Apache-2.0
"""The experiments that colocate jobs: E0, E3, E4, E5, E8's decoding, E9's training.

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
import load
import modes
from processes import Job, JobFailed, Ranks, counted, counts, together

# GiB of device memory: what a job keeps between windows (its weights and the optimizer's states),
# and what it needs more while it runs. The sums are the most that an H200 has seen (`most_mib` of
# the records of E0 and E3) and a little more; those of -big are estimates.
MEMORY = {"D0.6": (4.5, 15.5), "D1.7": (11.5, 19.5), "D0.6-big": (4.5, 64),
          "D1.7-big": (11.5, 87), "L4": (9, 15), "L8": (17, 18), "Q8": (3.5, 18.5),
          "RN": (1, 6), "RN-big": (1, 27), "BE": (2.5, 6.5), "BE-big": (2.5, 15.5),
          "F8": (2, 20), "I-L8": (15.5, 0.5), "I-J6": (12, 0.5), "demo": (0, 0),
          "qwen-train": (9, 13), "resnet-train": (3, 6), "all": (2, 2)}
CONTEXT = 1.0  # GiB of a process besides: its context, the pool's entries
TRAINING_PAIRS = {"W1": ("D0.6", "D0.6"), "W2": ("D0.6", "D1.7"), "W3": ("L4", "L4"),
                  "W4": ("D1.7", "L8"), "W5": ("Q8", "D0.6"), "W6": ("Q8", "Q8"),
                  "W1-big": ("D0.6-big", "D0.6-big"), "RN+D0.6": ("RN", "D0.6"),
                  # The GPU is busy with either alone: less depends on the host.
                  "BE+D1.7": ("BE", "D1.7"), "RN-big+BE-big": ("RN-big", "BE-big"),
                  # Two ranks each, on two GPUs.
                  "W7": ("D1.7", "D0.6"), "W8": ("F8", "D1.7")}
DISTRIBUTED = ("W7", "W8")
# NVLink multicast is left off; one algorithm, so that what is compared is the sharing.
NCCL = {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo"}
MIXED_PAIRS = {"M1": ("RN", "I-L8"), "M2": ("RN", "I-J6"), "M3": ("BE", "I-L8"),
               "M4": ("BE", "I-J6")}
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
    """Of a cell with Vitamin, a second: launches, rebinds (launches that ran on another entry than
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


class Training(Experiment):
    """E3: two closed loops of training."""
    name = "E3"

    def settle(self, jobs):
        seconds = self.options.settle
        if seconds:
            for job in jobs:
                together([(job, {"do": "window", "seconds": seconds})], timeout=60 + 3 * seconds)

    def cell(self, jobs, specs, mode, repeat):
        o = self.options
        command = {"do": "window", "seconds": o.warm_up + o.window}
        wait = 60 + 3 * (o.warm_up + o.window)
        if mode.alone:
            alike = specs[0] == specs[-1]  # two of one kind: one is measured
            answers = [together([(job, command)], timeout=wait)[0]
                       for job in (jobs[:1] if alike else jobs)]
            answers = answers * len(jobs) if alike else answers
        else:
            answers = together([(job, command) for job in jobs], timeout=wait)
        found = []
        for s, answer in zip(specs, answers):
            found.append({"name": s.name, "most_mib": answer["most_mib"],
                          "per_s": rate(answer["ends"], o.warm_up, o.warm_up + o.window),
                          "ends": answer["ends"]})
        return {"jobs": found, "window_s": o.window, "warm_up_s": o.warm_up,
                "words": ", ".join(f"{f['name']} {f['per_s']:.3f}/s" for f in found)}


class Mixed(Experiment):
    """E4: training in a closed loop beside inference in an open one."""
    name = "E4"

    def settle(self, jobs):
        seconds = self.options.settle
        if seconds:
            together([(jobs[0], {"do": "window", "seconds": seconds})], timeout=60 + 3 * seconds)

    def prepare(self, setting, jobs):
        count = 20 if self.options.device == "cuda" else 3
        measured = jobs[1].ask(120, do="measure", count=count)
        self.request_s = sum(measured["seconds"]) / count
        self.session.results.add({"experiment": "E4", "session": self.session.number,
                                  "measured": measured, "request_s": self.request_s})
        self.session.say(f"a request alone takes {1e3 * self.request_s:.1f} ms "
                         f"(prefill {1e3 * load.percentile(measured['prefill'], 0.5):.1f} ms, a "
                         f"decode step {1e3 * load.percentile(measured['decode_step'], 0.5):.2f})")

    def cell(self, jobs, specs, mode, repeat):
        o = self.options
        seconds, per_s = o.warm_up + o.window, o.rho / self.request_s
        if o.arrivals == "poisson":
            arrivals = load.poisson(per_s, seconds, seed=100 + repeat)
            cut = {"arrivals": "poisson", "seed": 100 + repeat}
        else:
            requests, cut = load.Trace(o.arrivals).requests(per_s, seconds, 100 + repeat, 1, 1)
            arrivals = [r["at"] for r in requests]
        train = (jobs[0], {"do": "window", "seconds": seconds})
        infer = (jobs[1], {"do": "serve", "arrivals": arrivals, "seconds": seconds,
                           "drain": o.drain})
        wait = 60 + 3 * seconds + o.drain
        if mode.alone:
            a, b = (together([one], timeout=wait)[0] for one in (train, infer))
        else:
            a, b = together([train, infer], timeout=wait)
        timed = [r for r in b["requests"] if r[0] >= o.warm_up]
        latency = [r[3] - r[0] for r in timed if r[3] is not None]
        record = {
            "train": {"name": specs[0].name,
                      "per_s": rate(a["ends"], o.warm_up, seconds), "ends": a["ends"]},
            "infer": {"name": specs[1].name, "asked": len(timed), "answered": len(latency),
                      "p50": load.percentile(latency, 0.5), "p95": load.percentile(latency, 0.95),
                      "p99": load.percentile(latency, 0.99),
                      "p99_interval": load.percentile_interval(latency, 0.99),
                      "requests": b["requests"]},
            "rho": o.rho, "rate": per_s, "request_s": self.request_s, "window_s": o.window, **cut}
        ms = lambda v: "-" if v is None else f"{1e3 * v:.1f}"
        return {**record, "words": f"{specs[0].name} {record['train']['per_s']:.2f}/s, latency "
                f"p50 {ms(record['infer']['p50'])} p95 {ms(record['infer']['p95'])} p99 "
                f"{ms(record['infer']['p99'])} ms of {len(latency)}"}


class Serving(Experiment):
    """E5: prefill and decode of one model as two processes, replaying a trace."""
    name = "E5"
    keep = True  # for the next trace
    WANTED = (0.05, 0.5)  # of requests whose TPOT throughput violates

    def use(self, trace):
        self.trace, self.load = load.Trace(trace), self.options.load
        self.scale = f"{self.options.slo_scale:g}"  # as load.serving names it

    def prepare(self, setting, jobs):
        o, s = self.options, self.session
        prompt, output = self.trace.means(o.prompt, o.output)
        rows = min(16, o.slots)
        prefill = jobs[0].ask(120, do="measure", count=10 if o.device == "cuda" else 2,
                              tokens=round(prompt))["seconds"]
        decode = jobs[1].ask(120, do="measure", count=20 if o.device == "cuda" else 2, rows=rows,
                             position=round(prompt + output / 2))["seconds"]
        prefill, step = load.percentile(prefill, 0.5), load.percentile(decode, 0.5)
        self.capacity = 1 / (prefill + output * step / rows)
        tried = []
        if self.load is None:
            self.load, tried = self.calibrate()
        self.rate = self.load * self.capacity
        s.results.add({
            "experiment": "E5", "session": s.number, "trace": self.trace.name,
            "prefill_s": prefill, "decode_step_s": step, "rows": rows, "mean_prompt": prompt,
            "mean_output": output, "capacity": self.capacity, "rate": self.rate,
            "load": self.load, "slo_scale": self.options.slo_scale, "calibrated": tried})
        s.say(f"prefill of {prompt:.0f} tokens {1e3 * prefill:.1f} ms, a decode step of "
              f"{rows} rows {1e3 * step:.2f} ms: {self.capacity:.2f} requests/s in "
              f"turns, {self.rate:.2f} asked")

    def calibrate(self):
        """The load at which throughput violates TPOT often enough to tell policies apart: by
        windows of their own, which are in no table. What an earlier session found for the trace
        holds on."""
        s = self.session
        for old in s.old:
            if old.get("trace") == self.trace.name and old.get("calibrated") \
                    and old.get("slo_scale", 1) == self.options.slo_scale:
                return old["load"], old["calibrated"]
        mode = next((m for m in self.modes() if m.name == "ours" and m.setting in self.live),
                    next(m for m in self.modes() if m.setting in self.live))
        jobs, at, low, high, tried = self.live[mode.setting], 0.9, None, None, []
        s.surroundings.use(mode)
        for _ in range(5):
            figures = self.serve(jobs, at * self.capacity, self.options.calibrate_s, 900)[0]
            share = figures["scales"][self.scale]["tpot"] or 0.0
            tried.append([round(at, 3), share])
            s.say(f"{self.trace.name}: at load {at:.2f} {mode.name} violates TPOT for "
                  f"{100 * share:.0f} %")
            if self.WANTED[0] * 2 <= share <= self.WANTED[1] * 0.8:
                break
            if share < self.WANTED[0] * 2:
                low = at
            else:
                high = at
            at = (low + high) / 2 if low and high else at * (1.35 if high is None else 0.7)
        middle_ = sum(self.WANTED) / 2
        return min(tried, key=lambda t: abs(t[1] - middle_))[0], tried

    def serve(self, jobs, rate_, seconds, seed):
        """Figures, how the trace was cut, requests with their tokens, decode steps."""
        o = self.options
        requests, cut = self.trace.requests(rate_, seconds, seed, o.prompt, o.output)
        more = {"seconds": seconds, "drain": o.drain}
        first, rest = together(
            [(jobs[0], {"do": "requests", "requests": requests, **more}),
             (jobs[1], {"do": "requests", **more})], timeout=60 + 2 * seconds + 2 * o.drain)
        for number, (request, at) in enumerate(zip(requests, first["firsts"])):
            request["tokens"] = [] if at is None else [at, *rest["tokens"].get(str(number), [])]
        return load.serving(requests, seconds), cut, requests, rest["steps"]

    def seconds(self, mode, specs):
        return self.options.window + self.options.drain / 3 + 1

    def cell(self, jobs, specs, mode, repeat):
        figures, cut, requests, steps = self.serve(jobs, self.rate, self.options.window,
                                                   200 + repeat)
        violations = figures["scales"][self.scale]
        show = lambda v, scale=1: "-" if v is None else f"{scale * v:.1f}"
        return {"serving": figures, "cut": cut, "rate": self.rate, "load": self.load,
                "slo_scale": self.options.slo_scale,
                "steps": steps, "requests": requests, "window_s": self.options.window,
                "words": f"TTFT p99 {show(figures['ttft'].get('p99'), 1e3)} ms, TPOT p90 "
                f"{show(figures['tpot'].get('p90'), 1e3)} ms, violations TTFT "
                f"{show(violations['ttft'], 100)} % TPOT {show(violations['tpot'], 100)} %"}


class DecodeAlone(Experiment):
    """E8: what a job loses that has the GPU for itself: the decoder natively and under ours, a few
    requests in turn."""
    name = "E8"

    def seconds(self, mode, specs):
        return 2

    def cell(self, jobs, specs, mode, repeat):
        count = 4 if self.options.device == "cuda" else 2
        measured = jobs[0].ask(120, do="measure", count=count)
        step = load.percentile(measured["decode_step"], 0.5)
        prefill = load.percentile(measured["prefill"], 0.5)
        return {"decode_step_s": step, "prefill_s": prefill, "samples": measured,
                "words": f"decode step {1e3 * step:.3f} ms, prefill {1e3 * prefill:.2f} ms"}


class Calibration:
    """E0: does every workload build, how long is its step, how busy is the GPU."""
    name = "E0"

    def __init__(self, session):
        self.session, self.options = session, session.options

    def run(self, specs):
        s, o = self.session, self.options
        todo = [(sp, m) for sp in specs for m in map(modes.mode, o.modes)
                if not s.is_done("E0", sp.name, m.name, 0)]
        s.cells += len(todo)
        while todo:
            group, most = [], 0
            while todo and len(group) < o.beside:
                sp, _ = todo[0]
                most += sum(needs([sp]))  # all are built at once
                if group and most > s.free_gib:
                    break
                group.append(todo.pop(0))
            self._group(group)

    def _group(self, group):
        s = self.session
        s.allow(self.options.start_s)
        jobs = []
        try:
            for sp, mode in group:
                try:
                    jobs.append(s.start(mode.setting, [sp])[0])
                except (harness.Refusal, OSError) as error:
                    jobs.append(error)
            waiting = []
            for job in jobs:  # all are built before the first is measured
                try:
                    waiting.append(job.wait_ready(self.options.start_timeout)
                                   if isinstance(job, Job) else JobFailed(str(job)))
                except JobFailed as error:
                    waiting.append(error)
            for (sp, mode), job, ready in zip(group, jobs, waiting):
                try:
                    if isinstance(ready, JobFailed):
                        raise ready
                    s.allow(5)
                    s.surroundings.use(mode)
                    record = {"ok": True, **self._measure(sp, job), "ready": ready}
                except (JobFailed, harness.Refusal) as error:
                    record = {"ok": False, "why": str(error)}
                words = record.pop("words", record.get("why"))
                s.add("E0", sp.name, mode.name, 0, record)
                s.say(f"{sp.name} {mode.name}: {words}")
        finally:
            end([job for job in jobs if isinstance(job, Job)])

    def _measure(self, sp, job):
        gpu = self.options.device == "cuda"
        job.ask(120, do="measure", count=3 if gpu else 1)
        measured = job.ask(120, do="measure", count=12 if gpu else 2)
        seen = job.ask(120, do="profile")
        step = load.percentile(measured["seconds"], 0.5)
        words = f"built in {job.ready['build_s']:.0f} s, {1e3 * step:.1f} ms"
        if sp.role == "infer":
            words += (f" a request, prefill {1e3 * load.percentile(measured['prefill'], 0.5):.1f}"
                      f" ms, decode step {1e3 * load.percentile(measured['decode_step'], 0.5):.2f}")
        if seen["launches"]:
            words += f", {seen['launches']} launches, busy {100 * seen['busy_share']:.0f} %"
        return {"step_s": step, "samples": measured, "profile": seen,
                "most_mib": measured["most_mib"], "words": words}


class BitwiseTraining(Experiment):
    """E9: two training jobs beside each other in every mode, hashed at every step; and one that
    survives the other's SIGKILL. The first ten steps alone are run twice: a job that differs from
    itself has nothing to be compared with."""
    name = "E9"
    TWICE = 10

    def seconds(self, mode, specs):
        per_step = getattr(self, "step_s", 0.3)
        return per_step * self.options.steps * (len(specs) if mode.alone else 1.5)

    def run(self, subject, specs):
        self.reference = {}
        super().run(subject, specs)

    def alone(self, jobs):
        steps, each = self.options.steps, []
        for job in jobs:
            run = lambda count: together([(job, {"do": "bits", "steps": count})], timeout=300)[0]
            first, again = run(steps), run(min(steps, self.TWICE))["hashes"]
            if first["hashes"][:len(again)] != again:
                raise JobFailed(f"{job.name} differs from itself natively")
            self.reference[job.spec] = first["hashes"]
            each.append(first["ends"][-1] / steps)
        self.step_s = max(each)
        compared = {s: len(h) for s, h in self.reference.items()}
        return {"equal": True, "compared": compared, "differing": dict.fromkeys(compared, 0),
                "seconds": {}, "hashes": self.reference,
                "words": f"twice the same, {sum(compared.values())} hashes"}

    def cell(self, jobs, specs, mode, repeat):
        if mode.alone:
            return self.alone(jobs)
        if not self.reference:
            raise JobFailed("nothing to compare with: `exclusive` did not run")
        steps, at = self.options.steps, time.monotonic() + self.lead
        for job in jobs:  # a job that is to be killed has more to do
            job.tell(do="bits", at=at,
                     steps=20 * steps if mode.kill and job is jobs[1] else steps)
        survivors = jobs
        if mode.kill:
            time.sleep(self.lead + 2.5 * self.step_s)
            if not jobs[1].busy():
                raise JobFailed(f"{jobs[1].name} had ended before it was killed")
            jobs[1].kill()
            survivors = jobs[:1]
        answers = {job.spec: job.answer(300) for job in survivors}
        seconds = {name: round(a["ends"][-1], 2) for name, a in answers.items()}
        differ = {name: [a[0] for a, b in zip(answers[name]["hashes"], self.reference[name])
                         if a != b] for name in answers}
        short = [n for n, a in answers.items()
                 if len(a["hashes"]) != len(self.reference[n])]
        record = {"equal": not any(differ.values()) and not short,
                  "compared": {n: len(self.reference[n]) for n in differ}, "seconds": seconds,
                  "differ": {n: d[:5] for n, d in differ.items() if d},
                  "differing": {n: len(d) for n, d in differ.items()}}
        return {**record, "words": f"{'equal' if record['equal'] else 'DIFFERENT'} ("
                + ", ".join(f"{n}: {record['differing'][n]} of {c} hashes differ"
                            for n, c in record["compared"].items()) + ")"}


class LibraryAwareness(Experiment):
    """E9: do libraries choose other kernels where they are told, or find, fewer processors?"""
    name = "E9"
    lead = 0
    MODES = ("exclusive", "mps", "mps50", "mps25", "green", "green-after", "static", "ours")

    def modes(self):
        return [modes.mode(name) for name in self.MODES]

    def seconds(self, mode, specs):
        return 3

    def cell(self, jobs, specs, mode, repeat):
        answer = jobs[0].ask(120, do="operations")
        found = answer["operations"]
        if mode.name == "exclusive":
            self.reference = found
        base = getattr(self, "reference", found)
        kernels = [n for n, f in found.items()
                   if None not in (f["kernels"], base[n]["kernels"])
                   and f["kernels"] != base[n]["kernels"]]
        bits = [n for n, f in found.items() if f["hash"] != base[n]["hash"]]
        seen = answer["processors"]
        return {**answer, "other_kernels": kernels, "other_bits": bits, "told": seen,
                "words": f"{seen} processors; other kernels in {len(kernels)} of {len(found)}, "
                f"other bits in {len(bits)}"}
