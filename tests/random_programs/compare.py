# SPDX-License-Identifier: Apache-2.0
"""Runs random CUDA programs bare and preloaded and compares what they print (README.md).

    compare.py FIRST COUNT [--policy NAME ...] [--without KIND,...] [--stop-at-first]

Environment: PROGRAM, RANDOM_KERNELS, DRIVER (directory of libcuda.so.1), LIBRARY (preloaded), FIRST
(a library that must come before it: a sanitizer's).
"""
import argparse
import concurrent.futures
import dataclasses
import os
import subprocess
import sys
import time

# What a program runs under: a policy, and its window (none: unbounded). `strict`: each launch waits
# on the host for what it comes behind.
SETTINGS = {"random": ("random", None), "static": ("static", None), "fifo": ("fifo", None),
            "strict": ("fifo", "0")}
POLICIES = tuple(SETTINGS)
BATCH = 20
WRONG = 2  # exit code of the program when memory holds wrong values; sanitizers end with others
LIMIT_MS, SHUT_DOWN_S = 6000, 60  # of a program, by itself; of what comes behind the last one
# A preloaded program may take so much longer than bare, besides its share of a busy machine.
SLOWER, SLACK_S = 10, 2.0
SLOW = "took"  # how the difference of a program begins that took longer


@dataclasses.dataclass
class Run:
    """What one program printed. `end`: "" or how the process ended in it."""
    lines: list
    end: str = ""
    seconds: float = 0.0


@dataclasses.dataclass
class Difference:
    seed: int
    policy: str
    line: str
    bare: str = ""

    def __str__(self):
        return f"seed {self.seed}, policy {self.policy}: {self.line!r} instead of {self.bare!r}"


def time_scale():
    return float(os.environ.get("VITAMIN_TEST_TIME_SCALE", "1"))


def environment(policy, seed):
    env = dict(os.environ)
    for name in [name for name in env if name.startswith("VITAMIN_")]:
        del env[name]
    env |= {"VITAMIN_SOFT_DEVICES": "2", "LD_LIBRARY_PATH": os.environ["DRIVER"]}
    first = os.environ.get("FIRST", "")
    if policy:
        name, window = SETTINGS[policy]
        env |= {"VITAMIN_POLICY": name, "VITAMIN_SEED": str(seed),
                "LD_PRELOAD": " ".join(filter(None, (first, os.environ["LIBRARY"])))}
        if window:
            env["VITAMIN_WINDOW_NS"] = window
    elif first:
        env["LD_PRELOAD"] = first
    return env


def run_to_its_end(command, env, seconds):
    """(what it printed, what it wrote to stderr, how it ended: "" with an answer)"""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace") as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            return *process.communicate(), f"no end within {seconds:.0f} s"
    if process.returncode in (0, WRONG):
        return out, err, ""
    if process.returncode < 0:
        return out, err, f"signal {-process.returncode}"
    return out, err, f"exit code {process.returncode}"


def what_was_said(err):
    """The line of stderr that says most: a sanitizer's last one says little."""
    lines = err.strip().splitlines()
    summary = [line for line in lines if line.startswith("SUMMARY: ")]
    return ": " + (summary or lines)[-1] if lines else ""


def execute(first, count, policy, options, scale=1.0):
    """{seed: Run} of the programs from the first one to the one in which the process ended."""
    limit = int(LIMIT_MS * scale * time_scale())
    command = [os.environ["PROGRAM"], str(first), str(count), "--limit-ms", str(limit), *options]
    out, err, end = run_to_its_end(command, environment(policy, first),
                                   count * limit / 1000 + SHUT_DOWN_S)
    if err and not policy:
        end = end or "wrote to stderr"
    runs, finished = {}, first
    for line in out.splitlines():
        if line == f"program {first + len(runs)}":
            runs[first + len(runs)] = Run([])
        elif line.startswith("# ") and finished in runs:
            runs[finished].seconds = float(line.split()[1]) / 1e6
            finished += 1
        elif runs:
            runs[first + len(runs) - 1].lines.append(line)
    if finished < first + count:
        runs.setdefault(finished, Run([])).end = (end or "no result") + what_was_said(err)
    elif end:
        runs[finished - 1].end = f"{end} after the last program{what_was_said(err)}"
    return runs


def execute_all(first, count, policy, options):
    """The same for all, with a new process behind one that ended early."""
    runs = {}
    while len(runs) < count:
        runs |= execute(first + len(runs), count - len(runs), policy, options)
    return runs


