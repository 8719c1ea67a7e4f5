#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`vitamin park` and `vitamin resume` of a PyTorch process on an NVIDIA GPU: is its memory free
while it is parked, the same afterwards, and does it go on as if it had not been parked?

    park.py [--gib N] [--repeats N] [--out DIR]   natively and under `vitamin run --policy fifo`
    park.py --smoke                               a program over the software libcuda

A process holds N GiB (programs/park_steps.py) of known contents and the state of a small training.
It is parked and resumed; the contents' hash and the losses of 10 further steps are compared with
those of a process that is not parked.

exit codes:
  0  every round trip kept everything
  1  one did not
  2  park.py cannot run: a line says why
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import harness
import nvml

GIB = 1 << 30
STEPS = str(pathlib.Path(__file__).resolve().parent / "programs" / "park_steps.py")
ROOM = 6 * GIB  # for the context, the training, and what the host needs besides


def host_available():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


class Program:
    """A process that answers a command with a line of JSON."""

    def __init__(self, command, environment, errors):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=errors, text=True, env=environment)
        self.ready = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise harness.Refusal(f"the program ended with exit code {self.process.wait()}")
        return json.loads(line)

    def ask(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Suite:
    def __init__(self, options, results):
        self.options, self.results = options, results
        self.device = nvml.Device()
        self.deadline = time.monotonic() + options.budget
        self.environment = dict(os.environ)
        if options.smoke:
            soft = str(harness.prefix() / "lib" / "soft")
            self.environment["LD_LIBRARY_PATH"] = ":".join(
                filter(None, [soft, harness.library_path()]))
        self.bytes = self.size()
        self.rows, self.bad = [], 0
        self.errors = tempfile.TemporaryFile("w+")

    def size(self):
        """What is asked for, clipped to the device and to host memory."""
        if self.options.smoke:
            return 1 << 28
        memory = self.device.memory()
        if memory is None:
            raise harness.Refusal("NVML is not here: this needs an NVIDIA GPU")
        size = min(int(self.options.gib * GIB), memory["free"] - ROOM, host_available() - ROOM)
        if size < GIB:
            raise harness.Refusal("less than 1 GiB of the device or of the host is free")
        return size

    def start(self, arm):
        command = [sys.executable, STEPS, "driver" if self.options.smoke else "torch",
                   str(self.bytes)]
        if arm != "native":
            command = [*harness.vitamin("run", "--quiet", "--policy", "fifo"), "--", *command]
        return Program(command, self.environment, self.errors)

    def verb(self, verb, process):
        begin = time.monotonic()
        done = subprocess.run([*harness.vitamin(verb, "--json"), str(process)], text=True,
                              capture_output=True, env=self.environment, timeout=100, check=False)
        answer = json.loads(done.stdout)["processes"][0] if done.returncode == 0 else {}
        return {"ok": done.returncode == 0, "why": done.stderr.strip()[:400],
                "wall_seconds": round(time.monotonic() - begin, 3), **answer}

    def round_trip(self, arm, number, program, before):
        record = {"arm": arm, "round": number, "bytes_held": self.bytes}
        in_use = self.device.used()
        parked = record["park"] = self.verb("park", program.ready["process"])
        meanwhile = self.device.used()
        resumed = record["resume"] = \
            self.verb("resume", program.ready["process"]) if parked["ok"] else {"ok": False}
        record["device_used"] = {"before": in_use, "parked": meanwhile,
                                 "resumed": self.device.used()}
        freed = None if in_use is None else in_use - meanwhile
        record["freed"] = freed
        record["equal"] = bool(resumed["ok"]) and program.ask("hash") == before
        enough = self.options.smoke or (freed is not None and freed >= self.bytes)
        record["verdict"] = "equal" if record["equal"] and enough else (
            "not parked" if not parked["ok"] else "not resumed" if not resumed["ok"] else
            "not free" if record["equal"] else "differs")
        self.results.add(record)
        self.bad += record["verdict"] != "equal"
        why = parked.get("why") or resumed.get("why")
        if why:
            print(f"{arm}: {why}", file=sys.stderr, flush=True)
        self.rows.append([arm, number, record["verdict"], gib(self.bytes), gib(freed),
                          *self.speed(parked), *self.speed(resumed)])
        return record["verdict"] == "equal"

    def speed(self, step):
        seconds = step.get("seconds")
        return ("-", "-") if not seconds else (f"{seconds:.2f}",
                                               f"{self.bytes / seconds / 1e9:.1f}")

    def run(self, arm, reference):
        """The losses of the steps behind the round trips, compared with `reference` if given."""
        program = self.start(arm)
        try:
            before = program.ask("hash")
            for number in range(self.options.repeats if reference is not None else 0):
                if time.monotonic() > self.deadline:
                    self.rows.append([arm, number, "not run", *["-"] * 6])
                elif not self.round_trip(arm, number, program, before):
                    return None
            losses = program.ask("steps")
            if reference is not None:
                same = losses == reference
                self.bad += not same
                self.results.add({"arm": arm, "steps_equal": same, "steps": losses})
                self.rows.append([arm, "10 steps", "equal" if same else "differ", *["-"] * 6])
            return losses
        finally:
            program.end()


def gib(number):
    return "-" if number is None else f"{number / GIB:.2f}"


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=40, help="what is held (default 40)")
    parser.add_argument("--repeats", type=int, default=3, help="round trips (default 3)")
    parser.add_argument("--budget", type=float, default=130, metavar="SECONDS",
                        help="begin no round trip after this time (default 130)")
    parser.add_argument("--smoke", action="store_true",
                        help="over the software libcuda; no GPU, no framework is used")
    parser.add_argument("--out", metavar="DIR", help="results (default: $OUT, else bench/results)")
    options = parser.parse_args()
    options.out = options.out or harness.default_output()
    return options


def main():
    options = parse()
    with tempfile.TemporaryDirectory(prefix="vitamin-park-") as directory:
        if options.smoke:
            os.environ["VITAMIN_SOFT_LEDGER"] = f"{directory}/ledger"
        try:
            suite = Suite(options, harness.Results(options.out, "park_smoke" if options.smoke
                                                   else "park"))
            reference = suite.run("native", None)
            for arm in ("native", "vitamin"):
                suite.run(arm, reference)
        except harness.Refusal as refusal:
            print(f"park.py: {refusal}", file=sys.stderr)
            return 2
    print(harness.table(suite.rows, ["run", "round", "result", "GiB", "freed GiB", "park s",
                                     "GB/s", "resume s", "GB/s"]))
    print(f"\n{suite.bad} not as without park; {suite.results.path}")
    return 1 if suite.bad else 0


if __name__ == "__main__":
    sys.exit(main())
