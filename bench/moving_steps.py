#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Why a step of 100 short launches takes longer under `random`, where each goes to other SMs.

    moving_steps.py [--out DIR]            four minutes
    moving_steps.py --arms 'random;random, no executables' --repeats 3
                                           these arms alone, in turn
    moving_steps.py --analyse FILE         the tables of kept results, anywhere

An arm takes 15 s on an H200. Its steps take three of these, and the start of the process the rest.

Three explanations, each with the measurement that would show it (programs/moving_steps.cpp):

  queues       the device looks at queues that wait for each other in turn: natively a chain over
               many queues of green contexts costs more for each kernel than one over two, more so
               where all of it is submitted ahead; under Vitamin a window makes steps shorter
  calls        calls of another thread hold up the driver: natively steps beside a thread that
               makes calls of one kind are longer than beside nothing, and with three calls for
               each launch (59 queues) more so than with one
  executables  Vitamin's worker makes executables of a graph for every part while the steps run:
               they are longer behind the first launches of a graph than before and later, and not
               with VITAMIN_GRAPH_MEMORY=0

Raw values: OUT/moving_steps.jsonl. Exit codes: 0; 2 it cannot run.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import harness

RANDOM = {"policy": "random"}
# How the steps around a graph are run; `environment` and `window` as harness.run takes them.
ARMS = {
    "native": {},
    "fifo": {"policy": "fifo"},
    "random": RANDOM,
    "random, no executables": {**RANDOM, "environment": {"VITAMIN_GRAPH_MEMORY": "0"}},
    "random, window 0": {**RANDOM, "window": "0"},
    "random, window 50us": {**RANDOM, "window": "50us"},
    "random, window 500us": {**RANDOM, "window": "500us"},
    "random again": RANDOM,
    "native again": {},
}
NATIVE = ("queues", "beside")  # what the program measures without Vitamin
BEHIND = "0 to 0.05 s"  # behind the first launches of the graph


def run(results, measurement, arm, small, repeat=1, policy=None, window=None, environment=None):
    command = [harness.program("moving_steps"), measurement, *(["--small"] if small else [])]
    if small:  # over the software driver
        environment = {**(environment or {}),
                       "LD_LIBRARY_PATH": str(harness.prefix() / "lib" / "soft")}
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "report.json"
        if policy:
            command = harness.under_vitamin(command, policy, path, seed=1, window=window)
        result = harness.run(command, 600 if small else 60, environment)
        counted = harness.coverage(harness.read_report(path))
    results.add({"measurement": measurement, "arm": arm, "repeat": repeat, "ok": result.ok,
                 "why": result.why(), "seconds": result.seconds, "environment": environment or {},
                 "lines": result.lines, "coverage": counted})
    if not result.ok:
        print(f"moving_steps: {measurement}, {arm}: {result.why()[:200]}", file=sys.stderr)


def measure(options):
    if not pathlib.Path(harness.program("moving_steps")).exists():
        raise harness.Refusal(f"there is no moving_steps in {harness.prefix()}: run "
                              "bench/install_tree, or name a tree in VITAMIN_PREFIX")
    results = harness.Results(options.out, "moving_steps")
    for measurement in () if options.arms else NATIVE:
        run(results, measurement, "native", options.smoke)
    for repeat in range(1, options.repeats + 1):
        for arm in options.arms or ARMS:
            run(results, "graphs", arm, options.smoke, repeat, **ARMS[arm])
    return pathlib.Path(options.out) / "moving_steps.jsonl"


def read(path):
    """The records of the last command in a file."""
    records = []
    for line in pathlib.Path(path).read_text().splitlines():
        record = json.loads(line)
        records = [] if "header" in record else records
        if "measurement" in record:
            records.append(record)
    return records


def lines_of(records, measurement):
    return [line for r in records if r["measurement"] == measurement for line in r["lines"]]


def queues(records):
    """{(queues, how far ahead): µs a kernel}."""
    return {(int(x["queues"]), x["ahead"]): x["us"] for x in lines_of(records, "queues")}


