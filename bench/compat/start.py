#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the first second of a new process costs under Vitamin, and what every later one.

Fresh processes of one program run natively, under `vitamin run --policy fifo` and as the only
client of a vitamind, in random order within each round. Each is started and built, waits, and then
does equal batches while no other one does anything. Before each batch it does fixed work on the
host that uses no GPU: how long that takes says how fast the host was at that moment. Ratios to the
native process of the same round are told as measured and at the speed of one host, with the middle
95 % of the median's distribution over rounds. `native again` beside `native` is the noise.
"""

EXAMPLES = """\
examples:
  start.py                                            PyTorch eager training, 5 rounds
  start.py --program "vLLM, eager" --rounds 3 --batches 20 --prepare 12
  start.py --smoke                                    over the software libcuda
  start.py --analyse bench/results/compat/start.jsonl

How to read it: a ratio that is 1 at the speed of one host and above 1 as measured is the host's,
unless other threads of the process, vitamind or anything else on this machine ran meanwhile: they
can share a core with the batches, and the last table tells their CPU time. A ratio that stays above
1 at one speed is Vitamin's.

exit codes: 0; 1 a process failed or its results differ; 2 start.py cannot run: a line says why
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "evaluation"),
                str(HERE.parent / "daemon")]

import common  # noqa: E402
import compat  # noqa: E402
import harness  # noqa: E402
import overhead  # noqa: E402
import processes  # noqa: E402
import programs  # noqa: E402

ARMS = ("native", "native again", "fifo", "daemon")


