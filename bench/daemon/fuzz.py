#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The fuzzers of what vitamind reads, on all processors, up to a number of executions.

    fuzz.py [decode] [config] [--executions N] [--seconds N] [--processes N] [--out DIR]

Each process is one libFuzzer of its own seed; they take each other's finds from one directory. It
may be run again and again (`--seconds` is of one run): what was found and counted so far lies under
--out, and executions add up. A crash's input is kept there too, and the exit code is 1 then.
Programs come from the tree that bench/install_tree made (VITAMIN_PREFIX, or dist/ beside bench/),
inputs to start from out of the repository.
"""
import argparse
import ctypes
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import harness  # noqa: E402  (needs the path above)

FUZZERS = {
    "decode": ("decode_fuzzer", "tests/protocol/corpus", ["-max_len=1024"]),
    "config": ("config_fuzzer", "tests/config/corpus",
               ["-max_len=512", f"-dict={ROOT / 'tests/config/config.dict'}"]),
}
ADDR_NO_RANDOMIZE = 0x0040000
# Use of a stack after return is not checked here: every CI run does, and it costs a fifth.
OPTIONS = "detect_stack_use_after_return=0:malloc_context_size=5"


def without_randomisation():
    """LLVM 15's AddressSanitizer does not start with the address randomisation of newer kernels."""
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)  # has no effect where it is forbidden


def earlier(path):
    """Executions of earlier runs, from the results."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError:
        return 0
    return sum(line.get("executions", 0) for line in lines)


def number(name, text):
    found = re.findall(rf"stat::{name}:\s+(\d+)", text)
    return int(found[-1]) if found else 0


def fuzz(name, options):
    program, corpus, words = FUZZERS[name]
    directory = pathlib.Path(options.out)
    before = earlier(directory / f"fuzz_{name}.jsonl")
    results = harness.Results(directory, f"fuzz_{name}", more=before > 0)
    left = max(0, options.executions - before)
    each = -(-left // options.processes)
    found = directory / f"fuzz_{name}_found"
    found.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vitamin-fuzz-") as scratch:
        logs = [open(pathlib.Path(scratch) / f"log{i}", "w+", errors="replace")
                for i in range(options.processes)]
        begin = time.monotonic()
        running = [subprocess.Popen(
            [harness.program(program), *words, "-entropic=0", "-timeout=60", "-print_final_stats=1",
             f"-artifact_prefix={directory}/fuzz_{name}_", f"-runs={each}",
             f"-seed={before + 1 + i}", f"-max_total_time={options.seconds}", "-reload=10",
             str(found), str(ROOT / corpus)],
            stdout=log, stderr=log, cwd=scratch, preexec_fn=without_randomisation,
            env={**os.environ, "ASAN_OPTIONS": OPTIONS})
            for i, log in enumerate(logs)] if left else []
        codes = [process.wait() for process in running]
        seconds = time.monotonic() - begin
        said = []
        for log in logs:
            log.seek(0)
            said.append(log.read())
    done = [number("number_of_executed_units", text) for text in said]
    failed = [text[-3000:] for code, text in zip(codes, said) if code != 0]
    reached = [int(n) for text in said for n in re.findall(r"DONE\s+cov: (\d+)", text)]
    results.add({"fuzzer": program, "processes": len(running), "seconds": round(seconds, 1),
                 "executions": sum(done), "executions_so_far": before + sum(done),
                 "asked": options.executions, "crashes": len(failed), "said": failed[:3],
                 "branches": max(reached, default=None), "inputs": len(list(found.iterdir())),
                 "peak_mib": max((number("peak_rss_mb", text) for text in said), default=0)})
    print(f"{program}: {sum(done):,} executions in {seconds:.0f} s "
          f"({before + sum(done):,} of {options.executions:,} so far), {len(failed)} crashes",
          flush=True)
    for text in failed[:1]:
        print(text, flush=True)
    return not failed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fuzzers", nargs="*", default=list(FUZZERS))
    parser.add_argument("--executions", type=lambda text: int(float(text)), default=10 ** 8)
    parser.add_argument("--seconds", type=int, default=500, help="of each, in this run")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", default=harness.default_output())
    options = parser.parse_args()
    pathlib.Path(options.out).mkdir(parents=True, exist_ok=True)
    options.out = str(pathlib.Path(options.out).resolve())
    sys.exit(0 if all([fuzz(name, options) for name in options.fuzzers]) else 1)


if __name__ == "__main__":
    main()
