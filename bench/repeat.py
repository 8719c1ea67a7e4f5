# SPDX-License-Identifier: Apache-2.0
"""Does one program give the same bytes every time?

    repeat.py [--runs N] [--jobs N] [--modes native,random] PROGRAM [ARGUMENT...]

Runs a program of the installed tree many times, several at once (a busy machine shows what an idle
one hides), natively and under `vitamin run`, each time with another seed. A result that is not
that of most native runs is a difference; a program that differs from itself natively has a race of
its own. PROGRAM is a name in libexec/vitamin/bench, for example use_runtime_shared.
"""

import argparse
import collections
import concurrent.futures
import pathlib
import sys
import tempfile

import harness


def run_one(command, mode, seed, timeout):
    if mode == "native":
        return mode, seed, harness.run(command, timeout), None
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "report.json"
        under = harness.under_vitamin(command, mode, path, strict=True, seed=seed)
        return mode, seed, harness.run(under, timeout), harness.read_report(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--name", default="repeat", help="of the file of results")
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--modes", default="native,random")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    command = [harness.program(options.program), *options.arguments]
    results = harness.Results(options.out, options.name)
    modes = options.modes.split(",")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        # In turn, so that every mode meets the same neighbours.
        runs = [pool.submit(run_one, command, mode, seed, options.timeout)
                for seed in range(1, options.runs + 1) for mode in modes]
        outcomes = [run.result() for run in runs]

    votes = collections.defaultdict(collections.Counter)
    for mode, _, result, _ in outcomes:
        if mode == modes[0]:
            for name, value in result.hashes():
                votes[name][value] += 1
    expected = {name: counter.most_common(1)[0][0] for name, counter in votes.items()}
    rows, bad = [], 0
    for mode in modes:
        ended = different = launches = bound = 0
        names = collections.Counter()
        for _, seed, result, report in (o for o in outcomes if o[0] == mode):
            hashes = dict(result.hashes())
            differ = [name for name in expected if hashes.get(name) != expected[name]]
            covered = harness.coverage(report) or {}
            results.add({"mode": mode, "seed": seed, "ok": result.ok, "why": result.why(),
                         "differ": differ, "launches": covered.get("launches"),
                         "bound": covered.get("bound")})
            ended += result.ok
            different += bool(differ)
            names.update(differ)
            launches += covered.get("launches") or 0
            bound += covered.get("bound") or 0
        runs_of_mode = sum(o[0] == mode for o in outcomes)
        bad += different + runs_of_mode - ended
        rows.append([mode, runs_of_mode, ended, different, launches, bound,
                     ", ".join(f"{n} ({c})" for n, c in names.most_common(4)) or "-"])
    print(" ".join([options.program, *options.arguments]) + f", {options.jobs} at once")
    print(harness.table(rows, ["mode", "runs", "ended well", "differ", "launches", "bound",
                               "where"]))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
