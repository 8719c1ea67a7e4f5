# SPDX-License-Identifier: Apache-2.0
"""The experiments that colocate jobs: E0, E3, E4, E5, E8's decoding, E9's training."""
import time

import harness
import load
import modes
from experiment import Experiment, end, needs, rate
from processes import Job, JobFailed, together

TRAINING_PAIRS = {"W1": ("D0.6", "D0.6"), "W2": ("D0.6", "D1.7"), "W3": ("L4", "L4"),
                  "W4": ("D1.7", "L8"), "W5": ("Q8", "D0.6"), "W6": ("Q8", "Q8"),
                  "W1-big": ("D0.6-big", "D0.6-big"), "RN+D0.6": ("RN", "D0.6"),
                  # The GPU is busy with either alone: less depends on the host.
                  "BE+D1.7": ("BE", "D1.7"), "RN-big+BE-big": ("RN-big", "BE-big"),
                  # Two ranks each, on two GPUs.
                  "W7": ("D1.7", "D0.6"), "W8": ("F8", "D1.7")}
DISTRIBUTED = ("W7", "W8")
MIXED_PAIRS = {"M1": ("RN", "I-L8"), "M2": ("RN", "I-J6"), "M3": ("BE", "I-L8"),
               "M4": ("BE", "I-J6")}


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
        """Figures, how the trace was cut, requests with their tokens, decode steps. No arm is the
        first to meet a length: prompts of all lengths have been prefilled before."""
        o = self.options
        requests, cut = self.trace.requests(rate_, seconds, seed, o.prompt, o.output)
        lengths = sorted({r["prompt"] for r in requests})
        cut["warmed"] = jobs[0].ask(60 + len(lengths), do="warm", tokens=lengths)["warmed"]
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
