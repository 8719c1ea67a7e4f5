#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Vitamin adds to a program's batches, from its first one on: living processes take turns.

A round starts one fresh process of each arm: natively, natively once more, under `vitamin run
--policy fifo`, and as the only client of a vitamind. Then the processes take turns, in an order
that is drawn for each turn: one does a few equal batches while the others wait. So what drifts more
slowly than a cycle of turns (clocks) meets all arms alike, which start.py's processes, measured one
behind the other, do not offer. Of each turn the first fifth of its batches, in which a process
finds cold caches, counts only within the first second.

Ratios to `native`: of the first second, from sums of each round; steady, behind the first second,
from sums of turns. From eight rounds on, an interval is told: rounds are drawn again, and turns of
the rounds drawn. It holds the truth in some nine of ten cases. `native again` is the noise.
"""

EXAMPLES = """\
examples:
  turns.py                                            PyTorch eager training
  turns.py --program "JAX training" --batches 8 --turns 30 --rounds 6
  turns.py --smoke                                    over the software libcuda
  turns.py --program "JAX training" --batches 20 --samples
  turns.py --analyse turns.jsonl --library build/release/lib/libvitamin_cuda.so
  turns.py --analyse bench/results/compat/turns.jsonl

With --samples a signal interrupts the processes at each tick of their CPU time, and the tables say
in which library they were then, behind the first second, and with --library in which function of
Vitamin's: where the time goes that a ratio above 1 tells of.

