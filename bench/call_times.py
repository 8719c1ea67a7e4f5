#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the host's time of a program goes: entry points of the driver, natively and under Vitamin.

The program runs natively and under a policy in turn, each time with a library that times every call
of an entry point that Vitamin overrides, the driver's part included. What a call takes longer under
Vitamin, times the calls, is what that entry point costs the program on its threads. Entry points
that Vitamin does not override are not timed.
"""

EXAMPLES = """\
examples:
  call_times.py -- python3 train.py
  call_times.py --policy random --rounds 5 -- ./decode
  call_times.py --analyse bench/results/engines/call_times.jsonl

A call's time is the mean without the hundredth of the calls that took longest: modules that are
loaded and graphs that are made within them. The difference is the median over the rounds.

exit codes: 0; 1 a run of the program failed; 2 call_times.py cannot run: a line says why
"""

import argparse
import collections
import json
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import harness  # noqa: E402

NATIVE = "native"


def library():
    return harness.prefix() / "lib" / "vitamin" / "bench" / "call_times.so"


def run_once(program, policy, timeout):
    """What the calls of its processes took: entry point to calls, ns and the histogram."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {"VITAMIN_CALL_TIMES": directory, "LD_PRELOAD": str(library())}
        words = []
        if policy == NATIVE:
            environment["VITAMIN_CALL_TIMES_NATIVE"] = "1"
        else:
            # vitamin run would preload its own library, and what it preloads is not timed.
            words = [*harness.vitamin("run", "--quiet", "--policy", policy), "--", "env",
                     f"LD_PRELOAD={environment.pop('LD_PRELOAD')}"]
        result = harness.run([*words, *program], timeout, environment)
        if not result.ok:
            raise harness.Refusal(f"{policy}: {result.why()}")
        found = {}
        for file in sorted(pathlib.Path(directory).glob("*.jsonl")):
            for line in file.read_text().splitlines():
                record = json.loads(line)
                before = found.setdefault(record["entry"], {"calls": 0, "ns": 0,
                                                            "by_magnitude": []})
                before["calls"] += record["calls"]
                before["ns"] += record["ns"]
                before["by_magnitude"] = [sum(pair) for pair in zip(
                    before["by_magnitude"] or [0] * len(record["by_magnitude"]),
                    record["by_magnitude"])]
        if not found:
            raise harness.Refusal(f"{policy}: the program called nothing that Vitamin overrides")
        return {"seconds": result.seconds, "entries": found}


def usual_ns(entry):
    """The mean time of a call without the longest hundredth, from powers of two: each counts as
    three quarters of its power."""
    left, total = entry["calls"] - entry["calls"] // 100, 0.0
    for magnitude, calls in enumerate(entry["by_magnitude"]):
        taken = min(left, calls)
        total += taken * 0.75 * 2 ** magnitude
        left -= taken
    return total / (entry["calls"] - entry["calls"] // 100)


def analyse(records):
    """A row for each entry point, the dearest first."""
    rounds = collections.defaultdict(dict)
    policies = {}
    for record in records:
        if "entries" in record:
            rounds[record["round"]][record["arm"]] = record["entries"]
            policies[record["arm"]] = True
    arm, = [name for name in policies if name != NATIVE]
    names = sorted({name for pair in rounds.values() for entries in pair.values()
                    for name in entries})
    rows = []
    for name in names:
        pairs = [(pair[NATIVE][name], pair[arm][name]) for pair in rounds.values()
                 if name in pair.get(NATIVE, {}) and name in pair.get(arm, {})]
        if not pairs:
            continue
        native = harness.median([usual_ns(n) for n, _ in pairs])
        more = harness.median([usual_ns(v) - usual_ns(n) for n, v in pairs])
        calls = harness.median([v["calls"] for _, v in pairs])
        rows.append({"entry": name, "calls": calls, "native_us": native / 1e3,
                     "more_us": more / 1e3, "more_ms": more * calls / 1e6})
    return arm, sorted(rows, key=lambda row: -row["more_ms"])


def show(records):
    arm, rows = analyse(records)
    print(harness.table(
        [[row["entry"], f"{row['calls']:.0f}", f"{row['native_us']:.2f}",
          f"{row['more_us']:+.2f}", f"{row['more_ms']:+.2f}"] for row in rows],
        ["entry point", "calls", "natively, us", f"{arm}, us more", "ms more in all"]))
    print(f"\nall: {sum(row['more_ms'] for row in rows):+.2f} ms more")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="fifo", help="policy of the other arm (fifo)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each arm (3)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that a run may take")
    parser.add_argument("--out", default=harness.default_output(), help="where results are kept")
    parser.add_argument("--analyse", metavar="FILE", help="the table of kept results")
    parser.add_argument("program", nargs="*", help="the program and its arguments, after --")
    options = parser.parse_args()
    if options.analyse:
        lines = pathlib.Path(options.analyse).read_text().splitlines()
        show([json.loads(line) for line in lines])
        return 0
    if not options.program or options.rounds < 1:
        parser.error("name a program after --, and at least one round")
    if options.policy == NATIVE:
        parser.error("the other arm is native already: name a policy, fifo for example")
    if not library().exists():
        raise harness.Refusal(f"there is no {library()}: run bench/install_tree first")
    results, records = harness.Results(options.out, "call_times"), []
    for number in range(options.rounds):
        arms = [NATIVE, options.policy]
        for arm in arms if number % 2 == 0 else reversed(arms):
            print(f"round {number + 1} of {options.rounds}: {arm}", file=sys.stderr, flush=True)
            try:
                record = run_once(options.program, arm, options.timeout)
            except harness.Refusal as refusal:
                print(f"call_times.py: {refusal}", file=sys.stderr)
                return 1
            records.append({"round": number, "arm": arm, **record})
            results.add(records[-1])
    show(records)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (harness.Refusal, OSError) as error:
        print(f"call_times.py: {error}", file=sys.stderr)
        sys.exit(2)
