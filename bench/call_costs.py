#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each kind of call costs a PyTorch program natively and under Vitamin, side by side.

    call_costs.py --rounds 6                 seven living processes, asked in random order
    call_costs.py --arms native,fifo,random
    call_costs.py --analyse FILE             the table of kept results, anywhere

Arms: native, native again (what differs between both is the machine), green (a green context of 64
SMs that the program made itself), fifo (whole device), static (a fixed half), random (another part
for every launch), daemon (the only client of a vitamind, policy throughput). One process of each
arm lives from the first round to the last; in a round each is asked once while the others wait.
Raw values: OUT/call_costs.jsonl. Exit codes: 0; 2 it cannot run.
"""

import argparse
import json
import pathlib
import random
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation"), str(HERE / "decision"), str(HERE / "daemon")]

import common  # noqa: E402
import harness  # noqa: E402
from paired import bootstrap  # noqa: E402
from processes import Job, JobFailed  # noqa: E402

WORKER = HERE / "compat" / "programs" / "call_costs.py"
POLICIES = {"fifo": "fifo", "static": "static:parts=2", "random": "random"}
ARMS = ("native", "native again", "green", *POLICIES, "daemon")
START, ASK = 180, 120  # seconds


class Processes:
    """One process of each arm."""

    def __init__(self, names):
        self.daemon, self.jobs = None, {}
        for name in names:
            words, more = [], []
            if name in POLICIES:
                words = [*harness.vitamin("run", "--quiet", "--policy", POLICIES[name]), "--"]
            elif name == "green":
                more = ["--green", 64]
            elif name == "daemon":
                self.daemon = common.Daemon("throughput", {}, watch=False)
                words = [*harness.vitamin("run", "--quiet", "--daemon", "--socket",
                                          str(self.daemon.socket)), "--"]
            self.jobs[name] = Job(name, more, words, program=[sys.executable, str(WORKER)])

    def ready(self):
        """The arms that can be asked, and why the others cannot."""
        failed = {}
        for name, job in list(self.jobs.items()):
            try:
                job.wait_ready(START)
            except JobFailed as error:
                failed[name] = str(error)
                del self.jobs[name]
        return failed

    def end(self):
        for job in self.jobs.values():
            job.end()
        if self.daemon:
            self.daemon.end()


def measure(options):
    results = harness.Results(options.out, "call_costs")
    draw, records = random.Random(options.seed), []
    processes = Processes(options.arms)
    try:
        failed = processes.ready()
        for name, why in failed.items():
            results.add({"arm": name, "failed": why})
            print(f"call_costs: {name}: {why}", file=sys.stderr)
        if "native" in failed:
            raise harness.Refusal("the native process does not run")
        limit = time.monotonic() + options.budget
        for number in range(options.rounds):
            if time.monotonic() > limit:
                break
            order = list(processes.jobs)
            draw.shuffle(order)
            for name in order:
                answer = processes.jobs[name].ask_text("measure", ASK)
                records.append({"round": number, "arm": name, "us": answer["us"]})
                results.add(records[-1])
    finally:
        processes.end()
    return records


def read(path):
    """The records of the last command in a file."""
    records = []
    for line in pathlib.Path(path).read_text().splitlines():
        record = json.loads(line)
        records = [] if "header" in record else records
        if "us" in record:
            records.append(record)
    return records


def by_kind(records):
    """Of each kind of call, of each arm its microseconds by round; rounds that every arm has."""
    arms = [a for a in ARMS if any(r["arm"] == a for r in records)]
    rounds = {}
    for r in records:
        rounds.setdefault(r["round"], {})[r["arm"]] = r["us"]
    whole = [found for _, found in sorted(rounds.items()) if len(found) == len(arms)]
    kinds = list(records[0]["us"]) if records else []
    return {kind: {arm: [r[arm][kind] for r in whole] for arm in arms} for kind in kinds}


def difference_of(ours, native):
    """Median over rounds of the difference in the same round, and its 95 % interval."""
    deltas = [a - b for a, b in zip(ours, native)]
    return bootstrap(len(deltas), lambda drawn: harness.median([deltas[i] for i in drawn]))


def words(found):
    """Such a difference, and half of its interval."""
    return f"{found.value:+.2f} ± {(found.high - found.low) / 2:.2f}"


def difference(ours, native):
    """Both in words."""
    if len(ours) < 2:
        return f"{ours[0] - native[0]:+.2f}" if ours else "–"
    return words(difference_of(ours, native))


def rows(records):
    for kind, arms in by_kind(records).items():
        yield [kind, f"{harness.median(arms['native']):.2f}",
               *(difference(times, arms["native"]) for arm, times in arms.items()
                 if arm != "native")]


def heads(records):
    arms = next(iter(by_kind(records).values()), {})
    return ["µs", "native", *(a for a in arms if a != "native")]


def report(records):
    count = len({r["round"] for r in records})
    return harness.table(list(rows(records)), heads(records)) + \
        f"\n\n{count} rounds; native: median; others: median of the difference to native of the " \
        "same round, ± half of its 95 % interval"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(__doc__.splitlines()[1:]))
    parser.add_argument("--analyse", metavar="FILE")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1, help="of the order within a round")
    parser.add_argument("--budget", type=float, default=180, help="seconds of rounds")
    parser.add_argument("--out", default=harness.default_output() + "/compat")
    options = parser.parse_args()
    for name in options.arms:
        if name not in ARMS:
            parser.error(f"there is no arm '{name}': {', '.join(ARMS)}")
    return options


def main():
    options = parse()
    try:
        if options.analyse:
            print(report(read(options.analyse)))
            return 0
        if not (harness.prefix() / "bin" / "vitamin").exists():
            raise harness.Refusal(f"there is no Vitamin in {harness.prefix()}: run "
                                  "bench/install_tree, or name a tree in VITAMIN_PREFIX")
        print(report(measure(options)))
        return 0
    except (harness.Refusal, JobFailed, OSError) as error:
        print(f"call_costs: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
