#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the jobs of the evaluation ask of a GPU, alone: the simulator's input (predict.py).

    record.py [--jobs RN,D0.6,BE,D1.7,Q8,I-L8] [--widths 4,8] [--steps 3] [--resume] [--out DIR]

Each job as it is, and bound to so many units of the device by `vitamin run --policy static`: the
kernels, copies and waits of some steps as PyTorch's profiler (CUPTI) has seen them, and its rate
unobserved; and `vitamin profile`: the scaling curves of its kernels at every width. With --bubble,
under MPS: on half of the device, alone and beside a program on the other half that does nothing but
move memory (bubble.py: what neighbours cost is measured as in Mars et al., Bubble-Up, MICRO 2011),
on all of it, and beside busy processors of the host. OUT/streams: JOB-SETTING.json.gz, JOB.profile;
OUT/streams/record.jsonl says what worked. Half a minute a job.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import experiment  # noqa: E402
import harness  # noqa: E402
import micro  # noqa: E402
import modes  # noqa: E402
import streams  # noqa: E402
from processes import Job, JobFailed  # noqa: E402


def settings(options, directory):
    """Name and what stands before the command."""
    quiet = ["run", "--quiet", "--policy"]
    bound = {f"units{n}": harness.vitamin(*quiet, f"static:units=0-{n - 1}", "--")
             for n in options.widths}
    if options.bubble:
        half = harness.vitamin(*quiet, "static:units=0-7", "--")
        return {"bubble": half, "mps": []}
    return {"native": [], **bound,
            "profile": [*harness.vitamin("profile", "--profiles", str(directory)), "--"]}


class Neighbour:
    """A process that is stopped but for a moment."""

    def __init__(self, command, environment):
        self.out = harness.Output()
        self.process = subprocess.Popen(command, stdout=self.out, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL, start_new_session=True,
                                        env=harness.environment_with(environment))

    def signal(self, what):
        os.killpg(self.process.pid, what)

    def wait_ready(self, timeout):
        limit = time.monotonic() + timeout
        while len(self.out.lines()) < 5:
            if self.process.poll() is not None or time.monotonic() > limit:
                raise JobFailed("the bubble does not start: " + self.out.text()[-300:])
            time.sleep(0.1)

    def rate(self, begin, end):
        """GB/s."""
        inside = [line for line in self.out.lines() if begin <= line["at"] <= end]
        return sum(line["gb"] for line in inside[1:]) / (inside[-1]["at"] - inside[0]["at"]) \
            if len(inside) > 1 else None

    def __enter__(self):
        self.signal(signal.SIGCONT)
        time.sleep(0.3)
        return self

    def __exit__(self, *problem):
        self.signal(signal.SIGSTOP)
        time.sleep(0.1)

    def end(self):
        try:
            self.signal(signal.SIGKILL)
        except OSError:
            pass
        self.process.wait()


def window(job, infer, seconds):
    if infer:
        return job.ask(120, do="measure", count=max(5, round(seconds / 0.05)))
    return job.ask(120, do="window", at=time.monotonic() + 0.1, seconds=seconds)


def measure_bubble(name, setting, job, options, bubble, busy):
    """On half of the device or on all of it: alone, beside the bubble (half), beside busy hosts."""
    infer, record = name.startswith("I-"), {"job": name, "setting": setting, "ok": True}
    path = pathlib.Path(options.out).resolve() / "streams" / f"{name}-{setting}.json.gz"
    try:
        window(job, infer, 0.5)
        record["alone"] = window(job, infer, options.window / 2)
        if setting == "mps":
            with busy[0], busy[1]:
                record["busy_host"] = window(job, infer, options.window / 2)
            record["alone_again"] = window(job, infer, options.window / 2)
            return record
        with bubble:
            begin = time.monotonic()
            time.sleep(0.7)
            record["bubble_alone"] = bubble.rate(begin, time.monotonic())
            begin = time.monotonic()
            record["beside"] = window(job, infer, options.window / 2)
            record["bubble_beside"] = bubble.rate(begin + 0.2, time.monotonic())
            record.update(job.ask(180, do="record", count=options.steps, path=str(path)))
        streams.means_only(path)
        record["alone_again"] = window(job, infer, options.window / 2)
        return record
    except JobFailed as error:
        return {**record, "ok": False, "why": str(error)}


def measure(name, setting, job, options):
    """One process that is ready: its rate, then what it asks for, observed."""
    path = pathlib.Path(options.out).resolve() / "streams" / f"{name}-{setting}.json.gz"
    infer, record = name.startswith("I-"), {"job": name, "setting": setting, "ok": True}
    try:
        if setting == "profile":
            answer = job.ask(120, do="measure", count=options.profile_steps)
            return {**record, "seconds": answer["seconds"]}
        if infer:
            job.ask(120, do="measure", count=3)
            record["alone"] = job.ask(120, do="measure", count=30)
        else:
            job.ask(120, do="measure", count=2)
            record["alone"] = job.ask(120, do="window", at=time.monotonic() + 0.1,
                                      seconds=options.window)
        record.update(job.ask(180, do="record", count=options.steps, path=str(path)))
        if setting != "native":
            streams.means_only(path)
        return record
    except JobFailed as error:
        return {**record, "ok": False, "why": str(error)}