exit codes: 0; 1 a process failed or its results differ; 2 turns.py cannot run: a line says why
"""

import contextlib
import json
import pathlib
import random
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "decision")]

import compat  # noqa: E402
import start  # noqa: E402  (finds the modules of its neighbours)
import harness  # noqa: E402
import paired  # noqa: E402
import processes  # noqa: E402
import programs  # noqa: E402
import samples  # noqa: E402

FIRST_S = 1.0  # of native batches
ROUNDS = 8  # below which rounds that are drawn again say too little
DROPPED = 0.2  # of a turn's batches, at its begin


class Surroundings(compat.Surroundings):
    """With --samples, what takes them is around each process, too."""

    def __init__(self, options, directory):
        super().__init__(options.smoke, directory)
        self.samples = options.samples

    def environment(self, name):
        return {**super().environment(name),
                **(samples.environment(self.directory) if self.samples else {})}


def take_turns(options, of, seconds, draw, directory):
    """What a round found: "turns" {arm: for each turn a list of its batches' seconds}, "hashes",
    and with --samples "samples"."""
    found, windows = {arm: [] for arm in of}, {arm: [] for arm in of}
    for _ in range(options.turns):
        order = list(of)
        draw.shuffle(order)
        for arm in order:
            begin = time.monotonic_ns()
            found[arm].append(of[arm].job.ask_text(str(options.batches), seconds)["turn"])
            windows[arm].append((begin, time.monotonic_ns()))
    record = {"turns": found, "hashes": {}}
    if options.samples:
        later = first_turns(found["native"])
        record["samples"] = {
            arm: samples.taken(directory, process.job.process.pid, windows[arm][later:])
            for arm, process in of.items()}
    for arm, process in of.items():
        process.job.process.stdin.close()
        record["hashes"][arm] = process.hashes(seconds)
    return record


def measure(options, program, surroundings, results):
    """The records of all rounds, also written as they come."""
    draw, records = random.Random(options.seed), []
    at_once = max(1, options.prepare // len(options.arms))
    for wave in range(0, options.rounds, at_once):
        numbers = range(wave, min(options.rounds, wave + at_once))
        if options.deadline and time.monotonic() > options.deadline:
            break
        with contextlib.ExitStack() as started:  # also where one of them does not start
            ready = {}
            for number, arm in ((n, arm) for n in numbers for arm in options.arms):
                process = start.Process(program, arm, number, surroundings, ["--turns"])
                started.callback(process.end)
                ready.setdefault(number, {})[arm] = process
            for process in (p for of in ready.values() for p in of.values()):
                process.wait_ready(program.seconds)
            time.sleep(options.settle)
            for number, of in ready.items():
                record = {"round": number}
                try:
                    record.update(take_turns(options, of, program.seconds, draw,
                                             surroundings.directory))
                except processes.JobFailed as error:
                    record["error"] = str(error)
                for process in of.values():
                    process.end()
                records.append(record)
                results.add(record)
                if not options.json:
                    print(f"round {number}: " + record.get("error", "done"), file=sys.stderr,
                          flush=True)
    return records


def first_turns(native):
    """How many turns the first second has; at least one, at most half."""
    spent = 0.0
    for count, turn in enumerate(native, 1):
        spent += sum(turn)
        if spent >= FIRST_S:
            break
    return min(count, max(1, len(native) // 2))


def settled(turn):
    """Seconds of a turn's batches behind its first fifth."""
    return sum(turn[int(DROPPED * len(turn)):])


def analyse(records, baseline="native"):
    """{arm: {"first": interval, "steady": interval, "rounds": n, "turns": n}}; no interval from
    fewer than ROUNDS rounds."""
    rounds = [r["turns"] for r in records if "turns" in r]
    made = {}
    for arm in (a for a in (rounds[0] if rounds else ()) if a != baseline):
        counts = [first_turns(r[baseline]) for r in rounds]
        firsts = [[sum(map(sum, r[a][:n])) for r, n in zip(rounds, counts)]
                  for a in (arm, baseline)]
        later = [[(settled(x), settled(y)) for x, y in zip(r[arm][n:], r[baseline][n:])]
                 for r, n in zip(rounds, counts)]
        made[arm] = {"first": interval_of([[pair] for pair in zip(*firsts)]),
                     "steady": interval_of(later), "rounds": len(rounds),
                     "turns": sum(map(len, later))}
    return made


def interval_of(rounds):
    """Of the ratio of sums of pairs: rounds are drawn, then pairs of each. [value, low, high]; low
    and high are None from fewer than ROUNDS rounds."""
    def value(pairs):
        pairs = list(pairs)
        return sum(x for x, _ in pairs) / sum(y for _, y in pairs)
    whole = value(p for pairs in rounds for p in pairs)
    if len(rounds) < ROUNDS:
        return [whole, None, None]
    draw = random.Random(1)
    found = sorted(value(p for pairs in draw.choices(rounds, k=len(rounds))
                         for p in draw.choices(pairs, k=len(pairs)))
                   for _ in range(paired.RESAMPLES))
    tail = (1 - paired.CONFIDENCE) / 2
    return [whole, paired.quantile(found, tail), paired.quantile(found, 1 - tail)]


def show(interval):
    value, low, high = interval
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"


HEADINGS = ["arm", "first second", "steady", "rounds", "turns"]


def rows(found):
    return [[arm, show(r["first"]), show(r["steady"]), r["rounds"], r["turns"]]
            for arm, r in found.items()]


def sampled(records):
    """{arm: {library: samples a batch}} and {arm: {offset in Vitamin's library: samples a batch}},
    over all rounds."""
    rounds = [r for r in records if "samples" in r]
    batches = sum(sum(map(len, r["turns"]["native"][first_turns(r["turns"]["native"]):]))
                  for r in rounds)
    found = [{}, {}]
    for record in rounds:
        for arm, taken in record["samples"].items():
            for sums, what in zip(found, ("modules", "ours")):
                row = sums.setdefault(arm, {})
                for place, count in taken[what].items():
                    row[place] = row.get(place, 0) + count / batches
    return found


def counted(records):
    """{arm: (samples in Vitamin's library, all samples)}, over all rounds."""
    found = {}
    for taken in (r["samples"] for r in records if "samples" in r):
        for arm, of in taken.items():
            ours, every = found.get(arm, (0, 0))
            found[arm] = (ours + sum(n for name, n in of["modules"].items()
                                     if name.startswith(samples.OURS)),
                          every + sum(of["modules"].values()))
    return found


def share_text(ours, every):
    """The share with its 95 % interval, as of independent samples."""
    share = ours / every if every else 0
    half = 1.96 * (share * (1 - share) / every) ** 0.5 if every else 0
    return f"{100 * share:.1f} ± {100 * half:.1f} % ({ours} of {every})"


def places(by_arm, what, least=0.005):
    """A table of samples a batch, most first; `least`: of an arm's sum, below which a place is left
    out."""
    sums = {arm: sum(row.values()) for arm, row in by_arm.items()}
    names = {name for arm, row in by_arm.items() for name, n in row.items()
             if n >= least * sums[arm]}
    most = lambda name: max(row.get(name, 0) for row in by_arm.values())
    return harness.table([[name[:100], *(f"{row.get(name, 0):.3f}" for row in by_arm.values())]
                          for name in sorted(names, key=most, reverse=True)]
                         + [["all", *(f"{n:.3f}" for n in sums.values())]], [what, *by_arm])


def show_samples(options, records):
    libraries, ours = sampled(records)
    if not libraries:
        return
    print("\nsamples a batch:\n" + places(libraries, "library"))
    if options.library:
        print("\n" + places({arm: samples.functions(options.library, row)
                             for arm, row in ours.items() if row}, "function of Vitamin"))


def parse():
    parser = start.parser_of(__doc__, EXAMPLES, "turns", rounds=ROUNDS)
    parser.add_argument("--turns", type=int, default=24, help="of each process")
    parser.add_argument("--batches", type=int, default=1,
                        help="of each turn: as many as take 0.15 s or more")
    parser.add_argument("--samples", action="store_true",
                        help="tell in which library the processes are, too")
    parser.add_argument("--library", metavar="FILE",
                        help="Vitamin's preloaded library with its symbols: functions, too")
    options = start.parsed(parser)
    if options.turns < 2 or options.batches < 1 or options.rounds < 1:
        parser.error("--turns needs 2 or more, --batches and --rounds 1 or more")
    return options


def finish(options, records):
    found = analyse(records)
    print(json.dumps(found) if options.json else harness.table(rows(found), HEADINGS))
    if not options.json:
        show_samples(options, records)
    failed = [r for r in records if "error" in r]
    differ = any(len({json.dumps(h) for h in r["hashes"].values()}) > 1
                 for r in records if "hashes" in r)
    if differ:
        print("turns.py: results differ between processes", file=sys.stderr)
    return 1 if failed or differ or not found else 0


def main():
    options = parse()
    if options.analyse:
        text = pathlib.Path(options.analyse).read_text()
        return finish(options, [r for r in map(json.loads, text.splitlines()) if "round" in r])
    program, problem = start.find_program(options)
    if problem:
        print(f"turns.py: {options.program}: {problem}", file=sys.stderr)
        return 2
    results = harness.Results(options.out, options.name)
    results.add({"versions": compat.versions(), "program": program.name})
    with tempfile.TemporaryDirectory(prefix="vitamin-turns-") as directory:
        records = measure(options, program, Surroundings(options, directory), results)
    return finish(options, records)


if __name__ == "__main__":
    sys.exit(main())
