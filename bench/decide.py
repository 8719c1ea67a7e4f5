# SPDX-License-Identifier: Apache-2.0
"""The evaluation that decides small effects: arms in turn in the same living processes.

    decide.py decode-prefill --do noise,speeds        block noise, and speeds of every arm to ± 1 %
    decide.py W1 --arms mps,alone:0,alone:1,ours:throughput
    decide.py decode-prefill --do found               how soon a policy finds its arrangement
    decide.py phases                                  phases that change every 5 s
    decide.py slo-BE --loads 0.2,0.5,0.8              service times, and live open loops as a check
    decide.py --smoke                                 seconds, on the software device
    decision/decision_report.py                       tables, from the raw results, anywhere

Cells: decision/cells.py. Arms: decision/arms.py. Raw samples: OUT/CELL.jsonl, one JSON object a
line. Exit codes: 0; 2 it cannot run; 3 the budget ended it (what was measured is kept).
"""

import argparse
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "evaluation"), str(HERE / "decision")]

import arms  # noqa: E402
import cells  # noqa: E402
import harness  # noqa: E402
import modes  # noqa: E402
import session  # noqa: E402
import steps  # noqa: E402
from processes import JobFailed  # noqa: E402

STEPS = ("profile", "noise", "speeds", "found", "phases", "service")


def default_steps(definition):
    if definition.phases:
        return ["phases"]
    if definition.row == "training pairs":
        return ["profile", "speeds"]
    return ["service"] if definition.row == "`slo`" else ["speeds", "found"]


def measure(name, options, directory, surroundings):
    definition = cells.definition(name, options.device)
    chosen = [arms.arm(a, len(definition.jobs)) for a in options.arms or definition.arms]
    options.trim = definition.trim
    results = harness.Results(options.out, name.replace("+", "-"), more=options.more)
    cell = session.Cell(name, definition.jobs, options, surroundings, results, directory)
    cell.add({"definition": {"tier": definition.tier, "row": definition.row,
                             "arms": [a.name for a in chosen], "block_s": options.block}})
    try:
        cell.start(list(dict.fromkeys(a.group for a in chosen)))
        for step in options.do or default_steps(definition):
            more = [definition] if step == "phases" else []
            getattr(steps, step)(cell, chosen, *more)
            cell.rest()
        return 0
    except steps.OutOfTime:
        cell.say(f"the budget of {options.budget:.0f} s is spent")
        return 3
    finally:
        try:
            cell.rest()
        except (JobFailed, OSError):
            pass  # its failure is what ends the cell
        cell.close()


def run(name, options):
    with tempfile.TemporaryDirectory(prefix="vitamin-decide-") as directory:
        try:
            if not (harness.prefix() / "bin" / "vitamin").exists():
                raise harness.Refusal(f"there is no Vitamin in {harness.prefix()}: run "
                                      "bench/install_tree, or name a tree in VITAMIN_PREFIX")
            jobs = len(cells.definition(name, options.device).jobs)
            awake = jobs * options.pin if options.awake and options.device == "cuda" else 0
            with modes.awake(awake), \
                    modes.Surroundings(directory, options.device) as surroundings:
                return measure(name, options, directory, surroundings)
        except (harness.Refusal, JobFailed) as error:
            print(f"decide: {error}", file=sys.stderr)
            return 2


def parse():
    words = lambda text: [w for w in text.split(",") if w]
    numbers = lambda text: [float(w) for w in words(text)]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(__doc__.splitlines()[1:]))
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(cells.CELLS))
    parser.add_argument("--smoke", action="store_true", help="on the software device")
    parser.add_argument("--do", type=words, help=f"of {', '.join(STEPS)}; default: the cell's own")
    parser.add_argument("--arms", type=words)
    parser.add_argument("--block", type=float, default=0.25, help="seconds of a block")
    parser.add_argument("--settle", type=float, default=0.15,
                        help="seconds between a change of policy and its block")
    parser.add_argument("--rounds", type=int, default=60, help="at most")
    parser.add_argument("--least-rounds", type=int, default=12)
    parser.add_argument("--interval", type=float, default=0.01,
                        help="rounds end when every arm's objective, relative to the first arm's, "
                        "is known to this, half of the 95 %% interval")
    parser.add_argument("--stretch", type=float, default=6, help="noise: seconds of a stretch")
    parser.add_argument("--noise-arms", type=words, help="noise: of --arms; default: all pairs")
    parser.add_argument("--policies", type=words, default=["throughput"],
                        help="found: of vitamind")
    parser.add_argument("--repeats", type=int, default=3, help="found: of each policy")
    parser.add_argument("--found-seconds", type=float, default=60)
    parser.add_argument("--phase", type=float, default=5, help="phases: seconds of a phase")
    parser.add_argument("--phase-rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=30, help="service: of a block")
    parser.add_argument("--open-loads", type=numbers, default=[0.5], help="service: live loops")
    parser.add_argument("--open-seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of orders and arrivals")
    parser.add_argument("--budget", type=float, default=540, help="seconds of a cell")
    parser.add_argument("--out")
    parser.add_argument("--more", action="store_true", help="add to the results that there are")
    parser.add_argument("--pin", type=int, default=3, help="cores of each job; 0: all")
    parser.add_argument("--nice", type=int, default=-10, help="of the jobs, where it is allowed")
    parser.add_argument("--no-awake", dest="awake", action="store_false",
                        help="let the jobs' processors sleep (programs/keep_awake)")
    parser.add_argument("--device", choices=["cuda", "cpu", "soft"], default="cuda",
                        help="cpu: PyTorch with tiny shapes; soft: the demo programs")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--start-timeout", type=float, default=180)
    if "--smoke" in sys.argv:  # what is given besides counts
        parser.set_defaults(
            device="soft", rounds=2, least_rounds=2, settle=0.1, block=1.0, stretch=2.0, repeats=1,
            found_seconds=2.0, phase=1.0, phase_rounds=1, requests=4, open_seconds=2.0)
    options = parser.parse_args()
    for step in options.do or ():
        if step not in STEPS:
            parser.error(f"--do {step}: one of {', '.join(STEPS)}")
    if options.smoke:
        options.cells = options.cells or ["decode-prefill"]
    if not options.cells:
        parser.error("name a cell: " + ", ".join(cells.CELLS))
    options.tiny = options.tiny or options.device == "cpu"
    options.out = options.out or os.environ.get("OUT") or str(
        harness.ROOT / "bench" / "results" / "decide")
    return options


def main():
    options = parse()
    code = 0
    try:
        with harness.interruptible():
            for name in options.cells:
                harness.check_interruption()
                code = max(code, run(name, options))
                if code == 2:
                    break
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(code)


if __name__ == "__main__":
    main()