def bubbles(options, results, done):
    """Every job beside the bubble."""
    busy_loop = "while True: sum(range(20000))"
    with micro.Mps() if options.device == "cuda" else modes.contextlib.nullcontext() as mps:
        if options.device == "cuda" and not (mps.control and mps.running):
            raise harness.Refusal("there is no MPS here: --bubble needs it")
        environment = dict(mps.environment) if mps else {}
        half = harness.vitamin("run", "--quiet", "--policy", "static:units=8-15", "--")
        beside = [Neighbour([*half, sys.executable, str(HERE / "bubble.py"), options.device],
                            environment)]
        beside += [Neighbour([sys.executable, "-c", busy_loop], {}) for _ in range(2)]
        for number, neighbour in enumerate(beside):  # where the other job of a pair would be
            cores = {options.pin + number} & os.sched_getaffinity(neighbour.process.pid)
            if options.pin and cores:
                os.sched_setaffinity(neighbour.process.pid, cores)
        try:
            for neighbour in beside[1:]:
                neighbour.signal(signal.SIGSTOP)
            beside[0].wait_ready(options.start_timeout)
            beside[0].signal(signal.SIGSTOP)
            for name in options.jobs:
                one_job(name, options, results, done, (environment, beside[0], beside[1:]))
        finally:
            for neighbour in beside:
                neighbour.end()


def one_job(name, options, results, done, beside=None):
    role = "infer" if name.startswith("I-") else "train"
    arguments = [role, name, *(["--output", 4] if role == "infer" else []),
                 *(["--tiny"] if options.device == "cpu" else []), "--device", options.device,
                 "--nice", options.nice]
    if options.pin:
        arguments += ["--cpus", f"0-{options.pin - 1}"]
    out = pathlib.Path(options.out) / "streams"
    with tempfile.TemporaryDirectory(prefix="vitamin-record-") as directory:
        wanted = {s: words for s, words in settings(options, directory).items()
                  if (name, s) not in done}
        kept, more = (0, 0) if options.device == "cpu" else \
            experiment.needs([experiment.spec(role, name)])
        for wave in experiment.waves(list(wanted), 0, [experiment.spec(role, name)],
                                      options.memory) if kept else [list(wanted)]:
            jobs = {s: Job(f"{name} ({s})", arguments, wanted[s], beside and beside[0])
                    for s in wave}
            try:
                ready = {}
                for setting, job in jobs.items():  # all are built before the first is measured
                    try:
                        ready[setting] = job.wait_ready(options.start_timeout)
                    except JobFailed as error:
                        results.add({"job": name, "setting": setting, "ok": False,
                                     "why": str(error)})
                        print(f"{name} {setting}: {error}", flush=True)
                for setting in ready:
                    record = measure_bubble(name, setting, jobs[setting], options, *beside[1:]) \
                        if beside else measure(name, setting, jobs[setting], options)
                    results.add(record)
                    print(f"{name} {setting}: "
                          f"{record.get('why') or record.get('events') or 'ended'}", flush=True)
            finally:
                for job in jobs.values():
                    job.end()  # `vitamin profile` writes then
            for profile in pathlib.Path(directory).glob("*.profile"):
                shutil.copy(profile, out / f"{name}.profile")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = lambda text: [w for w in text.split(",") if w]
    parser.add_argument("--jobs", type=words, default=words("RN,I-L8,D0.6,Q8,BE,D1.7"))
    parser.add_argument("--widths", type=lambda text: list(map(int, words(text))), default=[8, 4],
                        help="units of 8 processors")
    parser.add_argument("--steps", type=int, default=3, help="observed")
    parser.add_argument("--profile-steps", type=int, default=6)
    parser.add_argument("--window", type=float, default=2.5, help="seconds, unobserved")
    parser.add_argument("--memory", type=float, default=125, help="GiB")
    parser.add_argument("--pin", type=int, default=5)
    parser.add_argument("--nice", type=int, default=-10)
    parser.add_argument("--awake", action="store_true")
    parser.add_argument("--start-timeout", type=float, default=150)
    parser.add_argument("--bubble", action="store_true", help="what neighbours cost")
    parser.add_argument("--resume", action="store_true", help="record what is not there")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", default=os.environ.get("OUT") or
                        str(harness.ROOT / "bench" / "results" / "policies"))
    options = parser.parse_args()
    directory = pathlib.Path(options.out) / "streams"
    directory.mkdir(parents=True, exist_ok=True)
    kind = "bubble" if options.bubble else "record"
    known = [json.loads(line) for line in open(directory / f"{kind}.jsonl")] \
        if options.resume and (directory / f"{kind}.jsonl").exists() else []
    done = {(r["job"], r["setting"]) for r in known if r.get("ok")}
    results = harness.Results(directory, kind, more=options.resume)
    begin = time.monotonic()
    with modes.awake(options.pin if options.awake else 0):
        if options.bubble:
            bubbles(options, results, done)
        for name in [] if options.bubble else options.jobs:
            one_job(name, options, results, done)
        print(f"{time.monotonic() - begin:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
