# SPDX-License-Identifier: Apache-2.0
"""Asks the machine's own driver every question of tests/differential and keeps the answers.

    differential.py [--out DIR] [--jobs N] [--keep]

The questions are asked twice: an answer that differs from itself is no rule and is reported. Traces
go to DIR/differential.tar; `--keep` also unpacks them into bench/results/differential, where the
software driver's tests read them.
"""

import argparse
import pathlib
import sys
import tarfile
import tempfile

import harness


def ask(directory, options, policy=None):
    command = [harness.program("differential"), "--all", "--out", str(directory), "--jobs",
               str(options.jobs), "--timeout", "40"]
    if policy:
        command = harness.under_vitamin(command, policy)
    result = harness.run(command, options.timeout,
                         {"VITAMIN_DIFFERENTIAL_TIMEOUT_MS": str(options.rule_timeout)})
    trouble = result.why() if result.code not in (0, 1) else ""
    print(result.output.strip()[-3000:], trouble, flush=True)
    return {p.stem: p.read_text() for p in sorted(directory.glob("*.trace"))}


def first_difference(a, b):
    for x, y in zip(a.splitlines(), b.splitlines()):
        if x != y:
            return x, y
    return "(one ends earlier)", ""


def needs_more_devices(text):
    """Whether a rule was not answered because the machine has too few devices for it."""
    return "# not answered: it needs " in text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=harness.default_output())
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--rule-timeout", type=int, default=150,
                        help="milliseconds until a call of a rule counts as blocked")
    parser.add_argument("--timeout", type=float, default=200, help="seconds of all rules")
    parser.add_argument("--once", action="store_true", help="do not ask a second time")
    parser.add_argument("--policy", help="also ask under `vitamin run` with this policy, compare")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    results = harness.Results(options.out, "differential")
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        first, second = pathlib.Path(first), pathlib.Path(second)
        answers = ask(first, options)
        again = answers if options.once else ask(second, options)
        unstable = [r for r in answers if answers[r] != again.get(r)]
        for rule, text in answers.items():
            results.add({"rule": rule, "lines": len(text.splitlines()),
                         "answered": text.endswith("# end\n"), "stable": rule not in unstable})
        for rule in unstable:
            print(f"{rule} differs from itself:\n  " +
                  "\n  ".join(first_difference(answers[rule], again.get(rule, ""))))
        if options.policy:
            with tempfile.TemporaryDirectory() as third:
                under = ask(pathlib.Path(third), options, options.policy)
            for rule in answers:
                if under.get(rule) != answers[rule] and rule not in unstable:
                    x, y = first_difference(answers[rule], under.get(rule, ""))
                    results.add({"rule": rule, "policy": options.policy, "native": x, "under": y})
                    print(f"{rule} under {options.policy}:\n  native: {x}\n  under:  {y}")
        with tarfile.open(pathlib.Path(options.out) / "differential.tar", "w") as archive:
            archive.add(first, "differential")
        if options.keep:
            kept = harness.ROOT / "bench" / "results" / "differential"
            kept.mkdir(parents=True, exist_ok=True)
            for rule, text in answers.items():
                if not needs_more_devices(text):
                    (kept / f"{rule}.trace").write_text(text)
    answered = sum(t.endswith("# end\n") or needs_more_devices(t) for t in answers.values())
    print(f"{len(answers)} rules, {answered} answered to the end, {len(unstable)} unstable")
    sys.exit(0 if answered == len(answers) and not unstable else 1)


if __name__ == "__main__":
    main()
