#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of frameworks under `vitamin run --memory`, against native: do they end as natively,
stay within the quota, and compute the same bits? And what does a quota cost an allocation?

    memory.py [--memory 20GiB] [--out DIR]  PyTorch (default, expandable segments, cudaMallocAsync),
                                            JAX (with and without preallocation), CuPy
    memory.py --parts vllm --memory 40GiB   vLLM with gpu_memory_utilization = 0.9
    memory.py --parts limits                MPS's own limit beside ours: what two processes are told
                                            and get, the code of a refusal, what the other one loses
    memory.py --parts cost --rounds 15      nanoseconds of an allocation
    memory.py --smoke                       programs of the driver over the software libcuda

A program computes, takes pieces until a third more than the quota is taken or one is refused,
gives them back and computes again (programs/memory_steps.py). Each runs natively twice, then
within. vLLM (programs/memory_vllm.py) takes 0.9 of what it is told of: that must be of the quota.

exit codes:
  0  every program that ran is within the quota and as natively
  1  one is not
  2  memory.py cannot run: a line says why
"""
import argparse
import os
import pathlib
import re
import sys
import tempfile
import threading
import time

import bits
import harness
import memory_limits
import nvml

CANNOT = 77  # of programs/memory_steps.py
ARMS = ("native", "native again", "within")
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}
PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs"
STEPS = str(PROGRAMS / "memory_steps.py")
PARTS = ("cost", "frameworks", "vllm", "limits")
SHARE = 0.9  # of what vLLM is told of
COST_HEADINGS = ["native ns", "no quota", "quota", "quota costs", "fastest: native", "no quota",
                 "quota", "quota costs"]


class Case:
    """`share`: of the quota that the program must have used, where it takes no more than that by
    itself; 0: it takes until it is refused."""

    def __init__(self, name, command, share=0.0, **environment):
        self.name, self.command, self.share = name, command, share
        self.environment = environment


def bytes_of(text):
    match = re.fullmatch(r"(\d+)(MiB|GiB)", text)
    if not match:
        raise harness.Refusal(f"'{text}' is no size; write 20GiB or 512MiB")
    return int(match[1]) * UNITS[match[2]]


def frameworks(quota):
    def steps(framework):
        return [sys.executable, STEPS, framework, str(quota + quota // 3)]
    no_jax = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return [
        Case("PyTorch", steps("torch")),
        Case("PyTorch, expandable segments", steps("torch"),
             PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
        Case("PyTorch, cudaMallocAsync", steps("torch"),
             PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync"),
        Case("JAX", steps("jax")),
        Case("JAX, no preallocation", steps("jax"), **no_jax),
        Case("CuPy", steps("cupy")),
    ]


def vllm():
    # Started anew for each run: 8 billion weights are drawn, no graph is captured.
    return [Case(f"vLLM, gpu_memory_utilization = {SHARE}",
                 [sys.executable, str(PROGRAMS / "memory_vllm.py"), str(SHARE)], SHARE)]


def driver_programs(quota):
    def grow(call):
        return [harness.program("allocate"), "grow", str(quota + quota // 3), str(quota // 16),
                call]
    return [Case("pieces by cuMemAlloc", grow("cuMemAlloc")),
            Case("pieces by cuMemAllocAsync", grow("cuMemAllocAsync"))]


class Watch(threading.Thread):
    """The most memory of the device that was in use while this ran, by NVML; None without it."""

    def __init__(self):
        super().__init__(daemon=True)
        self._end, self._device = threading.Event(), nvml.Device()
        self.first = self.most = self._device.used()

    def run(self):
        while self.most is not None and not self._end.wait(0.01):
            self.most = max(self.most, self._device.used() or 0)

    def end(self):
        """What came in use since the beginning, at most."""
        self._end.set()
        self.join()
        return None if self.most is None else self.most - self.first


def within(command, memory):
    return [*harness.vitamin("run", "--quiet", "--policy", "fifo", "--memory", memory), "--",
            *command]


def said_of_memory(result):
    return next((line for line in result.lines if "used" in line), {})


def verdict(quota, native, arm, result, share=0.0):
    """One word, and what is behind it."""
    if result.timed_out:
        return "hung", result.why()
    if result.code != native.code:
        return "failed", result.why() or f"exit code 0, natively {native.code}"
    if native.code != 0:
        return "as natively", native.why()
    differ = bits.differences(native.hashes(), result.hashes())
    if differ:
        return "differs", str(differ[0])
    if not native.hashes():
        return "no result", "the program printed nothing to compare"
    if arm != "within":
        return "equal", ""
    memory = said_of_memory(result)
    if not memory or memory["total"] > quota or memory["used"] > quota or memory["taken"] > quota:
        return "beyond", f"it was told of and took {memory}"
    if share == 0 and not memory["refused"]:
        return "not refused", f"it took {memory['taken']} bytes of {quota}"
    # It stays a little below its share: blocks of its cache are whole.
    if memory["used"] < (share - 0.1) * quota:
        return "too little", f"it used {memory['used']} bytes of {quota}"
    return "equal", ""


class Suite:
    def __init__(self, options, results):
        self.options, self.results = options, results
        self.quota = bytes_of(options.memory)
        self.deadline = time.monotonic() + options.budget
        self.rows, self.bad = [], 0

    def environment(self, more):
        if not self.options.smoke:
            return more
        soft = str(harness.prefix() / "lib" / "soft")
        return {"LD_LIBRARY_PATH": ":".join(filter(None, [soft, harness.library_path()])), **more}

    def one(self, command, environment):
        watch = Watch()
        watch.start()
        left = max(self.deadline - time.monotonic(), 1)
        result = harness.run(command, min(self.options.timeout, left),
                             self.environment(environment))
        return result, watch.end()

    def run(self, case):
        native = None
        for arm in ARMS:
            if time.monotonic() > self.deadline:
                self.rows.append([case.name, arm, "not run", "-", "-", "-"])
                continue
            command = within(case.command, self.options.memory) if arm == "within" else case.command
            result, device = self.one(command, case.environment)
            if native is None and result.code == CANNOT:
                why = next((line["cannot"] for line in result.lines if "cannot" in line), "")
                self.results.add({"case": case.name, "arm": arm, "verdict": "not run", "why": why})
                self.rows.append([case.name, arm, "not run", "-", "-", "-"])
                return
            native = native or result
            word, why = verdict(self.quota, native, arm, result, case.share)
            memory = said_of_memory(result)
            self.results.add({
                "case": case.name, "arm": arm, "verdict": word, "why": why[:400],
                "code": result.code, "seconds": round(result.seconds, 2), "memory": memory,
                "device_peak": device, "quota": self.quota if arm == "within" else None,
                "hashes": result.hashes(), "command": result.command,
                "environment": case.environment})
            self.bad += word not in ("equal", "as natively")
            if why:
                print(f"{case.name}, {arm}: {word}: {why[:160]}", file=sys.stderr, flush=True)
            self.rows.append([case.name, arm, word, *(gib(memory.get(key)) for key in
                                                      ("total", "used")), gib(device)])

    def cost(self):
        """Rows: nanoseconds of an allocation natively, under Vitamin, and with a quota. A process
        of any arm may meet a driver that takes longer for all its calls of a size, so the fastest
        processes are shown beside the medians."""
        command = [harness.program("allocate"), "cost"]
        plain = [*harness.vitamin("run", "--quiet", "--policy", "fifo"), "--", *command]
        arms = {"native": command, "no quota": plain, "quota": within(command, self.options.memory)}
        found = {arm: [] for arm in arms}
        for _ in range(self.options.rounds):
            for arm, words in arms.items():
                result, _ = self.one(words, {})
                self.results.add({"cost": arm, "ok": result.ok, "why": result.why(),
                                  "lines": result.lines, "command": result.command})
                self.bad += not result.ok
                found[arm] += result.lines
        return [row for key in dict.fromkeys((line["call"], line["bytes"])
                                             for line in found["native"])
                if (row := cost_row(key, found))]


def cost_row(key, found):
    """Nothing: an arm has no value."""
    values = [[line["allocate_ns"] for line in lines if (line["call"], line["bytes"]) == key]
              for lines in found.values()]
    if not all(values):
        return None
    row = [*key]
    for of in (harness.median, min):
        told = [of(each) for each in values]
        row += [*(f"{each:.0f}" for each in told), f"{told[2] - told[1]:+.0f}"]
    return row


def gib(number):
    return "-" if number is None else f"{number / (1 << 30):.2f}"


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", metavar="SIZE", help="the quota (default 20GiB)")
    parser.add_argument("--budget", type=float, default=230, metavar="SECONDS",
                        help="begin no run after this time (default 230)")
    parser.add_argument("--timeout", type=float, default=60, metavar="SECONDS",
                        help="of one run (default 60)")
    parser.add_argument("--parts", default="cost,frameworks", metavar="LIST",
                        help="of " + ", ".join(PARTS) + " (default cost,frameworks)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N",
                        help="of the cost of an allocation (default 3)")
    parser.add_argument("--smoke", action="store_true",
                        help="over the software libcuda; no GPU, no framework is used")
    parser.add_argument("--out", metavar="DIR", help="results (default: $OUT, else bench/results)")
    options = parser.parse_args(arguments)
    options.memory = options.memory or ("256MiB" if options.smoke else "20GiB")
    options.parts = options.parts.split(",")
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"there is no part '{part}': " + ", ".join(PARTS))
    options.out = options.out or harness.default_output()
    return options


def main():
    options = parse()
    try:
        quota = bytes_of(options.memory)
        if not pathlib.Path(harness.vitamin()[0]).exists():
            raise harness.Refusal(f"no vitamin in {harness.prefix()}. Make a tree with "
                                  "bench/install_tree, or name one in VITAMIN_PREFIX")
    except harness.Refusal as refusal:
        print(f"memory.py: {refusal}", file=sys.stderr)
        return 2
    results = harness.Results(options.out, "memory_smoke" if options.smoke else "memory")
    suite = Suite(options, results)
    costs, limits = [], []
    with tempfile.TemporaryDirectory(prefix="vitamin-memory-") as directory:
        if options.smoke:
            os.environ["VITAMIN_SOFT_LEDGER"] = f"{directory}/ledger"
        if "cost" in options.parts:
            costs = suite.cost()
        for part, cases in (("frameworks", driver_programs if options.smoke else frameworks),
                            ("vllm", lambda _: vllm())):
            for case in cases(quota) if part in options.parts else []:
                suite.run(case)
        if "limits" in options.parts:
            limits, bad = memory_limits.run(options, quota, directory, suite.environment({}),
                                            results)
            suite.bad += bad
    for rows, headings in (
            (costs, ["call", "bytes", *COST_HEADINGS]),
            (suite.rows, ["program", "run", "result", "told of GiB", "used GiB", "device GiB"]),
            (limits, memory_limits.HEADINGS)):
        if rows:
            print(harness.table(rows, headings) + "\n")
    print(f"{suite.bad} not as natively or not within {options.memory}; {results.path}")
    return 1 if suite.bad else 0


if __name__ == "__main__":
    sys.exit(main())
