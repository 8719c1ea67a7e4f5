# SPDX-License-Identifier: Apache-2.0
"""One job of the evaluation: a process that is built once and then runs windows when told to.

    job.py train D0.6 | infer I-L8 | prefill I-L8 --link PATH | decode I-L8 --link PATH |
           bits qwen-train | libraries all

An ordinary program that knows nothing of Vitamin but its advice module, which does nothing without
Vitamin. Commands come as JSON lines on standard input, each answered by one line on standard
output; times are of the machine's monotonic clock, the same in every process.

    {"do": "window", "at": T, "seconds": S}                 train: ends of the steps
    {"do": "serve", "at": T, "arrivals": [...], ...}        infer: open loop, one request at a time
    {"do": "measure", "count": N}                           closed loop: seconds of each
    {"do": "profile"}                                       launches and busy share of a step
    {"do": "record", "count": N, "path": P}                 all that N steps ask of the GPU
    {"do": "bits", "at": T, "steps": N}                     bits: hashes of every step
    {"do": "operations"}                                    libraries: kernels and hash of each
    {"do": "warm", "tokens": [...]}                         prefill: prompts of these lengths, once
    {"do": "requests", "at": T, "requests": [...], ...}     prefill and decode: one trace

The name `demo` is for a machine without a GPU: a step is a run of Vitamin's demo programs on the
software device, and PyTorch is not needed.
"""
import argparse
import collections
import gc
import itertools
import json
import mmap
import multiprocessing.connection
import multiprocessing.reduction
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import harness  # noqa: E402
import load  # noqa: E402
from job_machines import (  # noqa: E402
    BLOCK, DemoEngine, DemoMachine, DemoTraining, TorchEngine, TorchMachine, TorchTraining,
    advice, now)


def sleep_until(at):
    """Sleeps, and spins the last half millisecond."""
    while (left := at - now()) > 0:
        if left > 0.001:
            time.sleep(left - 0.0005)


# -------------------------------------------------------------------------------------- roles


class Trainer:
    """Closed loop: steps until the window ends."""

    def __init__(self, options, machine):
        self.machine = machine
        demo = isinstance(machine, DemoMachine)
        self.work = DemoTraining(machine) if demo else TorchTraining(machine, options.name)
        for _ in range(1 if demo or machine.tiny else 3):
            self.work.step()
        self.work.pause()

    def steps_until(self, end):
        """One or more. Ranks must take equally many: when it is time the first says at which step
        all end, four ahead, since none is more than two steps ahead of another."""
        world, steps, last = getattr(self.machine, "world", 1), 0, None
        if world == 1:
            while steps == 0 or now() < end:
                yield
                steps += 1
            return
        self.windows = getattr(self, "windows", 0) + 1
        told = pathlib.Path(f"{self.machine.link}.{self.windows}")
        while last is None or steps < last:
            if last is None and self.machine.rank == 0 and now() >= end:
                last = steps + 4
                told.with_suffix(".new").write_text(str(last))
                told.with_suffix(".new").rename(told)
            elif last is None and told.exists():
                last = int(told.read_text())
            yield
            steps += 1

    def window(self, at, seconds):
        sleep_until(at)
        ends, last, answer = [], None, None
        for _ in self.steps_until(at + seconds):
            answer = self.work.step()
            advice.iteration_end()
            mark = self.work.mark()
            if mark is None:
                ends.append(now() - at)
            if last is not None:  # at most two steps are queued
                last.synchronize()
                ends.append(now() - at)
            last = mark
        self.machine.synchronize()
        self.work.pause()
        return {"ends": [round(t, 6) for t in ends],
                "hash": answer if isinstance(answer, str) else None}

    def measure(self, count):
        seconds = []
        for _ in range(count):
            begin = now()
            self.work.step()
            self.machine.synchronize()
            seconds.append(now() - begin)
        return {"seconds": seconds}

    def once(self):
        self.work.step()


