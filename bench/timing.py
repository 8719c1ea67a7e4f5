# SPDX-License-Identifier: Apache-2.0
"""What does a program lose that has the GPU for itself? Native against `--policy fifo`.

    timing.py [--seconds S] [--workloads qwen-train,...] [--arms native,fifo,daemon] [--out DIR]

One process of each arm is built and waits; then they run windows of a few steps in turn, native,
fifo, fifo, native, on the same cores, so that whatever drifts within seconds cancels. The answer is
the median over windows of the time of a step beside the native windows before and after it. Beside
it native against native: the same from native windows alone, which is the noise that the answer
must be read against. `daemon` is fifo of a vitamind.
"""

import argparse
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "daemon"))

import harness  # noqa: E402
from common import Daemon, Resident  # noqa: E402

WINDOW_MS = 250


def start(arm, name, options, daemon):
    command = [sys.executable, str(HERE / "workloads.py"), "--resident", name,
               *options.arguments.split()]
    words = ["--window", options.window] if options.window else []
    return Resident(command, {"VITAMIN_CONFIG": "/dev/null"}, words=words,
                    daemon=daemon if arm == "daemon" else None,
                    policy="fifo" if arm == "fifo" else None)


def pin(process, cpus):
    """Every process of its group and every thread: the same cores for all arms, once built."""
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(path.name)) != process.pid:
                continue
            for thread in os.listdir(path / "task"):
                os.sched_setaffinity(int(thread), cpus)
        except (OSError, ValueError):
            continue


def measure(name, options, results):
    arms = options.arms.split(",")
    daemon = Daemon("fifo", {}, watch=False) if "daemon" in arms else None
    cpus = set(options.cpus) & os.sched_getaffinity(0) if options.cpus else None
    running, rows = {}, []
    try:
        for arm in arms:
            running[arm] = start(arm, name, options, daemon)
        for arm in arms:
            lines = [running[arm].next(options.timeout)]
            while not lines[-1].get("ready"):
                lines.append(running[arm].next(options.timeout))
            if cpus:
                pin(running[arm].process, cpus)
        steps = 3
        first = running[arms[0]].ask(str(steps), options.timeout)["steps_ms"]
        steps = max(2, round(WINDOW_MS / (sum(first) / len(first))))
        windows = []  # (arm, milliseconds a step), in order
        until, turn = time.monotonic() + options.seconds, 0
        while time.monotonic() < until or turn % 2:
            for arm in arms if turn % 2 == 0 else arms[::-1]:
                ms = running[arm].ask(str(steps), options.timeout)["steps_ms"]
                results.add({"name": name, "arm": arm, "turn": turn, "steps_ms": ms})
                windows.append((arm, sum(ms) / len(ms), sorted(ms)[len(ms) // 5]))
            turn += 1
    finally:
        ended = {arm: job.end() for arm, job in running.items()}
        if daemon:
            daemon.end()

    def column(arm, which):
        return [w[which] for w in windows if w[0] == arm]

    for arm in arms[1:]:
        # Two turns, there and back: arm and native stand equally early in them.
        fold = lambda values: [sum(values[i:i + 2]) for i in range(0, len(values) - 1, 2)]
        ratios = [a / b for a, b in zip(fold(column(arm, 1)), fold(column("native", 1)))]
        native = fold(column("native", 1))
        noise = [b / a for a, b in zip(native, native[1:])]
        quiet = harness.median(column(arm, 2)) / harness.median(column("native", 2))
        report = running[arm].coverage
        record = {"name": name, "policy": arm, "median_ratio": harness.median(ratios),
                  "ratios": ratios, "native_against_native": noise, "quiet_ratio": quiet,
                  "steps": steps, "coverage": report and {k: report[k] for k in (
                      "launches", "bound", "edges", "deferred")}, "why": ended[arm].why()}
        results.add(record)
        show = lambda v: f"{v:.4f}" if v else "-"
        rows.append([name, arm, len(ratios), show(record["median_ratio"]), show(quiet),
                     show(min(ratios, default=None)), show(max(ratios, default=None)),
                     show(min(noise, default=None)), show(max(noise, default=None))])
        print(" ".join(map(str, rows[-1])), flush=True)
    return rows


def cores(text):
    found = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--seconds", type=float, default=25, help="of windows, a workload")
    parser.add_argument("--arms", default="native,fifo")
    parser.add_argument("--window", default=None)
    parser.add_argument("--workloads", default="qwen-train,resnet-train,llama-generate")
    parser.add_argument("--arguments", default="", help="more words for workloads.py")
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--cpus", type=cores, default=cores("2-7"), help="for every arm; '': all")
    options = parser.parse_args()
    results = harness.Results(options.out, "timing")
    rows = []
    for name in options.workloads.split(","):
        begin = time.monotonic()
        try:
            rows += measure(name, options, results)
        except (RuntimeError, OSError, KeyError) as error:  # the others are still wanted
            results.add({"name": name, "why": str(error)})
            print(f"{name}: {error}", flush=True)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
    print()
    print(harness.table(rows, ["workload", "arm", "pairs", "arm / native, median", "quiet steps",
                               "least", "most", "native / native, least", "most"]))


if __name__ == "__main__":
    main()