def first_difference(bare, preloaded):
    """(line, what bare has there) or None."""
    for number, line in enumerate(bare.lines):
        other = preloaded.lines[number] if number < len(preloaded.lines) else preloaded.end or "end"
        if other != line:
            return other, line
    if len(preloaded.lines) > len(bare.lines):
        return preloaded.lines[len(bare.lines)], "end"
    if preloaded.end != bare.end:
        return preloaded.end, bare.end
    return None


def slower(bare, preloaded):
    return preloaded.seconds > SLOWER * bare.seconds + SLACK_S * time_scale()


def compare_batch(first, count, policies, options=()):
    """Differences of the programs of a batch, each under the next policy in turn."""
    found = []
    bare = execute_all(first, count, None, options)
    for seed in range(first, first + count):
        if bare[seed].end or any("not in order" in line or "too early" in line
                                 for line in bare[seed].lines):
            found.append(Difference(seed, "bare", bare[seed].end or "wrong without the library"))
    policy = policies[(first // BATCH) % len(policies)]
    preloaded = execute_all(first, count, policy, options)
    for seed in range(first, first + count):
        if bare[seed].end:
            continue
        differs = first_difference(bare[seed], preloaded[seed])
        if differs:
            found.append(Difference(seed, policy, *differs))
        elif slower(bare[seed], preloaded[seed]):
            again = execute(seed, 1, policy, options)[seed]
            if again.end or slower(bare[seed], again):
                found.append(Difference(seed, policy, f"{SLOW} {preloaded[seed].seconds:.3f} s",
                                        f"{bare[seed].seconds:.3f} s"))
    return found


def compare(first, count, policies=POLICIES, options=(), jobs=None, stop=False, progress=None):
    """All differences, or those up to the end of the batch with the first one."""
    jobs = jobs or os.cpu_count()
    differences = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        end = first + count
        batches = [(at, min(BATCH, end - at)) for at in range(first, end, BATCH)]
        pending, done = [], 0
        while batches or pending:
            while batches and len(pending) < jobs:
                at, size = batches.pop(0)
                pending.append((at, size, pool.submit(compare_batch, at, size, policies, options)))
            at, size, task = pending.pop(0)
            found = task.result()
            differences += found
            done += size
            if progress:
                progress(done, found)
            if stop and found:
                batches.clear()
    return differences


def repeats(difference, options, times=3):
    """Whether a program still differs."""
    for _ in range(times):
        bare = execute(difference.seed, 1, None, options)[difference.seed]
        other = execute(difference.seed, 1, difference.policy, options)[difference.seed]
        if not bare.end and (first_difference(bare, other) or slower(bare, other)):
            return True
    return False


def shorten(difference, options=()):
    """The fragments that can be left out while the program still differs, and what remains."""
    run = execute(difference.seed, 1, None, options)[difference.seed]
    fragments = [int(line.split()[0]) for line in run.lines if line[:1].isdigit()]
    dropped = []
    for fragment in reversed(fragments):
        attempt = [*options, "--drop", ",".join(map(str, [*dropped, fragment]))]
        if repeats(difference, attempt, 2):
            dropped.append(fragment)
    final = [*options, "--drop", ",".join(map(str, dropped))] if dropped else list(options)
    return dropped, execute(difference.seed, 1, None, final)[difference.seed].lines


def explain(difference, options=()):
    print(difference)
    if difference.policy != "bare":
        dropped, lines = shorten(difference, options)
        print(f"  shortened (--drop {','.join(map(str, dropped))}):")
        for line in lines:
            print("    " + line)
    print(f"  repeat: compare.py {difference.seed} 1 --policy {difference.policy}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--without", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--stop-at-first", action="store_true")
    parser.add_argument("--shorten", action="store_true")
    words = parser.parse_args()
    options = (["--without", words.without] if words.without else []) + (
        ["--only", words.only] if words.only else [])
    began = time.monotonic()

    def progress(done, found):
        for difference in found:
            print(f"{done} programs, {time.monotonic() - began:.0f} s: {difference}", flush=True)

    found = compare(words.first, words.count, words.policy or POLICIES, options,
                    stop=words.stop_at_first, progress=progress)
    if words.shorten:
        for difference in found[:5]:
            explain(difference, options)
    print(f"{words.count} programs, {len(found)} differences, {time.monotonic() - began:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