class Inference:
    """Open loop, requests of batch 1 in the order of their arrival."""

    def __init__(self, options, machine):
        self.machine, demo = machine, isinstance(machine, DemoMachine)
        self.prompt, self.output = (4, 2) if machine.tiny else (options.prompt, options.output)
        length = self.prompt + self.output
        self.engine = DemoEngine(machine, 1, length, None) if demo else \
            TorchEngine(machine, options.name, 1, length)
        for _ in range(1 if demo else 2):
            self.request()

    def request(self):
        token = self.engine.prefill(self.prompt)
        first = now()
        for i in range(self.output - 1):
            token, = self.engine.decode([(0, self.prompt + i, token)])
        return first

    def serve(self, at, arrivals, seconds, drain):
        sleep_until(at)
        done = []
        for scheduled in arrivals:
            sleep_until(at + scheduled)
            if now() > at + seconds + drain:
                done.append([scheduled, None, None, None])
                continue
            begin = now()
            first = self.request()
            done.append([scheduled, *(round(t - at, 6) for t in (begin, first, now()))])
        self.machine.synchronize()
        return {"requests": done}

    def measure(self, count):
        seconds, firsts, steps = [], [], []
        for _ in range(count):
            begin = now()
            first = self.request()
            seconds.append(now() - begin)
            firsts.append(first - begin)
            steps.append((begin + seconds[-1] - first) / max(1, self.output - 1))
        return {"seconds": seconds, "prefill": firsts, "decode_step": steps}

    def once(self):
        self.request()


def pin_to(cores):
    """Every thread that there is; those to come inherit it. Building may use all cores. Counted
    among the cores that the command may use, so that two commands can share a machine (taskset)."""
    first, last = map(int, cores.split("-"))
    wanted = set(sorted(os.sched_getaffinity(0))[first:last + 1])
    for thread in os.listdir("/proc/self/task") if wanted else ():
        try:
            os.sched_setaffinity(int(thread), wanted)
        except OSError:  # it has ended
            pass


