# SPDX-License-Identifier: Apache-2.0
"""What the programs of the compatibility suite share: batches that are timed, and how they answer.

A program prints one JSON line for each result, `{"name": ..., "hash": ...}`, and one for its times,
`{"batches": {...}}`: for each batch the moment at which it began (seconds since the first batch),
its wall time, and the CPU time of the calling thread, of the process, and of the whole machine.
With `--calibrate` fixed work that uses no GPU runs before each batch, and its times are told
beside: they say how fast the host was just then.

A program that cannot run on this machine prints `{"cannot": reason}` and exits with CANNOT.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import sys
import time

CANNOT = 77

# The host's speed: what an interpreter does (branches and calls), memory that no L2 cache holds,
# and entries into the kernel of the operating system.
SPIN, WORDS, CALLS = 30_000, 150_000, 2_000


def tell(record):
    print(json.dumps(record), flush=True)


def tell_hash(name, data):
    tell({"name": name, "hash": hashlib.sha256(data).hexdigest()})


def hash_of(value):
    """Of a value that JSON can hold, a list of tokens for example."""
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


def tell_value(name, value):
    tell({"name": name, "hash": hash_of(value)})


def cannot(reason):
    """Ends this program: it cannot run here, which is no failure."""
    tell({"cannot": reason})
    sys.exit(CANNOT)


class Calibration:
    """Fixed work on the host, the same in every process."""

    def __init__(self):
        self.objects = [i * 3 for i in range(WORDS)]
        random.Random(0).shuffle(self.objects)
        self.measured = {"spin": [], "memory": [], "calls": []}

    def _spin(self):
        total = 0
        for i in range(SPIN):
            total = (total * 31 + i) & 0xFFFF
        return total

    def _memory(self):
        return sum(self.objects)

    def _calls(self):
        for _ in range(CALLS):
            os.getppid()

    def measure(self):
        for name, work in (("spin", self._spin), ("memory", self._memory), ("calls", self._calls)):
            begin = time.perf_counter()
            work()
            self.measured[name].append(round(1e3 * (time.perf_counter() - begin), 4))


def machine_busy():
    """Seconds of CPU time that this machine has spent on anything, and that its host has taken from
    it, since it started. In steps of the operating system's clock, usually 10 ms."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / ticks, steal / ticks


class Moment:
    """All clocks at one moment."""

    def __init__(self):
        self.process, (self.machine, self.steal) = time.process_time(), machine_busy()
        self.thread, self.wall = time.thread_time(), time.perf_counter()

    def until(self):
        """Seconds since then by each clock; the wall clock, the one that counts, first of all."""
        wall, thread = time.perf_counter() - self.wall, time.thread_time() - self.thread
        process, (machine, steal) = time.process_time() - self.process, machine_busy()
        return {"wall_s": wall, "thread_cpu_s": thread, "process_cpu_s": process,
                "machine_busy_s": machine - self.machine, "machine_steal_s": steal - self.steal}


class Batches:
    """Times of equal batches. `step(i)` must have waited for the device when it returns."""

    def __init__(self, options):
        self.count, self.gate, self.turns = options.batches, options.gate, options.turns
        self.calibration = Calibration() if options.calibrate else None

    def run(self, step):
        """The result of the last step."""
        if self.turns:
            return self.run_turns(step)
        if self.gate:
            tell({"ready": True})
            sys.stdin.readline()
        began, spent, result = [], [], None
        first = time.perf_counter()
        for i in range(self.count):
            if self.calibration:
                self.calibration.measure()
            moment = Moment()
            result = step(i)
            spent.append(moment.until())
            began.append(round(moment.wall - first, 6))
        if self.calibration:
            self.calibration.measure()  # behind the last batch
        clocks = {name: [round(s[name], 6) for s in spent] for name in spent[0]}
        tell({"batches": {"began_s": began, **clocks,
                          "calibration_ms": self.calibration and self.calibration.measured}})
        return result

    def run_turns(self, step):
        """The same, each turn when it is told."""
        tell({"ready": True})
        result, number = None, itertools.count()
        for line in sys.stdin:
            spent = []
            for i in itertools.islice(number, int(line)):
                begin = time.perf_counter()
                result = step(i)
                spent.append(round(time.perf_counter() - begin, 6))
            tell({"turn": spent})
        return result


def options(names, description, batches=12):
    """Of a program file: which of its programs, on which device."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("program", choices=sorted(names))
    parser.add_argument("--batches", type=int, default=batches)
    parser.add_argument("--calibrate", action="store_true",
                        help="measure the speed of the host before each batch")
    parser.add_argument("--gate", action="store_true",
                        help="say when ready, and begin at a line of standard input")
    parser.add_argument("--turns", action="store_true",
                        help="say when ready; each line of standard input says how many batches "
                             "to do and then to tell")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu: tries the program where there is no GPU")
    return parser.parse_args()
