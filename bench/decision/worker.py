# SPDX-License-Identifier: Apache-2.0
"""One job of a decision cell: a process that is built once, and then runs, pauses and serves.

    worker.py KIND NAME [--tiny] [--device cuda|cpu] [--cpus 0-4]

KIND and NAME: gpu_work.py. An ordinary PyTorch program; it knows nothing of Vitamin. Commands
come as JSON lines on standard input; each is answered by one line on standard output. Times are
seconds of the machine's monotonic clock, the same in every process.

    {"do": "run"}                                  closed loop from now on
    {"do": "pause"}                                stop behind the current step; answers its marks
    {"do": "bursts", "bursts": [[gap, count]...]}  requests back to back behind each gap
    {"do": "open", "at": T, "arrivals": [...]}     requests in the order of their arrival
    {"do": "measure", "count": N}                  requests in a closed loop: seconds of each
    {"do": "profile"}                              launches and busy share of a step

Progress is counted by the job: a CUDA event behind every group of layers, read when the step has
ended. A run's marks: `begin` (s), `first` (marks before it), `us` (microseconds between marks).
The name `demo` needs no GPU and no PyTorch: a step is a run of Vitamin's demo programs.
"""

import argparse
import gc
import json
import os
import pathlib
import queue
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "evaluation")]

import harness  # noqa: E402


def now():
    return time.monotonic()


def sleep_until(at):
    """Sleeps, and polls the clock in the last half millisecond."""
    while (left := at - now()) > 0:
        if left > 0.001:
            time.sleep(left - 0.0005)


class HostClock:
    """Marks without a GPU: the host's time."""

    def start(self):
        pass

    def record(self):
        return now()

    def wait(self, mark):
        pass

    def time_of(self, mark):
        return mark

    def synchronize(self):
        pass


class DeviceClock:
    """Marks are CUDA events; their times are those of the host's clock, by an event recorded while
    the GPU was idle. Error: half of what recording and waiting took then, about 10 us."""

    TRIES = 5

    def __init__(self, torch):
        self.torch, self.spare, self.origin = torch, [], None

    def start(self):
        """The GPU is idle for this process: finds the origin again."""
        self.synchronize()
        best = None
        for _ in range(self.TRIES):
            event = self.torch.cuda.Event(enable_timing=True)
            begin = now()
            event.record()
            event.synchronize()
            end = now()
            if best is None or end - begin < best[0]:
                best = end - begin, (begin + end) / 2, event
        _, self.origin_s, self.origin = best

    def record(self):
        event = self.spare.pop() if self.spare else self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark):
        mark.synchronize()

    def time_of(self, mark):
        """Of a mark that has been reached; it can be recorded again afterwards."""
        at = self.origin_s + self.origin.elapsed_time(mark) / 1e3
        self.spare.append(mark)
        return at

    def synchronize(self):
        self.torch.cuda.synchronize()


class Marks:
    """Of one run: what is recorded as the job gets on, and what was read of it."""

    def __init__(self, clock, groups):
        self.clock, self.groups = clock, groups
        self.pending, self.count = [], 0
        self.begin = self.first = self.last = None
        self.us, self.steps = [], []

    def start(self):
        self.clock.start()
        self.begin = self.last = now()
        self.first = self.count
        self.us, self.steps = [], []

    def mark(self):
        self.pending.append(self.clock.record())
        self.count += 1

    def end_of_step(self, before):
        """The number of marks of a step is the same in every step."""
        if self.count - before != self.groups:
            raise RuntimeError(f"a step made {self.count - before} marks instead of {self.groups}")

    def read(self, keep):
        """The times of all marks but the last `keep`, which may not have been reached."""
        while len(self.pending) > keep:
            at = self.clock.time_of(self.pending.pop(0))
            us = max(0, round(1e6 * (at - self.last)))
            self.us.append(us)
            self.last += us / 1e6

    def take(self):
        self.read(0)
        return {"begin": round(self.begin, 6), "first": self.first, "groups": self.groups,
                "us": self.us, "host_s": self.steps}