class Prefill:
    """Prompts in the order of their arrival, one at a time, each handed to the decoding process
    through memory of the GPU that both map."""

    def __init__(self, options, machine):
        self.machine, demo = machine, isinstance(machine, DemoMachine)
        limit = now() + options.start_timeout
        while True:
            try:
                self.link = multiprocessing.connection.Client(options.link, "AF_UNIX")
                break
            except OSError:
                if now() > limit:
                    raise RuntimeError("the decoding process does not listen") from None
                time.sleep(0.05)
        if demo or machine.device.type != "cuda":
            file = multiprocessing.reduction.recv_handle(self.link)
            between = mmap.mmap(file, options.between_mib << 20)
            os.close(file)
        else:
            between = self.link.recv()  # opened by CUDA's handle of it
        self.engine = DemoEngine(machine, 1, options.prompt, between) if demo else \
            TorchEngine(machine, options.name, 1, options.prompt, between)
        self.free = collections.deque(range((options.between_mib << 20)
                                            // self.engine.block_bytes))
        if len(self.free) * BLOCK < options.prompt:
            raise RuntimeError("the memory between is too small for a prompt: raise --between-mib")
        for _ in range(1 if demo else 2):
            self.engine.prefill(options.prompt)
        self.warmed = {options.prompt}
        self.ttft = options.ttft_ms / 1e3
        self.per_token = min(self.measure(2, options.prompt)["seconds"]) / options.prompt

    def warm(self, tokens):
        """Prompts of these lengths, once in the process: libraries make a plan for each length when
        they meet it first, which takes longer than the prefill."""
        new = sorted(set(tokens) - self.warmed)
        for count in new:
            self.engine.warm(count)
        self.warmed.update(new)
        return {"warmed": len(new)}

    def due(self, at, requests):
        """Of the first of `requests`, among those that have arrived."""
        begin = now()
        arrived = itertools.takewhile(lambda r: at + r["at"] <= begin, requests)
        waiting = [(at + r["at"], r["prompt"]) for r in arrived]
        return load.first_token_due(waiting, begin, self.ttft, lambda n: n * self.per_token)

    def requests(self, at, requests, seconds, drain):
        sleep_until(at)
        firsts = []
        for number, request in enumerate(requests):
            sleep_until(at + request["at"])
            need = -(-request["prompt"] // BLOCK)
            while (len(self.free) < need or self.link.poll()) and now() < at + seconds + drain:
                if self.link.poll(0.001):
                    self.free.extend(self.link.recv()[1])
            if now() > at + seconds + drain or len(self.free) < need:
                firsts.append(None)
                continue
            token = self.engine.prefill(request["prompt"], self.due(at, requests[number:]))
            first = now()
            firsts.append(round(first - at, 6))
            if request["output"] > 1:
                blocks = [self.free.popleft() for _ in range(need)]
                self.engine.give(blocks, request["prompt"])
                self.link.send(("take", number, blocks, request["prompt"], request["output"],
                                token, first))
        self.link.send(("end",))
        while (message := self.link.recv())[0] != "ended":
            self.free.extend(message[1])
        return {"firsts": firsts}

    def measure(self, count, tokens):
        seconds = []
        for _ in range(count):
            begin = now()
            self.engine.prefill(tokens)
            seconds.append(now() - begin)
        return {"seconds": seconds}

    def once(self):
        self.engine.prefill(self.engine.length)


class Decode:
    """Continuous batching of what the prefill process hands over."""

    def __init__(self, options, machine):
        self.machine, demo = machine, isinstance(machine, DemoMachine)
        pathlib.Path(options.link).unlink(missing_ok=True)
        listener = multiprocessing.connection.Listener(options.link, "AF_UNIX")
        length, size = options.prompt + options.output, options.between_mib << 20
        on_gpu = not demo and machine.device.type == "cuda"
        if on_gpu:
            between = machine.torch.empty(size // 2, dtype=machine.torch.bfloat16,
                                          device=machine.device)
        else:
            file = os.memfd_create("between")  # without a name: it ends with both processes
            os.truncate(file, size)
            between = mmap.mmap(file, size)
        self.engine = DemoEngine(machine, options.slots, length, between) if demo else \
            TorchEngine(machine, options.name, options.slots, length, between, options.graphs)
        self.target = options.tpot_ms / 1e3
        for rows in {1, 2, options.slots} if demo else range(1, options.slots + 1):
            for _ in range(1 if demo else 2):  # the first one compiles, or captures
                self.engine.decode([(slot, 1, 0) for slot in range(rows)])
        self.link = listener.accept()
        if on_gpu:
            import torch.multiprocessing  # teaches connections to send tensors by their handles
            self.link.send(between)
        else:
            multiprocessing.reduction.send_handle(self.link, file, None)
            os.close(file)

    def requests(self, at, seconds, drain):
        waiting, active = collections.deque(), []
        free, tokens, more, steps, taken = list(range(self.engine.slots)), {}, True, 0, []
        while more or waiting or active:
            while self.link.poll(0 if active or waiting else 0.0005):
                message = self.link.recv()
                more = message[0] != "end"
                if not more:
                    break
                waiting.append(message[1:])
            if now() > at + seconds + drain:
                if not more:
                    break
                for _, blocks, *_ in waiting:
                    self.link.send(("free", blocks))
                waiting.clear(), active.clear()
                time.sleep(0.001)
                continue
            while waiting and free:
                number, blocks, prompt, output, token, first = waiting.popleft()
                slot = free.pop()
                self.engine.take(blocks, prompt, slot)
                taken += blocks
                tokens[number] = []
                active.append([slot, prompt, token, number, output - 1, first + self.target])
            if not active:
                continue
            # Token k of a request is due k targets behind its first one: lost time may be made up.
            # Requests that wait for room wait for a token, too.
            due = min([row[5] for row in active] + [row[-1] + self.target for row in waiting])
            answer = self.engine.decode([tuple(row[:3]) for row in active], due)
            if taken:  # before the tokens that the step has answered
                self.link.send(("free", taken))
                taken = []
            steps += 1
            ended = now()
            for row, token in zip(active, answer):
                row[1], row[2], row[4], row[5] = row[1] + 1, token, row[4] - 1, row[5] + self.target
                tokens[row[3]].append(round(ended - at, 6))
            free += [row[0] for row in active if row[4] == 0]
            active = [row for row in active if row[4] > 0]
        self.machine.synchronize()
        self.link.send(("free", taken))
        self.link.send(("ended",))
        return {"tokens": tokens, "steps": steps}

    def measure(self, count, rows, position):
        seconds = []
        for i in range(count):
            begin = now()
            self.engine.decode([(slot, position, 0) for slot in range(rows)])
            seconds.append(now() - begin)
        return {"seconds": seconds}

    def once(self):
        self.engine.decode([(0, 1, 0)])


class Bits:
    """Training from its first state, hashed at every step."""

    def __init__(self, options, machine):
        self.machine, self.demo = machine, isinstance(machine, DemoMachine)
        if not self.demo:
            import hashed_training
            self.work = hashed_training.Training(machine, options.name)

    def bits(self, at, steps):
        if not self.demo:
            self.work.begin()
            self.machine.synchronize()
        sleep_until(at)
        hashes, ends = [], []
        for i in range(steps):
            told = [["result", self.machine.run("train", 4 + i % 4)]] if self.demo else \
                self.work.step(i)
            hashes += [[f"step {i} {name}", value] for name, value in told]
            ends.append(round(now() - at, 6))
            advice.iteration_end()
        return {"hashes": hashes, "ends": ends, "note": None if self.demo else self.work.note}


class Libraries:
    def __init__(self, options, machine):
        self.demo = machine if isinstance(machine, DemoMachine) else None
        if self.demo is None:
            import hashed_training
            self.work = hashed_training.Libraries(machine, options.green)

    def operations(self):
        if self.demo:
            return {"operations": {"demo": {"hash": self.demo.run("train", 3), "kernels": None}},
                    "part": None, "processors": None}
        return self.work.each()


def profile(role, machine):
    """Launches, and the share of the time in which a kernel runs, of one step."""
    if isinstance(machine, DemoMachine) or machine.device.type != "cuda":
        return {"launches": None, "busy_share": None}
    torch = machine.torch
    from torch.profiler import ProfilerActivity
    role.once(), machine.synchronize()
    begin = now()
    role.once(), machine.synchronize()
    wall = now() - begin
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as trace:
        role.once(), machine.synchronize()
    spans = sorted((e.time_range.start, e.time_range.end) for e in trace.events()
                   if str(e.device_type).endswith("CUDA"))
    kernels, busy, until = len(spans), 0.0, 0.0
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return {"launches": kernels, "busy_share": busy / 1e6 / wall, "step_s": wall}


def record(role, machine, path, count):
    """All that `count` steps ask of the GPU, and when the host asks it (streams.py)."""
    import streams
    if isinstance(machine, DemoMachine):
        return {"events": {}}
    torch = machine.torch
    marks = torch.zeros(2, streams.MARKER_BYTES, dtype=torch.uint8, device=machine.device)
    host, step = [], []
    for _ in range(count + 1):  # what it takes unobserved
        begin = now()
        role.once()
        host.append(now() - begin)
        machine.synchronize()
        step.append(now() - begin)
    try:  # which stream waits for which event
        more = {"experimental_config": torch._C._profiler._ExperimentalConfig(
            enable_cuda_sync_events=True)}
    except TypeError:
        more = {}
    wanted = torch.profiler.ProfilerActivity
    wanted = wanted.CUDA if machine.device.type == "cuda" else wanted.CPU
    with torch.profiler.profile(activities=[wanted], **more) as trace:
        for _ in range(count + 1):
            marks[0].copy_(marks[1])
            role.once()
            machine.synchronize()
        marks[0].copy_(marks[1])
        machine.synchronize()
    trace.export_chrome_trace(f"{path}.trace.json")
    events = streams.reduce(f"{path}.trace.json", path)
    os.unlink(f"{path}.trace.json")
    return {"events": events, "host_s": host, "step_s": step}


ROLES = {"train": Trainer, "infer": Inference, "prefill": Prefill, "decode": Decode, "bits": Bits,
         "libraries": Libraries}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("name")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--link", help="a path: where prefill and decode, or ranks, meet")
    parser.add_argument("--rank", type=int, default=0, help="train: of --world, each on its GPU")
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--between-mib", type=int, default=4096,
                        help="prefill, decode: of what is handed over and not yet taken")
    parser.add_argument("--ttft-ms", type=float, default=500,
                        help="prefill: the target of a first token, from the arrival")
    parser.add_argument("--tpot-ms", type=float, default=30, help="decode: the target of a token")
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--graphs", action="store_true",
                        help="decode: each step is one launch of a CUDA graph")
    parser.add_argument("--prompt", type=int, default=512, help="tokens, at most")
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--green", default="", help="libraries: green, or green-after")
    parser.add_argument("--start-timeout", type=float, default=300)
    parser.add_argument("--cpus", help="the first and last core, as 0-3")
    parser.add_argument("--nice", type=int, default=0, help="below 0: for root")
    options = parser.parse_args()

    answer = harness.answers_by_lines()

    try:
        os.setpriority(os.PRIO_PROCESS, 0, options.nice)  # threads to come inherit it
    except OSError:
        pass  # not allowed: as it is
    try:
        begin = now()
        machine = DemoMachine() if options.name == "demo" else \
            TorchMachine(options.device, options.tiny, options.rank, options.world, options.link)
        role = ROLES[options.role](options, machine)
        machine.synchronize()
        if options.cpus:
            pin_to(options.cpus)
        # What is there by now stays; garbage is collected between windows.
        gc.collect(), gc.freeze(), gc.disable()
        answer({"ready": True, "build_s": round(now() - begin, 3),
                "counts": os.environ.get("VITAMIN_RUN_DIR"), **machine.trim()})
        for line in sys.stdin:
            command = json.loads(line)
            what = command.pop("do")
            observed = {"profile": profile, "record": record}.get(what)
            result = observed(role, machine, **command) if observed else \
                getattr(role, what)(**command)
            gc.collect()
            answer({**result, **machine.trim()})
    except ModuleNotFoundError as error:
        answer({"error": f"the Python package '{error.name}' is missing"})
        sys.exit(1)
    except Exception as error:  # whatever it is, the harness must learn of it
        answer({"error": f"{type(error).__name__}: {str(error).strip()[:300]}"})
        raise


if __name__ == "__main__":
    main()