def beside(records):
    """{(what the thread does, queues): (µs a step, calls in a millisecond)}."""
    return {(x["beside"], int(x["queues"])): (x["us"], x["calls_per_ms"])
            for x in lines_of(records, "beside")}


def repeated(records):
    """(arm, its record) of each program with a graph; of each repeat where there are several."""
    several = any(r.get("repeat", 1) > 1 for r in records)
    return [(f"{r['arm']}, repeat {r['repeat']}" if several else r["arm"], r)
            for r in records if r["measurement"] == "graphs"]


def graphs(records):
    """{arm: {when: µs}}."""
    return {arm: {x["when"]: x["us"] for x in r["lines"]}
            for arm, r in repeated(records) if r["lines"]}


def ratio(above, below):
    return "–" if above is None or not below else f"{above / below:.2f} ×"


def verdicts(records):
    """What each explanation's measurement shows, a line each."""
    chain, other, steps = queues(records), beside(records), graphs(records)
    for ahead in ("ten", "all") if chain else ():
        yield (f"queues: a kernel of a chain over 59 queues against over 2, {ahead} ahead: "
               + ratio(chain.get((59, ahead)), chain.get((2, ahead))))
    names = [name for name, count in other if count == 1 and name != "nothing"]
    for count in (1, 59) if other else ():
        nothing = other.get(("nothing", count), (None,))[0]
        found = {name: other[name, count][0] for name in names if (name, count) in other}
        worst = max(found, key=found.get, default=None)
        yield (f"calls: a step over {count} queue{'s' * (count > 1)} beside "
               f"{worst or 'a thread'}, against beside nothing: "
               + ratio(found.get(worst), nothing))
    for arm, r in repeated(records):
        if r["arm"] in ("random", "random, no executables"):
            found = steps.get(arm, {})
            yield (f"executables: {arm}: a step right behind the graph against before: "
                   + ratio(found.get(BEHIND), found.get("before")))


def report(records):
    chain, other, steps = queues(records), beside(records), graphs(records)
    cell = lambda value: "–" if value is None else f"{value:.2f}"
    parts = []
    if chain:
        parts.append(harness.table(
            [[count, cell(chain.get((count, "ten"))), cell(chain.get((count, "all")))]
             for count in sorted({count for count, _ in chain})],
            ["queues", "µs a kernel, ten ahead", "all ahead"]))
    if other:
        parts.append(harness.table(
            [[name, f"{other[name, 1][1]:.1f}", cell(other[name, 1][0]),
              cell(other.get((name, 59), (None,))[0])] for name, count in other if count == 1],
            ["another thread", "calls in a ms", "µs a step, one queue", "59 queues"]))
    whens = list(dict.fromkeys(when for found in steps.values() for when in found))
    parts.append(harness.table(
        [[when, *(cell(found.get(when)) for found in steps.values())] for when in whens],
        ["µs a step", *steps]))
    made = [[arm, (r["coverage"]["graphs"] or {}).get("made", "–")]
            for arm, r in repeated(records) if r.get("coverage")]
    if made:
        parts.append(harness.table(made, ["arm", "executables made"]))
    return "\n\n".join([*parts, "\n".join(verdicts(records))])


def arms(text):
    names = [name.strip() for name in text.split(";")]
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no arm {unknown[0]!r}; the arms are {'; '.join(ARMS)}")
    return names


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(__doc__.splitlines()[1:]))
    parser.add_argument("--analyse", metavar="FILE")
    parser.add_argument("--arms", type=arms, metavar="ARM;ARM...",
                        help="of the steps around a graph; nothing else is measured then")
    parser.add_argument("--repeats", type=int, default=1, metavar="N",
                        help="of the arms, in turn (default 1)")
    parser.add_argument("--smoke", action="store_true",
                        help="as little as shows that it works, over the software driver")
    parser.add_argument("--out", default=harness.default_output())
    return parser.parse_args()


def main():
    options = parse()
    try:
        print(report(read(options.analyse or measure(options))))
        return 0
    except (harness.Refusal, OSError) as error:
        print(f"moving_steps: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
