#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do the programs that people run compute the same under Vitamin? One command, one table.

Each program runs natively twice, then under `vitamin run --policy random`, `--policy static` and
as the client of a vitamind (policy throughput). A run is equal when it exits with the same code and
prints the same hashes as the native one; native twice comes first, so that a program which differs
from itself is told apart. A program whose module is missing is reported as not run.
"""

EXAMPLES = """\
examples:
  compat.py --list                          the programs, and which cannot run here and why
  compat.py                                 all of them, one run at a time: overheads are valid
  compat.py --jobs 6 --out results          several runs at once: bits and coverage only
  compat.py --only "vllm,cudagraph trees"   programs whose names hold one of these words
  compat.py --only CuPy                     an exact name is that program alone
  compat.py --modes native,random --only "JAX training" --json
  compat.py --llama-cpp BUILD --llama-model FILE.gguf --only llama
  compat.py --cuda-samples BUILD --pytorch-source CHECKOUT
  compat.py --smoke                         over the software libcuda: no GPU, no PyTorch
  table.py --write                          docs/compatibility.md from the kept results
  start.py --program "vLLM, eager"          what the first second of a process costs

Programs of others (llama.cpp, cuda-samples, PyTorch's tests) are run where an option says where
they are, and are never copied here. Results are JSON lines: a header with versions, date, driver,
GPU and commit, then one line for each run with its exact command.

exit codes:
  0  every program that ran is equal in every mode
  1  a program differs, or fails where it does not natively
  2  compat.py cannot run: a line says why
"""

import argparse
import concurrent.futures
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "evaluation"),
                str(HERE.parent / "daemon")]

import bits  # noqa: E402
import common  # noqa: E402
import harness  # noqa: E402
import overhead  # noqa: E402
import programs  # noqa: E402

MODES = ("native", "native again", "random", "static", "daemon")
CANNOT = 77  # of programs/steps.py
PACKAGES = ("torch", "vllm", "transformers", "triton", "jax", "jaxlib", "cupy", "cupy-cuda13x",
            "cupy-cuda12x", "onnxruntime", "numpy", "nvidia-nccl-cu13", "nvidia-nccl-cu12")
SEED = 1


def versions():
    """Of the packages that the programs use, where they are installed."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


class Surroundings:
    """What stands around a run: the software device under --smoke, else nothing."""

    def __init__(self, smoke, directory):
        self.smoke, self.directory = smoke, directory

    def environment(self, name):
        """Each run on the software device has a ledger of its own: runs do not meet."""
        if not self.smoke:
            return {}
        soft = str(harness.prefix() / "lib" / "soft")
        return {"LD_LIBRARY_PATH": ":".join(filter(None, [soft, harness.library_path()])),
                "VITAMIN_SOFT_LEDGER": str(pathlib.Path(self.directory) / f"ledger-{name}")}


def run_mode(program, mode, surroundings, index):
    """One run of one program; its result and the report of Vitamin, if there is one."""
    environment = surroundings.environment(f"{index}")
    command = list(program.command)
    if mode.startswith("native"):
        return harness.run(command, program.seconds, environment), None
    with tempfile.TemporaryDirectory(prefix="vitamin-compat-") as name:
        path = pathlib.Path(name) / "report.json"
        if mode == "daemon":
            daemon = common.Daemon("throughput", environment, watch=False)
            try:
                words = harness.vitamin("run", "--quiet", "--daemon", "--socket",
                                        str(daemon.socket), "--report", str(path), "--")
                result = harness.run([*words, *command], program.seconds, environment)
            finally:
                daemon.end()
        else:
            result = harness.run(harness.under_vitamin(command, mode, path,
                                                       seed=SEED if mode == "random" else None),
                                 program.seconds, environment)
        return result, harness.read_report(path)


def unfinished(result):
    """Whether outcomes.py ended what it ran, because the time was over."""
    return any("unfinished" in line for line in result.lines)


def hashes_of(program, result):
    """Name and hash of each result; of a program that prints none, its standard output."""
    found = result.hashes()
    if found or result.timed_out or unfinished(result):
        return found
    text = re.sub(program.ignore, "", result.output) if program.ignore else result.output
    return [("standard output", hashlib.sha256(text.encode()).hexdigest())] if text else []


def cannot(result):
    """Why the program says that it cannot run here; None where it can."""
    if result.code != CANNOT:
        return None
    return next((line["cannot"] for line in result.lines if "cannot" in line), "no reason given")


def batches(result):
    return next((line["batches"] for line in result.lines if "batches" in line), None)


def common_results(*runs):
    """Of each run, the results that all of them have, in one order."""
    by_name = [dict(run) for run in runs]
    names = [name for name, _ in runs[0] if all(name in found for found in by_name)]
    return [[(name, found[name]) for name in names] for found in by_name]


def verdict(program, native, result):
    """One word, and what is behind it."""
    if result.timed_out:
        return "hung", result.why()
    expected, got = hashes_of(program, native), hashes_of(program, result)
    part = unfinished(native) or unfinished(result)
    if part:
        expected, got = common_results(expected, got)
        if not expected:
            return "no result", "nothing ended in time in both runs"
    differ = bits.differences(expected, got)
    if result.code != native.code:
        return "failed", result.why() or f"exit code 0, natively {native.code}"
    if native.code != 0 and not hashes_of(program, native):
        return "as natively", native.why()
    if not hashes_of(program, native):
        return "no result", "the program printed nothing to compare"
    if differ:
        there, here = dict(expected), dict(got)
        first = [f"{name} ({here[name]}, natively {there[name]})"
                 if name in here and name in there else name for name in differ[:6]]
        return "differs", f"{len(differ)} of {len(expected)}, first: {', '.join(first)}"
    return "equal", f"the {len(expected)} results that both have" if part else ""


class Suite:
    """Runs programs in modes and keeps what was found."""

    def __init__(self, options, results, surroundings):
        self.options, self.results, self.surroundings = options, results, surroundings
        self.deadline = time.monotonic() + options.budget if options.budget else None
        self.records, self.bad, self.done, self.total = [], 0, 0, 0

    def progress(self, text):
        if not self.options.json:
            print(text, file=sys.stderr, flush=True)

    def add(self, record):
        self.records.append(record)
        self.results.add(record)
        if self.options.json:
            print(json.dumps(record), flush=True)
        self.bad += record["verdict"] in ("differs", "failed", "hung", "no result") \
            and record["mode"] not in ("native", "native again")

    def not_run(self, program, reason):
        self.progress(f"{program.name}: not run: {reason}")
        self.add({"program": program.name, "mode": "native", "verdict": "not run",
                  "why": reason, "about": program.about})

    def record(self, program, mode, native, result, report):
        word, why = verdict(program, native, result)
        if mode == "native":
            word, why = ("runs", "") if result.ok else ("failed", result.why())
        timed = batches(result) if self.options.jobs == 1 else None
        self.add({
            "program": program.name, "about": program.about, "mode": mode, "verdict": word,
            "why": why[:400], "code": result.code, "seconds": round(result.seconds, 2),
            "hashes": hashes_of(program, result) if mode == "native" else
            len(hashes_of(program, result)), "coverage": harness.coverage(report),
            "batches": timed, "command": result.command})
        if why:
            self.progress(f"{program.name}, {mode}: {word}: {why[:160]}")

    def run(self, listed, modes):
        runnable = []
        for program in listed:
            reason = program.missing()
            if reason:
                self.not_run(program, reason)
            else:
                runnable.append(program)
        self.total = len(runnable) * len(modes)
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            jobs = {p.name: {m: pool.submit(self._one, p, m, i * len(MODES) + j)
                             for j, m in enumerate(modes)} for i, p in enumerate(runnable)}
            for program in runnable:
                self._judge(program, {m: f.result() for m, f in jobs[program.name].items()})
        return self.bad

    def _one(self, program, mode, index):
        if self.deadline and time.monotonic() > self.deadline:
            return None
        found = run_mode(program, mode, self.surroundings, index)
        self.done += 1
        self.progress(f"[{self.done}/{self.total}] {program.name}, {mode}: ended with code "
                      f"{found[0].code}, {found[0].seconds:.1f} s")
        return found

    def _judge(self, program, found):
        native = found["native"] and found["native"][0]
        reason = "the time of --budget was over" if native is None else cannot(native)
        if reason is not None:
            return self.not_run(program, reason)
        for mode, outcome in found.items():
            if outcome is not None:
                self.record(program, mode, native, *outcome)
        return None


def graphs(cover):
    if not cover or not cover["graph_launches"]:
        return "-"
    return f"{cover['graphs']['bound']}/{cover['graph_launches']}"


def rows(records):
    """The table on the screen: a line for each program."""
    by_program = {}
    for record in records:
        by_program.setdefault(record["program"], {})[record["mode"]] = record
    made = []
    for name, modes in by_program.items():
        words = [modes[m]["verdict"] if m in modes else "-" for m in MODES]
        cover = (modes.get("random") or {}).get("coverage")
        bound = f"{cover['bound']}/{cover['launches']}" if cover else "-"
        ratios = overhead.of_modes(modes)
        made.append([name, *words, bound, graphs(cover),
                     *(f"{r:.2f}" if r else "-" for r in ratios)])
    return made


HEADINGS = ["program", *MODES, "bound", "graphs", "first s, daemon", "steady, daemon"]


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the programs and exit")
    parser.add_argument("--only", metavar="WORDS", help="programs whose names hold one of these")
    parser.add_argument("--modes", metavar="MODES", default=",".join(MODES),
                        help="comma-separated, default: " + ",".join(MODES))
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="runs at once; above 1 no overhead is told (default 1)")
    parser.add_argument("--budget", type=float, default=0, metavar="SECONDS",
                        help="begin no run after this time")
    parser.add_argument("--limit", type=float, default=0, metavar="SECONDS",
                        help="end a run after this time at the latest")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of the table")
    parser.add_argument("--out", metavar="DIR",
                        help="results (default: $OUT, else bench/results/compat)")
    parser.add_argument("--smoke", action="store_true",
                        help="a few programs over the software libcuda; no GPU is used")
    parser.add_argument("--llama-cpp", metavar="DIR", help="a build of llama.cpp")
    parser.add_argument("--llama-model", metavar="FILE", help="its model (.gguf)")
    parser.add_argument("--cuda-samples", metavar="DIR", help="a build of NVIDIA's cuda-samples")
    parser.add_argument("--samples-at-once", type=int, default=1, metavar="N",
                        help="programs of cuda-samples at a time in a run (default 1)")
    parser.add_argument("--pytorch-source", metavar="DIR",
                        help="PyTorch's source of the installed version")
    options = parser.parse_args(arguments)
    options.modes = [m.strip() for m in options.modes.split(",") if m.strip()]
    for mode in options.modes:
        if mode not in MODES:
            parser.error(f"unknown mode '{mode}'; there are {', '.join(MODES)}")
    if "native" not in options.modes:
        options.modes.insert(0, "native")
    if options.jobs < 1:
        parser.error("--jobs must be at least 1")
    options.out = options.out or os.environ.get("OUT") or str(
        harness.ROOT / "bench" / "results" / "compat")
    return options


def main():
    options = parse()
    listed = programs.chosen(options)
    if not listed:
        print(f"compat.py: no program's name holds '{options.only}'; see --list", file=sys.stderr)
        return 2
    if options.list:
        print(harness.table([[p.name, p.missing() or "can run", p.about] for p in listed],
                            ["program", "here", "what"]))
        return 0
    if not pathlib.Path(harness.vitamin()[0]).exists():
        print(f"compat.py: no vitamin in {harness.prefix()}. Make a tree with bench/install_tree, "
              "or name one in VITAMIN_PREFIX", file=sys.stderr)
        return 2
    results = harness.Results(options.out, "compat_smoke" if options.smoke else "compat")
    results.add({"versions": versions(), "jobs": options.jobs})
    with tempfile.TemporaryDirectory(prefix="vitamin-compat-") as directory:
        suite = Suite(options, results, Surroundings(options.smoke, directory))
        bad = suite.run(listed, options.modes)
    if not options.json:
        print("\n" + harness.table(rows(suite.records), HEADINGS))
        print(f"\n{suite.done} runs, {bad} not equal to native; {results.path}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