class Loop:
    """Runs steps of a workload in the main thread; commands come from a thread that reads."""

    def __init__(self, work, clock, trim=False):
        self.work, self.trim = work, trim
        self.marks = Marks(clock, work.groups)
        self.clock, self.commands = clock, queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in sys.stdin:
            self.commands.put(json.loads(line))
        self.commands.put(None)

    def run(self):
        """Until the next command, which is `pause` or the end of the input."""
        marks, before = self.marks, []
        marks.start()
        while self.commands.empty():
            begin, count = now(), marks.count
            self.work.step(marks.mark)
            marks.end_of_step(count)
            if not self.work.waits:  # at most `queued` steps are submitted and have not ended
                before.append(marks.pending[-1])
                if len(before) >= self.work.queued:
                    self.clock.wait(before.pop(0))
                marks.read((self.work.queued - 1) * self.work.groups)
            else:
                marks.read(0)
            marks.steps.append(round(now() - begin, 6))
        self.clock.synchronize()
        self.work.rest()
        if self.trim:
            self.work.memory()

    def pause(self):
        taken = self.marks.take() if self.marks.begin is not None else None
        self.marks.begin = None
        return {"paused": round(now(), 6), "marks": taken}

    def bursts(self, bursts):
        """[begin, end, place in its burst, gap] of each request, seconds."""
        done, wait = [], now()
        for gap, count in bursts:
            wait = now() + gap
            sleep_until(wait)
            for place in range(count):
                begin = now()
                self.work.request()
                done.append([round(begin, 6), round(now(), 6), place, round(gap, 6)])
        return {"requests": done}

    def open(self, at, arrivals):
        """[scheduled, begin, end] of each request, seconds since `at`."""
        done = []
        for scheduled in arrivals:
            sleep_until(at + scheduled)
            begin = now()
            self.work.request()
            done.append([round(t, 6) for t in (scheduled, begin - at, now() - at)])
        return {"requests": done}

    def profile(self):
        """Of one step alone: launches, and the share of its time in which a kernel runs."""
        if isinstance(self.clock, HostClock):
            return {"launches": None, "busy_share": None}
        import types

        import job
        role = types.SimpleNamespace(once=lambda: self.work.step(lambda: None))
        machine = types.SimpleNamespace(
            torch=self.clock.torch, device=self.clock.torch.device("cuda"),
            synchronize=self.clock.synchronize)
        try:
            return job.profile(role, machine)
        except RuntimeError as error:  # no profiler here, under MPS for example
            return {"launches": None, "busy_share": None, "why": str(error)[:200]}

    def measure(self, count):
        seconds = []
        for _ in range(count):
            begin = now()
            self.work.request()
            seconds.append(round(now() - begin, 6))
        return {"seconds": seconds}


def serve(loop, answer):
    while (command := loop.commands.get()) is not None:
        what = command.pop("do")
        if what == "run":
            answer({"running": round(now(), 6)})
            loop.run()
            continue
        answer(getattr(loop, what)(**command))
        gc.collect()


def build(options):
    if options.name == "demo":
        import demo_work
        return demo_work.make(options.kind), HostClock()
    import torch

    import gpu_work
    torch.set_num_threads(1)  # idle threads would spin
    device = torch.device(options.device)
    work = gpu_work.make(options.kind, options.name, device, options.tiny)
    return work, DeviceClock(torch) if device.type == "cuda" else HostClock()


def pin_to(cores):
    """Every thread that there is; those to come inherit it."""
    first, last = map(int, cores.split("-"))
    wanted = set(sorted(os.sched_getaffinity(0))[first:last + 1])
    for thread in os.listdir("/proc/self/task") if wanted else ():
        try:
            os.sched_setaffinity(int(thread), wanted)
        except OSError:  # it has ended
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind")
    parser.add_argument("name")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the same code with few numbers")
    parser.add_argument("--trim", action="store_true", help="cache no memory while paused")
    parser.add_argument("--cpus", help="the first and last core, as 0-4")
    parser.add_argument("--nice", type=int, default=0, help="below 0: for root")
    options = parser.parse_args()
    answer = harness.answers_by_lines()

    try:
        os.setpriority(os.PRIO_PROCESS, 0, options.nice)
    except OSError:
        pass  # not allowed: as it is
    try:
        begin = now()
        work, clock = build(options)
        for _ in range(work.warm_up):
            work.step(lambda: None)
        work.rest()
        clock.synchronize()
        if options.cpus:
            pin_to(options.cpus)
        gc.collect(), gc.freeze(), gc.disable()
        answer({"ready": True, "build_s": round(now() - begin, 3), "groups": work.groups,
                "process": os.getpid(), **work.memory()})
        serve(Loop(work, clock, options.trim), answer)
    except Exception as error:  # the harness prints it
        answer({"error": f"{type(error).__name__}: {str(error).strip()[:300]}"})
        raise


if __name__ == "__main__":
    main()