class Process:
    """One fresh process, built and waiting."""

    def __init__(self, program, arm, number, surroundings, arguments):
        self.arm, self.number, self.daemon = arm, number, None
        environment = surroundings.environment(f"{number}-{arm.replace(' ', '-')}")
        words = []
        self.started, self.ready_at = time.monotonic(), None
        if arm == "fifo":
            words = [*harness.vitamin("run", "--quiet", "--policy", "fifo"), "--"]
        elif arm == "daemon":
            self.daemon = common.Daemon("throughput", environment, watch=False)
            words = [*harness.vitamin("run", "--quiet", "--daemon", "--socket",
                                      str(self.daemon.socket)), "--"]
        try:
            self.job = processes.Job(arm, arguments, words, environment, list(program.command))
        except BaseException:
            if self.daemon:
                self.daemon.end()
            raise

    def wait_ready(self, seconds):
        self.job.wait_ready(seconds)
        self.ready_at = time.monotonic()

    def ages(self):
        """Seconds since it was started, and since it was seen to be built: what a process does in
        the background when it is new is over by then."""
        now = time.monotonic()
        return {"age_s": now - self.started, "idle_s": now - self.ready_at}

    def daemon_cpu(self):
        """CPU seconds that its vitamind has used so far; None without one."""
        if self.daemon is None:
            return None
        stat = pathlib.Path(f"/proc/{self.daemon.process.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def measure(self, seconds):
        """Times of the batches and the results behind them."""
        before = self.daemon_cpu()
        self.job.tell_text("go")
        found = self.job.answer(seconds)["batches"]
        self.daemon_cpu_s = None if before is None else self.daemon_cpu() - before
        return found, self.hashes(seconds)

    def hashes(self, seconds):
        """What it tells behind its last batch, until it ends."""
        hashes = []
        while True:
            try:
                record = self.job.answer(seconds)
            except processes.JobFailed:  # it has ended
                code = self.job.process.wait()
                if code != 0:
                    raise processes.JobFailed(f"{self.arm} ended with code {code}") from None
                return hashes
            if "hash" in record:
                hashes.append([record["name"], record["hash"]])

    def end(self):
        try:
            self.job.end()
        finally:
            if self.daemon:
                self.daemon.end()


def measure(options, program, surroundings, results):
    """All rounds; the records, also written as they come."""
    draw, records, order = random.Random(options.seed), [], 0
    rounds_at_once = max(1, options.prepare // len(options.arms))
    for wave in range(0, options.rounds, rounds_at_once):
        numbers = range(wave, min(options.rounds, wave + rounds_at_once))
        if options.deadline and time.monotonic() > options.deadline:
            break
        with contextlib.ExitStack() as started:  # also where one of them does not start
            ready = []
            for number, arm in ((n, arm) for n in numbers for arm in options.arms):
                ready.append(Process(program, arm, number, surroundings,
                                     ["--gate", "--calibrate", "--batches", options.batches]))
                started.callback(ready[-1].end)
            for process in ready:
                process.wait_ready(program.seconds)
            while options.after and not pathlib.Path(options.after).exists():
                time.sleep(0.1)
            time.sleep(options.settle)
            for number in numbers:
                arms = [p for p in ready if p.number == number]
                draw.shuffle(arms)
                for process in arms:
                    record = {"round": number, "arm": process.arm, "order": order,
                              "command": process.job.command, **process.ages()}
                    order += 1
                    try:
                        record["batches"], record["hashes"] = process.measure(program.seconds)
                        record["daemon_cpu_s"] = process.daemon_cpu_s
                    except processes.JobFailed as error:
                        record["error"] = str(error)
                    process.end()
                    records.append(record)
                    results.add(record)
                    progress(options, record)
    return records


def progress(options, record):
    if options.json:
        return
    shown = record.get("error") or " ".join(f"{w:.3f}" for w in record["batches"]["wall_s"])
    print(f"round {record['round']}, {record['arm']}: {shown}", file=sys.stderr, flush=True)


def show(found):
    if not found:
        return "-"
    between = f" ({found['low']:.3f} to {found['high']:.3f})" if found["low"] else ""
    return f"{found['ratio']:.3f}{between}"


def analyse(records):
    """Everything that is told, as one object."""
    return {"ratios": overhead.compare(records), "slow_batches": overhead.slow_batches(records),
            "correlation": overhead.correlation(records),
            "host_share": overhead.host_share(records), "others": overhead.others(records),
            "rounds": len(overhead.by_round(records)) if records else 0,
            "idle_s": idle(records)}


def idle(records):
    """The least and the most seconds for which the processes of each arm were built and waited."""
    found = {}
    for record in records:
        if "idle_s" in record:
            found.setdefault(record["arm"], []).append(record["idle_s"])
    return {arm: [min(seconds), max(seconds)] for arm, seconds in found.items()}


def report(found):
    lines = [f"{found['rounds']} rounds; ratios to native of the same round: median, and the "
             "middle 95 % of its distribution"]
    for what in ("first", "steady"):
        rows = [[arm, show(r[f"{what}_raw"]), show(r[f"{what}_normalized"]),
                 show(r[f"{what}_quiet"]), (r[f"{what}_quiet"] or {"rounds": 0})["rounds"]]
                for arm, r in found["ratios"].items()]
        lines += ["", harness.table(rows, ["first second" if what == "first" else "steady",
                                           "as measured", "at one host speed",
                                           "batches with a usual host", "of them"])]
    if found["idle_s"]:
        lines += ["", "built so many seconds before they were measured: " + ", ".join(
            f"{arm} {low:.0f} to {high:.0f}" for arm, (low, high) in found["idle_s"].items())]
    rows = [[arm, r["batches"], r["slow"], r["slow_first_second"],
             *("-" if r[k] is None else f"{r[k]:.2f}"
               for k in ("slowdown", "host_slow", "host_other")),
             harness.percent(found["host_share"][arm])]
            for arm, r in found["slow_batches"].items()]
    lines += ["", harness.table(rows, ["arm", "batches", "slow (> 1.2 x)", "in first second",
                                       "their slowdown", "host at them", "host at others",
                                       "slow host, of all moments"])]
    if found["others"]:
        rows = [[arm, *(f"{r[k]:.3f}" for k in ("threads", "vitamind", "elsewhere", "steal"))]
                for arm, r in found["others"].items()]
        lines += ["", harness.table(rows, ["CPU s a second of batches", "its other threads",
                                           "vitamind", "elsewhere here", "taken by the host"])]
    if found["correlation"] is not None:
        lines += ["", "correlation of a batch's time with the host's slowness: "
                      f"{found['correlation']:.2f}"]
    return "\n".join(lines)


def read(path):
    """The records of the last command in a file, and its header."""
    header, records = {}, []
    for line in pathlib.Path(path).read_text().splitlines():
        record = json.loads(line)
        if "header" in record:
            header, records = record["header"], []
        elif "arm" in record:
            records.append(record)
    return header, records


def parser_of(description, examples, name, rounds):
    """What start.py and turns.py take alike. `name`: of the file of results."""
    parser = argparse.ArgumentParser(description=description, epilog=examples,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="PyTorch eager training", metavar="NAME",
                        help="of compat.py --list, one with batches")
    parser.add_argument("--arms", default=",".join(ARMS), help="default: " + ",".join(ARMS))
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--prepare", type=int, default=4, metavar="N",
                        help="processes that are built at once, before the first is measured; "
                             "what the last ones do in the background meanwhile is not measured")
    parser.add_argument("--settle", type=float, default=1, metavar="SECONDS",
                        help="between the last process being built and the first measurement")
    parser.add_argument("--seed", type=int, default=1, help="of the order")
    parser.add_argument("--budget", type=float, default=0, metavar="SECONDS",
                        help="begin no processes after this time")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.add_argument("--name", default=name, help="of the file of results")
    parser.add_argument("--out", metavar="DIR",
                        help="results (default: $OUT, else bench/results/compat)")
    parser.add_argument("--smoke", action="store_true", help="over the software libcuda")
    parser.add_argument("--analyse", metavar="FILE", help="results that are there already")
    return parser


def parsed(parser):
    """The options, checked, as far as both take them."""
    options = parser.parse_args()
    options.arms = [a.strip() for a in options.arms.split(",") if a.strip()]
    if unknown := set(options.arms) - set(ARMS):
        parser.error(f"unknown arms: {', '.join(sorted(unknown))}")
    if "native" not in options.arms or len(options.arms) < 2:
        parser.error("--arms needs native and one more")
    options.deadline = time.monotonic() + options.budget if options.budget else None
    programs.none_supplied(options)
    if options.smoke:
        options.program, options.settle = "chains of kernels", 0
    options.out = options.out or os.environ.get("OUT") or str(
        harness.ROOT / "bench" / "results" / "compat")
    return options


def parse():
    parser = parser_of(__doc__, EXAMPLES, "start", rounds=5)
    parser.add_argument("--batches", type=int, default=24, help="of each process")
    parser.add_argument("--after", metavar="FILE",
                        help="begin to measure when FILE exists: when what else runs has ended")
    return parsed(parser)


def find_program(options):
    """The program, and why it cannot be measured here or an empty string."""
    program = next((p for p in programs.chosen(options) if p.name == options.program), None)
    if program is None:
        return None, "there is no such program; see compat.py --list"
    return program, program.missing() if program.batches else "it has no batches"


def finish(options, records):
    found = analyse(records)
    print(json.dumps(found) if options.json else report(found))
    failed = [r for r in records if "error" in r]
    hashes = {json.dumps(r.get("hashes")) for r in records if "hashes" in r}
    if len(hashes) > 1:
        print("start.py: results differ between processes", file=sys.stderr)
    return 1 if failed or len(hashes) > 1 else 0


def main():
    options = parse()
    if options.analyse:
        return finish(options, read(options.analyse)[1])
    program, problem = find_program(options)
    if problem:
        print(f"start.py: {options.program}: {problem}", file=sys.stderr)
        return 2
    results = harness.Results(options.out, options.name)
    results.add({"versions": compat.versions(), "program": program.name})
    with tempfile.TemporaryDirectory(prefix="vitamin-start-") as directory:
        records = measure(options, program, compat.Surroundings(options.smoke, directory), results)
    return finish(options, records)


if __name__ == "__main__":
    sys.exit(main())
