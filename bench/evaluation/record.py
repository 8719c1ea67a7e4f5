#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the jobs of the evaluation ask of a GPU, alone: the simulator's input (predict.py).

    record.py [--jobs RN,D0.6,BE,D1.7,Q8,I-L8] [--widths 4,8] [--steps 3] [--resume] [--out DIR]

Each job as it is, and bound to so many units of the device by `vitamin run --policy static`: the
kernels, copies and waits of some steps as PyTorch's profiler (CUPTI) has seen them, and its rate
unobserved; and `vitamin profile`: the scaling curves of its kernels at every width. OUT/streams:
JOB-SETTING.json.gz and JOB.profile; OUT/streams/record.jsonl says what worked. Half a minute a job.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import experiments  # noqa: E402
import harness  # noqa: E402
import modes  # noqa: E402
from processes import Job, JobFailed  # noqa: E402


def settings(options, folder):
    """Name and what stands before the command."""
    quiet = ["run", "--quiet", "--policy"]
    bound = {f"units{n}": harness.vitamin(*quiet, f"static:units=0-{n - 1}", "--")
             for n in options.widths}
    return {"native": [], **bound,
            "profile": [*harness.vitamin("profile", "--profiles", str(folder)), "--"]}


def measure(name, setting, job, options, results):
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
        return record
    except JobFailed as error:
        return {**record, "ok": False, "why": str(error)}


def one_job(name, options, results, done):
    role = "infer" if name.startswith("I-") else "train"
    arguments = [role, name, *(["--output", 4] if role == "infer" else []),
                 *(["--tiny"] if options.device == "cpu" else []), "--device", options.device,
                 "--nice", options.nice]
    if options.pin:
        arguments += ["--cpus", f"0-{options.pin - 1}"]
    out = pathlib.Path(options.out) / "streams"
    with tempfile.TemporaryDirectory(prefix="vitamin-record-") as folder:
        wanted = {s: words for s, words in settings(options, folder).items()
                  if (name, s) not in done}
        kept, more = (0, 0) if options.device == "cpu" else \
            experiments.needs([experiments.spec(role, name)])
        for wave in experiments.waves(list(wanted), 0, [experiments.spec(role, name)],
                                      options.memory) if kept else [list(wanted)]:
            jobs = {s: Job(f"{name} ({s})", arguments, wanted[s]) for s in wave}
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
                    record = measure(name, setting, jobs[setting], options, results)
                    results.add(record)
                    print(f"{name} {setting}: "
                          f"{record.get('why') or record.get('events') or 'ended'}", flush=True)
            finally:
                for job in jobs.values():
                    job.end()  # `vitamin profile` writes then
            for profile in pathlib.Path(folder).glob("*.profile"):
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
    parser.add_argument("--resume", action="store_true", help="record what is not there")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", default=os.environ.get("OUT") or
                        str(harness.ROOT / "bench" / "results" / "policies"))
    options = parser.parse_args()
    folder = pathlib.Path(options.out) / "streams"
    folder.mkdir(parents=True, exist_ok=True)
    done = set()
    if options.resume and (folder / "record.jsonl").exists():
        for line in open(folder / "record.jsonl"):
            r = json.loads(line)
            done |= {(r["job"], r["setting"])} if r.get("ok") else set()
    results = harness.Results(folder, "record", more=options.resume)
    begin = time.monotonic()
    with modes.awake(options.pin if options.awake else 0):
        for name in options.jobs:
            one_job(name, options, results, done)
            print(f"[{time.monotonic() - begin:.0f} s] {name} done", flush=True)


if __name__ == "__main__":
    main()
